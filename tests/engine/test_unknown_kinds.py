"""Jobs of kinds that a worker has no handler for: they wait without using attempts, and keep nothing else from running."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from tests.engine.support import Jobs, handlers, until, working

from jobq.engine.fair import Clock
from jobq.engine.lanes import MOST_TENANTS, LaneTable
from jobq.engine.pool import QueueSpec
from jobq.engine.strangers import MEET_AGAIN, Strangers
from jobq.model import Lane
from jobq.store import Blocked, Claimed, LaneHead

LANE = Lane("default", "default", 0)
START = datetime(2026, 1, 1, tzinfo=UTC)
SCOPE = "unknown_kind:new in default"


async def old() -> None: ...


async def new() -> None: ...


def held(jobs: Jobs) -> dict[str, int]:
    """Reason -> jobs that are held for it."""
    rows = jobs.conn.execute("SELECT held_by, count(*) AS n FROM jobq.job GROUP BY held_by")
    return {row["held_by"]: row["n"] for row in rows}


@pytest.mark.case("N20")
async def test_a_kind_that_comes_before_its_handler_waits_for_the_deploy_without_an_attempt(
    database_url: str, jobs: Jobs
) -> None:
    jobs.limit("kind", "new", max_running=8)
    async with working(database_url, handlers(old=old), max_attempts=1):
        waiting = [*jobs.put_many(600, "new"), jobs.put("new", concurrency_key="k")]
        behind = [*jobs.put_many(20, "old"), jobs.put("old", concurrency_key="k")]
        await jobs.finished(behind)
        await until(lambda: held(jobs) == {SCOPE: len(waiting)}, lambda: str(held(jobs)))
        row = jobs.conn.execute("SELECT max(attempts) AS n FROM jobq.job").fetchone()
        assert row == {"n": 0}
        async with working(database_url, handlers(old=old, new=new), max_attempts=1):
            await jobs.finished(waiting)
    assert jobs.statuses(waiting) == {"DONE": len(waiting)}
    assert jobs.statuses(behind) == {"DONE": len(behind)}
    assert jobs[waiting[0]]["attempts"] == 1


async def test_what_another_worker_knows_stays_for_it_and_this_one_goes_past_it(
    database_url: str, jobs: Jobs
) -> None:
    gate = asyncio.Event()

    async def slow() -> None:
        await gate.wait()

    async with (
        working(database_url, handlers(old=old)) as worker,
        working(database_url, handlers(new=slow), concurrency=2),
    ):
        waiting = jobs.put_many(500, "new")
        for _ in range(3):
            await jobs.finished(jobs.put_many(20, "old"))
        assert worker.dispatcher._strangers.left_out == {SCOPE}
        assert held(jobs) == {None: 500}
        gate.set()
        await jobs.finished(waiting)
    assert jobs.statuses(waiting) == {"DONE": 500}
    assert {jobs[id_]["attempts"] for id_ in waiting} == {1}


async def test_a_worker_of_another_queue_does_not_count(database_url: str, jobs: Jobs) -> None:
    async with (
        working(database_url, handlers(old=old)),
        working(database_url, handlers(new=new), queues=[QueueSpec("mail")]),
    ):
        id_ = jobs.put("new")
        await until(lambda: jobs[id_]["held_by"] == SCOPE)
        await jobs.reach(jobs.put("new", queue="mail"), "DONE")
    assert (jobs[id_]["status"], jobs[id_]["attempts"]) == ("QUEUED", 0)


# --- without a database ---------------------------------------------------------------------------


def blocked(number: int, *, is_held: bool) -> Blocked:
    at = START + timedelta(seconds=number)
    return Blocked(number, LANE, at, "unknown_kind", SCOPE, is_held, None)


def test_a_kind_that_is_left_out_is_met_again_after_a_while() -> None:
    strangers = Strangers()
    strangers.met([blocked(1, is_held=False)], now=100.0)
    assert strangers.left_out == {SCOPE}
    assert not strangers.forget(100.0 + MEET_AGAIN / 2)
    assert strangers.forget(100.0 + MEET_AGAIN)
    assert strangers.left_out == set()


def test_what_was_held_is_not_left_out_of_claims() -> None:
    strangers = Strangers()
    strangers.met([blocked(1, is_held=True)], now=100.0)
    assert strangers.left_out == set()


def test_a_lane_that_was_walked_to_its_end_is_not_walked_again_for_a_kind_left_out() -> None:
    table = LaneTable(Clock(), None)
    table.use_floors = True
    table.discovered([LaneHead(LANE, START, 1, True)], 1)
    plan = table.clock.plan(10, MOST_TENANTS)
    table.shares(plan)
    until_ = START + timedelta(hours=1)
    table.answered(plan, Claimed([], [], until_), 10, 0.0)
    table.landed()
    table.discovered([LaneHead(LANE, START, 1, True)], 2)
    (share,) = table.shares(table.clock.plan(10, MOST_TENANTS))
    assert [span.after_run_at for span in share.spans] == [until_]
    table.landed()
    table.meet_again()
    table.discovered([LaneHead(LANE, START, 1, True)], 3)
    (share,) = table.shares(table.clock.plan(10, MOST_TENANTS))
    assert [span.after_run_at for span in share.spans] == [START]
