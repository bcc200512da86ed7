"""Shutdown: finish, cancel, release; nothing stranded, nothing held past the budget."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Any

import psycopg
import pytest
from tests.engine.support import PATIENCE, Jobs, handlers, settings, until, working

from jobq.context import Context
from jobq.engine.worker import Worker


async def test_running_jobs_finish_and_nothing_is_claimed_any_more(
    database_url: str, jobs: Jobs
) -> None:
    leave = asyncio.Event()

    async def work() -> None:
        await leave.wait()

    worker = Worker(settings(database_url, concurrency=2), handlers(work=work))
    task = asyncio.create_task(worker.run())
    ids = jobs.put_many(5, "work")
    await until(lambda: worker.running == 2)
    worker.stop()
    await until(lambda: worker.draining)
    assert not worker.ready
    leave.set()
    assert await asyncio.wait_for(task, PATIENCE) is True
    assert jobs.statuses(ids) == {"DONE": 2, "QUEUED": 3}


@pytest.mark.case("B47")
async def test_what_does_not_finish_within_the_budget_is_cancelled_and_released_without_an_attempt(
    database_url: str, jobs: Jobs
) -> None:
    ended = threading.Event()

    async def polite() -> None:
        await asyncio.Event().wait()

    async def fails_when_cancelled() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("cleaning up")

    async def stubborn() -> None:
        while not ended.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)

    def deaf() -> None:
        ended.wait()

    def told(ctx: Context) -> None:
        ctx.wait_cancelled()
        raise ValueError("stopped")

    kinds = handlers(
        polite=polite, fails=fails_when_cancelled, stubborn=stubborn, deaf=deaf, told=told
    )
    worker = Worker(settings(database_url, concurrency=5, shutdown_timeout=0.8), kinds)
    task = asyncio.create_task(worker.run())
    ids = [jobs.put(kind) for kind in kinds]
    await until(lambda: worker.running == 5)
    began = time.monotonic()
    worker.stop()
    assert await asyncio.wait_for(task, PATIENCE) is True
    assert time.monotonic() - began < 0.8 + 3
    assert jobs.statuses(ids) == {"QUEUED": 5}
    for id_ in ids:
        job = jobs[id_]
        assert (job["attempts"], job["lease"]) == (0, None), job["kind"]
        assert [entry["outcome"] for entry in job["history"]] == ["released"]
    ended.set()
    await until(lambda: worker.running == 0)
    assert jobs.statuses(ids) == {"QUEUED": 5}, "handlers that outlived it write nothing"


async def test_released_jobs_are_announced_and_another_worker_starts_them_at_once(
    database_url: str, jobs: Jobs
) -> None:
    async def work(ctx: Context) -> None:
        if ctx.attempt == 1 and not second.is_set():
            first.set()
            await asyncio.Event().wait()

    first, second = asyncio.Event(), asyncio.Event()
    kinds = handlers(work=work)
    leaving = Worker(settings(database_url, shutdown_timeout=0.2), kinds)
    task = asyncio.create_task(leaving.run())
    id_ = jobs.put("work")
    await first.wait()
    async with working(database_url, kinds, poll_interval=30):
        second.set()
        leaving.stop()
        await asyncio.wait_for(task, PATIENCE)
        began = time.monotonic()
        await jobs.reach(id_, "DONE")
        assert time.monotonic() - began < 10


@pytest.mark.case("B46")
@pytest.mark.parametrize("cut", [False, True], ids=["released at once", "at the second attempt"])
async def test_a_claim_that_commits_after_the_stop_is_released(
    database_url: str, jobs: Jobs, *, cut: bool
) -> None:
    jobs.conn.execute(
        """
        CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN NEW; END $$;
        CREATE TRIGGER slow BEFORE UPDATE ON jobq.job FOR EACH ROW WHEN (NEW.status = 'RUNNING') EXECUTE FUNCTION slow()
        """
    )
    started = False

    async def work() -> None:
        nonlocal started
        started = True

    worker = Worker(settings(database_url), handlers(work=work))
    run = worker.dispatcher.session.run

    async def run_and_cut(call: Any) -> Any:
        nonlocal cut
        if call.name == "release" and cut:
            cut = False
            raise psycopg.OperationalError("the connection was cut")
        return await run(call)

    worker.dispatcher.session.run = run_and_cut  # type: ignore[method-assign]
    task = asyncio.create_task(worker.run())
    jobs.conn.execute("SELECT pg_advisory_lock(4711)")
    id_ = jobs.put("work")
    waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND application_name = 'jobq claim'"
    await until(lambda: jobs.conn.execute(waiting).fetchone())
    worker.stop()
    await until(worker.dispatcher._stopped.is_set)
    jobs.conn.execute("SELECT pg_advisory_unlock(4711)")
    assert await asyncio.wait_for(task, PATIENCE) is True
    job = jobs[id_]
    assert (started, job["status"], job["attempts"]) == (False, "QUEUED", 0)


async def test_a_cancellation_asked_for_before_the_release_wins(
    database_url: str, jobs: Jobs
) -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    worker = Worker(
        settings(database_url, shutdown_timeout=0.2, lease_duration=60), handlers(work=work)
    )
    task = asyncio.create_task(worker.run())
    id_ = jobs.put("work")
    await until(lambda: worker.running == 1)
    jobs.conn.execute("UPDATE jobq.job SET cancel_requested_at = now() WHERE id = %s", (id_,))
    worker.stop()
    await asyncio.wait_for(task, PATIENCE)
    assert jobs[id_]["status"] == "CANCELLED"


async def test_the_drain_delay_keeps_the_worker_up_but_not_ready(
    database_url: str, jobs: Jobs
) -> None:
    worker = Worker(settings(database_url, drain_delay=0.5, shutdown_timeout=2), handlers())
    task = asyncio.create_task(worker.run())
    await until(lambda: jobs.conn.execute("SELECT 1 FROM jobq.worker").fetchone())
    began = time.monotonic()
    worker.stop()
    await asyncio.wait_for(task, PATIENCE)
    assert time.monotonic() - began >= 0.5


async def test_a_shutdown_does_not_wait_for_a_thread_whose_outcome_is_recorded_meanwhile(
    database_url: str, jobs: Jobs
) -> None:
    entered, leave = threading.Event(), threading.Event()

    def deaf() -> None:
        entered.set()
        leave.wait()

    worker = Worker(settings(database_url, shutdown_timeout=60), handlers(deaf=deaf))
    task = asyncio.create_task(worker.run())
    id_ = jobs.put("deaf", timeout=1, max_attempts=1)
    await until(entered.is_set)
    worker.stop()
    assert await asyncio.wait_for(task, PATIENCE) is True
    assert jobs[id_]["status"] == "DEAD"
    leave.set()
