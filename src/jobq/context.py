"""What a handler sees of its own run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobq.logs import Logger
from jobq.model import ClaimedJob


@dataclass(frozen=True, slots=True)
class JobInfo:
    """The job as its handler sees it."""

    id: int
    kind: str
    queue: str
    tenant: str
    priority: int
    payload: Any
    max_attempts: int
    run_at: datetime
    tags: list[str]
    meta: dict[str, Any]


class Context:
    """Passed to handlers that have a parameter annotated with it.

    Attributes:
        job: the job, its payload decoded.
        attempt: number of this attempt, from 1.
        log: a logger whose lines carry the job's id, kind, attempt and request id.
    """

    def __init__(
        self,
        claimed: ClaimedJob,
        payload: Any,
        *,
        log: Logger,
        report: Callable[[float, str], None],
    ) -> None:
        self.job = JobInfo(
            claimed.id, claimed.kind, claimed.queue, claimed.tenant, claimed.priority, payload,
            claimed.max_attempts, claimed.run_at, claimed.tags, claimed.meta,
        )  # fmt: skip
        self.attempt = claimed.attempt
        self.log = log
        self._report = report
        self._cancelled = threading.Event()
        self._lease_lost = threading.Event()

    @property
    def cancelled(self) -> bool:
        """Whether the run should stop: cancelled by hand, timed out, shutting down, or its lease is lost."""
        return self._cancelled.is_set()

    @property
    def lease_lost(self) -> bool:
        """Whether another worker may run this job by now: this run's outcome will not be recorded."""
        return self._lease_lost.is_set()

    def wait_cancelled(self, timeout: float | None = None) -> bool:
        """Wait in a thread until the run should stop, at most `timeout` seconds; whether it should."""
        return self._cancelled.wait(timeout)

    def progress(self, fraction: float, text: str = "") -> None:
        """Report progress; written soon, the latest only.

        Args:
            fraction: from 0 to 1.
            text: what is being done, for people.

        Raises:
            ValueError: the fraction is outside 0 to 1.
        """
        if not 0 <= fraction <= 1:
            raise ValueError(f"progress must be between 0 and 1, not {fraction!r}")
        self._report(float(fraction), str(text))

    def stop(self, *, lease_lost: bool = False) -> None:
        """Tell the run to stop (for the worker, and for tests of handlers)."""
        if lease_lost:
            self._lease_lost.set()
        self._cancelled.set()
