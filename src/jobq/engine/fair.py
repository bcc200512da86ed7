"""Start-time fair queuing by measured time: who starts next (pure, no I/O).

Goyal, Vin and Cheng, "Start-time Fair Queuing" (SIGCOMM 1996): a job's start tag is its tenant's last
finish tag, or the virtual time if that is later where the tenant comes back; its finish tag adds the job's cost
divided by its weight; the smallest start tag is served next. With several slots it is SFQ(D) (Jin, Chase and Kaur,
SIGMETRICS 2004). Cost is worker time: an estimate when a job starts, corrected by what it took when it ends.

What the papers need not care for, as their costs are known when a packet starts:

- A start tag never moves up to the virtual time while its tenant has jobs waiting. Estimates that were too high
  leave a tenant behind it when they are corrected, and so it is given back what it never had.
- Virtual time is the start tag last served, or the smallest one that waits where that is smaller. A tenant that a
  late correction puts far ahead, or one that an express slot serves out of turn, so takes nobody's place.
- A correction counts in the stretch in which its job was started. A tenant may come back while jobs of its last
  stretch run on: what they turn out to have taken is owed from then on, not from now on, and what they turn out
  not to have taken is no credit for the absence.
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
#: Stretches of a tenant that are told apart while jobs of each still run; later ones count as one.
MOST_STRETCHES = 8


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


@dataclass(slots=True, eq=False)
class Stretch:
    """What a tenant was charged from one time it came back to the next.

    Its finish tag after a stretch is the larger of the one before and `begin`, plus `charged`.
    """

    begin: float
    charged: float = 0.0
    #: Jobs started in it that have not ended.
    running: int = 0


@dataclass(slots=True)
class Tenant:
    """A tenant's account with one slot pool. All amounts are seconds divided by weights."""

    name: str
    #: Its last finish tag: the start tag of its next job.
    finish: float
    #: The latest last; earlier ones only while jobs of theirs run.
    stretches: list[Stretch]
    running: int = 0
    ready: bool = False
    #: What its jobs were charged lately, to foresee how far one more takes it.
    cost: float = MIN_COST
    #: Its entry in the heap, None when it is in a caller's hands or has nothing to run.
    entry: int | None = None
    #: The finish tag that entry was made with; a larger one by now is noticed when the entry comes up.
    key: float = 0.0

    def come_back(self, now: float) -> None:
        """It has jobs again: absence earns no credit; a finish tag ahead of the virtual time is still owed."""
        last = self.stretches[-1]
        if last.running and len(self.stretches) < MOST_STRETCHES:
            self.stretches.append(Stretch(now))
        else:
            last.begin = max(last.begin, now - last.charged)
        self.update()

    def settle(self, stretch: Stretch, correction: float) -> None:
        """A job that was started in a stretch ended, and cost that much more (or less) than it was charged."""
        self.running -= 1
        stretch.running -= 1
        stretch.charged += correction
        if not stretch.running and stretch is not self.stretches[-1]:
            self._join(self.stretches.index(stretch))
        self.update()

    def _join(self, index: int) -> None:
        """Take out a stretch that nothing can change any more: the finish tag stays what it is, exactly."""
        over, later = self.stretches.pop(index), self.stretches[index]
        later.begin = max(over.begin + over.charged, later.begin)
        if index:
            self.stretches[index - 1].charged += over.charged

    def update(self) -> None:
        """Work out the finish tag."""
        tag = 0.0
        for stretch in self.stretches:
            tag = max(tag, stretch.begin) + stretch.charged
        self.finish = tag


@dataclass(slots=True)
class Charge:
    """What a job was charged when it started; handed back when it ends."""

    tenant: Tenant
    stretch: Stretch
    #: Seconds, not divided by the weight.
    estimate: float
    weight: float


class Clock:
    """The virtual clock of one slot pool: which tenants may start how many jobs next."""

    def __init__(self) -> None:
        #: The start tag last served.
        self._served = 0.0
        #: The largest finish tag that ended jobs left.
        self._latest = 0.0
        self._running = 0
        #: What jobs were charged lately, whoever's: foresees those of a tenant never seen.
        self._typical = MIN_COST
        self._tenants: dict[str, Tenant] = {}
        self._forget_above = FORGET_ABOVE
        self._heap: list[tuple[float, int, Tenant]] = []
        self._ticket = count()

    @property
    def now(self) -> float:
        """The virtual time: the start tag last served, or the smallest that waits where that is smaller."""
        first = self._first()
        return self._served if first is None else min(self._served, first.finish)

    def tenant(self, name: str) -> Tenant:
        """A tenant's account; a new one starts at the present, with nothing banked."""
        tenant = self._tenants.get(name)
        if tenant is None:
            if len(self._tenants) > self._forget_above:
                self._forget()
            now = self.now
            tenant = self._tenants[name] = Tenant(name, now, [Stretch(now)], cost=self._typical)
        return tenant

    def set_ready(self, name: str, ready: bool) -> None:
        """Whether a tenant has jobs that could start."""
        tenant = self.tenant(name)
        if ready and not tenant.ready:
            tenant.come_back(self.now)
        tenant.ready = ready
        if ready and tenant.entry is None:
            self._push(tenant)

    @property
    def anyone_ready(self) -> bool:
        """Whether some tenant has jobs that could start."""
        return self._first() is not None

    def plan(self, free: int, most_tenants: int) -> list[tuple[str, int]]:
        """How many jobs each tenant may start now, in the order of their start tags.

        Args:
            free: slots to fill.
            most_tenants: how many tenants to name at most.
        """
        taken = self._take(most_tenants, lambda tenant: True, stop=free)
        shares: dict[str, int] = {}
        tags = [(tenant.finish, index) for index, tenant in enumerate(taken)]
        heapq.heapify(tags)
        while free > 0 and tags:
            start, index = tags[0]
            tenant = taken[index]
            amount = free if len(tags) == 1 else 1
            shares[tenant.name] = shares.get(tenant.name, 0) + amount
            heapq.heapreplace(tags, (start + tenant.cost, index))
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

    def start(self, name: str, estimate: float, weight: float = 1.0) -> Charge:
        """A job of the tenant starts: charge what it may cost. `end` takes what this returns.

        Args:
            name: the tenant.
            estimate: seconds.
            weight: of this job; of two jobs, one with three times the weight is charged a third.
        """
        tenant = self.tenant(name)
        stretch = tenant.stretches[-1]
        cost = estimate / weight
        self._served = tenant.finish
        tenant.finish += cost
        tenant.cost += SMOOTHING * (cost - tenant.cost)
        self._typical += SMOOTHING * (cost - self._typical)
        stretch.charged += cost
        stretch.running += 1
        tenant.running += 1
        self._running += 1
        return Charge(tenant, stretch, estimate, weight)

    def end(self, charge: Charge, seconds: float) -> None:
        """A job ended: charge what it took beyond its estimate, or give back the rest."""
        tenant = charge.tenant
        correction = max(seconds, MIN_COST) - charge.estimate
        tenant.settle(charge.stretch, correction / charge.weight)
        if tenant.entry is not None and tenant.finish < tenant.key:
            self._push(tenant)
            self._compact()
        self._latest = max(self._latest, tenant.finish)
        self._running -= 1
        if not self._running and not self.anyone_ready:
            # The end of a busy period: what was taken while nobody else wanted it is not owed.
            self._served = max(self._served, self._latest)

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

    def _first(self) -> Tenant | None:
        """Who is next: the ready tenant with the smallest finish tag."""
        while self._heap:
            _, ticket, tenant = self._heap[0]
            if ticket == tenant.entry and tenant.ready and tenant.finish <= tenant.key:
                return tenant
            heapq.heappop(self._heap)
            if ticket == tenant.entry:
                tenant.entry = None
                if tenant.ready:
                    self._push(tenant)
        return None

    def _forget(self) -> None:
        now = self.now
        idle = [
            name
            for name, tenant in self._tenants.items()
            if not tenant.ready and not tenant.running and tenant.finish <= now
        ]
        for name in idle:
            del self._tenants[name]
        # Where most are busy, the next look waits until they are twice as many: looking costs a step per tenant.
        self._forget_above = max(FORGET_ABOVE, 2 * len(self._tenants))
