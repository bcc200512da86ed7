"""Slots are freed with the lease that holds them, by whatever ends it, and healed where nothing did."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from psycopg import sql
from tests.store.limited import (
    SCOPES,
    everywhere,
    finish,
    held,
    ids,
    limit,
    queued,
    reclaim,
    release,
    scope_of,
    serve,
    slots,
    start,
)
from tests.store.support import KEEP_PAYLOAD, OTHER_LEASE, STORE, complete, fail, one, status

from jobq import wakeup
from jobq.db import Conn
from jobq.model import Claim, ClaimedJob, Verdict
from jobq.store import NO_SLOT, run_sync


@pytest.fixture(autouse=True)
def _worker(undone: Conn) -> None:
    serve(undone)


def _capped(conn: Conn, cap: int = 1) -> None:
    for which in SCOPES:
        limit(conn, which, max_running=cap)


def _exhaust(conn: Conn, job: ClaimedJob) -> None:
    conn.execute("UPDATE jobq.job SET attempts = max_attempts WHERE id = %s", (job.id,))


def _cancel(conn: Conn, job: ClaimedJob) -> None:
    run_sync(conn, STORE.jobs.cancel([job.id], KEEP_PAYLOAD))


def _reclaim(conn: Conn, job: ClaimedJob) -> None:
    assert reclaim(conn) == 1


def _with(
    before: Callable[[Conn, ClaimedJob], None], end: Callable[[Conn, ClaimedJob], object]
) -> Callable[[Conn, ClaimedJob], object]:
    def both(conn: Conn, job: ClaimedJob) -> None:
        before(conn, job)
        end(conn, job)

    return both


ENDS: dict[str, Callable[[Conn, ClaimedJob], object]] = {
    "DONE": finish,
    "SCHEDULED": lambda conn, job: run_sync(conn, fail(job.claim)),
    "FAILED": lambda conn, job: run_sync(conn, fail(job.claim, verdict=Verdict.PERMANENT)),
    "CANCELLED": lambda conn, job: run_sync(conn, fail(job.claim, verdict=Verdict.STOPPED)),
    "DEAD": _with(_exhaust, lambda conn, job: run_sync(conn, fail(job.claim))),
    "QUEUED by release": lambda conn, job: release(conn, job.claim),
    "CANCELLED by release": _with(_cancel, lambda conn, job: release(conn, job.claim)),
    "QUEUED by reclaim": _reclaim,
    "DEAD by reclaim": _with(_exhaust, _reclaim),
    "CANCELLED by reclaim": _with(_cancel, _reclaim),
}


@pytest.mark.parametrize("end", ENDS)
def test_whatever_ends_a_run_frees_its_slots_and_puts_the_next_back(undone: Conn, end: str) -> None:
    _capped(undone)
    first, second = queued(undone, 2)
    (run,) = start(undone)
    assert run.id == first
    undone.execute("UPDATE jobq.job SET held_by = 'key:k1' WHERE id = %s", (second,))
    ENDS[end](undone, run)
    assert status(undone, first) == end.split(maxsplit=1)[0]
    assert [slots(undone, scope_of(which)) for which in SCOPES] == [set()] * 4
    assert held(undone) == {}


@pytest.mark.parametrize("write", ["complete", "fail", "release"])
def test_a_stale_lease_frees_nothing(undone: Conn, write: str) -> None:
    _capped(undone)
    (id_,) = queued(undone)
    (old,) = start(undone)
    reclaim(undone)
    (new,) = start(undone)
    assert old.id == new.id == id_
    for stale in (old.claim, Claim(id_, OTHER_LEASE)):
        calls = {
            "complete": complete(stale),
            "fail": fail(stale),
            "release": STORE.runs.release([stale], KEEP_PAYLOAD),
        }
        assert not run_sync(undone, calls[write])
        assert [slots(undone, scope_of(which)) for which in SCOPES] == [{id_}] * 4
    lease = one(undone, "SELECT DISTINCT lease FROM jobq.cap_slot WHERE job_id = %s", (id_,))
    assert lease == (new.claim.lease,)


def test_old_and_new_claim_of_one_job_in_a_batch_free_the_slots_once(undone: Conn) -> None:
    limit(undone, "kind", max_running=1)
    queued(undone, 3, concurrency_key=None)
    (old,) = start(undone)
    reclaim(undone)
    (new,) = start(undone)
    assert old.id == new.id
    assert run_sync(undone, complete(old.claim, new.claim)) == {new.claim}
    assert slots(undone, "kind:send") == set()
    assert len(held(undone)) == 1


def test_a_batch_frees_as_many_as_ended_and_puts_as_many_back(undone: Conn) -> None:
    limit(undone, "kind", max_running=4)
    jobs = queued(undone, 10, concurrency_key=None)
    running = start(undone)
    finish(undone, *running[:3])
    assert set(held(undone)) == set(jobs[7:])
    assert ids(start(undone)) == jobs[4:7]


def test_a_slot_freed_for_a_tenant_or_queue_is_announced(conn: Conn) -> None:
    serve(conn)
    limit(conn, "tenant", max_running=1)
    limit(conn, "queue", max_running=1)
    queued(conn, concurrency_key=None)
    (run,) = start(conn)
    conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(STORE.statements.channel)))
    finish(conn, run)
    heard = [wakeup.parse(n.payload) for n in conn.notifies(timeout=10, stop_after=2)]
    conn.execute("UNLISTEN *")
    freed = {
        token for hint in heard if isinstance(hint, wakeup.SlotsFreed) for token in hint.tokens
    }
    assert freed == {wakeup.scope_token("tenant:acme"), wakeup.scope_token("queue:mail")}


# --- healing --------------------------------------------------------------------------------------


GONE = {
    "deleted": "DELETE FROM jobq.job WHERE id = %s",
    "queued by hand": "UPDATE jobq.job SET status = 'SCHEDULED', lease = NULL, lease_until = NULL WHERE id = %s",
}


@pytest.mark.parametrize("gone", GONE)
def test_slots_whose_run_is_gone_are_healed_and_the_next_job_is_put_back(
    undone: Conn, gone: str
) -> None:
    _capped(undone)
    lost, next_ = queued(undone, 2)
    start(undone)
    assert run_sync(undone, STORE.upkeep.heal_slots(100)) == 0
    undone.execute(GONE[gone].encode(), (lost,))
    undone.execute("UPDATE jobq.job SET held_by = 'key:k1' WHERE id = %s", (next_,))
    assert run_sync(undone, STORE.upkeep.heal_slots(100)) == 4
    assert [slots(undone, scope_of(which)) for which in SCOPES] == [set()] * 4
    assert ids(start(undone)) == [next_]
    assert run_sync(undone, STORE.upkeep.heal_slots(100)) == 0


def test_slots_of_a_lease_that_was_replaced_go_to_the_new_one(undone: Conn) -> None:
    _capped(undone)
    (id_,) = queued(undone)
    start(undone)
    undone.execute("UPDATE jobq.job SET lease = 7")
    assert run_sync(undone, STORE.upkeep.heal_slots(100)) == 4
    rows = undone.execute("SELECT scope, lease FROM jobq.cap_slot WHERE job_id = %s", (id_,))
    assert set(rows) == {(scope_of(which), 7) for which in ("tenant", "queue", "kind")}


def test_slots_are_healed_in_bounded_batches(undone: Conn) -> None:
    limit(undone, "queue", max_running=10)
    queued(undone, 7, concurrency_key=None)
    start(undone)
    undone.execute("DELETE FROM jobq.job")
    assert [run_sync(undone, STORE.upkeep.heal_slots(5)) for _ in range(3)] == [5, 2, 0]


# --- expiry ---------------------------------------------------------------------------------------


def _keys(conn: Conn) -> set[str]:
    return {scope for (scope,) in conn.execute("SELECT DISTINCT scope FROM jobq.cap_slot")}


def test_slots_of_keys_that_are_not_in_use_are_dropped(undone: Conn) -> None:
    limit(undone, "tenant", max_running=10)
    limit(undone, "key", "wide", max_running=3)
    for key in ("done", "running", "waiting", "wide"):
        queued(undone, concurrency_key=key)
    runs = {slots_of: run for run in start(undone) for slots_of in _held_keys(undone, run)}
    for key in ("done", "waiting", "wide"):
        finish(undone, runs[f"key:{key}"])
    queued(undone, concurrency_key="waiting")
    assert _expire(undone) == [1 + 3]
    assert _keys(undone) == {"key:running", "key:waiting", "tenant:acme"}
    (again,) = queued(undone, concurrency_key="done", priority=9)
    assert again in ids(start(undone, *everywhere(undone)))
    assert slots(undone, "key:done") == {again}


def _held_keys(conn: Conn, run: ClaimedJob) -> list[str]:
    query = "SELECT scope FROM jobq.cap_slot WHERE job_id = %s AND scope LIKE 'key:%%'"
    return [scope for (scope,) in conn.execute(query, (run.id,))]


def _expire(conn: Conn, most: int = 100) -> list[int]:
    """A pass over all slots; how many each statement deleted."""
    deleted, after = [], NO_SLOT
    while (found := run_sync(conn, STORE.upkeep.expire_slots(after, most))) is not None:
        after, many = found
        deleted.append(many)
    return deleted


def test_slots_are_looked_through_in_bounded_batches(undone: Conn) -> None:
    for number in range(7):
        queued(undone, concurrency_key=f"k{number}")
    first, *others = start(undone)
    finish(undone, *others)
    assert first.id in slots(undone, "key:k0")
    assert _expire(undone, 3) == [2, 3, 1]
    assert _keys(undone) == {"key:k0"}


def test_free_slots_beyond_a_cap_that_was_lowered_or_removed_are_dropped(undone: Conn) -> None:
    for which in ("tenant", "queue", "kind"):
        limit(undone, which, max_running=5)
    queued(undone, 5, concurrency_key=None)
    running = start(undone)
    limit(undone, "tenant", max_running=2)
    limit(undone, "queue", max_running=None)
    finish(undone, *running[:4])
    assert sum(_expire(undone)) == 2 + 4
    assert slots(undone, "tenant:acme") == slots(undone, "queue:mail") == {running[4].id}
    count = "SELECT scope, count(*) FROM jobq.cap_slot GROUP BY scope"
    assert dict(undone.execute(count)) == {"tenant:acme": 3, "queue:mail": 1, "kind:send": 5}


def test_a_gap_among_slots_is_filled(undone: Conn) -> None:
    limit(undone, "key", max_running=4)
    queued(undone, 1)
    start(undone)
    undone.execute("DELETE FROM jobq.cap_slot WHERE n IN (1, 2)")
    queued(undone, 5)
    assert len(start(undone)) == 3
