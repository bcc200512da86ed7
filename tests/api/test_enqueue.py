"""POST /api/jobs and /api/jobs/batch: what is taken, and what it becomes."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Annotated, Any

import httpx
import pytest
from pydantic import AfterValidator
from tests.api.support import JSON, check_error, count, enqueue, serving
from tests.store.support import job, one

from jobq.api.body import AT_ONCE
from jobq.context import Context
from jobq.db import Conn
from jobq.handlers import Handler, Registry


async def test_a_job_is_taken_and_its_place_named(http: httpx.AsyncClient, conn: Conn) -> None:
    response = await http.post(
        "/api/jobs", json={"kind": "email.welcome", "payload": {"to": "a@b.com"}}
    )
    assert response.status_code == 202
    id_ = response.json()["id"]
    assert response.json() == {"id": id_, "status": "QUEUED"}
    assert response.headers["location"] == f"/api/jobs/{id_}"
    row = job(conn, id_)
    assert (row["kind"], row["queue"]) == ("email.welcome", "default")
    assert row["payload"] == '{"to": "a@b.com"}'


async def test_every_field_arrives_in_camel_case_and_in_snake_case(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    camel = {
        "queue": "mail", "tenant": "acme", "priority": 7, "delaySeconds": 60, "maxAttempts": 3,
        "timeoutSeconds": 1.5, "idempotencyKey": "i1", "uniqueKey": "u1", "concurrencyKey": "c1",
        "tags": ["a", "b"],
    }  # fmt: skip
    snake = {
        "queue": "mail", "tenant": "acme", "priority": 7, "delay_seconds": 60, "max_attempts": 3,
        "timeout_seconds": 1.5, "idempotency_key": "i2", "unique_key": "u2", "concurrency_key": "c1",
        "tags": ["a", "b"],
    }  # fmt: skip
    for body in (camel, snake):
        row = job(conn, await enqueue(http, **body))
        assert row["status"] == "SCHEDULED"
        wanted = {
            "queue": "mail",
            "tenant": "acme",
            "priority": 7,
            "max_attempts": 3,
            "timeout": 1.5,
        }
        wanted |= {"concurrency_key": "c1", "tags": ["a", "b"]}
        assert {name: row[name] for name in wanted} == wanted


async def test_a_field_given_in_both_ways_is_refused(http: httpx.AsyncClient) -> None:
    body = {"kind": "k", "maxAttempts": 1, "max_attempts": 2}
    check_error(await http.post("/api/jobs", json=body), 422, "invalid_field", "maxAttempts")


async def test_null_is_left_open_but_a_payload_may_be_null(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    id_ = await enqueue(http, queue=None, priority=None, runAt=None, tags=None, payload=None)
    assert one(conn, "SELECT payload::text FROM jobq.job WHERE id = %s", (id_,)) == ("null",)
    assert (await http.get(f"/api/jobs/{id_}")).json()["payload"] is None
    assert (await http.get(f"/api/jobs/{id_}")).json()["payloadDropped"] is False


@pytest.mark.parametrize(
    "payload",
    [
        "{}", "[]", "0", "-0.5", '"x"', "true", "null", "9007199254740993", "1" * 4000, "-" + "9" * 3999,
        '{"a":123456789012345678901234567890}', '"\\u00e9 e\\u0301 \\ud83d\\ude00"', '{"":""}', "[[[]]]",
        '{"a\\u0001\\"\\\\b":[1.25e15,1e-300]}',
    ],
)  # fmt: skip
async def test_payloads_come_back_exactly(http: httpx.AsyncClient, payload: str) -> None:
    body = '{"kind":"k","payload":' + payload + "}"
    response = await http.post("/api/jobs", content=body, headers=JSON)
    assert response.status_code == 202, response.text
    found = await http.get(f"/api/jobs/{response.json()['id']}")
    assert json.loads(found.content)["payload"] == json.loads(payload)


async def test_request_id_and_trace_travel_with_the_job(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    response = await http.post(
        "/api/jobs", json={"kind": "k"}, headers={"X-Request-ID": "order-7", "traceparent": trace}
    )
    id_ = response.json()["id"]
    assert json.loads(job(conn, id_)["meta"]) == {"request_id": "order-7", "traceparent": trace}
    assert (await http.get(f"/api/jobs/{id_}")).json()["requestId"] == "order-7"


async def test_a_bad_trace_header_is_left_out(http: httpx.AsyncClient, conn: Conn) -> None:
    response = await http.post("/api/jobs", json={"kind": "k"}, headers={"traceparent": "00-x"})
    assert "traceparent" not in job(conn, response.json()["id"])["meta"]


# --- batches --------------------------------------------------------------------------------------


async def test_a_batch_answers_in_order(http: httpx.AsyncClient, conn: Conn) -> None:
    known = await enqueue(http, idempotencyKey="a")
    jobs = [
        {"kind": "one"},
        {"kind": "test", "idempotencyKey": "a"},
        {"kind": "two", "delaySeconds": 60},
        {"kind": "three", "uniqueKey": "u"},
        {"kind": "three", "uniqueKey": "u"},
    ]
    response = await http.post("/api/jobs/batch", json={"jobs": jobs})
    assert response.status_code == 202, response.text
    found = response.json()["jobs"]
    assert [row["created"] for row in found] == [True, False, True, True, False]
    assert found[1]["id"] == known
    assert found[2]["status"] == "SCHEDULED"
    assert found[3]["id"] == found[4]["id"]
    assert count(conn) == 4


async def test_payloads_share_their_options(http: httpx.AsyncClient, conn: Conn) -> None:
    body = {"kind": "k", "payloads": [1, None, {"a": []}], "queue": "q", "max_attempts": 2}
    response = await http.post("/api/jobs/batch", json=body)
    rows = [job(conn, row["id"]) for row in response.json()["jobs"]]
    assert [row["payload"] for row in rows] == ["1", "null", '{"a": []}']
    assert {(row["queue"], row["max_attempts"]) for row in rows} == {("q", 2)}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"jobs": []}, "jobs"),
        ({"jobs": {}}, "jobs"),
        ({"jobs": [{"kind": "k"}, 5]}, "jobs[1]"),
        ({"jobs": [{"kind": "k"}, {"kind": ""}]}, "jobs[1].kind"),
        ({"jobs": [{"kind": "k"}, {"kind": "k", "nope": 1}]}, "jobs[1].nope"),
        ({"jobs": [{"kind": "k"}], "queue": "q"}, "queue"),
        ({"jobs": [{"kind": "k"}] * 10_001}, "jobs"),
        ({"kind": "k", "payloads": [1], "idempotencyKey": "x"}, "idempotencyKey"),
        ({"kind": "k", "payloads": [1], "jobs": []}, "jobs"),
        ({"kind": "k"}, "kind"),
        ({}, "jobs"),
        ([], None),
    ],
)
async def test_a_bad_batch_is_refused_whole(
    http: httpx.AsyncClient, conn: Conn, body: Any, field: str | None
) -> None:
    response = await http.post("/api/jobs/batch", json=body)
    check_error(response, 422, "invalid_field", *([field] if field else []))
    assert count(conn) == 0


async def test_a_conflict_in_a_batch_names_its_job_and_undoes_the_others(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    await enqueue(http, idempotencyKey="K", payload=1)
    jobs = [{"kind": "test"}, {"kind": "test", "idempotencyKey": "K", "payload": 2}]
    response = await http.post("/api/jobs/batch", json={"jobs": jobs})
    check_error(response, 409, "idempotency_conflict", "jobs[1].idempotencyKey")
    assert count(conn) == 1


async def test_a_batch_takes_no_idempotency_header(http: httpx.AsyncClient) -> None:
    response = await http.post(
        "/api/jobs/batch", json={"jobs": [{"kind": "k"}]}, headers={"Idempotency-Key": "K"}
    )
    check_error(response, 422, "invalid_field", "Idempotency-Key")


async def test_a_batch_may_have_10_000_jobs(http: httpx.AsyncClient, conn: Conn) -> None:
    response = await http.post(
        "/api/jobs/batch", json={"kind": "k", "payloads": list(range(10_000))}
    )
    assert response.status_code == 202
    assert len(response.json()["jobs"]) == 10_000
    assert count(conn) == 10_000


# --- with an app ----------------------------------------------------------------------------------


def broken(value: str) -> str:
    raise KeyError(value)


async def checks(to: Annotated[str, AfterValidator(broken)]) -> None: ...


async def welcome(to: str, copies: int = 1) -> None: ...


async def anything(ctx: Context) -> None: ...


def registry() -> Registry:
    handlers = Registry()
    handlers.add(
        Handler("email.welcome", welcome, queue="mail", priority=3, max_attempts=2, timeout=9)
    )
    handlers.add(Handler("anything", anything))
    return handlers


async def test_an_unknown_kind_is_refused_with_the_known_ones(database_url: str) -> None:
    async with serving(database_url, registry()) as http:
        response = await http.post("/api/jobs", json={"kind": "email.farewell"})
        body = check_error(response, 422, "unknown_kind", "kind")
        assert "email.welcome" in body["error"]
        assert "anything" in body["error"]
        batch = await http.post("/api/jobs/batch", json={"kind": "nope", "payloads": [1]})
        check_error(batch, 422, "invalid_field", "jobs[0].kind")


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ({}, "payload.to"),
        ({"to": 5}, "payload.to"),
        ({"to": "a", "copies": "many"}, "payload.copies"),
        ({"to": "a", "nope": 1}, "payload.nope"),
        ([], "payload"),
    ],
)
async def test_a_payload_that_does_not_fit_is_refused(
    database_url: str, conn: Conn, payload: Any, field: str
) -> None:
    async with serving(database_url, registry()) as http:
        response = await http.post("/api/jobs", json={"kind": "email.welcome", "payload": payload})
        check_error(response, 422, "invalid_payload", field)
    assert count(conn) == 0


async def test_what_a_job_leaves_open_its_kind_says(database_url: str, conn: Conn) -> None:
    async with serving(database_url, registry()) as http:
        given = await enqueue(http, kind="email.welcome", payload={"to": "a"})
        said = await enqueue(
            http, kind="email.welcome", payload={"to": "a"}, queue="q", timeoutSeconds=1
        )
        assert await enqueue(http, kind="anything", payload=[1]) > 0
    names = ("queue", "priority", "max_attempts", "timeout")
    assert [job(conn, given)[name] for name in names] == ["mail", 3, 2, 9]
    assert [job(conn, said)[name] for name in names] == ["q", 3, 2, 1]


probed = threading.Event()


def slow(value: str) -> str:
    assert probed.wait(20), "nothing else was served meanwhile"
    return value


async def checks_slowly(to: Annotated[str, AfterValidator(slow)]) -> None: ...


async def test_a_large_body_is_checked_apart_from_the_loop(database_url: str) -> None:
    """What is small, and a probe above all, does not wait for it."""
    probed.clear()
    handlers = Registry()
    handlers.add(Handler("k", checks_slowly))
    async with serving(database_url, handlers) as http:
        body = {"kind": "k", "payload": {"to": "x" * AT_ONCE}}
        large = asyncio.create_task(http.post("/api/jobs", json=body))
        await asyncio.sleep(0)  # it goes first
        assert (await http.get("/healthz")).status_code == 200
        probed.set()
        assert (await large).status_code == 202


async def test_a_check_of_the_app_that_fails_by_itself_is_the_payloads_fault(
    database_url: str,
) -> None:
    handlers = Registry()
    handlers.add(Handler("k", checks))
    async with serving(database_url, handlers) as http:
        response = await http.post("/api/jobs", json={"kind": "k", "payload": {"to": "x"}})
        check_error(response, 422, "invalid_payload", "payload")
