"""What a worker runs now: from the claim until the outcome is recorded, each event in one place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from jobq import logs
from jobq.engine.pace import Pace
from jobq.engine.pool import SlotPool
from jobq.engine.runner import Run, Runner, Stop
from jobq.metrics import Metrics
from jobq.model import Claim, ClaimedJob, Outcome, Verdict

log = logs.get("jobq.worker")

#: Seconds for which a cancel hint is remembered whose job is not held (yet).
EARLY_CANCEL = 10.0


@dataclass
class ActiveRuns:
    """The runs of a worker. The worker that builds it fills in the rest.

    Attributes:
        runner: runs them.
        record: takes an outcome to be written.
        slot_free: called when a handler has returned.
        due: called when a job waits for its next attempt.
        ask: called to ask the database at once which cancellations were asked for.
    """

    metrics: Metrics
    runner: Runner = field(init=False)
    record: Callable[[Run, Outcome], None] = field(init=False)
    slot_free: Callable[[], None] = field(init=False)
    due: Callable[[], None] = field(init=False)
    ask: Callable[[], None] = field(init=False)
    #: Claims whose leases are to be extended: until their outcome is committed, or they are lost.
    held: dict[Claim, Run] = field(default_factory=dict)
    #: Runs whose handler has not returned: each has a slot.
    running: set[Run] = field(default_factory=set)
    #: How many handlers return per second.
    pace: Pace = field(default_factory=lambda: Pace(time.monotonic()))
    _early_cancels: dict[int, float] = field(default_factory=dict)
    _settled: asyncio.Event = field(default_factory=asyncio.Event)

    def start(self, job: ClaimedJob, pool: SlotPool) -> None:
        """A job was claimed: run it."""
        run = Run(job, pool, pool.started(job.tenant, job.queue, job.kind), time.monotonic())
        self.held[job.claim] = run
        self.running.add(run)
        self.metrics.waited(job.queue, job.waited)
        log.debug("job started", job_id=job.id, kind=job.kind, attempt=job.attempt)
        self.runner.start(run)
        if self._early_cancels and job.id in self._early_cancels:
            self.ask()

    def settled(self, run: Run, outcome: Outcome) -> None:
        """A run has an outcome; where its lease is lost, nothing is to be written."""
        self._settled.set()
        if run.stop is Stop.LEASE_LOST:
            self.recorded(run, outcome, "lease_lost", None)
        else:
            self.record(run, outcome)

    def ended(self, run: Run) -> None:
        """A handler has returned: its slot is free."""
        self.running.discard(run)
        now = time.monotonic()
        seconds = now - run.started
        self.pace.ended(now, seconds)
        run.pool.ended(run.charge, run.job.kind, seconds)
        self.slot_free()

    def recorded(self, run: Run, outcome: Outcome, what: str, due: datetime | None) -> None:
        """An outcome is committed, or its lease was lost."""
        job = run.job
        self.held.pop(job.claim, None)
        self.metrics.finished(job.kind, what, run.seconds)
        fields: dict[str, Any] = {}
        if outcome.error is not None:
            fields["error"] = outcome.error
        if due is not None:
            fields["retry_at"] = due
            self.due()
        if job.meta and (request_id := job.meta.get("request_id")) is not None:
            fields["request_id"] = request_id
        log.info(
            "job finished", job_id=job.id, kind=job.kind, tenant=job.tenant, attempt=job.attempt,
            outcome=what, duration_ms=round(run.seconds * 1000, 1), **fields,
        )  # fmt: skip

    def gave_up(self, run: Run) -> None:
        """PostgreSQL refuses the outcome for good: its lease is left to end."""
        self.held.pop(run.claim, None)

    def lost(self, claims: Sequence[Claim]) -> None:
        """Leases that hold no more. A run whose outcome is being written is the recorder's to judge."""
        for claim in claims:
            run = self.held.get(claim)
            if run is not None and not run.settled:
                log.warning(
                    "a lease was lost",
                    job_id=run.job.id,
                    kind=run.job.kind,
                    attempt=run.job.attempt,
                )
                del self.held[claim]
                self.runner.stop(run, Stop.LEASE_LOST)

    def cancel(self, claims: Sequence[Claim]) -> None:
        """The cancellation of these runs was asked for."""
        for claim in claims:
            run = self.held.get(claim)
            if run is not None and not run.settled and run.stop is None:
                self.runner.stop(run, Stop.CANCEL)

    def cancel_hint(self, ids: frozenset[int] | None) -> None:
        """A hint to cancel: whether it was asked for, the database tells, since anybody may send one.

        It may overtake the answer of the claim: ids that are not held are remembered a while.
        """
        held = {claim.id for claim in self.held}
        if ids is None or not held.isdisjoint(ids):
            self.ask()
        now = time.monotonic()
        early = dict.fromkeys((ids or frozenset()) - held, now)
        self._early_cancels = {
            id_: at for id_, at in (self._early_cancels | early).items() if now - at < EARLY_CANCEL
        }

    async def until_returned(self, deadline: float) -> None:
        """Wait until every handler has returned or was abandoned, at most until a monotonic time."""
        while any(not run.abandoned for run in self.running):
            self._settled.clear()
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    await self._settled.wait()
            except TimeoutError:
                return

    def stop_all(self) -> None:
        """Tell every run to stop: the worker shuts down."""
        for run in list(self.running):
            self.runner.stop(run, Stop.SHUTDOWN)

    def release_rest(self) -> None:
        """Jobs whose handlers do not stop are released: the last act before the process ends."""
        for run in list(self.running):
            if not run.settled:
                run.settled = run.abandoned = True
                log.warning("a handler outlives the shutdown", job_id=run.job.id, kind=run.job.kind)
                self.record(run, Outcome(run.claim, Verdict.RELEASE))
