"""GET /api/jobs, /api/jobs/{id} and /api/jobs/{id}/status."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from psycopg import sql
from tests.api.support import enqueue
from tests.store.support import put, uncheck

from jobq.api import models
from jobq.db import Conn

ATTEMPT = {
    "attempt": 1,
    "startedAt": "2030-01-01T00:00:00+00:00",
    "endedAt": "2030-01-01T00:00:01+00:00",
    "worker": "w1",
    "outcome": "retry",
    "error": "ValueError: no",
}


async def test_a_job_is_shown_with_everything(http: httpx.AsyncClient, conn: Conn) -> None:
    id_ = put(
        conn,
        "DEAD",
        kind="report.build", queue="slow", tenant="acme", priority=5, attempts=2, max_attempts=2, timeout=30.0,
        worker="w1", last_error="ValueError: no", tags=["a"], payload='{"month":"may"}', result='{"pages":3}',
        progress='{"fraction":0.4,"text":"half"}', history=json.dumps([ATTEMPT]), unique_key="u", concurrency_key="c",
        idempotency_key="i", meta='{"request_id":"r-1"}', started_at=sql.SQL("now()"), ready_at=sql.SQL("now()"),
    )  # fmt: skip
    shown = (await http.get(f"/api/jobs/{id_}")).json()
    models.Job.model_validate_json(json.dumps(shown))
    expected = {
        "id": id_, "kind": "report.build", "queue": "slow", "tenant": "acme", "priority": 5, "status": "DEAD",
        "attempts": 2, "maxAttempts": 2, "timeoutSeconds": 30.0, "worker": "w1", "lastError": "ValueError: no",
        "tags": ["a"], "payload": {"month": "may"}, "payloadDropped": False, "result": {"pages": 3},
        "progress": {"fraction": 0.4, "text": "half"}, "errors": [ATTEMPT], "uniqueKey": "u", "concurrencyKey": "c",
        "idempotencyKey": "i", "cancelRequested": False, "requestId": "r-1", "heldBy": None,
    }  # fmt: skip
    assert {name: shown[name] for name in expected} == expected
    for name in ("createdAt", "runAt", "readyAt", "startedAt", "finishedAt"):
        assert shown[name].endswith("Z")


@pytest.mark.parametrize(
    "status", ["SCHEDULED", "QUEUED", "RUNNING", "DONE", "CANCELLED", "DEAD", "FAILED"]
)
async def test_a_job_in_any_status_has_the_documented_shape(
    http: httpx.AsyncClient, conn: Conn, status: str
) -> None:
    id_ = put(conn, status)
    models.Job.model_validate_json((await http.get(f"/api/jobs/{id_}")).content)
    brief = await http.get(f"/api/jobs/{id_}/status")
    models.JobStatusView.model_validate_json(brief.content)
    assert brief.json()["status"] == status
    models.JobPage.model_validate_json((await http.get("/api/jobs")).content)


async def test_a_dropped_payload_is_told_from_one_that_is_null(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    dropped = put(conn, "DONE", payload=None)
    null = put(conn, "DONE", payload="null")
    for id_, expected in ((dropped, True), (null, False)):
        shown = (await http.get(f"/api/jobs/{id_}")).json()
        assert (shown["payload"], shown["payloadDropped"]) == (None, expected)


async def test_the_last_twenty_errors_are_shown_each_cut_at_8_kib(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    history = [{**ATTEMPT, "attempt": at, "error": "e" * 20_000} for at in range(1, 31)]
    history.append({**ATTEMPT, "attempt": 31, "outcome": "released", "error": None})
    id_ = put(conn, "DEAD", history=json.dumps(history), last_error="x" * 20_000)
    shown = (await http.get(f"/api/jobs/{id_}")).json()
    assert [entry["attempt"] for entry in shown["errors"]] == list(range(11, 31))
    assert {len(entry["error"]) for entry in shown["errors"]} == {8192}
    assert len(shown["lastError"]) == 8192


@pytest.mark.case("B16")
async def test_what_only_the_database_can_hold_is_shown_all_the_same(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    """Numbers of any size, history and meta of any form, names of any length: put there by SQL."""
    uncheck(conn, "kind")
    big = '{"n": 1' + "0" * 5000 + "}"
    id_ = put(
        conn, "DEAD", payload='{"n":1e5000}', result='{"n":1e5000}', progress='{"n":1e5000}', meta='{"n":1e5000}',
        history='[{"n":1e5000}]', kind="", queue="q\n" * 1000, tenant="",
    )  # fmt: skip
    other = put(conn, "QUEUED", meta="[]", history='{"no":"list"}', kind="k" * 1_000_000)
    response = await http.get(f"/api/jobs/{id_}")
    assert response.status_code == 200
    assert response.text.count(big) == 3
    page = await http.get("/api/jobs")
    assert page.status_code == 200
    assert page.text.count('"id":') == 2
    assert (await http.get(f"/api/jobs/{other}")).json()["errors"] == []


@pytest.mark.case("B09")
@pytest.mark.parametrize("id_", [3_000_000_000, 9_007_199_254_740_993, 2**63 - 1])
async def test_ids_of_any_size_are_exact(http: httpx.AsyncClient, conn: Conn, id_: int) -> None:
    put(conn, "QUEUED", id=id_)
    assert (await http.get(f"/api/jobs/{id_}")).json()["id"] == id_
    assert (await http.get("/api/jobs")).json()["jobs"][0]["id"] == id_
    assert (await http.get(f"/api/jobs?cursor={id_}")).json()["jobs"] == []
    assert (await http.post(f"/api/jobs/{id_}/cancel")).json()["id"] == id_
    retried = await http.post(f"/api/jobs/{id_}/retry", json={"force": True})
    assert retried.json() == {"id": id_, "status": "QUEUED"}


# --- lists ----------------------------------------------------------------------------------------


async def pages(http: httpx.AsyncClient, **query: Any) -> list[list[int]]:
    """The ids of each page."""
    found: list[list[int]] = []
    cursor: str | None = None
    while True:
        params = query if cursor is None else {**query, "cursor": cursor}
        response = await http.get("/api/jobs", params=params)
        assert response.status_code == 200, response.text
        body = response.json()
        found.append([job["id"] for job in body["jobs"]])
        cursor = body["nextCursor"]
        if cursor is None:
            return found


async def test_an_empty_queue_is_one_empty_page(http: httpx.AsyncClient) -> None:
    assert (await http.get("/api/jobs")).json() == {"jobs": [], "nextCursor": None}


async def test_lists_go_from_the_newest_to_the_oldest_over_live_and_finished_jobs(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    statuses = ("DONE", "QUEUED", "DEAD", "RUNNING", "CANCELLED", "SCHEDULED", "FAILED")
    ids = [put(conn, status) for status in statuses]
    newest = ids[::-1]
    assert await pages(http) == [newest]
    assert await pages(http, limit=3) == [newest[:3], newest[3:6], newest[6:]]
    assert await pages(http, limit=7) == [newest]
    assert await pages(http, limit=1) == [[id_] for id_ in newest]


async def test_the_last_page_has_no_cursor_even_where_it_is_full(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    for _ in range(4):
        put(conn, "QUEUED")
    assert [len(page) for page in await pages(http, limit=2)] == [2, 2]


async def test_fifty_are_shown_where_nothing_is_said_and_500_at_most(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    await http.post("/api/jobs/batch", json={"kind": "k", "payloads": list(range(600))})
    assert [len(page) for page in await pages(http)] == [50] * 12
    assert [len(page) for page in await pages(http, limit=500)] == [500, 100]


async def test_the_cursor_of_a_job_that_is_gone_goes_on(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    ids = [put(conn, "QUEUED") for _ in range(4)]
    cursor = (await http.get("/api/jobs", params={"limit": 2})).json()["nextCursor"]
    conn.execute("DELETE FROM jobq.job WHERE id = %s", (int(cursor),))
    rest = (await http.get("/api/jobs", params={"cursor": cursor})).json()
    assert [job["id"] for job in rest["jobs"]] == [ids[1], ids[0]]


async def test_filters_may_be_combined(http: httpx.AsyncClient, conn: Conn) -> None:
    wanted = put(conn, "DEAD", kind="k", queue="q", tenant="t", tags=["x", "y"])
    put(conn, "DEAD", kind="other", queue="q", tenant="t", tags=["x"])
    put(conn, "DEAD", kind="k", queue="other", tenant="t", tags=["x"])
    put(conn, "DEAD", kind="k", queue="q", tenant="other", tags=["x"])
    put(conn, "DEAD", kind="k", queue="q", tenant="t", tags=["z"])
    put(conn, "QUEUED", kind="k", queue="q", tenant="t", tags=["x"])
    query = {"status": "dead", "kind": "k", "queue": "q", "tenant": "t", "tag": "x"}
    assert await pages(http, **query) == [[wanted]]
    assert len((await pages(http, kind="k"))[0]) == 5
    assert len((await pages(http, tag="x"))[0]) == 5


@pytest.mark.case("B88")
async def test_status_may_be_written_in_any_case_and_repeated(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    done, dead, queued = (put(conn, status) for status in ("DONE", "DEAD", "QUEUED"))
    assert await pages(http, status="done") == [[done]]
    assert await pages(http, status=["Dead", "QUEUED"]) == [[queued, dead]]
    assert await pages(http, status=["dead", "DEAD"]) == [[dead]]


async def test_lists_leave_out_payload_result_and_errors(http: httpx.AsyncClient) -> None:
    await enqueue(http, payload={"secret": 1})
    (job,) = (await http.get("/api/jobs")).json()["jobs"]
    assert job.keys().isdisjoint({"payload", "result", "errors"})
