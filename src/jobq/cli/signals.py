"""SIGTERM and SIGINT: the first asks the process to stop, a second ends it at once with 128 + n."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from jobq import logs
from jobq.cli import forks

log = logs.get("jobq")

#: Seconds beyond its budget after which a shutdown that hangs is given up.
MARGIN = 5.0


class StopSignals:
    """What a process does when it is asked to stop.

    The handlers are Python's own rather than the event loop's: they are called also while a handler
    keeps the loop busy, so that a second signal ends the process even then. They may interrupt
    anything, so they take no lock that the main thread might hold: no logging, no new thread.
    """

    def __init__(self) -> None:
        self._stop: Callable[[], object] | None = None
        self._asked = threading.Event()
        #: Seconds the shutdown may take; `MARGIN` later the process ends whatever still runs.
        self.budget = 0.0
        #: What it ends with then.
        self.exit_code = 1

    def install(self) -> None:
        """Take over both signals; until `on_stop` the first ends the process with 0, as nothing runs yet."""
        numbers = (signal.SIGTERM, signal.SIGINT)
        forks.restore_in_children(
            {number: signal.signal(number, self._received) for number in numbers}
        )
        threading.Thread(target=self._watch, name="jobq-shutdown", daemon=True).start()

    def on_stop(self, stop: Callable[[], object]) -> None:
        """Call `stop` at the first signal; it has to be safe in a signal handler."""
        self._stop = stop
        if self._asked.is_set():
            stop()

    def ask(self) -> None:
        """Stop as if by a first signal, from any thread; never counts as the second."""
        if not self._asked.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    def _received(self, number: int, _frame: FrameType | None) -> None:
        if self._asked.is_set():
            exit_now(128 + number)
        self._asked.set()
        if self._stop is None:
            raise SystemExit(0)
        self._stop()

    def _watch(self) -> None:
        self._asked.wait()
        threading.Event().wait(self.budget + MARGIN)
        log.error("the shutdown hangs beyond its budget; the process ends")
        exit_now(self.exit_code)


def exit_now(code: int) -> NoReturn:
    """End the process without waiting for any thread or child; what was printed is flushed."""
    forks.kill_children()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, RuntimeError):
            continue  # its reader is gone, or we interrupted a write
    os._exit(code)


def leave(code: int) -> NoReturn:
    """End the process; threads and children that would keep it alive are cut off.

    Raises:
        SystemExit: where nothing keeps it alive.
    """
    if forks.end_children():
        exit_now(code)
    deadline = 0.5  # seconds for idle threads of a closed executor to notice
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(deadline)
            if thread.is_alive():
                exit_now(code)
    raise SystemExit(code)
