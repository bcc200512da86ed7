"""Runs that are stopped: at their timeout, by request, by a lost row; coroutines and threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import pytest
from tests.engine.support import Jobs, handlers, until, working

from jobq.context import Context
from jobq.engine.runner import Run, Stop
from jobq.sql import Statements
from jobq.store import JobStore, run_sync


@pytest.mark.case("B32", "B51")
async def test_a_coroutine_is_cancelled_at_its_timeout_and_the_attempt_counts(
    database_url: str, jobs: Jobs
) -> None:
    cancelled = 0

    async def hang() -> None:
        nonlocal cancelled
        try:
            await asyncio.Event().wait()
        finally:
            cancelled += 1

    async def quick() -> None: ...

    stuck = [jobs.put("hang", timeout=0.1, max_attempts=2, notify=False) for _ in range(4)]
    behind = jobs.put_many(20, "quick", notify=False)
    async with working(database_url, handlers(hang=hang, quick=quick)):
        await jobs.finished(stuck + behind)
    assert jobs.statuses(stuck) == {"DEAD": 4}
    assert jobs.statuses(behind) == {"DONE": 20}
    assert cancelled == 8
    assert jobs[stuck[0]]["last_error"] == "TimeoutError: it ran longer than its 0.1s"


async def test_a_timeout_longer_than_the_lease_is_not_reclaimed(
    database_url: str, jobs: Jobs
) -> None:
    starts = 0

    async def slow() -> None:
        nonlocal starts
        starts += 1
        await asyncio.sleep(2.5)

    async with working(database_url, handlers(slow=slow), lease_duration=1.0):
        job = await jobs.reach(jobs.put("slow", timeout=60), "DONE")
    assert (starts, job["attempts"]) == (1, 1)


async def test_a_coroutine_that_ignores_its_cancellation_is_recorded_without_it(
    database_url: str, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobq.engine.runner.CLEANUP", 0.2)
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    async with working(database_url, handlers(stubborn=stubborn)) as worker:
        id_ = jobs.put("stubborn", timeout=0.1, max_attempts=1)
        await jobs.reach(id_, "DEAD")
        assert worker.running == 1, "its slot stays taken"
        assert [run.abandoned for run in worker.active.running] == [True]
        release.set()
        await until(lambda: worker.running == 0)
    assert jobs[id_]["status"] == "DEAD"


async def test_a_result_that_comes_after_the_timeout_is_a_failure(
    database_url: str, jobs: Jobs
) -> None:
    async def tidy() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "finished anyway"

    async def blocking() -> str:
        time.sleep(0.3)
        return "finished anyway"

    async with working(database_url, handlers(tidy=tidy, blocking=blocking)):
        ids = [jobs.put(kind, timeout=0.1, max_attempts=1) for kind in ("tidy", "blocking")]
        for id_ in ids:
            job = await jobs.reach(id_, "DEAD")
            assert job["result"] is None
            assert job["last_error"] == "TimeoutError: it ran longer than its 0.1s"


async def test_a_thread_is_told_at_its_timeout_and_keeps_its_slot(
    database_url: str, jobs: Jobs
) -> None:
    told = threading.Event()
    leave = threading.Event()

    def hang(ctx: Context) -> None:
        ctx.wait_cancelled()
        told.set()
        leave.wait()

    async with working(database_url, handlers(hang=hang), concurrency=1) as worker:
        first, second = jobs.put("hang", timeout=0.1, max_attempts=1), jobs.put("hang", timeout=60)
        await jobs.reach(first, "DEAD")
        await until(told.is_set)
        assert worker.running == 1
        assert jobs[second]["status"] == "QUEUED"
        leave.set()
        await jobs.reach(second, "RUNNING")
        worker.active.cancel([run.claim for run in worker.active.running])


async def test_threads_are_as_many_as_slots_and_progress_reaches_the_job(
    database_url: str, jobs: Jobs
) -> None:
    here = threading.Barrier(4, timeout=20)

    def meet(ctx: Context) -> str:
        ctx.progress(0.5, "half\0way")
        here.wait()
        ctx.log.info("met")
        return threading.current_thread().name

    async with working(database_url, handlers(meet=meet), concurrency=4):
        ids = jobs.put_many(4, "meet")
        await jobs.finished(ids)
    assert len({jobs[id_]["result"] for id_ in ids}) == 4


async def test_progress_is_written_while_the_job_runs(database_url: str, jobs: Jobs) -> None:
    leave = asyncio.Event()

    async def build(ctx: Context) -> None:
        ctx.progress(0.25, "a quarter")
        await leave.wait()

    async with working(database_url, handlers(build=build)):
        id_ = jobs.put("build")
        await until(lambda: jobs[id_]["progress"] is not None)
        assert jobs[id_]["progress"] == {"fraction": 0.25, "text": "a quarter"}
        leave.set()
        job = await jobs.reach(id_, "DONE")
    assert job["progress"] == {"fraction": 0.25, "text": "a quarter"}


# --- cancellation -------------------------------------------------------------------------------


@pytest.mark.case("B99")
async def test_a_running_job_is_told_of_its_cancellation_and_ends_cancelled(
    database_url: str, jobs: Jobs
) -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    def wait_in_thread(ctx: Context) -> None:
        ctx.wait_cancelled()

    async with working(
        database_url,
        handlers(wait=wait, thread=wait_in_thread),
        poll_interval=30,
        lease_duration=60,
    ):
        for kind in ("wait", "thread"):
            id_ = jobs.put(kind)
            await jobs.reach(id_, "RUNNING")
            began = time.monotonic()
            cancel(jobs, id_)
            job = await jobs.reach(id_, "CANCELLED")
            assert time.monotonic() - began < 10, (
                "the request travels as a hint, not with the heartbeat"
            )
            assert job["attempts"] == 1


async def test_a_job_that_finishes_although_its_cancellation_was_asked_for_keeps_its_outcome(
    database_url: str, jobs: Jobs
) -> None:
    started = asyncio.Event()

    async def finish() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "done before I was told"
        return ""

    async with working(database_url, handlers(finish=finish)):
        id_ = jobs.put("finish")
        await started.wait()
        cancel(jobs, id_)
        await jobs.reach(id_, "DONE")


async def test_a_lost_cancel_hint_arrives_with_the_heartbeat(database_url: str, jobs: Jobs) -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    async with working(database_url, handlers(wait=wait)):
        id_ = jobs.put("wait")
        await jobs.reach(id_, "RUNNING")
        jobs.conn.execute("UPDATE jobq.job SET cancel_requested_at = now() WHERE id = %s", (id_,))
        await jobs.reach(id_, "CANCELLED")


async def test_a_hint_alone_cancels_nothing(database_url: str, jobs: Jobs) -> None:
    """Whoever may connect may NOTIFY; and a hint of long ago may meet a later run of its job."""
    asked, leave = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        await leave.wait()

    async with working(database_url, handlers(wait=wait), lease_duration=60) as worker:
        ask = worker.active.ask

        def note() -> None:
            ask()
            asked.set()

        worker.active.ask = note
        id_ = jobs.put("wait")
        await jobs.reach(id_, "RUNNING")
        jobs.wake(f"c {id_}")
        await asked.wait()
        leave.set()
        await jobs.reach(id_, "DONE")


async def test_a_run_that_is_stopped_before_its_first_step_still_ends(
    database_url: str, jobs: Jobs
) -> None:
    """A task cancelled before it begins ends without a word; its job and slot must not be lost."""
    started = False

    async def work() -> None:
        nonlocal started
        started = True

    async with working(database_url, handlers(work=work), concurrency=1) as worker:
        begin = worker.active.runner.start

        def stop_at_once(run: Run) -> None:
            begin(run)
            worker.active.runner.stop(run, Stop.CANCEL)

        worker.active.runner.start = stop_at_once  # type: ignore[method-assign]
        await jobs.reach(jobs.put("work"), "CANCELLED")
        assert worker.running == 0
    assert not started


async def test_a_row_that_vanishes_is_a_lost_lease_and_the_worker_goes_on(
    database_url: str, jobs: Jobs
) -> None:
    started, leave = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        started.set()
        await leave.wait()

    async with working(database_url, handlers(wait=wait), concurrency=1):
        id_ = jobs.put("wait")
        await started.wait()
        jobs.conn.execute("DELETE FROM jobq.job WHERE id = %s", (id_,))
        leave.set()
        await jobs.reach(jobs.put("wait"), "DONE")
    assert jobs.conn.execute("SELECT 1 FROM jobq.jobs WHERE id = %s", (id_,)).fetchone() is None


def cancel(jobs: Jobs, id_: int) -> None:
    """Ask for the cancellation of a running job, as the API does."""
    run_sync(jobs._plain, JobStore(Statements("jobq")).cancel([id_], 8192))
