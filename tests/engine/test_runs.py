"""Every way a run can end: one recorded outcome of that one job, and the worker goes on."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from tests.engine.support import Jobs, handlers, until, working

from jobq.context import Context
from jobq.engine.runner import Run, Stop
from jobq.errors import PermanentError, RetryAfter


class Silent(Exception):
    """An error that cannot be shown."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class Demanding(Exception):
    """An error that cannot be built again from its text."""

    def __init__(self, *, req: str) -> None:
        super().__init__(req)


class Odd(BaseException):
    """An error that is no Exception."""


BAD: dict[str, BaseException] = {
    "exit": SystemExit(3),
    "interrupt": KeyboardInterrupt(),
    "cancelled": asyncio.CancelledError(),
    "generator": GeneratorExit(),
    "stop": StopIteration(1),
    "astop": StopAsyncIteration(1),
    "odd": Odd("odd"),
    "group": BaseExceptionGroup("several", [KeyboardInterrupt(), ValueError("x")]),
    "silent": Silent(),
    "demanding": Demanding(req="this"),
    "bytes": RuntimeError("bad\x00bytes \udcff tail"),
    "long": RuntimeError("é" * 100_000),
}


@pytest.mark.case("B50", "B05", "B06")
@pytest.mark.parametrize("threaded", [False, True], ids=["coroutine", "thread"])
async def test_whatever_a_handler_raises_is_a_failure_of_that_job_only(
    database_url: str, jobs: Jobs, threaded: bool
) -> None:
    async def bad(name: str) -> None:
        raise BAD[name]

    def bad_in_thread(name: str) -> None:
        raise BAD[name]

    async def good() -> str:
        return "fine"

    kinds = handlers(bad=bad_in_thread if threaded else bad, good=good)
    ids = {name: jobs.put("bad", {"name": name}, max_attempts=2, notify=False) for name in BAD}
    last = jobs.put("good", notify=False)
    async with working(database_url, kinds, concurrency=1):
        await jobs.finished([*ids.values(), last])
    for name, id_ in ids.items():
        job = jobs[id_]
        assert (job["status"], job["attempts"]) == ("DEAD", 2), name
        assert "\x00" not in job["last_error"]
        assert len(job["last_error"].encode()) <= 8 * 1024
        assert len(job["history"]) == 2
    assert jobs[ids["bytes"]]["last_error"].startswith("RuntimeError: bad\ufffdbytes")
    assert "Silent" in jobs[ids["silent"]]["last_error"]
    assert jobs[last]["status"] == "DONE"
    assert jobs[last]["result"] == "fine"


async def test_the_error_tells_where_the_handler_failed(database_url: str, jobs: Jobs) -> None:
    def helper() -> None:
        raise ValueError("no such month")

    async def report() -> None:
        helper()

    async with working(database_url, handlers(report=report)):
        job = await jobs.reach(jobs.put("report", max_attempts=1), "DEAD")
    first, *place = job["last_error"].splitlines()
    assert first == "ValueError: no such month"
    assert any("in helper" in line for line in place)
    assert not any("runner.py" in line for line in place)


async def test_a_permanent_error_fails_at_once_and_retry_after_chooses_the_time(
    database_url: str, jobs: Jobs
) -> None:
    async def permanent() -> None:
        raise PermanentError("no such address")

    async def later() -> None:
        raise RetryAfter(timedelta(hours=1), "busy")

    async with working(database_url, handlers(permanent=permanent, later=later)):
        failed = await jobs.reach(jobs.put("permanent"), "FAILED")
        waiting = await jobs.reach(jobs.put("later"), "SCHEDULED")
    assert failed["attempts"] == 1
    assert failed["last_error"].startswith("PermanentError: no such address")
    ahead = jobs.conn.execute("SELECT %s - now() AS t", (waiting["run_at"],)).fetchone()
    assert ahead is not None
    assert timedelta(minutes=59) < ahead["t"] <= timedelta(hours=1)


@pytest.mark.case("B74")
@pytest.mark.parametrize("delay", [float("inf"), float("nan"), -5, timedelta.min, "10", None, 10**400])
async def test_an_unusable_retry_delay_falls_back_to_the_backoff(
    database_url: str, jobs: Jobs, delay: Any
) -> None:
    async def bad() -> None:
        raise RetryAfter(delay)

    async with working(database_url, handlers(bad=bad)):
        job = await jobs.reach(jobs.put("bad", max_attempts=2), "DEAD")
    assert job["attempts"] == 2


async def test_the_longest_retry_delay_is_clamped(database_url: str, jobs: Jobs) -> None:
    async def bad() -> None:
        raise RetryAfter(timedelta.max)

    async with working(database_url, handlers(bad=bad)):
        job = await jobs.reach(jobs.put("bad"), "SCHEDULED")
    assert job["run_at"].year < 2100


async def test_an_unknown_kind_is_retried_and_names_what_is_known(database_url: str, jobs: Jobs) -> None:
    async def known() -> None: ...

    async with working(database_url, handlers(known=known)):
        job = await jobs.reach(jobs.put("unheard.of", max_attempts=2), "DEAD")
    assert "unheard.of" in job["last_error"]
    assert "known" in job["last_error"]


@pytest.mark.case("B16", "B17")
async def test_payloads_that_only_the_database_accepts_end_their_own_job(
    database_url: str, jobs: Jobs
) -> None:
    async def typed(to: str) -> None: ...

    async def whole(ctx: Context) -> Any:
        return ctx.job.payload

    payloads = ['{"n":1e5000}', "null", '"text"', "[1,2]", "5", "{}"]
    insert = "INSERT INTO jobq.job (kind, payload, priority) VALUES (%s, %s::jsonb, 100) RETURNING id"
    bad = [jobs.conn.execute(insert, ("typed", text)).fetchone()["id"] for text in payloads]  # type: ignore[index]
    whole_ids = [jobs.conn.execute(insert, ("whole", text)).fetchone()["id"] for text in payloads]  # type: ignore[index]
    odd = [
        jobs.conn.execute(insert, (kind, "{}")).fetchone()["id"]  # type: ignore[index]
        for kind in ("", "k" * 1_000_000, "odd\nkind\t")
    ]
    good = jobs.put_many(20, "typed", {"to": "x"}, notify=False)
    async with working(database_url, handlers(typed=typed, whole=whole), concurrency=10, max_attempts=2):
        await jobs.finished([*bad, *whole_ids, *odd, *good])
    assert jobs.statuses(good) == {"DONE": 20}
    assert {jobs[id_]["attempts"] for id_ in good} == {1}
    assert jobs.statuses(bad) == {"FAILED": len(bad)}
    assert jobs.statuses(odd) == {"DEAD": 3}
    assert jobs.statuses(whole_ids) == {"FAILED": 1, "DONE": 5}
    assert [jobs[id_]["result"] for id_ in whole_ids[2:]] == ["text", [1, 2], 5, {}]


@pytest.mark.case("B30")
@pytest.mark.parametrize(("attempts", "most"), [(3, 3), (7, 3), (2**31 - 1, 2**31 - 1)])
async def test_a_queued_job_with_its_attempts_used_up_still_ends(
    database_url: str, jobs: Jobs, attempts: int, most: int
) -> None:
    async def bad() -> None:
        raise ValueError

    row = jobs.conn.execute(
        "INSERT INTO jobq.job (kind, attempts, max_attempts) VALUES ('bad', %s, %s) RETURNING id", (attempts, most)
    ).fetchone()
    assert row is not None
    async with working(database_url, handlers(bad=bad)):
        await jobs.reach(row["id"], "DEAD")


async def test_a_result_that_json_cannot_hold_ends_done_without_it(database_url: str, jobs: Jobs) -> None:
    results: dict[str, Any] = {"set": {1}, "nan": float("nan"), "nul": "a\0b", "object": object()}

    async def odd(name: str) -> Any:
        return results[name]

    async with working(database_url, handlers(odd=odd)):
        ids = [jobs.put("odd", {"name": name}) for name in results]
        await jobs.finished(ids)
    for id_ in ids:
        assert (jobs[id_]["status"], jobs[id_]["attempts"], jobs[id_]["result"]) == ("DONE", 1, None)


async def test_large_payloads_are_dropped_when_done_and_kept_when_dead(database_url: str, jobs: Jobs) -> None:
    async def good(text: str) -> None: ...

    async def bad(text: str) -> None:
        raise ValueError

    async with working(database_url, handlers(good=good, bad=bad)):
        small = jobs.put("good", {"text": "x" * 8000})
        large, dead = (jobs.put(kind, {"text": "x" * 9000}, max_attempts=1) for kind in ("good", "bad"))
        await jobs.finished([small, large, dead])
    assert jobs[small]["payload"] == {"text": "x" * 8000}
    assert jobs[large]["payload"] is None
    assert jobs[dead]["payload"] == {"text": "x" * 9000}


# --- timeouts -----------------------------------------------------------------------------------


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


async def test_a_timeout_longer_than_the_lease_is_not_reclaimed(database_url: str, jobs: Jobs) -> None:
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
    monkeypatch.setattr("jobq.engine.runner.GRACE", 0.2)
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
        worker.update_metrics()
        release.set()
        await until(lambda: worker.running == 0)
    assert jobs[id_]["status"] == "DEAD"


async def test_a_coroutine_that_swallows_its_cancellation_and_returns_is_done(
    database_url: str, jobs: Jobs
) -> None:
    async def tidy() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return "finished anyway"

    async with working(database_url, handlers(tidy=tidy)):
        job = await jobs.reach(jobs.put("tidy", timeout=0.1), "DONE")
    assert job["result"] == "finished anyway"


async def test_a_thread_is_told_at_its_timeout_and_keeps_its_slot(database_url: str, jobs: Jobs) -> None:
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
        worker._cancel([run.claim for run in worker._running])


async def test_threads_are_as_many_as_slots_and_progress_reaches_the_job(database_url: str, jobs: Jobs) -> None:
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

    async with working(database_url, handlers(wait=wait, thread=wait_in_thread), poll_interval=30, lease_duration=60):
        for kind in ("wait", "thread"):
            id_ = jobs.put(kind)
            await jobs.reach(id_, "RUNNING")
            began = time.monotonic()
            cancel(jobs, id_)
            job = await jobs.reach(id_, "CANCELLED")
            assert time.monotonic() - began < 10, "the request travels as a hint, not with the heartbeat"
            assert job["attempts"] == 1


async def test_a_job_that_finishes_although_its_cancellation_was_asked_for_keeps_its_outcome(
    database_url: str, jobs: Jobs
) -> None:
    async def finish() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "done before I was told"
        return ""

    async with working(database_url, handlers(finish=finish)):
        id_ = jobs.put("finish")
        await jobs.reach(id_, "RUNNING")
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


async def test_a_run_that_is_stopped_before_its_first_step_still_ends(database_url: str, jobs: Jobs) -> None:
    """A task cancelled before it begins ends without a word; its job and slot must not be lost."""
    started = False

    async def work() -> None:
        nonlocal started
        started = True

    async with working(database_url, handlers(work=work), concurrency=1) as worker:
        begin = worker._runner.start

        def stop_at_once(run: Run) -> None:
            begin(run)
            worker._runner.stop(run, Stop.CANCEL)

        worker._runner.start = stop_at_once  # type: ignore[method-assign]
        await jobs.reach(jobs.put("work"), "CANCELLED")
        assert worker.running == 0
    assert not started


async def test_a_row_that_vanishes_is_a_lost_lease_and_the_worker_goes_on(database_url: str, jobs: Jobs) -> None:
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
    from jobq.sql import Statements
    from jobq.store import JobStore, run_sync

    run_sync(jobs._plain, JobStore(Statements("jobq")).cancel([id_], 8192))
