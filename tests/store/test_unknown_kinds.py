"""What a claim does with kinds that its worker does not know, and what puts such jobs back."""

from __future__ import annotations

from dataclasses import replace

from tests.store.limited import MAIL, held, queued, review, serve, slots
from tests.store.support import SETTINGS, STORE, Rivals, job

from jobq.db import Conn
from jobq.store import Claimed, Share, Span, run_sync

WAITS = "unknown_kind:new in mail"


def claim(conn: Conn, *left_out: str) -> Claimed:
    """A claim of a worker that knows kind `send` alone."""
    settings = replace(SETTINGS, kinds=["send"])
    return run_sync(conn, STORE.runs.claim(7, 10, [Share(10, [Span(MAIL)])], settings, left_out))


def test_unknown_kinds_are_held_without_an_attempt_and_known_ones_start(undone: Conn) -> None:
    (unknown,) = queued(undone, kind="new", concurrency_key=None)
    (known,) = queued(undone, concurrency_key=None)
    found = claim(undone)
    assert [j.id for j in found.jobs] == [known]
    assert [(b.id, b.reason, b.scope, b.held) for b in found.blocked] == [
        (unknown, "unknown_kind", WAITS, True)
    ]
    assert held(undone) == {unknown: WAITS}
    assert job(undone, unknown)["attempts"] == 0


def test_a_flood_of_an_unknown_kind_leaves_the_claim_index_in_large_bites(undone: Conn) -> None:
    ids = queued(undone, 300, kind="new")
    claim(undone)
    assert held(undone) == dict.fromkeys(ids, WAITS)


def test_where_another_worker_knows_the_kind_its_jobs_stay_and_are_walked_over(
    undone: Conn,
) -> None:
    serve(undone, "other", ["mail"], kinds=["new"])
    queued(undone, 20, kind="new", concurrency_key=None)
    (known,) = queued(undone, concurrency_key=None)
    found = claim(undone)
    assert (found.jobs, found.walked) == ([], None)
    assert {(b.scope, b.held) for b in found.blocked} == {(WAITS, False)}
    found = claim(undone, WAITS)
    assert [j.id for j in found.jobs] == [known]
    assert found.blocked == []
    assert found.walked is not None
    assert held(undone) == {}


def test_a_worker_that_drains_or_serves_other_queues_does_not_count(undone: Conn) -> None:
    serve(undone, "drains", kinds=["new"], draining=True)
    serve(undone, "elsewhere", ["default"], kinds=["new"])
    (unknown,) = queued(undone, kind="new")
    claim(undone)
    assert held(undone) == {unknown: WAITS}
    assert review(undone)[0] == 0
    serve(undone, "new", ["mail"], kinds=["new"])
    assert review(undone)[0] == 1
    assert held(undone) == {}


def test_an_unknown_kind_takes_no_slot_and_does_not_come_first_in_its_key(undone: Conn) -> None:
    serve(undone, "this", kinds=["send"])
    queued(undone, kind="new", priority=5)
    queued(undone, kind="new")
    (known,) = queued(undone)
    assert [j.id for j in claim(undone).jobs] == [known]
    assert slots(undone, "key:k1") == {known}


def test_a_worker_that_registers_while_another_holds_its_jobs_finds_them_at_its_next_look(
    rivals: Rivals,
) -> None:
    """Forced: the claim saw no worker with the kind and has not committed when the worker registers and looks."""
    claiming, registering = rivals.session(), rivals.session()
    ids = queued(registering, 3, kind="new", concurrency_key=None)
    with claiming.transaction():
        claim(claiming)
        serve(registering, "new", kinds=["new"])
        assert review(registering)[0] == 0
        assert held(registering) == {}
    assert held(registering) == dict.fromkeys(ids, WAITS)
    assert review(registering)[0] == 3
    assert held(registering) == {}
