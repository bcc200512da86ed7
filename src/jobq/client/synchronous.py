"""The sync driver: connections, transactions and announcements for the threads of a process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import psycopg

from jobq.client.announcer import SyncAnnouncer
from jobq.client.plan import Request, refuse
from jobq.client.pool import SyncPool
from jobq.db import bounded_sync, is_pooled
from jobq.model import Job, NewJob
from jobq.store import KEY_WAIT, Call, Enqueued, EnqueueStore, WinnerGone, run_sync

T = TypeVar("T")


class SyncDriver:
    """Runs requests.

    Args:
        store: its statements.
        pool: the connections they run on.
    """

    def __init__(self, store: EnqueueStore, pool: SyncPool) -> None:
        self._store = store
        self._pool = pool
        self._announcer = SyncAnnouncer(self._notify)

    def enqueue(self, request: Request) -> list[Job]:
        """Enqueue jobs, all or none, in a transaction of our own."""
        while True:
            try:
                found = self._alone(request)
            except (psycopg.Error, OSError, WinnerGone) as error:
                request.failed(error)
            else:
                if request.announce:
                    self._announcer.add(found)
                return [item.job for item in found]

    def insert(self, job: NewJob, *, notify: bool) -> Job:
        """Enqueue one job without keys in a transaction of our own: the short way of `enqueue`."""
        try:
            item = self._run(self._store.enqueue(job), prepare=True)
        except (psycopg.Error, OSError) as error:
            request = Request(self._store, [job], own=True, notify=notify)
            request.failed(error)
            return (self.enqueue(request))[0]
        if notify:
            self._announcer.add((item,))
        return item.job

    def ask(self, call: Call[T]) -> T:
        """Run one call that only reads."""
        try:
            return self._run(call, prepare=False)
        except (psycopg.Error, OSError) as error:
            refuse(error)

    def close(self) -> None:
        """Send the last wake-ups and close the connections."""
        self._announcer.flush()
        self._pool.close()

    def _alone(self, request: Request) -> list[Enqueued]:
        conn = self._pool.take()
        try:
            return _perform(conn, request)
        finally:
            self._pool.give(conn)

    def _run(self, call: Call[T], *, prepare: bool) -> T:
        conn = self._pool.take()
        try:
            if not is_pooled(conn):
                return run_sync(conn, call, prepare=prepare)
            with bounded_sync(conn, lock=KEY_WAIT):
                return run_sync(conn, call)
        finally:
            self._pool.give(conn)

    def _notify(self, messages: Sequence[str]) -> None:
        self._run(self._store.wake(messages), prepare=True)


def enqueue_within(connection: psycopg.Connection[Any], request: Request) -> list[Job]:
    """Enqueue jobs, all or none, in a caller's transaction."""
    while True:
        try:
            return [item.job for item in _perform(connection, request)]
        except (psycopg.Error, OSError, WinnerGone) as error:
            request.failed(error)


def _perform(conn: psycopg.Connection[Any], request: Request) -> list[Enqueued]:
    if not request.guarded and not is_pooled(conn):
        return _converse(conn, request)
    with bounded_sync(conn, lock=KEY_WAIT):
        return _converse(conn, request)


def _converse(conn: psycopg.Connection[Any], request: Request) -> list[Enqueued]:
    conversation = request.conversation()
    try:
        call = next(conversation)
        while True:
            call = conversation.send(run_sync(conn, call, prepare=request.prepare))
    except StopIteration as end:
        found: list[Enqueued] = end.value
        return found
