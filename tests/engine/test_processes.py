"""Real worker processes: killed, stopped and woken, racing for jobs, leaving in order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter

import pytest
from tests.engine.fleet import Fleet
from tests.engine.support import Jobs, until


async def test_three_workers_run_two_hundred_jobs_exactly_once_each(
    fleet: Fleet, jobs: Jobs
) -> None:
    for _ in range(3):
        await fleet.start(concurrency=8, lease_duration=10)
    ids = jobs.put_many(200, "nap", {"seconds": 0.01})
    await jobs.finished(ids)
    assert fleet.starts() == Counter(dict.fromkeys(ids, 1))
    assert jobs.statuses(ids) == {"DONE": 200}
    assert len({row["pid"] for row in jobs.conn.execute("SELECT DISTINCT pid FROM witness")}) == 3


@pytest.mark.case("B29", "B30")
async def test_a_job_that_kills_its_process_ends_dead_and_its_neighbours_get_done(
    fleet: Fleet, jobs: Jobs
) -> None:
    killer, last_chance = jobs.put("die", max_attempts=3), jobs.put("die", max_attempts=1)
    siblings = jobs.put_many(20, "nap")
    while any(status in jobs.statuses() for status in ("QUEUED", "RUNNING", "SCHEDULED")):
        process = await fleet.start(concurrency=2)
        await _dead_or_done(process, jobs, [killer, last_chance])
        if process.poll() is None:
            await jobs.finished(siblings)
    assert (jobs[killer]["status"], jobs[killer]["attempts"]) == ("DEAD", 3)
    assert jobs[killer]["last_error"] == "lease expired"
    assert [entry["outcome"] for entry in jobs[killer]["history"]] == ["lease_lost"] * 3
    assert (jobs[last_chance]["status"], jobs[last_chance]["attempts"]) == ("DEAD", 1)
    assert jobs.statuses(siblings) == {"DONE": 20}


async def _dead_or_done(process: subprocess.Popen[bytes], jobs: Jobs, ids: list[int]) -> None:
    """Wait until the worker is dead, or has no reason to die any more."""
    await until(lambda: process.poll() is not None or jobs.statuses(ids).keys() == {"DEAD"})


@pytest.mark.case("B20")
async def test_a_stopped_worker_wakes_up_and_cannot_overwrite_the_new_owners_outcome(
    fleet: Fleet, jobs: Jobs
) -> None:
    first = await fleet.start()
    id_ = jobs.put("nap", {"seconds": 0.5})
    await until(lambda: fleet.starts()[id_] == 1)
    os.kill(first.pid, signal.SIGSTOP)
    second = await fleet.start()
    job = await jobs.reach(id_, "DONE")
    assert job["worker"].split(":")[1] == str(second.pid)
    os.kill(first.pid, signal.SIGCONT)
    await until(lambda: b'"outcome":"lease_lost"' in fleet.log(first))
    assert jobs[id_] == job
    assert job["attempts"] == 2
    assert [entry["outcome"] for entry in job["history"]] == ["lease_lost"]


@pytest.mark.case("B24")
@pytest.mark.parametrize("kind", ["block", "spin"])
async def test_a_handler_that_blocks_the_loop_keeps_its_lease(
    fleet: Fleet, jobs: Jobs, kind: str
) -> None:
    for _ in range(2):
        await fleet.start(lease_duration=1)
    id_ = jobs.put(kind, {"seconds": 3})
    await jobs.reach(id_, "RUNNING")
    lapses = "SELECT count(*) AS n FROM jobq.job WHERE status = 'RUNNING' AND lease_until < now()"
    seen = 0

    def done() -> bool:
        nonlocal seen
        row = jobs.conn.execute(lapses).fetchone()
        seen += row["n"] if row else 0
        return bool(jobs[id_]["status"] == "DONE")

    await until(done)
    assert fleet.starts()[id_] == 1
    assert seen == 0


@pytest.mark.parametrize("kind", ["block", "nest"])
async def test_a_handler_that_blocks_the_loop_past_its_deadline_is_named_and_the_process_exits(
    fleet: Fleet, jobs: Jobs, kind: str
) -> None:
    worker = await fleet.start(lease_duration=1)
    id_ = jobs.put(kind, {"seconds": 60}, timeout=0.5, max_attempts=1)
    await until(lambda: worker.poll() is not None, patience=30)
    assert worker.returncode == 1
    lines = [json.loads(line) for line in fleet.log(worker).splitlines()]
    last = next(line for line in lines if "blocks the event loop" in line["event"])
    assert (last["job_id"], last["kind"]) == (id_, kind)
    assert "time.sleep" in last["stack"]
    await fleet.start()
    await jobs.reach(id_, "DEAD")


@pytest.mark.case("B46")
async def test_sigterm_finishes_what_runs_and_exits_with_zero(fleet: Fleet, jobs: Jobs) -> None:
    worker = await fleet.start(concurrency=2, shutdown_timeout=10)
    ids = jobs.put_many(6, "nap", {"seconds": 0.4})
    await until(lambda: len(fleet.starts()) == 2)
    worker.terminate()
    await until(lambda: worker.poll() is not None)
    assert worker.returncode == 0
    assert jobs.statuses(ids) == {"DONE": 2, "QUEUED": 4}
    assert {jobs[id_]["attempts"] for id_ in ids if jobs[id_]["status"] == "QUEUED"} == {0}
    row = jobs.conn.execute("SELECT count(*) AS n FROM jobq.worker").fetchone()
    assert row == {"n": 0}


async def test_a_worker_killed_in_the_middle_loses_no_job(fleet: Fleet, jobs: Jobs) -> None:
    ids = jobs.put_many(60, "nap", {"seconds": 0.05})
    for _ in range(3):
        process = await fleet.start(concurrency=4)
        started = len(fleet.starts())
        await until(lambda started=started: len(fleet.starts()) > started + 4)  # type: ignore[misc]
        process.kill()
        process.wait()
    await fleet.start(concurrency=8)
    await jobs.finished(ids)
    assert jobs.statuses(ids) == {"DONE": 60}
    assert set(fleet.starts("end")) == set(ids)
