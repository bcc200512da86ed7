"""Every transition into QUEUED announces its lane and due times; messages stay small whatever they are about."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from psycopg import sql
from tests.store.support import (
    KEEP_PAYLOAD,
    LEASE,
    STORE,
    Rivals,
    claim,
    complete,
    fail,
    one,
    put,
)

from jobq import wakeup
from jobq.db import Conn
from jobq.model import Claim, Lane
from jobq.store import BEGINNING, Call, run_sync

LANES = [Lane("mail", "a", 5), Lane("mail", "b", -5)]
EXPIRED = {"lease_until": sql.SQL("now() - interval '1 second'")}


@pytest.fixture
def listener(rivals: Rivals) -> Conn:
    conn = rivals.session()
    conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(STORE.statements.channel)))
    return conn


def _heard(listener: Conn) -> list[str]:
    """All messages up to now: one of our own comes after them, for a channel keeps the order of commits."""
    listener.execute("SELECT pg_notify(%s, 'end')", (STORE.statements.channel,))
    heard = [each.payload for each in listener.notifies(timeout=10, stop_after=1)]
    while heard[-1] != "end":
        heard += [each.payload for each in listener.notifies(timeout=10, stop_after=1)]
    assert all(len(message) < 8000 for message in heard)
    return heard[:-1]


def _run_ats(conn: Conn, lane: Lane) -> tuple[datetime, datetime]:
    first, last = one(
        conn, "SELECT min(run_at), max(run_at) FROM jobq.job WHERE tenant = %s", (lane.tenant,)
    )
    return first, last


def _fill(conn: Conn, kind: str, **columns: Any) -> list[int]:
    """Three jobs in each of two lanes, due at different times."""
    return [
        put(
            conn, kind, queue=lane.queue, tenant=lane.tenant, priority=lane.priority,
            run_at=sql.SQL("now() - interval '{} minutes'").format(sql.Literal(n + 1)), **columns,
        )
        for lane in LANES for n in range(3)
    ]  # fmt: skip


@pytest.mark.parametrize("operation", ["promote", "reclaim", "release", "retry", "revive"])
def test_what_comes_into_the_queue_is_announced_by_lane_with_its_due_times(
    rivals: Rivals, listener: Conn, operation: str
) -> None:
    conn = rivals.session()
    start = {"promote": "SCHEDULED", "retry": "SCHEDULED", "revive": "DEAD"}.get(
        operation, "RUNNING"
    )
    ids = _fill(conn, start, **(EXPIRED if operation == "reclaim" else {}))
    calls: dict[str, list[Call[Any]]] = {
        "promote": [STORE.upkeep.promote(BEGINNING, 100)],
        "reclaim": [STORE.upkeep.reclaim(BEGINNING, 100, KEEP_PAYLOAD)],
        "release": [STORE.runs.release([Claim(id_, LEASE) for id_ in ids], KEEP_PAYLOAD)],
        "retry": [STORE.jobs.retry([id_]) for id_ in ids],
        "revive": [STORE.jobs.retry([id_]) for id_ in ids],
    }
    for call in calls[operation]:
        run_sync(conn, call)
    spans: dict[str, tuple[datetime, datetime]] = {}
    for message in _heard(listener):
        parsed = wakeup.parse(message)
        assert isinstance(parsed, wakeup.LanesReady)
        for name, (first, last) in parsed.spans.items():
            known = spans.get(name, (first, last))
            spans[name] = (min(known[0], first), max(known[1], last))
    assert spans == {wakeup.token(lane): _run_ats(conn, lane) for lane in LANES}


def test_what_does_not_come_into_the_queue_is_not_announced(rivals: Rivals, listener: Conn) -> None:
    conn = rivals.session()
    ids = [Claim(id_, LEASE) for id_ in _fill(conn, "RUNNING")]
    run_sync(conn, complete(*ids[:3]))
    run_sync(conn, fail(*ids[3:]))
    run_sync(conn, STORE.upkeep.promote(BEGINNING, 100))
    run_sync(conn, STORE.upkeep.reclaim(BEGINNING, 100, KEEP_PAYLOAD))
    run_sync(conn, STORE.runs.release(ids, KEEP_PAYLOAD))
    run_sync(conn, STORE.jobs.retry([ids[0].id]))
    put(conn, "QUEUED")
    run_sync(conn, claim(LEASE))
    run_sync(conn, STORE.jobs.cancel([ids[5].id], KEEP_PAYLOAD))
    assert _heard(listener) == []


@pytest.mark.case("B38")
def test_more_lanes_than_a_message_holds_are_announced_as_everywhere(
    rivals: Rivals, listener: Conn
) -> None:
    conn = rivals.session()
    conn.execute(
        "INSERT INTO jobq.job (kind, status, tenant, run_at)"
        " SELECT 'k', 'SCHEDULED', 't' || g, now() FROM generate_series(1, 1000) g"
    )
    assert run_sync(conn, STORE.upkeep.promote(BEGINNING, 100)).moved == 100
    assert run_sync(conn, STORE.upkeep.promote(BEGINNING, 900)).moved == 900
    few, many = _heard(listener)
    parsed = wakeup.parse(few)
    assert isinstance(parsed, wakeup.LanesReady)
    assert len(parsed.spans) == 100
    assert wakeup.parse(many) == wakeup.LookEverywhere()


@pytest.mark.case("B38")
@pytest.mark.parametrize(("count", "named"), [(300, True), (2000, False)])
def test_cancel_requests_are_named_while_a_message_holds_them(
    rivals: Rivals, listener: Conn, count: int, named: bool
) -> None:
    conn = rivals.session()
    conn.execute("ALTER SEQUENCE jobq.job_id_seq RESTART WITH 9000000000000000000")
    rows = conn.execute(
        "INSERT INTO jobq.job (kind, status, lease, lease_until) SELECT 'k', 'RUNNING', 1, now()"
        " FROM generate_series(1, %s) RETURNING id",
        (count,),
    ).fetchall()
    ids = [id_ for (id_,) in rows]
    assert len(run_sync(conn, STORE.jobs.cancel(ids, KEEP_PAYLOAD))) == count
    (message,) = _heard(listener)
    assert wakeup.parse(message) == wakeup.CancelRequested(frozenset(ids) if named else None)


@pytest.mark.case("B38")
def test_the_sql_function_wakes_with_the_lane_alone_however_large_the_job(
    rivals: Rivals, listener: Conn
) -> None:
    conn = rivals.session()
    name = "n" * 128
    conn.execute(
        "SELECT jobq.enqueue(kind => %(name)s, queue => %(name)s, tenant => %(name)s, priority => -100,"
        " payload => to_jsonb(repeat('x', 1000000)), idempotency_key => repeat('k', 255))",
        {"name": name},
    )
    (message,) = _heard(listener)
    parsed = wakeup.parse(message)
    assert isinstance(parsed, wakeup.LanesReady)
    assert list(parsed.spans) == [wakeup.token(Lane(name, name, -100))]
    assert len(message) < 100


def test_a_job_of_later_is_announced_by_its_due_time_and_silence_can_be_asked_for(
    rivals: Rivals, listener: Conn
) -> None:
    conn = rivals.session()
    conn.execute("SELECT jobq.enqueue(kind => 'k', notify => false)")
    conn.execute("SELECT jobq.enqueue(kind => 'k', delay => interval '1 hour')")
    (message,) = _heard(listener)
    assert wakeup.parse(message) == wakeup.DueAt(one(conn, "SELECT max(run_at) FROM jobq.job")[0])


@pytest.mark.case("B111")
def test_a_wake_up_of_the_sql_function_comes_with_its_transaction(
    rivals: Rivals, listener: Conn
) -> None:
    conn = rivals.session()
    with conn.transaction():
        conn.execute("SELECT jobq.enqueue(kind => 'k')")
        assert _heard(listener) == []
    assert len(_heard(listener)) == 1


@pytest.mark.parametrize(
    "lane", [Lane("default", "default", 0), Lane("größe", "t\\'\"", -100), Lane("", "", 32767)]
)
def test_python_and_sql_give_a_lane_the_same_token(undone: Conn, lane: Lane) -> None:
    assert one(undone, "SELECT jobq.lane_token(%s, %s, %s::smallint)", tuple(lane))[
        0
    ] == wakeup.token(lane)
