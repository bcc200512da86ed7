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
    """Reclaims expired leases, but never all of them at once after an outage or a clock jump.

    Args:
        interval: seconds between passes.
        lease_seconds: how long to wait after a reconnect and after the server's start, so that live
            workers can extend their leases first.
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

    async def step(self) -> float:
        """One pass; returns seconds until the next."""
        floor = self._floor.start()
        check = await self.session.run(self.upkeep.reap_check(floor))
        # Where no lease has ended, none up to now is left to be found again (a float rounds: 1 ms).
        handled = None if check.expired else datetime.fromtimestamp(check.now - 0.001, UTC)
        self._floor.done(handled)
        wait = self._must_wait(check.now, check.uptime)
        if wait > 0:
            return min(wait, self.interval)
        if not check.expired:
            return self.interval
        try:
            found = await self._reclaim(floor, None)
        except psycopg.Error as error:
            if is_unavailable(error):
                raise
            found = await self._one_by_one(floor)
        self.reclaimed(found)
        return 0.0 if len(found) == BATCH else self.interval

    async def _reclaim(self, floor: datetime, only: list[int] | None) -> list[Reclaimed]:
        return await self.session.run(self.upkeep.reclaim(floor, BATCH, self.keep_payload, only))

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
        return max(self._not_before - now, self.lease_seconds - uptime, 0.0)
