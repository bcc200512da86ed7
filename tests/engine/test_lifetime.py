"""What must not depend on the worker: its clock, its memory, the connections of its handlers."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
import weakref
from datetime import timedelta
from typing import Any, ClassVar

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool
from tests.engine.support import PATIENCE, Jobs, handlers, settings, until, working

from jobq.context import Context
from jobq.db import connect_engine_sync
from jobq.engine.session import Session
from jobq.engine.worker import Worker
from jobq.sql import Statements
from jobq.store import Call, JobStore, run_sync


class Ballast:
    """Something large that a handler holds."""

    alive: ClassVar[weakref.WeakSet[Any]] = weakref.WeakSet()

    def __init__(self) -> None:
        self.bytes = bytearray(100_000)
        self.alive.add(self)


@pytest.mark.case("B109")
async def test_nothing_of_a_run_stays_behind(database_url: str, jobs: Jobs) -> None:
    """Failures with tracebacks, timeouts, cancellations and successes leave neither locals nor tasks."""

    async def run(how: str) -> None:
        held = Ballast()
        if how == "fail":
            raise ValueError(len(held.bytes))
        if how in ("timeout", "cancel"):
            await asyncio.Event().wait()

    def in_thread(ctx: Context, how: str) -> None:
        held = Ballast()
        if how == "fail":
            raise ValueError(len(held.bytes))

    async with working(database_url, handlers(run=run, thread=in_thread), concurrency=8) as worker:
        ids = [
            id_
            for how in ("fail", "timeout", "good")
            for id_ in jobs.put_many(
                30, "run", {"how": how}, max_attempts=1, timeout=0.05 if how == "timeout" else 60
            )
        ]
        ids += [
            id_
            for how in ("fail", "good")
            for id_ in jobs.put_many(30, "thread", {"how": how}, max_attempts=1)
        ]
        stopped = jobs.put_many(8, "run", {"how": "cancel"})
        await until(lambda: jobs.statuses(stopped) == {"RUNNING": 8})
        cancel(jobs, stopped)
        await jobs.finished(ids + stopped)
        await until(lambda: not worker.active.held and not worker.active.running)
        gc.collect()
        assert len(Ballast.alive) == 0
        assert len(asyncio.all_tasks()) < 15


@pytest.mark.case("B73")
@pytest.mark.parametrize("skew", [600.0, -600.0], ids=["ahead", "behind"])
async def test_a_worker_whose_clock_is_ten_minutes_off_keeps_the_databases_time(
    database_url: str, jobs: Jobs, skew: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    monkeypatch.setattr("time.time", lambda: real() + skew)
    starts = 0

    async def long() -> None:
        nonlocal starts
        starts += 1
        await asyncio.sleep(2)

    async def flaky(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError

    async def delayed() -> None: ...

    kinds = handlers(long=long, flaky=flaky, delayed=delayed)
    async with working(database_url, kinds, lease_duration=1, backoff_base=0.5, backoff_max=0.5):
        long_id, flaky_id = jobs.put("long"), jobs.put("flaky")
        late = jobs.put("delayed", delay=1.0)
        await jobs.finished([long_id, flaky_id, late])
    assert starts == 1
    job = jobs[late]
    assert timedelta(seconds=1) <= job["started_at"] - job["created_at"] < timedelta(seconds=6)
    job = jobs[flaky_id]
    assert job["started_at"] - job["created_at"] < timedelta(seconds=6)
    assert job["finished_at"] >= job["started_at"] >= job["created_at"]


@pytest.mark.case("B27", "B107")
async def test_handlers_that_take_every_connection_of_theirs_cost_no_lease(
    database_url: str, jobs: Jobs
) -> None:
    """The worker's four connections are its own: handlers that hold a pool for three leases delay nobody else."""
    starts: list[int] = []
    async with AsyncConnectionPool(
        database_url, min_size=0, max_size=2, open=False, timeout=30
    ) as pool:

        async def hold(ctx: Context) -> None:
            starts.append(ctx.job.id)
            async with pool.connection() as conn:
                await conn.execute("SELECT pg_sleep(0.6)")

        async with working(database_url, handlers(hold=hold), concurrency=10, lease_duration=1):
            ids = jobs.put_many(10, "hold")
            await jobs.finished(ids)
    assert sorted(starts) == ids
    assert jobs.statuses(ids) == {"DONE": 10}


async def test_a_worker_has_at_most_four_connections(database_url: str, jobs: Jobs) -> None:
    async def work() -> None: ...

    async with working(database_url, handlers(work=work)):
        most = 0
        ids = jobs.put_many(200, "work")
        while "QUEUED" in jobs.statuses(ids):
            most = max(most, sessions(jobs))
            await asyncio.sleep(0)
        await jobs.finished(ids)
    assert 1 <= most <= 4


async def test_workers_pass_one_another_in_a_database_of_strict_isolation(
    database_url: str, jobs: Jobs
) -> None:
    """Above READ COMMITTED, whoever meets a row that a rival has changed fails instead of passing it."""
    jobs.conn.execute(
        "DO $$ BEGIN EXECUTE format("
        "'ALTER DATABASE %I SET default_transaction_isolation = serializable', current_database()); END $$"
    )
    asked = Call("asked", b"SHOW transaction_isolation", {}, list)
    session = Session(database_url, "jobq test", lost=lambda error: None, found=lambda: None)
    with connect_engine_sync(database_url, "jobq test") as conn:
        assert await session.run(asked) == run_sync(conn, asked) == [("read committed",)]
    await session.close()


@pytest.mark.case("B79")
async def test_no_transaction_is_open_while_handlers_run(database_url: str, jobs: Jobs) -> None:
    leave = asyncio.Event()

    async def wait() -> None:
        await leave.wait()

    idle = (
        "SELECT count(*) AS n FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"
        " AND datname = current_database() AND application_name LIKE 'jobq %'"
    )
    async with working(database_url, handlers(wait=wait)) as worker:
        ids = jobs.put_many(4, "wait")
        await until(lambda: worker.running == 4)
        for _ in range(20):
            assert jobs.conn.execute(idle).fetchone() == {"n": 0}
            await asyncio.sleep(0)
        leave.set()
        await jobs.finished(ids)


@pytest.mark.case("B98")
async def test_a_dead_job_that_is_retried_by_hand_has_fresh_attempts_and_its_old_history(
    database_url: str, jobs: Jobs
) -> None:
    broken = True
    runs = 0

    async def work() -> str:
        nonlocal runs
        runs += 1
        if broken or runs == 4:
            raise ValueError(f"run {runs}")
        return "mended"

    async with working(database_url, handlers(work=work)):
        id_ = jobs.put("work", max_attempts=3)
        await jobs.reach(id_, "DEAD")
        broken = False
        assert run_sync(jobs._plain, JobStore(Statements("jobq")).retry([id_]))
        job = await jobs.reach(id_, "DONE")
    assert (job["attempts"], job["result"]) == (2, "mended")
    assert [entry["attempt"] for entry in job["history"]] == [1, 2, 3, 1]
    assert [entry["error"].split("\n")[0] for entry in job["history"]] == [
        f"ValueError: run {n}" for n in (1, 2, 3, 4)
    ]


@pytest.mark.case("B99")
async def test_cancelling_at_random_moments_leaves_one_outcome_that_never_changes(
    database_url: str, jobs: Jobs
) -> None:
    jobs.conn.execute(
        """
        CREATE TABLE public.audit (id bigint, what text);
        CREATE FUNCTION public.audit() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN INSERT INTO public.audit VALUES (NEW.id, TG_OP || ' ' || NEW.status); RETURN NEW; END $$;
        CREATE TRIGGER audit AFTER INSERT OR UPDATE ON jobq.job_archive FOR EACH ROW EXECUTE FUNCTION public.audit()
        """
    )

    async def work() -> None:
        await asyncio.sleep(0.02)

    async with working(database_url, handlers(work=work), concurrency=10) as worker:
        ids = jobs.put_many(300, "work")
        for id_ in random.Random(7).sample(ids, 300):
            cancel(jobs, [id_])
            await asyncio.sleep(0)
        await jobs.finished(ids)
        await until(lambda: worker.running == 0)
    outcomes = jobs.conn.execute(
        "SELECT id, count(*) AS n, min(what) AS what FROM public.audit GROUP BY id"
    ).fetchall()
    assert len(outcomes) == 300
    assert {row["n"] for row in outcomes} == {1}
    assert {row["what"] for row in outcomes} <= {"INSERT DONE", "INSERT CANCELLED"}
    assert sum(jobs.statuses(ids).values()) == 300


def cancel(jobs: Jobs, ids: list[int]) -> None:
    """Cancel jobs, as the API does."""
    with psycopg.Connection.connect(jobs.conn.info.dsn, autocommit=True) as conn:
        run_sync(conn, JobStore(Statements("jobq")).cancel(ids, 8192))


async def test_a_worker_that_is_cancelled_leaves_nothing_behind(
    database_url: str, jobs: Jobs
) -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    worker = Worker(settings(database_url), handlers(work=work))
    task = asyncio.create_task(worker.run())
    jobs.put("work")
    await asyncio.wait_for(began.wait(), PATIENCE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(cancelled.wait(), PATIENCE)
    assert not [thread for thread in threading.enumerate() if thread.name == "jobq-heartbeat"]
    await until(lambda: not sessions(jobs))


async def test_a_worker_stops_where_a_handler_cancels_one_of_its_own_tasks(
    database_url: str, jobs: Jobs
) -> None:
    """As one does that cancels all tasks to clean up: better no worker than one that looks alive."""

    async def sweep() -> None:
        for task in asyncio.all_tasks():
            if "Recorder" in task.get_name():
                task.cancel()

    worker = Worker(settings(database_url), handlers(sweep=sweep))
    jobs.put("sweep")
    assert await asyncio.wait_for(worker.run(), PATIENCE) is False
    assert worker.broken


def sessions(jobs: Jobs) -> int:
    """How many sessions of workers there are in this database."""
    row = jobs.conn.execute(
        "SELECT count(*) AS n FROM pg_stat_activity"
        " WHERE application_name LIKE 'jobq %' AND datname = current_database()"
    ).fetchone()
    return int(row["n"]) if row else 0
