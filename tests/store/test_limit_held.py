"""Jobs held for a kind or key come back in turns when they may start, and obey people like all others meanwhile."""

from __future__ import annotations

import pytest
from tests.store.limited import (
    MAIL,
    everywhere,
    finish,
    held,
    ids,
    limit,
    queued,
    review,
    serve,
    start,
)
from tests.store.support import KEEP_PAYLOAD, STORE, Rivals, claim, job, one, put, status

from jobq.db import Conn
from jobq.model import JobStatus, Lane
from jobq.store import run_sync


@pytest.fixture(autouse=True)
def _worker(undone: Conn) -> None:
    serve(undone)


def _hold(conn: Conn, reason: str, many: int, **columns: object) -> list[int]:
    return [put(conn, "QUEUED", held_by=reason, **columns) for _ in range(many)]


def _readmit(conn: Conn, reason: str, room: int, after: str = "") -> tuple[int, str]:
    query = "SELECT moved, last_tenant FROM jobq.readmit(%s, %s, %s)"
    moved, last = one(conn, query, (reason, room, after))
    return moved, last


def test_tenants_take_turns_when_a_kind_s_jobs_are_put_back(undone: Conn) -> None:
    jobs = {tenant: _hold(undone, "kind:k", 3, tenant=tenant) for tenant in "abc"}
    assert _readmit(undone, "kind:k", 4, "a") == (4, "b")
    back = {id_ for all_ in jobs.values() for id_ in all_} - set(held(undone))
    assert back == {jobs["b"][0], jobs["c"][0], jobs["a"][0], jobs["b"][1]}
    assert _readmit(undone, "kind:k", 100, "b") == (5, "a")
    assert held(undone) == {}


def test_a_tenant_s_own_jobs_come_back_by_priority_then_due_time(undone: Conn) -> None:
    low, high = _hold(undone, "kind:k", 1), _hold(undone, "kind:k", 2, priority=5)
    for expected in (*high, *low):
        before = set(held(undone))
        _readmit(undone, "kind:k", 1)
        assert before - set(held(undone)) == {expected}


def test_jobs_of_a_key_come_back_in_its_order_whoever_s_they_are(undone: Conn) -> None:
    (low,) = _hold(undone, "key:x", 1, tenant="a", concurrency_key="x")
    (high,) = _hold(undone, "key:x", 1, tenant="b", concurrency_key="x", priority=5)
    (next_,) = _hold(undone, "key:x", 1, tenant="a", concurrency_key="x")
    for expected in (high, low, next_):
        before = set(held(undone))
        assert _readmit(undone, "key:x", 1, "a")[0] == 1
        assert before - set(held(undone)) == {expected}


def test_jobs_of_a_paused_tenant_are_put_back_without_taking_up_room(undone: Conn) -> None:
    limit(undone, "tenant", "a", paused=True)
    _hold(undone, "kind:k", 3, tenant="a")
    (other,) = _hold(undone, "kind:k", 1, tenant="b")
    assert _readmit(undone, "kind:k", 1) == (1, "b")
    assert other not in held(undone)


def test_a_rival_s_rows_are_passed_over(rivals: Rivals) -> None:
    first, second = rivals.session(), rivals.session()
    serve(first)
    jobs = _hold(first, "kind:k", 3)
    with first.transaction():
        assert _readmit(first, "kind:k", 1)[0] == 1
        assert _readmit(second, "kind:k", 1)[0] == 1
    assert set(held(first)) == {jobs[2]}


# --- review ---------------------------------------------------------------------------------------


def test_a_review_puts_all_back_when_a_pause_is_lifted(undone: Conn) -> None:
    undone.execute(
        "INSERT INTO jobq.job (kind, held_by, run_at) SELECT 'k', 'kind:k', now() FROM generate_series(1, 1234)"
    )
    other = _hold(undone, "kind:z", 1)
    limit(undone, "kind", "k", paused=True)
    assert review(undone) == (1, None)
    assert other[0] not in held(undone)
    limit(undone, "kind", "k", paused=False)
    assert review(undone) == (1234, None)
    assert held(undone) == {}


def test_a_review_puts_back_as_many_as_a_raised_cap_has_room_for(undone: Conn) -> None:
    limit(undone, "kind", max_running=2)
    queued(undone, 10, concurrency_key=None)
    assert len(start(undone)) == 2
    assert review(undone) == (0, None)
    limit(undone, "kind", max_running=5)
    assert review(undone) == (3, None)
    assert len(held(undone)) == 5


def test_a_review_puts_back_as_many_as_there_are_tokens_and_says_when_the_next_comes(
    undone: Conn,
) -> None:
    limit(undone, "kind", rate=(10, 100, 5))
    queued(undone, 20, concurrency_key=None)
    assert len(start(undone)) == 5
    moved, next_in = review(undone)
    assert moved == 0
    assert next_in is not None
    assert 9 < next_in < 10 / 0.97
    undone.execute(
        "UPDATE jobq.rate_bucket SET filled_at = filled_at - make_interval(secs => 3.05 * 10 / 0.97)"
    )
    moved, next_in = review(undone)
    assert moved == 3
    assert next_in is not None
    assert 9 < next_in < 10 / 0.97


def test_tenants_take_turns_from_one_review_to_the_next(undone: Conn) -> None:
    limit(undone, "kind", "k", max_running=1)
    jobs = {tenant: _hold(undone, "kind:k", 2, tenant=tenant, kind="k") for tenant in "abc"}
    turns = []
    for _ in range(6):
        before = set(held(undone))
        assert review(undone)[0] == 1
        (back,) = before - set(held(undone))
        turns.append(next(tenant for tenant, some in jobs.items() if back in some))
    assert turns == ["a", "b", "c", "a", "b", "c"]


def test_reviews_go_through_the_reasons_in_bounded_steps(undone: Conn) -> None:
    for number in range(5):
        limit(undone, "kind", f"k{number}", paused=True)
        _hold(undone, f"kind:k{number}", 2, kind=f"k{number}")
    steps: list[str | None] = [""]
    while (after := steps[-1]) is not None:
        steps.append(run_sync(undone, STORE.upkeep.review_held(after, 2)).reached)
    assert steps == ["", "kind:k1", "kind:k3", None]


def test_one_reviews_at_a_time(rivals: Rivals) -> None:
    first, second = rivals.session(), rivals.session()
    _hold(first, "kind:k", 1)
    with first.transaction():
        run_sync(first, STORE.upkeep.review_held("", 10))
        found = run_sync(second, STORE.upkeep.review_held("", 10))
        assert (found.reached, found.moved) == (None, 0)


# --- people and held jobs -------------------------------------------------------------------------


def test_a_held_job_can_be_found_listed_and_cancelled(undone: Conn) -> None:
    (id_,) = _hold(undone, "kind:k", 1)
    found = run_sync(undone, STORE.jobs.find_job(id_))
    assert found is not None
    assert (found["status"], found["held_by"]) == ("QUEUED", "kind:k")
    assert [row["held_by"] for row in run_sync(undone, STORE.jobs.list_jobs(most=1))] == ["kind:k"]
    assert run_sync(undone, STORE.jobs.cancel([id_], KEEP_PAYLOAD)) == {id_: JobStatus.CANCELLED}
    assert job(undone, id_)["table"] == "job_archive"
    assert _readmit(undone, "kind:k", 1)[0] == 0


def test_a_held_job_is_waiting_already_so_there_is_nothing_to_retry(undone: Conn) -> None:
    (id_,) = _hold(undone, "key:x", 1, concurrency_key="x")
    assert not run_sync(undone, STORE.jobs.retry([id_], force=True))
    assert held(undone) == {id_: "key:x"}


def test_a_job_that_is_retried_by_hand_asks_its_limits_again(conn: Conn) -> None:
    limit(conn, "kind", "test", max_running=1)
    running, waiting = put(conn, "QUEUED"), put(conn, "SCHEDULED")
    assert ids(run_sync(conn, claim(7))) == [running]
    assert run_sync(conn, STORE.jobs.retry([waiting]))
    assert run_sync(conn, claim(8)) == []
    assert held(conn) == {waiting: "kind:test"}
    assert run_sync(conn, STORE.jobs.cancel([waiting], KEEP_PAYLOAD))
    assert run_sync(conn, STORE.jobs.retry([waiting], force=True))
    assert status(conn, waiting) == "QUEUED"
    assert held(conn) == {}


def test_held_jobs_keep_their_place_in_their_lane(undone: Conn) -> None:
    limit(undone, "kind", max_running=1)
    jobs = queued(undone, 3, concurrency_key=None)
    (run,) = start(undone)
    later = queued(undone, 1, kind="other", concurrency_key=None)
    finish(undone, run)
    assert ids(start(undone, MAIL)) == [jobs[1], *later]
    assert everywhere(undone) == [Lane("mail", "acme", 0)]


@pytest.mark.parametrize("cap", [None, 1])
def test_jobs_that_could_start_are_put_back_however_many_others_lie_before_them(
    undone: Conn, cap: int | None
) -> None:
    limit(undone, "kind", "k", max_running=cap)
    for number in range(150):
        limit(undone, "tenant", f"t{number}", paused=True)
        _hold(undone, "kind:k", 5, kind="k", tenant=f"t{number}")
    able = _hold(undone, "kind:k", 5, kind="k", tenant="u")
    moved, _ = review(undone)
    assert moved == len(able) - len(held(undone).keys() & set(able)) == (cap or 5)


@pytest.mark.parametrize("key", [None, "k1"])
def test_a_flood_is_held_in_large_bites_once_a_claim_starts_nothing(
    undone: Conn, key: str | None
) -> None:
    limit(undone, "kind", max_running=1) if key is None else None
    flood = queued(undone, 700, concurrency_key=key)
    other = queued(undone, 1, kind="other", concurrency_key="another")
    flood += queued(undone, 50, concurrency_key=key)
    assert ids(start(undone, free=2)) == flood[:1]
    assert set(held(undone)) == set(flood[1:2]), "of a claim that starts something, what it met"
    assert start(undone, free=2) == []
    assert set(held(undone)) == set(flood[1:504])
    assert start(undone, free=2) == []
    assert set(held(undone)) == set(flood[1:])
    assert ids(start(undone, free=2)) == other


def test_holding_a_flood_waits_for_nobody(rivals: Rivals) -> None:
    claimer, person = rivals.session(), rivals.session()
    limit(claimer, "kind", paused=True)
    flood = queued(claimer, 10, concurrency_key=None)
    with person.transaction():
        person.execute("SELECT FROM jobq.job WHERE id = %s FOR UPDATE", (flood[5],))
        assert not rivals.waits(claimer, rivals.start(lambda: start(claimer, free=1)))
        assert set(held(claimer)) == {*flood} - {flood[5]}
