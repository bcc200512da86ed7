"""The API's way to the database: a few connections, every wait bounded, every outage named the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from psycopg.conninfo import make_conninfo

from jobq import db, logs
from jobq.client.asynchronous import AsyncDriver
from jobq.client.plan import Request
from jobq.client.pool import AsyncPool
from jobq.errors import DatabaseUnavailable
from jobq.fields import CAMEL
from jobq.metrics import Metrics
from jobq.model import Job, NewJob
from jobq.payload import describe
from jobq.store import Call, EnqueueStore, run

T = TypeVar("T")

#: Connections at most.
MOST_CONNECTIONS = 8
#: Seconds that an operator's statement waits for a lock (design.md 14).
LOCK_WAIT = 2.0
#: Seconds that a statement may take.
STATEMENT_LIMIT = 10.0
#: Seconds to wait for a connection, unless the URL says otherwise.
CONNECT_LIMIT = 3
#: Seconds after which a server that says nothing at all counts as away: to a probe, a look at one job,
#: a request, a batch.
PROBE_LIMIT = 2.0
LOOK_LIMIT = 5.0
SILENCE_LIMIT = STATEMENT_LIMIT + LOCK_WAIT
BATCH_LIMIT = 60.0

log = logs.get("jobq.api")


class Database:
    """What requests do with the database.

    Args:
        url: connection URL; nothing is connected until the first request.
        store: statements that enqueue.
        metrics: counts the errors.
    """

    def __init__(self, url: str, store: EnqueueStore, metrics: Metrics) -> None:
        waits = {"connect_timeout": CONNECT_LIMIT, **db.conninfo(url)}
        self._pool = AsyncPool(make_conninfo(**waits), MOST_CONNECTIONS)
        self._driver = AsyncDriver(store, self._pool)
        self._store = store
        self._metrics = metrics
        self._outage = logs.Repeat(log)
        self._abandoned: set[asyncio.Future[Any]] = set()

    async def enqueue(self, jobs: list[NewJob]) -> list[Job]:
        """Enqueue jobs, all or none, as the Python API does.

        Raises:
            JobQError: see `jobq.client.plan.explain`.
        """
        request = Request(self._store, jobs, own=True, naming=CAMEL)
        limit = BATCH_LIMIT if len(jobs) > 1 else SILENCE_LIMIT
        with self._watch():
            return await self._within(self._driver.enqueue(request), limit)

    async def ask(self, call: Call[T]) -> T:
        """Run one call that reads little."""
        return await self.use(lambda conn: run(conn, call), LOOK_LIMIT)

    async def ask_bounded(self, call: Call[T]) -> T:
        """Run one call in a transaction that waits for locks, and works, for a limited time only."""

        async def work(conn: db.AsyncConn) -> T:
            async with db.bounded(conn, lock=LOCK_WAIT, statement=STATEMENT_LIMIT):
                return await run(conn, call)

        return await self.use(work)

    async def ping(self) -> None:
        """Ask whether the database would take a job now.

        Raises:
            DatabaseUnavailable: it does not answer, or takes no writes.
        """

        async def work(conn: db.AsyncConn) -> None:
            row = await (await conn.execute("SHOW transaction_read_only")).fetchone()
            if row == ("on",):
                raise DatabaseUnavailable(db.READ_ONLY)

        await self.use(work, PROBE_LIMIT)

    async def use(
        self, work: Callable[[db.AsyncConn], Awaitable[T]], limit: float = SILENCE_LIMIT
    ) -> T:
        """Run `work` with a connection in autocommit.

        Args:
            work: what to do.
            limit: seconds.

        Raises:
            DatabaseUnavailable: there is no connection, it was lost, or the server fell silent.
        """

        async def connected() -> T:
            conn = await self._pool.take()
            try:
                return await work(conn)
            finally:
                self._pool.give(conn)

        with self._watch():
            return await self._within(connected(), limit)

    async def close(self) -> None:
        """Send the last wake-ups and close the connections."""
        await self._within(self._driver.close(), PROBE_LIMIT)

    @contextmanager
    def _watch(self) -> Iterator[None]:
        """Turn what says "the database is away" into `DatabaseUnavailable`, counted and logged."""
        try:
            yield
        except Exception as error:
            away = isinstance(error, TimeoutError | DatabaseUnavailable) or db.is_unavailable(error)
            if not away:
                raise
            self._metrics.database_error()
            self._outage.warning("database unavailable", error=describe(error.__cause__ or error))
            if isinstance(error, DatabaseUnavailable):
                raise
            raise db.unavailable(error) from error
        if self._outage.over():
            log.info("database available again")

    async def _within(self, work: Coroutine[Any, Any, T], limit: float) -> T:
        """Wait for `work` for some seconds at most, even where it cannot be cancelled.

        A driver that cancels a statement waits for the server to confirm it; one that is stopped or
        cut off never does. Such a task is left behind until its connection breaks.

        Raises:
            TimeoutError: it took longer.
        """
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task}, timeout=limit)
        finally:
            if not task.done():
                self._abandon(task)
        if task.done():
            return task.result()
        raise TimeoutError

    def _abandon(self, task: asyncio.Future[Any]) -> None:
        task.cancel()
        self._abandoned.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Future[Any]) -> None:
        self._abandoned.discard(task)
        if not task.cancelled():
            task.exception()  # it was reported as a timeout already
