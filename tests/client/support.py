"""What the client's tests share: both colours behind one interface, rivals that stand at a lock, LISTEN."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Any, Protocol, TypeVar

import psycopg
from psycopg.rows import tuple_row
from tests.store.support import complete

from jobq import Job, JobQ
from jobq.client import JobRecord
from jobq.model import Claim, NewJob
from jobq.sql import channel
from jobq.store import run_sync

T = TypeVar("T")
Row = tuple[Any, ...]

#: Seconds until a test gives up waiting for an event.
PATIENCE = 20.0


class Colour(Protocol):
    """The client as sync or async code uses it; tests await both."""

    name: str

    async def enqueue(self, kind: str, payload: Any = ..., **options: Any) -> Job: ...
    async def call(self, task: Any, *args: Any, **kwargs: Any) -> Job: ...
    async def many(self, jobs: Sequence[NewJob], **options: Any) -> list[Job]: ...
    async def get(self, id: int) -> JobRecord: ...
    async def connect(self, url: str, **options: Any) -> Session: ...


class Session(Protocol):
    """A caller's connection."""

    raw: Any

    async def execute(self, statement: str, params: Any = None) -> list[Any]: ...
    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...
    async def close(self) -> None: ...


class Sync:
    """Sync calls, each in a thread."""

    name = "sync"

    def __init__(self, app: JobQ) -> None:
        self._app = app

    async def enqueue(self, kind: str, payload: Any = None, **options: Any) -> Job:
        """`JobQ.enqueue`."""
        return await asyncio.to_thread(self._app.enqueue, kind, payload or {}, **options)

    async def call(self, task: Any, *args: Any, **kwargs: Any) -> Job:
        """`.enqueue` of a handler."""
        job: Job = await asyncio.to_thread(task.enqueue, *args, **kwargs)
        return job

    async def many(self, jobs: Sequence[NewJob], **options: Any) -> list[Job]:
        """`JobQ.enqueue_many`."""
        return await asyncio.to_thread(self._app.enqueue_many, jobs, **options)

    async def get(self, id: int) -> JobRecord:
        """`JobQ.get`."""
        return await asyncio.to_thread(self._app.get, id)

    async def connect(self, url: str, **options: Any) -> SyncSession:
        """A caller's connection."""
        return SyncSession(await asyncio.to_thread(psycopg.connect, url, **options))


class SyncSession:
    """A sync connection."""

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self.raw = raw

    async def execute(self, statement: str, params: Any = None) -> list[Any]:
        """Run a statement and fetch its rows, as the connection's row factory makes them."""
        cursor = await asyncio.to_thread(self.raw.execute, statement.encode(), params)
        return cursor.fetchall() if cursor.description else []

    async def commit(self) -> None:
        """Commit."""
        await asyncio.to_thread(self.raw.commit)

    async def rollback(self) -> None:
        """Roll back."""
        await asyncio.to_thread(self.raw.rollback)

    async def close(self) -> None:
        """Close."""
        self.raw.close()


class Async:
    """Async calls."""

    name = "async"

    def __init__(self, app: JobQ) -> None:
        self._app = app

    async def enqueue(self, kind: str, payload: Any = None, **options: Any) -> Job:
        """`JobQ.aenqueue`."""
        return await self._app.aenqueue(kind, payload or {}, **options)

    async def call(self, task: Any, *args: Any, **kwargs: Any) -> Job:
        """`.aenqueue` of a handler."""
        job: Job = await task.aenqueue(*args, **kwargs)
        return job

    async def many(self, jobs: Sequence[NewJob], **options: Any) -> list[Job]:
        """`JobQ.aenqueue_many`."""
        return await self._app.aenqueue_many(jobs, **options)

    async def get(self, id: int) -> JobRecord:
        """`JobQ.aget`."""
        return await self._app.aget(id)

    async def connect(self, url: str, **options: Any) -> AsyncSession:
        """A caller's connection."""
        return AsyncSession(await psycopg.AsyncConnection.connect(url, **options))


class AsyncSession:
    """An async connection."""

    def __init__(self, raw: psycopg.AsyncConnection[Any]) -> None:
        self.raw = raw

    async def execute(self, statement: str, params: Any = None) -> list[Any]:
        """Run a statement and fetch its rows, as the connection's row factory makes them."""
        cursor = await self.raw.execute(statement.encode(), params)
        return await cursor.fetchall() if cursor.description else []

    async def commit(self) -> None:
        """Commit."""
        await self.raw.commit()

    async def rollback(self) -> None:
        """Roll back."""
        await self.raw.rollback()

    async def close(self) -> None:
        """Close."""
        await self.raw.close()


class Database:
    """The test's database, looked at from outside."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.conn = psycopg.connect(url, autocommit=True, row_factory=tuple_row)

    def rows(self, statement: str, params: Any = None) -> list[Row]:
        """All rows of a query."""
        cursor = self.conn.execute(statement.encode(), params)
        return cursor.fetchall() if cursor.description else []

    def one(self, statement: str, params: Any = None) -> Any:
        """The first column of a query's only row."""
        ((value, *_),) = self.rows(statement, params)
        return value

    def jobs(self) -> int:
        """How many live jobs there are."""
        return int(self.one("SELECT count(*) FROM jobq.job"))

    def finish(self, id: int) -> None:
        """Let a job end DONE, as a worker would."""
        self.rows(
            "UPDATE jobq.job SET status = 'RUNNING', lease = 1, lease_until = now() WHERE id = %s",
            (id,),
        )
        run_sync(self.conn, complete(Claim(id, 1)))

    def waiting(self) -> int:
        """How many client sessions stand at a lock of another session."""
        return int(
            self.one(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND cardinality(pg_blocking_pids(pid)) > 0"
            )
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        """Look until something is so."""
        end = monotonic() + PATIENCE
        while not condition():
            assert monotonic() < end, "it never came to be"
            await asyncio.sleep(0.005)

    def close(self) -> None:
        """Close the session."""
        self.conn.close()


class Listener:
    """A session that listens to the wake-ups of a schema."""

    def __init__(self, url: str, schema: str = "jobq") -> None:
        self._conn = psycopg.connect(url, autocommit=True)
        self._conn.execute(f"LISTEN {channel(schema)}".encode())
        self._heard: list[str] = []

    async def next(self) -> str:
        """The next message."""
        if not self._heard:
            await asyncio.to_thread(self._wait)
        return self._heard.pop(0)

    def heard(self) -> list[str]:
        """The messages that have come so far."""
        self._conn.execute("SELECT 1")
        heard = self._heard + [notify.payload for notify in self._conn.notifies(timeout=0)]
        self._heard = []
        return heard

    def close(self) -> None:
        """Close the session."""
        self._conn.close()

    def _wait(self) -> None:
        messages = self._conn.notifies(timeout=PATIENCE, stop_after=1)
        self._heard += [notify.payload for notify in messages]
        assert self._heard, "nobody said anything"


async def both(*work: Awaitable[T]) -> list[T | BaseException]:
    """Run all, and return what each returned or raised."""
    return await asyncio.gather(*work, return_exceptions=True)
