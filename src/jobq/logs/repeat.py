"""An outage is one event, however many calls fail while it lasts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from jobq.logs.loggers import Logger


class Repeat:
    """Says the first event of an outage at once, then at most one every `every` seconds.

    What was left out in between is counted in the next line's field `more`.

    Args:
        log: where to say it.
        every: seconds.
        clock: seconds of a steady clock.
    """

    def __init__(
        self, log: Logger, every: float = 30.0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._every = every
        self._clock = clock
        self._next: float | None = None
        self._left_out = 0

    def warning(self, event: str, **fields: Any) -> bool:
        """Log at warning unless said lately; whether a line was written."""
        return self._say(self._log.warning, event, fields)

    def error(self, event: str, **fields: Any) -> bool:
        """Log at error unless said lately; whether a line was written."""
        return self._say(self._log.error, event, fields)

    def over(self) -> bool:
        """The outage is over: the next event is a first one again. Whether there had been one."""
        was = self._next is not None
        self._next = None
        self._left_out = 0
        return was

    def _say(self, write: Callable[..., Any], event: str, fields: dict[str, Any]) -> bool:
        now = self._clock()
        if self._next is not None and now < self._next:
            self._left_out += 1
            return False
        if self._left_out:
            fields["more"] = self._left_out
        self._next, self._left_out = now + self._every, 0
        write(event, **fields)
        return True
