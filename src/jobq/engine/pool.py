"""Slot pools: how many jobs run at once, of which queues, and who comes next."""

from __future__ import annotations

from dataclasses import dataclass, field

from jobq import fields
from jobq.engine.fair import Charge, Clock, CostEstimates
from jobq.engine.lanes import LaneTable
from jobq.engine.weights import Weights
from jobq.errors import ConfigurationError, InvalidJob


@dataclass(frozen=True)
class QueueSpec:
    """A queue to serve; `slots` of its own, or None for the shared ones."""

    name: str
    slots: int | None = None


@dataclass
class SlotPool:
    """Slots that serve some queues, with express slots beyond them.

    Express slots (design.md 19) start only jobs of tenants that have nothing running here, so that a
    quiet tenant need not wait for a job of a busy one to end.

    Args:
        slots: jobs that run at once.
        express: further ones for quiet tenants.
        table: the lanes it serves, with the clock that says who is next.
        estimates: what runs of each kind take.
        weights: what a run's time is divided by.
    """

    slots: int
    express: int
    table: LaneTable
    estimates: CostEstimates
    weights: Weights
    running: int = 0
    clock: Clock = field(init=False)

    def __post_init__(self) -> None:
        self.clock = self.table.clock

    @property
    def free(self) -> int:
        """Slots that may take a job of anybody."""
        return max(0, self.slots - self.running)

    @property
    def free_express(self) -> int:
        """Slots that are left for quiet tenants once all others are busy."""
        return max(0, self.slots + self.express - self.running)

    def plan(self, most_tenants: int) -> tuple[int, list[tuple[str, int]]]:
        """How many jobs to claim now, and of whom at most how many each."""
        if self.free:
            return self.free, self.clock.plan(self.free, most_tenants)
        free = min(self.free_express, most_tenants)
        return free, self.clock.plan_express(free) if free else []

    def started(self, tenant: str, queue: str, kind: str) -> Charge:
        """A job takes a slot; returns what its tenant was charged, by the weights of this moment."""
        self.running += 1
        weight = self.weights.of(tenant, queue, kind)
        return self.clock.start(tenant, self.estimates.of(kind), weight)

    def ended(self, charge: Charge, kind: str, seconds: float) -> None:
        """A job gives its slot back after it took some seconds."""
        self.running -= 1
        self.estimates.learn(kind, seconds)
        self.clock.end(charge, seconds)


def make_pools(
    queues: list[QueueSpec] | None, slots: int, express: int, weights: Weights | None = None
) -> list[SlotPool]:
    """The pools of a worker.

    Args:
        queues: what to serve; None for every queue with the shared slots. A queue with slots of its
            own gets a pool of its own; all others share `slots`.
        slots, express: of the shared pool.
        weights: shared by all; none are set where there are none.
    """
    weights = weights or Weights()
    if queues is None:
        return [_pool(None, slots, express, weights)]
    shared = frozenset(queue.name for queue in queues if queue.slots is None)
    pools = [_pool(shared, slots, express, weights)] if shared else []
    for queue in queues:
        if queue.slots is not None:
            own_express = 0 if queue.slots == 1 else max(1, queue.slots // 8)
            own = own_express if express else 0
            pools.append(_pool(frozenset({queue.name}), queue.slots, own, weights))
    return pools


def parse_queues(texts: list[str]) -> list[QueueSpec] | None:
    """Queues as given on the command line or in JOBQ_QUEUES: `name` or `name:slots`.

    Raises:
        ConfigurationError: a name or number is wrong, or a queue is named twice.
    """
    specs: list[QueueSpec] = []
    for text in texts:
        name, colon, number = text.rpartition(":")
        slots = None
        if colon and number.isdecimal():
            slots = int(number)
        else:
            name = text
        try:
            fields.check({"queue": name})
        except InvalidJob as error:
            raise ConfigurationError(f"JOBQ_QUEUES, {text!r}: {error}") from None
        if slots is not None and not 1 <= slots <= 10_000:
            raise ConfigurationError(f"queue {name!r}: slots must be between 1 and 10000")
        if any(spec.name == name for spec in specs):
            raise ConfigurationError(f"queue {name!r} is named twice")
        specs.append(QueueSpec(name, slots))
    return specs or None


def _pool(queues: frozenset[str] | None, slots: int, express: int, weights: Weights) -> SlotPool:
    return SlotPool(slots, express, LaneTable(Clock(), queues), CostEstimates(), weights)
