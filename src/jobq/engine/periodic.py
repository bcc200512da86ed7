"""The loop, written once: a service supplies a step that returns how long to pause, so a test calls the step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime

import psycopg

from jobq.engine.session import Retry
from jobq.engine.trouble import Trouble
from jobq.store import BEGINNING

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

    def __post_init__(self) -> None:
        self._trouble = Trouble(f"the {self.name}")

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
                self._trouble.over()
            except (psycopg.Error, OSError) as error:
                self._trouble.met(error)
                pause = self._retry.next()
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                continue


class Throttle:
    """When a scan from the bottom may begin: at once while it is cheap.

    One slow answer proves nothing (the connection had to be made anew, the disk was busy), and right after an outage
    is when hints were lost: of the last two scans the faster one counts.
    """

    def __init__(self) -> None:
        self.not_before = 0.0
        self._last = 0.0

    def took(self, seconds: float, *, cheap: bool) -> None:
        """A scan took this long; `cheap`: no pause is due for it."""
        if not cheap:
            self.not_before = time.monotonic() + min(seconds, self._last) * (SHARE - 1)
        self._last = seconds


class Floor:
    """Where a scan over due times starts: at the bottom while that is cheap, else above what was handled."""

    def __init__(self) -> None:
        self._floor = BEGINNING
        self._throttle = Throttle()
        self._from_bottom = True
        self._began = 0.0

    def start(self) -> datetime:
        """Begin a scan."""
        self._began = time.monotonic()
        self._from_bottom = self._began >= self._throttle.not_before
        return BEGINNING if self._from_bottom else self._floor

    def done(self, handled: datetime | None) -> None:
        """The scan handled everything up to a time (None: nothing new)."""
        if self._from_bottom:
            took = time.monotonic() - self._began
            self._throttle.took(took, cheap=took <= FREE_OF_CHARGE)
        if handled is not None:
            self._floor = max(self._floor, handled)
