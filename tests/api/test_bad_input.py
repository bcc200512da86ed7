"""Whatever arrives: an error of ours, nothing stored, and the next good request works."""

from __future__ import annotations

from collections.abc import AsyncIterator
from time import monotonic
from typing import Any

import httpx
import pytest
from psycopg import sql
from tests.api.support import JSON, check_error, count, enqueue, serving
from tests.store.support import job, one

from jobq.db import Conn

NUL = r"\u0000"


async def refuse(
    http: httpx.AsyncClient, conn: Conn, body: str | bytes, status: int, *fields: str
) -> None:
    """Post a raw body, which must be refused and change nothing; then a good one must be taken."""
    content = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    before = count(conn)
    response = await http.post("/api/jobs", content=content, headers=JSON)
    assert response.status_code == status, response.text
    check_error(response, status, response.json()["code"], *fields)
    assert count(conn) == before
    await enqueue(http)


@pytest.mark.case("B01")
@pytest.mark.parametrize(
    ("body", "field"),
    [
        (f'{{"kind":"echo","payload":{{"a":"x{NUL}y"}}}}', "payload"),
        (f'{{"kind":"echo","payload":[[{{"a":["x{NUL}y"]}}]]}}', "payload"),
        (f'{{"kind":"echo","payload":{{"{NUL}":1}}}}', "payload"),
        (f'{{"kind":"echo{NUL}"}}', "kind"),
        (f'{{"kind":"echo","queue":"{NUL}"}}', "queue"),
        (f'{{"kind":"echo","tenant":"{NUL}"}}', "tenant"),
        (f'{{"kind":"echo","idempotencyKey":"a{NUL}b"}}', "idempotencyKey"),
        (f'{{"kind":"echo","uniqueKey":"a{NUL}b"}}', "uniqueKey"),
        (f'{{"kind":"echo","concurrencyKey":"a{NUL}b"}}', "concurrencyKey"),
        (f'{{"kind":"echo","tags":["a{NUL}b"]}}', "tags"),
        (r'{"kind":"echo","payload":"\ud800"}', "payload"),
        (r'{"kind":"echo","payload":{"\udfff":1}}', "payload"),
        (r'{"kind":"echo","idempotencyKey":"\ud800"}', "idempotencyKey"),
        (r'{"kind":"echo","tags":["\ud800"]}', "tags"),
    ],
)
async def test_text_that_postgresql_cannot_hold_is_refused(
    http: httpx.AsyncClient, conn: Conn, body: str, field: str
) -> None:
    await refuse(http, conn, body, 422, field)


@pytest.mark.case("B01")
async def test_nul_in_job_500_of_a_batch_is_named_and_undoes_the_batch(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    jobs = [{"kind": "echo", "payload": {"at": at}} for at in range(1000)]
    jobs[500]["payload"] = {"a": "x\0y"}
    response = await http.post("/api/jobs/batch", json={"jobs": jobs})
    check_error(response, 422, "invalid_field", "jobs[500].payload")
    assert count(conn) == 0
    await enqueue(http)


@pytest.mark.case("B02")
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400"])
async def test_numbers_that_json_does_not_have_are_refused(
    http: httpx.AsyncClient, conn: Conn, number: str
) -> None:
    await refuse(http, conn, f'{{"kind":"k","payload":{{"v":{number}}}}}', 400)


@pytest.mark.case("B89")
@pytest.mark.parametrize("n", [101, 500, 5000, 100_000])
@pytest.mark.parametrize(("start", "end"), [("[", "]"), ('{"a":', "}")])
async def test_deep_nesting_is_refused(
    http: httpx.AsyncClient, conn: Conn, n: int, start: str, end: str
) -> None:
    payload = start * n + ("1" if start != "[" else "") + end * n
    response = await http.post(
        "/api/jobs", content=f'{{"kind":"k","payload":{payload}}}'.encode(), headers=JSON
    )
    check_error(response, response.status_code, response.json()["code"])
    assert response.status_code in (400, 422)
    assert count(conn) == 0
    await enqueue(http)


@pytest.mark.case("B89")
async def test_nesting_of_100_levels_is_taken(http: httpx.AsyncClient) -> None:
    body = '{"kind":"k","payload":' + "[" * 100 + "]" * 100 + "}"
    assert (await http.post("/api/jobs", content=body, headers=JSON)).status_code == 202


@pytest.mark.case("B89")
@pytest.mark.parametrize(
    "number", ["1" * 4001, "1" * 5000, "-" + "1" * 5000, "1e5000", "1" * 100_000]
)
async def test_numbers_that_nobody_could_read_back_are_refused(
    http: httpx.AsyncClient, conn: Conn, number: str
) -> None:
    await refuse(http, conn, f'{{"kind":"k","payload":{number}}}', 400)


@pytest.mark.case("B89")
async def test_a_body_of_the_longest_numbers_takes_no_minutes(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    payload = "[" + ",".join(["1" * 4000] * 3000) + "]"
    start = monotonic()
    await refuse(http, conn, f'{{"kind":"k","payload":{payload}}}', 413, "payload")
    assert monotonic() - start < 20


@pytest.mark.parametrize(
    "body",
    [
        "", " ", "{", '{"kind":}', '{"kind":"k"', '{"kind":"k"}}', "{'kind':'k'}", '{"kind":"k",}', "kind=k",
        '{"kind":"k"} {"kind":"k"}', "\ufeff" + '{"kind":"k"}', '{"kind":"k","payload":01}', '{"kind":"k","payload":+1}',
        '{"kind":"k","payload":.5}', '{"kind":"k","payload":"\t"}', '{"kind":"k","payload":"\\x"}', "undefined",
        '{"kind":"k","kind":"j"}', '{"kind":"k","payload":{"a":1,"a":2}}', "// {}", '{"kind":"k"}\0',
        b'{"kind":"\xff"}', b"\xff\xfe{\x00}\x00", b'{"kind":"\xed\xa0\x80"}', b"\x1f\x8b\x08",
    ],
)  # fmt: skip
async def test_what_is_no_json_is_refused(
    http: httpx.AsyncClient, conn: Conn, body: str | bytes
) -> None:
    await refuse(http, conn, body, 400)


async def test_bad_json_is_refused_with_its_place(http: httpx.AsyncClient) -> None:
    response = await http.post("/api/jobs", content='{"kind":\n "k",,}', headers=JSON)
    assert "line 2, column 6" in check_error(response, 400, "bad_json")["error"]


@pytest.mark.parametrize(
    ("member", "field"),
    [
        ('"kind":""', "kind"), ('"kind":null', "kind"), ('"kind":5', "kind"), ('"kind":"a b"', "kind"),
        ('"kind":"é"', "kind"), (f'"kind":"{"k" * 129}"', "kind"), ('"kind":["k"]', "kind"), ('"kind":"k\\n"', "kind"),
        ('"queue":""', "queue"), (f'"queue":"{"q" * 129}"', "queue"), ('"queue":1', "queue"), ('"tenant":"ä"', "tenant"),
        ('"priority":101', "priority"), ('"priority":-101', "priority"), ('"priority":1.5', "priority"),
        ('"priority":"5"', "priority"), ('"priority":true', "priority"), (f'"priority":{"9" * 50}', "priority"),
        ('"maxAttempts":0', "maxAttempts"), ('"maxAttempts":101', "maxAttempts"), ('"maxAttempts":-1', "maxAttempts"),
        ('"maxAttempts":2147483648', "maxAttempts"), ('"maxAttempts":2.0', "maxAttempts"), ('"maxAttempts":[]', "maxAttempts"),
        ('"timeoutSeconds":0', "timeoutSeconds"), ('"timeoutSeconds":-1', "timeoutSeconds"), ('"timeoutSeconds":"5"', "timeoutSeconds"),
        ('"timeoutSeconds":1e300', "timeoutSeconds"), ('"timeoutSeconds":false', "timeoutSeconds"),
        ('"delaySeconds":-0.1', "delaySeconds"), ('"delaySeconds":1e300', "delaySeconds"), ('"delaySeconds":"5"', "delaySeconds"),
        (f'"delaySeconds":{"9" * 400}', "delaySeconds"), ('"delaySeconds":315360001', "delaySeconds"),
        ('"idempotencyKey":5', "idempotencyKey"), ('"uniqueKey":{}', "uniqueKey"), ('"concurrencyKey":""', "concurrencyKey"),
        ('"tags":"a"', "tags"), ('"tags":[""]', "tags"), ('"tags":[1]', "tags"), (f'"tags":["{"t" * 65}"]', "tags"),
        (f'"tags":[{",".join(["1"] * 17)}]', "tags"), ('"tags":{"a":1}', "tags"),
        ('"unknown":1', "unknown"), ('"status":"DONE"', "status"), ('"id":1', "id"), ('"meta":{}', "meta"),
        ('"delay":5', "delay"), ('"timeout":5', "timeout"), ('"__proto__":{}', "__proto__"), ('"Kind":"k"', "Kind"),
    ],
)  # fmt: skip
async def test_fields_out_of_bounds_are_named(
    http: httpx.AsyncClient, conn: Conn, member: str, field: str
) -> None:
    kind = "" if member.startswith('"kind"') else '"kind":"k",'
    await refuse(http, conn, "{" + kind + member + "}", 422, field)


async def test_all_bad_fields_are_named_at_once(http: httpx.AsyncClient) -> None:
    body = {"kind": "", "priority": 1000, "maxAttempts": 0, "tags": 5, "payload": "\0"}
    response = await http.post("/api/jobs", json=body)
    check_error(
        response, 422, "invalid_field", "kind", "priority", "maxAttempts", "tags", "payload"
    )


@pytest.mark.parametrize("name", ["x" * 100_000, r"\ud800", r"\u0000", "<script>"])
async def test_a_hostile_name_of_a_field_does_not_break_the_answer(
    http: httpx.AsyncClient, conn: Conn, name: str
) -> None:
    content = f'{{"kind":"k","{name}":1}}'
    response = await http.post("/api/jobs", content=content, headers=JSON)
    check_error(response, 422, "invalid_field")
    assert len(response.content) < 2000


@pytest.mark.parametrize("body", ["[]", "5", "null", '"x"', "true", "[[]]"])
async def test_a_body_that_is_no_object_is_refused(
    http: httpx.AsyncClient, conn: Conn, body: str
) -> None:
    await refuse(http, conn, body, 422)


# --- times ----------------------------------------------------------------------------------------


@pytest.mark.case("B72")
@pytest.mark.parametrize(
    "time",
    [
        '"2030-01-01T00:00:00"', '"2030-01-01"', "1893456000", "1893456000.5", '"1893456000"', '""', '"now"', '"tomorrow"',
        '"2030-01-01T00:00"', '"2030-13-01T00:00:00Z"', '"2030-02-30T00:00:00Z"', '"2030-01-01T25:00:00Z"',
        '"2030-01-01T00:00:60Z"', '"0000-01-01T00:00:00Z"', '"99999-01-01T00:00:00Z"', '"9999-12-31T23:59:59Z"',
        '"2030-01-01T00:00:00+99:00"', '"2030-01-01T00:00:00 Europe/Berlin"', '"infinity"', "true", "[]", "{}",
        '"2030-01-01T00:00:00Z\\u0000"', '" 2030-01-01T00:00:00Z"', '"٢٠٣٠-01-01T00:00:00Z"',
    ],
)  # fmt: skip
async def test_times_without_a_zone_or_sense_are_refused(
    http: httpx.AsyncClient, conn: Conn, time: str
) -> None:
    await refuse(http, conn, f'{{"kind":"k","runAt":{time}}}', 422, "runAt")


@pytest.fixture
async def far_away(conn: Conn, database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """An API whose database lives in another time zone."""
    name = str(one(conn, "SELECT current_database()")[0])
    statement = sql.SQL("ALTER DATABASE {} SET timezone = 'America/New_York'")
    conn.execute(statement.format(sql.Identifier(name)))
    async with serving(database_url) as http:
        yield http


@pytest.mark.case("B72")
async def test_equal_instants_are_stored_equal_whatever_the_zones(
    far_away: httpx.AsyncClient, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    texts = ("2040-01-01T00:00:00Z", "2040-01-01T05:30:00+05:30", "2039-12-31T19:00:00.000-05:00")
    for text in texts:
        id_ = await enqueue(far_away, runAt=text)
        stored = one(conn, "SELECT run_at AT TIME ZONE 'UTC' FROM jobq.job WHERE id = %s", (id_,))
        assert str(stored[0]) == "2040-01-01 00:00:00"
        shown = (await far_away.get(f"/api/jobs/{id_}")).json()
        assert shown["runAt"] == "2040-01-01T00:00:00Z"
        assert shown["status"] == "SCHEDULED"
        assert shown["createdAt"].endswith("Z")


@pytest.mark.case("B72")
@pytest.mark.parametrize(
    "time", ["1970-01-02T00:00:00Z", "2020-01-01T00:00:00Z", "0001-01-01T00:00:00Z"]
)
async def test_a_time_in_the_past_means_now(http: httpx.AsyncClient, conn: Conn, time: str) -> None:
    row = job(conn, await enqueue(http, runAt=time))
    assert row["status"] == "QUEUED"
    assert row["run_at"] == row["created_at"]


async def test_delay_and_time_together_are_refused(http: httpx.AsyncClient) -> None:
    body = {"kind": "k", "delaySeconds": 1, "runAt": "2040-01-01T00:00:00Z"}
    check_error(await http.post("/api/jobs", json=body), 422, "invalid_field", "runAt")


# --- media types and sizes ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "media",
    [
        "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "json",
        "application/json; charset=latin-1", "application/jsonx", "text/json", "application/xml",
    ],
)  # fmt: skip
async def test_other_media_types_are_refused(
    http: httpx.AsyncClient, conn: Conn, media: str
) -> None:
    response = await http.post(
        "/api/jobs", content=b'{"kind":"k"}', headers={"Content-Type": media}
    )
    check_error(response, 415, "unsupported_media_type")
    assert count(conn) == 0


@pytest.mark.parametrize(
    "media",
    ["application/json", "Application/JSON", "application/json;charset=UTF-8", 'application/json; charset="utf-8"'],
)  # fmt: skip
async def test_json_in_utf_8_is_taken_however_it_is_said(
    http: httpx.AsyncClient, media: str
) -> None:
    headers = {"Content-Type": media}
    response = await http.post("/api/jobs", content=b'{"kind":"k"}', headers=headers)
    assert response.status_code == 202


async def stream(size: int) -> AsyncIterator[bytes]:
    for _ in range(size // 1000):
        yield b" " * 1000


async def test_a_body_above_the_limit_is_refused_also_without_a_length(database_url: str) -> None:
    async with serving(database_url, max_body="64KiB") as http:
        long = b'{"kind":"k","payload":"' + b"x" * 70_000 + b'"}'
        check_error(await http.post("/api/jobs", content=long, headers=JSON), 413, "body_too_large")
        streamed = await http.post("/api/jobs", content=stream(70_000), headers=JSON)
        check_error(streamed, 413, "body_too_large")
        for path in ("/api/jobs/batch", "/api/jobs/1/retry", "/api/jobs/1/cancel"):
            check_error(await http.post(path, content=long, headers=JSON), 413, "body_too_large")
        await enqueue(http)


async def test_a_payload_above_the_limit_is_refused(database_url: str, conn: Conn) -> None:
    async with serving(database_url, max_payload="1KiB") as http:
        assert await enqueue(http, payload="x" * 1022) > 0
        response = await http.post("/api/jobs", json={"kind": "k", "payload": "x" * 1023})
        check_error(response, 413, "payload_too_large", "payload")
        batch = {"kind": "k", "payloads": [1, "x" * 1023]}
        check_error(
            await http.post("/api/jobs/batch", json=batch), 422, "invalid_field", "jobs[1].payload"
        )
    assert count(conn) == 1


async def test_a_payload_of_a_mebibyte_is_taken_as_shipped(http: httpx.AsyncClient) -> None:
    assert await enqueue(http, payload="x" * (1024 * 1024 - 2)) > 0
    response = await http.post("/api/jobs", json={"kind": "k", "payload": "x" * (1024 * 1024 - 1)})
    check_error(response, 413, "payload_too_large", "payload")


# --- looking --------------------------------------------------------------------------------------


@pytest.mark.case("B88")
@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=-1", "limit"), ("limit=0", "limit"), ("limit=501", "limit"), ("limit=100000000", "limit"), ("limit=abc", "limit"),
        ("limit=1.5", "limit"), ("limit=", "limit"), ("limit=%00", "limit"), ("limit=1&limit=2", "limit"), ("limit=1_0", "limit"),
        ("limit=%D9%A1", "limit"), ("limit=99999999999999999999", "limit"), ("limit=+5", "limit"), ("limit=1e2", "limit"),
        ("cursor=garbage", "cursor"), ("cursor=-1", "cursor"), ("cursor=0", "cursor"), ("cursor=1.5", "cursor"), ("cursor=", "cursor"),
        ("cursor=99999999999999999999", "cursor"), ("cursor=9223372036854775808", "cursor"), ("cursor=%00", "cursor"),
        ("cursor=1;DROP+TABLE+job", "cursor"), ("offset=-1", "offset"), ("offset=99999999999999999999", "offset"),
        ("status=NOPE", "status"), ("status=", "status"), ("status=DONE&status=NOPE", "status"), ("status=%00", "status"),
        ("status=DONE,DEAD", "status"), ("kind=%00", "kind"), ("kind=", "kind"), ("kind=a%20b", "kind"), ("kind=%FF", "kind"),
        ("queue=%00", "queue"), ("tenant=%00", "tenant"), ("tag=%00", "tag"), ("tag=", "tag"), ("tag=" + "x" * 65, "tag"),
        ("kind=a&kind=b", "kind"), ("unknown=1", "unknown"), ("%00=1", None), ("=", None), ("limit[]=5", None),
    ],
)  # fmt: skip
async def test_bad_questions_are_refused(
    http: httpx.AsyncClient, query: str, field: str | None
) -> None:
    response = await http.get(f"/api/jobs?{query}")
    check_error(response, 422, "invalid_field", *([field] if field else []))
    assert (await http.get("/api/jobs")).status_code == 200


@pytest.mark.parametrize("id_", ["abc", "1.5", "%00", "1e3", "+1", " 1", "\uff11", "null", "0x1"])
@pytest.mark.parametrize("path", ["", "/status"])
async def test_ids_that_are_no_numbers_are_refused(
    http: httpx.AsyncClient, id_: str, path: str
) -> None:
    check_error(await http.get(f"/api/jobs/{id_}{path}"), 422, "invalid_field", "id")


@pytest.mark.parametrize(
    "id_", ["0", "-1", "1", "9223372036854775807", "9223372036854775808", "9" * 50, "-" + "9" * 50]
)
async def test_ids_that_no_job_has_are_not_found(http: httpx.AsyncClient, id_: str) -> None:
    answers: list[Any] = [
        await http.get(f"/api/jobs/{id_}"),
        await http.get(f"/api/jobs/{id_}/status"),
        await http.post(f"/api/jobs/{id_}/retry"),
        await http.post(f"/api/jobs/{id_}/cancel"),
    ]
    for response in answers:
        check_error(response, 404, "not_found")
