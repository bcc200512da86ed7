"""Rows that somebody else has locked: what they keep waits, and nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from tests.engine.support import Jobs, handlers, until, working

from jobq.context import Context
from jobq.engine import recorder
from jobq.errors import PermanentError
from jobq.model import Outcome, Verdict


class Gate:
    """Handlers that wait, and end in every way there is."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.running = 0

    async def succeed(self, ctx: Context) -> None:
        await self._wait()

    async def fail(self, ctx: Context) -> None:
        await self._wait()
        raise RuntimeError("again")

    async def refuse(self, ctx: Context) -> None:
        await self._wait()
        raise PermanentError("never")

    async def _wait(self) -> None:
        self.running += 1
        await self.opened.wait()

    def handlers(self) -> dict[str, Any]:
        return handlers(succeed=self.succeed, fail=self.fail, refuse=self.refuse)


@contextmanager
def holding(url: str, statement: str, ids: list[int]) -> Iterator[psycopg.Connection[Any]]:
    """An open transaction that has run a statement which locks."""
    with psycopg.connect(url) as conn:
        conn.execute(statement, (ids,))
        yield conn
        conn.rollback()


ROWS = "SELECT FROM jobq.job WHERE id = ANY (%s) FOR UPDATE"
SHARED = "SELECT FROM jobq.job WHERE id = ANY (%s) FOR KEY SHARE"
KEYS = "SELECT FROM jobq.key WHERE job_id = ANY (%s) FOR UPDATE"
SLOTS = "SELECT FROM jobq.cap_slot WHERE job_id = ANY (%s) FOR UPDATE"


@pytest.mark.parametrize("locks", [ROWS, SHARED, KEYS, SLOTS])
async def test_what_is_not_locked_is_recorded_while_other_rows_are(
    database_url: str, jobs: Jobs, locks: str
) -> None:
    gate = Gate()
    for name in ("free", "held"):
        jobs.limit("tenant", name, max_running=100)
    async with working(database_url, gate.handlers(), concurrency=90) as worker:
        free, held = [], []
        for n, kind in enumerate(("succeed", "fail", "refuse") * 10):
            free += jobs.put_many(1, kind, tenant="free", unique_key=f"f{n}", max_attempts=1)
            held += jobs.put_many(1, kind, tenant="held", unique_key=f"h{n}", max_attempts=1)
        await until(lambda: gate.running == 60)
        with holding(database_url, locks, held):
            gate.opened.set()
            await jobs.finished(free)
            assert jobs.statuses(held) == {"RUNNING": 30}
            await until(lambda: worker.recorder.unrecorded == 30)
        await jobs.finished(held)
        await worker.recorder.flush()
    assert jobs.statuses([*free, *held]) == {"DONE": 20, "DEAD": 20, "FAILED": 20}
    assert jobs.conn.execute("SELECT count(*) AS n FROM jobq.key").fetchone() == {"n": 0}
    left = "SELECT count(*) AS n FROM jobq.cap_slot WHERE lease IS NOT NULL"
    assert jobs.conn.execute(left).fetchone() == {"n": 0}


async def test_jobs_that_are_given_back_do_not_wait_for_locked_ones(
    database_url: str, jobs: Jobs
) -> None:
    gate = Gate()
    async with working(
        database_url, gate.handlers(), concurrency=20, shutdown_timeout=1, drain_delay=0
    ) as worker:
        ids = jobs.put_many(20, "succeed")
        await until(lambda: gate.running == 20)
        with holding(database_url, ROWS, ids[:5]):
            worker.stop()
            await until(lambda: jobs.statuses(ids) == {"QUEUED": 15, "RUNNING": 5})
        await until(lambda: jobs.statuses(ids) == {"QUEUED": 20})


async def test_a_locked_table_keeps_outcomes_only_while_it_is_locked(
    database_url: str, jobs: Jobs
) -> None:
    """No outcome is left to its lease, however many were tried meanwhile; and none is written twice."""
    gate = Gate()
    async with working(database_url, gate.handlers(), concurrency=20) as worker:
        ids = jobs.put_many(20, "succeed")
        await until(lambda: gate.running == 20)
        with psycopg.connect(database_url) as conn:
            conn.execute("LOCK TABLE jobq.key IN ACCESS EXCLUSIVE MODE")
            gate.opened.set()
            await until(lambda: worker._late._later == 20)
        await jobs.finished(ids)
        await worker.recorder.flush()
        assert worker.recorder.unrecorded == 0


async def test_an_outcome_that_is_due_again_while_another_waits_is_written_once(
    database_url: str, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forced: the pause of the locked one ends while the statement that it was left out of waits for a table."""
    monkeypatch.setattr(recorder, "LATE_FIRST", 0.0)
    gate = Gate()
    async with working(database_url, gate.handlers(), concurrency=2, lease_duration=60) as worker:
        late, seen = worker._late, []
        late.recorded = lambda run, outcome, what, due: seen.append((run.job.id, what))
        ids = jobs.put_many(2, "succeed")
        await until(lambda: gate.running == 2)
        entries = [
            recorder.Entry(run, Outcome(run.claim, Verdict.SUCCESS))
            for run in worker.active.running
        ]
        with psycopg.connect(database_url) as conn:
            conn.execute("SELECT FROM jobq.job WHERE id = %s FOR UPDATE", (ids[0],))
            conn.execute("LOCK TABLE jobq.job_archive_done IN SHARE MODE")
            writing = asyncio.create_task(late._write(entries))
            await until(lambda: late._waiting)
        await writing
        await late.flush()
        assert sorted(seen) == [(id_, "success") for id_ in ids]
        gate.opened.set()


async def test_an_outcome_whose_lease_was_lost_is_not_taken_for_a_locked_one(
    database_url: str, jobs: Jobs
) -> None:
    gate = Gate()
    async with working(database_url, gate.handlers()) as worker:
        id_ = jobs.put("succeed")
        await until(lambda: gate.running == 1)
        worker.recorder._careful_until = float("inf")
        jobs.conn.execute("UPDATE jobq.job SET lease = lease + 1 WHERE id = %s", (id_,))
        with holding(database_url, ROWS, [id_]):
            gate.opened.set()
            await until(lambda: not worker.recorder.unrecorded)
    assert jobs[id_]["status"] == "RUNNING"


async def test_the_connection_for_locked_rows_is_closed_when_it_is_not_needed(
    database_url: str, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "LATE_IDLE", 0.05)
    gate = Gate()
    named = "SELECT count(*) AS n FROM pg_stat_activity WHERE application_name = 'jobq record late'"
    async with working(database_url, gate.handlers()):
        id_ = jobs.put("succeed")
        await until(lambda: gate.running == 1)
        with holding(database_url, ROWS, [id_]):
            gate.opened.set()
            await until(lambda: jobs.conn.execute(named).fetchone() == {"n": 1})
        await jobs.finished([id_])
        await until(lambda: jobs.conn.execute(named).fetchone() == {"n": 0})


async def test_a_run_whose_outcome_waits_for_a_table_keeps_its_lease(
    database_url: str, jobs: Jobs
) -> None:
    """Its row is free, so nothing but its extensions keeps the reaper from it."""
    gate = Gate()
    beats = 0
    async with working(database_url, gate.handlers(), lease_duration=1.5) as worker:
        id_ = jobs.put("succeed")
        await until(lambda: gate.running == 1)
        with psycopg.connect(database_url) as conn:
            conn.execute("LOCK TABLE jobq.job_archive_done IN SHARE MODE")
            gate.opened.set()
            await until(lambda: worker.recorder.unrecorded == 1)
            beat = worker._heartbeat.beat

            def count() -> None:
                nonlocal beats
                beats += 1
                beat()

            worker._heartbeat.beat = count  # type: ignore[method-assign]
            await until(lambda: beats > 6)  # more than two leases
        await jobs.finished([id_])
    assert (gate.running, jobs[id_]["attempts"]) == (1, 1)
