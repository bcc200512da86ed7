"""Every operation of the store once, on one schema."""

from __future__ import annotations

from psycopg import sql
from tests.store.support import (
    KEEP_PAYLOAD,
    LANE,
    LEASE,
    OTHER_LEASE,
    SETTINGS,
    Store,
    converse,
    one,
)

from jobq import wakeup
from jobq.db import Conn
from jobq.model import JobStatus, Lane, NewJob, Outcome, Verdict
from jobq.store import BEGINNING, NO_SLOT, Share, Span, run_sync

_KIND = {"kind": "smoke", "queue": None, "priority": None, "max_attempts": 3, "timeout": None}
_WORKER = {
    "id": "w", "host": "h", "pid": 1, "version": "v", "queues": None, "kinds": ["smoke"], "slots": 1, "express": 0,
    "running": 0, "draining": False, "claim_loop_ok": True, "finished_per_second": 0.0, "run_seconds": None, "claimed_ago": None, "ttl": 60,
}  # fmt: skip


def everything(store: Store, conn: Conn) -> None:
    """Enqueue, run, fail, retry, cancel, look and clean up; all of it in the store's schema."""
    run_sync(conn, store.upkeep.register_kinds([_KIND]))
    run_sync(conn, store.upkeep.beat(_WORKER))
    run_sync(conn, store.upkeep.make_partitions(15))
    _run_jobs(store, conn)
    _look(store, conn)
    _run_limited(store, conn)
    _limit(store, conn)
    run_sync(conn, store.upkeep.leave("w"))
    assert run_sync(conn, store.upkeep.expire_keys(0.0, 10)) == 2


def _run_jobs(store: Store, conn: Conn) -> None:
    share = [Share(100, [Span(LANE)])]
    first = run_sync(conn, store.enqueue.enqueue(NewJob("smoke"))).job.id
    keyed = NewJob("smoke", idempotency_key="k", unique_key="u")
    second, again = (
        each.job.id for each in converse(conn, store.enqueue.enqueue_many([keyed, keyed]))
    )
    assert second == again
    converse(
        conn, store.enqueue.enqueue_many([NewJob("smoke", idempotency_key="k2", unique_key="u")])
    )
    third = _by_sql(store, conn)
    jobs = {
        found.id: found
        for found in run_sync(conn, store.runs.claim(LEASE, 10, share, SETTINGS)).jobs
    }
    assert set(jobs) == {first, second, third}
    assert jobs[third].max_attempts == 3, "the kind's default"
    claims = {id_: found.claim for id_, found in jobs.items()}
    assert len(run_sync(conn, store.runs.claims_of_lease(LEASE))) == 3
    assert len(run_sync(conn, store.runs.extend(list(claims.values()), 60))) == 3
    assert run_sync(conn, store.runs.progress([(claims[first], "0.5")]))
    assert run_sync(conn, store.runs.complete([Outcome(claims[first], Verdict.SUCCESS)]))
    assert run_sync(conn, store.runs.recorded([claims[first]]))
    retry = [Outcome(claims[second], Verdict.RETRY, error="e", delay=0.0)]
    assert run_sync(conn, store.runs.fail(retry, 1.0, 1.0))
    assert run_sync(conn, store.upkeep.promote(BEGINNING, 10)).moved == 1
    assert run_sync(conn, store.runs.release([claims[third]], KEEP_PAYLOAD))
    assert [
        head.lane for head in run_sync(conn, store.upkeep.discover(Lane("", "", -101), 10))
    ] == [LANE]
    short = SETTINGS.__class__("w", 0.0, 0.0, 5, 300.0)
    assert len(run_sync(conn, store.runs.claim(OTHER_LEASE, 10, share, short)).jobs) == 2
    assert run_sync(conn, store.upkeep.reap_check(BEGINNING, 60)).expired
    assert len(run_sync(conn, store.upkeep.expired(BEGINNING, 10))) == 2
    assert len(run_sync(conn, store.upkeep.reclaim(BEGINNING, 10, KEEP_PAYLOAD))) == 2
    assert run_sync(conn, store.jobs.cancel([second], KEEP_PAYLOAD)) == {
        second: JobStatus.CANCELLED
    }
    assert run_sync(conn, store.jobs.retry([second], force=True))
    assert run_sync(conn, store.jobs.cancel([second], KEEP_PAYLOAD))
    permanent = run_sync(conn, store.runs.claim(LEASE, 10, share, SETTINGS)).jobs[0].claim
    assert run_sync(
        conn, store.runs.fail([Outcome(permanent, Verdict.PERMANENT, error="e")], 1.0, 1.0)
    )
    assert run_sync(conn, store.jobs.cancel([permanent.id], KEEP_PAYLOAD)), "dismissed"


def _run_limited(store: Store, conn: Conn) -> None:
    """A job under every kind of limit, and the upkeep of what is held and of slots."""
    rate = {"rate_limit": 100, "rate_period": 60.0, "rate_burst": 10}
    for scope, name in (
        ("tenant", "default"),
        ("queue", "default"),
        ("kind", "limited"),
        ("key", "k"),
    ):
        run_sync(conn, store.limiters.set_limiter(scope, name, {"max_running": 1, **rate}))
    first, second = (
        run_sync(conn, store.enqueue.enqueue(NewJob("limited", concurrency_key="k"))).job.id
        for _ in range(2)
    )
    run_sync(conn, store.limiters.set_limiter("tenant", "default", {"max_running": 2}))
    run_sync(conn, store.limiters.set_limiter("queue", "default", {"max_running": 2}))
    share = [Share(100, [Span(LANE)])]
    claimed = run_sync(conn, store.runs.claim(LEASE, 10, share, SETTINGS))
    assert [found.id for found in claimed.jobs] == [first]
    assert [(b.id, b.reason, b.held) for b in claimed.blocked] == [(second, "kind_cap", True)]
    assert run_sync(conn, store.upkeep.review_held("", 10)).moved == 0
    assert run_sync(conn, store.upkeep.heal_slots(10)) == 0
    assert run_sync(conn, store.runs.complete([Outcome(claimed.jobs[0].claim, Verdict.SUCCESS)]))
    (found,) = run_sync(conn, store.runs.claim(LEASE, 10, share, SETTINGS)).jobs
    assert found.id == second
    assert run_sync(conn, store.runs.complete([Outcome(found.claim, Verdict.SUCCESS)]))
    assert run_sync(conn, store.upkeep.expire_slots(NO_SLOT, 10)) == (("tenant:default", 1), 1)


def _by_sql(store: Store, conn: Conn) -> int:
    """A job by the SQL function, and the wake-up that it sends."""
    conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(store.statements.channel)))
    query = sql.SQL("SELECT {}.enqueue(kind => 'smoke')").format(
        sql.Identifier(store.statements.schema)
    )
    id_ = int(one(conn, query)[0])
    (notify,) = conn.notifies(timeout=10, stop_after=1)
    message = wakeup.parse(notify.payload)
    assert isinstance(message, wakeup.LanesReady)
    assert set(message.spans) == {wakeup.token(LANE)}
    conn.execute("UNLISTEN *")
    return id_


def _look(store: Store, conn: Conn) -> None:
    listed = run_sync(conn, store.jobs.list_jobs(most=10))
    assert len(listed) == 3
    for row in listed:
        assert run_sync(conn, store.jobs.find_job(row["id"]))
    run_sync(conn, store.jobs.count_live())
    run_sync(conn, store.jobs.count_finished())
    run_sync(conn, store.jobs.count_backlogs())
    run_sync(conn, store.jobs.snapshot_age())
    assert len(run_sync(conn, store.jobs.list_workers())) == 1


def _limit(store: Store, conn: Conn) -> None:
    for scope in ("tenant", "queue", "kind", "key"):
        change = {
            "max_running": 2,
            "rate_limit": 1,
            "rate_period": 1.0,
            "queue_weights": {"q": 2.0},
        }
        run_sync(
            conn, store.limiters.set_limiter(scope, "a", {**change, "paused": scope == "queue"})
        )
        assert run_sync(conn, store.limiters.find_limiter(scope, "a"))["max_running"] == 2
        assert run_sync(conn, store.limiters.list_limiters(scope))[0]["queue_weights"] == {"q": 2.0}
    assert run_sync(conn, store.limiters.list_paused()) == {"queue": (1, ["a"])}
