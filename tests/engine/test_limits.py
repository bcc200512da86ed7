"""Caps, rates and pauses with real workers: exact, and no business of anybody else's."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from tests.engine.support import Jobs, handlers, until, working

from jobq.errors import RetryAfter
from jobq.handlers import Handler

#: So long that nothing in these tests happens because of a poll.
NEVER = 60.0


class Floor:
    """Handlers that tell how many of them run at once, and in which order they start."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.order: list[Any] = []
        self.leave = asyncio.Event()

    async def work(self, tag: str = "", n: int = 0) -> None:
        """Give way to others once."""
        self._enter(tag, n)
        await asyncio.sleep(0.001)
        self.running[tag] -= 1

    async def stay(self, tag: str = "", n: int = 0) -> None:
        """Until told to leave."""
        self._enter(tag, n)
        await self.leave.wait()
        self.running[tag] -= 1

    def _enter(self, tag: str, n: int) -> None:
        self.order.append(n or tag)
        self.running[tag] += 1
        self.most[tag] = max(self.most[tag], self.running[tag])


CAPPED: dict[str, dict[str, Any]] = {
    "tenant": {"tenant": "acme"},
    "queue": {"queue": "mail"},
    "kind": {},
    "key": {"concurrency_key": "partner/42"},
}
NAMES = {"tenant": "acme", "queue": "mail", "kind": "work", "key": "partner/42"}


@pytest.mark.parametrize("scope", CAPPED)
async def test_a_cap_holds_over_all_workers_and_leaves_the_others_alone(
    database_url: str, jobs: Jobs, scope: str
) -> None:
    floor = Floor()
    kinds = handlers(work=floor.work, other=floor.work)
    jobs.limit(scope, NAMES[scope], max_running=3)
    async with (
        working(database_url, kinds, concurrency=8, poll_interval=NEVER),
        working(database_url, kinds, concurrency=8, poll_interval=NEVER),
    ):
        ids = jobs.put_many(120, "work", {"tag": "capped"}, **CAPPED[scope])
        ids += jobs.put_many(120, "other", {"tag": "free"}, tenant="free")
        await jobs.finished(ids)
    assert floor.most["capped"] == 3
    assert floor.most["free"] > 3
    assert jobs.statuses(ids) == {"DONE": 240}


async def test_a_flood_at_its_cap_keeps_no_job_of_its_own_lane_waiting(
    database_url: str, jobs: Jobs
) -> None:
    floor = Floor()
    jobs.limit("kind", "stay", max_running=1)
    async with working(
        database_url, handlers(work=floor.work, stay=floor.stay), concurrency=4, poll_interval=NEVER
    ):
        flood = jobs.put_many(600, "stay", {"tag": "flood"}, notify=False)
        await jobs.finished(jobs.put_many(10, "work"))
        assert floor.most["flood"] == 1
        assert jobs.statuses(flood) == {"RUNNING": 1, "QUEUED": 599}
        jobs.limit("kind", "stay", max_running=None)
        floor.leave.set()
        await jobs.finished(flood)


async def test_a_serial_key_starts_by_priority_then_time_then_id_over_queues_and_tenants(
    database_url: str, jobs: Jobs
) -> None:
    floor = Floor()
    now = jobs.conn.execute("SELECT clock_timestamp() AS now").fetchone()["now"]  # type: ignore[index]
    puts = [
        (1, "a", "default", 0), (2, "b", "mail", 5), (3, "a", "mail", 0), (4, "c", "default", 10),
        (5, "b", "default", 0), (6, "c", "mail", 5), (7, "a", "default", 5), (8, "a", "mail", 10),
    ]  # fmt: skip
    ids = [
        jobs.put(
            "work", {"n": n}, tenant=tenant, queue=queue, priority=priority,
            concurrency_key="one", run_at=now + timedelta(microseconds=n), notify=False,
        )
        for n, tenant, queue, priority in puts
    ]  # fmt: skip
    async with working(database_url, handlers(work=floor.work), concurrency=4):
        await jobs.finished(ids)
    assert floor.most[""] == 1
    assert floor.order == [4, 8, 2, 6, 7, 1, 3, 5]


async def test_a_handler_says_how_many_of_its_jobs_with_one_key_run_at_once(
    database_url: str, jobs: Jobs
) -> None:
    floor = Floor()
    kinds = {"work": Handler("work", floor.stay, max_per_key=3)}
    async with working(database_url, kinds, concurrency=8, poll_interval=NEVER):
        ids = jobs.put_many(5, "work", concurrency_key="one")
        await until(lambda: floor.most[""] == 3)
        floor.leave.set()
        await jobs.finished(ids)
    assert floor.most[""] == 3


async def test_a_job_in_backoff_does_not_hold_its_key(database_url: str, jobs: Jobs) -> None:
    floor = Floor()

    async def later() -> None:
        raise RetryAfter(3600)

    kinds = handlers(later=later, work=floor.work)
    async with working(database_url, kinds, poll_interval=NEVER):
        first = jobs.put("later", concurrency_key="one")
        await jobs.reach(first, "SCHEDULED")
        await jobs.finished([jobs.put("work", concurrency_key="one")])


async def test_a_key_whose_jobs_change_workers_goes_on(database_url: str, jobs: Jobs) -> None:
    floor = Floor()
    kinds = handlers(work=floor.work)
    async with (
        working(database_url, kinds, concurrency=1, poll_interval=NEVER),
        working(database_url, kinds, concurrency=1, poll_interval=NEVER),
    ):
        ids = jobs.put_many(60, "work", concurrency_key="one")
        await jobs.finished(ids)
    assert floor.most[""] == 1
    assert len({jobs[id_]["worker"] for id_ in ids}) == 2


@pytest.mark.parametrize("scope", ["tenant", "queue", "kind"])
async def test_a_pause_starts_nothing_lets_what_runs_finish_and_ends_at_once(
    database_url: str, jobs: Jobs, scope: str
) -> None:
    floor = Floor()
    kinds = handlers(work=floor.stay, other=floor.work)
    async with working(database_url, kinds, concurrency=4, poll_interval=NEVER) as worker:
        running = jobs.put("work", **CAPPED[scope])
        await until(lambda: worker.running == 1)
        jobs.limit(scope, NAMES[scope], paused=True)
        waiting = jobs.put_many(5, "work", **CAPPED[scope])
        await jobs.finished(jobs.put_many(5, "other", tenant="free"))
        floor.leave.set()
        await jobs.finished([running])
        assert jobs.statuses(waiting) == {"QUEUED": 5}
        jobs.limit(scope, NAMES[scope], paused=False)
        await jobs.finished(waiting)


@pytest.mark.parametrize(
    "end", ["UPDATE jobq.limiter SET paused = false", "DELETE FROM jobq.limiter"]
)
@pytest.mark.parametrize("scope", ["tenant", "queue", "kind"])
async def test_a_pause_that_plain_sql_ends_ends_at_once(
    database_url: str, jobs: Jobs, scope: str, end: str
) -> None:
    floor = Floor()
    jobs.limit(scope, NAMES[scope], paused=True)
    async with working(database_url, handlers(work=floor.work), poll_interval=NEVER) as worker:
        ids = jobs.put_many(3, "work", **CAPPED[scope])
        await until(lambda: f"{scope}_paused" in _blocked(worker))
        jobs.conn.execute(end)
        await jobs.finished(ids)


@pytest.mark.parametrize("scope", CAPPED)
async def test_a_cap_that_is_raised_acts_at_once(database_url: str, jobs: Jobs, scope: str) -> None:
    floor = Floor()
    jobs.limit(scope, NAMES[scope], max_running=1)
    kinds = handlers(work=floor.stay)
    async with working(database_url, kinds, concurrency=8, poll_interval=NEVER) as worker:
        ids = jobs.put_many(6, "work", **CAPPED[scope])
        await until(lambda: worker.running == 1)
        jobs.limit(scope, NAMES[scope], max_running=4)
        await until(lambda: floor.most[""] == 4)
        assert worker.running == 4
        floor.leave.set()
        await jobs.finished(ids)


async def test_limits_whose_hint_was_lost_act_within_a_poll(database_url: str, jobs: Jobs) -> None:
    floor = Floor()
    jobs.limit("tenant", "acme", paused=True)
    jobs.limit("kind", "work", paused=True)
    async with working(database_url, handlers(work=floor.work), poll_interval=0.2) as worker:
        worker._hear = lambda message: None  # type: ignore[method-assign]
        worker._listener.hear = worker._hear
        ids = jobs.put_many(3, "work", tenant="acme") + jobs.put_many(3, "work")
        jobs.limit("tenant", "acme", paused=False)
        jobs.limit("kind", "work", paused=False)
        await jobs.finished(ids)


@pytest.mark.parametrize("scope", ["tenant", "kind", "key"])
async def test_no_window_of_a_rate_has_more_starts_than_its_limit_and_others_go_on(
    database_url: str, jobs: Jobs, scope: str
) -> None:
    floor = Floor()
    jobs.limit(scope, NAMES[scope], rate_limit=20, rate_period=0.2)
    if scope == "key":
        jobs.limit("key", NAMES[scope], max_running=100)
    kinds = handlers(work=floor.work, other=floor.work)
    async with (
        working(database_url, kinds, concurrency=8, poll_interval=NEVER),
        working(database_url, kinds, concurrency=8, poll_interval=NEVER),
    ):
        ids = jobs.put_many(80, "work", **CAPPED[scope])
        others = jobs.put_many(100, "other", tenant="free")
        await jobs.finished(others)
        assert "QUEUED" in jobs.statuses(ids)
        await jobs.finished(ids)
    starts = sorted(jobs[id_]["started_at"] for id_ in ids)
    # A start is stamped when its claim commits, a moment after the token was taken: a few milliseconds of grace.
    window = timedelta(seconds=0.19)
    assert max(sum(s <= t < s + window for t in starts) for s in starts) <= 20


async def test_what_blocks_is_counted_by_reason(database_url: str, jobs: Jobs) -> None:
    floor = Floor()
    jobs.limit("tenant", "acme", max_running=1)
    async with working(database_url, handlers(work=floor.stay)) as worker:
        ids = jobs.put_many(3, "work", tenant="acme")
        ids += jobs.put_many(3, "work", concurrency_key="one")
        await until(lambda: worker.running == 2 and _blocked(worker) >= {"tenant_cap", "key_cap"})
        floor.leave.set()
        await jobs.finished(ids)


def _blocked(worker: Any) -> set[str]:
    return {
        sample.labels["reason"]
        for metric in worker.metrics._blocked.collect()
        for sample in metric.samples
    }
