"""Why a job waits, on real rows: what the database tells is what a claim does, and asking changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from psycopg import sql
from tests.store.support import (
    LEASE,
    OTHER_LEASE,
    SETTINGS,
    STORE,
    Rivals,
    complete,
    one,
    put,
)

from jobq import limits
from jobq.db import Conn
from jobq.model import Claim, Lane
from jobq.store import Ahead, Facts, Share, Span, run_sync
from jobq.why import Why, explain


def work(conn: Conn, queues: list[str] | None = None, **columns: Any) -> None:
    """A live worker's row."""
    values = {
        "id": f"w{one(conn, 'SELECT count(*) FROM jobq.worker')[0] + 1}", "host": "h", "pid": 1, "version": "1",
        "queues": queues, "kinds": ["test"], "slots": 20, "express": 2,
        "expires_at": sql.SQL("now() + interval '1 minute'"), "finished_per_second": 4.0, **columns,
    }  # fmt: skip
    conn.execute(
        sql.SQL("INSERT INTO jobq.worker ({}) VALUES ({})").format(
            sql.SQL(", ").join(map(sql.Identifier, values)),
            sql.SQL(", ").join(
                v if isinstance(v, sql.Composable) else sql.Literal(v) for v in values.values()
            ),
        )
    )


def limit(conn: Conn, scope: str, name: str, **given: Any) -> None:
    """Set something as HTTP does."""
    run_sync(conn, STORE.limiters.set_limiter(scope, name, limits.check(scope, given)))


def take(conn: Conn, lease: int, queue: str = "default", tenant: str = "default") -> Any:
    """A claim of one lane."""
    share = Share(100, [Span(Lane(queue, tenant, 0))])
    return run_sync(conn, STORE.runs.claim(lease, 100, [share], SETTINGS))


def facts(conn: Conn, id_: int) -> Facts:
    found = run_sync(conn, STORE.why.why(id_))
    assert found is not None
    return found


def ahead(conn: Conn, id_: int, most: int = 10_000) -> Ahead:
    return run_sync(conn, STORE.why.ahead(facts(conn, id_), most))


def why(conn: Conn, id_: int) -> Why:
    return explain(facts(conn, id_), ahead(conn, id_))


# --- what is in its way ---------------------------------------------------------------------------


def test_a_job_that_is_not_there_has_no_reason(undone: Conn) -> None:
    assert run_sync(undone, STORE.why.why(1)) is None


@pytest.mark.parametrize(
    "status", ["SCHEDULED", "QUEUED", "RUNNING", "DONE", "CANCELLED", "DEAD", "FAILED"]
)
def test_a_job_in_any_status_has_a_reason(undone: Conn, status: str) -> None:
    work(undone)
    expected = {"SCHEDULED": "scheduled", "QUEUED": "next", "RUNNING": "running"}
    found = why(undone, put(undone, status))
    assert found.reason == expected.get(status, "finished")


@pytest.mark.parametrize(
    ("queues", "kinds", "reason"),
    [
        (["mail"], ["test"], "no_worker"),
        (["default"], ["other"], "unknown_kind"),
        (None, [], "unknown_kind"),
        (["mail", "default"], ["test"], "next"),
    ],
)
def test_workers_count_that_serve_the_queue_and_know_the_kind(
    undone: Conn, queues: list[str] | None, kinds: list[str], reason: str
) -> None:
    work(undone, ["default"], expires_at=sql.SQL("now() - interval '1 second'"))
    work(undone, queues, kinds=kinds)
    assert why(undone, put(undone, "QUEUED")).reason == reason


LIMITS: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "queue_paused": ("queue", "default", {"paused": True}),
    "tenant_paused": ("tenant", "default", {"paused": True}),
    "kind_paused": ("kind", "test", {"paused": True}),
    "queue_cap": ("queue", "default", {"max_running": 1}),
    "tenant_cap": ("tenant", "default", {"max_running": 1}),
    "kind_cap": ("kind", "test", {"max_running": 1}),
    "key_cap": ("key", "order-7", {"max_running": 1}),
    "queue_rate": ("queue", "default", {"rate": {"limit": 1, "period_seconds": 3600}}),
    "tenant_rate": ("tenant", "default", {"rate": {"limit": 1, "period_seconds": 3600}}),
    "kind_rate": ("kind", "test", {"rate": {"limit": 1, "period_seconds": 3600}}),
    "key_rate": ("key", "order-7", {"max_running": 5, "rate": {"limit": 1, "period_seconds": 3600}}),
}  # fmt: skip


@pytest.mark.parametrize("reason", LIMITS)
def test_a_limit_that_blocks_a_claim_is_the_reason_before_and_after(
    undone: Conn, reason: str
) -> None:
    work(undone)
    scope, name, given = LIMITS[reason]
    first, second = (put(undone, "QUEUED", concurrency_key="order-7") for _ in range(2))
    if scope != "key":  # one that every job has: with its slots, it is in no one's way
        limit(undone, "key", "order-7", max_running=5)
    limit(undone, scope, name, **given)
    before = why(undone, first)
    answer = take(undone, LEASE)
    if reason.endswith("_paused"):
        assert before.reason == reason
        assert [blocked.reason for blocked in answer.blocked] == [reason, reason]
    else:
        assert before.reason == "next"
        assert [job.id for job in answer.jobs] == [first]
    found = why(undone, second)
    assert answer.blocked[-1].reason == found.reason == reason
    if reason.endswith("_cap"):
        assert (found.data["cap"], found.data["heldBy"]) == (1, [first])
        run_sync(undone, complete(Claim(first, LEASE)))
        assert why(undone, second).reason == "next"
    if reason.endswith("_rate"):
        assert 3400 < found.data["inSeconds"] < 3800


def test_jobs_of_its_key_that_come_first_are_named(undone: Conn) -> None:
    work(undone)
    first, second, third = (put(undone, "QUEUED", concurrency_key="k") for _ in range(3))
    high = put(undone, "QUEUED", concurrency_key="k", priority=5)
    put(undone, "QUEUED", concurrency_key="another")
    found = why(undone, third)
    assert (found.reason, found.data["first"]) == ("key_turn", [high, first, second])
    assert why(undone, high).reason == "next"
    limit(undone, "key", "k", max_running=4)
    assert why(undone, third).reason == "next"


def test_jobs_of_its_key_that_cannot_start_let_it_pass(undone: Conn) -> None:
    work(undone, ["default"])
    limit(undone, "tenant", "paused", paused=True)
    put(undone, "QUEUED", concurrency_key="k", queue="nobody")
    put(undone, "QUEUED", concurrency_key="k", tenant="paused")
    assert why(undone, put(undone, "QUEUED", concurrency_key="k")).reason == "next"


def test_at_most_twenty_holders_are_named(undone: Conn) -> None:
    limit(undone, "tenant", "default", max_running=30)
    ids = [put(undone, "QUEUED") for _ in range(31)]
    take(undone, LEASE)
    (found,) = facts(undone, ids[-1]).limits
    assert (found.taken, found.holders) == (30, ids[:20])


@pytest.mark.parametrize(("scope", "name"), [("tenant", "default"), ("key", "k")])
def test_what_runs_beyond_a_cap_that_was_lowered_is_counted(
    undone: Conn, scope: str, name: str
) -> None:
    limit(undone, scope, name, max_running=30)
    keyed = {"concurrency_key": "k"} if scope == "key" else {}
    ids = [put(undone, "QUEUED", **keyed) for _ in range(31)]
    take(undone, LEASE)
    limit(undone, scope, name, max_running=1)
    found = {each.which: each for each in facts(undone, ids[-1]).limits}[scope]
    assert (found.cap, found.taken, found.holders) == (1, 30, ids[:20])


def test_asking_changes_nothing_and_waits_for_nobody(rivals: Rivals) -> None:
    conn = rivals.observer
    work(conn)
    limit(conn, "kind", "test", max_running=2, rate={"limit": 5, "period_seconds": 60, "burst": 5})
    put(conn, "QUEUED", concurrency_key="k")
    last = put(conn, "QUEUED", concurrency_key="k")
    take(conn, LEASE)
    everything = (
        "SELECT array(SELECT j::text FROM jobq.job j ORDER BY id), array(SELECT s::text FROM jobq.cap_slot s ORDER BY 1),"
        " array(SELECT b::text FROM jobq.rate_bucket b ORDER BY 1)"
    )
    before = one(conn, everything)
    rival = rivals.session()
    with rival.transaction(force_rollback=True):
        for table in ("job", "cap_slot", "rate_bucket", "limiter", "worker"):
            rival.execute(
                sql.SQL("SELECT FROM {} FOR UPDATE").format(sql.Identifier("jobq", table))
            )
        session = rivals.session(lock_timeout="1ms")
        assert why(session, last).reason == "key_cap"
    assert one(conn, everything) == before


# --- what comes first -----------------------------------------------------------------------------


def test_jobs_of_its_tenant_come_first_by_priority_time_and_id(undone: Conn) -> None:
    work(undone, ["default", "other"])
    early = sql.SQL("now() - interval '1 hour'")
    put(undone, "QUEUED", priority=1)
    put(undone, "QUEUED", queue="other", run_at=early)
    put(undone, "QUEUED", run_at=early)
    put(undone, "QUEUED")
    id_ = put(undone, "QUEUED")
    put(undone, "QUEUED")
    put(undone, "QUEUED", priority=-1, run_at=early)
    put(undone, "QUEUED", queue="nobody", priority=9)
    put(undone, "QUEUED", held_by="kind:x", priority=9)
    found = ahead(undone, id_)
    assert (found.own, found.other, found.at_least) == (4, 0, False)


def test_other_tenants_come_as_often_as_their_backlog_and_weight_say(undone: Conn) -> None:
    work(undone)
    for tenant, backlog in (("flood", 50), ("quiet", 1), ("heavy", 50), ("light", 50)):
        for _ in range(backlog):
            put(undone, "QUEUED", tenant=tenant)
    limit(undone, "tenant", "heavy", weight=3)
    limit(undone, "tenant", "light", weight=0.5)
    ids = [put(undone, "QUEUED", tenant="mine") for _ in range(4)]
    assert ahead(undone, ids[0]).other == 1 + 1 + 3 + 0  # a half is rounded to even
    assert ahead(undone, ids[3]).other == 4 + 1 + 12 + 2
    limit(undone, "tenant", "mine", weight=2)
    assert ahead(undone, ids[3]).other == 2 + 1 + 6 + 1
    limit(undone, "tenant", "mine", weight=4, queue="default")
    assert ahead(undone, ids[3]).other == 1 + 1 + 3 + 0


def test_a_tenant_in_many_queues_and_priorities_counts_once(undone: Conn) -> None:
    work(undone)
    for n in range(12):
        put(undone, "QUEUED", tenant="wide", queue=f"q{n % 4}", priority=n % 3)
    assert ahead(undone, put(undone, "QUEUED")).other == 1


def test_who_cannot_start_comes_not_first(undone: Conn) -> None:
    work(undone, ["default", "stopped"])
    limit(undone, "tenant", "paused", paused=True)
    limit(undone, "queue", "stopped", paused=True)
    put(undone, "QUEUED", tenant="paused")
    put(undone, "QUEUED", tenant="other", queue="stopped")
    put(undone, "QUEUED", tenant="other", queue="elsewhere")
    put(undone, "QUEUED", tenant="other", held_by="key:x")
    put(undone, "QUEUED", queue="stopped", priority=9)
    put(undone, "SCHEDULED", tenant="later")
    found = ahead(undone, put(undone, "QUEUED"))
    assert (found.own, found.other) == (0, 0)


def test_counting_ends_where_it_is_told_to(undone: Conn) -> None:
    work(undone)
    for n in range(30):
        put(undone, "QUEUED", tenant=f"t{n}")
    ids = [put(undone, "QUEUED") for _ in range(30)]
    few = ahead(undone, ids[-1], 10)
    assert few.at_least
    assert (few.own, few.other) == (10, 9)  # the tenth lane is its own
    assert not ahead(undone, ids[-1], 100).at_least


def test_slots_are_those_of_workers_that_would_claim_it(undone: Conn) -> None:
    work(undone, ["default"], slots=3, express=1, finished_per_second=2.0, run_seconds=0.5)
    work(undone, slots=2, express=1, finished_per_second=0.5)
    work(undone, ["other"], slots=50)
    work(undone, draining=True, slots=50)
    work(undone, claim_loop_ok=False, slots=50)
    work(undone, expires_at=sql.SQL("now()"), slots=50)
    for _ in range(4):
        put(undone, "RUNNING", worker="w1")  # one of them in the express slot
    put(undone, "RUNNING", worker="w2", tenant="other", lease=OTHER_LEASE)
    found = ahead(undone, put(undone, "QUEUED"))
    assert (found.workers, found.draining, found.stalled) == (4, 1, 1)
    assert (found.slots, found.running, found.free, found.express) == (5, 5, 1, 1)
    assert found.runs_per_second == 6.5, (
        "three slots of half a second, and what ended where nothing else is known"
    )
