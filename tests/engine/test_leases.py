"""Leases from the worker's side: fenced outcomes, heartbeats, and no mass reclaim."""

from __future__ import annotations

import asyncio
import threading

import psycopg
import pytest
from tests.engine.support import Jobs, handlers, until, working

from jobq.context import Context
from jobq.engine.worker import Worker

LEASE = 60.0


@pytest.mark.case("B23", "B20")
async def test_old_and_new_claim_of_one_job_in_one_worker_only_the_new_one_counts(
    database_url: str, jobs: Jobs
) -> None:
    """The first run loses its lease while the same worker runs the job again; both end in one batch."""
    gates = [asyncio.Event(), asyncio.Event()]
    runs = 0

    async def work() -> str:
        nonlocal runs
        number, runs = runs, runs + 1
        while not gates[number].is_set():
            try:
                await gates[number].wait()
            except asyncio.CancelledError:
                continue
        return f"run {number}"

    async with working(database_url, handlers(work=work), lease_duration=LEASE) as worker:
        id_ = jobs.put("work")
        await until(lambda: runs == 1)
        # Its attempts are reset as by a manual retry, so that the attempt numbers are equal.
        jobs.conn.execute(
            "UPDATE jobq.job SET status = 'QUEUED', attempts = 0, lease = NULL, lease_until = NULL WHERE id = %s",
            (id_,),
        )
        jobs.wake()
        await until(lambda: runs == 2)
        for gate in gates:
            gate.set()
        job = await jobs.reach(id_, "DONE")
        await until(lambda: worker.running == 0)
    assert (job["result"], job["attempts"]) == ("run 1", 1)
    assert counted(worker, "success") == 1
    assert counted(worker, "lease_lost") == 1


async def test_a_lost_lease_tells_the_handler_and_writes_nothing(
    database_url: str, jobs: Jobs
) -> None:
    started, told = threading.Event(), threading.Event()

    def work(ctx: Context) -> None:
        started.set()
        ctx.wait_cancelled()
        if ctx.lease_lost:
            told.set()

    async with working(database_url, handlers(work=work), lease_duration=1) as worker:
        id_ = jobs.put("work")
        await until(started.is_set)
        jobs.conn.execute(
            "UPDATE jobq.job SET lease = 1, lease_until = now() + interval '1 hour' WHERE id = %s",
            (id_,),
        )
        await until(told.is_set)
        await until(lambda: worker.running == 0)
    assert jobs[id_]["status"] == "RUNNING"
    assert counted(worker, "lease_lost") == 1


@pytest.mark.case("B25")
@pytest.mark.parametrize("lease", [1.0, 2.0])
async def test_leases_are_extended_in_time_although_the_database_is_slow(
    database_url: str, jobs: Jobs, lease: float
) -> None:
    jobs.conn.execute(
        """
        CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM pg_sleep(0.25); RETURN NEW; END $$;
        CREATE TRIGGER slow BEFORE UPDATE ON jobq.job FOR EACH ROW WHEN (OLD.status = NEW.status) EXECUTE FUNCTION slow()
        """
    )
    starts = 0

    async def work() -> None:
        nonlocal starts
        starts += 1
        await asyncio.sleep(3 * lease)

    async with working(database_url, handlers(work=work), lease_duration=lease):
        id_ = jobs.put("work")
        await jobs.reach(id_, "RUNNING")
        lapsed = 0

        def done() -> bool:
            nonlocal lapsed
            job = jobs[id_]
            if job["status"] == "RUNNING":
                row = jobs.conn.execute(
                    "SELECT lease_until < now() AS over FROM jobq.job WHERE id = %s", (id_,)
                ).fetchone()
                lapsed += bool(row and row["over"])
            return bool(job["status"] == "DONE")

        await until(done)
    assert (starts, lapsed) == (1, 0)


async def test_no_lease_is_extended_past_the_deadline_of_its_run(
    database_url: str, jobs: Jobs
) -> None:
    leave = threading.Event()

    def stuck() -> None:
        leave.wait(20)

    async with working(database_url, handlers(stuck=stuck), lease_duration=30):
        id_ = jobs.put("stuck", timeout=8)
        await jobs.reach(id_, "RUNNING")
        await until(lambda: jobs.conn.execute("SELECT 1 FROM jobq.worker").fetchone() is not None)
        row = jobs.conn.execute(
            "SELECT lease_until <= greatest(deadline, started_at + interval '30 s') AS bounded FROM jobq.job WHERE id = %s",
            (id_,),
        ).fetchone()
        assert row == {"bounded": True}
        leave.set()
        await jobs.reach(id_, "DONE")


async def test_a_row_that_was_locked_at_a_beat_is_extended_soon_after(
    database_url: str, jobs: Jobs
) -> None:
    """The next beat would come in 200 seconds."""
    leave = asyncio.Event()
    short = "SELECT lease_until < now() + interval '5 min' AS short FROM jobq.job WHERE id = %s"

    async with working(database_url, handlers(work=leave.wait), lease_duration=600) as worker:
        id_ = jobs.put("work")
        await jobs.reach(id_, "RUNNING")
        jobs.conn.execute(
            "UPDATE jobq.job SET lease_until = now() + interval '1 min' WHERE id = %s", (id_,)
        )
        with psycopg.connect(database_url) as rival:
            rival.execute("SELECT FROM jobq.job WHERE id = %s FOR UPDATE", (id_,))
            worker._heartbeat.hurry()
            await until(lambda: worker._heartbeat._skipped)
            assert jobs.conn.execute(short, (id_,)).fetchone() == {"short": True}
        await until(lambda: jobs.conn.execute(short, (id_,)).fetchone() == {"short": False})
        leave.set()


def counted(worker: Worker, outcome: str) -> float:
    """What the worker's metrics say of an outcome, over all kinds."""
    families = worker.metrics.registry.collect()
    return sum(
        float(sample.value)
        for family in families
        for sample in family.samples
        if sample.name == "jobq_processed_total" and sample.labels["outcome"] == outcome
    )
