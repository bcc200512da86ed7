"""Wake-ups and floors with a real database: no hint is needed for correctness, and hints are quick."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from tests.engine.support import Jobs, handlers, until, working

from jobq.engine.discovery import Discovery
from jobq.engine.fair import Clock
from jobq.engine.lanes import LaneTable
from jobq.engine.pool import make_pools
from jobq.engine.session import Session
from jobq.model import ClaimedJob, Lane
from jobq.sql import Statements
from jobq.store import (
    BEGINNING,
    Call,
    ClaimSettings,
    LaneHead,
    RunStore,
    UpkeepStore,
    run_sync,
)
from jobq.wakeup import LanesReady, ready, token

#: A poll interval that no test waits for: what starts sooner was woken.
NEVER = 60.0
LISTENERS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'jobq listen'"


class Started:
    """A handler that notes what it ran, in order."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def __call__(self) -> Any:
        async def note(number: int) -> None:
            self.ids.append(number)

        return note


@pytest.fixture
def started() -> Started:
    return Started()


@pytest.mark.case("B33")
async def test_a_listener_that_was_killed_comes_back_and_hears_again(
    database_url: str, jobs: Jobs, started: Started
) -> None:
    async with working(
        database_url, handlers(note=started()), poll_interval=NEVER, lease_duration=NEVER
    ):
        for number in range(5):
            pid = jobs.conn.execute(LISTENERS).fetchone()
            assert pid is not None
            jobs.conn.execute("SELECT pg_terminate_backend(%s)", (pid["pid"],))
            await until(lambda pid=pid: jobs.conn.execute(LISTENERS).fetchone() not in (None, pid))  # type: ignore[misc]
            jobs.put("note", {"number": number})
            await until(lambda number=number: number in started.ids)  # type: ignore[misc]


@pytest.mark.case("B34")
async def test_a_job_enqueued_while_nobody_listened_is_found_when_listening_begins(
    database_url: str, jobs: Jobs, started: Started
) -> None:
    async with working(
        database_url, handlers(note=started()), poll_interval=NEVER, lease_duration=NEVER
    ) as worker:
        await until(lambda: worker.dispatcher._poll >= 1)
        for number in range(20):
            jobs.conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'jobq listen'"
            )
            jobs.put("note", {"number": number}, notify=False)
            await until(lambda number=number: number in started.ids)  # type: ignore[misc]


async def test_a_hint_is_heard_although_a_rival_took_what_the_last_one_told_of(
    database_url: str, jobs: Jobs, started: Started
) -> None:
    """Of two idle workers one takes the first job of a new lane; the other has to start the next one all the same."""
    lane = Lane("default", "newcomer", 0)
    async with working(
        database_url, handlers(note=started()), poll_interval=NEVER, lease_duration=NEVER
    ) as worker:
        discovery, table = worker.dispatcher.discovery, worker.pools[0].table
        await until(lambda: worker.dispatcher._poll >= 0.2 and not discovery._left)
        worker.dispatcher._poll_at = time.monotonic() + NEVER
        heard = asyncio.Event()
        discovered = table.discovered

        def note(heads: Any, round_: int) -> None:
            discovered(heads, round_)
            heard.set()

        table.discovered = note  # type: ignore[method-assign]
        jobs.wake(*ready([(lane, BEGINNING)]))
        await heard.wait()
        id_ = jobs.put("note", {"number": 1}, tenant=lane.tenant, notify=False)
        jobs.wake(*ready([(lane, jobs[id_]["run_at"])]))
        await until(lambda: started.ids == [1], patience=5)


async def test_without_any_hint_the_poll_finds_the_job(
    database_url: str, jobs: Jobs, started: Started
) -> None:
    async with working(database_url, handlers(note=started()), poll_interval=0.3):
        jobs.put("note", {"number": 1}, notify=False)
        await until(lambda: started.ids == [1])
        jobs.put("note", {"number": 2}, notify=False, tenant="somebody.new")
        await until(lambda: started.ids == [1, 2])


@pytest.mark.case("B37")
async def test_one_hint_for_a_batch_fills_the_slots_of_every_worker(
    database_url: str, jobs: Jobs
) -> None:
    running = 0
    everybody = asyncio.Event()

    async def meet() -> None:
        nonlocal running
        running += 1
        if running == 20:
            everybody.set()
        await everybody.wait()

    kinds = handlers(meet=meet)
    options: dict[str, Any] = {"poll_interval": NEVER, "concurrency": 5, "lease_duration": NEVER}
    async with (
        working(database_url, kinds, **options), working(database_url, kinds, **options),
        working(database_url, kinds, **options), working(database_url, kinds, **options),
    ):  # fmt: skip
        ids = jobs.put_many(20, "meet")
        await jobs.finished(ids)
    assert jobs.statuses(ids) == {"DONE": 20}


async def test_a_late_commit_below_the_floor_is_claimed(
    database_url: str, jobs: Jobs, started: Started
) -> None:
    """Forced: the row is stamped first, others behind it are claimed, then it commits and is announced."""
    async with working(
        database_url, handlers(note=started()), poll_interval=NEVER, lease_duration=NEVER
    ):
        with psycopg.connect(database_url) as slow:
            slow.execute("SELECT jobq.enqueue(kind => 'note', payload => '{\"number\": 1}')")
            jobs.put("note", {"number": 2})
            jobs.put("note", {"number": 3})
            await until(lambda: started.ids == [2, 3])
            slow.commit()
        await until(lambda: started.ids == [2, 3, 1])


async def test_a_late_commit_whose_hint_is_lost_is_found_by_discovery(
    database_url: str, jobs: Jobs, started: Started
) -> None:
    async with working(database_url, handlers(note=started()), poll_interval=0.3):
        with psycopg.connect(database_url) as slow:
            slow.execute(
                "SELECT jobq.enqueue(kind => 'note', payload => '{\"number\": 1}', notify => false)"
            )
            jobs.put("note", {"number": 2})
            await until(lambda: started.ids == [2])
            slow.commit()
        await until(lambda: started.ids == [2, 1])


def test_a_late_hint_of_a_batch_does_not_make_its_lane_look_empty(
    database_url: str, jobs: Jobs
) -> None:
    """Forced: all rows of the batch are due at once, and its hint comes after the first claim of them."""
    jobs.put_many(12, "note", notify=False)
    jobs.put_many(10, "note", notify=False)
    lane = Lane("default", "default", 0)
    table = LaneTable(Clock(), None)
    table.use_floors = True
    settings = ClaimSettings("w", 60.0, 10.0, 5, 60.0)

    def claim(most: int) -> list[ClaimedJob]:
        plan = [(lane.tenant, most)]
        call = RunStore(Statements("jobq")).claim(most, most, table.shares(plan), settings)
        found = run_sync(jobs._plain, call)
        table.answered(plan, found, most, 0.0)
        table.landed()
        return found.jobs

    table.discovered([LaneHead(lane, BEGINNING, 1, True)], 1)
    due = claim(4)[0].run_at
    table.hear(LanesReady({token(lane): (due, due)}))
    assert len(claim(16)) == 16
    assert table.clock.anyone_ready, "two more wait"
    assert len(claim(16)) == 2


async def test_one_slow_answer_does_not_keep_discovery_from_looking(database_url: str) -> None:
    """As after an outage, when the connection is made anew and hints were lost. Slow ones in a row are throttled."""
    session = Session(database_url, "jobq test", lost=lambda error: None, found=lambda: None)
    discovery = Discovery(session, UpkeepStore(Statements("jobq")), make_pools(None, 1, 0))

    async def walk(*, slow: bool) -> float:
        discovery.poll()
        await until(lambda: time.monotonic() >= discovery.next_at)
        busy = Call("busy", b"SELECT pg_sleep(0.2)", {}, list)
        others = [session.run(busy)] if slow else []
        await asyncio.gather(*others, discovery.step())
        discovery.poll()
        return discovery.next_at - time.monotonic()

    await session.connection()
    await walk(slow=False)
    assert await walk(slow=True) < 1
    assert await walk(slow=True) > 2, "a twentieth of the time"
    await session.close()


@pytest.mark.case("B111")
async def test_a_job_of_an_open_transaction_starts_when_it_commits(
    database_url: str, jobs: Jobs, started: Started
) -> None:
    async with working(
        database_url, handlers(note=started()), poll_interval=NEVER, lease_duration=NEVER
    ) as worker:
        with psycopg.connect(database_url) as caller:
            caller.execute("SELECT jobq.enqueue(kind => 'note', payload => '{\"number\": 1}')")
            jobs.wake()
            await until(lambda: not worker.pools[0].table.must_look)
            assert started.ids == []
            caller.commit()
        await until(lambda: started.ids == [1])


async def test_a_rolled_back_claim_of_a_rival_is_found_again(
    database_url: str, jobs: Jobs, started: Started
) -> None:
    """A rival locks the first job, this worker claims past it, the rival rolls back: no hint tells of that."""
    ids = [jobs.put("note", {"number": number}, notify=False) for number in (1, 2)]
    with psycopg.connect(database_url) as rival:
        rival.execute("SELECT 1 FROM jobq.job WHERE id = %s FOR UPDATE", (ids[0],))
        async with working(database_url, handlers(note=started()), poll_interval=0.3):
            await until(lambda: started.ids == [2])
            rival.rollback()
            await until(lambda: started.ids == [2, 1])


@pytest.mark.case("B79")
async def test_a_row_that_another_transaction_refers_to_is_claimed_all_the_same(
    database_url: str, jobs: Jobs, started: Started
) -> None:
    jobs.conn.execute("CREATE TABLE orders (job_id bigint REFERENCES jobq.job (id))")
    id_ = jobs.put("note", {"number": 1}, notify=False)
    with psycopg.connect(database_url) as caller:
        caller.execute("INSERT INTO orders VALUES (%s)", (id_,))
        async with working(database_url, handlers(note=started())):
            await until(lambda: started.ids == [1])
            caller.rollback()
            await jobs.reach(id_, "DONE")


async def test_delayed_jobs_start_when_due_though_the_poll_is_far_away(
    database_url: str, jobs: Jobs, started: Started
) -> None:
    async with working(
        database_url, handlers(note=started()), poll_interval=NEVER, lease_duration=NEVER
    ):
        id_ = jobs.put("note", {"number": 1}, delay=0.5, notify=False)
        due = jobs[id_]["run_at"]
        jobs.wake(f"d {round(due.timestamp() * 1e6)}")
        job = await jobs.reach(id_, "DONE")
        assert timedelta(0) <= job["started_at"] - due < timedelta(seconds=5)


async def test_a_retry_is_promoted_when_due_though_the_poll_is_far_away(
    database_url: str, jobs: Jobs
) -> None:
    attempts = 0

    async def flaky() -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 4:
            raise ValueError

    async with working(
        database_url, handlers(flaky=flaky), poll_interval=NEVER, lease_duration=NEVER
    ):
        await jobs.reach(jobs.put("flaky"), "DONE")
    assert attempts == 4


async def test_express_slots_are_filled_at_once_after_the_last_slot_of_all(
    database_url: str, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobq.engine.dispatcher.FIRST_POLL", NEVER)
    leave = asyncio.Event()

    async def work() -> None:
        await leave.wait()

    async with working(
        database_url, handlers(work=work), concurrency=1, express_slots=1, poll_interval=NEVER,
        lease_duration=NEVER,
    ) as worker:  # fmt: skip
        await until(lambda: worker.dispatcher._poll >= 0.2)
        worker.dispatcher._poll_at = time.monotonic() + NEVER
        for tenant in ("a", "b"):
            jobs.put("work", tenant=tenant, notify=False)
        jobs.wake()
        await until(lambda: worker.running == 2, patience=5)
        leave.set()


@pytest.mark.case("B94")
async def test_a_reclaimed_job_of_high_priority_is_next(database_url: str, jobs: Jobs) -> None:
    order: list[int] = []

    async def note(number: int) -> None:
        order.append(number)
        await asyncio.sleep(0.005)

    jobs.conn.execute(
        "INSERT INTO jobq.job (kind, payload, priority, status, attempts, max_attempts, lease, lease_until, worker)"
        " VALUES ('note', '{\"number\": 1000}', 10, 'RUNNING', 1, 5, 1, now() + interval '0.3 s', 'gone')"
    )
    for number in range(300):
        jobs.put("note", {"number": number}, notify=False)
    async with working(database_url, handlers(note=note), concurrency=1, lease_duration=1):
        await until(lambda: 1000 in order)
        at = order.index(1000)
        row = jobs.conn.execute("SELECT ready_at FROM jobq.jobs WHERE priority = 10").fetchone()
        assert row is not None
    ahead = jobs.conn.execute(
        "SELECT count(*) AS n FROM jobq.jobs WHERE started_at > %s AND priority = 0 AND (payload ->> 'number')::int = ANY (%s)",
        (row["ready_at"], order[:at]),
    ).fetchone()
    assert ahead is not None
    assert ahead["n"] <= 20, "at most what one claim had already taken"


async def test_what_travels_as_a_hint_holds_no_names_of_tenants(
    database_url: str, jobs: Jobs
) -> None:
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute(f'LISTEN "{Statements("jobq").channel}"')
        jobs.conn.execute(
            "SELECT jobq.enqueue(kind => 'secret.kind', tenant => 'secret-tenant', payload => '{\"secret\": 1}')"
        )
        (notify,) = list(conn.notifies(timeout=10, stop_after=1))
    assert "secret" not in notify.payload
