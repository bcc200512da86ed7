"""A run writes its job only while its lease holds: the pair of id and lease is the fence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from psycopg import sql
from tests.store.support import (
    KEEP_PAYLOAD,
    LEASE,
    OTHER_LEASE,
    STORE,
    claim,
    complete,
    fail,
    image,
    job,
    put,
    status,
)

from jobq.db import Conn
from jobq.model import Claim, JobStatus
from jobq.store import BEGINNING, Call, run_sync

WRITES: dict[str, Callable[[list[Claim]], Call[Any]]] = {
    "complete": lambda claims: complete(*claims),
    "fail": lambda claims: fail(*claims),
    "release": lambda claims: STORE.runs.release(claims, KEEP_PAYLOAD),
    "extend": lambda claims: STORE.runs.extend(claims, 600),
    "progress": lambda claims: STORE.runs.progress([(each, "0.5") for each in claims]),
}
EXPIRED = {"lease_until": sql.SQL("now() - interval '1 second'")}


def _ids(answer: Any) -> set[int]:
    return {each.id if isinstance(each, Claim) else each for each in answer}


def _reclaim(conn: Conn) -> None:
    assert run_sync(conn, STORE.upkeep.reclaim(BEGINNING, 100, KEEP_PAYLOAD))


@pytest.mark.parametrize("write", WRITES)
def test_the_same_worker_s_stale_claim_changes_nothing(undone: Conn, write: str) -> None:
    id_ = put(undone, "RUNNING", **EXPIRED)
    _reclaim(undone)
    (new,) = run_sync(undone, claim(OTHER_LEASE))
    before = image(undone)
    assert not run_sync(undone, WRITES[write]([Claim(id_, LEASE)]))
    assert image(undone) == before
    assert _ids(run_sync(undone, WRITES[write]([new.claim]))) == {id_}


@pytest.mark.case("B20")
def test_the_outcome_of_the_new_owner_is_the_one_recorded(undone: Conn) -> None:
    id_ = put(undone, "RUNNING", attempts=4, **EXPIRED)
    _reclaim(undone)
    (new,) = run_sync(undone, claim(OTHER_LEASE))
    assert run_sync(undone, complete(Claim(id_, LEASE))) == set()
    assert run_sync(undone, fail(new.claim)) == {new.claim: (JobStatus.DEAD, None)}
    assert run_sync(undone, complete(Claim(id_, LEASE))) == set()
    assert job(undone, id_)["lease"] == OTHER_LEASE


@pytest.mark.parametrize("write", WRITES)
def test_old_and_new_claim_of_one_job_may_meet_in_a_batch(undone: Conn, write: str) -> None:
    id_, other = put(undone, "RUNNING", lease=OTHER_LEASE), put(undone, "RUNNING")
    old, new = Claim(id_, LEASE), Claim(id_, OTHER_LEASE)
    answer = run_sync(undone, WRITES[write]([old, Claim(other, LEASE), new]))
    assert _ids(answer) == {id_, other}
    assert set(answer) == {new, Claim(other, LEASE)}, "the old claim is told that it lost"
    if write == "complete":
        assert job(undone, id_)["lease"] == OTHER_LEASE


def test_an_outcome_that_is_told_twice_is_written_once(undone: Conn) -> None:
    id_ = put(undone, "RUNNING")
    assert run_sync(undone, complete(Claim(id_, LEASE), Claim(id_, LEASE))) == {Claim(id_, LEASE)}
    assert status(undone, id_) == "DONE"
    two = put(undone, "RUNNING")
    assert _ids(run_sync(undone, fail(Claim(two, LEASE), Claim(two, LEASE)))) == {two}
    assert status(undone, two) == "SCHEDULED"


@pytest.mark.parametrize("write", WRITES)
def test_the_fence_matches_pairs_not_the_cross_product(undone: Conn, write: str) -> None:
    one, two = put(undone, "RUNNING", lease=LEASE), put(undone, "RUNNING", lease=OTHER_LEASE)
    before = image(undone)
    crossed = [Claim(one, OTHER_LEASE), Claim(two, LEASE)]
    assert not run_sync(undone, WRITES[write](crossed))
    assert image(undone) == before


@pytest.mark.case("B23")
@pytest.mark.parametrize("write", WRITES)
def test_a_claim_from_before_a_manual_retry_is_stale_though_the_attempt_is_the_same(
    conn: Conn, write: str
) -> None:
    put(conn, "QUEUED", max_attempts=1)
    (first,) = run_sync(conn, claim(LEASE))
    conn.execute("UPDATE jobq.job SET lease_until = now() - interval '1 second'")
    _reclaim(conn)
    assert status(conn, first.id) == "DEAD"
    assert run_sync(conn, STORE.jobs.retry([first.id]))
    (second,) = run_sync(conn, claim(OTHER_LEASE))
    assert (second.id, second.attempt) == (first.id, first.attempt)
    before = image(conn)
    assert not run_sync(conn, WRITES[write]([first.claim]))
    assert image(conn) == before


def test_release_gives_the_attempt_back(undone: Conn) -> None:
    id_ = put(undone, "QUEUED", attempts=2)
    for lease in (LEASE, OTHER_LEASE):
        (found,) = run_sync(undone, claim(lease))
        assert (found.id, found.attempt) == (id_, 3)
        assert run_sync(undone, WRITES["release"]([found.claim])) == {found.claim: JobStatus.QUEUED}
    assert job(undone, id_)["attempts"] == 2


def test_recorded_tells_own_success_after_a_lost_answer(undone: Conn) -> None:
    mine, failed, taken, lost = (put(undone, "RUNNING") for _ in range(4))
    run_sync(undone, complete(Claim(mine, LEASE)))
    run_sync(undone, fail(Claim(failed, LEASE)))  # waits for its next attempt: nothing is recorded
    undone.execute("UPDATE jobq.job SET lease = %s WHERE id = %s", (OTHER_LEASE, taken))
    run_sync(undone, complete(Claim(taken, OTHER_LEASE)))
    asked = [Claim(id_, LEASE) for id_ in (mine, failed, taken, lost)]
    assert run_sync(undone, complete(*asked)) == {Claim(lost, LEASE)}
    assert run_sync(undone, STORE.runs.recorded(asked)) == {
        Claim(mine, LEASE): JobStatus.DONE,
        Claim(lost, LEASE): JobStatus.DONE,
    }


def test_a_lease_is_extended_from_the_present_clock_up_to_the_deadline(undone: Conn) -> None:
    near = put(undone, "RUNNING", deadline=sql.SQL("now() + interval '90 seconds'"))
    far = put(undone, "RUNNING")
    ahead = put(undone, "RUNNING", lease_until=sql.SQL("now() + interval '15 minutes'"))
    run_sync(undone, STORE.runs.extend([Claim(id_, LEASE) for id_ in (near, far, ahead)], 120))
    rows = undone.execute(
        "SELECT id, extract(epoch FROM lease_until - now())::float FROM jobq.job ORDER BY id"
    ).fetchall()
    assert rows == [(near, 90.0), (far, 120.0), (ahead, 120.0)]
