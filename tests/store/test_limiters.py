"""What operators set: what is left out stays, workers learn of it, and rivals go one after another."""

from __future__ import annotations

from typing import Any

import pytest
from tests.store.support import LEASE, OTHER_LEASE, STORE, Rivals, claim, complete, one, put

from jobq import limits
from jobq.db import Conn
from jobq.model import Claim
from jobq.store import run_sync

LIMITERS = STORE.limiters


def change(conn: Conn, scope: str, name: str, **given: Any) -> dict[str, Any]:
    """Set something as HTTP does, and return what is then shown."""
    run_sync(conn, LIMITERS.set_limiter(scope, name, limits.check(scope, given)))
    return show(conn, scope, name)


def show(conn: Conn, scope: str, name: str) -> dict[str, Any]:
    return limits.view(run_sync(conn, LIMITERS.find_limiter(scope, name)))


def test_what_was_never_set_is_shown_as_it_holds(undone: Conn) -> None:
    assert show(undone, "tenant", "acme") == {
        "tenant": "acme", "weight": 1.0, "queueWeights": {}, "maxRunning": None, "rate": None, "paused": False,
        "slotsHeld": 0,
    }  # fmt: skip
    assert show(undone, "key", "any key") == {
        "key": "any key", "maxRunning": None, "rate": None, "slotsHeld": 0,
    }  # fmt: skip


def test_what_a_change_leaves_out_stays_and_none_resets(undone: Conn) -> None:
    change(undone, "kind", "k", weight=3, max_running=5, max_per_key=2)
    rate = {"limit": 100, "period_seconds": 60, "burst": 10}
    shown = change(undone, "kind", "k", rate=rate, paused=True)
    expected = {
        "kind": "k", "weight": 3.0, "maxRunning": 5, "maxPerKey": 2,
        "rate": {"limit": 100, "periodSeconds": 60.0, "burst": 10}, "paused": True, "defaults": None, "slotsHeld": 0,
    }  # fmt: skip
    assert shown == expected
    assert change(undone, "kind", "k", max_running=None) == {**expected, "maxRunning": None}
    left = change(undone, "kind", "k", weight=None, max_per_key=None, rate=None, paused=None)
    assert left == show(undone, "kind", "another") | {"kind": "k"}


def test_a_new_rate_without_burst_has_a_burst_of_one(undone: Conn) -> None:
    change(undone, "tenant", "t", rate={"limit": 5, "period_seconds": 1, "burst": 5})
    shown = change(undone, "tenant", "t", rate={"limit": 7, "period_seconds": 2})
    assert shown["rate"] == {"limit": 7, "periodSeconds": 2.0, "burst": 1}


def test_weights_by_queue_are_merged_and_taken_out_one_by_one(undone: Conn) -> None:
    change(undone, "tenant", "t", weight=2)
    assert change(undone, "tenant", "t", weight=4, queue="mail")["queueWeights"] == {"mail": 4.0}
    shown = change(undone, "tenant", "t", queue_weights={"slow": 0.5, "mail": 3})
    assert shown["queueWeights"] == {"mail": 3.0, "slow": 0.5}
    assert shown["weight"] == 2.0
    assert change(undone, "tenant", "t", weight=None, queue="slow")["queueWeights"] == {"mail": 3.0}
    assert change(undone, "tenant", "t", queue_weights={"mail": None})["queueWeights"] == {}
    assert change(undone, "tenant", "t", queue_weights={"a": 1})["queueWeights"] == {"a": 1.0}
    assert change(undone, "tenant", "t", queue_weights=None)["queueWeights"] == {}
    stored = one(undone, "SELECT queue_weights FROM jobq.limiter WHERE name = 't'")
    assert stored == (None,)


def test_every_change_has_a_version_of_its_own_and_tells_the_workers(conn: Conn) -> None:
    conn.execute(f"LISTEN {STORE.statements.channel}")
    change(conn, "tenant", "a", weight=2)
    change(conn, "queue", "q", paused=True)
    change(conn, "tenant", "a", weight=None)
    rows = conn.execute("SELECT name, version FROM jobq.limiter ORDER BY version").fetchall()
    assert rows == [("q", 2), ("a", 3)]
    heard = [notify.payload for notify in conn.notifies(timeout=10, stop_after=3)]
    assert heard == ["l", "l", "l"]


def test_rivals_wait_for_one_another_and_neither_change_is_lost(rivals: Rivals) -> None:
    first, second = rivals.session(), rivals.session()
    with first.transaction():
        change(first, "tenant", "t", weight=2)
        rival = rivals.start(lambda: change(second, "tenant", "t", max_running=7))
        assert rivals.waits(second, rival)
    shown = rival.result()
    assert (shown["weight"], shown["maxRunning"]) == (2.0, 7)
    assert one(rivals.observer, "SELECT version FROM jobq.limiter") == (2,)


def test_a_bucket_starts_with_its_burst_and_is_kept_when_the_rate_changes(undone: Conn) -> None:
    change(undone, "key", "k", rate={"limit": 10, "period_seconds": 60, "burst": 4})
    bucket = "SELECT scope, tokens FROM jobq.rate_bucket"
    assert one(undone, bucket) == ("key:k", 4.0)
    undone.execute("UPDATE jobq.rate_bucket SET tokens = 0.5")
    change(undone, "key", "k", rate={"limit": 20, "period_seconds": 60, "burst": 9})
    change(undone, "key", "k", max_running=3)
    assert one(undone, bucket) == ("key:k", 0.5)


def test_slots_that_runs_hold_are_counted(undone: Conn) -> None:
    ids = [put(undone, "RUNNING") for _ in range(2)]
    undone.execute(
        "INSERT INTO jobq.cap_slot (scope, n, lease, job_id) VALUES ('tenant:t', 0, %s, %s), ('tenant:t', 1, %s, %s),"
        " ('tenant:t', 2, NULL, NULL), ('queue:t', 0, %s, %s)",
        (LEASE, ids[0], LEASE, ids[1], LEASE, ids[0]),
    )
    assert show(undone, "tenant", "t")["slotsHeld"] == 2
    (listed,) = run_sync(undone, LIMITERS.list_limiters("tenant", also=["t"]))
    assert listed["slots_held"] == 2


def test_a_kind_s_decorator_is_shown_beside_what_is_set(undone: Conn) -> None:
    kind = {
        "kind": "k", "queue": "q", "priority": 7, "max_attempts": 2, "timeout": 1.5, "max_per_key": 3,
    }  # fmt: skip
    run_sync(undone, STORE.upkeep.register_kinds([kind]))
    shown = change(undone, "kind", "k", max_per_key=5)
    assert shown["maxPerKey"] == 5
    assert shown["defaults"] == {
        "queue": "q", "priority": 7, "maxAttempts": 2, "timeoutSeconds": 1.5, "maxPerKey": 3,
    }  # fmt: skip
    assert one(undone, "SELECT jobq.key_cap('x', 'k')") == (5,)
    change(undone, "kind", "k", max_per_key=None)
    assert one(undone, "SELECT jobq.key_cap('x', 'k')") == (3,)


def test_lists_hold_what_is_set_and_what_is_named_in_order_and_page_by_page(undone: Conn) -> None:
    for name in ("b", "d", "a"):
        change(undone, "tenant", name, weight=2)
    change(undone, "tenant", "reset", weight=2)
    change(undone, "tenant", "reset", weight=None)
    change(undone, "queue", "other", weight=2)
    change(undone, "tenant", "paused", paused=True)

    def names(**page: Any) -> list[str]:
        call = LIMITERS.list_limiters("tenant", also=["c", "d", 'odd "name", {}\\'], **page)
        return [record["name"] for record in run_sync(undone, call)]

    assert names() == ["a", "b", "c", "d", 'odd "name", {}\\', "paused"]
    assert names(most=2) == ["a", "b"]
    assert names(most=2, after="b") == ["c", "d"]
    assert names(most=3, after="d") == ['odd "name", {}\\', "paused"]


def test_kinds_are_listed_that_workers_know_or_that_something_is_set_for(undone: Conn) -> None:
    kind = dict.fromkeys(("queue", "priority", "max_attempts", "timeout", "max_per_key"))
    run_sync(undone, STORE.upkeep.register_kinds([{"kind": "known", **kind}]))
    change(undone, "kind", "set", paused=True)
    listed = run_sync(undone, LIMITERS.list_limiters("kind"))
    assert [(row["name"], row["registered"]) for row in listed] == [("known", True), ("set", False)]


def test_what_is_paused_is_counted_and_named(undone: Conn) -> None:
    assert run_sync(undone, LIMITERS.list_paused()) == {}
    for name in ("b", "a", "c"):
        change(undone, "tenant", name, paused=True)
    change(undone, "tenant", "c", paused=False)
    change(undone, "tenant", "d", max_running=1)
    change(undone, "kind", "k", paused=True)
    assert run_sync(undone, LIMITERS.list_paused()) == {
        "tenant": (2, ["a", "b"]),
        "kind": (1, ["k"]),
    }
    assert run_sync(undone, LIMITERS.list_paused(1))["tenant"] == (2, ["a"])


@pytest.mark.parametrize("key", ["a b", "ключ", "x" * 255, "50%", "{}", 'say "hi"\\'])
def test_keys_may_be_any_text(undone: Conn, key: str) -> None:
    assert change(undone, "key", key, max_running=4)["key"] == key
    assert [row["name"] for row in run_sync(undone, LIMITERS.list_limiters("key"))] == [key]


@pytest.mark.parametrize("scope", ["tenant", "queue", "kind"])
def test_what_runs_already_counts_under_a_new_cap(undone: Conn, scope: str) -> None:
    name = {"tenant": "default", "queue": "default", "kind": "test"}[scope]
    conn = undone
    running = [put(conn, "RUNNING") for _ in range(3)]
    waiting = [put(conn, "QUEUED") for _ in range(4)]
    run_sync(conn, LIMITERS.set_limiter(scope, name, {"max_running": 2}))
    assert run_sync(conn, claim(OTHER_LEASE)) == []
    run_sync(conn, complete(Claim(running[0], LEASE), Claim(running[1], LEASE)))
    conn.execute("UPDATE jobq.job SET held_by = NULL")
    assert [job.id for job in run_sync(conn, claim(OTHER_LEASE))] == waiting[:1]
