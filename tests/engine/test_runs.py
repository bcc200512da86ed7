"""Every way a run can end: one recorded outcome of that one job, and the worker goes on."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.engine.support import Jobs, handlers, working

from jobq.context import Context
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


async def test_the_only_error_of_a_task_group_counts_as_if_it_were_raised_alone(
    database_url: str, jobs: Jobs
) -> None:
    async def child() -> None:
        raise PermanentError("no such address")

    async def grouped() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())

    async with working(database_url, handlers(grouped=grouped)):
        job = await jobs.reach(jobs.put("grouped"), "FAILED")
    assert job["last_error"].startswith("PermanentError: no such address\n")
    assert "in child" in job["last_error"]


@pytest.mark.case("B74")
@pytest.mark.parametrize(
    "delay", [float("inf"), float("nan"), -5, timedelta.min, "10", None, 10**400]
)
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


async def test_a_plain_function_that_returns_a_coroutine_has_not_done_its_job(
    database_url: str, jobs: Jobs
) -> None:
    """As one behind a decorator does: nobody would await it, and the job would pass for done."""

    async def work() -> None: ...

    def wrapped() -> Any:
        return work()

    async with working(database_url, handlers(wrapped=wrapped)):
        job = await jobs.reach(jobs.put("wrapped", max_attempts=1), "DEAD")
    assert "wrapped returned a coroutine" in job["last_error"]


@pytest.mark.case("B16", "B17")
async def test_payloads_that_only_the_database_accepts_end_their_own_job(
    database_url: str, jobs: Jobs
) -> None:
    async def typed(to: str) -> None: ...

    async def whole(ctx: Context) -> Any:
        return ctx.job.payload

    payloads = ['{"n":1e5000}', "null", '"text"', "[1,2]", "5", "{}"]
    insert = (
        "INSERT INTO jobq.job (kind, payload, priority) VALUES (%s, %s::jsonb, 100) RETURNING id"
    )
    bad = [jobs.conn.execute(insert, ("typed", text)).fetchone()["id"] for text in payloads]  # type: ignore[index]
    whole_ids = [jobs.conn.execute(insert, ("whole", text)).fetchone()["id"] for text in payloads]  # type: ignore[index]
    good = jobs.put_many(20, "typed", {"to": "x"}, notify=False)
    async with working(
        database_url, handlers(typed=typed, whole=whole), concurrency=10, max_attempts=2
    ):
        await jobs.finished([*bad, *whole_ids, *good])
    assert jobs.statuses(good) == {"DONE": 20}
    assert {jobs[id_]["attempts"] for id_ in good} == {1}
    assert jobs.statuses(bad) == {"FAILED": len(bad)}
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
        "INSERT INTO jobq.job (kind, attempts, max_attempts) VALUES ('bad', %s, %s) RETURNING id",
        (attempts, most),
    ).fetchone()
    assert row is not None
    async with working(database_url, handlers(bad=bad)):
        await jobs.reach(row["id"], "DEAD")


async def test_a_result_that_json_cannot_hold_ends_done_without_it(
    database_url: str, jobs: Jobs
) -> None:
    results: dict[str, Any] = {"set": {1}, "nan": float("nan"), "nul": "a\0b", "object": object()}

    async def odd(name: str) -> Any:
        return results[name]

    async with working(database_url, handlers(odd=odd)):
        ids = [jobs.put("odd", {"name": name}) for name in results]
        await jobs.finished(ids)
    for id_ in ids:
        assert (jobs[id_]["status"], jobs[id_]["attempts"], jobs[id_]["result"]) == (
            "DONE",
            1,
            None,
        )


async def test_large_payloads_are_dropped_when_done_and_kept_when_dead(
    database_url: str, jobs: Jobs
) -> None:
    async def good(text: str) -> None: ...

    async def bad(text: str) -> None:
        raise ValueError

    async with working(database_url, handlers(good=good, bad=bad)):
        small = jobs.put("good", {"text": "x" * 8000})
        large, dead = (
            jobs.put(kind, {"text": "x" * 9000}, max_attempts=1) for kind in ("good", "bad")
        )
        await jobs.finished([small, large, dead])
    assert jobs[small]["payload"] == {"text": "x" * 8000}
    assert jobs[large]["payload"] is None
    assert jobs[dead]["payload"] == {"text": "x" * 9000}
