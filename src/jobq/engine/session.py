"""A worker's direct session: one connection that comes back by itself, used by one caller at a time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TypeVar

import psycopg

from jobq.db import AsyncConn, connect_engine, is_unavailable
from jobq.store.calls import Call, run

T = TypeVar("T")

#: Seconds between attempts to reach a database that is away: from the first to the longest.
RETRY_FIRST, RETRY_MOST = 0.1, 3.0


class Retry:
    """Waits that grow while the database is away: doubled each time, with jitter, up to `RETRY_MOST`."""

    def __init__(self) -> None:
        self._ceiling = RETRY_FIRST

    def next(self) -> float:
        """Seconds to wait before the next attempt: uniform in the upper half of a growing ceiling."""
        wait = self._ceiling * random.uniform(0.5, 1.0)
        self._ceiling = min(self._ceiling * 2, RETRY_MOST)
        return wait

    def reset(self) -> None:
        """The database answered: start small again."""
        self._ceiling = RETRY_FIRST


class Session:
    """One connection with the planner pinned (design.md 13).

    Args:
        url: connection URL; a direct one, not through a transaction pooler.
        name: application_name of the session.
        settings: settings of the session, for example lock_timeout.
        lost: called with the error whenever the connection was lost or could not be made.
        found: called when it is there again.
    """

    def __init__(
        self,
        url: str,
        name: str,
        *,
        lost: Callable[[BaseException], None],
        found: Callable[[], None],
        **settings: str,
    ) -> None:
        self._url = url
        self._name = name
        self._settings = settings
        self._lost = lost
        self._found = found
        self._lock = asyncio.Lock()
        self._conn: AsyncConn | None = None
        self._away = False
        #: How many connections were made: tells a user of the session that it was replaced.
        self.generation = 0

    async def run(self, call: Call[T]) -> T:
        """Run one call, connecting first where needed.

        Raises:
            psycopg.Error, OSError: what went wrong; `db.is_unavailable` tells an outage from a bad statement.
        """
        async with self._lock:
            try:
                return await run(await self._connected(), call)
            except (psycopg.Error, OSError) as error:
                await self._drop_if_broken(error)
                raise

    async def connection(self) -> AsyncConn:
        """The connection itself, for a user that keeps it to itself (the listener)."""
        async with self._lock:
            try:
                return await self._connected()
            except (psycopg.Error, OSError) as error:
                await self._drop_if_broken(error)
                raise

    async def reset(self, error: BaseException) -> None:
        """Give up a connection that failed in its user's hands."""
        async with self._lock:
            await self._drop_if_broken(error)

    async def close(self) -> None:
        """Close the connection."""
        conn, self._conn = self._conn, None
        if conn is not None:
            await conn.close()

    async def _connected(self) -> AsyncConn:
        if self._conn is None or self._conn.closed:
            self._conn = await connect_engine(self._url, self._name, **self._settings)
            self.generation += 1
            if self._away:
                self._away = False
                self._found()
        return self._conn

    async def _drop_if_broken(self, error: BaseException) -> None:
        if is_unavailable(error):
            self._away = True
            self._lost(error)
            await self.close()
