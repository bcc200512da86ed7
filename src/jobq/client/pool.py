"""A client's few connections: opened when needed, checked without a round trip, kept while warm.

Not `psycopg_pool`: after a restart of PostgreSQL it sleeps for a second and more between the dead
connections it finds, while the server is away every caller waits for its timeout instead of being
told at once, and it needs threads, which a fork loses.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
import time
from typing import Any, Generic, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from jobq import db
from jobq.errors import DatabaseUnavailable

#: Seconds a caller waits for one of its own process's connections to be free.
PATIENCE = 30.0
#: Seconds after which a connection that nobody needed is closed, when another is given back.
WARM = 60.0

C = TypeVar("C", bound="psycopg.AsyncConnection[Any] | psycopg.Connection[Any]")


class AsyncPool:
    """Connections for one event loop.

    Args:
        url: connection URL.
        most: connections open at once.
    """

    def __init__(self, url: str, most: int) -> None:
        self._url = url
        self._idle: _Idle[db.AsyncConn] = _Idle()
        self._permits = asyncio.Semaphore(most)

    async def take(self) -> db.AsyncConn:
        """A connection in autocommit, to be given back; one that stood idle still stands.

        Raises:
            psycopg.OperationalError: the server cannot be reached.
            DatabaseUnavailable: all connections were busy for `PATIENCE` seconds.
        """
        if self._permits.locked():
            await self._queue_up()
        else:
            await self._permits.acquire()
        conn = self._idle.take()
        if conn is not None:
            return conn
        try:
            return await db.connect(self._url)
        except BaseException:
            self._permits.release()
            raise

    def give(self, conn: db.AsyncConn) -> None:
        """Give a connection back, whatever its state."""
        self._idle.give(conn)
        self._permits.release()

    def close(self) -> None:
        """Close the connections that nobody uses, and the others when they are given back."""
        self._idle.close()

    async def _queue_up(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await self._permits.acquire()
        except TimeoutError:
            raise _busy() from None


class SyncPool:
    """Connections for the threads of a process (see `AsyncPool`)."""

    def __init__(self, url: str, most: int) -> None:
        self._url = url
        self._idle: _Idle[db.Conn] = _Idle()
        self._permits = threading.Semaphore(most)

    def take(self) -> db.Conn:
        """A connection in autocommit, to be given back (see `AsyncPool.take`)."""
        if not self._permits.acquire(timeout=PATIENCE):
            raise _busy()
        conn = self._idle.take()
        if conn is not None:
            return conn
        try:
            return db.connect_sync(self._url)
        except BaseException:
            self._permits.release()
            raise

    def give(self, conn: db.Conn) -> None:
        """Give a connection back, whatever its state."""
        self._idle.give(conn)
        self._permits.release()

    def close(self) -> None:
        """Close the connections that nobody uses, and the others when they are given back."""
        self._idle.close()


class _Idle(Generic[C]):
    """Idle connections, the last used first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stack: list[tuple[C, float]] = []
        self._closed = False
        self._pid = os.getpid()

    def take(self) -> C | None:
        """One that still stands, if there is any."""
        while True:
            with self._lock:
                if not self._stack:
                    return None
                conn, _ = self._stack.pop()
            if is_alive(conn):
                return conn
            self._finish(conn)

    def give(self, conn: C) -> None:
        """Keep a connection after use if it is as it was; close those that went cold."""
        if conn.pgconn.transaction_status != TransactionStatus.IDLE:
            self._finish(conn)
            return
        now = time.monotonic()
        with self._lock:
            self._stack.append((conn, now))
            while self._stack and (self._closed or self._stack[0][1] < now - WARM):
                self._finish(self._stack.pop(0)[0])

    def close(self) -> None:
        """Close all, and those in use when they are given back."""
        with self._lock:
            self._closed = True
            while self._stack:
                self._finish(self._stack.pop()[0])

    def _finish(self, conn: C) -> None:
        """Close without awaiting; the driver's own close does no more.

        Not in a forked child, where coroutines of the parent end when they are collected: the server
        would close its parent's session.
        """
        if os.getpid() == self._pid:
            conn.pgconn.finish()


def is_alive(conn: psycopg.AsyncConnection[Any] | psycopg.Connection[Any]) -> bool:
    """Whether an idle connection still stands, as far as this host has heard: a server that ends says so.

    Nothing is sent, so an error here leaves no doubt: nothing was done.
    """
    if conn.closed:
        return False
    heard = select.poll()
    heard.register(conn.fileno(), select.POLLIN)
    try:
        while heard.poll(0):
            conn.pgconn.consume_input()
    except psycopg.OperationalError:
        return False
    return True


def _busy() -> DatabaseUnavailable:
    return DatabaseUnavailable(
        f"all connections of this client were busy for {PATIENCE:g} seconds; raise pool_size"
    )
