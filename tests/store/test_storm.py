"""Rivals in no order at all: leases of milliseconds, everybody at once, and a checker that saw every change."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from tests.store import audit
from tests.store.support import KEEP_PAYLOAD, LANE, SETTINGS, STORE, complete, engine, fail, one

from jobq.db import Conn
from jobq.model import Claim, Verdict
from jobq.store import BEGINNING, Share, Span, run_sync

JOBS, ACTORS, STEPS = 40, 5, 400
#: Leases last 5 ms, so that reaper and owners meet.
QUICK = replace(SETTINGS, lease_seconds=0.005)


class Actor:
    """A worker, reaper and operator in one, who forgets nothing and writes for every claim it ever held."""

    def __init__(self, conn: Conn, number: int) -> None:
        self.conn = conn
        self.random = random.Random(number)
        self.claims: list[Claim] = []
        self.completed: list[Claim] = []

    def act(self) -> None:
        """One step, drawn at random."""
        steps: list[Callable[[], object]] = [
            self.claim, self.claim, self.complete, self.complete, self.fail, self.release, self.extend, self.reclaim,
            self.promote, self.cancel, self.retry,
        ]  # fmt: skip
        self.random.choice(steps)()

    def claim(self) -> None:
        lease = self.random.getrandbits(62)
        call = STORE.runs.claim(lease, 5, [Share(5, [Span(LANE)])], QUICK)
        self.claims += [found.claim for found in run_sync(self.conn, call).jobs]

    def complete(self) -> None:
        self.completed += run_sync(self.conn, complete(*self._some()))

    def fail(self) -> object:
        verdict = self.random.choice(
            [Verdict.RETRY, Verdict.RETRY, Verdict.PERMANENT, Verdict.STOPPED]
        )
        return run_sync(self.conn, fail(*self._some(), verdict=verdict, delay=0.001))

    def release(self) -> object:
        return run_sync(self.conn, STORE.runs.release(self._some(), KEEP_PAYLOAD))

    def extend(self) -> object:
        return run_sync(self.conn, STORE.runs.extend(self._some(), 0.005))

    def reclaim(self) -> object:
        return run_sync(self.conn, STORE.upkeep.reclaim(BEGINNING, 10, KEEP_PAYLOAD))

    def promote(self) -> object:
        return run_sync(self.conn, STORE.upkeep.promote(BEGINNING, 10))

    def cancel(self) -> object:
        ids = self.random.sample(range(1, JOBS + 1), 2)
        return run_sync(self.conn, STORE.jobs.cancel(ids, KEEP_PAYLOAD))

    def retry(self) -> object:
        return run_sync(self.conn, STORE.jobs.retry([self.random.randint(1, JOBS)], force=True))

    def _some(self) -> list[Claim]:
        return self.random.sample(self.claims, min(len(self.claims), 6))


@pytest.mark.case("B19")
@pytest.mark.case("B20")
@pytest.mark.case("B99")
def test_a_storm_of_rivals_leaves_every_job_once_and_every_end_in_place(
    database_url: str, conn: Conn
) -> None:
    audit.install(conn)
    conn.execute("ALTER SEQUENCE jobq.job_id_seq RESTART WITH 1")  # the actors know the ids
    conn.execute(
        "INSERT INTO jobq.job (kind, max_attempts) SELECT 'k', 3 FROM generate_series(1, %s)",
        (JOBS,),
    )

    def play(number: int) -> list[Claim]:
        with engine(database_url) as session:
            actor = Actor(session, number)
            for _ in range(STEPS):
                actor.act()
            return actor.completed

    with ThreadPoolExecutor(ACTORS) as threads:
        completed = [claim for found in threads.map(play, range(ACTORS)) for claim in found]

    assert audit.check(conn) > 0, "some were taken up again"
    ids = conn.execute("SELECT id FROM jobq.jobs ORDER BY id").fetchall()
    assert [id_ for (id_,) in ids] == list(range(1, JOBS + 1))
    assert len(completed) == len(set(completed)), "one outcome a claim"
    done = conn.execute("SELECT id, lease FROM jobq.job_archive WHERE status = 'DONE'").fetchall()
    assert {Claim(*row) for row in done} == set(completed), "DONE is never changed again"
    assert one(
        conn, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    ) == (0,)
