"""Makes archive partitions ahead of time and expires idempotency keys in bounded batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jobq.engine.session import Session
from jobq.migrate import PARTITION_DAYS
from jobq.store import UpkeepStore

#: Seconds between passes.
PERIOD = 3600.0
#: Keys removed by one statement.
BATCH = 1000


@dataclass
class Retention:
    """Hourly upkeep of the archive and the keys.

    Args:
        retain_keys: seconds an idempotency key lives; 0 for ever (JOBQ_RETAIN_KEYS).
        succeeded: called after a whole pass.
    """

    session: Session
    upkeep: UpkeepStore
    retain_keys: float
    succeeded: Callable[[], None]

    async def step(self) -> float:
        """One batch; returns seconds until the next: none while keys are left to expire."""
        await self.session.run(self.upkeep.make_partitions(PARTITION_DAYS))
        if self.retain_keys > 0:
            expired = await self.session.run(self.upkeep.expire_keys(self.retain_keys, BATCH))
            if expired == BATCH:
                return 0.1
        self.succeeded()
        return PERIOD
