"""Wake-ups after the commit: the first at once, later ones gathered for a few milliseconds (design.md 26).

An announcer lives while there is something to say: a task or a thread that ends by itself. A program
that ends waits for the thread, so that the last wake-up leaves.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime

import psycopg

from jobq import wakeup
from jobq.errors import DatabaseUnavailable
from jobq.model import JobStatus, Lane
from jobq.store import Enqueued

#: Seconds between two announcements of a process: more where they take longer, so that they take no more than
#: a twentieth of the time of a machine that is busy, but never so much that a worker waits noticeably.
LEAST_GAP, MOST_GAP, TIMES = 0.005, 0.025, 20.0

log = logging.getLogger("jobq.client")


class Wakeups:
    """What was enqueued and not yet announced: as large as the lanes, however many jobs."""

    def __init__(self, items: Iterable[Enqueued] = ()) -> None:
        self._spans: dict[Lane, list[datetime]] = {}  # first and last due time
        self._due: datetime | None = None
        self.add(items)

    def __bool__(self) -> bool:
        return bool(self._spans) or self._due is not None

    def add(self, items: Iterable[Enqueued]) -> None:
        """Note jobs; a job that was there before has been announced before."""
        for item in items:
            if not item.job.created:
                continue
            run_at = item.run_at
            if item.job.status is JobStatus.SCHEDULED:
                self._due = run_at if self._due is None else min(self._due, run_at)
                continue
            span = self._spans.get(item.lane)
            if span is None:
                self._spans[item.lane] = [run_at, run_at]
            elif run_at > span[1]:
                span[1] = run_at
            elif run_at < span[0]:
                span[0] = run_at

    def take(self) -> list[str]:
        """The messages, after which there is nothing to say."""
        spans, due = self._spans, self._due
        self._spans, self._due = {}, None
        ends = ((lane, at) for lane, span in spans.items() for at in span)
        return wakeup.ready(ends) + ([wakeup.due(due)] if due is not None else [])


class AsyncAnnouncer:
    """Announces on one event loop.

    Args:
        send: sends messages.
    """

    def __init__(self, send: Callable[[list[str]], Awaitable[None]]) -> None:
        self._send = send
        self._wakeups = Wakeups()
        self._task: asyncio.Task[None] | None = None
        self._trouble = _Trouble()

    def add(self, items: Iterable[Enqueued]) -> None:
        """Announce jobs soon."""
        self._wakeups.add(items)
        if self._task is None and self._wakeups:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="jobq announcer")

    async def flush(self) -> None:
        """Wait until everything is said."""
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        try:
            while self._wakeups:
                begun = time.monotonic()
                with self._trouble:
                    await self._send(self._wakeups.take())
                await asyncio.sleep(_gap(begun))
        finally:
            self._task = None


class SyncAnnouncer:
    """Announces for the threads of a process (see `AsyncAnnouncer`)."""

    def __init__(self, send: Callable[[list[str]], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._wakeups = Wakeups()
        self._thread: threading.Thread | None = None
        self._more = threading.Event()
        self._trouble = _Trouble()

    def add(self, items: Iterable[Enqueued]) -> None:
        """Announce jobs soon; sends nothing itself."""
        with self._lock:
            self._wakeups.add(items)
            if self._thread is not None or not self._wakeups:
                return
            thread = threading.Thread(target=self._run, name="jobq announcer")
            try:
                thread.start()
            except RuntimeError:
                log.debug("wake-ups are not sent: the program is ending")
            else:
                self._thread = thread

    def flush(self) -> None:
        """Wait until everything is said."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                messages = self._wakeups.take()
                if not messages:
                    self._thread = None
                    return
            begun = time.monotonic()
            with self._trouble:
                self._send(messages)
            time.sleep(_gap(begun))


def _gap(begun: float) -> float:
    """Seconds to wait after an announcement that began then."""
    return min(max(LEAST_GAP, TIMES * (time.monotonic() - begun)), MOST_GAP)


class _Trouble:
    """Wake-ups are hints: what goes wrong with them is logged, once until it is over, and no more."""

    def __init__(self) -> None:
        self._told = False

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if error is None:
            self._told = False
            return False
        if not isinstance(error, psycopg.Error | OSError | DatabaseUnavailable):
            return False
        log.log(
            logging.DEBUG if self._told else logging.WARNING,
            "wake-ups cannot be sent, workers will find the jobs when they poll: %s",
            type(error).__name__,
        )
        self._told = True
        return True
