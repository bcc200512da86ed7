"""The async driver: connections, transactions and announcements on one event loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import psycopg

from jobq.client.announcer import AsyncAnnouncer
from jobq.client.plan import Request, refuse
from jobq.client.pool import AsyncPool
from jobq.db import bounded, is_pooled
from jobq.model import Job, NewJob
from jobq.store import KEY_WAIT, Call, Enqueued, EnqueueStore, WinnerGone, run

T = TypeVar("T")


class AsyncDriver:
    """Runs requests.

    Args:
        store: its statements.
        pool: the connections they run on.
    """

    def __init__(self, store: EnqueueStore, pool: AsyncPool) -> None:
        self._store = store
        self._pool = pool
        self._announcer = AsyncAnnouncer(self._notify)

    async def enqueue(self, request: Request) -> list[Job]:
        """Enqueue jobs, all or none, in a transaction of our own."""
        while True:
            try:
                found = await self._alone(request)
            except (psycopg.Error, OSError, WinnerGone) as error:
                request.failed(error)
            else:
                if request.announce:
                    self._announcer.add(found)
                return [item.job for item in found]

    async def insert(self, job: NewJob, *, notify: bool) -> Job:
        """Enqueue one job without keys in a transaction of our own: the short way of `enqueue`."""
        try:
            item = await self._run(self._store.enqueue(job), prepare=True)
        except (psycopg.Error, OSError) as error:
            request = Request(self._store, [job], own=True, notify=notify)
            request.failed(error)
            return (await self.enqueue(request))[0]
        if notify:
            self._announcer.add((item,))
        return item.job

    async def ask(self, call: Call[T]) -> T:
        """Run one call that only reads."""
        try:
            return await self._run(call, prepare=False)
        except (psycopg.Error, OSError) as error:
            refuse(error)

    async def close(self) -> None:
        """Send the last wake-ups and close the connections."""
        await self._announcer.flush()
        self._pool.close()

    def abandon(self) -> None:
        """Close the connections of a loop that has ended."""
        self._pool.close()

    async def _alone(self, request: Request) -> list[Enqueued]:
        conn = await self._pool.take()
        try:
            return await _perform(conn, request)
        finally:
            self._pool.give(conn)

    async def _run(self, call: Call[T], *, prepare: bool) -> T:
        conn = await self._pool.take()
        try:
            if not is_pooled(conn):
                return await run(conn, call, prepare=prepare)
            async with bounded(conn, lock=KEY_WAIT):
                return await run(conn, call)
        finally:
            self._pool.give(conn)

    async def _notify(self, messages: Sequence[str]) -> None:
        await self._run(self._store.wake(messages), prepare=True)


async def enqueue_within(connection: psycopg.AsyncConnection[Any], request: Request) -> list[Job]:
    """Enqueue jobs, all or none, in a caller's transaction."""
    while True:
        try:
            return [item.job for item in await _perform(connection, request)]
        except (psycopg.Error, OSError, WinnerGone) as error:
            request.failed(error)


async def _perform(conn: psycopg.AsyncConnection[Any], request: Request) -> list[Enqueued]:
    if not request.guarded and not is_pooled(conn):
        return await _converse(conn, request)
    async with bounded(conn, lock=KEY_WAIT):
        return await _converse(conn, request)


async def _converse(conn: psycopg.AsyncConnection[Any], request: Request) -> list[Enqueued]:
    conversation = request.conversation()
    try:
        call = next(conversation)
        while True:
            call = conversation.send(await run(conn, call, prepare=request.prepare))
    except StopIteration as end:
        found: list[Enqueued] = end.value
        return found
