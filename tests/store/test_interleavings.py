"""Rivals in a forced order: the first statement's transaction stays open while the second one runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from psycopg import sql
from tests.store import audit
from tests.store.plans import warm
from tests.store.support import (
    KEEP_PAYLOAD,
    LEASE,
    OTHER_LEASE,
    STORE,
    Rivals,
    claim,
    complete,
    fail,
    job,
    put,
    status,
)

from jobq.model import Claim, Verdict
from jobq.store import BEGINNING, Call, Extension, run_sync

OPERATIONS: dict[str, Callable[[int], Call[Any]]] = {
    "claim": lambda id_: claim(OTHER_LEASE),
    "extend": lambda id_: STORE.runs.extend([Claim(id_, LEASE)], 600),
    "progress": lambda id_: STORE.runs.progress([(Claim(id_, LEASE), "0.5")]),
    "promote": lambda id_: STORE.upkeep.promote(BEGINNING, 100),
    "reclaim": lambda id_: STORE.upkeep.reclaim(BEGINNING, 100, KEEP_PAYLOAD),
    "complete": lambda id_: complete(Claim(id_, LEASE)),
    "fail": lambda id_: fail(Claim(id_, LEASE)),
    "die": lambda id_: fail(Claim(id_, LEASE), verdict=Verdict.PERMANENT),
    "release": lambda id_: STORE.runs.release([Claim(id_, LEASE)], KEEP_PAYLOAD),
    "cancel": lambda id_: STORE.jobs.cancel([id_], KEEP_PAYLOAD),
    "retry": lambda id_: STORE.jobs.retry([id_]),
    "force_retry": lambda id_: STORE.jobs.retry([id_], force=True),
}

#: A job's state at the start: status, and columns as SQL.
STARTS: dict[str, tuple[str, dict[str, str]]] = {
    "due": ("SCHEDULED", {"run_at": "now() - interval '1 second'"}),
    "queued": ("QUEUED", {}),
    "running": ("RUNNING", {}),
    "expired": ("RUNNING", {"lease_until": "now() - interval '1 second'"}),
    "dead": ("DEAD", {}),
    "failed": ("FAILED", {}),
    "cancelled": ("CANCELLED", {}),
}


class Race(NamedTuple):
    """Two operations on one job in this order, and what must come of it."""

    start: str
    first: str
    second: str
    waits: bool
    applies: bool
    end: str

    def __str__(self) -> str:
        return f"{self.start}-{self.first}-{self.second}"


WAITS, PASSES = True, False
APPLIES, IN_VAIN = True, False
RACES = [
    Race("expired", "complete", "reclaim", PASSES, IN_VAIN, "DONE"),
    Race("expired", "reclaim", "complete", WAITS, IN_VAIN, "QUEUED"),
    Race("expired", "fail", "reclaim", PASSES, IN_VAIN, "SCHEDULED"),
    Race("expired", "reclaim", "fail", WAITS, IN_VAIN, "QUEUED"),
    Race("expired", "release", "reclaim", PASSES, IN_VAIN, "QUEUED"),
    Race("expired", "reclaim", "release", WAITS, IN_VAIN, "QUEUED"),
    Race("expired", "reclaim", "reclaim", PASSES, IN_VAIN, "QUEUED"),
    Race("expired", "extend", "reclaim", PASSES, IN_VAIN, "RUNNING"),
    # A row that a rival holds still counts as held: the next heartbeat will know better.
    Race("expired", "reclaim", "extend", PASSES, APPLIES, "QUEUED"),
    Race("expired", "cancel", "reclaim", PASSES, IN_VAIN, "RUNNING"),
    Race("expired", "reclaim", "cancel", WAITS, APPLIES, "CANCELLED"),
    Race("running", "complete", "cancel", WAITS, IN_VAIN, "DONE"),
    Race("running", "cancel", "complete", WAITS, APPLIES, "DONE"),
    Race("running", "fail", "cancel", WAITS, APPLIES, "CANCELLED"),
    Race("running", "die", "cancel", WAITS, IN_VAIN, "FAILED"),
    Race("running", "cancel", "fail", WAITS, APPLIES, "CANCELLED"),
    Race("running", "cancel", "die", WAITS, APPLIES, "CANCELLED"),
    Race("running", "release", "cancel", WAITS, APPLIES, "CANCELLED"),
    Race("running", "cancel", "release", WAITS, APPLIES, "CANCELLED"),
    Race("running", "cancel", "cancel", WAITS, APPLIES, "RUNNING"),
    Race("running", "complete", "extend", PASSES, APPLIES, "DONE"),
    Race("running", "extend", "complete", WAITS, APPLIES, "DONE"),
    Race("running", "complete", "complete", WAITS, IN_VAIN, "DONE"),
    Race("running", "fail", "complete", WAITS, IN_VAIN, "SCHEDULED"),
    Race("running", "complete", "fail", WAITS, IN_VAIN, "DONE"),
    Race("running", "cancel", "progress", PASSES, IN_VAIN, "RUNNING"),
    Race("running", "progress", "complete", WAITS, APPLIES, "DONE"),
    Race("running", "die", "retry", PASSES, IN_VAIN, "FAILED"),
    Race("running", "retry", "die", PASSES, APPLIES, "FAILED"),
    Race("running", "complete", "force_retry", PASSES, IN_VAIN, "DONE"),
    Race("running", "force_retry", "complete", PASSES, APPLIES, "DONE"),
    Race("queued", "claim", "cancel", WAITS, APPLIES, "RUNNING"),
    Race("queued", "cancel", "claim", PASSES, IN_VAIN, "CANCELLED"),
    Race("queued", "claim", "claim", PASSES, IN_VAIN, "RUNNING"),
    Race("due", "promote", "cancel", WAITS, APPLIES, "CANCELLED"),
    Race("due", "cancel", "promote", PASSES, IN_VAIN, "CANCELLED"),
    Race("due", "promote", "retry", WAITS, IN_VAIN, "QUEUED"),
    Race("due", "retry", "promote", PASSES, IN_VAIN, "QUEUED"),
    Race("due", "promote", "promote", PASSES, IN_VAIN, "QUEUED"),
    Race("due", "retry", "cancel", WAITS, APPLIES, "CANCELLED"),
    Race("due", "cancel", "retry", WAITS, IN_VAIN, "CANCELLED"),
    Race("due", "retry", "retry", WAITS, IN_VAIN, "QUEUED"),
    Race("dead", "retry", "cancel", WAITS, IN_VAIN, "QUEUED"),
    Race("dead", "cancel", "retry", WAITS, IN_VAIN, "CANCELLED"),
    Race("dead", "cancel", "force_retry", WAITS, IN_VAIN, "CANCELLED"),
    Race("dead", "cancel", "cancel", WAITS, IN_VAIN, "CANCELLED"),
    Race("dead", "retry", "retry", WAITS, IN_VAIN, "QUEUED"),
    Race("failed", "force_retry", "cancel", WAITS, IN_VAIN, "QUEUED"),
    Race("cancelled", "force_retry", "force_retry", WAITS, IN_VAIN, "QUEUED"),
]


@pytest.mark.case("B19")
@pytest.mark.case("B99")
@pytest.mark.parametrize("race", RACES, ids=str)
def test_each_order_of_two_rivals_ends_in_one_legal_state(rivals: Rivals, race: Race) -> None:
    first, second = rivals.session(), rivals.session(lock_timeout="10s")
    audit.install(rivals.observer)
    kind, columns = STARTS[race.start]
    id_ = put(first, kind, **{name: sql.SQL(text) for name, text in columns.items()})

    with first.transaction():
        run_sync(first, OPERATIONS[race.first](id_))
        future = rivals.start(lambda: run_sync(second, OPERATIONS[race.second](id_)))
        assert rivals.waits(second, future) == race.waits
    answer = future.result()

    assert bool(getattr(answer, "moved", answer)) == race.applies
    assert status(rivals.observer, id_) == race.end
    audit.check(rivals.observer)


def test_a_claimed_job_that_was_cancelled_meanwhile_is_told_to_stop(rivals: Rivals) -> None:
    first, second = rivals.session(), rivals.session()
    id_ = put(first, "QUEUED")
    with first.transaction():
        run_sync(first, OPERATIONS["claim"](id_))
        future = rivals.start(lambda: run_sync(second, OPERATIONS["cancel"](id_)))
        assert rivals.waits(second, future)
    future.result()
    assert job(rivals.observer, id_)["cancel_requested_at"] is not None
    assert run_sync(first, STORE.runs.extend([Claim(id_, OTHER_LEASE)], 60)) == {
        Claim(id_, OTHER_LEASE): Extension(extended=True, cancelled=True)
    }


@pytest.mark.case("B79")
def test_a_reference_to_a_job_hides_it_from_no_claim(rivals: Rivals) -> None:
    first, second = rivals.session(), rivals.session()
    id_ = put(first, "QUEUED")
    with first.transaction():  # what a foreign key to the row takes
        first.execute("SELECT FROM jobq.job WHERE id = %s FOR KEY SHARE", (id_,))
        assert [found.id for found in run_sync(second, claim(LEASE))] == [id_]


# --- order of locks -------------------------------------------------------------------------------

BATCHES: dict[str, Callable[[list[int]], Call[Any]]] = {
    "complete": lambda ids: complete(*(Claim(id_, LEASE) for id_ in ids)),
    "fail": lambda ids: fail(*(Claim(id_, LEASE) for id_ in ids)),
    "release": lambda ids: STORE.runs.release([Claim(id_, LEASE) for id_ in ids], KEEP_PAYLOAD),
    "cancel": lambda ids: STORE.jobs.cancel(ids, KEEP_PAYLOAD),
}


@pytest.mark.case("B60")
@pytest.mark.parametrize("first", BATCHES)
@pytest.mark.parametrize("second", BATCHES)
def test_batches_in_opposite_orders_do_not_deadlock(
    rivals: Rivals, first: str, second: str
) -> None:
    one_, two, blocker = rivals.session(), rivals.session(), rivals.session()
    ids = [put(one_, "RUNNING") for _ in range(5)]
    warm(one_, BATCHES[first]([-1, -2]))  # the plan that stays is the one that must keep the order
    with blocker.transaction():
        blocker.execute("SELECT FROM jobq.job WHERE id = %s FOR UPDATE", (ids[2],))
        future = rivals.start(lambda: run_sync(one_, BATCHES[first](ids[::-1])))
        assert rivals.waits(one_, future)
        free = _free(rivals, ids)
        assert free == ids[3:], "locks are taken in the order of ids"
        other = rivals.start(lambda: run_sync(two, BATCHES[second](ids)))
        assert rivals.waits(two, other)
    assert len(future.result()) == 5
    other.result()


def test_dismissals_in_opposite_orders_do_not_deadlock(rivals: Rivals) -> None:
    one_, two, blocker = rivals.session(), rivals.session(), rivals.session()
    ids = [put(one_, "DEAD") for _ in range(5)]
    with blocker.transaction():
        blocker.execute("SELECT FROM jobq.job_archive WHERE id = %s FOR UPDATE", (ids[2],))
        future = rivals.start(lambda: run_sync(one_, BATCHES["cancel"](ids[::-1])))
        assert rivals.waits(one_, future)
        assert _free(rivals, ids, "job_archive") == ids[3:]
        other = rivals.start(lambda: run_sync(two, BATCHES["cancel"](ids)))
        assert rivals.waits(two, other)
    assert len(future.result()) == 5
    assert other.result() == {}


def _free(rivals: Rivals, ids: list[int], table: str = "job") -> list[int]:
    query = sql.SQL("SELECT id FROM {} WHERE id = ANY (%s) ORDER BY id FOR UPDATE SKIP LOCKED")
    rows = rivals.observer.execute(query.format(sql.Identifier("jobq", table)), (ids,))
    return [id_ for (id_,) in rows]
