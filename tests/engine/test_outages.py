"""The database goes away in every way it can: nothing is lost, nothing runs twice, the worker comes back by itself."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.engine.support import Jobs, handlers, settings, until, working

from jobq.context import Context
from jobq.embedded import EmbeddedServer
from jobq.engine.recorder import Entry, LateRecorder
from jobq.engine.worker import Worker
from jobq.migrate import migrate


@pytest.fixture
def url(own_server: EmbeddedServer) -> str:
    """A migrated database on a server of the test's own."""
    migrate(own_server.url())
    return own_server.url()


@pytest.fixture
def own_jobs(url: str) -> Iterator[Jobs]:
    opened = Jobs(url)
    yield opened
    opened.close()


@pytest.mark.case("B41", "B44")
@pytest.mark.parametrize("how", ["restart", "kill"])
async def test_an_outcome_outlives_an_outage_and_the_worker_resumes(
    own_server: EmbeddedServer, url: str, own_jobs: Jobs, how: str
) -> None:
    starts = 0
    leave = asyncio.Event()

    async def work() -> str:
        nonlocal starts
        starts += 1
        await leave.wait()
        return "kept"

    async with working(url, handlers(work=work), lease_duration=60) as worker:
        id_ = own_jobs.put("work")
        await own_jobs.reach(id_, "RUNNING")
        # Claims commit asynchronously: the next commit of somebody else puts this one on disk.
        own_jobs.conn.execute("CREATE TABLE flushed ()")
        await asyncio.to_thread(own_server.kill if how == "kill" else own_server.stop)
        leave.set()
        await until(lambda: worker.recorder.unrecorded == 1)
        await until(lambda: worker.dispatcher.outage)
        assert worker.health().ok
        assert not worker.ready
        await asyncio.to_thread(own_server.start)
        after = Jobs(url)
        job = await after.reach(id_, "DONE")
        assert (job["result"], job["attempts"], starts) == ("kept", 1, 1)
        await after.reach(after.put("work"), "DONE")
        assert worker.ready
        after.close()


@pytest.mark.case("B44")
async def test_a_completion_whose_connection_is_cut_is_written_again_and_counted_once(
    database_url: str, jobs: Jobs
) -> None:
    """Forced: the write waits on a lock when its backend is terminated."""
    starts = 0

    async def work() -> None:
        nonlocal starts
        starts += 1

    jobs.conn.execute(
        """
        CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN OLD; END $$;
        CREATE TRIGGER gate BEFORE DELETE ON jobq.job FOR EACH ROW EXECUTE FUNCTION gate()
        """
    )
    jobs.conn.execute("SELECT pg_advisory_lock(4711)")
    async with working(database_url, handlers(work=work), lease_duration=60) as worker:
        id_ = jobs.put("work")
        stuck = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'jobq record%' AND wait_event_type = 'Lock'"
        await until(lambda: jobs.conn.execute(stuck).fetchone())
        jobs.conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'jobq record%'"
        )
        jobs.conn.execute("SELECT pg_advisory_unlock(4711)")
        await jobs.reach(id_, "DONE")
        await until(lambda: worker.recorder.unrecorded == 0)
    assert starts == 1


async def test_a_commit_whose_answer_was_lost_is_our_own_success(
    database_url: str, jobs: Jobs
) -> None:
    """The statement commits, the connection breaks before the answer: zero rows then are no lost lease."""
    seen: list[str] = []

    async def work() -> None: ...

    async with working(database_url, handlers(work=work), lease_duration=60) as worker:
        recorder = worker.recorder
        run, recorded = recorder.session.run, recorder.recorded
        cut = False

        async def run_and_cut(call: Any) -> Any:
            nonlocal cut
            answer = await run(call)
            if call.name == "complete" and not cut:
                cut = True
                raise psycopg.OperationalError("the answer was lost")
            return answer

        def note(run_: Any, outcome: Any, what: str, due: Any) -> None:
            seen.append(what)
            recorded(run_, outcome, what, due)

        recorder.session.run = run_and_cut  # type: ignore[method-assign]
        recorder.recorded = note
        await jobs.reach(jobs.put("work"), "DONE")
        await until(lambda: seen)
    assert seen == ["success"]


@pytest.mark.case("B44")
async def test_a_completion_waits_for_a_locked_row_as_long_as_it_takes(
    database_url: str, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobq.engine.recorder.MOST_REFUSALS", 1)
    starts = 0
    leave = asyncio.Event()

    async def work() -> None:
        nonlocal starts
        starts += 1
        await leave.wait()

    async with working(database_url, handlers(work=work), lease_duration=60) as worker:
        id_ = jobs.put("work")
        await jobs.reach(id_, "RUNNING")
        tries = counting(worker._late)
        with psycopg.connect(database_url) as rival:
            rival.execute("SELECT 1 FROM jobq.job WHERE id = %s FOR UPDATE", (id_,))
            leave.set()
            await until(lambda: len(tries) > 3)
            assert worker.recorder.unrecorded == 1
            rival.rollback()
        await jobs.reach(id_, "DONE")
    assert starts == 1


def counting(late: LateRecorder) -> list[int]:
    """How many outcomes it sets aside, each time that it does."""
    tries: list[int] = []
    set_aside = late._set_aside

    def count(entries: list[Entry]) -> None:
        tries.append(len(entries))
        set_aside(entries)

    late._set_aside = count  # type: ignore[method-assign]
    return tries


async def test_a_worker_asks_for_its_leases_as_soon_as_the_database_is_back(
    database_url: str, jobs: Jobs
) -> None:
    """A crash may have forgotten its claims; the next beat would come in 200 seconds."""
    told = asyncio.Event()

    async def work(ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            if ctx.lease_lost:
                told.set()

    async with working(database_url, handlers(work=work), lease_duration=600):
        id_ = jobs.put("work")
        await jobs.reach(id_, "RUNNING")
        await until(lambda: jobs.conn.execute("SELECT FROM jobq.worker").fetchone() is not None)
        jobs.conn.execute("UPDATE jobq.job SET lease = lease + 1 WHERE id = %s", (id_,))
        jobs.conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'jobq %'"
        )
        async with asyncio.timeout(20):
            await told.wait()


@pytest.mark.case("B08")
@pytest.mark.parametrize("times", [1, 1000], ids=["once", "always"])
async def test_one_outcome_that_is_refused_does_not_stall_the_others(
    database_url: str, jobs: Jobs, times: int
) -> None:
    leave = asyncio.Event()

    async def bad() -> None:
        await leave.wait()
        raise ValueError

    async with working(database_url, handlers(bad=bad), concurrency=8, lease_duration=2) as worker:
        ids = jobs.put_many(8, "bad", max_attempts=1)
        await until(lambda: worker.running == 8)
        jobs.conn.execute(
            f"""
            CREATE SEQUENCE public.tries;
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                IF nextval('public.tries') <= {times} AND OLD.lease IS NOT NULL AND OLD.lease_until > now() THEN
                    RAISE EXCEPTION 'refused';
                END IF;
                RETURN OLD;
            END $$;
            CREATE TRIGGER refuse BEFORE DELETE ON jobq.job FOR EACH ROW WHEN (OLD.id = {ids[3]}) EXECUTE FUNCTION refuse()
            """
        )
        leave.set()
        await jobs.finished([id_ for id_ in ids if id_ != ids[3]])
        await jobs.finished(ids)
    assert jobs.statuses(ids) == {"DEAD": 8}
    assert jobs[ids[3]]["last_error"] == (
        "lease expired" if times > 1 else jobs[ids[0]]["last_error"]
    )


async def test_a_result_that_postgresql_refuses_is_dropped_and_the_job_is_done(
    database_url: str, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever our own check lets through: the outcome counts more than the result."""
    monkeypatch.setattr("jobq.engine.runner.encode", lambda value, **_: '"\\u0000"')

    async def work() -> str:
        return "x"

    async with working(database_url, handlers(work=work)):
        ids = jobs.put_many(3, "work")
        await jobs.finished(ids)
    assert jobs.statuses(ids) == {"DONE": 3}


async def test_a_day_without_a_partition_gets_one_with_its_first_completion(
    database_url: str, jobs: Jobs
) -> None:
    leaf = jobs.conn.execute(
        "SELECT format('jobq.job_archive_done_%s', to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')) AS name"
    ).fetchone()
    assert leaf is not None

    async def work() -> None: ...

    async with working(database_url, handlers(work=work)):
        await until(
            lambda: jobs.conn.execute("SELECT to_regclass(%s) AS c", (leaf["name"],)).fetchone()
        )
        jobs.conn.execute(f"DROP TABLE {leaf['name']}")
        ids = jobs.put_many(3, "work")
        await jobs.finished(ids)
    assert jobs.statuses(ids) == {"DONE": 3}


async def test_a_server_that_has_become_read_only_is_an_outage(
    own_server: EmbeddedServer, url: str, own_jobs: Jobs
) -> None:
    async def work() -> None: ...

    async with working(url, handlers(work=work), lease_duration=60) as worker:
        own_jobs.conn.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        own_jobs.conn.execute("SELECT pg_reload_conf()")
        await until(lambda: worker.dispatcher.outage or not _can_write(url))
        with psycopg.connect(
            url, autocommit=True, options="-c default_transaction_read_only=off"
        ) as conn:
            id_ = conn.execute("SELECT jobq.enqueue(kind => 'work')").fetchone()[0]  # type: ignore[index]
        await until(lambda: worker.dispatcher.outage)
        with psycopg.connect(
            url, autocommit=True, options="-c default_transaction_read_only=off"
        ) as conn:
            conn.execute("ALTER SYSTEM RESET default_transaction_read_only")
            conn.execute("SELECT pg_reload_conf()")
        await own_jobs.reach(id_, "DONE")


def _can_write(url: str) -> bool:
    with psycopg.connect(url) as conn:
        row = conn.execute("SHOW transaction_read_only").fetchone()
        return row == ("off",)


@pytest.mark.case("B42")
async def test_a_long_outage_costs_little_and_is_logged_once(
    own_server: EmbeddedServer, url: str, own_jobs: Jobs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with working(url, handlers(), lease_duration=60):
        await asyncio.to_thread(own_server.stop)
        before, began = time.process_time(), time.monotonic()
        failures = threading.Event()
        await asyncio.to_thread(failures.wait, 6)  # the outage lasts
        used = time.process_time() - before
        assert used < 0.1 * (time.monotonic() - began) + 0.3
        away = [
            record for record in caplog.records if "the database is away" in record.getMessage()
        ]
        assert len(away) == 1
        await asyncio.to_thread(own_server.start)
        after = Jobs(url)
        await until(
            lambda: any("database is back" in record.getMessage() for record in caplog.records)
        )
        after.close()


async def test_a_claim_whose_answer_was_lost_is_released_by_its_lease(
    database_url: str, jobs: Jobs
) -> None:
    async def work() -> None: ...

    worker = Worker(settings(database_url, lease_duration=60), handlers(work=work))
    session = worker.dispatcher.session
    run = session.run
    lost: list[Any] = []

    async def run_and_cut(call: Any) -> Any:
        answer = await run(call)
        if call.name == "claim" and answer.jobs and not lost:
            lost.extend(answer.jobs)
            raise psycopg.OperationalError("the answer was lost")
        return answer

    session.run = run_and_cut  # type: ignore[method-assign]
    id_ = jobs.put("work", notify=False)
    task = asyncio.create_task(worker.run())
    job = await jobs.reach(id_, "DONE")
    worker.stop()
    await task
    assert len(lost) == 1
    assert [entry["outcome"] for entry in job["history"]] == ["released"]
    assert job["attempts"] == 1


async def test_claims_go_on_while_what_a_lost_claim_took_cannot_be_released(
    database_url: str, jobs: Jobs
) -> None:
    async def work() -> None: ...

    stranded = jobs.put("work")
    jobs.conn.execute(
        "UPDATE jobq.job SET status = 'RUNNING', lease = 1, lease_until = now() + interval '1 hour'"
    )
    async with working(database_url, handlers(work=work), lease_duration=60) as worker:
        with psycopg.connect(database_url) as rival:
            rival.execute("SELECT 1 FROM jobq.job WHERE id = %s FOR UPDATE", (stranded,))
            worker.dispatcher._lost[1] = [0.0]
            await jobs.reach(jobs.put("work"), "DONE")
            assert 1 in worker.dispatcher._lost
