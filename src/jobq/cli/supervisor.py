"""Supervises child processes: only the supervisor interprets signals, and hands them on."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from typing import Any

from jobq import logs
from jobq.cli.child import Child

log = logs.get("jobq.supervisor")

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Supervisor:
    """A set of children with one fate.

    Args:
        children: in the order in which they are stopped.
        limit: seconds after which a child that does not stop is killed.
    """

    def __init__(self, children: Sequence[Child], limit: float) -> None:
        self.children = children
        self._limit = limit
        self._stop = asyncio.Event()
        #: The signal that came second: it ends everything at once.
        self.hurried: signal.Signals | None = None

    def install(self) -> None:
        """Take over SIGTERM, SIGINT and SIGHUP; call it in the event loop."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._received, number)

    @property
    def stopping(self) -> bool:
        """Whether a first signal came."""
        return self._stop.is_set()

    async def wait(self) -> None:
        """Wait for the first signal."""
        await self._stop.wait()

    async def start(self, children: Sequence[Child]) -> None:
        """Start some of the children; returns when all are ready, or a signal came.

        Raises:
            ChildFailed: one ended before it was ready.
        """
        stop = asyncio.create_task(self._stop.wait())
        starting = asyncio.gather(*(child.start() for child in children))
        both: set[asyncio.Future[Any]] = {stop, starting}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
        finally:
            for future in both:
                future.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def stop(self, *, together: bool) -> None:
        """Stop the children, together or one after the other, and wait for their ends."""
        if together:
            await asyncio.gather(*(child.stop(self._limit) for child in self.children))
            return
        for child in self.children:
            await child.stop(self._limit)

    def _received(self, number: signal.Signals) -> None:
        if not self.stopping:
            log.info("stopping; a second signal ends everything at once", signal=number.name)
            self._stop.set()
        elif self.hurried is None:
            self.hurried = number
            for child in self.children:
                child.kill()
        else:
            os._exit(128 + number)
