"""Order with real workers: strict by priority within a tenant, by age within a priority, and nobody else waits for it."""

from __future__ import annotations

import asyncio

import pytest
from tests.engine.support import Jobs, handlers, until, working

from jobq.context import Context
from jobq.engine.worker import Worker


@pytest.mark.case("B94")
async def test_a_retried_job_of_high_priority_is_next_once_it_is_due(
    database_url: str, jobs: Jobs
) -> None:
    order: list[str] = []
    promoted = asyncio.Event()

    async def note() -> None:
        order.append("note")
        if "flaky" in order:
            await promoted.wait()

    async def flaky(ctx: Context) -> None:
        order.append("flaky")
        if ctx.attempt == 1:
            raise ValueError("not yet")

    def next_priority(worker: Worker) -> int:
        lanes = worker.pools[0].table._in_order("default")
        return lanes[0].lane.priority if lanes else 0

    jobs.put_many(2000, "note", notify=False)
    async with working(database_url, handlers(note=note, flaky=flaky), concurrency=1) as worker:
        id_ = jobs.put("flaky", priority=10)
        await until(lambda: order[-2:] == ["flaky", "note"], lambda: str(order))
        await until(lambda: jobs[id_]["status"] == "QUEUED" and next_priority(worker) == 10)
        promoted.set()
        await jobs.reach(id_, "DONE")
        jobs.conn.execute("DELETE FROM jobq.job WHERE status = 'QUEUED'")
    first = order.index("flaky")
    assert order[first + 1 : first + 3] == ["note", "flaky"], "the next after what had the slot"


@pytest.mark.case("B95")
async def test_quiet_tenants_start_soon_beside_a_flood(database_url: str, jobs: Jobs) -> None:
    """Counted in jobs of the flood that started while they waited: the machine may be slow."""
    starts = 0
    passed: list[int] = []

    async def flood() -> None:
        nonlocal starts
        starts += 1
        await asyncio.sleep(0.02)

    async def quiet(before: int) -> None:
        passed.append(starts - before)

    jobs.put_many(10_000, "flood", tenant="a", notify=False)
    kinds = handlers(flood=flood, quiet=quiet)
    async with working(database_url, kinds, concurrency=4, express_slots=1):
        await until(lambda: starts > 50)
        for number in range(50):
            jobs.put("quiet", {"before": starts}, tenant="bcdef"[number % 5])
            await until(lambda number=number: len(passed) > number)  # type: ignore[misc]
        jobs.conn.execute("DELETE FROM jobq.job WHERE status = 'QUEUED'")
    assert sorted(passed)[47] <= 50, (
        f"95 % of them pass a handful, not the 10,000 that came before: {passed}"
    )


@pytest.mark.case("B95")
async def test_a_stream_of_high_priority_starves_low_jobs_of_its_tenant_and_no_one_elses(
    database_url: str, jobs: Jobs
) -> None:
    """Strict, as documented; the oldest job of each priority is a metric, `jobq_oldest_queued_age_by_priority_seconds`."""
    order: list[str] = []

    def streams() -> bool:
        return "other" not in order or len(order) - order.index("other") < 100

    async def note(name: str) -> None:
        order.append(name)
        if name == "high" and streams():
            jobs.put("note", {"name": "high"}, priority=100, tenant="a")
        await asyncio.sleep(0.001)

    async with working(database_url, handlers(note=note), concurrency=2):
        jobs.put_many(20, "note", {"name": "high"}, priority=100, tenant="a")
        await until(lambda: len(order) > 20)
        low = jobs.put("note", {"name": "low"}, tenant="a")
        other = jobs.put("note", {"name": "other"}, tenant="b")
        await jobs.finished([low, other])
    assert order[-1] == "low", "only when the stream has ended"
    assert order.index("other") < len(order) - 100, "it started while the stream went on"


@pytest.mark.parametrize("slots", [1, 4])
async def test_new_jobs_never_overtake_older_ones_of_their_lane(
    database_url: str, jobs: Jobs, slots: int
) -> None:
    order: list[int] = []

    async def note(ctx: Context) -> None:
        order.append(ctx.job.id)
        await asyncio.sleep(0.001)

    async with working(database_url, handlers(note=note), concurrency=slots):
        ids: list[int] = []
        for _ in range(40):
            ids += jobs.put_many(5, "note", tenant="a")
            jobs.put_many(5, "note", tenant="b")
            await asyncio.sleep(0)
        await until(lambda: len(order) == 400)
    assert [id_ for id_ in order if id_ in set(ids)] == ids
