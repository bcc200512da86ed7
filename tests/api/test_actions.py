"""POST /api/jobs/{id}/retry and /api/jobs/{id}/cancel."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
from tests.api.support import JSON, check_error
from tests.store.support import give_key, job, put, status

from jobq.db import Conn

FORCE = {"force": True}


@pytest.mark.case("B98")
@pytest.mark.parametrize(
    ("before", "body"),
    [("DEAD", None), ("SCHEDULED", None), ("DEAD", FORCE), ("FAILED", FORCE), ("CANCELLED", FORCE)],
)
async def test_a_retry_starts_over(
    http: httpx.AsyncClient, conn: Conn, before: str, body: Any
) -> None:
    columns = {} if before == "SCHEDULED" else {"attempts": 5, "history": '[{"error":"x"}]'}
    id_ = put(conn, before, last_error="x", **columns)
    response = await http.post(f"/api/jobs/{id_}/retry", json=body)
    assert (response.status_code, response.json()) == (200, {"id": id_, "status": "QUEUED"})
    row = job(conn, id_)
    assert (row["status"], row["attempts"]) == ("QUEUED", 0)
    due, ready = (datetime.fromisoformat(row[name]) for name in ("run_at", "ready_at"))
    assert abs(ready - due) < timedelta(seconds=1)
    assert row["last_error"] == "x"  # what happened before stays to be seen
    assert before == "SCHEDULED" or row["history"] == [{"error": "x"}]


@pytest.mark.parametrize(
    ("before", "body"),
    [
        ("QUEUED", None), ("RUNNING", None), ("DONE", None), ("FAILED", None), ("CANCELLED", None), ("FAILED", {}),
        ("FAILED", {"force": False}), ("QUEUED", FORCE), ("RUNNING", FORCE), ("DONE", FORCE),
    ],
)  # fmt: skip
async def test_a_retry_that_the_status_forbids_changes_nothing(
    http: httpx.AsyncClient, conn: Conn, before: str, body: Any
) -> None:
    id_ = put(conn, before)
    image = job(conn, id_)
    response = await http.post(f"/api/jobs/{id_}/retry", json=body)
    assert before in check_error(response, 409, "wrong_status")["error"]
    assert job(conn, id_) == image


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"force":1}', 422), (b'{"force":"true"}', 422), (b'{"force":null}', 422), (b'{"nope":true}', 422), (b"[]", 422),
        (b"{", 400), (b"force=true", 400),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["retry", "cancel"])
async def test_bad_options_are_refused(
    http: httpx.AsyncClient, conn: Conn, path: str, body: bytes, code: int
) -> None:
    id_ = put(conn, "DEAD")
    response = await http.post(f"/api/jobs/{id_}/{path}", content=body, headers=JSON)
    check_error(response, code, response.json()["code"])
    assert status(conn, id_) == "DEAD"


async def test_options_must_be_json(http: httpx.AsyncClient, conn: Conn) -> None:
    id_ = put(conn, "FAILED")
    response = await http.post(f"/api/jobs/{id_}/retry", content=b'{"force":true}')
    check_error(response, 415, "unsupported_media_type")
    assert status(conn, id_) == "FAILED"


async def test_a_job_whose_payload_was_dropped_cannot_be_run_again(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    id_ = put(conn, "CANCELLED", payload=None)
    response = await http.post(f"/api/jobs/{id_}/retry", json=FORCE)
    check_error(response, 409, "payload_dropped")
    assert status(conn, id_) == "CANCELLED"


async def test_a_job_whose_unique_key_a_live_job_holds_cannot_be_run_again(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    id_ = put(conn, "DEAD", unique_key="u")
    give_key(conn, put(conn, "QUEUED", unique_key="u"), "u")
    check_error(await http.post(f"/api/jobs/{id_}/retry"), 409, "unique_key_taken")
    assert status(conn, id_) == "DEAD"


@pytest.mark.parametrize("before", ["SCHEDULED", "QUEUED", "DEAD", "FAILED"])
async def test_what_does_not_run_is_cancelled(
    http: httpx.AsyncClient, conn: Conn, before: str
) -> None:
    id_ = put(conn, before)
    for _ in range(2):  # the second finds it cancelled already
        response = await http.post(f"/api/jobs/{id_}/cancel")
        assert response.status_code == 200
        assert response.json() == {"id": id_, "status": "CANCELLED", "cancelRequested": False}
    assert status(conn, id_) == "CANCELLED"


async def test_what_runs_is_asked_to_stop(http: httpx.AsyncClient, conn: Conn) -> None:
    id_ = put(conn, "RUNNING")
    for _ in range(2):
        response = await http.post(f"/api/jobs/{id_}/cancel", json={})
        assert response.status_code == 202
        assert response.json() == {"id": id_, "status": "RUNNING", "cancelRequested": True}
    assert (await http.get(f"/api/jobs/{id_}")).json()["cancelRequested"] is True


async def test_what_is_done_cannot_be_cancelled(http: httpx.AsyncClient, conn: Conn) -> None:
    id_ = put(conn, "DONE")
    check_error(await http.post(f"/api/jobs/{id_}/cancel"), 409, "wrong_status")
    assert status(conn, id_) == "DONE"


async def test_a_cancelled_job_keeps_a_small_payload_only(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    small = put(conn, "QUEUED", payload='"x"')
    large = put(conn, "QUEUED", payload='"' + "x" * 9000 + '"')
    for id_ in (small, large):
        assert (await http.post(f"/api/jobs/{id_}/cancel")).status_code == 200
    assert (await http.get(f"/api/jobs/{small}")).json()["payload"] == "x"
    assert (await http.get(f"/api/jobs/{large}")).json()["payloadDropped"] is True


@pytest.mark.parametrize("path", ["retry", "cancel"])
async def test_a_job_that_another_transaction_holds_is_busy(
    http: httpx.AsyncClient, conn: Conn, path: str
) -> None:
    id_ = put(conn, "SCHEDULED")
    with conn.transaction(force_rollback=True):
        conn.execute("SELECT FROM jobq.job WHERE id = %s FOR UPDATE", (id_,))
        response = await http.post(f"/api/jobs/{id_}/{path}")
        check_error(response, 409, "busy")
        assert int(response.headers["retry-after"]) > 0
    assert (await http.post(f"/api/jobs/{id_}/{path}")).status_code == 200


async def test_retries_and_cancellations_at_once_leave_one_job(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    """Whatever the order: every answer is one the contract has, and the job is there once."""
    id_ = put(conn, "DEAD")
    for _ in range(10):
        answers = await asyncio.gather(
            *(http.post(f"/api/jobs/{id_}/retry", json=FORCE) for _ in range(4)),
            *(http.post(f"/api/jobs/{id_}/cancel") for _ in range(4)),
        )
        assert {answer.status_code for answer in answers} <= {200, 409}
        assert status(conn, id_) in ("QUEUED", "CANCELLED")
