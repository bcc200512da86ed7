"""Runs claimed jobs through their handlers. Decides an outcome, writes nothing: it holds no SQL."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from jobq import logs
from jobq.backoff import seconds as delay_seconds
from jobq.config import format_duration
from jobq.context import Context
from jobq.engine.error_text import error_text, unwrap
from jobq.errors import InvalidPayload, PermanentError, RetryAfter
from jobq.handlers import Handler
from jobq.model import Claim, ClaimedJob, Outcome, Verdict
from jobq.payload import clean_text, decode, describe, encode

if TYPE_CHECKING:
    from jobq.engine.fair import Charge
    from jobq.engine.pool import SlotPool

log = logs.get("jobq.worker")

#: Seconds past its timeout for which a run may keep its lease: the grace of the deadline that a claim stamps.
GRACE = 10.0
#: Seconds a coroutine has to clean up after it was cancelled at its timeout, before its failure is recorded without it.
CLEANUP = 1.0
#: Seconds before a run's timeout is watched: most runs have ended by then, and a timer costs as much as a task.
YOUNG = 0.05
#: Bytes of a result; a larger one belongs into a table or a bucket of the application's.
MAX_RESULT = 1024 * 1024


class Stop(StrEnum):
    """Why a run is told to stop."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    SHUTDOWN = "shutdown"
    LEASE_LOST = "lease_lost"


@dataclass(slots=True, eq=False)
class Run:
    """One attempt while it runs, and until its outcome is recorded."""

    job: ClaimedJob
    pool: SlotPool
    #: What its tenant was charged when it started.
    charge: Charge
    started: float
    handler: Handler = field(init=False)
    task: asyncio.Task[None] | None = None
    context: Context | None = None
    timer: asyncio.TimerHandle | None = None
    stop: Stop | None = None
    #: Its task has taken its first step. A task cancelled before that would end without a word.
    begun: bool = False
    #: Its outcome was handed over although the handler still runs.
    abandoned: bool = False
    #: An outcome was handed over.
    settled: bool = False
    #: Its outcome waits for a row that another transaction has locked.
    locked: bool = False
    seconds: float = 0.0

    @property
    def claim(self) -> Claim:
        """The right to write its outcome."""
        return self.job.claim

    @property
    def threaded(self) -> bool:
        """Whether it runs in a thread, which cannot be cancelled."""
        return not self.handler.is_async


@dataclass
class Runner:
    """Runs jobs in the loop or in threads.

    Args:
        handlers: by kind.
        threads: how many handlers may run in threads at once (the slots of all pools).
        keep_payload: bytes; larger payloads are dropped when a job is done (JOBQ_KEEP_PAYLOAD).
        settled: called with a run and its outcome, once.
        ended: called when the handler has returned: its slot is free.
        report: called with a claim and a progress report as JSON text, from any thread.
    """

    handlers: Mapping[str, Handler]
    threads: int
    keep_payload: int
    settled: Callable[[Run, Outcome], None]
    ended: Callable[[Run], None]
    report: Callable[[Claim, str], None]
    _executor: ThreadPoolExecutor | None = field(default=None, init=False)
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False)
    #: Runs that started within the last moments.
    _young: list[Run] = field(default_factory=list, init=False)

    def start(self, run: Run) -> None:
        """Start a run; returns at once."""
        if self._loop is None:  # kept, since asking for it costs a system call on Python 3.11
            self._loop = asyncio.get_running_loop()
        run.handler = self.handlers[run.job.kind]  # claims leave other kinds alone
        # Each run has a context of its own, empty as that of a new process: what one tenant's job leaves in a
        # context variable (an error tracker's scope, a locale) is no other job's to find.
        run.task = self._loop.create_task(self._run(run), context=contextvars.Context())
        if run.job.timeout < 2 * YOUNG:
            self._watch(run)
            return
        if not self._young:
            self._loop.call_later(YOUNG, self._grow_up)
        self._young.append(run)

    def stop(self, run: Run, why: Stop) -> None:
        """Tell a run to stop. A coroutine is cancelled; a thread can only be told.

        At its timeout or when cancelled by request, a thread's outcome is recorded at once, while it
        goes on; at shutdown it is not (its job must not run elsewhere while it lives on here).
        """
        if run.stop is None or why is Stop.LEASE_LOST:
            run.stop = why
        if run.context is not None:
            run.context.stop(lease_lost=why is Stop.LEASE_LOST)
        if not run.threaded:
            if run.task is not None and run.begun:
                run.task.cancel()
        elif why in (Stop.TIMEOUT, Stop.CANCEL):
            self._abandon(run)

    def close(self) -> None:
        """Give up the threads without waiting for them."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    def _grow_up(self) -> None:
        young, self._young = self._young, []
        for run in young:
            if not run.settled:
                self._watch(run)

    def _watch(self, run: Run) -> None:
        assert self._loop is not None
        left = run.started + run.job.timeout - time.monotonic()
        run.timer = self._loop.call_later(max(0.0, left), self._timed_out, run)

    async def _run(self, run: Run) -> None:
        run.begun = True
        try:
            outcome = await self._attempt(run)
        except BaseException as error:
            log.exception("the runner failed", job_id=run.job.id)
            outcome = _outcome(run, Verdict.RETRY, describe(error))
        if run.timer is not None:
            run.timer.cancel()
        run.seconds = time.monotonic() - run.started
        if not run.settled:
            run.settled = True
            self.settled(run, outcome)
        self.ended(run)

    async def _attempt(self, run: Run) -> Outcome:
        job, handler = run.job, run.handler
        if run.stop is not None:
            return _stopped(run)
        try:
            value = None if job.payload is None else decode(job.payload)
            arguments = handler.bind(value)
        except Exception as error:  # noqa: BLE001 - whatever a validator raises, it will raise again
            return _outcome(run, Verdict.PERMANENT, describe(error))
        request_id = job.meta.get("request_id") if job.meta else None
        job_log = logs.bind_job(
            job_id=job.id, kind=job.kind, attempt=job.attempt, request_id=request_id
        )
        if handler.context_parameter is not None:
            run.context = Context(job, value, log=job_log, report=self._reporter(job.claim))
            arguments[handler.context_parameter] = run.context
        try:
            if handler.is_async:
                result = await handler.function(**arguments)
            else:
                result = await self._in_thread(handler, arguments)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its job's failure
            return _failed(run, error)
        if _came_late(run):
            return _stopped(run)
        return self._succeeded(run, result)

    def _succeeded(self, run: Run, result: Any) -> Outcome:
        text = None
        if result is not None:
            try:
                text = encode(result, limit=MAX_RESULT, name="result")
            except InvalidPayload as error:
                log.warning(
                    "the result is not stored",
                    job_id=run.job.id,
                    kind=run.job.kind,
                    reason=str(error),
                )
        payload = run.job.payload
        keep = payload is None or len(payload) <= self.keep_payload
        if keep and payload is not None and not payload.isascii():
            keep = len(payload.encode()) <= self.keep_payload
        return Outcome(run.claim, Verdict.SUCCESS, result=text, keep_payload=keep)

    async def _in_thread(self, handler: Handler, arguments: dict[str, Any]) -> Any:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self.threads, thread_name_prefix="jobq-handler")
        loop = asyncio.get_running_loop()
        call = contextvars.copy_context().run
        # The error travels as a value: a Future takes no StopIteration, and a KeyboardInterrupt
        # raised in a thread is no signal to this process.
        result, error = await loop.run_in_executor(self._executor, call, _call, handler, arguments)
        if error is not None:
            raise error
        return result

    def _timed_out(self, run: Run) -> None:
        self.stop(run, Stop.TIMEOUT)
        if not run.threaded:
            loop = asyncio.get_running_loop()
            run.timer = loop.call_later(CLEANUP, self._overdue, run)

    def _overdue(self, run: Run) -> None:
        """A coroutine goes on although it was cancelled: its outcome is recorded, its slot stays taken."""
        self._abandon(run)
        if run.task is not None and not run.task.done():
            run.task.cancel()
            run.timer = asyncio.get_running_loop().call_later(GRACE, self._overdue, run)

    def _abandon(self, run: Run) -> None:
        if run.settled:
            return
        run.settled = run.abandoned = True
        run.seconds = time.monotonic() - run.started
        log.warning(
            "a handler does not stop", job_id=run.job.id, kind=run.job.kind, reason=str(run.stop)
        )
        self.settled(run, _stopped(run))

    def _reporter(self, claim: Claim) -> Callable[[float, str], None]:
        def report(fraction: float, text: str) -> None:
            self.report(claim, encode({"fraction": fraction, "text": clean_text(text, 1024)}))

        return report


def _call(handler: Handler, arguments: dict[str, Any]) -> tuple[Any, BaseException | None]:
    try:
        result = handler.function(**arguments)
    except BaseException as error:  # noqa: BLE001 - it is raised again in the loop
        return None, error
    if inspect.iscoroutine(result):
        result.close()
        text = f"{handler.name} returned a coroutine: make it `async def`, or await it there"
        return None, TypeError(text)
    return result, None


def _failed(run: Run, raised: BaseException) -> Outcome:
    """What an exception says: any that jobq did not send is the handler's own failure."""
    error = unwrap(raised)
    text = error_text(raised)
    if run.stop is Stop.SHUTDOWN:
        return _outcome(run, Verdict.RELEASE, None)
    if run.stop is not None:
        return _stopped(run)
    if _is_permanent(error):
        return _outcome(run, Verdict.PERMANENT, text)
    if isinstance(error, RetryAfter):
        delay = delay_seconds(error.delay)
        if delay is None:
            log.warning(
                "RetryAfter has no usable delay; backing off", job_id=run.job.id, kind=run.job.kind
            )
        return _outcome(run, Verdict.RETRY, text, delay)
    return _outcome(run, Verdict.RETRY, text)


def _came_late(run: Run) -> bool:
    """Whether a result came after the deadline, where the attempt has failed; a blocking handler is not told of it."""
    if run.stop is None and time.monotonic() - run.started > run.job.timeout:
        run.stop = Stop.TIMEOUT
    return run.stop is Stop.TIMEOUT


def _is_permanent(error: BaseException) -> bool:
    """A PermanentError, or a group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_permanent(member) for member in error.exceptions)
    return isinstance(error, PermanentError)


def _stopped(run: Run) -> Outcome:
    match run.stop:
        case Stop.TIMEOUT:
            limit = format_duration(run.job.timeout)
            return _outcome(run, Verdict.RETRY, f"TimeoutError: it ran longer than its {limit}")
        case Stop.SHUTDOWN:
            return _outcome(run, Verdict.RELEASE, None)
        case _:
            return _outcome(run, Verdict.STOPPED, "cancelled by request")


def _outcome(run: Run, verdict: Verdict, error: str | None, delay: float | None = None) -> Outcome:
    return Outcome(run.claim, verdict, error=error, delay=delay)
