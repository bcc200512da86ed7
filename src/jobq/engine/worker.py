"""A worker process: claims jobs, runs them, records how they ended. Wiring, start and shutdown."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import psycopg
from prometheus_client import CollectorRegistry

from jobq import __version__, logs
from jobq.backoff import longest_life
from jobq.config import Settings, format_duration
from jobq.engine.active import ActiveRuns
from jobq.engine.discovery import Discovery
from jobq.engine.dispatcher import Dispatcher
from jobq.engine.heartbeat import Heartbeat
from jobq.engine.limits import LimitWatch
from jobq.engine.listener import Listener
from jobq.engine.periodic import Periodic
from jobq.engine.pool import QueueSpec, make_pools
from jobq.engine.promoter import Promoter
from jobq.engine.reaper import Reaper
from jobq.engine.recorder import LATE_LOCK_WAIT, LOCK_WAIT, Backoff, LateRecorder, Recorder
from jobq.engine.retention import Retention
from jobq.engine.runner import GRACE, Runner
from jobq.engine.session import Session
from jobq.engine.trouble import Health
from jobq.engine.weights import Weights
from jobq.handlers import Handler
from jobq.metrics import Metrics
from jobq.model import Claim, JobStatus
from jobq.sql import Statements
from jobq.store import Blocked, ClaimSettings, LaneHead, Reclaimed, RunStore, UpkeepStore
from jobq.wakeup import (
    CancelRequested,
    DueAt,
    LanesReady,
    LimitsChanged,
    LookEverywhere,
    Message,
    SlotsFreed,
)

log = logs.get("jobq.worker")

#: Seconds that cancelled handlers have to end at shutdown, within the budget where it is long enough.
CANCEL_TIME = 1.0
#: Seconds at shutdown for the last outcomes to be written once everything else has ended.
FLUSH_TIME = 2.0


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
        self.weights = Weights()
        self.pools = make_pools(
            list(queues) if queues else None, settings.concurrency, settings.express, self.weights
        )
        self.slots = sum(pool.slots for pool in self.pools)
        self.express = sum(pool.express for pool in self.pools)
        #: Something of the worker itself failed; it stops.
        self.broken = False
        #: Set once everything runs.
        self.started = asyncio.Event()
        self._outage = logs.Repeat(log, every=30.0)
        self._stop_requested = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._sessions: list[Session] = []
        self._build()

    # --- life ---------------------------------------------------------------------------------

    async def run(self) -> bool:
        """Work until `stop` is called, then shut down; whether every outcome was recorded.

        Where it is cancelled instead, it leaves at once: handlers are cancelled, leases end by themselves.
        """
        self._loop = asyncio.get_running_loop()
        try:
            await self._start()
            await self._stop_requested.wait()
            return await self._shut_down()
        finally:
            await self._close()

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
        return len(self.active.running)

    @property
    def ready(self) -> bool:
        """Whether it takes on jobs: it has started, the database answers, and it is not draining."""
        return self.started.is_set() and not self.draining and not self.dispatcher.outage

    def update_metrics(self) -> None:
        """Set the gauges of this worker; called before they are shown."""
        now, running = time.monotonic(), self.active.running
        express = sum(max(0, pool.running - pool.slots) for pool in self.pools)
        self.metrics.slots(len(running) - express, sum(pool.free for pool in self.pools), express)
        self.metrics.claim_loop_ok(now - self.dispatcher.succeeded_at)
        self.metrics.running_oldest(max((now - run.started for run in running), default=0.0))
        self.metrics.abandoned_handlers(sum(run.abandoned for run in running))

    def health(self) -> Health:
        """Whether the claim loop moved within three poll intervals, or is waiting for the database."""
        still = time.monotonic() - self.dispatcher.succeeded_at
        if self.dispatcher.outage or self.draining:
            return Health(True)  # a restart would not bring the database back
        if still > 3 * self.settings.poll_interval:
            pause = format_duration(round(still, 1))
            return Health(False, f"the claim loop has stood still for {pause}")
        return Health(True)

    async def _start(self) -> None:
        if kinds := [handler.defaults for handler in self.handlers.values()]:
            await self._side.run(self._upkeep.register_kinds(kinds))
        # Known to live before it claims: which job of a concurrency key comes first depends on who serves its queue.
        await self._side.run(self._upkeep.beat(self._describe()))
        self._limits.review()  # jobs that waited for a worker with these handlers
        self._heartbeat.start()
        self._claiming = self._spawn(self.dispatcher.run)
        self._spawn(self.recorder.run)
        self._spawn(self._late.run)
        self._spawn(self._listener.run)
        for periodic in self._periodic:
            self._spawn(periodic.run)
        self._say_hello()
        self.started.set()

    def _spawn(self, run: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        task = asyncio.create_task(run(), name=f"jobq {run.__qualname__}")
        task.add_done_callback(self._task_ended)
        self._tasks.append(task)
        return task

    def _say_hello(self) -> None:
        settings = self.settings
        life = longest_life(settings.max_attempts, settings.backoff_base, settings.backoff_max)
        log.info(
            "worker started", worker=self.id, slots=self.slots, express=self.express, kinds=len(self.handlers),
            queues=",".join(queue.name for queue in self.queues) if self.queues else "all",
            failing_job=f"{settings.max_attempts} attempts, waits of at most {format_duration(life)} in all",
        )  # fmt: skip

    async def _shut_down(self) -> bool:
        """Stop claiming, let jobs finish within the budget, release the rest, say goodbye."""
        budget = self.settings.shutdown_timeout
        ends = time.monotonic() + budget
        log.info(
            "worker stops", worker=self.id, running=self.running, budget=format_duration(budget)
        )
        self.dispatcher.stop()
        await asyncio.wait([self._claiming], timeout=max(0.1, budget))
        await asyncio.sleep(max(0.0, min(self.settings.drain_delay, ends - time.monotonic())))
        await self.active.until_returned(ends - min(CANCEL_TIME, budget / 4))
        self.active.stop_all()
        await self.active.until_returned(max(ends, time.monotonic() + CANCEL_TIME / 4))
        self.active.release_rest()
        recorded = await self._say_goodbye()
        log.info("worker stopped", worker=self.id, recorded=recorded)
        return recorded

    async def _say_goodbye(self) -> bool:
        """Write everything that is left; whether that succeeded."""
        try:
            async with asyncio.timeout(FLUSH_TIME):
                await self.recorder.flush()
                await self.dispatcher.release_lost(now=True)
                await self._side.run(self._upkeep.leave(self.id))
        except (TimeoutError, psycopg.Error, OSError) as error:
            reason = type(error).__name__
            log.warning(
                "the last outcomes could not be written; their leases will end", error=reason
            )
        return not self.recorder.unrecorded

    async def _close(self) -> None:
        self.active.stop_all()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._heartbeat.stop()
        for session in self._sessions:
            await session.close()
        self.active.runner.close()

    # --- what happens -------------------------------------------------------------------------

    def _hear(self, message: Message) -> None:
        match message:
            case LanesReady() | LookEverywhere() | SlotsFreed():
                self.dispatcher.hear(message)
            case LimitsChanged():
                self._limits.hint()
            case DueAt():
                self._promote.wake()
            case CancelRequested(ids=ids):
                self.active.cancel_hint(ids)

    def _blocked(self, jobs: Sequence[Blocked]) -> None:
        for reason, n in Counter(job.reason for job in jobs if not job.unknown_kind).items():
            self.metrics.limiter_blocked(reason, n)
        if any(job.held and job.retry_in is not None for job in jobs):
            self._limits.review()

    def _reclaimed(self, jobs: list[Reclaimed]) -> None:
        self.metrics.recovered(len(jobs))
        # Sooner than the hint comes round, and without looking for the lanes.
        self.dispatcher.hear(
            tuple(
                LaneHead(job.lane, job.run_at, job.id, True)
                for job in jobs
                if job.status is JobStatus.QUEUED
            )
        )
        for job in jobs:
            status = str(job.status)
            log.warning(
                "a job's lease expired; it was reclaimed", job_id=job.id, kind=job.kind, status=status
            )  # fmt: skip
            if job.status is not JobStatus.QUEUED:
                self.metrics.finished(job.kind, job.status.lower(), 0.0)

    def _may_claim(self) -> bool:
        return self.recorder.unrecorded < max(4 * self.slots, 1000)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        error: BaseException | None
        # By us when we close, else by a handler that cancels whatever it finds.
        if task.cancelled():
            error = asyncio.CancelledError() if task in self._tasks else None
        else:
            error = task.exception()
        if error is not None:
            log.error("the worker is broken and stops", task=task.get_name(), exc_info=error)
            self.broken = True
            self.stop()

    def _database_lost(self, error: BaseException) -> None:
        self.metrics.database_error()
        self._outage.warning("the database is away; trying again", error=logs.mask(str(error)))

    def _database_found(self) -> None:
        if self._outage.over():
            self._heartbeat.hurry()  # a crash may have forgotten claims: their runs are told at once
            log.info("the database is back")

    # --- wiring -------------------------------------------------------------------------------

    def _build(self) -> None:
        statements = Statements(self.settings.schema_)
        runs, upkeep = RunStore(statements), UpkeepStore(statements)
        self._upkeep = upkeep
        self._side = self._session("jobq claim", lock_timeout="1s")
        self._build_runs(runs)
        self._build_claims(runs, statements.channel)
        self._build_upkeep(runs)
        self.active.record = self.recorder.put
        self.active.slot_free = self.dispatcher.wake
        self.active.due = self._promote.wake
        self.active.ask = self._heartbeat.hurry

    def _build_runs(self, runs: RunStore) -> None:
        settings = self.settings
        self.active = ActiveRuns(self.metrics)
        self.active.runner = Runner(
            self.handlers, self.slots + self.express, settings.keep_payload, self.active.settled, self.active.ended,
            self._report,
        )  # fmt: skip
        into = (
            runs, self._upkeep, Backoff(settings.backoff_base, settings.backoff_max), settings.keep_payload,
            self.active.recorded, self.active.gave_up,
        )  # fmt: skip
        self._late = LateRecorder(
            self._session("jobq record late", lock_timeout=LATE_LOCK_WAIT), *into
        )
        self.recorder = Recorder(
            self._session("jobq record", lock_timeout=LOCK_WAIT), *into, self._late
        )

    def _build_claims(self, runs: RunStore, channel: str) -> None:
        settings = self.settings
        stamp = ClaimSettings(
            self.id, settings.lease_duration, GRACE, settings.max_attempts, settings.job_timeout,
            sorted(self.handlers), sorted(kind for kind, handler in self.handlers.items() if handler.durable),
        )  # fmt: skip
        self.dispatcher = Dispatcher(
            self._side, runs, Discovery(self._side, self._upkeep, self.pools), self.pools, stamp,
            settings.poll_interval, settings.keep_payload, self.active.start, self._may_claim, self.metrics.claimed,
            self._blocked,
        )  # fmt: skip
        self._listener = Listener(
            self._session("jobq listen"), channel, self._hear, self.dispatcher.listening
        )

    def _build_upkeep(self, runs: RunStore) -> None:
        settings, side, upkeep = self.settings, self._side, self._upkeep
        self._heartbeat = Heartbeat(
            settings.require_database(), runs, upkeep, settings.lease_duration, self.active.held,
            self._describe, self.active.lost, self.active.cancel, self._database_lost,
        )  # fmt: skip
        self._limits = LimitWatch(
            side, upkeep, self.weights, lambda: self.dispatcher.hear(LimitsChanged())
        )
        promoter = Promoter(
            side, upkeep, settings.poll_interval, lambda: self.dispatcher.hear(LookEverywhere()),
            self._limits.noticed,
        )  # fmt: skip
        reaper = Reaper(
            side, upkeep, settings.reap_interval, settings.lease_duration, settings.keep_payload, self._reclaimed
        )  # fmt: skip
        retention = Retention(side, upkeep, settings.retain_keys, self.metrics.retention_ok)
        self._promote = Periodic("promoter", promoter.step)
        limits = Periodic("limits", self._limits.step)
        self._limits.wake = limits.wake
        self._periodic = [
            self._promote,
            limits,
            Periodic("reaper", reaper.step),
            Periodic("retention", retention.step),
        ]

    def _session(self, name: str, **session_settings: str) -> Session:
        session = Session(
            self.settings.require_database(), name, lost=self._database_lost, found=self._database_found,
            **session_settings,
        )  # fmt: skip
        self._sessions.append(session)
        return session

    def _report(self, claim: Claim, text: str) -> None:
        self._loop.call_soon_threadsafe(self.recorder.put_progress, claim, text)

    def _describe(self) -> dict[str, Any]:
        now = time.monotonic()
        return {
            "id": self.id, "host": socket.gethostname(), "pid": os.getpid(), "version": __version__,
            "queues": None if self.queues is None else [queue.name for queue in self.queues],
            "kinds": sorted(self.handlers),
            "slots": self.slots, "express": self.express, "running": self.running, "draining": self.draining,
            "claim_loop_ok": self.health().ok,
            "finished_per_second": self.active.pace.per_second(now),
            "run_seconds": self.active.pace.run_seconds(
                [now - r.started for r in list(self.active.running)]
            ),
            "claimed_ago": now - self.dispatcher.succeeded_at,
            "ttl": self.settings.lease_duration,
        }  # fmt: skip
