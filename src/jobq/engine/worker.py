"""A worker process: claims jobs, runs them, records how they ended. Wiring, start and shutdown."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from prometheus_client import CollectorRegistry

from jobq import __version__, logs
from jobq.backoff import longest_life
from jobq.config import Settings, format_duration
from jobq.engine.discovery import Discovery
from jobq.engine.dispatcher import Dispatcher
from jobq.engine.heartbeat import Heartbeat
from jobq.engine.listener import Listener
from jobq.engine.periodic import Periodic
from jobq.engine.pool import QueueSpec, SlotPool, make_pools
from jobq.engine.promoter import Promoter
from jobq.engine.reaper import Reaper
from jobq.engine.recorder import Backoff, Recorder
from jobq.engine.retention import Retention
from jobq.engine.runner import GRACE, Run, Runner, Stop
from jobq.engine.session import Session
from jobq.handlers import Handler
from jobq.metrics import Metrics
from jobq.model import Claim, ClaimedJob, JobStatus, Outcome, Verdict
from jobq.sql import Statements
from jobq.store import ClaimSettings, Reclaimed, RunStore, UpkeepStore
from jobq.wakeup import CancelRequested, DueAt, LanesReady, LookEverywhere, Message

log = logs.get("jobq.worker")

#: Seconds that cancelled handlers have to end at shutdown, within the budget where it is long enough.
CANCEL_TIME = 1.0
#: Seconds for which a cancel hint is remembered whose job is not held (yet).
EARLY_CANCEL = 10.0
#: Seconds at shutdown for the last outcomes to be written once everything else has ended.
FLUSH_TIME = 2.0


@dataclass(frozen=True)
class Health:
    """Whether the claim loop moves, and if not, why not."""

    ok: bool
    reason: str = ""


class Worker:
    """One worker process.

    Args:
        settings: all settings; the database URL must be set.
        handlers: by kind.
        queues: what to serve; None for every queue.
        metrics: where to count.
    """

    def __init__(
        self,
        settings: Settings,
        handlers: Mapping[str, Handler],
        *,
        queues: Sequence[QueueSpec] | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.settings = settings
        self.handlers = handlers
        self.metrics = metrics or Metrics(CollectorRegistry(), kinds=handlers)
        self.id = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self.queues = queues
        self.pools = make_pools(list(queues) if queues else None, settings.concurrency, settings.express)
        self._held: dict[Claim, Run] = {}
        self._running: set[Run] = set()
        self._early_cancels: dict[int, float] = {}
        self._outage = logs.Repeat(log, every=30.0)
        self._stop_requested = asyncio.Event()
        self._quiet = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._build()

    # --- life ---------------------------------------------------------------------------------

    async def run(self) -> bool:
        """Work until `stop` is called, then shut down; whether every outcome was recorded."""
        self._loop = asyncio.get_running_loop()
        await self._start()
        await self._stop_requested.wait()
        return await self._shut_down()

    def stop(self) -> None:
        """Ask the worker to shut down; safe to call more than once, from the loop."""
        self._stop_requested.set()

    @property
    def draining(self) -> bool:
        """Whether it is shutting down."""
        return self._stop_requested.is_set()

    @property
    def running(self) -> int:
        """Jobs that run now, abandoned handlers included."""
        return len(self._running)

    @property
    def ready(self) -> bool:
        """Whether it takes on jobs: the database answers and it is not draining."""
        return not self.draining and not self._dispatcher.outage

    def update_metrics(self) -> None:
        """Set the gauges of this worker; called before they are shown."""
        now = time.monotonic()
        slots, express = sum(pool.slots for pool in self.pools), sum(pool.express for pool in self.pools)
        self.metrics.slots(self.running, max(0, slots - self.running), express)
        self.metrics.running_oldest(max((now - run.started for run in self._running), default=0.0))
        self.metrics.abandoned_handlers(sum(run.abandoned for run in self._running))

    def health(self) -> Health:
        """Whether the claim loop moved within three poll intervals, or is waiting for the database."""
        still = time.monotonic() - self._dispatcher.succeeded_at
        if self._dispatcher.outage or self.draining:
            return Health(True)  # a restart would not bring the database back
        if still > 3 * self.settings.poll_interval:
            return Health(False, f"the claim loop has stood still for {format_duration(round(still, 1))}")
        return Health(True)

    async def _start(self) -> None:
        kinds = [_defaults(handler) for handler in self.handlers.values()]
        if kinds:
            await self._side.run(self._upkeep.register_kinds(kinds))
        self._heartbeat.start()
        steps = [self._recorder.run, self._listener.run, self._dispatcher.run]
        steps += [periodic.run for periodic in self._periodic]
        self._tasks = [asyncio.create_task(step(), name=f"jobq {step.__qualname__}") for step in steps]
        for task in self._tasks:
            task.add_done_callback(self._task_ended)
        settings = self.settings
        life = longest_life(settings.max_attempts, settings.backoff_base, settings.backoff_max)
        log.info(
            "worker started", worker=self.id, slots=sum(pool.slots for pool in self.pools),
            express=sum(pool.express for pool in self.pools), kinds=len(self.handlers),
            queues=[queue.name for queue in self.queues] if self.queues else "all",
            failing_job_lives=f"{settings.max_attempts} attempts, waits of at most {format_duration(life)} in all",
        )  # fmt: skip

    async def _shut_down(self) -> bool:
        """Stop claiming, let jobs finish within the budget, release the rest, say goodbye."""
        budget = self.settings.shutdown_timeout
        ends = time.monotonic() + budget
        log.info("worker stops", worker=self.id, running=self.running, budget=format_duration(budget))
        self._dispatcher.stop()
        await self._claims_ended(ends)
        await asyncio.sleep(max(0.0, min(self.settings.drain_delay, ends - time.monotonic())))
        await self._runs_ended(ends - min(CANCEL_TIME, budget / 4))
        for run in list(self._running):
            self._runner.stop(run, Stop.SHUTDOWN)
        await self._runs_ended(max(ends, time.monotonic() + CANCEL_TIME / 4))
        recorded = await self._release_rest()
        await self._close()
        log.info("worker stopped", worker=self.id, recorded=recorded)
        return recorded

    async def _claims_ended(self, ends: float) -> None:
        """A claim under way ends by itself; what it took is released."""
        tasks = [task for task in self._tasks if "Dispatcher.run" in task.get_name()]
        await asyncio.wait(tasks, timeout=max(0.1, ends - time.monotonic()))

    async def _runs_ended(self, ends: float) -> None:
        while any(not run.abandoned for run in self._running):
            self._quiet.clear()
            try:
                async with asyncio.timeout(max(0.0, ends - time.monotonic())):
                    await self._quiet.wait()
            except TimeoutError:
                return

    async def _release_rest(self) -> bool:
        """The last act: jobs whose handlers do not stop are released, and everything is written."""
        for run in list(self._running):
            if not run.settled:
                run.settled = run.abandoned = True
                log.warning("a handler outlives the shutdown", job_id=run.job.id, kind=run.job.kind)
                self._recorder.put(run, Outcome(run.claim, Verdict.RELEASE))
        try:
            async with asyncio.timeout(FLUSH_TIME):
                await self._recorder.flush()
                await self._dispatcher.release_lost(now=True)
                await self._side.run(self._upkeep.leave(self.id))
        except (TimeoutError, psycopg.Error, OSError) as error:
            log.warning("the last outcomes could not be written; leases will end", error=type(error).__name__)
        return not self._recorder.unrecorded

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._heartbeat.stop()
        for session in self._sessions:
            await session.close()
        self._runner.close()

    # --- what happens -------------------------------------------------------------------------

    def _start_job(self, job: ClaimedJob, pool: SlotPool) -> None:
        run = Run(job, pool, pool.started(job.tenant, job.kind), time.monotonic())
        self._held[job.claim] = run
        self._running.add(run)
        self.metrics.waited(job.queue, job.waited)
        log.debug("job started", job_id=job.id, kind=job.kind, attempt=job.attempt)
        self._runner.start(run)
        if self._early_cancels and job.id in self._early_cancels:
            self._heartbeat.hurry()

    def _settled(self, run: Run, outcome: Outcome) -> None:
        """A run has an outcome; where its lease is lost, nothing is to be written."""
        if run.stop is Stop.LEASE_LOST:
            self._recorded(run, outcome, "lease_lost", None)
        else:
            self._recorder.put(run, outcome)

    def _ended(self, run: Run) -> None:
        """A handler has returned: its slot is free."""
        self._running.discard(run)
        seconds = time.monotonic() - run.started
        run.pool.ended(run.job.tenant, run.job.kind, run.estimate, seconds)
        self._dispatcher.wake()
        if self._stop_requested.is_set():
            self._quiet.set()

    def _recorded(self, run: Run, outcome: Outcome, what: str, due: datetime | None) -> None:
        """An outcome is committed, or its lease was lost."""
        job = run.job
        self._held.pop(job.claim, None)
        self.metrics.finished(job.kind, what, run.seconds)
        if due is not None:
            self._promote.wake()
        fields: dict[str, Any] = {}
        if outcome.error is not None:
            fields["error"] = outcome.error
        if due is not None:
            fields["retry_at"] = due
        request_id = job.meta.get("request_id") if job.meta else None
        if request_id is not None:
            fields["request_id"] = request_id
        log.info(
            "job finished", job_id=job.id, kind=job.kind, tenant=job.tenant, attempt=job.attempt,
            outcome=what, duration_ms=round(run.seconds * 1000, 1), **fields,
        )  # fmt: skip

    def _gave_up(self, run: Run) -> None:
        self._held.pop(run.claim, None)

    def _lost(self, claims: list[Claim]) -> None:
        """Leases that hold no more. A run whose outcome is being written is the recorder's to judge."""
        for claim in claims:
            run = self._held.get(claim)
            if run is not None and not run.settled and run.stop is not Stop.LEASE_LOST:
                log.warning("a lease was lost", job_id=run.job.id, kind=run.job.kind, attempt=run.job.attempt)
                self._held.pop(claim)
                self._runner.stop(run, Stop.LEASE_LOST)

    def _cancel(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            run = self._held.get(claim)
            if run is not None and not run.settled and run.stop is None:
                self._runner.stop(run, Stop.CANCEL)

    def _cancel_requested(self, ids: frozenset[int] | None) -> None:
        """A hint to cancel. It may overtake the answer of the claim: those ids are remembered a while."""
        if ids is None:
            self._heartbeat.hurry()
            return
        held = {claim.id: claim for claim in self._held}
        self._cancel([held[id_] for id_ in ids if id_ in held])
        now = time.monotonic()
        early = {id_: now for id_ in ids if id_ not in held}
        self._early_cancels = {
            id_: at for id_, at in (self._early_cancels | early).items() if now - at < EARLY_CANCEL
        }

    def _hear(self, message: Message) -> None:
        match message:
            case LanesReady() | LookEverywhere():
                self._dispatcher.hear(message)
            case DueAt():
                self._promote.wake()
            case CancelRequested(ids=ids):
                self._cancel_requested(ids)

    def _reclaimed(self, jobs: list[Reclaimed]) -> None:
        self.metrics.recovered(len(jobs))
        for job in jobs:
            log.warning("a job was reclaimed: its lease expired", job_id=job.id, kind=job.kind, status=str(job.status))
            if job.status is JobStatus.DEAD:
                self.metrics.finished(job.kind, "dead", 0.0)

    def _may_claim(self) -> bool:
        limit = max(4 * sum(pool.slots for pool in self.pools), 1000)
        return self._recorder.unrecorded < limit

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the worker is broken and stops", task=task.get_name(), exc_info=error)
            self.broken = True
            self.stop()

    def _database_lost(self, error: BaseException) -> None:
        self.metrics.database_error()
        self._outage.warning("the database is away; trying again", error=logs.mask(str(error)))

    def _database_found(self) -> None:
        if self._outage.over():
            log.info("the database is back")

    # --- wiring -------------------------------------------------------------------------------

    def _build(self) -> None:
        settings = self.settings
        statements = Statements(settings.schema_)
        runs, upkeep = RunStore(statements), UpkeepStore(statements)
        self._upkeep = upkeep
        self._side = self._session("jobq claim")
        record = self._session("jobq record", lock_timeout="2s")
        listen = self._session("jobq listen")
        self._sessions = [self._side, record, listen]
        self._recorder = Recorder(
            record, runs, upkeep, Backoff(settings.backoff_base, settings.backoff_max),
            settings.keep_payload, self._recorded, self._gave_up,
        )  # fmt: skip
        self._runner = Runner(
            self.handlers, sum(pool.slots + pool.express for pool in self.pools), settings.keep_payload,
            self._settled, self._ended, self._report,
        )  # fmt: skip
        claim_settings = ClaimSettings(
            self.id, settings.lease_duration, GRACE, settings.max_attempts, settings.job_timeout
        )
        self._dispatcher = Dispatcher(
            self._side, runs, Discovery(self._side, upkeep, self.pools), self.pools, claim_settings,
            settings.poll_interval, settings.keep_payload, self._start_job, self._may_claim, self.metrics.claimed,
        )  # fmt: skip
        self._listener = Listener(listen, statements.channel, self._hear, self._dispatcher.listening)
        self._heartbeat = Heartbeat(
            settings.require_database(), runs, upkeep, settings.lease_duration, self._held,
            self._describe, self._lost, self._cancel, self._database_lost,
        )  # fmt: skip
        reaper = Reaper(
            self._side, upkeep, settings.reap_interval, settings.lease_duration, settings.keep_payload, self._reclaimed
        )
        self._promote = Periodic("promoting", Promoter(self._side, upkeep, settings.poll_interval).step)
        retention = Retention(self._side, upkeep, settings.retain_keys, self.metrics.retention_ok)
        self._periodic = [self._promote, Periodic("reaping", reaper.step), Periodic("retention", retention.step)]
        self.broken = False

    def _session(self, name: str, **session_settings: str) -> Session:
        return Session(
            self.settings.require_database(), name, lost=self._database_lost, found=self._database_found,
            **session_settings,
        )  # fmt: skip

    def _report(self, claim: Claim, text: str) -> None:
        self._loop.call_soon_threadsafe(self._recorder.put_progress, claim, text)

    def _describe(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": __version__,
            "queues": None if self.queues is None else [queue.name for queue in self.queues],
            "kinds": sorted(self.handlers),
            "slots": sum(pool.slots for pool in self.pools),
            "express": sum(pool.express for pool in self.pools),
            "running": self.running,
            "draining": self.draining,
            "claimed_ago": time.monotonic() - self._dispatcher.succeeded_at,
            "ttl": self.settings.lease_duration,
        }


def _defaults(handler: Handler) -> dict[str, Any]:
    return {
        "kind": handler.kind,
        "queue": handler.queue,
        "priority": handler.priority,
        "max_attempts": handler.max_attempts,
        "timeout": handler.timeout,
    }
