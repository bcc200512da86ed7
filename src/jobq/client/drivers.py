"""The drivers of an app in this process: one for its threads, one for each event loop."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref

from jobq.client.asynchronous import AsyncDriver
from jobq.client.pool import AsyncPool, SyncPool
from jobq.client.synchronous import SyncDriver
from jobq.store import EnqueueStore


class Drivers:
    """Makes drivers when they are needed, anew in a forked child.

    Args:
        store: the statements they run.
        url: connection URL.
        most: connections that each opens at most.
    """

    def __init__(self, store: EnqueueStore, url: str, most: int) -> None:
        self._store = store
        self._url = url
        self._most = most
        self._lock = threading.Lock()
        self._sync: SyncDriver | None = None
        self._async: dict[asyncio.AbstractEventLoop, AsyncDriver] = {}
        _all.add(self)

    def sync(self) -> SyncDriver:
        """The driver for threads."""
        with self._lock:
            if self._sync is None:
                self._sync = SyncDriver(self._store, SyncPool(self._url, self._most))
            return self._sync

    def asynchronous(self) -> AsyncDriver:
        """The driver for the running event loop."""
        loop = asyncio.get_running_loop()
        driver = self._async.get(loop)
        if driver is None:
            for ended in [other for other in self._async if other.is_closed()]:
                self._async.pop(ended).abandon()
            driver = AsyncDriver(self._store, AsyncPool(self._url, self._most))
            self._async[loop] = driver
        return driver

    def close(self) -> None:
        """Close the driver for threads."""
        with self._lock:
            driver, self._sync = self._sync, None
        if driver is not None:
            driver.close()

    async def aclose(self) -> None:
        """Close the driver for the running event loop, and the one for threads."""
        driver = self._async.pop(asyncio.get_running_loop(), None)
        if driver is not None:
            await driver.close()
        await asyncio.to_thread(self.close)

    def leave_to_parent(self) -> None:
        """In a forked child: start anew, and keep the parent's connections, since dropping one closes it."""
        _inherited.append((self._sync, self._async))
        self._lock = threading.Lock()
        self._sync = None
        self._async = {}


_all: weakref.WeakSet[Drivers] = weakref.WeakSet()
_inherited: list[object] = []


def _start_anew() -> None:
    for drivers in list(_all):
        drivers.leave_to_parent()


os.register_at_fork(after_in_child=_start_anew)
