"""The sync driver: connections, transactions and announcements for the threads of a process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import psycopg

from jobq.client.announcer import SyncAnnouncer
from jobq.client.plan import Conversation, Request, refuse
from jobq.client.pool import SyncPool
from jobq.db import bounded_sync
from jobq.model import Job
from jobq.store import KEY_WAIT, Call, Enqueued, EnqueueStore, WinnerGone, run_sync

T = TypeVar("T")


class SyncDriver:
    """Runs requests.

    Args:
        store: its statements.
        pool: where they run unless the caller brings a connection.
    """

    def __init__(self, store: EnqueueStore, pool: SyncPool) -> None:
        self._store = store
        self._pool = pool
        self._announcer = SyncAnnouncer(self._notify)

    def enqueue(
        self, request: Request, connection: psycopg.Connection[Any] | None = None
    ) -> list[Job]:
        """Enqueue jobs, all or none, in a transaction of our own or in the caller's."""
        while True:
            try:
                if connection is not None:
                    found = _perform(connection, request)
                else:
                    with self._pool.connection() as conn:
                        found = _perform(conn, request)
            except (psycopg.Error, OSError, WinnerGone) as error:
                request.failed(error)
            else:
                if request.announce:
                    self._announcer.add(found)
                return [item.job for item in found]

    def ask(self, call: Call[T]) -> T:
        """Run one call that only reads."""
        try:
            with self._pool.connection() as conn:
                return run_sync(conn, call, prepare=False)
        except (psycopg.Error, OSError) as error:
            refuse(error)

    def close(self) -> None:
        """Send the last wake-ups and close the connections."""
        self._announcer.flush()
        self._pool.close()

    def _notify(self, messages: Sequence[str]) -> None:
        with self._pool.connection() as conn:
            run_sync(conn, self._store.notify(messages), prepare=False)


def _perform(conn: psycopg.Connection[Any], request: Request) -> list[Enqueued]:
    if not request.guarded:
        return _converse(conn, request.conversation())
    with bounded_sync(conn, lock=KEY_WAIT):
        return _converse(conn, request.conversation())


def _converse(conn: psycopg.Connection[Any], conversation: Conversation) -> list[Enqueued]:
    try:
        call = next(conversation)
        while True:
            call = conversation.send(run_sync(conn, call, prepare=False))
    except StopIteration as end:
        found: list[Enqueued] = end.value
        return found
