"""Processes that handlers fork: signals do to them what they do without a worker, and they end with it.

A forked child inherits the signal handlers and the wake-up descriptor of the worker's event loop. Left
alone, SIGTERM would ask the child to shut a worker down that it does not have: `Process.terminate()` would do
nothing and a `Pool` would hang (docs of `os.fork`, `signal.set_wakeup_fd`).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import TypeAlias

Action: TypeAlias = Callable[[int, FrameType | None], object] | int | None

#: Seconds that children have to end after SIGTERM before they are killed.
CHILD_TIME = 0.5

_original: dict[int, Action] = {}
_forking = threading.local()


class _Process:
    ending = False


_process = _Process()


def restore_in_children(original: Mapping[int, Action]) -> None:
    """From now on a forked child has these actions again.

    Args:
        original: signal number -> its action before this process took it over.
    """
    if not _original:
        os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_start_child)
    _original.update(original)


def end_children() -> bool:
    """End the children that handlers started with `multiprocessing` and left behind.

    From here on whatever is forked, by a `Pool` that replaces its dead for instance, ends at once. Other
    programs that handlers started live on, as they do without a worker.

    Returns:
        Whether there were any. Leave with `os._exit` then: at a normal exit multiprocessing waits for them.
    """
    _process.ending = True
    children = multiprocessing.active_children()
    for child in children:
        child.terminate()
    deadline = time.monotonic() + CHILD_TIME
    for child in children:
        child.join(max(0.0, deadline - time.monotonic()))
    kill_children()
    return bool(children)


def kill_children() -> None:
    """End them at once; safe in a signal handler, it takes no lock."""
    _process.ending = True
    for child in multiprocessing.active_children():
        child.kill()


def _block() -> None:
    """Hold signals back until the child is ready for them: Python forgets those that come before it is."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _original)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _start_child() -> None:
    if _process.ending:
        os._exit(0)
    signal.set_wakeup_fd(-1)
    for number, action in _original.items():
        # What has come already ends it: an exception raised here would be lost.
        default = action is None or number in signal.sigpending()
        signal.signal(number, signal.SIG_DFL if default else action)
    _unblock()
