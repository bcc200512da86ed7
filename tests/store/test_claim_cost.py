"""What lies at a lane's head and may not be claimed costs a claim nothing: dead index entries, ineligible rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest
from tests.store.plans import Plan, explain_prepared, warm
from tests.store.support import KEEP_PAYLOAD, LANE, LEASE, STORE, claim, client, engine, one

from jobq.db import Conn
from jobq.store import BEGINNING, Call, Span

MANY = 100_000
#: Pages and seconds that ten jobs may cost more than in a calm lane: each of some indexes is a level or two deeper.
MORE_BUFFERS, MORE_SECONDS = 80, 0.001

INELIGIBLE = f"""
INSERT INTO jobq.job (kind, status, held_by, tenant, run_at, lease, lease_until)
SELECT CASE g % 5 WHEN 4 THEN 'strange' ELSE 'k' END,
       CASE g % 5 WHEN 1 THEN 'RUNNING' WHEN 2 THEN 'SCHEDULED' ELSE 'QUEUED' END,
       CASE WHEN g % 5 IN (3, 4) THEN 'kind:k' END, CASE WHEN g % 5 = 0 THEN 'another' ELSE 'default' END,
       now() - interval '1 day' + g * interval '1 us',
       CASE WHEN g % 5 = 1 THEN 1 END, CASE WHEN g % 5 = 1 THEN now() + interval '1 minute' END
FROM generate_series(1, {MANY}) g
"""
#: Rows that a statement once found, by status; their index entries outlive them.
WERE = {
    "QUEUED": f"""
INSERT INTO jobq.job (kind, run_at) SELECT 'k', now() - interval '1 hour' + g * interval '1 us'
FROM generate_series(1, {MANY}) g""",
    "SCHEDULED": f"""
INSERT INTO jobq.job (kind, status, run_at) SELECT 'k', 'SCHEDULED', now() - interval '1 hour' + g * interval '1 us'
FROM generate_series(1, {MANY}) g""",
    "RUNNING": f"""
INSERT INTO jobq.job (kind, status, lease, lease_until)
SELECT 'k', 'RUNNING', {LEASE}, now() - interval '1 hour' + g * interval '1 us'
FROM generate_series(1, {MANY}) g""",
}
#: Ten more, later than those.
ARE = {
    "QUEUED": "INSERT INTO jobq.job (kind, run_at) SELECT 'k', now() - interval '1 minute' FROM generate_series(1, 10)",
    "SCHEDULED": "INSERT INTO jobq.job (kind, status, run_at)"
    " SELECT 'k', 'SCHEDULED', now() - interval '1 minute' FROM generate_series(1, 10)",
    "RUNNING": "INSERT INTO jobq.job (kind, status, lease, lease_until)"
    f" SELECT 'k', 'RUNNING', {LEASE}, now() - interval '1 minute' FROM generate_series(1, 10)",
}
FLOORED: dict[str, tuple[str, Callable[[datetime], Call[Any]]]] = {
    "claim": ("QUEUED", lambda floor: claim(LEASE, 10, spans=[Span(LANE, floor, 0)])),
    "promote": ("SCHEDULED", lambda floor: STORE.upkeep.promote(floor, 10)),
    "expired": ("RUNNING", lambda floor: STORE.upkeep.expired(floor, 10)),
    "reap_check": ("RUNNING", lambda floor: STORE.upkeep.reap_check(floor, 60)),
    "reclaim": ("RUNNING", lambda floor: STORE.upkeep.reclaim(floor, 10, KEEP_PAYLOAD)),
}


@contextmanager
def _pinned(url: str) -> Iterator[None]:
    """A transaction somewhere that keeps every dead row from being removed."""
    with client(url) as conn, conn.transaction():
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        conn.execute("SELECT count(*) FROM jobq.job")
        yield


def _least(conn: Conn, call: Call[Any]) -> tuple[Plan, float]:
    """A run, and the seconds of the quickest of some."""
    plans = [explain_prepared(conn, call) for _ in range(7)]
    return plans[-1], min(plan.seconds for plan in plans)


def _quiet(conn: Conn) -> None:
    conn.execute("ALTER TABLE jobq.job SET (autovacuum_enabled = false)")


@pytest.mark.case("B77")
@pytest.mark.parametrize("name", FLOORED)
def test_a_floor_spares_the_walk_over_100_000_dead_entries(
    database_url: str, conn: Conn, name: str
) -> None:
    kind, make = FLOORED[name]
    _quiet(conn)
    warm(conn, make(BEGINNING))
    conn.execute(ARE[kind])
    calm, calm_seconds = _least(conn, make(BEGINNING))
    conn.execute("DELETE FROM jobq.job")
    conn.execute(WERE[kind])
    floor = one(
        conn,
        "SELECT max(CASE status WHEN 'RUNNING' THEN lease_until ELSE run_at END) FROM jobq.job",
    )[0]
    with _pinned(database_url):
        conn.execute("DELETE FROM jobq.job")
        conn.execute(ARE[kind])
        whole = explain_prepared(conn, make(BEGINNING))
        floored, seconds = _least(conn, make(floor))
    assert whole.buffers > calm.buffers + 500, "the dead entries are there"
    assert floored.buffers <= calm.buffers + MORE_BUFFERS, f"{calm}\n{floored}"
    assert seconds <= calm_seconds + MORE_SECONDS


@pytest.mark.case("B80")
def test_100_000_rows_that_may_not_be_claimed_cost_a_claim_nothing(
    database_url: str, conn: Conn
) -> None:
    _quiet(conn)
    call = claim(LEASE, 10)
    warm(conn, call)
    conn.execute(ARE["QUEUED"])
    calm, calm_seconds = _least(conn, call)
    conn.execute(INELIGIBLE)
    with engine(database_url) as late:
        warm(late, call)
        for session in (conn, late):
            crowded, seconds = _least(session, call)
            assert crowded.buffers <= calm.buffers + MORE_BUFFERS, f"{calm}\n{crowded}"
            assert crowded.rows == calm.rows
            assert seconds <= calm_seconds + MORE_SECONDS


@pytest.mark.case("B80")
def test_jobs_of_tomorrow_at_the_highest_priority_cost_a_claim_nothing(conn: Conn) -> None:
    _quiet(conn)
    call = claim(LEASE, 10)
    warm(conn, call)
    conn.execute(ARE["QUEUED"])
    calm, _ = _least(conn, call)
    conn.execute(
        "INSERT INTO jobq.job (kind, priority, run_at) SELECT 'k', p, now() + interval '1 day' + g * interval '1 us'"
        " FROM generate_series(1, 25000) g, unnest(ARRAY[0, 100]) p"
    )
    crowded, _ = _least(conn, call)
    assert crowded.buffers <= calm.buffers + MORE_BUFFERS, f"{calm}\n{crowded}"
