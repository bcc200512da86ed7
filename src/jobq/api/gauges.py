"""Numbers read from the database: what `/metrics`, `/api/queues` and `/api/stats` show.

Counting costs a scan of the live rows, so it happens apart from the scrapes. All who ask while a count
is under way share it, and the next one starts no sooner than `PAUSE` times its duration later: counting
takes at most 5 % of the time. A small queue is counted in a millisecond or two, so its numbers are
never older than some 50 ms; one that takes a second is counted every 20 s.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from jobq import db, logs
from jobq.api.database import LOCK_WAIT, Database
from jobq.errors import DatabaseUnavailable
from jobq.payload import describe
from jobq.store import JobStore, LimiterStore, run
from jobq.store.jobs import Record

#: A count is repeated no sooner than this many times its duration later.
PAUSE = 20.0
#: Seconds before the next attempt where the database was away.
AWAY_PAUSE = 1.0
#: Seconds that a scrape waits for a count under way; after that it is answered with the one before.
SCRAPE_WAIT = 4.0
#: Seconds that a count may take, and each of its statements: tens of millions of live rows.
COUNT_LIMIT = 60.0
COUNT_STATEMENT_LIMIT = 25.0

_STATUSES = ("SCHEDULED", "QUEUED", "RUNNING", "DEAD", "FAILED")
LIVE = ("SCHEDULED", "QUEUED", "RUNNING")
#: What jobs are held for.
HELD = ("kind", "key", "unknown_kind")
#: What can be paused.
PAUSABLE = ("tenant", "queue", "kind")

log = logs.get("jobq.api")


@dataclass
class Snapshot:
    """One count.

    Attributes:
        jobs: status -> jobs, of the live statuses, DEAD and FAILED.
        queues: queue -> status -> jobs.
        oldest_queued: queue -> seconds since its oldest queued job became due.
        oldest_by_priority: the same by priority.
        held: kind, key or unknown_kind -> queued jobs that are held for it, outside the claim index.
        oldest_running: seconds that the oldest run has been running.
        backlogs: tenant -> queued jobs, the largest ten.
        paused: scope -> how many tenants, queues or kinds are paused.
        workers: queue -> live workers that serve it.
        alive: live workers.
        snapshot_age: seconds since the oldest open snapshot was taken.
        cost: seconds that the count took.
    """

    jobs: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_STATUSES, 0))
    queues: dict[str, dict[str, int]] = field(default_factory=dict)
    oldest_queued: dict[str, float] = field(default_factory=dict)
    oldest_by_priority: dict[int, float] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=lambda: dict.fromkeys(HELD, 0))
    oldest_running: float = 0.0
    backlogs: dict[str, int] = field(default_factory=dict)
    paused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PAUSABLE, 0))
    workers: dict[str, int] = field(default_factory=dict)
    alive: int = 0
    snapshot_age: float = 0.0
    cost: float = 0.0


class Gauges:
    """Counts, at most 5 % of the time, for everybody who asks.

    Args:
        count: makes one count.
        clock: seconds of a steady clock.
    """

    def __init__(
        self,
        count: Callable[[], Awaitable[Snapshot]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count = count
        self._clock = clock
        self._latest: Snapshot | None = None
        self._next = clock()
        self._task: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._trouble = logs.Repeat(log)

    async def snapshot(self) -> Snapshot:
        """The latest count.

        Raises:
            DatabaseUnavailable: there is none, because the database is away.
        """
        await self._refresh()
        if self._latest is None:
            raise self._failure or DatabaseUnavailable("the jobs could not be counted in time")
        return self._latest

    async def latest(self) -> Snapshot | None:
        """The same for a scrape, which shows the rest where there is none."""
        await self._refresh()
        return self._latest

    async def close(self) -> None:
        """Stop a count under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _refresh(self) -> None:
        if self._task is None and self._clock() >= self._next:
            self._task = asyncio.create_task(self._run(), name="jobq count")
        if self._task is not None:
            # Not awaited itself: the client that goes away must not take the others' count along.
            await asyncio.wait({self._task}, timeout=SCRAPE_WAIT)

    async def _run(self) -> None:
        start = self._clock()
        try:
            self._latest = await self._count()
            self._failure = None
            self._trouble.over()
            self._next = self._clock() + PAUSE * self._latest.cost
        except DatabaseUnavailable as error:
            self._latest, self._failure = None, error
            self._next = self._clock() + AWAY_PAUSE
        except Exception as error:  # noqa: BLE001 - a scrape shows the process's own numbers all the same
            self._latest, self._failure = None, error
            self._next = self._clock() + max(AWAY_PAUSE, PAUSE * (self._clock() - start))
            self._trouble.warning("jobs could not be counted", error=describe(error))
        finally:
            self._task = None


async def count(database: Database, jobs: JobStore, limiters: LimiterStore) -> Snapshot:
    """Count everything, in one transaction whose statements are limited in time."""

    async def work(conn: db.AsyncConn) -> Snapshot:
        start = time.perf_counter()
        async with db.bounded(conn, lock=LOCK_WAIT, statement=COUNT_STATEMENT_LIMIT):
            found = Snapshot(
                backlogs=await run(conn, jobs.count_backlogs()),
                snapshot_age=await run(conn, jobs.snapshot_age()),
            )
            _add_live(found, await run(conn, jobs.count_live()))
            finished = await run(conn, jobs.count_finished())
            found.jobs.update(finished)
            paused = await run(conn, limiters.list_paused(0))
            found.paused.update({scope: number for scope, (number, _) in paused.items()})
            _add_workers(found, await run(conn, jobs.list_workers()))
        found.cost = time.perf_counter() - start
        return found

    return await database.use(work, COUNT_LIMIT)


def _add_live(found: Snapshot, rows: list[Record]) -> None:
    for row in rows:
        queue, status, priority = row["queue"], row["status"], row["priority"]
        found.jobs[status] += row["jobs"]
        found.queues.setdefault(queue, dict.fromkeys(LIVE, 0))[status] += row["jobs"]
        if status == "QUEUED":
            age = max(row["oldest_queued"] or 0.0, 0.0)
            found.oldest_queued[queue] = max(found.oldest_queued.get(queue, 0.0), age)
            oldest = found.oldest_by_priority.get(priority, 0.0)
            found.oldest_by_priority[priority] = max(oldest, age)
        for reason in HELD:
            found.held[reason] += row[f"held_for_{reason}"]
        found.oldest_running = max(found.oldest_running, row["oldest_running"] or 0.0)


def _add_workers(found: Snapshot, rows: list[Record]) -> None:
    found.alive = len(rows)
    serving = [row["queues"] for row in rows]
    named = {queue for queues in serving if queues is not None for queue in queues}
    for queue in sorted({"default", *found.queues, *named}):
        found.queues.setdefault(queue, dict.fromkeys(LIVE, 0))
        found.workers[queue] = sum(queues is None or queue in queues for queues in serving)
