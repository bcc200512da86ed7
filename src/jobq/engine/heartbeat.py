"""Extends leases from a thread with a connection of its own, so that a blocking handler costs the others nothing."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg

from jobq import logs
from jobq.db import Conn, connect_engine_sync
from jobq.engine.runner import GRACE, Run
from jobq.model import Claim
from jobq.silence import WORKER_SILENCE, sever
from jobq.store import RunStore, UpkeepStore, run_sync

log = logs.get("jobq.worker")

#: Extensions of one statement at most.
BATCH = 1000
#: Seconds the event loop may be silent before anybody asks why.
SILENCE = 1.0


@dataclass
class Heartbeat:
    """The heartbeat thread of a worker.

    A third of the lease is its period (JOBQ_LEASE_DURATION). A row that is locked is tried again soon, by itself. A run whose
    outcome waits for a lock is left out of every other beat, so that the outcome does not meet nothing but our own extensions. No lease is extended past
    its run's deadline (`extend.sql`); a process whose loop is silent beyond the deadline of the handler that
    blocks it names that handler and exits with 1.

    Args:
        url: connection URL.
        held: claims whose leases are to be extended; the loop owns it, the thread copies it.
        describe: the worker's row, for `beat.sql`.
        lost: called in the loop with claims that hold no more.
        cancelled: called in the loop with claims whose cancellation was asked for.
        failed: called in the thread when the database could not be reached.
    """

    url: str
    runs: RunStore
    upkeep: UpkeepStore
    lease_seconds: float
    held: Mapping[Claim, Run]
    describe: Callable[[], dict[str, Any]]
    lost: Callable[[list[Claim]], None]
    cancelled: Callable[[list[Claim]], None]
    failed: Callable[[BaseException], None]
    _stop: threading.Event = field(default_factory=threading.Event)
    _wake: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _loop_thread: int = 0
    _answered: float = 0.0
    _conn: Conn | None = None
    #: Claims whose row was locked at the last beat.
    _skipped: list[Claim] = field(default_factory=list)
    _spare_locked: bool = False

    def start(self) -> None:
        """Start the thread; call it in the event loop that runs the handlers."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._answered = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="jobq-heartbeat", daemon=True)
        self._thread.start()

    def hurry(self) -> None:
        """Beat now: there is something to ask the database."""
        self._wake.set()

    async def stop(self) -> None:
        """End the thread and wait for it."""
        self._stop.set()
        self._wake.set()
        if self._conn is not None:
            sever(self._conn)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, 5.0)

    def beat(self) -> None:
        """Extend all leases and say that the worker lives; reconnects where needed."""
        if self._conn is None or self._conn.closed:
            timeout = f"{min(max(self.lease_seconds / 3, 1.0), WORKER_SILENCE - 1.5):.3f}s"
            self._conn = connect_engine_sync(self.url, "jobq heartbeat", statement_timeout=timeout)
        self._skipped = []
        self._spare_locked = not self._spare_locked
        runs = list(self.held.items())
        self._extend_all(
            self._conn, [claim for claim, run in runs if not (run.locked and self._spare_locked)]
        )
        run_sync(self._conn, self.upkeep.beat(self.describe()))

    def again(self) -> None:
        """Extend the leases whose rows were locked at the last beat, without waiting for the next."""
        if self._conn is not None and not self._conn.closed:
            claims, self._skipped = self._skipped, []
            self._extend_all(self._conn, [claim for claim in claims if claim in self.held])

    def _extend_all(self, conn: Conn, claims: list[Claim]) -> None:
        for start in range(0, len(claims), BATCH):
            self._extend(conn, claims[start : start + BATCH])

    def _extend(self, conn: Conn, claims: list[Claim]) -> None:
        holding = run_sync(conn, self.runs.extend(sorted(claims), self.lease_seconds))
        lost = [claim for claim in claims if claim not in holding]
        stop = [claim for claim, found in holding.items() if found.cancelled]
        self._skipped += [claim for claim, found in holding.items() if not found.extended]
        if lost:
            self._in_loop(self.lost, lost)
        if stop:
            self._in_loop(self.cancelled, stop)

    def _run(self) -> None:
        period = self.lease_seconds / 3
        next_at = time.monotonic()
        while not self._stop.is_set():
            if time.monotonic() >= next_at or self._wake.is_set():
                self._wake.clear()
                next_at = time.monotonic() + self._try(self.beat, period)
            elif self._skipped:
                next_at = min(next_at, time.monotonic() + self._try(self.again, period))
            self._watch_loop()
            self._wake.wait(min(max(next_at - time.monotonic(), 0.0), SILENCE / 2))
        if self._conn is not None:
            self._conn.close()

    def _try(self, call: Callable[[], None], period: float) -> float:
        """Call the database once; returns seconds until the next beat: sooner after a failure."""
        began = time.monotonic()
        try:
            call()
        except (psycopg.Error, OSError) as error:
            if not self._stop.is_set():
                self.failed(error)
            if self._conn is not None:
                self._conn.close()
            return min(period / 4, 1.0)
        return max(period - (time.monotonic() - began), period / 4)

    def _in_loop(self, call: Callable[..., None], *args: object) -> None:
        try:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:  # the loop is closed: the worker has ended
            self._stop.set()

    def _watch_loop(self) -> None:
        self._in_loop(self._answer)
        if time.monotonic() - self._answered < SILENCE:
            return
        run = self._blocking_run()
        if run is None or time.monotonic() < _deadline(run):
            return
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - public by documentation
        log.error(
            "a handler blocks the event loop beyond its deadline; the worker exits",
            job_id=run.job.id, kind=run.job.kind, attempt=run.job.attempt,
            stack="".join(traceback.format_stack(frame)[-6:]),
        )  # fmt: skip
        os._exit(1)

    def _answer(self) -> None:
        self._answered = time.monotonic()

    def _blocking_run(self) -> Run | None:
        """The run whose coroutine the loop is stuck in.

        For a task that a handler has spawned, the run with the latest deadline: then it is beyond that of its own.
        """
        task = asyncio.current_task(self._loop)
        runs = list(self.held.values())
        found = next((run for run in runs if run.task is task), None)
        if found is None and task is not None:
            found = max(runs, key=_deadline, default=None)
        return found


def _deadline(run: Run) -> float:
    return run.started + run.job.timeout + GRACE
