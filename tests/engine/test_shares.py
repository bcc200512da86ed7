"""Shares of worker time that tenants get from real workers: one in this process, and a fleet of four processes."""

from __future__ import annotations

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.engine.fleet import Fleet
from tests.engine.process import rest
from tests.engine.support import Jobs, handlers, until, working

from jobq.engine.runner import Run
from jobq.engine.worker import Worker
from jobq.sql import Statements
from jobq.store import LimiterStore, run_sync

#: How far shares may be from what the weights say.
TOLERANCE = 0.05
#: Worker seconds that pass in a poll interval, and some more: by then every worker knows a change.
SOON = 2.0
#: Worker seconds over which shares are measured: hundreds of jobs.
LONG_ENOUGH = 3.0

#: Slots of all workers.
SLOTS = 8
#: Jobs of a backlog that lasts.
MANY = 4000

Service = dict[str, float]


#: Jobs of the flood that started before the late tenant's last one, and those of them after its first.
BETWEEN = """
WITH late AS (SELECT min(started_at) AS first, max(started_at) AS last FROM jobq.jobs WHERE id = ANY (%(late)s))
SELECT count(*) AS before, count(*) FILTER (WHERE started_at >= first) AS meanwhile
FROM jobq.jobs, late WHERE tenant = 'flood' AND started_at < last
"""


class Crew(ABC):
    """Workers that tell how long they worked for whom."""

    def __init__(self) -> None:
        self._seconds: Service = defaultdict(float)
        #: Seconds of the longest run.
        self.longest = 0.0

    @abstractmethod
    def service(self) -> Service:
        """Tenant -> worker seconds of its jobs that ended."""

    def count(self, tenant: str, seconds: float) -> None:
        """A run ended."""
        self._seconds[tenant] += seconds
        self.longest = max(self.longest, seconds)


class OneWorker(Crew):
    """A worker in this process, asked where it charges its tenants."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._ended = worker.active.runner.ended
        worker.active.runner.ended = self._count

    def service(self) -> Service:
        """What was counted so far."""
        return dict(self._seconds)

    def _count(self, run: Run) -> None:
        self.count(run.job.tenant, time.monotonic() - run.started)
        self._ended(run)


class FourProcesses(Crew):
    """Four worker processes, by what they log."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self._logs = [fleet.log_file(process).open("rb") for process in fleet.processes]
        self._rest = [b""] * len(self._logs)

    def service(self) -> Service:
        """What they logged so far."""
        for index, log in enumerate(self._logs):
            *lines, self._rest[index] = (self._rest[index] + log.read()).split(b"\n")
            for line in map(json.loads, lines):
                if line["event"] == "job finished":
                    self.count(line["tenant"], line["duration_ms"] / 1000)
        return dict(self._seconds)

    def close(self) -> None:
        """Close the logs."""
        for log in self._logs:
            log.close()


@asynccontextmanager
async def crew_of(kind: str, url: str, fleet: Fleet) -> AsyncIterator[Crew]:
    """Workers with `SLOTS` in one process, or in four."""
    if kind == "one worker":
        async with working(
            url, handlers(rest=rest), concurrency=SLOTS, lease_duration=10
        ) as worker:
            yield OneWorker(worker)
        return
    processes = [fleet.launch(concurrency=SLOTS // 4, lease_duration=10) for _ in range(4)]
    for process in processes:
        await fleet.started(process)
    crew = FourProcesses(fleet)
    yield crew
    crew.close()


@pytest.fixture(params=["one worker", "four processes"])
def crew_kind(request: pytest.FixtureRequest) -> str:
    """Everything holds for both."""
    return str(request.param)


class Scene:
    """A crew at work, jobs for it, and what becomes of the shares."""

    def __init__(self, crew: Crew, jobs: Jobs) -> None:
        self._crew, self.jobs = crew, jobs
        self._limits = LimiterStore(Statements("jobq"))

    async def put(self, count: int, tenant: str, seconds: float, **fields: Any) -> list[int]:
        """Enqueue jobs that take some seconds each; beside the loop, where it would make those that run take longer."""
        payload = {"seconds": seconds}
        return await asyncio.to_thread(
            self.jobs.put_many, count, "rest", payload, tenant=tenant, **fields
        )

    def set(self, scope: str, name: str, **change: Any) -> None:
        """Set a weight, as an operator does."""
        run_sync(self.jobs.conn, self._limits.set_limiter(scope, name, change))

    async def served(self, seconds: float) -> None:
        """Wait until the crew has worked so many seconds, from now on."""
        since = self._since()
        await until(lambda: sum(since().values()) >= seconds, lambda: str(since()))

    async def shares(self, **weights: float) -> None:
        """From now on, the tenants get worker time by their weights, within `TOLERANCE`, while all have jobs waiting.

        What differs is bounded (test_fair_bounds.py), so that it is the smaller a part the longer one looks. The bound grows
        with the longest run, though: on a machine that stops for a second all runs of that second are long, and then
        the bound is what is left to check.
        """
        await self.served(SOON)
        since = self._since()

        def parts() -> list[float]:
            return [since().get(name, 0.0) / weight for name, weight in weights.items()]

        def even() -> bool:
            return max(parts()) <= (1 + TOLERANCE) * min(parts())

        def seen() -> bool:
            total = sum(since().values())
            return total >= LONG_ENOUGH and (even() or total >= 4 * LONG_ENOUGH)

        await until(seen, lambda: str(since()))
        bound = 4 * SLOTS * self._crew.longest / min(weights.values())
        assert even() or max(parts()) - min(parts()) <= bound, (since(), self._crew.longest)
        waiting = self.jobs.conn.execute(
            "SELECT DISTINCT tenant FROM jobq.job WHERE status = 'QUEUED'"
        )
        assert {row["tenant"] for row in waiting} == weights.keys(), "backlogged to the end"

    def _since(self) -> Callable[[], Service]:
        before = self._crew.service()

        def since() -> Service:
            service = self._crew.service()
            return {name: total - before.get(name, 0.0) for name, total in service.items()}

        return since


@pytest.fixture
async def scene(
    crew_kind: str, database_url: str, jobs: Jobs, fleet: Fleet
) -> AsyncIterator[Scene]:
    """A crew at work."""
    async with crew_of(crew_kind, database_url, fleet) as crew:
        yield Scene(crew, jobs)
        jobs.conn.execute("DELETE FROM jobq.job WHERE status = 'QUEUED'")  # nothing to wait for


async def test_a_late_tenant_interleaves_with_a_flood_of_a_thousand_jobs(scene: Scene) -> None:
    await scene.put(1000, "flood", 0.005)
    await scene.served(0.5)
    late = await scene.put(40, "late", 0.005)
    await scene.jobs.finished(late)
    row = scene.jobs.conn.execute(BETWEEN, {"late": late}).fetchone()
    assert row is not None
    assert row["meanwhile"] < 120, "about as many as the late tenant's, while those started"
    assert row["before"] < 800, "it did not wait for the flood"


async def test_three_tenants_take_turns(scene: Scene) -> None:
    with scene.jobs.together():
        for tenant in "abc":
            await scene.put(MANY, tenant, 0.004)
    await scene.shares(a=1, b=1, c=1)


async def test_a_new_weight_acts_on_the_backlog_while_workers_run(scene: Scene) -> None:
    with scene.jobs.together():
        for tenant in "ab":
            await scene.put(2 * MANY, tenant, 0.004)
    await scene.shares(a=1, b=1)
    scene.set("tenant", "a", weight=3.0)
    await scene.shares(a=3, b=1)


@pytest.mark.parametrize("long", ["a", "b"])
async def test_weights_hold_where_one_tenants_jobs_take_ten_times_longer(
    scene: Scene, long: str
) -> None:
    """They are of one kind, so what is expected of it is wrong for both."""
    scene.set("tenant", "a", weight=3.0)
    with scene.jobs.together():
        for tenant in "ab":
            if tenant == long:
                await scene.put(1000, tenant, 0.02)
            else:
                await scene.put(2 * MANY, tenant, 0.002)
    await scene.shares(a=3, b=1)


async def test_a_weight_for_a_queue_counts_in_that_queue_only(scene: Scene) -> None:
    """Weights of queues and kinds divide what their jobs are charged, whoever's they are."""
    scene.set("tenant", "a", queue_weights={"mail": 3.0, "other": 100.0})
    scene.set("queue", "bulk", weight=0.5)
    with scene.jobs.together():
        for tenant, queue in (("a", "mail"), ("b", "mail"), ("c", "bulk")):
            await scene.put(MANY, tenant, 0.004, queue=queue)
    await scene.shares(a=3, b=1, c=0.5)


async def test_an_idle_tenant_banks_nothing(scene: Scene) -> None:
    await scene.put(20, "idle", 0.004)
    await scene.put(2 * MANY, "busy", 0.004)
    await scene.served(LONG_ENOUGH)
    await scene.put(MANY, "idle", 0.004)
    await scene.shares(idle=1, busy=1)


@pytest.mark.parametrize("spread", ["ten queues", "three priorities"])
async def test_a_tenant_gets_one_share_however_it_spreads_its_jobs(
    scene: Scene, spread: str
) -> None:
    with scene.jobs.together():
        if spread == "ten queues":
            for number in range(10):
                await scene.put(MANY // 10, "spread", 0.004, queue=f"q{number}")
        else:
            for priority in (0, 5, 10):
                await scene.put(MANY // 3, "spread", 0.004, priority=priority)
        await scene.put(MANY, "plain", 0.004)
    await scene.shares(spread=1, plain=1)
