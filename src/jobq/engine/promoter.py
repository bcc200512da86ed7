"""Moves due jobs from SCHEDULED to QUEUED: one elected worker at a time, in batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from jobq.engine.periodic import Floor
from jobq.engine.session import Session
from jobq.store import UpkeepStore

#: Jobs of one statement.
BATCH = 500


@dataclass
class Promoter:
    """Promotes what is due, then sleeps until the next due time.

    Args:
        session: shared with the dispatcher; promoting waits for no lock.
        poll_interval: seconds, the longest sleep.
        promoted: called when jobs became claimable, sooner than the hint comes round.
        noticed: called with whether jobs are held, and the version of the limits.
    """

    session: Session
    upkeep: UpkeepStore
    poll_interval: float
    promoted: Callable[[], None]
    noticed: Callable[[bool, int], None]
    _floor: Floor = field(default_factory=Floor)

    async def step(self) -> float:
        """Promote one batch; returns seconds until the next."""
        result = await self.session.run(self.upkeep.promote(self._floor.start(), BATCH))
        self._floor.done(result.last)
        if result.moved:
            self.promoted()
        self.noticed(result.held, result.limits)
        if not result.elected:
            return self.poll_interval
        if result.moved == BATCH:
            return 0.0
        if result.next_in is None:
            return self.poll_interval
        return min(max(result.next_in, 0.001), self.poll_interval)
