"""What a worker does with runs: claim them, extend their leases, and write how they ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from jobq import payload
from jobq.model import Claim, ClaimedJob, JobStatus, Lane, Outcome
from jobq.sql import Statements
from jobq.store.calls import Call, Row, array

#: Below and above every due time a row can have (see the CHECK on job.run_at).
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
END_OF_TIME = datetime(9999, 1, 1, tzinfo=UTC)


class Span(NamedTuple):
    """A stretch of a lane to claim from: after (run_at, id), up to and including `until`."""

    lane: Lane
    after_run_at: datetime = BEGINNING
    after_id: int = 0
    until: datetime = END_OF_TIME


class Share(NamedTuple):
    """Up to `most` jobs of one tenant, from its spans in the order given."""

    most: int
    spans: Sequence[Span]


class Blocked(NamedTuple):
    """A job that a claim met and that may not start: a limit keeps it, or its worker does not know its kind.

    Args:
        reason: which limit of whom: tenant_cap, queue_paused, kind_rate, key_turn and the like; or unknown_kind.
        scope: whose limit it is, such as `tenant:acme`; of an unknown kind what `unknown_kind` in SQL calls it.
        held: whether it left the claim index until the limit lets it pass.
        retry_in: seconds until it is worth trying again, where that is known.
    """

    id: int
    lane: Lane
    run_at: datetime
    reason: str
    scope: str
    held: bool
    retry_in: float | None

    @property
    def whole_lane(self) -> bool:
        """Whether it is a limit of its tenant or queue, so that all jobs of its lane wait with it."""
        return self.scope.startswith(("tenant:", "queue:"))

    @property
    def unknown_kind(self) -> bool:
        """Whether the worker that met it has no handler for its kind."""
        return self.reason == "unknown_kind"


class Claimed(NamedTuple):
    """The answer of a claim.

    Args:
        jobs: those that run now.
        blocked: those that may not.
        walked: where kinds were left out, the time up to which jobs of those were walked over.
    """

    jobs: list[ClaimedJob]
    blocked: list[Blocked]
    walked: datetime | None = None


class Extension(NamedTuple):
    """A lease that still holds: whether it was extended (else its row is locked), and whether its cancellation was asked for."""

    extended: bool
    cancelled: bool


@dataclass(frozen=True)
class ClaimSettings:
    """What every claim of a worker stamps (its name, and durations in seconds), and the kinds it knows (None: all).

    Args:
        durable: kinds whose claims are to be on disk before their jobs run.
    """

    worker: str
    lease_seconds: float
    grace: float
    default_max_attempts: int
    default_timeout: float
    kinds: Sequence[str] | None = None
    durable: Sequence[str] = ()


class RunStore:
    """Statements on running jobs. Each takes claims, never bare ids, so none can be unfenced."""

    def __init__(self, statements: Statements) -> None:
        self._sql = statements

    def claim(
        self,
        lease: int,
        free: int,
        shares: Sequence[Share],
        settings: ClaimSettings,
        left_out: Iterable[str] = (),
    ) -> Call[Claimed]:
        """QUEUED -> RUNNING for up to `free` jobs: of each share in turn at most what it says.

        Caps, rates and pauses hold whatever the caller knows of them: what they keep from starting comes back as blocked.

        Args:
            lease: random 63-bit number, drawn by the caller before it calls.
            free: slots that are free now.
            shares: what each tenant may have, in the order in which they are served.
            settings: what to stamp.
            left_out: kinds in queues that are walked over, as `Blocked.scope` names them.
        """

        def spans(value: Callable[[Span], object]) -> str:
            return array(array(map(value, share.spans)) for share in shares)

        params = {
            "lease": lease,
            "free": free,
            "worker": settings.worker,
            "lease_seconds": settings.lease_seconds,
            "grace": settings.grace,
            "default_max_attempts": settings.default_max_attempts,
            "default_timeout": settings.default_timeout,
            "kinds": None if settings.kinds is None else array(settings.kinds),
            "durable": array(settings.durable),
            "left_out": array(left_out),
            "most": array(share.most for share in shares),
            "queues": spans(lambda span: span.lane.queue),
            "tenants": spans(lambda span: span.lane.tenant),
            "priorities": spans(lambda span: span.lane.priority),
            "after_run_ats": spans(lambda span: span.after_run_at),
            "after_ids": spans(lambda span: span.after_id),
            "untils": spans(lambda span: span.until),
        }

        def read(rows: list[Row]) -> Claimed:
            walked = rows.pop()[9] if rows and rows[-1][0] is None else None
            jobs = [_claimed(lease, row) for row in rows if row[-1] is None]
            blocked = [_blocked(row) for row in rows[len(jobs) :]]
            return Claimed(sorted(jobs, key=_order), blocked, walked)

        return Call("claim", self._sql["claim"], params, read)

    def claims_of_lease(self, lease: int) -> Call[list[Claim]]:
        """What runs under a lease: to release after a claim whose answer was lost."""
        return Call(
            "claims_of_lease",
            self._sql["claims_of_lease"],
            {"lease": lease},
            lambda rows: [Claim(row[0], lease) for row in rows],
        )

    def extend(self, claims: Sequence[Claim], lease_seconds: float) -> Call[dict[Claim, Extension]]:
        """Extend leases, up to each run's deadline; returns those that still hold."""
        params = {**_pairs(claims), "lease_seconds": lease_seconds}
        return Call(
            "extend",
            self._sql["extend"],
            params,
            lambda rows: {Claim(*row[:2]): Extension(*row[2:]) for row in rows},
        )

    def complete(self, outcomes: Sequence[Outcome]) -> Call[set[Claim]]:
        """RUNNING -> DONE; returns the claims it was written for."""
        outcomes = list({outcome.claim: outcome for outcome in outcomes}.values())
        params = {
            **_pairs([outcome.claim for outcome in outcomes]),
            "results": array(outcome.result for outcome in outcomes),
            "dropped": _dropped(outcomes),
        }
        return Call(
            "complete",
            self._sql["complete"],
            params,
            lambda rows: {Claim(row[0], row[1]) for row in rows},
        )

    def fail(
        self, outcomes: Sequence[Outcome], base: float, maximum: float
    ) -> Call[dict[Claim, tuple[JobStatus, datetime | None]]]:
        """RUNNING -> SCHEDULED, DEAD, FAILED or CANCELLED, as the database decides.

        Args:
            outcomes: how the runs ended.
            base: of the backoff, in seconds.
            maximum: of the backoff, in seconds.

        Returns:
            Claim -> status, and when it is due again (SCHEDULED), for those it was written for.
        """
        params = {
            **_pairs([outcome.claim for outcome in outcomes]),
            "verdicts": array(outcome.verdict.value for outcome in outcomes),
            "errors": array(outcome.error for outcome in outcomes),
            "delays": array(outcome.delay for outcome in outcomes),
            "dropped": _dropped(outcomes),
            "base": base,
            "maximum": maximum,
        }
        return Call(
            "fail",
            self._sql["fail"],
            params,
            lambda rows: {Claim(*row[:2]): (JobStatus(row[2]), row[3]) for row in rows},
        )

    def release(self, claims: Sequence[Claim], keep_payload: int) -> Call[dict[Claim, JobStatus]]:
        """RUNNING -> QUEUED, the attempt given back; CANCELLED where that was asked for."""
        return Call(
            "release",
            self._sql["release"],
            {**_pairs(claims), "keep_payload": keep_payload},
            lambda rows: {Claim(*row[:2]): JobStatus(row[2]) for row in rows},
        )

    def locked(self, claims: Sequence[Claim]) -> Call[set[Claim]]:
        """Which of these runs cannot be ended at once, as another transaction has locked a row of theirs."""
        return Call(
            "locked",
            self._sql["locked"],
            _pairs(claims),
            lambda rows: {Claim(row[0], row[1]) for row in rows},
        )

    def recorded(self, claims: Sequence[Claim]) -> Call[dict[Claim, JobStatus]]:
        """Which of these runs ended by their own lease, as the archive tells."""
        return Call(
            "recorded",
            self._sql["recorded"],
            _pairs(claims),
            lambda rows: {Claim(row[0], row[1]): JobStatus(row[2]) for row in rows},
        )

    def progress(self, reports: Sequence[tuple[Claim, str]]) -> Call[set[Claim]]:
        """Write the latest progress (JSON text) of runs that still hold; returns those it was written for."""
        params = {
            **_pairs([claim for claim, _ in reports]),
            "progress": array(text for _, text in reports),
        }
        return Call(
            "progress",
            self._sql["progress"],
            params,
            lambda rows: {Claim(row[0], row[1]) for row in rows},
        )


def _pairs(claims: Sequence[Claim]) -> dict[str, str]:
    return {
        "ids": array(claim.id for claim in claims),
        "leases": array(claim.lease for claim in claims),
    }


def _dropped(outcomes: Sequence[Outcome]) -> str:
    return array(outcome.claim.id for outcome in outcomes if not outcome.keep_payload)


def _claimed(lease: int, row: Row) -> ClaimedJob:
    id_, kind, queue, tenant, priority, text, *numbers, run_at, waited, tags, meta, _, _ = row
    attempt, max_attempts, timeout = numbers
    return ClaimedJob(
        Claim(id_, lease), kind, queue, tenant, priority, text, attempt, max_attempts, timeout,
        run_at, waited or 0.0, tags or [], _meta(meta),
    )  # fmt: skip


def _blocked(row: Row) -> Blocked:
    id_, _, queue, tenant, priority, _, held, _, _, run_at, retry_in, _, _, reason, scope = row
    return Blocked(id_, Lane(queue, tenant, priority), run_at, reason, scope, bool(held), retry_in)


def _order(job: ClaimedJob) -> tuple[int, datetime, int]:
    return -job.priority, job.run_at, job.id


def _meta(text: str | None) -> dict[str, Any]:
    """Meta as an object: what SQL may hold beyond that (`[1]`, 1e5000) must not fail a whole claim."""
    try:
        meta = payload.decode(text or "{}")
    except ValueError:
        return {}
    return meta if isinstance(meta, dict) else {}
