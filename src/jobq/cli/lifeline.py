"""The line between a supervisor and its child process.

The child says on it when it is ready. It breaks when the supervisor ends, however it ends, SIGKILL
included: then the child stops as if by a signal.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable

#: Names the child's end of the line; internal, set by the supervisor.
VARIABLE = "JOBQ_SUPERVISOR_FD"
READY = b"ready\n"


#: Names a bound socket for a worker's probes, which outlives the worker; internal as well.
PROBE_VARIABLE = "JOBQ_WORKER_HTTP_FD"


def inherited(variable: str) -> socket.socket | None:
    """The socket that the supervisor left in an environment variable, for this process alone."""
    descriptor = os.environ.pop(variable, None)
    if descriptor is None:
        return None
    os.set_inheritable(int(descriptor), False)  # programs that a handler starts have no part in it
    return socket.socket(fileno=int(descriptor))


class Lifeline:
    """The child's end of the line."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    @classmethod
    def from_environment(cls) -> Lifeline | None:
        """The line to the supervisor that started this process; None where there is none."""
        end = inherited(VARIABLE)
        return None if end is None else cls(end)

    def ready(self) -> None:
        """Say that this process does its work now."""
        try:
            self._socket.send(READY)
        except OSError:
            return  # the supervisor is gone, which `watch` notices

    def watch(self, ended: Callable[[], None]) -> None:
        """Call `ended`, in a thread, when the supervisor is gone."""
        threading.Thread(
            target=self._watch, args=(ended,), name="jobq-lifeline", daemon=True
        ).start()

    def _watch(self, ended: Callable[[], None]) -> None:
        try:
            while self._socket.recv(64):
                continue
        except OSError:
            pass  # reset: the same as its end
        ended()
