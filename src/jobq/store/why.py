"""What `jobq.why` decides on: facts about one job, what limits it, and what comes before it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from jobq.model import JobStatus
from jobq.sql import Statements
from jobq.store.calls import Call, Row
from jobq.store.upkeep import LAST_NAME

#: Jobs, and lanes, that are counted at most.
MOST_AHEAD = 10_000


class Limit(NamedTuple):
    """A limit that concerns a waiting job.

    Args:
        which: tenant, queue, kind or key.
        cap: jobs that may run at once, None where that is not limited.
        taken: how many do.
        holders: ids of those that do, at most 20.
        earlier: jobs of the same concurrency key that could start and come before it.
        earlier_ids: their ids, at most 20.
        rate_limit: jobs that may start within `rate_period` seconds, None where that is not limited.
        refill: seconds until one more may start; not above zero where one may now.
    """

    which: str
    name: str
    paused: bool = False
    cap: int | None = None
    taken: int = 0
    holders: list[int] | None = None
    earlier: int = 0
    earlier_ids: list[int] | None = None
    rate_limit: int | None = None
    rate_period: float | None = None
    refill: float | None = None


@dataclass(frozen=True)
class Facts:
    """A job, what limits it while it waits, and the live workers there are.

    Attributes:
        now: the database's clock.
        alive: live workers.
        serving: those that serve its queue.
        knowing: those of them that have a handler for its kind.
    """

    id: int
    kind: str
    queue: str
    tenant: str
    priority: int
    status: JobStatus
    attempts: int
    max_attempts: int | None
    run_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    worker: str | None
    lease_until: datetime | None
    cancel_requested: bool
    last_error: str | None
    now: datetime
    alive: int
    serving: int
    knowing: int
    limits: tuple[Limit, ...] = ()


class Ahead(NamedTuple):
    """What comes before a job in fair order, and the workers that serve its queue.

    Args:
        own: jobs of its own tenant.
        other: jobs of other tenants.
        at_least: whether there may be more, as not all were counted.
        workers: live workers that serve its queue.
        draining: those of them that shut down.
        stalled: those whose claim loop stands still.
        slots: slots of the rest, express ones aside.
        running: jobs that run there.
        free: slots that anybody may take.
        express: free express slots that its tenant may take, as it runs nothing on those workers.
        runs_per_second: what those slots can do, by how long runs took there lately; 0 where none ended yet.
    """

    own: int
    other: int
    at_least: bool
    workers: int
    draining: int
    stalled: int
    slots: int
    running: int
    free: int
    express: int
    runs_per_second: float


class WhyStore:
    """Statements behind "why is it waiting?"."""

    def __init__(self, statements: Statements) -> None:
        self._sql = statements

    def why(self, id: int) -> Call[Facts | None]:
        """A job and what concerns it; None where there is none."""
        return Call("why", self._sql["why"], {"id": id}, _facts)

    def ahead(self, job: Facts, most: int = MOST_AHEAD) -> Call[Ahead]:
        """What comes before a job that waits, counted up to `most`."""
        params = {
            "id": job.id,
            "queue": job.queue,
            "tenant": job.tenant,
            "priority": job.priority,
            "run_at": job.run_at,
            "last": LAST_NAME,
            "most": most,
        }
        return Call("ahead", self._sql["ahead"], params, lambda rows: Ahead(*rows[0]))


def _facts(rows: list[Row]) -> Facts | None:
    if not rows:
        return None
    limited = -len(Limit._fields)  # where a row's columns of a limit begin
    facts = Facts(*rows[0][:limited])
    limits = tuple(Limit(*row[limited:]) for row in rows if row[limited] is not None)
    return replace(facts, status=JobStatus(facts.status), limits=limits)
