"""Concurrency keys: how many run, in which order, and who lets whom pass."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg import sql
from tests.store.limited import (
    everywhere,
    finish,
    held,
    ids,
    limit,
    queued,
    reclaim,
    release,
    review,
    serve,
    slots,
    start,
    take,
)
from tests.store.support import KEEP_PAYLOAD, STORE, fail, put, status

from jobq.db import Conn
from jobq.model import ClaimedJob, Lane
from jobq.store import BEGINNING, run_sync


@pytest.fixture(autouse=True)
def _worker(undone: Conn) -> None:
    serve(undone)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("cap", [1, 3])
def test_jobs_of_a_key_start_in_its_order_over_lanes_tenants_and_queues(
    undone: Conn, cap: int, seed: int
) -> None:
    draw = random.Random(seed)
    limit(undone, "key", max_running=cap)
    waiting = _scatter(undone, draw, 24)
    running: list[ClaimedJob] = []
    for _ in range(400):
        lanes = everywhere(undone)
        draw.shuffle(lanes)  # workers come in any order, and see some lanes only
        new = start(undone, *lanes[: draw.randint(1, len(lanes))], free=draw.choice([1, 2, 100]))
        first = waiting[: cap - len(running)]
        assert set(ids(new)) <= set(first), "a free slot is for the first ones that wait"
        waiting = [id_ for id_ in waiting if id_ not in ids(new)]
        running += new
        assert slots(undone, "key:k1") == set(ids(running))
        if running and draw.random() < 0.5:
            finish(undone, running.pop(draw.randrange(len(running))))
    assert not waiting, "none is left behind, without any review"


def _scatter(conn: Conn, draw: random.Random, many: int) -> list[int]:
    """Jobs of one key in many lanes; their ids in the key's order."""
    now = datetime.now(UTC)
    made = []
    for _ in range(many):
        columns: dict[str, Any] = {
            "queue": draw.choice("qr"), "tenant": draw.choice("st"), "kind": draw.choice("kl"),
            "priority": draw.choice([-1, 0, 5]), "run_at": now - timedelta(seconds=draw.randint(60, 64)),
        }  # fmt: skip
        (id_,) = queued(conn, **columns)
        made.append((-columns["priority"], columns["run_at"], id_))
    return [id_ for *_, id_ in sorted(made)]


def test_all_slots_of_a_key_are_used_by_one_claim(undone: Conn) -> None:
    limit(undone, "key", max_running=3)
    jobs = queued(undone, 5)
    assert ids(start(undone)) == jobs[:3]


@pytest.mark.parametrize("cap", [1, 2])
def test_a_claim_that_meets_a_later_job_first_leaves_the_slot_to_the_earlier(
    undone: Conn, cap: int
) -> None:
    limit(undone, "key", max_running=cap)
    late = queued(undone, tenant="late", priority=0)
    early = queued(undone, cap, tenant="early", priority=5)
    claimed = run_sync(undone, take(Lane("mail", "late", 0)))
    assert [(b.id, b.reason, b.held) for b in claimed.blocked] == [(late[0], "key_turn", True)]
    (first, *_) = start(undone, Lane("mail", "early", 5))
    assert first.id == early[0]
    finish(undone, first)
    assert held(undone) == {}


def test_a_job_in_backoff_holds_no_key(undone: Conn) -> None:
    failing, other = queued(undone, 2)
    (run,) = start(undone)
    assert run.id == failing
    run_sync(undone, fail(run.claim, delay=3600))
    assert ids(start(undone)) == [other]
    undone.execute("UPDATE jobq.job SET run_at = now() WHERE id = %s", (failing,))
    assert run_sync(undone, STORE.upkeep.promote(BEGINNING, 10)).moved == 1
    assert start(undone) == [], "it waits for its key as any other"
    assert held(undone) == {failing: "key:k1"}


@pytest.mark.parametrize("hindrance", ["paused queue", "paused tenant", "paused kind", "unserved queue", "tenant at its cap", "not due"])  # fmt: skip
def test_better_jobs_that_cannot_start_let_others_of_their_key_pass(
    undone: Conn, hindrance: str
) -> None:
    stuck = {"tenant": "stuck", "queue": "stuck", "kind": "stuck"}
    queued(undone, 15, priority=9, **stuck)
    (other,) = queued(undone)
    match hindrance.split():
        case ["paused", which]:
            limit(undone, which, "stuck", paused=True)
        case ["unserved", _]:
            run_sync(undone, STORE.upkeep.leave("w"))
            serve(undone, queues=["mail"])
        case ["tenant", *_]:
            limit(undone, "tenant", "stuck", max_running=1)
            put(undone, "QUEUED", tenant="stuck")
            assert len(start(undone, Lane("default", "stuck", 0))) == 1
        case _:
            undone.execute(
                "UPDATE jobq.job SET run_at = now() + interval '1 hour' WHERE queue = 'stuck'"
            )
    assert ids(start(undone)) == [other]


def test_held_ones_too_let_others_of_their_key_pass_when_they_cannot_start_any_more(
    undone: Conn,
) -> None:
    (running,) = queued(undone, priority=10)
    start(undone, Lane("mail", "acme", 10))
    queued(undone, 30, priority=9, queue="stuck")
    (other,) = queued(undone)
    assert start(undone, *everywhere(undone)) == []
    assert len(held(undone)) == 31
    limit(undone, "queue", "stuck", paused=True)
    reclaim(undone)
    undone.execute("UPDATE jobq.job SET run_at = now() + interval '1 h' WHERE id = %s", (running,))
    review(undone)
    assert ids(start(undone)) == [other]


def test_the_key_itself_then_the_kind_by_hand_then_the_kind_s_handler_set_its_cap(
    undone: Conn,
) -> None:
    def starts() -> int:
        started = start(undone)
        release(undone, *(job.claim for job in started))
        undone.execute("UPDATE jobq.job SET held_by = NULL")
        return len(started)

    queued(undone, 6)
    assert starts() == 1
    run_sync(undone, STORE.upkeep.register_kinds([{"kind": "send", "max_per_key": 2}]))
    assert starts() == 2
    limit(undone, "kind", max_per_key=3)
    assert starts() == 3
    limit(undone, "key", max_running=4)
    assert starts() == 4
    limit(undone, "key", max_running=1)
    assert starts() == 1


def test_keys_have_nothing_to_do_with_one_another_but_are_shared_by_all_tenants(
    undone: Conn,
) -> None:
    (mine,) = queued(undone)
    queued(undone, tenant="other")
    (another,) = queued(undone, concurrency_key="k2")
    assert set(ids(start(undone, *everywhere(undone)))) == {mine, another}


def test_a_reclaimed_job_takes_its_turn_among_the_others_of_its_key(undone: Conn) -> None:
    first, second, third = queued(undone, 3)
    start(undone)
    assert reclaim(undone) == 1
    assert ids(start(undone)) == [first]
    assert held(undone) == {second: "key:k1", third: "key:k1"}


def test_when_the_better_one_is_cancelled_a_review_puts_the_next_back(undone: Conn) -> None:
    (best,) = queued(undone, priority=5)
    (next_,) = queued(undone)
    assert start(undone) == []
    assert held(undone) == {next_: "key:k1"}
    run_sync(undone, STORE.jobs.cancel([best], KEEP_PAYLOAD))
    review(undone)
    assert ids(start(undone)) == [next_]


def test_a_key_may_be_any_text(undone: Conn) -> None:
    key = "100 % 'of' {it}: \\ \"key:kind:\" ü"
    first, second = queued(undone, 2, concurrency_key=key)
    (run,) = start(undone)
    assert held(undone) == {second: f"key:{key}"}
    finish(undone, run)
    assert ids(start(undone)) == [second]
    assert status(undone, first) == "DONE"


def test_a_job_without_a_due_time_of_its_own_keeps_its_place(undone: Conn) -> None:
    """Jobs of one instant go by id."""
    jobs = queued(undone, 4, run_at=sql.SQL("date_trunc('minute', now()) - interval '1 min'"))
    order = []
    for _ in jobs:
        (run,) = start(undone, *reversed(everywhere(undone)))
        order.append(run.id)
        finish(undone, run)
    assert order == jobs
