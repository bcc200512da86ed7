"""Makes archive partitions ahead of time, expires keys, and heals slots, all in bounded batches."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from jobq import logs
from jobq.engine.session import Session
from jobq.migrate import PARTITION_DAYS
from jobq.store import NO_SLOT, Slot, UpkeepStore

log = logs.get("jobq.worker")

#: Seconds between passes over the archive and the keys, and over the slots of caps.
PERIOD, SLOTS_PERIOD = 3600.0, 60.0
#: Keys, or slots, of one statement.
BATCH = 1000
#: Seconds between batches while some are left.
PAUSE = 0.1


@dataclass
class Retention:
    """Hourly upkeep of the archive and the keys; each minute that of the slots.

    Args:
        retain_keys: seconds an idempotency key lives; 0 for ever (JOBQ_RETAIN_KEYS).
        succeeded: called after a whole pass.
    """

    session: Session
    upkeep: UpkeepStore
    retain_keys: float
    succeeded: Callable[[], None]
    #: When the next hourly pass is due (monotonic).
    _due: float = 0.0
    #: The slot that this minute's pass has reached.
    _slot: Slot = NO_SLOT

    async def step(self) -> float:
        """One batch of what is due; returns seconds until the next: few while something is left."""
        left = await self._keep_slots()
        if time.monotonic() >= self._due:
            left |= await self._keep_archive()
        return PAUSE if left else SLOTS_PERIOD

    async def _keep_slots(self) -> bool:
        """Free slots whose run is gone, then drop those that nobody will take; whether some are left to look at."""
        if self._slot == NO_SLOT:
            healed = await self.session.run(self.upkeep.heal_slots(BATCH))
            if healed:
                log.warning("slots were freed whose jobs run no more", slots=healed)
        looked = await self.session.run(self.upkeep.expire_slots(self._slot, BATCH))
        self._slot = NO_SLOT if looked is None else looked[0]
        return looked is not None

    async def _keep_archive(self) -> bool:
        await self.session.run(self.upkeep.make_partitions(PARTITION_DAYS))
        if self.retain_keys > 0:
            expired = await self.session.run(self.upkeep.expire_keys(self.retain_keys, BATCH))
            if expired == BATCH:
                return True
        self._due = time.monotonic() + PERIOD
        self.succeeded()
        return False
