"""Connections that stand and say nothing any more: each is given up and made anew, and nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import psycopg
import pytest
from tests.engine.proxy import proxy
from tests.engine.support import PATIENCE, Jobs, handlers, settings, until, working

from jobq import DatabaseUnavailable, JobQ
from jobq.engine.worker import Worker

#: Seconds of silence that are borne here.
SILENCE = 1.0


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that are given up sooner than in life."""
    for name in ("WORKER_SILENCE", "CLIENT_SILENCE"):
        monkeypatch.setattr(f"jobq.db.{name}", SILENCE)
    monkeypatch.setattr("jobq.engine.listener.QUIET", 0.2)


@pytest.mark.parametrize("name", ["jobq claim", "jobq record", "jobq listen", "jobq"])
async def test_work_goes_on_when_a_connection_falls_silent(
    database_url: str, jobs: Jobs, name: str
) -> None:
    ran: Counter[int] = Counter()

    async def work(n: int) -> None:
        ran[n] += 1

    async with proxy(database_url) as wire:
        kinds = handlers(work=work)
        async with working(wire.url, kinds, poll_interval=60, lease_duration=60) as worker:
            await jobs.reach(jobs.put("work", {"n": 0}), "DONE")
            assert wire.silence(name) >= 1
            ids = [jobs.put("work", {"n": n}) for n in range(1, 6)]
            await jobs.finished(ids)
            assert jobs.statuses(ids) == {"DONE": 5}
            assert worker.health().ok
    assert ran == dict.fromkeys(range(6), 1)


async def test_an_outcome_whose_answer_never_comes_is_recorded_once(
    database_url: str, jobs: Jobs
) -> None:
    """The write was committed, and the silence swallowed the answer."""
    leave = asyncio.Event()
    starts = 0

    async def work() -> None:
        nonlocal starts
        starts += 1
        await leave.wait()

    async with proxy(database_url) as wire, working(wire.url, handlers(work=work)) as worker:
        id_ = jobs.put("work")
        await until(lambda: starts == 1)
        run = worker.recorder.session.run

        async def write_and_fall_silent(call: object) -> object:
            worker.recorder.session.run = run  # type: ignore[method-assign]
            await run(call)  # type: ignore[arg-type]
            wire.silence("jobq record")
            return await run(call)  # type: ignore[arg-type]

        worker.recorder.session.run = write_and_fall_silent  # type: ignore[method-assign,assignment]
        leave.set()
        await jobs.reach(id_, "DONE")
        await until(lambda: worker.recorder.unrecorded == 0)
    assert starts == 1
    assert jobs[id_]["attempts"] == 1


async def test_heartbeats_go_on_when_their_connection_falls_silent(
    database_url: str, jobs: Jobs
) -> None:
    beats = "SELECT heartbeat_at FROM jobq.worker"
    async with proxy(database_url) as wire, working(wire.url, handlers(), lease_duration=1.5):
        assert wire.silence("jobq heartbeat") == 1
        before = jobs.conn.execute(beats).fetchone()
        await until(lambda: jobs.conn.execute(beats).fetchone() != before)
        assert jobs.conn.execute("SELECT count(*) AS n FROM jobq.worker").fetchone() == {"n": 1}


async def test_a_worker_ends_within_its_budget_when_all_falls_silent(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobq.db.WORKER_SILENCE", 600.0)
    monkeypatch.setattr("jobq.engine.worker.FLUSH_TIME", 0.3)
    async with proxy(database_url) as wire:
        worker = Worker(settings(wire.url, shutdown_timeout=0.5), handlers())
        task = asyncio.create_task(worker.run())
        await until(worker.started.is_set)
        wire.closed = True
        wire.silence()
        worker.stop()
        began = time.monotonic()
        await asyncio.wait_for(task, PATIENCE)
        assert time.monotonic() - began < PATIENCE / 2


@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_a_client_gives_a_silent_connection_up(database_url: str, colour: str) -> None:
    async with proxy(database_url) as wire, JobQ(wire.url, pool_size=1) as app:

        async def enqueue() -> int:
            if colour == "async":
                return (await app.aenqueue("k", notify=False)).id
            return (await asyncio.to_thread(app.enqueue, "k", notify=False)).id

        await enqueue()
        wire.silence()
        with pytest.raises(DatabaseUnavailable):
            await enqueue()
        assert await enqueue() > 0


@pytest.mark.case("N35")
async def test_a_locked_table_makes_a_worker_wait_not_fail(
    database_url: str, jobs: Jobs, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Healthy, not ready, one line for each loop; and it goes on by itself."""
    monkeypatch.setattr("jobq.db.WORKER_SILENCE", 600.0)

    async def work() -> None: ...

    async with working(database_url, handlers(work=work), poll_interval=0.05) as worker:
        with psycopg.connect(database_url) as rival:
            rival.execute("LOCK TABLE jobq.job IN ACCESS EXCLUSIVE MODE")
            await until(lambda: not worker.ready)
            worker.dispatcher.succeeded_at -= 3600  # as if it had lasted for an hour
            met = 0
            over = worker.dispatcher._trouble.met

            def count(error: BaseException) -> bool:
                nonlocal met
                met += 1
                return over(error)

            worker.dispatcher._trouble.met = count  # type: ignore[method-assign]
            await until(lambda: met >= 2)
            assert worker.health().ok
            assert not worker.ready
            rival.rollback()
        await jobs.reach(jobs.put("work"), "DONE")
        await until(lambda: worker.ready)
    assert "Traceback" not in caplog.text
    lines = [
        record.getMessage() for record in caplog.records if "makes it wait" in record.getMessage()
    ]
    assert 1 <= len(lines) <= 6, lines
