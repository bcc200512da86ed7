"""Slots with real workers: no pool runs more than its slots (shares: test_shares.py)."""

from __future__ import annotations

import asyncio

from tests.engine.support import Jobs, handlers, until, working

from jobq.engine.pool import QueueSpec
from jobq.engine.worker import Worker


async def test_a_queue_with_slots_of_its_own_uses_no_more_and_unserved_queues_wait(
    database_url: str, jobs: Jobs
) -> None:
    running: dict[str, int] = {"mail": 0, "default": 0}
    most = dict(running)

    async def work(queue: str) -> None:
        running[queue] += 1
        most[queue] = max(most[queue], running[queue])
        await asyncio.sleep(0)
        running[queue] -= 1

    queues = [QueueSpec("default"), QueueSpec("mail", 2)]
    async with working(database_url, handlers(work=work), queues=queues, concurrency=3) as worker:
        ids = jobs.put_many(40, "work", {"queue": "mail"}, queue="mail", notify=False)
        ids += jobs.put_many(40, "work", {"queue": "default"}, queue="default")
        other = jobs.put("work", {"queue": "other"}, queue="other")
        await jobs.finished(ids)
        assert worker.running == 0
    assert most["mail"] <= 2
    assert most["default"] <= 3
    assert jobs[other]["status"] == "QUEUED"


async def test_a_pool_never_runs_more_than_its_slots(database_url: str, jobs: Jobs) -> None:
    running = most = 0

    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    async with working(database_url, handlers(work=work), concurrency=7, express_slots=2):
        ids = [id_ for tenant in "abcdefghij" for id_ in jobs.put_many(30, "work", tenant=tenant)]
        await jobs.finished(ids)
    assert most <= 9
    assert jobs.statuses(ids) == {"DONE": 300}


async def test_the_gauges_of_a_worker_tell_busy_free_and_express_slots(
    database_url: str, jobs: Jobs
) -> None:
    leave = asyncio.Event()

    async def work() -> None:
        await leave.wait()

    async with working(database_url, handlers(work=work), concurrency=2, express_slots=1) as worker:
        assert gauges(worker) == {"busy": 0, "free": 2, "express": 0}
        jobs.put_many(3, "work", tenant="flood")
        await until(lambda: worker.running == 2)
        assert gauges(worker) == {"busy": 2, "free": 0, "express": 0}
        jobs.put("work", tenant="quiet")
        await until(lambda: worker.running == 3)
        assert gauges(worker) == {"busy": 2, "free": 0, "express": 1}
        assert jobs.statuses() == {"RUNNING": 3, "QUEUED": 1}, "the flood got no express slot"
        leave.set()


def gauges(worker: Worker) -> dict[str, float]:
    """The slots of a worker by state, as its metrics show them."""
    worker.update_metrics()
    (family,) = [f for f in worker.metrics.registry.collect() if f.name == "jobq_worker_slots"]
    return {sample.labels["state"]: sample.value for sample in family.samples}
