"""Start-time fair queuing by measured time: who starts next (pure, no I/O).

Goyal, Vin and Cheng, "Start-time Fair Queuing" (SIGCOMM 1996): a job's start tag is the larger of
the virtual time and its tenant's last finish tag; its finish tag adds the job's cost divided by the
tenant's weight; the smallest start tag is served next, and virtual time is the start tag last served.
Cost is worker time: an estimate when a job starts, corrected by what it took when it ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

#: Seconds charged at least: a job that takes no time still takes a claim.
MIN_COST = 0.001
#: Weight of the newest run in a kind's moving average.
SMOOTHING = 0.2
#: Above this many tenants, those that are caught up and idle are forgotten: they lose nothing by it.
FORGET_ABOVE = 20_000
#: Above this many kinds, all estimates are forgotten: a new run brings each back, and kinds may be made up by callers.
MOST_KINDS = 10_000


class CostEstimates:
    """Expected seconds of a run: an exponential moving average per kind, at least `MIN_COST`."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def of(self, kind: str) -> float:
        """The estimate for a kind; `MIN_COST` for one never seen."""
        return self._seconds.get(kind, MIN_COST)

    def learn(self, kind: str, seconds: float) -> None:
        """A run of the kind took this long."""
        cost = max(seconds, MIN_COST)
        if len(self._seconds) > MOST_KINDS:
            self._seconds.clear()
        known = self._seconds.get(kind)
        self._seconds[kind] = cost if known is None else known + SMOOTHING * (cost - known)


@dataclass(slots=True)
class Tenant:
    """A tenant's account with one slot pool."""

    name: str
    finish: float
    weight: float = 1.0
    running: int = 0
    ready: bool = False
    #: Seconds its jobs were charged lately, to foresee how far one more takes it.
    cost: float = MIN_COST
    #: Its entry in the heap, None when it is in a caller's hands or has nothing to run.
    entry: int | None = None
    #: The finish tag that entry was made with; a larger one by now is noticed when the entry comes up.
    key: float = 0.0


class Clock:
    """The virtual clock of one slot pool: which tenants may start how many jobs next."""

    def __init__(self) -> None:
        self.now = 0.0
        #: Seconds that jobs were charged lately, whoever's: foresees those of a tenant never seen.
        self._typical = MIN_COST
        self._tenants: dict[str, Tenant] = {}
        self._forget_above = FORGET_ABOVE
        self._heap: list[tuple[float, int, Tenant]] = []
        self._ticket = count()

    def tenant(self, name: str) -> Tenant:
        """A tenant's account; a new one starts at the present, with nothing banked."""
        tenant = self._tenants.get(name)
        if tenant is None:
            if len(self._tenants) > self._forget_above:
                self._forget()
            tenant = self._tenants[name] = Tenant(name, self.now, cost=self._typical)
        return tenant

    def set_ready(self, name: str, ready: bool) -> None:
        """Whether a tenant has jobs that could start."""
        tenant = self.tenant(name)
        if ready and not tenant.ready:
            # Absence earns no credit; a finish tag ahead of the clock is still owed.
            tenant.finish = max(tenant.finish, self.now)
        tenant.ready = ready
        if ready and tenant.entry is None:
            self._push(tenant)

    @property
    def anyone_ready(self) -> bool:
        """Whether some tenant has jobs that could start."""
        self._drop_stale()
        return bool(self._heap)

    def plan(self, free: int, most_tenants: int) -> list[tuple[str, int]]:
        """How many jobs each tenant may start now, in the order of their start tags.

        Args:
            free: slots to fill.
            most_tenants: how many tenants to name at most.
        """
        taken = self._take(most_tenants, lambda tenant: True, stop=free)
        shares: dict[str, int] = {}
        tags = [(max(tenant.finish, self.now), index) for index, tenant in enumerate(taken)]
        heapq.heapify(tags)
        while free > 0 and tags:
            start, index = tags[0]
            tenant = taken[index]
            amount = free if len(tags) == 1 else 1
            shares[tenant.name] = shares.get(tenant.name, 0) + amount
            heapq.heapreplace(tags, (start + tenant.cost / tenant.weight, index))
            free -= amount
        for tenant in taken:
            self._push(tenant)
        return list(shares.items())

    def plan_express(self, free: int) -> list[tuple[str, int]]:
        """One job each for tenants that have nothing running, in the order of their start tags."""
        taken = self._take(free, lambda tenant: tenant.running == 0, stop=free)
        for tenant in taken:
            self._push(tenant)
        return [(tenant.name, 1) for tenant in taken]

    def start(self, name: str, estimate: float) -> None:
        """A job of the tenant starts: charge the estimate (seconds)."""
        tenant = self.tenant(name)
        start = max(self.now, tenant.finish)
        self.now = start
        tenant.finish = start + estimate / tenant.weight
        tenant.cost += SMOOTHING * (estimate - tenant.cost)
        self._typical += SMOOTHING * (estimate - self._typical)
        tenant.running += 1

    def end(self, name: str, estimate: float, seconds: float) -> None:
        """A job of the tenant ended: charge what it took beyond the estimate, or give back the rest."""
        tenant = self.tenant(name)
        tenant.running -= 1
        correction = max(seconds, MIN_COST) - estimate
        if correction:
            tenant.finish += correction / tenant.weight
            if tenant.entry is not None and tenant.finish < tenant.key:
                self._push(tenant)
                self._compact()

    def _take(self, most: int, wanted: Callable[[Tenant], bool], stop: int) -> list[Tenant]:
        """Take up to `most` (and `stop`) wanted tenants off the heap, smallest finish tag first."""
        taken: list[Tenant] = []
        passed: list[Tenant] = []
        while self._heap and len(taken) < min(most, stop):
            _, ticket, tenant = heapq.heappop(self._heap)
            if ticket != tenant.entry:
                continue
            tenant.entry = None
            if tenant.ready and tenant.finish > tenant.key:
                self._push(tenant)
            elif tenant.ready:
                (taken if wanted(tenant) else passed).append(tenant)
        for tenant in passed:
            self._push(tenant)
        return taken

    def _push(self, tenant: Tenant) -> None:
        tenant.entry, tenant.key = next(self._ticket), tenant.finish
        heapq.heappush(self._heap, (tenant.finish, tenant.entry, tenant))

    def _compact(self) -> None:
        if len(self._heap) > 4 * len(self._tenants) + 1000:
            self._heap = [item for item in self._heap if item[1] == item[2].entry]
            heapq.heapify(self._heap)

    def _drop_stale(self) -> None:
        while self._heap:
            _, ticket, tenant = self._heap[0]
            if ticket == tenant.entry and tenant.ready:
                return
            heapq.heappop(self._heap)
            if ticket == tenant.entry:
                tenant.entry = None

    def _forget(self) -> None:
        idle = [
            name
            for name, tenant in self._tenants.items()
            if not tenant.ready and not tenant.running and tenant.finish <= self.now
        ]
        for name in idle:
            del self._tenants[name]
        # Where most are busy, the next look waits until they are twice as many: looking costs a step per tenant.
        self._forget_above = max(FORGET_ABOVE, 2 * len(self._tenants))
