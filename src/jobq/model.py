"""The vocabulary of jobq: a job, its statuses, and the one table of allowed transitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple


class JobStatus(StrEnum):
    """Where a job stands. The first three are live (table job), the others finished (job_archive)."""

    SCHEDULED = "SCHEDULED"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    DONE = "DONE"
    CANCELLED = "CANCELLED"
    DEAD = "DEAD"
    FAILED = "FAILED"


LIVE = frozenset({JobStatus.SCHEDULED, JobStatus.QUEUED, JobStatus.RUNNING})
FINISHED = frozenset(JobStatus) - LIVE

_S = JobStatus

#: Operation of the store -> status before -> statuses it may lead to. What is absent is refused:
#: the statement of that operation then changes nothing. `tests/store/test_state_machine.py` proves that
#: every operation does exactly this against a job in every status.
TRANSITIONS: Mapping[str, Mapping[JobStatus, frozenset[JobStatus]]] = {
    "promote": {_S.SCHEDULED: frozenset({_S.QUEUED})},
    "claim": {_S.QUEUED: frozenset({_S.RUNNING})},
    "extend": {_S.RUNNING: frozenset({_S.RUNNING})},
    "complete": {_S.RUNNING: frozenset({_S.DONE})},
    "fail": {_S.RUNNING: frozenset({_S.SCHEDULED, _S.DEAD, _S.FAILED, _S.CANCELLED})},
    "release": {_S.RUNNING: frozenset({_S.QUEUED, _S.CANCELLED})},
    "reclaim": {_S.RUNNING: frozenset({_S.QUEUED, _S.DEAD, _S.CANCELLED})},
    "retry": {_S.SCHEDULED: frozenset({_S.QUEUED}), _S.DEAD: frozenset({_S.QUEUED})},
    "force_retry": {
        _S.SCHEDULED: frozenset({_S.QUEUED}),
        _S.DEAD: frozenset({_S.QUEUED}),
        _S.FAILED: frozenset({_S.QUEUED}),
        _S.CANCELLED: frozenset({_S.QUEUED}),
    },
    "cancel": {
        _S.SCHEDULED: frozenset({_S.CANCELLED}),
        _S.QUEUED: frozenset({_S.CANCELLED}),
        _S.RUNNING: frozenset({_S.RUNNING}),
        _S.DEAD: frozenset({_S.CANCELLED}),
        _S.FAILED: frozenset({_S.CANCELLED}),
    },
}


class Claim(NamedTuple):
    """The right to write a job's outcome: its id and the lease drawn when it was claimed.

    The lease is a random 63-bit number, not the attempt: retry by hand and release change attempts.
    """

    id: int
    lease: int


class Lane(NamedTuple):
    """What the claim scans: one tenant's jobs of one priority in one queue."""

    queue: str
    tenant: str
    priority: int


@dataclass(slots=True, frozen=True)
class Job:
    """What `enqueue` returns: the job's id, its status, and whether this call created it."""

    id: int
    status: JobStatus | str
    created: bool = True


@dataclass(slots=True)
class NewJob:
    """One job to enqueue. `None` means: take the kind's default, else the setting.

    Args:
        kind: which handler runs it.
        payload: JSON text of the payload, already checked (see `jobq.payload.encode`).
        delay: seconds from now on; excludes `run_at`.
        run_at: with a time zone; a time in the past means now.
        timeout: seconds per attempt.
        meta: request id, trace context and the like; not shown to handlers as arguments.
    """

    kind: str
    payload: str = "{}"
    queue: str | None = None
    tenant: str = "default"
    priority: int | None = None
    delay: float | None = None
    run_at: datetime | None = None
    max_attempts: int | None = None
    timeout: float | None = None
    idempotency_key: str | None = None
    unique_key: str | None = None
    concurrency_key: str | None = None
    tags: list[str] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ClaimedJob:
    """A job as a worker holds it while it runs. `payload` is JSON text, not yet decoded."""

    claim: Claim
    kind: str
    queue: str
    tenant: str
    priority: int
    payload: str | None
    attempt: int
    max_attempts: int
    timeout: float
    run_at: datetime
    waited: float
    tags: list[str]
    meta: dict[str, Any]

    @property
    def id(self) -> int:
        """The job's id."""
        return self.claim.id

    @property
    def lane(self) -> Lane:
        """The lane it was claimed from."""
        return Lane(self.queue, self.tenant, self.priority)


class Verdict(StrEnum):
    """What a run says about its job; the database decides what becomes of it (see `fail.sql`)."""

    SUCCESS = "success"
    RETRY = "retry"
    PERMANENT = "permanent"
    STOPPED = "stopped"
    RELEASE = "release"


@dataclass(slots=True)
class Outcome:
    """The value that running a handler yields; one `match` in the recorder turns it into a write.

    Args:
        claim: which run it is the outcome of.
        verdict: what happened.
        error: text for people, already cleaned for PostgreSQL; `None` on success.
        delay: seconds until the next attempt; `None` lets the database draw the backoff.
        result: JSON text of the handler's return value.
        keep_payload: whether the finished row keeps the payload.
    """

    claim: Claim
    verdict: Verdict
    error: str | None = None
    delay: float | None = None
    result: str | None = None
    keep_payload: bool = True
