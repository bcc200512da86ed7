"""Keeps a worker up to date on limits, and puts held jobs back where their limit lets them pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from jobq.engine.periodic import FREE_OF_CHARGE, Throttle
from jobq.engine.session import Session
from jobq.engine.weights import WeightRow, Weights
from jobq.store import UpkeepStore

#: Reasons for which jobs are held, of one statement.
BATCH = 200
#: Seconds between looks at held jobs at least, and without being told.
SHORTEST, LONGEST = 0.005, 3600.0


@dataclass
class _Pass:
    """A look through all reasons: up to which it came, what it put back, when the next token comes, what it took."""

    after: str = ""
    moved: int = 0
    next_in: float | None = None
    seconds: float = 0.0

    @property
    def cheap(self) -> bool:
        """Whether the next may begin at once: it took no time, or was good for something."""
        return self.seconds <= FREE_OF_CHARGE or self.moved > 0 or self.next_in is not None


@dataclass
class LimitWatch:
    """Loads weights when limits were changed, and reviews held jobs when that may move some.

    The statement that frees a slot puts the next job back itself. What is left: pauses that ended, caps that were raised,
    tokens that came back, and whatever got lost. Where jobs are held for very many keys, all of them taken, looks in vain are
    throttled to 5 % of the time.

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
    _pass: _Pass = field(default_factory=_Pass)
    _throttle: Throttle = field(default_factory=Throttle)
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
        self._throttle.not_before = 0.0
        self.wake()

    async def step(self) -> float:
        """Load what changed, review what is held; returns seconds until it should look again."""
        if self._newest > self._version:
            self._version, rows = await self.session.run(self.upkeep.weights(self._version))
            self._newest = self._version
            self._held = True
            self._throttle.not_before = 0.0
            self.weights.learn(WeightRow(*row) for row in rows)
            self.changed()
        if not self._held:
            return LONGEST
        wait = self._throttle.not_before - time.monotonic()
        return wait if wait > 0 else await self._review()

    async def _review(self) -> float:
        """Look through some reasons; returns seconds until it should look again."""
        looking, began = self._pass, time.monotonic()
        review = await self.session.run(self.upkeep.review_held(looking.after, BATCH))
        looking.seconds += time.monotonic() - began
        looking.moved += review.moved
        looking.next_in = min(
            (s for s in (looking.next_in, review.next_in) if s is not None), default=None
        )
        if review.reached is not None:
            looking.after = review.reached
            return 0.0
        self._pass = _Pass()
        self._throttle.took(looking.seconds, cheap=looking.cheap)
        self._held = looking.next_in is not None
        return LONGEST if looking.next_in is None else max(looking.next_in, SHORTEST)
