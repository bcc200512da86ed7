"""Claims, completions and reclaims that meet at a limit, in a forced order: nothing waits, overshoots or is left behind."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
from tests.store.limited import (
    HOLDING,
    SCOPES,
    everywhere,
    finish,
    held,
    ids,
    limit,
    queued,
    reclaim,
    review,
    scope_of,
    serve,
    slots,
    start,
    take,
)
from tests.store.support import PATIENCE, STORE, Rivals, complete, one

from jobq.db import Conn
from jobq.model import ClaimedJob, Lane
from jobq.store import NO_SLOT, Claimed, run_sync

#: One lane each, so that two claims meet at the limit and not at a job.
ONE, TWO = Lane("mail", "acme", 0), Lane("mail", "acme", 5)


@pytest.fixture
def pair(rivals: Rivals) -> tuple[Conn, Conn]:
    """Two workers' sessions."""
    first, second = rivals.session(), rivals.session()
    serve(first)
    return first, second


def _quick(rivals: Rivals, conn: Conn, step: Callable[[], Any]) -> Any:
    """What a step gives that must not wait for anybody."""
    future = rivals.start(step)
    assert not rivals.waits(conn, future)
    return future.result()


def _two_lanes(conn: Conn) -> tuple[int, int]:
    (low,) = queued(conn, 1)
    (high,) = queued(conn, 1, priority=5)
    return low, high


# --- claim and claim ------------------------------------------------------------------------------


@pytest.mark.parametrize("which", SCOPES)
def test_two_claims_at_a_cap_of_one_start_one_job(
    rivals: Rivals, pair: tuple[Conn, Conn], which: str
) -> None:
    first, second = pair
    limit(first, which, max_running=1)
    _make_slots(first, which, "key")
    low, high = _two_lanes(first)
    with first.transaction():
        assert ids(start(first, TWO)) == [high]
        claimed: Claimed = _quick(rivals, second, lambda: run_sync(second, take(ONE)))
        assert claimed.jobs == []
        assert [(b.id, b.held) for b in claimed.blocked] == [(low, False)], (
            "the rival may roll back"
        )
        assert (claimed.blocked[0].retry_in is not None) == (which in HOLDING)
    assert slots(first, scope_of(which)) == {high}


def _make_slots(conn: Conn, *scopes: str) -> None:
    """As earlier claims have done: a claim waits for a rival's that makes the same ones, which takes no time."""
    for which in scopes:
        conn.execute("SELECT jobq.make_slots(ARRAY[%s], ARRAY[1])", (scope_of(which),))


@pytest.mark.parametrize("guard", [True, False], ids=["as it is", "without the lock"])
def test_the_lock_of_the_slot_is_what_keeps_two_claims_apart(
    rivals: Rivals, pair: tuple[Conn, Conn], guard: bool
) -> None:
    """A guard's test: without the lock both take the one slot, and both jobs run."""
    first, second = pair
    limit(first, "kind", max_running=1)
    _make_slots(first, "kind")
    if not guard:
        _replace(first, "find_slot", "FOR UPDATE SKIP LOCKED", "")
    for lane in (ONE, TWO):
        queued(first, concurrency_key=None, priority=lane.priority)
    with first.transaction():
        start(first, TWO)
        future = rivals.start(lambda: start(second, ONE))
        assert rivals.waits(second, future) != guard
    future.result()
    running = one(first, "SELECT count(*) FROM jobq.job WHERE status = 'RUNNING'")
    assert running == (1 if guard else 2,)


def _replace(conn: Conn, function: str, old: str, new: str) -> None:
    """Break a function on purpose."""
    query = "SELECT pg_get_functiondef(p.oid) FROM pg_proc p WHERE proname = %s"
    (text,) = one(conn, query, (function,))
    assert old in text
    conn.execute(text.replace(old, new).encode())


def test_a_claim_that_is_rolled_back_leaves_slots_and_tokens(
    rivals: Rivals, pair: tuple[Conn, Conn]
) -> None:
    first, second = pair
    limit(first, "tenant", max_running=1, rate=(1, 3600, 1))
    _make_slots(first, "tenant")
    queued(first, 2, concurrency_key=None)
    with first.transaction(force_rollback=True):
        assert len(start(first, free=1)) == 1
        assert _quick(rivals, second, lambda: start(second)) == []
    assert len(start(second)) == 1


def test_two_claims_at_a_rate_s_last_token_start_one_job(
    rivals: Rivals, pair: tuple[Conn, Conn]
) -> None:
    first, second = pair
    limit(first, "kind", rate=(1, 3600, 1))
    for lane in (ONE, TWO):
        queued(first, concurrency_key=None, priority=lane.priority)
    with first.transaction():
        assert len(start(first, ONE)) == 1
        claimed: Claimed = _quick(rivals, second, lambda: run_sync(second, take(TWO)))
        assert [(b.reason, b.held, b.retry_in) for b in claimed.blocked] == [
            ("kind_rate", False, 0.005)
        ]
    assert start(second, TWO) == []


def test_claims_that_make_the_same_new_slots_in_opposite_orders_do_not_deadlock(
    rivals: Rivals, pair: tuple[Conn, Conn]
) -> None:
    first, second = pair
    blocker = rivals.session()
    for key in ("a", "b", "c"):
        queued(first, concurrency_key=key)
    for key in ("c", "b", "a"):
        queued(first, concurrency_key=key, priority=5)
    with blocker.transaction():
        blocker.execute("SELECT jobq.make_slots(ARRAY['key:b'], ARRAY[1])")
        one_ = rivals.start(lambda: start(first, ONE))
        assert rivals.waits(first, one_), "it has made a, and waits for b"
        two = rivals.start(lambda: start(second, TWO))
        assert rivals.waits(second, two), "it waits for a, not for c the other way round"
    keys = [len(future.result(PATIENCE)) for future in (one_, two)]
    assert sum(keys) == 3


# --- claim and completion -------------------------------------------------------------------------


@pytest.fixture(params=["kind", "key"])
def contested(
    request: pytest.FixtureRequest, pair: tuple[Conn, Conn]
) -> tuple[str, ClaimedJob, int]:
    """A kind or key with one slot: the job that holds it, and one that waits in another lane."""
    first, _ = pair
    limit(first, request.param, max_running=1)
    keyed = {} if request.param == "key" else {"concurrency_key": None}
    queued(first, priority=5, **keyed)
    (run,) = start(first, TWO)
    (waiting,) = queued(first, **keyed)
    return request.param, run, waiting


def test_a_completion_after_the_claim_that_found_the_slot_taken_puts_its_job_back(
    rivals: Rivals, pair: tuple[Conn, Conn], contested: tuple[str, ClaimedJob, int]
) -> None:
    first, second = pair
    which, run, waiting = contested
    with first.transaction():
        assert start(first, ONE) == []
        assert held(first) == {waiting: scope_of(which)}
        future = rivals.start(lambda: finish(second, run))
        assert rivals.waits(second, future), "for the slot that the claim has seen taken"
    future.result(PATIENCE)
    assert held(first) == {}
    assert ids(start(first, ONE)) == [waiting]


def test_a_claim_after_an_open_completion_neither_waits_nor_holds(
    rivals: Rivals, pair: tuple[Conn, Conn], contested: tuple[str, ClaimedJob, int]
) -> None:
    """As in a handler's own long transaction: the slot may be free soon, and then nobody would look for held jobs."""
    first, second = pair
    which, run, waiting = contested
    with first.transaction():
        finish(first, run)
        claimed: Claimed = _quick(rivals, second, lambda: run_sync(second, take(ONE)))
        assert claimed.jobs == []
        (blocked,) = claimed.blocked
        assert (blocked.id, blocked.reason, blocked.held) == (waiting, f"{which}_cap", False)
        assert blocked.retry_in == pytest.approx(0.02)
    assert held(first) == {}
    assert ids(start(second, ONE)) == [waiting]


def test_without_the_locks_of_taken_slots_a_job_would_be_left_behind(
    rivals: Rivals, pair: tuple[Conn, Conn], contested: tuple[str, ClaimedJob, int]
) -> None:
    """A guard's test: the completion passes the claim by, sees no held job, and the claim holds it afterwards."""
    first, second = pair
    _, run, waiting = contested
    _replace(
        first, "ask_limit", "s.lease IS NOT NULL FOR UPDATE SKIP LOCKED", "s.lease IS NOT NULL"
    )
    with first.transaction():
        assert start(first, ONE) == []
        _quick(rivals, second, lambda: finish(second, run))
    assert set(held(first)) == {waiting}
    assert review(first)[0] == 1, "which a review finds"


def test_a_claim_whose_snapshot_is_older_than_a_completion_sees_the_free_slot(
    rivals: Rivals, pair: tuple[Conn, Conn], contested: tuple[str, ClaimedJob, int]
) -> None:
    """The claim stands in the middle, before it asks for the slot; the completion runs whole; the claim goes on."""
    first, second = pair
    _, run, waiting = contested
    gate = rivals.session()
    _stand_at_gate(first)
    with gate.transaction():
        gate.execute("SELECT pg_advisory_xact_lock(42)")
        future: Future[Claimed] = rivals.start(lambda: run_sync(second, take(ONE)))
        assert rivals.waits(second, future)
        _quick(rivals, first, lambda: finish(first, run))
    assert ids(future.result(PATIENCE).jobs) == [waiting]


def _stand_at_gate(conn: Conn) -> None:
    """Let every claim wait for an advisory lock before it looks for a slot."""
    _replace(conn, "find_slot", "BEGIN", "BEGIN PERFORM pg_advisory_xact_lock_shared(42);")


# --- reclaim, limits that change, and others ------------------------------------------------------


def test_a_claim_beside_an_open_reclaim_starts_nothing_too_early(
    rivals: Rivals, pair: tuple[Conn, Conn], contested: tuple[str, ClaimedJob, int]
) -> None:
    first, second = pair
    which, run, waiting = contested
    with first.transaction():
        assert reclaim(first) == 1
        claimed: Claimed = _quick(rivals, second, lambda: run_sync(second, take(ONE)))
        assert [(b.id, b.held) for b in claimed.blocked] == [(waiting, False)]
    started = start(second, *everywhere(second))
    assert len(started) == 1
    assert slots(first, scope_of(which)) == set(ids(started))
    if which == "key":
        assert ids(started) == [run.id], "the better one goes first again"


def test_a_reclaim_beside_an_open_claim_waits_for_it_and_puts_its_job_back(
    rivals: Rivals, pair: tuple[Conn, Conn], contested: tuple[str, ClaimedJob, int]
) -> None:
    first, second = pair
    _, run, waiting = contested
    first.execute("UPDATE jobq.job SET lease_until = now() WHERE id = %s", (run.id,))
    with first.transaction():
        assert start(first, ONE) == []
        future = rivals.start(lambda: reclaim(second))
        assert rivals.waits(second, future)
    assert future.result(PATIENCE) == 1
    assert waiting not in held(first)


@pytest.mark.parametrize("which", ["tenant", "kind"])
def test_a_cap_that_is_being_set_makes_no_claim_wait(
    rivals: Rivals, pair: tuple[Conn, Conn], which: str
) -> None:
    first, second = pair
    jobs = queued(first, 5, concurrency_key=None)
    with first.transaction():
        limit(first, which, max_running=3, rate=(5, 3600, 5))
        assert ids(_quick(rivals, second, lambda: start(second, free=2))) == jobs[:2]
    assert ids(start(second)) == jobs[2:], "what started just before it was set holds no slot yet"
    queued(first, 5, concurrency_key=None)
    run_sync(first, STORE.upkeep.heal_slots(10))
    assert start(second) == []
    assert slots(first, scope_of(which)) == set(jobs)


def test_setting_a_limit_does_not_wait_for_an_open_claim(
    rivals: Rivals, pair: tuple[Conn, Conn]
) -> None:
    first, second = pair
    limit(first, "tenant", max_running=1)
    queued(first, 2, concurrency_key=None)
    with first.transaction():
        assert len(start(first)) == 1
        _quick(rivals, second, lambda: limit(second, "tenant", max_running=5))
    assert len(start(second)) == 1


def test_slots_that_are_being_dropped_make_no_claim_wait_and_none_is_lost(
    rivals: Rivals, pair: tuple[Conn, Conn]
) -> None:
    first, second = pair
    queued(first)
    finish(first, *start(first))
    with first.transaction():
        assert _drop(first) == 1
        (id_,) = queued(rivals.observer)
        claimed: Claimed = _quick(rivals, second, lambda: run_sync(second, take(ONE)))
        assert [(b.id, b.held) for b in claimed.blocked] == [(id_, False)]
    assert ids(start(second)) == [id_]


def test_slots_that_a_claim_has_in_hands_are_not_dropped(
    rivals: Rivals, pair: tuple[Conn, Conn]
) -> None:
    first, second = pair
    limit(first, "key", max_running=2)
    queued(first)
    finish(first, *start(first))
    queued(first)
    with first.transaction():
        assert len(start(first)) == 1
        assert _quick(rivals, second, lambda: _drop(second)) == 0
    assert one(first, "SELECT count(*) FROM jobq.cap_slot") == (2,)


def _drop(conn: Conn) -> int:
    found = run_sync(conn, STORE.upkeep.expire_slots(NO_SLOT, 10))
    return 0 if found is None else found[1]


def test_batches_of_completions_and_claims_of_many_scopes_do_not_deadlock(
    rivals: Rivals, pair: tuple[Conn, Conn]
) -> None:
    first, second = pair
    for which, cap in (("tenant", 100), ("queue", 100), ("kind", 40)):
        limit(first, which, max_running=cap)
    queued(first, 40, concurrency_key=None)
    running = start(first)
    queued(first, 40, concurrency_key=None)
    with first.transaction():
        assert start(first) == []
        halves = [running[::2], running[1::2][::-1]]
        futures = [
            rivals.start(partial(run_sync, conn, complete(*(job.claim for job in half))))
            for conn, half in zip((second, rivals.session()), halves, strict=True)
        ]
        assert rivals.waits(second, futures[0])
    assert sum(len(future.result(PATIENCE)) for future in futures) == 40
