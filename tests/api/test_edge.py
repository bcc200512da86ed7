"""What holds for every request: its id, the hosts and origins it may come from, headers, errors."""

from __future__ import annotations

import logging
import re

import httpx
import pytest
from tests.api.support import check_error, enqueue, serving
from tests.store.support import put, status

from jobq import config
from jobq.api import create_app
from jobq.db import Conn
from jobq.errors import ConfigurationError

ANSWERS = [
    ("GET", "/healthz", 200),
    ("GET", "/readyz", 200),
    ("GET", "/health", 200),
    ("GET", "/metrics", 200),
    ("GET", "/actuator/prometheus", 200),
    ("GET", "/openapi.json", 200),
    ("GET", "/docs", 200),
    ("GET", "/api/jobs", 200),
    ("GET", "/api/queues", 200),
    ("GET", "/api/workers", 200),
    ("GET", "/api/stats", 200),
    ("GET", "/api/jobs/1", 404),
    ("GET", "/nowhere", 404),
    ("GET", "/", 404),
    ("GET", "/api/jobs/", 404),
    ("PUT", "/api/jobs", 405),
    ("DELETE", "/healthz", 405),
    ("POST", "/api/jobs", 415),
    ("GET", "/api/jobs?limit=x", 422),
]


@pytest.mark.parametrize(("method", "path", "code"), ANSWERS)
async def test_every_answer_has_a_request_id_and_security_headers(
    http: httpx.AsyncClient, method: str, path: str, code: int
) -> None:
    response = await http.request(method, path)
    assert response.status_code == code, response.text
    assert re.fullmatch("[0-9a-f]{32}", response.headers["x-request-id"])
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["x-frame-options"] == "DENY"
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert "access-control-allow-origin" not in response.headers
    if code >= 400:
        check_error(response, code, response.json()["code"])


async def test_a_method_that_a_path_does_not_take_is_told_those_it_takes(
    http: httpx.AsyncClient,
) -> None:
    response = await http.put("/api/jobs")
    assert response.headers["allow"] == "GET, HEAD, POST"
    assert (await http.get("/api/jobs/1/retry")).headers["allow"] == "POST"


@pytest.mark.parametrize(("method", "path", "code"), ANSWERS)
async def test_a_sane_request_id_comes_back(
    http: httpx.AsyncClient, method: str, path: str, code: int
) -> None:
    response = await http.request(method, path, headers={"X-Request-ID": "a-B.7/~"})
    assert response.headers.get_list("x-request-id") == ["a-B.7/~"]


@pytest.mark.parametrize("given", [b"", b"x" * 129, b"a b", b"\xe9", b"\x01", b"a\tb"])
async def test_an_odd_request_id_is_replaced(http: httpx.AsyncClient, given: bytes) -> None:
    response = await http.get("/healthz", headers=[(b"X-Request-ID", given)])
    assert re.fullmatch("[0-9a-f]{32}", response.headers["x-request-id"])


async def test_head_is_get_without_a_body(http: httpx.AsyncClient) -> None:
    for path in ("/healthz", "/metrics", "/api/jobs", "/nowhere"):
        head, get = await http.head(path), await http.get(path)
        assert (head.status_code, head.content) == (get.status_code, b"")


# --- hosts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8080", "127.0.0.1", "127.0.0.1:1", "[::1]:8080", "[::1]", "LOCALHOST", "localhost."]
)  # fmt: skip
async def test_a_loopback_api_answers_to_loopback_names(http: httpx.AsyncClient, host: str) -> None:
    assert (await http.get("/healthz", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "", "localhost@evil", "[::2]", "0.0.0.0"],
)  # fmt: skip
async def test_any_other_name_is_refused(http: httpx.AsyncClient, conn: Conn, host: str) -> None:
    """A page whose name was pointed at this machine (DNS rebinding) reaches nothing."""
    for method, path in (("GET", "/api/jobs"), ("POST", "/api/jobs"), ("GET", "/healthz")):
        response = await http.request(method, path, headers={"Host": host})
        check_error(response, 421, "bad_host")


async def test_an_insecure_api_answers_to_any_name(database_url: str) -> None:
    async with serving(database_url, insecure=True, http_addr="0.0.0.0:8080") as http:
        assert (await http.get("/healthz", headers={"Host": "jobs.example"})).status_code == 200


@pytest.mark.parametrize("address", ["0.0.0.0:8080", "[::]:8080", "10.1.2.3:80", "jobs.example:80"])
def test_an_address_that_others_reach_needs_insecure(address: str) -> None:
    settings = config.load(database_url="postgresql:///x", http_addr=address)
    with pytest.raises(ConfigurationError, match="--insecure"):
        create_app(settings)
    create_app(settings, insecure=True)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:0", "127.0.0.2:80", "[::1]:80", "localhost:80", ":80"]
)
def test_a_loopback_address_needs_nothing(address: str) -> None:
    create_app(config.load(database_url="postgresql:///x", http_addr=address))


def test_a_database_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    with pytest.raises(ConfigurationError, match="JOBQ_DATABASE_URL"):
        create_app(config.load())


# --- pages of other sites ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "http://localhost:3000"},
        {"Origin": "null"},
        {"Origin": "http://[bad"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://evil.example"},
    ],
)
async def test_a_page_of_another_site_changes_nothing(
    http: httpx.AsyncClient, conn: Conn, headers: dict[str, str]
) -> None:
    id_ = put(conn, "DEAD")
    for path in (f"/api/jobs/{id_}/retry", f"/api/jobs/{id_}/cancel", "/api/jobs"):
        check_error(await http.post(path, headers=headers), 403, "cross_site")
    assert status(conn, id_) == "DEAD"


@pytest.mark.parametrize(
    "headers", [{"Sec-Fetch-Site": "same-origin", "Origin": "http://localhost"}, {"Sec-Fetch-Site": "none"}]
)  # fmt: skip
async def test_our_own_pages_may(
    http: httpx.AsyncClient, conn: Conn, headers: dict[str, str]
) -> None:
    id_ = put(conn, "DEAD")
    assert (await http.post(f"/api/jobs/{id_}/retry", headers=headers)).status_code == 200


# --- errors and logs --------------------------------------------------------------------------------


async def test_a_fault_of_ours_shows_nothing_but_its_id_and_the_log_tells_the_rest(
    http: httpx.AsyncClient, conn: Conn, caplog: pytest.LogCaptureFixture
) -> None:
    conn.execute(
        "CREATE OR REPLACE FUNCTION jobq.announce(tokens text[], first timestamptz[], last timestamptz[])"
        " RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'SELECT a secret'; END $$"
    )
    id_ = put(conn, "DEAD")
    response = await http.post(f"/api/jobs/{id_}/retry", headers={"X-Request-ID": "r-500"})
    check_error(response, 500, "internal")
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "r-500" in record.getMessage()
    assert record.exc_info


async def test_a_missing_schema_is_told(empty_database_url: str) -> None:
    async with serving(empty_database_url) as http:
        for response in (
            await http.get("/api/jobs/1"),
            await http.post("/api/jobs", json={"kind": "k"}),
            await http.post("/api/jobs/1/cancel"),
        ):
            assert "jobq migrate" in check_error(response, 503, "schema")["error"]
        assert (await http.get("/metrics")).status_code == 200


async def test_a_request_is_one_line(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await enqueue(http)
    lines = [record.getMessage() for record in caplog.records if record.name == "jobq.api"]
    (line,) = lines
    for word in (
        "request ",
        "method=POST",
        "path=/api/jobs",
        "status=202",
        "seconds=",
        "request_id=",
    ):
        assert word in line


async def test_what_a_path_hides_is_not_obeyed_in_the_log(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert (await http.get("/x%0a%1b[31m" + "y" * 1000)).status_code == 404
    (line,) = [record.getMessage() for record in caplog.records if record.name == "jobq.api"]
    assert len(line) < 500
    assert line.isprintable()
