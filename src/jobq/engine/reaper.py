"""Gives the jobs of dead workers back: those whose lease ended, and only when leases mean something."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import psycopg

from jobq import logs
from jobq.db import is_unavailable
from jobq.engine.periodic import Floor
from jobq.engine.session import Session
from jobq.store import Reclaimed, UpkeepStore

log = logs.get("jobq.worker")

#: Jobs of one statement.
BATCH = 200
#: Seconds that the database's and this host's clocks may part between two passes: more is a clock
#: jump, after which every lease may look expired (design.md 16).
MOST_DRIFT = 5.0


@dataclass
class Reaper:
    """Reclaims expired leases, but never all of them at once after an outage, a clock jump or a lock on the table.

    A lease is judged only after its owner could have extended it. Each pass needs the lock that an extension needs; where
    passes have come back in time for half a lease, heartbeats (three a lease) have as well. A pass that waits, or comes
    late since this process or the server stood still, begins that time anew. A row that was seen locked is spared as long.

    Args:
        interval: seconds between passes.
        lease_seconds: how long a lease lasts, and how long to wait after a reconnect and after the server's start, so that
            live workers can extend their leases first.
        reclaimed: called with what was reclaimed.
    """

    session: Session
    upkeep: UpkeepStore
    interval: float
    lease_seconds: float
    keep_payload: int
    reclaimed: Callable[[list[Reclaimed]], None]
    _floor: Floor = field(default_factory=Floor)
    _generation: int = 0
    _not_before: float = 0.0
    _offset: float | None = None
    #: Since when passes have come back in time, when the last one began, and until when rows that were locked are spared.
    _extendable_since: float = 0.0
    _passed: float = float("-inf")
    _spared: dict[int, float] = field(default_factory=dict)
    _locked: logs.Repeat = field(default_factory=lambda: logs.Repeat(log, every=30.0))

    async def step(self) -> float:
        """One pass; returns seconds until the next."""
        pause = min(self.interval, self.lease_seconds / 6 or self.interval)
        floor = self._floor.start()
        began = time.monotonic()
        try:
            check = await self.session.run(self.upkeep.reap_check(floor, self.lease_seconds))
        except psycopg.errors.LockNotAvailable:
            self._locked.warning("the table of jobs is locked; leases are not judged")
            return pause
        self._locked.over()
        # Where no lease has ended, none up to now is left to be found again (a float rounds: 1 ms).
        handled = None if check.expired else datetime.fromtimestamp(check.now - 0.001, UTC)
        self._floor.done(handled)
        self._came_back(began, check.locked)
        wait = self._must_wait(check.now, check.uptime)
        if check.beyond:
            await self.session.run(self.upkeep.bound_leases(self.lease_seconds))
        if wait > 0:
            return min(wait, pause)
        if not check.expired:
            return pause
        try:
            found = await self._reclaim(floor, None)
        except psycopg.Error as error:
            if is_unavailable(error):
                raise
            found = await self._one_by_one(floor)
        self.reclaimed(found)
        return 0.0 if len(found) == BATCH else pause

    def _came_back(self, began: float, locked: list[int]) -> None:
        """A pass found the table open: note since when, and what nobody can extend at the moment."""
        now = time.monotonic()
        if now - self._passed > self.lease_seconds / 2:
            self._extendable_since = now
        self._passed = began
        self._spared = {id_: until for id_, until in self._spared.items() if until > now}
        self._spared.update(dict.fromkeys(locked, now + self.lease_seconds / 2))

    async def _reclaim(self, floor: datetime, only: list[int] | None) -> list[Reclaimed]:
        return await self.session.run(
            self.upkeep.reclaim(floor, BATCH, self.keep_payload, only, self._spared)
        )

    async def _one_by_one(self, floor: datetime) -> list[Reclaimed]:
        """One row cannot be changed: reclaim the others, and name it."""
        found: list[Reclaimed] = []
        for id_ in await self.session.run(self.upkeep.expired(floor, BATCH)):
            try:
                found += await self._reclaim(floor, [id_])
            except psycopg.Error as error:
                if is_unavailable(error):
                    raise
                log.warning("a job cannot be reclaimed", job_id=id_, sqlstate=error.sqlstate)
        return found

    def _must_wait(self, database_now: float, uptime: float) -> float:
        """Seconds for which no lease may be judged."""
        now = time.monotonic()
        offset = database_now - now
        jumped = self._offset is not None and abs(offset - self._offset) > MOST_DRIFT
        reconnected = self._generation not in (0, self.session.generation)
        self._offset, self._generation = offset, self.session.generation
        if jumped:
            log.warning("the database clock jumped; leases are not judged for one lease")
        if jumped or reconnected:
            self._not_before = now + self.lease_seconds
        if jumped:
            self._floor = Floor()  # of the clock that was
        unproven = self._extendable_since + self.lease_seconds / 2 - now
        return max(self._not_before - now, self.lease_seconds - uptime, unproven, 0.0)
