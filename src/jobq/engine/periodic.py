"""The loop, written once: a service supplies a step that returns how long to pause, so a test calls the step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime

import psycopg

from jobq import logs
from jobq.db import is_unavailable
from jobq.engine.session import Retry
from jobq.store import BEGINNING

log = logs.get("jobq.worker")

#: A scan from the bottom of an index that takes longer than this (seconds) is throttled to a twentieth
#: of the time; in between it starts at a floor (design.md 22).
FREE_OF_CHARGE = 0.005
SHARE = 20


@dataclass
class Periodic:
    """Calls a step again and again, through outages and its own failures.

    Args:
        name: for the log.
        step: does the work and returns seconds to pause.
    """

    name: str
    step: Callable[[], Awaitable[float]]
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _retry: Retry = field(default_factory=Retry)

    def wake(self) -> None:
        """Call the step now."""
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._wake.clear()
            try:
                pause = await self.step()
                self._retry.reset()
            except (psycopg.Error, OSError) as error:
                if not is_unavailable(error):
                    log.exception("a periodic step failed", step=self.name)
                pause = self._retry.next()
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                continue


class Floor:
    """Where a scan over due times starts: at the bottom while that is cheap, else above what was handled."""

    def __init__(self) -> None:
        self._floor = BEGINNING
        self._bottom_at = 0.0
        self._from_bottom = True
        self._began = 0.0

    def start(self) -> datetime:
        """Begin a scan."""
        self._began = time.monotonic()
        self._from_bottom = self._began >= self._bottom_at
        return BEGINNING if self._from_bottom else self._floor

    def done(self, handled: datetime | None) -> None:
        """The scan handled everything up to a time (None: nothing new)."""
        took = time.monotonic() - self._began
        if self._from_bottom and took > FREE_OF_CHARGE:
            self._bottom_at = time.monotonic() + took * (SHARE - 1)
        if handled is not None:
            self._floor = max(self._floor, handled)
