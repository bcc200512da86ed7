"""Idempotency keys and uniqueKey over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from tests.api.support import JSON, check_error, count, enqueue
from tests.store.support import put

from jobq.db import Conn


@pytest.mark.case("B54")
async def test_the_same_request_again_is_answered_with_the_first_job(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    """Equal is what jsonb calls equal: order of members, blanks, 1 and 1.0, escapes do not matter."""
    texts = (
        '{"to":"\u00e9","n":1}',
        '{ "n" : 1.0, "to" : "\\u00e9" }',
    )
    ids = []
    for status, text in zip((202, 200), texts, strict=True):
        body = '{"kind":"k","idempotencyKey":"K","payload":' + text + "}"
        response = await http.post("/api/jobs", content=body.encode(), headers=JSON)
        assert response.status_code == status, response.text
        ids.append(response.json()["id"])
    assert ids[0] == ids[1]
    assert count(conn) == 1


@pytest.mark.case("B54")
@pytest.mark.parametrize("other", [{"payload": {"to": "b"}}, {"kind": "other"}])
async def test_a_key_used_for_another_request_conflicts(
    http: httpx.AsyncClient, conn: Conn, other: dict[str, Any]
) -> None:
    first = {"kind": "k", "payload": {"to": "a"}, "idempotencyKey": "K"}
    await http.post("/api/jobs", json=first)
    response = await http.post("/api/jobs", json={**first, **other})
    check_error(response, 409, "idempotency_conflict", "idempotencyKey")
    assert count(conn) == 1


@pytest.mark.case("B55")
@pytest.mark.parametrize("status", ["DEAD", "CANCELLED", "DONE", "FAILED"])
async def test_a_replay_tells_what_became_of_the_job(
    http: httpx.AsyncClient, conn: Conn, status: str
) -> None:
    body = {"kind": "k", "payload": {}, "idempotencyKey": "K"}
    id_ = (await http.post("/api/jobs", json=body)).json()["id"]
    conn.execute("DELETE FROM jobq.job")
    put(conn, status, id=id_, kind="k", idempotency_key="K")
    response = await http.post("/api/jobs", json=body)
    assert (response.status_code, response.json()) == (200, {"id": id_, "status": status})


@pytest.mark.case("B55")
async def test_a_replay_after_the_job_was_retired_says_so(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    body = {"kind": "k", "payload": {}, "idempotencyKey": "K"}
    id_ = (await http.post("/api/jobs", json=body)).json()["id"]
    conn.execute("DELETE FROM jobq.job")
    response = await http.post("/api/jobs", json=body)
    assert (response.status_code, response.json()) == (200, {"id": id_, "status": "RETIRED"})
    assert count(conn) == 0


@pytest.mark.case("B59")
async def test_tenants_have_their_keys_to_themselves(http: httpx.AsyncClient, conn: Conn) -> None:
    ids = {
        await enqueue(http, tenant=tenant, payload={"of": tenant}, idempotencyKey="order-1")
        for tenant in ("a", "b")
    }
    assert len(ids) == 2
    response = await http.post(
        "/api/jobs",
        json={"kind": "other", "tenant": "a", "payload": {"of": "a"}, "idempotencyKey": "order-1"},
    )
    check_error(response, 409, "idempotency_conflict")
    assert count(conn) == 2


@pytest.mark.case("B58")
@pytest.mark.parametrize(
    ("key", "taken"),
    [
        ("f" * 255, True), ("\U0001f600" * 63, True), ("é" * 127, True), (" ", True), (" x ", True),
        ("0123456789abcdef" * 188, False), ("\U0001f600" * 64, False), ("a" * 100_000, False), ("", False),
        ("a" * 256, False),
    ],
)  # fmt: skip
async def test_keys_have_255_bytes_at_most_and_are_taken_as_they_are(
    http: httpx.AsyncClient, conn: Conn, key: str, taken: bool
) -> None:
    for field in ("idempotencyKey", "uniqueKey", "concurrencyKey"):
        response = await http.post("/api/jobs", json={"kind": "k", field: key})
        if taken:
            assert response.status_code == 202, response.text
            shown = await http.get(f"/api/jobs/{response.json()['id']}")
            assert shown.json()[field] == key
        else:
            check_error(response, 422, "invalid_field", field)
    assert count(conn) == (3 if taken else 0)


@pytest.mark.case("B58")
async def test_keys_that_look_alike_are_different(http: httpx.AsyncClient) -> None:
    keys = ("key", "Key", " key", "key ", "\u00e9", "e\u0301")
    ids = [await enqueue(http, idempotencyKey=key) for key in keys]
    assert len(set(ids)) == len(keys)


async def test_the_header_is_the_field(http: httpx.AsyncClient, conn: Conn) -> None:
    first = await http.post("/api/jobs", json={"kind": "k"}, headers={"Idempotency-Key": "K"})
    again = await http.post("/api/jobs", json={"kind": "k", "idempotencyKey": "K"})
    both = await http.post(
        "/api/jobs", json={"kind": "k", "idempotencyKey": "K"}, headers={"Idempotency-Key": "K"}
    )
    assert [first.status_code, again.status_code, both.status_code] == [202, 200, 200]
    assert count(conn) == 1


async def test_header_and_field_that_differ_are_refused(http: httpx.AsyncClient) -> None:
    response = await http.post(
        "/api/jobs", json={"kind": "k", "idempotencyKey": "K"}, headers={"Idempotency-Key": "L"}
    )
    check_error(response, 422, "invalid_field", "idempotencyKey")


async def test_a_header_that_is_no_ascii_is_refused(http: httpx.AsyncClient, conn: Conn) -> None:
    """In which encoding it is nobody knows; taken for another key, it would make a second job."""
    for text in ("é".encode(), "é".encode("latin-1")):
        headers = [(b"Idempotency-Key", text)]
        response = await http.post("/api/jobs", json={"kind": "k"}, headers=headers)
        check_error(response, 422, "invalid_field", "Idempotency-Key")
    assert count(conn) == 0


async def test_a_unique_key_gives_the_live_job(http: httpx.AsyncClient, conn: Conn) -> None:
    id_ = await enqueue(http, uniqueKey="u", payload=1)
    again = await http.post("/api/jobs", json={"kind": "test", "uniqueKey": "u", "payload": 2})
    assert (again.status_code, again.json()) == (200, {"id": id_, "status": "QUEUED"})
    assert (await http.post(f"/api/jobs/{id_}/cancel")).status_code == 200
    assert await enqueue(http, uniqueKey="u") != id_


async def test_a_key_whose_first_request_is_still_open_is_told_so(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    with conn.transaction(force_rollback=True):
        conn.execute("SELECT jobq.enqueue(kind => 'test', idempotency_key => 'K')")
        response = await http.post("/api/jobs", json={"kind": "test", "idempotencyKey": "K"})
        check_error(response, 409, "key_in_progress")
        assert int(response.headers["retry-after"]) > 0
    assert await enqueue(http, idempotencyKey="K") > 0  # what was rolled back burns no key


async def test_ten_concurrent_requests_with_one_key_make_one_job(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    body = {"kind": "k", "idempotencyKey": "K"}
    answers = await asyncio.gather(*(http.post("/api/jobs", json=body) for _ in range(10)))
    assert sorted(answer.status_code for answer in answers) == [200] * 9 + [202]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert count(conn) == 1


@pytest.mark.case("B60")
async def test_batches_with_the_same_keys_in_opposite_orders_are_all_answered(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    jobs = [{"kind": "k", "idempotencyKey": f"k{at}", "uniqueKey": f"u{at}"} for at in range(200)]
    for _ in range(5):
        answers = await asyncio.gather(
            *(http.post("/api/jobs/batch", json={"jobs": jobs[::step]}) for step in (1, -1, 1, -1))
        )
        assert {answer.status_code for answer in answers} == {202}
    assert count(conn) == 200


@pytest.mark.case("B61")
async def test_existing_and_repeated_keys_in_a_batch_are_answered_like_single_ones(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    existing = [await enqueue(http, idempotencyKey=f"k{at}") for at in range(10)]
    keys = [f"k{at}" for at in range(997)] + ["k500"] * 3
    jobs = [{"kind": "test", "idempotencyKey": key} for key in keys]
    response = await http.post("/api/jobs/batch", json={"jobs": jobs})
    found = response.json()["jobs"]
    assert [row["id"] for row in found[:10]] == existing
    assert [row["created"] for row in found] == [False] * 10 + [True] * 987 + [False] * 3
    assert {row["id"] for row in found[997:]} == {found[500]["id"]}
    assert count(conn) == 997
