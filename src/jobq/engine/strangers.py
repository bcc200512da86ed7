"""Kinds that a worker has no handler for: what its claims leave out (no I/O)."""

from __future__ import annotations

from collections.abc import Sequence

from jobq import logs
from jobq.payload import clean_text
from jobq.store import Blocked

log = logs.get("jobq.worker")

#: Seconds after which kinds that were left out are met again: the last worker that knows one may have died.
MEET_AGAIN = 15.0


class Strangers:
    """Unknown kinds that claims have met lately, by queue.

    Where no other worker knows the kind, the claim that met its jobs took them out of the claim index. Where one does
    they stay there for that worker, and this one's claims leave the kind out.
    """

    def __init__(self) -> None:
        #: What to leave out, as `Blocked.scope` names it.
        self.left_out: set[str] = set()
        self._met: set[str] = set()
        self._until = float("inf")

    def met(self, blocked: Sequence[Blocked], now: float) -> None:
        """Learn from a claim's answer, and log the kinds that are news.

        Args:
            blocked: the jobs that could not start.
            now: monotonic time.
        """
        unknown = [job for job in blocked if job.unknown_kind]
        news = {job.scope for job in unknown} - self._met
        if news and not self._met:
            self._until = now + MEET_AGAIN
        self._met |= news
        self.left_out.update(job.scope for job in unknown if not job.held)
        for kind in sorted(news):
            log.warning(
                "this worker has no handler for a kind; its jobs wait", what=clean_text(kind)
            )

    def forget(self, now: float) -> bool:
        """Forget what was met once its time is over; whether anything was left out until now."""
        if now < self._until:
            return False
        any_left_out = bool(self.left_out)
        self.left_out.clear()
        self._met.clear()
        self._until = float("inf")
        return any_left_out
