"""Pauses, caps and rates of tenants, queues, kinds and keys hold in the claim, one by one and together."""

from __future__ import annotations

import pytest
from psycopg import sql
from tests.store.limited import (
    HOLDING,
    MAIL,
    SCOPES,
    everywhere,
    finish,
    held,
    ids,
    limit,
    queued,
    review,
    scope_of,
    serve,
    slots,
    start,
    take,
    tokens,
)
from tests.store.support import one, put, status

from jobq.db import Conn
from jobq.model import Lane
from jobq.store import run_sync


@pytest.fixture(autouse=True)
def _worker(undone: Conn) -> None:
    serve(undone)


def _keyless(which: str) -> dict[str, str | None]:
    """Columns for jobs that only this limit concerns."""
    return {} if which == "key" else {"concurrency_key": None}


@pytest.mark.parametrize("which", SCOPES)
def test_a_cap_starts_so_many_and_the_next_when_one_ends(undone: Conn, which: str) -> None:
    limit(undone, which, max_running=2)
    jobs = queued(undone, 5, **_keyless(which))
    claimed = run_sync(undone, take())
    assert ids(claimed.jobs) == jobs[:2]
    assert slots(undone, scope_of(which)) == set(jobs[:2])
    assert [(b.id, b.reason, b.scope, b.held) for b in claimed.blocked] == [
        (id_, f"{which}_cap", scope_of(which), which in HOLDING) for id_ in jobs[2:]
    ]
    assert held(undone) == (dict.fromkeys(jobs[2:], scope_of(which)) if which in HOLDING else {})
    assert start(undone) == []
    finish(undone, claimed.jobs[0])
    assert ids(start(undone)) == [jobs[2]]
    assert slots(undone, scope_of(which)) == {jobs[1], jobs[2]}


@pytest.mark.parametrize("which", SCOPES)
def test_what_is_paused_starts_nothing_until_it_is_resumed(undone: Conn, which: str) -> None:
    limit(undone, which, paused=True)
    jobs = queued(undone, 3, **_keyless(which))
    claimed = run_sync(undone, take())
    assert claimed.jobs == []
    assert {(b.reason, b.scope, b.held) for b in claimed.blocked} == {
        (f"{which}_paused", scope_of(which), which in HOLDING)
    }
    assert review(undone) == (0, None)
    limit(undone, which, paused=False)
    review(undone)
    assert ids(start(undone)) == (jobs[:1] if which == "key" else jobs)


def test_what_runs_when_it_is_paused_ends_and_starts_nothing_after_it(undone: Conn) -> None:
    limit(undone, "kind", max_running=1)
    queued(undone, 3, concurrency_key=None)
    (running,) = start(undone)
    limit(undone, "kind", paused=True)
    finish(undone, running)
    assert status(undone, running.id) == "DONE"
    assert start(undone) == []
    assert len(held(undone)) == 2


@pytest.mark.parametrize("which", SCOPES)
def test_a_rate_starts_its_burst_and_says_when_the_next_token_comes(
    undone: Conn, which: str
) -> None:
    limit(undone, which, rate=(2, 3600, 3))
    limit(undone, "key", max_running=10)
    jobs = queued(undone, 6, **_keyless(which))
    claimed = run_sync(undone, take())
    assert ids(claimed.jobs) == jobs[:3]
    assert {(b.reason, b.held) for b in claimed.blocked} == {(f"{which}_rate", which in HOLDING)}
    assert all(1700 < (b.retry_in or 0) < 1800 / 0.97 for b in claimed.blocked)
    _pass_time(undone, 1900)
    moved, next_in = review(undone)
    assert moved == (which in HOLDING)
    assert next_in is None or 1700 < next_in < 1800 / 0.97
    assert ids(start(undone)) == [jobs[3]]


def _pass_time(conn: Conn, seconds: float) -> None:
    conn.execute(
        "UPDATE jobq.rate_bucket SET filled_at = filled_at - make_interval(secs => %s)", (seconds,)
    )


@pytest.mark.parametrize("stopper", SCOPES[1:])
def test_a_job_that_passes_one_limit_but_not_another_takes_neither_slot_nor_token(
    undone: Conn, stopper: str
) -> None:
    before = SCOPES[: SCOPES.index(stopper)]
    for which in SCOPES:
        limit(undone, which, max_running=10, rate=(100, 3600, 50))
    limit(undone, stopper, max_running=1)
    jobs = queued(undone, 4)
    assert ids(start(undone)) == jobs[:1]
    for which in before:
        assert slots(undone, scope_of(which)) == {jobs[0]}
        assert 48.9 < tokens(undone, scope_of(which)) < 49.1
    limit(undone, stopper, max_running=10)
    review(undone)
    assert ids(start(undone)) == jobs[1:]
    for which in SCOPES:
        assert slots(undone, scope_of(which)) == set(jobs)
        assert 45.9 < tokens(undone, scope_of(which)) < 46.1


def test_a_token_is_not_taken_by_a_job_that_has_no_slot_and_the_other_way_round(
    undone: Conn,
) -> None:
    limit(undone, "kind", max_running=1, rate=(1, 3600, 5))
    limit(undone, "tenant", max_running=5, rate=(1, 3600, 1))
    jobs = queued(undone, 3, concurrency_key=None)
    (first,) = start(undone)
    finish(undone, first)
    assert start(undone) == [], "the tenant has no token"
    assert slots(undone, "tenant:acme") == slots(undone, "kind:send") == set()
    assert 3.9 < tokens(undone, "kind:send") < 4.1
    assert [status(undone, id_) for id_ in jobs] == ["DONE", "QUEUED", "QUEUED"]


def test_blocked_jobs_do_not_keep_others_of_their_lane_from_starting(undone: Conn) -> None:
    limit(undone, "kind", max_running=1)
    queued(undone, 5)
    free = queued(undone, 2, kind="other", concurrency_key="another")
    assert ids(start(undone))[1:] == free[:1]


def test_limits_of_one_scope_leave_names_of_another_alone(undone: Conn) -> None:
    """A tenant, a queue, a kind and a key may have one name."""
    limit(undone, "queue", "same", paused=True)
    (id_,) = queued(undone, tenant="same", kind="same", concurrency_key="same")
    assert ids(start(undone, Lane("mail", "same", 0))) == [id_]


def test_several_tenants_at_their_caps_are_told_each_and_others_start(undone: Conn) -> None:
    for tenant in ("a", "b"):
        limit(undone, "tenant", tenant, max_running=1)
    jobs = {
        tenant: queued(undone, 3, tenant=tenant, concurrency_key=None) for tenant in ("a", "b", "c")
    }
    claimed = run_sync(undone, take(*everywhere(undone)))
    assert set(ids(claimed.jobs)) == {jobs["a"][0], jobs["b"][0], *jobs["c"]}
    assert {b.scope for b in claimed.blocked} == {"tenant:a", "tenant:b"}


# --- limits that change -------------------------------------------------------------------------------


@pytest.mark.parametrize("which", SCOPES)
def test_a_cap_that_was_lowered_counts_what_runs_beyond_it(undone: Conn, which: str) -> None:
    limit(undone, which, max_running=5)
    queued(undone, 20, **_keyless(which))
    running = start(undone)
    assert len(running) == 5
    limit(undone, which, max_running=2)
    for left in (4, 3, 2):  # the lowest slots are freed, the others lie beyond the cap
        finish(undone, running.pop(0))
        review(undone)
        assert (left, ids(start(undone))) == (left, [])
        assert len(slots(undone, scope_of(which))) == left
    finish(undone, running.pop(0))
    assert len(start(undone)) == 1
    assert start(undone) == []


@pytest.mark.parametrize("which", SCOPES)
def test_a_cap_that_is_raised_lets_more_start(undone: Conn, which: str) -> None:
    limit(undone, which, max_running=1)
    jobs = queued(undone, 6, **_keyless(which))
    assert len(start(undone)) == 1
    limit(undone, which, max_running=4)
    review(undone)
    assert ids(start(undone)) == jobs[1:4]
    assert len(slots(undone, scope_of(which))) == 4


@pytest.mark.parametrize("which", SCOPES)
def test_a_cap_that_is_removed_lets_all_start_and_what_held_slots_frees_them(
    undone: Conn, which: str
) -> None:
    limit(undone, which, max_running=1)
    jobs = queued(undone, 4, **_keyless(which))
    (first,) = start(undone)
    limit(undone, which, max_running=None)
    review(undone)
    now = [] if which == "key" else jobs[1:]  # a key without a cap of its own has one of 1
    assert ids(start(undone)) == now
    finish(undone, first)
    assert first.id not in slots(undone, scope_of(which))


def test_a_rate_that_was_removed_and_set_again_owes_nothing(undone: Conn) -> None:
    limit(undone, "tenant", rate=(1, 3600, 2))
    queued(undone, 30, concurrency_key=None)
    assert len(start(undone)) == 2
    limit(undone, "tenant", rate=None)
    assert len(start(undone, free=20)) == 20
    assert -1 < tokens(undone, "tenant:acme") < 1


def test_a_limit_written_by_plain_sql_holds_as_well(undone: Conn) -> None:
    undone.execute(
        "INSERT INTO jobq.limiter (scope, name, max_running, rate_limit, rate_period, rate_burst, version)"
        " VALUES ('tenant', 'acme', 3, 10, 3600, 2, 1)"
    )
    jobs = queued(undone, 5, concurrency_key=None)
    assert ids(start(undone)) == jobs[:2]


def test_a_claim_knows_nothing_of_limits_and_obeys_all_the_same(undone: Conn) -> None:
    """A worker of before may not even read who is blocked; the database decides."""
    limit(undone, "queue", max_running=1)
    put(undone, "QUEUED", queue="mail", tenant="acme", payload=sql.SQL("'{}'"))
    put(undone, "QUEUED", queue="mail", tenant="other")
    started = start(undone, MAIL, Lane("mail", "other", 0))
    assert len(started) == 1
    assert one(undone, "SELECT count(*) FROM jobq.cap_slot WHERE scope = 'queue:mail'") == (1,)
