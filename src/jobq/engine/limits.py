"""Keeps a worker up to date on limits, and puts held jobs back where their limit lets them pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from jobq.engine.session import Session
from jobq.engine.weights import WeightRow, Weights
from jobq.store import UpkeepStore

#: Reasons for which jobs are held, of one statement.
BATCH = 200
#: Seconds between looks at held jobs at least, and without being told.
SHORTEST, LONGEST = 0.005, 3600.0


@dataclass
class LimitWatch:
    """Loads weights when limits were changed, and reviews held jobs when that may move some.

    The statement that frees a slot puts the next job back itself. What is left: pauses that ended, caps that were raised,
    tokens that came back, and whatever got lost.

    Args:
        session: shared with the dispatcher; nothing here waits for a lock.
        weights: what to keep up to date.
        changed: called when limits were changed.
    """

    session: Session
    upkeep: UpkeepStore
    weights: Weights
    changed: Callable[[], None]
    _version: int = -1
    _newest: int = 0
    _held: bool = False
    _after: str = ""
    wake: Callable[[], None] = field(init=False)

    def noticed(self, held: bool, version: int) -> None:
        """Whether jobs are held, and which version the limits have: each worker asks at every poll."""
        self._newest = max(self._newest, version)
        if held or self._newest > self._version:
            self._held |= held
            self.wake()

    def hint(self) -> None:
        """Limits were changed."""
        self._newest = self._version + 1
        self.wake()

    def review(self) -> None:
        """Jobs were held that a token lets pass soon."""
        self._held = True
        self.wake()

    async def step(self) -> float:
        """Load what changed, review what is held; returns seconds until it should look again."""
        if self._newest > self._version:
            self._version, rows = await self.session.run(self.upkeep.weights(self._version))
            self._newest = self._version
            self._held = True
            self.weights.learn(WeightRow(*row) for row in rows)
            self.changed()
        if not self._held:
            return LONGEST
        review = await self.session.run(self.upkeep.review_held(self._after, BATCH))
        self._after = review.reached or ""
        if review.reached is not None:
            return 0.0
        self._held = review.next_in is not None
        return LONGEST if review.next_in is None else max(review.next_in, SHORTEST)
