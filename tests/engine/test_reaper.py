"""The reaper: it gives back what dead workers held, and takes nothing from live ones."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import Any

import psycopg
import pytest
from tests.engine.support import Jobs, handlers, until, working

from jobq.engine.reaper import Reaper
from jobq.engine.session import Session
from jobq.model import Claim
from jobq.sql import Statements
from jobq.store import RunStore, UpkeepStore

LEASE = 60.0


class Hands:
    """A reaper's clock that runs, and can be moved."""

    def __init__(self) -> None:
        self._moved = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self._moved

    def move(self, seconds: float) -> None:
        """Let seconds pass."""
        self._moved += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Hands:
    """The clock of every reaper; that the database's does not move with it is no jump."""
    hands = Hands()
    monkeypatch.setattr("jobq.engine.reaper.time", hands)
    monkeypatch.setattr("jobq.engine.reaper.MOST_DRIFT", float("inf"))
    return hands


class Rig:
    """A reaper on a session of its own, and a job whose lease ended."""

    def __init__(self, url: str, jobs: Jobs) -> None:
        self.session = Session(url, "jobq test", lost=lambda error: None, found=lambda: None)
        self.upkeep = UpkeepStore(Statements("jobq"))
        self.found: list[int] = []
        self.jobs = jobs

    def reaper(self, lease: float = 0.0) -> Reaper:
        return Reaper(
            self.session,
            self.upkeep,
            5.0,
            lease,
            8192,
            lambda jobs: self.found.extend(job.id for job in jobs),
        )

    def expired(self, count: int = 1) -> list[int]:
        rows = self.jobs.conn.execute(
            "INSERT INTO jobq.job (kind, status, attempts, max_attempts, lease, lease_until, worker)"
            " SELECT 'k', 'RUNNING', 1, 5, n, now() - interval '1 minute', 'gone' FROM generate_series(1, %s) n RETURNING id",
            (count,),
        )
        return [row["id"] for row in rows]


@pytest.fixture
async def rig(database_url: str, jobs: Jobs) -> Any:
    made = Rig(database_url, jobs)
    yield made
    await made.session.close()


async def test_an_expired_lease_is_reclaimed(rig: Rig) -> None:
    (id_,) = rig.expired()
    await rig.reaper().step()
    assert rig.found == [id_]
    assert rig.jobs[id_]["status"] == "QUEUED"


async def test_after_its_own_reconnect_the_reaper_waits_one_lease(rig: Rig, jobs: Jobs) -> None:
    reaper = rig.reaper(lease=0.0)
    await reaper.step()
    reaper.lease_seconds = LEASE
    rig.jobs.conn.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'jobq test'"
    )
    with pytest.raises(psycopg.OperationalError):
        await reaper.step()
    rig.expired()
    monotonic_uptime(reaper)
    assert 0 < await reaper.step() <= 5.0
    assert rig.found == []


async def test_a_server_that_has_just_started_has_no_lease_judged(rig: Rig) -> None:
    rig.expired()
    await rig.reaper(lease=10**9).step()
    assert rig.found == []


async def test_a_clock_jump_reclaims_nothing_for_one_lease(rig: Rig) -> None:
    reaper = rig.reaper(lease=0.0)
    await reaper.step()
    assert reaper._offset is not None
    rig.expired()
    reaper._offset -= 3600
    reaper.lease_seconds = 30.0
    monotonic_uptime(reaper)
    await reaper.step()
    assert rig.found == []


async def test_a_table_that_was_locked_longer_than_a_lease_has_no_lease_judged_at_once(
    rig: Rig, database_url: str, clock: Hands
) -> None:
    """Owners wait in the same line as the reaper and are to extend their leases first."""
    reaper = proven(rig, clock)
    (id_,) = rig.expired()
    with psycopg.connect(database_url) as conn:
        conn.execute("LOCK TABLE jobq.job IN SHARE ROW EXCLUSIVE MODE")
        passing = asyncio.create_task(reaper.step())
        await until(lambda: waits(rig.jobs, "jobq test"))
        clock.move(LEASE)
    await passing
    assert rig.found == []
    clock.move(1.0)
    await reaper.step()  # in time for the end of the one before, but that began long ago
    clock.move(0.4 * LEASE)
    await reaper.step()
    assert rig.found == [], "half a lease has not passed since"
    clock.move(0.2 * LEASE)
    await reaper.step()
    assert rig.found == [id_]


async def test_a_lock_timeout_says_once_that_no_lease_is_judged(
    rig: Rig, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig.session._settings["lock_timeout"] = "20ms"
    rig.expired()
    reaper = rig.reaper()
    with psycopg.connect(database_url) as conn:
        conn.execute("LOCK TABLE jobq.job IN ACCESS EXCLUSIVE MODE")
        for _ in range(3):
            await reaper.step()
    assert [r.getMessage() for r in caplog.records].count(
        "the table of jobs is locked; leases are not judged"
    ) == 1
    assert rig.found == []
    await reaper.step()
    assert rig.found


async def test_a_row_that_was_locked_is_left_to_its_owner_for_a_while(
    rig: Rig, database_url: str, clock: Hands
) -> None:
    reaper = proven(rig, clock)
    locked, free = rig.expired(2)
    with psycopg.connect(database_url) as conn:
        conn.execute("SELECT FROM jobq.job WHERE id = %s FOR KEY SHARE", (locked,))
        await reaper.step()
    for _ in range(2):
        assert rig.found == [free]
        clock.move(0.2 * LEASE)
        await reaper.step()
    clock.move(0.2 * LEASE)
    await reaper.step()
    assert rig.found == [free, locked]


async def test_a_server_that_stood_still_has_no_lease_judged_at_once(
    rig: Rig, clock: Hands
) -> None:
    """The gap between two passes shows it: neither was heartbeats' turn."""
    reaper = proven(rig, clock)
    (id_,) = rig.expired()
    clock.move(0.6 * LEASE)
    await reaper.step()
    assert rig.found == []
    for _ in range(2):
        clock.move(0.3 * LEASE)
        await reaper.step()
    assert rig.found == [id_]


async def test_passes_in_time_keep_no_lease_from_being_judged(rig: Rig, clock: Hands) -> None:
    reaper = proven(rig, clock)
    (id_,) = rig.expired()
    clock.move(0.4 * LEASE)
    await reaper.step()
    assert rig.found == [id_]


async def test_a_clock_that_was_set_back_does_not_prolong_leases(rig: Rig) -> None:
    """What was claimed an hour ahead of the present clock ends one lease from now."""
    (id_,) = rig.expired()
    rig.jobs.conn.execute(
        "UPDATE jobq.job SET lease_until = now() + interval '1 hour' WHERE id = %s", (id_,)
    )
    reaper = rig.reaper()
    await reaper.step()
    assert rig.found == []
    await reaper.step()
    assert rig.found == [id_]


async def test_a_longer_lease_of_a_live_worker_is_not_shortened(
    database_url: str, rig: Rig
) -> None:
    async with working(database_url, handlers(), lease_duration=600):
        await until(lambda: rig.jobs.conn.execute("SELECT FROM jobq.worker").fetchone() is not None)
        (id_,) = rig.expired()
        rig.jobs.conn.execute(
            "UPDATE jobq.job SET lease_until = now() + interval '10 min' WHERE id = %s", (id_,)
        )
        await rig.reaper().step()
        await rig.reaper().step()
        assert rig.found == []


async def test_an_extension_counts_from_the_present_clock(rig: Rig, jobs: Jobs) -> None:
    (id_,) = rig.expired()
    jobs.conn.execute(
        "UPDATE jobq.job SET lease = 5, lease_until = now() + interval '1 hour' WHERE id = %s",
        (id_,),
    )
    await rig.session.run(RunStore(Statements("jobq")).extend([Claim(id_, 5)], LEASE))
    ahead = "SELECT lease_until <= now() + interval '1 min' AS ok FROM jobq.job WHERE id = %s"
    assert jobs.conn.execute(ahead, (id_,)).fetchone() == {"ok": True}


def proven(rig: Rig, clock: Hands) -> Reaper:
    """A reaper that may judge: leases could have been extended for long."""
    reaper = rig.reaper(lease=LEASE)
    monotonic_uptime(reaper)
    reaper._extendable_since = clock.monotonic() - 10 * LEASE
    reaper._passed = clock.monotonic()
    return reaper


def waits(jobs: Jobs, name: str) -> bool:
    """Whether a session waits for a lock."""
    found = jobs.conn.execute(
        "SELECT FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
        " AND datname = current_database()",
        (name,),
    )
    return found.fetchone() is not None


@pytest.mark.case("B13")
async def test_one_row_that_cannot_be_reclaimed_does_not_keep_the_others(rig: Rig) -> None:
    ids = rig.expired(100)
    rig.jobs.conn.execute(
        f"""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
        CREATE TRIGGER refuse BEFORE UPDATE OR DELETE ON jobq.job FOR EACH ROW WHEN (OLD.id = {ids[49]}) EXECUTE FUNCTION refuse()
        """
    )
    reaper = rig.reaper()
    await reaper.step()
    await reaper.step()
    assert rig.jobs.statuses(ids) == {"QUEUED": 99, "RUNNING": 1}
    assert rig.jobs[ids[49]]["status"] == "RUNNING"


@pytest.mark.case("B12")
async def test_a_reclaimed_job_keeps_its_unique_key_and_meets_no_sibling(rig: Rig) -> None:
    id_ = rig.jobs.put("k", unique_key="only")
    rig.jobs.conn.execute(
        "UPDATE jobq.job SET status = 'RUNNING', attempts = 1, lease = 7, lease_until = now() - interval '1 s' WHERE id = %s",
        (id_,),
    )
    assert rig.jobs.put("k", unique_key="only") == id_, "while it runs there is no second one"
    others = rig.expired(3)
    await rig.reaper().step()
    assert rig.jobs.statuses([id_, *others]) == {"QUEUED": 4}
    assert rig.jobs.put("k", unique_key="only") == id_


def monotonic_uptime(reaper: Reaper) -> None:
    """Make the reaper believe the server is up for long, so that only the rule under test can hold it."""
    check = reaper.upkeep.reap_check

    def patched(floor: Any, lease_seconds: float) -> Any:
        call = check(floor, lease_seconds)

        def read(rows: Any) -> Any:
            found = call.read(rows)
            return dataclasses.replace(found, uptime=10.0**9)

        return type(call)(call.name, call.statement, call.params, read)

    reaper.upkeep.reap_check = patched  # type: ignore[method-assign]
