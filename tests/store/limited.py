"""What tests of limits share: limits as operators set them, claims of many lanes, and who holds which slots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from tests.store.support import KEEP_PAYLOAD, LANE, SETTINGS, STORE, complete, one, put

from jobq.db import Conn
from jobq.model import Claim, ClaimedJob, Lane
from jobq.store import BEGINNING, Call, Claimed, Share, Span, run_sync

#: What limits what; `job` below makes one that all of these concern.
SCOPES = ("tenant", "queue", "kind", "key")
NAMES = {"tenant": "acme", "queue": "mail", "kind": "send", "key": "k1"}
MAIL = Lane("mail", "acme", 0)
#: Only for a kind or key do jobs leave the claim index.
HOLDING = {"kind", "key"}
_leases: Iterator[int] = count(1000)
_WORKER = {
    "host": "h", "pid": 1, "version": "v", "kinds": ["send", "test", "flood", "stuck", "k", "l"], "slots": 1, "express": 0, "running": 0, "draining": False,
    "claim_loop_ok": True, "finished_per_second": 0.0, "run_seconds": None, "claimed_ago": 0.0, "ttl": 3600,
}  # fmt: skip


def scope_of(which: str) -> str:
    """The scope text of one of `NAMES`."""
    return f"{which}:{NAMES[which]}"


def limit(conn: Conn, which: str, name: str | None = None, **change: Any) -> None:
    """Set columns of a limiter, by default of one of `NAMES`; `rate` is (limit, period in seconds, burst)."""
    if "rate" in change:
        rate = change.pop("rate") or (None, None, None)
        change |= zip(("rate_limit", "rate_period", "rate_burst"), rate, strict=True)
    run_sync(conn, STORE.limiters.set_limiter(which, name or NAMES[which], change))


def serve(conn: Conn, id_: str = "w", queues: Sequence[str] | None = None, **changes: Any) -> None:
    """Let a worker live that serves some queues, by default all."""
    run_sync(conn, STORE.upkeep.beat({**_WORKER, "id": id_, "queues": queues, **changes}))


def queued(conn: Conn, many: int = 1, /, **columns: Any) -> list[int]:
    """Queue jobs that the limits of all `NAMES` concern."""
    named = {"tenant": "acme", "queue": "mail", "kind": "send", "concurrency_key": "k1"}
    return [put(conn, "QUEUED", **(named | columns)) for _ in range(many)]


def take(*lanes: Lane, free: int = 100, lease: int | None = None) -> Call[Claimed]:
    """A claim, by a lease of its own, of up to `free` jobs from lanes in that order, each a share."""
    shares = [Share(free, [Span(lane)]) for lane in lanes or (MAIL,)]
    return STORE.runs.claim(lease or next(_leases), free, shares, SETTINGS)


def start(conn: Conn, *lanes: Lane, free: int = 100) -> list[ClaimedJob]:
    """The jobs that a claim starts."""
    return run_sync(conn, take(*lanes, free=free)).jobs


def ids(jobs: Sequence[ClaimedJob]) -> list[int]:
    """Of claimed jobs, in order."""
    return [job.id for job in jobs]


def finish(conn: Conn, *jobs: ClaimedJob) -> None:
    """Complete runs."""
    assert len(run_sync(conn, complete(*(job.claim for job in jobs)))) == len(jobs)


def reclaim(conn: Conn) -> int:
    """Let all leases end and reclaim the jobs; returns how many."""
    conn.execute(
        "UPDATE jobq.job SET lease_until = now() - interval '1 second' WHERE status = 'RUNNING'"
    )
    return len(run_sync(conn, STORE.upkeep.reclaim(BEGINNING, 100, KEEP_PAYLOAD)))


def release(conn: Conn, *claims: Claim) -> int:
    """Release runs; returns of how many."""
    return len(run_sync(conn, STORE.runs.release(claims, KEEP_PAYLOAD)))


def slots(conn: Conn, scope: str) -> set[int]:
    """The jobs that hold slots of a scope."""
    query = "SELECT job_id FROM jobq.cap_slot WHERE scope = %s AND job_id IS NOT NULL"
    return {id_ for (id_,) in conn.execute(query, (scope,))}


def tokens(conn: Conn, scope: str) -> float:
    """Tokens in a bucket when it was last filled."""
    return float(one(conn, "SELECT tokens FROM jobq.rate_bucket WHERE scope = %s", (scope,))[0])


def held(conn: Conn) -> dict[int, str]:
    """Job -> the reason it is held for."""
    return dict(conn.execute("SELECT id, held_by FROM jobq.job WHERE held_by IS NOT NULL"))


def review(conn: Conn) -> tuple[int, float | None]:
    """Look through all reasons; returns how many jobs were put back, and seconds until the next token."""
    after, moved, soonest = "", 0, None
    while True:
        found = run_sync(conn, STORE.upkeep.review_held(after, 100))
        moved += found.moved
        soonest = min((s for s in (soonest, found.next_in) if s is not None), default=None)
        if found.reached is None:
            return moved, soonest
        after = found.reached


def everywhere(conn: Conn) -> list[Lane]:
    """All lanes that have queued jobs."""
    rows = conn.execute(
        "SELECT DISTINCT queue, tenant, priority FROM jobq.job WHERE status = 'QUEUED' ORDER BY 1, 2, 3"
    )
    return [Lane(*row) for row in rows] or [LANE]
