"""Keys: an idempotency key stands for one request, a unique key for at most one live job."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from psycopg import errors
from tests.store.support import (
    KEEP_PAYLOAD,
    LEASE,
    STORE,
    Rivals,
    claim,
    complete,
    converse,
    engine,
    fail,
    image,
    one,
    status,
)

from jobq.db import Conn
from jobq.errors import IdempotencyConflict
from jobq.model import Claim, JobStatus, NewJob, Verdict
from jobq.store import BEGINNING, Enqueued, WinnerGone, run_sync


def _many(conn: Conn, *jobs: NewJob) -> list[Enqueued]:
    found: list[Enqueued] = converse(conn, STORE.enqueue.enqueue_many(jobs))
    return found


def _ids(found: list[Enqueued]) -> list[int]:
    return [each.job.id for each in found]


def _created(found: list[Enqueued]) -> list[bool]:
    return [each.job.created for each in found]


def _jobs(conn: Conn) -> int:
    return int(one(conn, "SELECT count(*) FROM jobq.jobs")[0])


def _sql(conn: Conn, **arguments: Any) -> int:
    named = ", ".join(f"{name} => %({name})s" for name in arguments)
    return int(one(conn, f"SELECT jobq.enqueue({named})".encode(), arguments)[0])


# --- one request, one job ---------------------------------------------------------------------------


def test_ten_concurrent_requests_with_one_key_make_one_job(database_url: str, conn: Conn) -> None:
    barrier = Barrier(10)

    def request(number: int) -> Enqueued:
        with engine(database_url) as session:
            barrier.wait()
            key = (
                {"idempotency_key": "k"}
                if number % 2
                else {"idempotency_key": "k", "unique_key": "u"}
            )
            return _many(session, NewJob("test", **key))[0]  # type: ignore[arg-type]

    with ThreadPoolExecutor(10) as threads:
        found = list(threads.map(request, range(10)))
    assert len(set(_ids(found))) == 1
    assert _created(found).count(True) == 1
    assert _jobs(conn) == 1


@pytest.mark.case("B54")
def test_equal_json_is_the_same_request_and_other_content_a_conflict(undone: Conn) -> None:
    (first,) = _many(undone, NewJob("test", '{"a": 1, "b": "\\u00e9"}', idempotency_key="k"))
    (again,) = _many(undone, NewJob("test", ' { "b":"é",\n"a":1.0 } ', idempotency_key="k"))
    assert again.job.id == first.job.id
    assert not again.job.created
    for other in (
        NewJob("test", '{"a": 2}', idempotency_key="k"),
        NewJob("other", '{"a": 1, "b": "é"}', idempotency_key="k"),
    ):
        with pytest.raises(IdempotencyConflict) as conflict:
            _many(undone, NewJob("test", idempotency_key="new"), other)
        assert (conflict.value.index, conflict.value.job_id) == (1, first.job.id)
    assert _jobs(undone) == 1


@pytest.mark.case("B59")
def test_keys_of_two_tenants_are_two_keys(undone: Conn) -> None:
    jobs = [
        NewJob("test", f'"{tenant}"', tenant=tenant, idempotency_key="order-1", unique_key="u")
        for tenant in ("a", "b")
    ]
    assert _created(_many(undone, *jobs)) == [True, True]


@pytest.mark.case("B55")
def test_a_key_lives_on_when_its_job_has_ended_and_tells_what_became_of_it(undone: Conn) -> None:
    (first,) = _many(undone, NewJob("test", idempotency_key="k"))
    run_sync(undone, STORE.jobs.cancel([first.job.id], KEEP_PAYLOAD))
    (again,) = _many(undone, NewJob("test", idempotency_key="k"))
    assert again.job == (type(again.job)(first.job.id, JobStatus.CANCELLED, created=False))
    undone.execute("DELETE FROM jobq.job_archive")
    (late,) = _many(undone, NewJob("test", idempotency_key="k"))
    assert (late.job.id, late.job.status) == (first.job.id, "RETIRED")
    undone.execute("UPDATE jobq.key SET created_at = now() - interval '36 days'")
    assert run_sync(undone, STORE.upkeep.expire_keys(35 * 86400.0, 100)) == 1
    assert _created(_many(undone, NewJob("test", idempotency_key="k"))) == [True]


def test_keys_expire_in_batches_oldest_first_and_live_ones_never(undone: Conn) -> None:
    undone.execute(
        "INSERT INTO jobq.key (tenant, scope, key, job_id, created_at)"
        " SELECT 'default', scope, 'k' || g, g, now() - g * interval '1 day'"
        " FROM generate_series(1, 10) g, unnest(ARRAY['retained', 'live']) scope"
    )
    assert run_sync(undone, STORE.upkeep.expire_keys(3.5 * 86400, 5)) == 5
    left = undone.execute(
        "SELECT job_id FROM jobq.key WHERE scope = 'retained' ORDER BY 1"
    ).fetchall()
    assert [id_ for (id_,) in left] == [1, 2, 3, 4, 5]
    assert run_sync(undone, STORE.upkeep.expire_keys(3.5 * 86400, 5)) == 2
    assert one(undone, "SELECT count(*) FROM jobq.key WHERE scope = 'live'")[0] == 10


def test_a_unique_key_is_one_live_job_s_and_free_again_when_that_has_ended(undone: Conn) -> None:
    job = NewJob("test", unique_key="u")
    (first,) = _many(undone, job)
    (second,) = _many(undone, NewJob("other", '{"another": "payload"}', unique_key="u"))
    assert (second.job.id, second.job.created) == (first.job.id, False)
    run_sync(undone, STORE.jobs.cancel([first.job.id], KEEP_PAYLOAD))
    (third,) = _many(undone, job)
    assert third.job.created


def test_an_idempotency_key_whose_job_gave_way_to_a_live_one_stands_for_that(undone: Conn) -> None:
    (live,) = _many(undone, NewJob("test", unique_key="u"))
    both = NewJob("test", idempotency_key="k", unique_key="u")
    found = _many(undone, both, NewJob("test", idempotency_key="k"), both)
    assert _ids(found) == [live.job.id] * 3
    run_sync(undone, STORE.jobs.cancel([live.job.id], KEEP_PAYLOAD))
    (again,) = _many(undone, both)
    assert (again.job.id, again.job.status) == (live.job.id, JobStatus.CANCELLED)


@pytest.mark.case("B61")
def test_a_batch_keeps_order_and_length_and_collapses_duplicates(undone: Conn) -> None:
    known = _many(undone, *(NewJob("test", idempotency_key=f"old{n}") for n in range(10)))
    keys: list[str | None] = [None] * 1000
    keys[100:110] = [f"old{n}" for n in range(10)]
    keys[5] = keys[500] = keys[999] = "new"
    found = _many(undone, *(NewJob("test", f"{n}" if key is None else "{}", idempotency_key=key)
                            for n, key in enumerate(keys)))  # fmt: skip
    ids = _ids(found)
    assert len(ids) == 1000
    assert ids[100:110] == _ids(known)
    assert ids[5] == ids[500] == ids[999]
    assert _created(found).count(True) == 1000 - 10 - 2
    assert _jobs(undone) == 1000 - 2
    fresh = [id_ for id_, each in zip(ids, found, strict=True) if each.job.created]
    assert fresh == sorted(fresh), "earlier in the batch, earlier in the lane"


@pytest.mark.parametrize("batch", [5, 400])
def test_a_batch_runs_in_the_order_given_whatever_kinds_have_a_row(
    undone: Conn, batch: int
) -> None:
    undone.execute("INSERT INTO jobq.kind (kind) SELECT 'k' || g FROM generate_series(1, 300) g")
    found = _many(undone, *(NewJob(f"k{(n * 7919) % 400}") for n in range(batch)))
    assert _ids(found) == sorted(_ids(found))
    assert len({each.run_at for each in found}) == 1, "due at one time, so that the id decides"


# --- rivals -----------------------------------------------------------------------------------------


def test_a_key_whose_winner_rolled_back_is_not_burnt(rivals: Rivals) -> None:
    first, second = rivals.session(), rivals.session()
    with first.transaction(force_rollback=True):
        _many(first, NewJob("test", idempotency_key="k"))
        future = rivals.start(lambda: _many(second, NewJob("test", idempotency_key="k")))
        assert rivals.waits(second, future)
    assert _created(future.result()) == [True]
    assert _jobs(rivals.observer) == 1


def test_the_wait_for_a_rival_s_open_transaction_is_bounded_by_the_lock_timeout(
    rivals: Rivals,
) -> None:
    first, second = rivals.session(), rivals.session(lock_timeout="50ms")
    with first.transaction():
        _many(first, NewJob("test", idempotency_key="k"))
        with pytest.raises(errors.LockNotAvailable):
            _many(second, NewJob("test", idempotency_key="k"))


def test_a_winner_that_ends_before_it_is_read_sends_the_loser_back_to_the_start(
    rivals: Rivals,
) -> None:
    first, second = rivals.session(), rivals.session()
    (winner,) = _many(first, NewJob("test", unique_key="u"))
    conversation = STORE.enqueue.enqueue_many([NewJob("test", unique_key="u")])
    rows = run_sync(second, next(conversation))
    run_sync(first, STORE.jobs.cancel([winner.job.id], KEEP_PAYLOAD))
    answer = run_sync(second, conversation.send(rows))
    with pytest.raises(WinnerGone):
        conversation.send(answer)
    assert _created(_many(second, NewJob("test", unique_key="u"))) == [True]


@pytest.mark.case("B60")
def test_batches_with_the_same_keys_in_opposite_orders_do_not_deadlock(rivals: Rivals) -> None:
    forth, back, blocker = rivals.session(), rivals.session(), rivals.session()
    jobs = [NewJob("test", idempotency_key=f"k{n}", unique_key=f"u{n}") for n in range(5)]
    with blocker.transaction(force_rollback=True):
        _many(blocker, NewJob("test", idempotency_key="k2"))
        future = rivals.start(lambda: _many(back, *jobs[::-1]))
        assert rivals.waits(back, future)
        other = rivals.start(lambda: _many(forth, *jobs))
        assert rivals.waits(forth, other)
        pids = one(rivals.observer, "SELECT pg_blocking_pids(%s)", (forth.info.backend_pid,))[0]
        assert pids == [back.info.backend_pid], "both began with the first key"
    assert _created(future.result()) == [True] * 5
    assert _ids(other.result()) == _ids(future.result())[::-1]


@pytest.mark.case("B60")
def test_two_hundred_rounds_of_batches_in_opposite_orders(database_url: str, conn: Conn) -> None:
    def rounds(step: int) -> None:
        with engine(database_url) as session:
            for number in range(200):
                jobs = [NewJob("test", idempotency_key=f"{number}-{n}") for n in range(50)]
                _many(session, *jobs[::step])

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(rounds, (1, -1)))
    assert _jobs(conn) == 200 * 50


def test_all_idempotency_keys_are_taken_before_any_unique_key(rivals: Rivals) -> None:
    """Else batches that name one of each in opposite orders deadlock."""
    first, second, blocker = rivals.session(), rivals.session(), rivals.session()
    unique = [NewJob("test", unique_key=f"u{n}") for n in range(20)]
    with blocker.transaction(force_rollback=True):
        _many(blocker, NewJob("test", idempotency_key="r"))
        batch = [*unique[:10], NewJob("test", idempotency_key="r"), *unique[10:]]
        future = rivals.start(lambda: _many(first, *batch))
        assert rivals.waits(first, future)
        other = rivals.start(lambda: _many(second, *unique))
        assert not rivals.waits(second, other)
    assert _created(other.result()) == [True] * 20
    assert _created(future.result()) == [False] * 10 + [True] + [False] * 10


def test_a_finishing_statement_frees_the_key_for_the_request_that_waits_for_it(
    rivals: Rivals,
) -> None:
    first, second = rivals.session(), rivals.session()
    (live,) = _many(first, NewJob("test", unique_key="u"))
    run_sync(first, claim(LEASE))
    with first.transaction():
        run_sync(first, complete(Claim(live.job.id, LEASE)))
        future = rivals.start(lambda: _many(second, NewJob("test", unique_key="u")))
        assert rivals.waits(second, future)
    assert _created(future.result()) == [True]


# --- a live key and the ways back into the queue ------------------------------------------------------


@pytest.mark.case("B12")
def test_a_retry_by_hand_takes_the_unique_key_again_or_changes_nothing(undone: Conn) -> None:
    (first,) = _many(undone, NewJob("test", unique_key="u"))
    claimed = Claim(first.job.id, LEASE)
    undone.execute(
        "UPDATE jobq.job SET status = 'RUNNING', lease = %s, lease_until = now()", (LEASE,)
    )
    run_sync(undone, fail(claimed, verdict=Verdict.PERMANENT))
    (second,) = _many(undone, NewJob("test", unique_key="u"))
    assert second.job.created
    before = image(undone)
    assert not run_sync(undone, STORE.jobs.retry([first.job.id], force=True))
    assert image(undone) == before
    run_sync(undone, STORE.jobs.cancel([second.job.id], KEEP_PAYLOAD))
    assert run_sync(undone, STORE.jobs.retry([first.job.id], force=True))
    assert not run_sync(undone, STORE.jobs.retry([second.job.id], force=True))


@pytest.mark.case("B12")
def test_a_job_that_comes_back_to_the_queue_still_holds_its_key(undone: Conn) -> None:
    for operation in ("fail", "release", "reclaim"):
        (first,) = _many(undone, NewJob("test", unique_key=operation))
        id_ = first.job.id
        undone.execute(
            "UPDATE jobq.job SET status = 'RUNNING', lease = %s, lease_until = now() - interval '1 s', attempts = 1"
            " WHERE id = %s",
            (LEASE, id_),
        )
        match operation:
            case "fail":
                run_sync(undone, fail(Claim(id_, LEASE)))
            case "release":
                run_sync(undone, STORE.runs.release([Claim(id_, LEASE)], KEEP_PAYLOAD))
            case _:
                run_sync(undone, STORE.upkeep.reclaim(BEGINNING, 10, KEEP_PAYLOAD))
        assert status(undone, id_) in ("SCHEDULED", "QUEUED")
        assert _ids(_many(undone, NewJob("test", unique_key=operation))) == [id_]


# --- in SQL -----------------------------------------------------------------------------------------


def test_plain_sql_keeps_the_same_rules(undone: Conn) -> None:
    first = _sql(undone, kind="test", payload="{}", idempotency_key="k", unique_key="u")
    assert _sql(undone, kind="test", payload=" {} ", idempotency_key="k") == first
    assert _sql(undone, kind="test", unique_key="u", idempotency_key="adopted") == first
    assert _sql(undone, kind="test", idempotency_key="adopted") == first
    assert _ids(_many(undone, NewJob("test", idempotency_key="k"))) == [first]
    with pytest.raises(errors.UniqueViolation), undone.transaction():
        _sql(undone, kind="test", payload="[]", idempotency_key="k")
    assert _jobs(undone) == 1
