"""Finds lanes that hold jobs, whatever hints were lost: a walk over the claim index, lane by lane."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from jobq.engine.periodic import FREE_OF_CHARGE, Throttle
from jobq.engine.pool import SlotPool
from jobq.engine.session import Session
from jobq.model import Lane
from jobq.store import UpkeepStore
from jobq.store.upkeep import LAST_NAME

#: Lanes of one statement.
BATCH = 500
#: Rounds after which an idle lane that was not met is forgotten.
FORGET_AFTER = 600

BEFORE_ALL = -32768


@dataclass
class Discovery:
    """Walks the lanes of the pools' queues, resuming where it stopped.

    Under a pinned snapshot each lane's head is a walk over dead entries: what takes long is throttled.

    Args:
        session: the dispatcher's.
        pools: what they serve bounds the walk.
    """

    session: Session
    upkeep: UpkeepStore
    pools: Sequence[SlotPool]
    #: Monotonic time before which no statement may run.
    next_at: float = float("inf")
    _throttle: Throttle = field(default_factory=Throttle)
    _left: list[tuple[str, str]] = field(default_factory=list)
    _after: Lane | None = None
    _round: int = 0
    _spent: float = 0.0
    _once_more: bool = False

    def poll(self) -> None:
        """It is time for a round; one that is under way goes on."""
        if not self._left:
            self._begin()
            self._round += 1

    async def step(self) -> None:
        """Walk one batch, where it is time to or a hint named an unknown lane."""
        if any(pool.table.must_look for pool in self.pools):
            for pool in self.pools:
                pool.table.must_look = False
            if self._left:
                self._once_more = True  # the lane may lie behind the walk: go on, then look again
            else:
                self._begin()
        while self._left and time.monotonic() >= self.next_at:
            await self._walk()

    async def _walk(self) -> None:
        first, last = self._left[0]
        after = self._after or Lane(first, "", BEFORE_ALL)
        began = time.monotonic()
        heads = await self.session.run(self.upkeep.discover(after, BATCH, last))
        took = time.monotonic() - began
        for pool in self.pools:
            pool.table.discovered(heads, self._round)
        if len(heads) == BATCH:
            self._after = heads[-1].lane
        else:
            self._left.pop(0)
            self._after = None
        self._spent += took
        self._throttle.took(took, cheap=self._spent <= FREE_OF_CHARGE)
        if self._left:
            self.next_at = self._throttle.not_before
        else:
            self._finish()

    def _begin(self) -> None:
        self._left, self._after, self._spent = self._stretches(), None, 0.0
        self.next_at = self._throttle.not_before

    def _finish(self) -> None:
        self.next_at = float("inf")
        if self._once_more:
            self._once_more = False
            self._begin()
        if self._round % FORGET_AFTER == 0:
            for pool in self.pools:
                pool.table.forget(self._round - FORGET_AFTER)

    def _stretches(self) -> list[tuple[str, str]]:
        """Queues to walk, as (from, up to): all of them, or each that some pool serves."""
        if any(pool.table.queues is None for pool in self.pools):
            return [("", LAST_NAME)]
        names = {name for pool in self.pools for name in pool.table.queues or ()}
        return [(name, name) for name in sorted(names)]
