"""/metrics, /api/queues, /api/stats and /api/workers: right, and never a count a scrape."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import httpx
import pytest
from psycopg import sql
from tests.api.support import enqueue, serving
from tests.store.support import put, uncheck

from jobq.api.collector import DatabaseCollector
from jobq.api.gauges import PAUSE, Gauges, Snapshot
from jobq.db import Conn
from jobq.errors import DatabaseUnavailable


def values(text: str, name: str) -> dict[str, float]:
    """Label text -> value of a metric."""
    found = re.findall(rf"^{name}(?:\{{(.*)\}})? (\S+)$", text, re.MULTILINE)
    return {labels: float(value) for labels, value in found}


def add_worker(conn: Conn, name: str, queues: list[str] | None) -> None:
    conn.execute(
        "INSERT INTO jobq.worker (id, host, pid, version, queues, kinds, slots, express, expires_at)"
        " VALUES (%s, 'h', 1, '1', %s, '{a,b}', 20, 2, now() + interval '1 minute')",
        (name, queues),
    )


# --- what is shown --------------------------------------------------------------------------------


async def test_jobs_are_counted_by_status_zero_included(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    for status in ("QUEUED", "QUEUED", "DEAD", "SCHEDULED", "DONE", "CANCELLED", "FAILED"):
        put(conn, status)
    found = values((await http.get("/metrics")).text, "jobq_jobs")
    assert found == {
        'status="scheduled"': 1, 'status="queued"': 2, 'status="running"': 0, 'status="dead"': 1, 'status="failed"': 1,
    }  # fmt: skip


async def test_queues_tenants_and_workers_are_counted(http: httpx.AsyncClient, conn: Conn) -> None:
    for at in range(12):
        for _ in range(at + 1):
            put(conn, "QUEUED", queue="mail", tenant=f"t{at}")
    put(conn, "RUNNING", queue="slow")
    add_worker(conn, "all", None)
    add_worker(conn, "some", ["mail", "other"])
    conn.execute(
        "INSERT INTO jobq.worker (id, host, pid, version, kinds, slots, express, expires_at)"
        " VALUES ('gone', 'h', 1, '1', '{}', 1, 0, now() - interval '1 second')"
    )
    text = (await http.get("/actuator/prometheus")).text
    jobs = values(text, "jobq_queue_jobs")
    assert jobs['queue="mail",status="queued"'] == 78
    assert jobs['queue="mail",status="running"'] == 0
    assert jobs['queue="slow",status="running"'] == 1
    assert 60 <= values(text, "jobq_oldest_queued_age_seconds")['queue="mail"'] < 120
    assert 1 <= values(text, "jobq_running_oldest_seconds")[""] < 60
    backlog = values(text, "jobq_tenant_backlog")
    assert len(backlog) == 10
    assert backlog['tenant="t11"'] == 12
    assert values(text, "jobq_live_workers") == {
        'queue="default"': 1, 'queue="mail"': 2, 'queue="other"': 2, 'queue="slow"': 1,
    }  # fmt: skip
    assert values(text, "jobq_snapshot_age_seconds")[""] >= 0


async def test_the_oldest_of_each_priority_is_told_and_what_is_held(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    uncheck(conn, "priority")
    for priority, minutes in ((0, 9), (0, 3), (100, 1), (-100, 2), (5000, 4), (-5000, 6)):
        ready = sql.SQL("now() - interval '{} minutes'").format(minutes)
        put(conn, "QUEUED", queue=f"q{minutes % 2}", priority=priority, ready_at=ready)
    put(conn, "SCHEDULED", priority=3)
    put(conn, "QUEUED", held_by="kind:x", ready_at=sql.SQL("now()"))
    put(conn, "QUEUED", held_by="unknown_kind:x in default", ready_at=sql.SQL("now()"))
    for _ in range(2):
        put(conn, "QUEUED", held_by="key:kind:x", ready_at=sql.SQL("now()"))
    text = (await http.get("/metrics")).text
    found = values(text, "jobq_oldest_queued_age_by_priority_seconds")
    assert {label: age // 60 for label, age in found.items()} == {
        'priority="-100"': 2, 'priority="0"': 9, 'priority="100"': 1, 'priority="other"': 6,
    }  # fmt: skip
    assert values(text, "jobq_held_jobs") == {
        'reason="kind"': 1,
        'reason="key"': 2,
        'reason="unknown_kind"': 1,
    }
    assert values(text, "jobq_queue_jobs")['queue="q1",status="queued"'] == 3


async def test_the_same_numbers_as_json(http: httpx.AsyncClient, conn: Conn) -> None:
    put(conn, "QUEUED", queue="mail", tenant="acme")
    put(conn, "DEAD")
    add_worker(conn, "w", ["mail"])
    queues = (await http.get("/api/queues")).json()["queues"]
    assert [queue["queue"] for queue in queues] == ["default", "mail"]
    mail = queues[1]
    assert (mail["scheduled"], mail["queued"], mail["running"], mail["workers"]) == (0, 1, 0, 1)
    assert mail["oldestQueuedSeconds"] >= 60
    stats = (await http.get("/api/stats")).json()
    assert stats["jobs"] == {"scheduled": 0, "queued": 1, "running": 0, "dead": 1, "failed": 0}
    assert stats["workers"] == 1
    assert stats["largestBacklogs"] == [{"tenant": "acme", "queued": 1}]
    (worker,) = (await http.get("/api/workers")).json()["workers"]
    assert (worker["id"], worker["queues"], worker["kinds"]) == ("w", ["mail"], ["a", "b"])
    assert worker["startedAt"].endswith("Z")


async def test_what_was_submitted_is_counted_without_replays(http: httpx.AsyncClient) -> None:
    for _ in range(3):
        await http.post("/api/jobs", json={"kind": "once", "idempotencyKey": "K"})
    await http.post("/api/jobs/batch", json={"kind": "many", "payloads": [1, 2, 3]})
    found = values((await http.get("/metrics")).text, "jobq_submitted_total")
    assert found == {'kind="once"': 1, 'kind="many"': 3}


async def test_names_put_there_by_sql_are_cleaned_and_bounded(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    uncheck(conn, "queue", "tenant")
    for at in range(210):
        put(conn, "QUEUED", queue=f'q{at} "\n\\', tenant="t\n" * 100)
    put(conn, "QUEUED", queue="Q" * 10_000)
    response = await http.get("/metrics")
    queues = values(response.text, "jobq_oldest_queued_age_seconds")
    assert len(queues) == 201
    assert 'queue="other"' in queues
    assert sum(values(response.text, "jobq_queue_jobs").values()) == 211
    assert max(map(len, response.text.splitlines())) < 500


# --- what it costs --------------------------------------------------------------------------------


def scans(conn: Conn) -> int:
    """How often the live jobs were scanned whole."""
    conn.execute("SELECT pg_stat_force_next_flush()")
    row = conn.execute(
        "SELECT seq_scan + coalesce(idx_scan, 0) FROM pg_stat_user_tables WHERE relid = 'jobq.worker'::regclass"
    ).fetchone()
    assert row is not None
    return int(row[0])


async def test_a_hundred_scrapes_at_once_are_one_count(http: httpx.AsyncClient, conn: Conn) -> None:
    await enqueue(http)
    before = scans(conn)
    answers = await asyncio.gather(*(http.get("/metrics") for _ in range(100)))
    assert {answer.status_code for answer in answers} == {200}
    assert all(values(answer.text, "jobq_jobs")['status="queued"'] == 1 for answer in answers)
    await http.aclose()
    assert scans(conn) - before <= 2


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def counting(clock: Clock, cost: float) -> tuple[list[float], Callable[[], Snapshot]]:
    taken: list[float] = []

    async def count() -> Snapshot:
        taken.append(clock.now)
        clock.now += cost
        return Snapshot(cost=cost)

    return taken, count  # type: ignore[return-value]


@pytest.mark.parametrize("cost", [0.001, 0.05, 1.0])
async def test_counting_takes_a_twentieth_of_the_time_at_most(cost: float) -> None:
    clock = Clock()
    taken, count = counting(clock, cost)
    gauges = Gauges(count, clock=clock)  # type: ignore[arg-type]
    end = 100 * cost
    while clock.now < end:
        await gauges.latest()
        clock.now += cost / 10
    assert len(taken) == pytest.approx(end / (cost * (PAUSE + 1)), abs=1)


async def test_a_client_that_goes_away_does_not_take_the_count_along() -> None:
    started, finish = asyncio.Event(), asyncio.Event()

    async def count() -> Snapshot:
        started.set()
        await finish.wait()
        return Snapshot(alive=7)

    gauges = Gauges(count)
    first = asyncio.create_task(gauges.latest())
    await started.wait()
    second = asyncio.create_task(gauges.latest())
    first.cancel()
    finish.set()
    found = await second
    assert found is not None
    assert found.alive == 7


async def test_an_outage_is_asked_about_once_a_second() -> None:
    clock = Clock()
    taken: list[float] = []

    async def count() -> Snapshot:
        taken.append(clock.now)
        raise DatabaseUnavailable("away")

    gauges = Gauges(count, clock=clock)
    while clock.now < 10:
        assert await gauges.latest() is None
        with pytest.raises(DatabaseUnavailable):
            await gauges.snapshot()
        clock.now += 0.1
    assert len(taken) <= 10


async def test_a_count_that_fails_leaves_the_process_its_own_numbers(
    database_url: str, conn: Conn
) -> None:
    conn.execute("DROP TABLE jobq.worker CASCADE")
    async with serving(database_url) as http:
        response = await http.get("/metrics")
        assert response.status_code == 200
        assert "jobq_build_info" in response.text
        assert values(response.text, "jobq_jobs") == {}


def test_nothing_is_shown_before_the_first_count() -> None:
    assert list(DatabaseCollector().collect()) == []
