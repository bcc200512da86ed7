"""What goes wrong with the database, said once an episode, and what it means for a worker's health."""

from __future__ import annotations

from dataclasses import dataclass

from jobq import logs
from jobq.db import is_unavailable, must_wait

log = logs.get("jobq.worker")


@dataclass(frozen=True)
class Health:
    """Whether the claim loop moves, and if not, why not."""

    ok: bool
    reason: str = ""


class Trouble:
    """Errors of one loop. That the database is away says its session; a wait is a line, a fault a traceback, once an episode.

    Args:
        what: goes on in the loop, for the log.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._waits = logs.Repeat(log)
        self._faults = logs.Repeat(log)

    def met(self, error: BaseException) -> bool:
        """Take an error; whether it means "not now", so that a restart would not help."""
        if is_unavailable(error):
            return True
        if must_wait(error):
            sqlstate = getattr(error, "sqlstate", None)
            self._waits.warning(
                "the database makes it wait; trying again", what=self._what, sqlstate=sqlstate
            )
            return True
        self._faults.error("it failed; trying again", what=self._what, exc_info=error)
        return False

    def over(self) -> None:
        """It went well."""
        if self._waits.over() | self._faults.over():
            log.info("it goes on", what=self._what)
