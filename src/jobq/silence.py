"""Connections that give a server up which says nothing, though its connection stands.

A proxy may acknowledge what is sent and forward none of it, and a stopped server process keeps its sockets: TCP
sees no fault there, and neither the server's own timeouts nor keepalives ever fire.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Generator
from contextlib import suppress
from typing import Any, TypeVar

import psycopg

T = TypeVar("T")
Row = tuple[Any, ...]

#: Seconds without an answer after which a connection of a worker is dropped: longer than its server-side
#: `STATEMENT_LIMIT`, so that one which is only slow says so first.
WORKER_SILENCE = 7.5
STATEMENT_LIMIT = "6s"
#: The same for a client's: a batch may take a while.
CLIENT_SILENCE = 30.0


class AsyncConnection(psycopg.AsyncConnection[Row]):
    """psycopg's, whose statements raise an OperationalError when the server is silent for too long, and drop it.

    Attributes:
        silence: seconds; None waits for ever.
    """

    silence: float | None = None
    #: Whether a statement whose caller is cancelled ends with its connection. Else the server is asked first, in vain where it is silent.
    curt = False

    async def cancel_safe(self, *, timeout: float = 30.0) -> None:  # noqa: ASYNC109 - psycopg's
        """See psycopg."""
        if self.curt:
            sever(self)
        else:
            await super().cancel_safe(timeout=timeout)

    async def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        """See psycopg."""
        if self.silence is None:
            return await super().wait(gen, *args, **kwargs)
        try:
            return await super().wait(_until(gen, self.silence), *args, **kwargs)
        except ServerSilent:
            self.pgconn.finish()
            raise


class Connection(psycopg.Connection[Row]):
    """The same for threads (see `AsyncConnection`)."""

    silence: float | None = None

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        """See psycopg."""
        if self.silence is None:
            return super().wait(gen, *args, **kwargs)
        try:
            return super().wait(_until(gen, self.silence), *args, **kwargs)
        except ServerSilent:
            self.pgconn.finish()
            raise


class ServerSilent(psycopg.OperationalError):
    """The server did not answer in time."""


def sever(conn: psycopg.AsyncConnection[Any] | psycopg.Connection[Any]) -> None:
    """End a connection under whoever waits for its answer, in any thread: that wait fails at once."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(conn.fileno())) as theirs:
        theirs.shutdown(socket.SHUT_RDWR)


def _until(gen: Generator[Any, Any, T], seconds: float) -> Generator[Any, Any, T]:
    """Pass a generator of psycopg's on; it is asked several times a second, with nothing where nothing came."""
    ends = time.monotonic() + seconds
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() >= ends:
                raise ServerSilent(f"the server has not answered for {seconds:g} seconds")
            wanted = gen.send(ready)
    except StopIteration as end:
        result: T = end.value
        return result
