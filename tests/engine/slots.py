"""Slots and jobs without time, threads or a database: what a scheduler does with arrivals, step by step."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, NamedTuple, Protocol

from jobq.engine.fair import Charge, Clock


class Burst(NamedTuple):
    """Jobs of one tenant that are queued at once; each takes `seconds` and is expected to take `estimate`."""

    at: float
    tenant: str
    jobs: int
    seconds: float
    estimate: float
    weight: float = 1.0


class Scheduler(Protocol):
    """Says whose jobs start next."""

    def queued(self, tenant: str) -> None:
        """A job was queued."""

    def emptied(self, tenant: str) -> None:
        """The tenant's last waiting job was picked."""

    def pick(self, free: int) -> list[str]:
        """Up to `free` tenants whose next jobs start now; one may be named more often than it has jobs."""

    def started(self, tenant: str, estimate: float, weight: float) -> Any:
        """A picked job starts; what this returns is handed back when it ends."""

    def ended(self, charge: Any, seconds: float) -> None:
        """A job ended after some seconds."""


class Fair:
    """The scheduler under test: jobq's clock, used as a worker uses it."""

    def __init__(self) -> None:
        self.clock = Clock()

    def queued(self, tenant: str) -> None:
        """It has jobs that could start."""
        self.clock.set_ready(tenant, True)

    def emptied(self, tenant: str) -> None:
        """It has none."""
        self.clock.set_ready(tenant, False)

    def pick(self, free: int) -> list[str]:
        """As many as the plan says, tenant by tenant."""
        return [name for name, most in self.clock.plan(free, 100) for _ in range(most)]

    def started(self, tenant: str, estimate: float, weight: float) -> Charge:
        """Charge the estimate."""
        return self.clock.start(tenant, estimate, weight)

    def ended(self, charge: Charge, seconds: float) -> None:
        """Correct it."""
        self.clock.end(charge, seconds)


class Fifo:
    """First come, first served: what most queues do."""

    def __init__(self) -> None:
        self._line: deque[str] = deque()

    def queued(self, tenant: str) -> None:
        """Go to the end of the line."""
        self._line.append(tenant)

    def emptied(self, tenant: str) -> None:
        """It has nobody in the line."""

    def pick(self, free: int) -> list[str]:
        """The head of the line."""
        return [self._line.popleft() for _ in range(min(free, len(self._line)))]

    def started(self, tenant: str, estimate: float, weight: float) -> None:
        """It does not count what jobs take."""

    def ended(self, charge: None, seconds: float) -> None:
        """It does not count what jobs take."""


class Turns(Fifo):
    """Tenants take turns job by job: blind to weights and to what jobs take."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: Counter[str] = Counter()

    def queued(self, tenant: str) -> None:
        """Join the round."""
        if not self._waiting[tenant]:
            self._line.append(tenant)
        self._waiting[tenant] += 1

    def pick(self, free: int) -> list[str]:
        """One job of each in turn."""
        picked: list[str] = []
        while self._line and len(picked) < free:
            picked.append(self._line.popleft())
            self._waiting[picked[-1]] -= 1
            if self._waiting[picked[-1]]:
                self._line.append(picked[-1])
        return picked


class Banking(Fair):
    """jobq's clock, but a tenant that comes back may use up what it left to others while it was away."""

    def queued(self, tenant: str) -> None:
        """Come back with the old finish tag."""
        account = self.clock.tenant(tenant)
        back = not account.ready
        super().queued(tenant)
        if back:
            account.stretches[-1].begin = 0.0
            account.update()
            self.clock._push(account)


class Reserving(Fair):
    """jobq's clock, but the last slot is kept for better times."""

    def pick(self, free: int) -> list[str]:
        """Of all but one slot."""
        return super().pick(free - 1)


class Moment(NamedTuple):
    """What was true after a scheduler had picked: service (seconds by weight) that was begun, and who waits."""

    service: dict[str, float]
    waiting: frozenset[str]


@dataclass
class Slots:
    """Runs jobs on some slots as a scheduler says.

    Args:
        scheduler: under test.
        count: of slots.
        one_by_one: whether to ask for each slot apart, as when slots become free one after the other.

    Attributes:
        moments: what was true after each pick.
        wasted: how often slots stayed idle although jobs waited.
    """

    scheduler: Scheduler
    count: int
    one_by_one: bool = False
    moments: list[Moment] = field(default_factory=list)
    wasted: int = 0
    _waiting: dict[str, deque[Burst]] = field(default_factory=dict)
    _running: list[tuple[float, int, float, Any]] = field(default_factory=list)
    _service: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _ticket: int = 0

    def run(self, bursts: Iterable[Burst]) -> list[Moment]:
        """Everything that happens until the last job has started."""
        arrivals = deque(sorted(bursts))
        while arrivals or (self._waiting and self._running):
            now = min(
                arrivals[0].at if arrivals else float("inf"),
                self._running[0][0] if self._running else float("inf"),
            )
            while self._running and self._running[0][0] <= now:
                _, _, seconds, charge = heapq.heappop(self._running)
                self.scheduler.ended(charge, seconds)
            while arrivals and arrivals[0].at <= now:
                self._arrive(arrivals.popleft())
            self._fill(now)
        return self.moments

    def _arrive(self, burst: Burst) -> None:
        for _ in range(burst.jobs):
            self._waiting.setdefault(burst.tenant, deque()).append(burst)
            self.scheduler.queued(burst.tenant)

    def _fill(self, now: float) -> None:
        while self._waiting and len(self._running) < self.count:
            free = self.count - len(self._running)
            picked = self.scheduler.pick(1 if self.one_by_one else free)
            before = len(self._running)
            for tenant in picked:
                if tenant in self._waiting:
                    self._start(tenant, now)
            self.moments.append(Moment(dict(self._service), frozenset(self._waiting)))
            if len(self._running) == before:
                self.wasted += 1
                return

    def _start(self, tenant: str, now: float) -> None:
        queue = self._waiting[tenant]
        job = queue.popleft()
        if not queue:
            del self._waiting[tenant]
            self.scheduler.emptied(tenant)
        charge = self.scheduler.started(tenant, job.estimate, job.weight)
        self._service[tenant] += job.seconds / job.weight
        self._ticket += 1
        heapq.heappush(self._running, (now + job.seconds, self._ticket, job.seconds, charge))


def widest_gaps(moments: list[Moment]) -> dict[tuple[str, str], float]:
    """By how much weighted service of each pair differed at most, in any interval in which both waited throughout."""
    tenants = sorted({tenant for moment in moments for tenant in moment.waiting})
    return {pair: _widest_gap(moments, pair) for pair in combinations(tenants, 2)}


def _widest_gap(moments: list[Moment], pair: tuple[str, str]) -> float:
    widest, low, high = 0.0, float("inf"), -float("inf")
    for moment in moments:
        if moment.waiting.issuperset(pair):
            lead = moment.service.get(pair[0], 0.0) - moment.service.get(pair[1], 0.0)
            low, high = min(low, lead), max(high, lead)
            widest = max(widest, high - low)
        else:
            low, high = float("inf"), -float("inf")
    return widest
