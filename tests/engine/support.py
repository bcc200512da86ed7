"""What the engine's tests share: a worker in this process, and waiting for what it does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, cast

import orjson
import psycopg
from psycopg.rows import dict_row

from jobq.config import Settings, load
from jobq.engine.pool import QueueSpec
from jobq.engine.worker import Worker
from jobq.handlers import Handler
from jobq.model import NewJob
from jobq.sql import Statements
from jobq.store import Enqueued, EnqueueStore, run_sync
from jobq.store.enqueue import Conversation
from jobq.store.limiters import LimiterStore

#: Seconds until a test gives up waiting for an event.
PATIENCE = 20.0


def settings(url: str, **changes: Any) -> Settings:
    """Settings of a test: short periods, few slots."""
    given = {
        "database_url": url,
        "concurrency": 4,
        "poll_interval": 0.2,
        "reap_interval": 0.1,
        "lease_duration": 1.0,
        "backoff_base": 0.01,
        "backoff_max": 0.05,
        "shutdown_timeout": 5.0,
        "express_slots": 0,
    }
    return load(**{**given, **changes})


def handlers(**functions: Callable[..., Any]) -> dict[str, Handler]:
    """Handlers by kind: the keyword is the kind."""
    return {kind: Handler(kind, function) for kind, function in functions.items()}


class Jobs:
    """Enqueues jobs and looks at them, on a connection of its own."""

    def __init__(self, url: str) -> None:
        self.conn = psycopg.connect(
            url, autocommit=True, prepare_threshold=None, row_factory=dict_row
        )
        self._plain = psycopg.connect(url, autocommit=True, prepare_threshold=None)
        self._statements = Statements("jobq")
        self._store = EnqueueStore(self._statements, max_attempts=5, timeout=300)

    def put(self, kind: str, payload: Any = None, *, notify: bool = True, **fields: Any) -> int:
        """Enqueue one job and announce it; returns its id."""
        return self.put_many(1, kind, payload, notify=notify, **fields)[0]

    def put_many(
        self, count: int, kind: str, payload: Any = None, *, notify: bool = True, **fields: Any
    ) -> list[int]:
        """Enqueue jobs in one transaction and announce them; returns their ids."""
        text = orjson.dumps({} if payload is None else payload).decode()
        jobs = [NewJob(kind, text, **fields) for _ in range(count)]
        with self._plain.transaction():
            found = self._converse(self._store.enqueue_many(jobs))
        if notify:
            self.wake()
        return [item.job.id for item in found]

    def together(self) -> AbstractContextManager[object]:
        """One transaction for what is put within: workers see all of it at once."""
        return self._plain.transaction()

    def _converse(self, conversation: Conversation) -> list[Enqueued]:
        answer: Any = None
        while True:
            try:
                call = conversation.send(answer)
            except StopIteration as end:
                return cast("list[Enqueued]", end.value)
            answer = run_sync(self._plain, call)

    def wake(self, message: str = "q *") -> None:
        """Send a wake-up hint."""
        self._plain.execute("SELECT pg_notify(%s, %s)", (self._statements.channel, message))

    def limit(self, scope: str, name: str, **change: Any) -> None:
        """Set columns of a limiter, as the API does, and tell the workers."""
        run_sync(self._plain, LimiterStore(self._statements).set_limiter(scope, name, change))

    def __getitem__(self, id: int) -> dict[str, Any]:
        row = self.conn.execute("SELECT * FROM jobq.jobs WHERE id = %s", (id,)).fetchone()
        assert row is not None, f"job {id} is gone"
        return row

    def statuses(self, ids: Sequence[int] | None = None) -> dict[str, int]:
        """How many jobs have each status."""
        rows = self.conn.execute(
            "SELECT status, count(*) AS n FROM jobq.jobs WHERE %s::bigint[] IS NULL OR id = ANY (%s) GROUP BY status",
            (ids, ids),
        )
        return {row["status"]: row["n"] for row in rows}

    async def reach(self, id: int, *statuses: str) -> dict[str, Any]:
        """Wait until a job has one of the statuses; returns it."""
        await until(lambda: self[id]["status"] in statuses, lambda: f"job {id} is {self[id]}")
        return self[id]

    async def finished(self, ids: Sequence[int]) -> None:
        """Wait until none of the jobs is live."""
        live = {"SCHEDULED", "QUEUED", "RUNNING"}
        await until(
            lambda: not live & self.statuses(list(ids)).keys(),
            lambda: str(self.statuses(list(ids))),
        )

    def close(self) -> None:
        """Close the connections."""
        self.conn.close()
        self._plain.close()


async def until(
    condition: Callable[[], Any],
    explain: Callable[[], str] = lambda: "it did not happen",
    patience: float = PATIENCE,
) -> None:
    """Wait for a condition that no event tells of."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, explain()
        await asyncio.sleep(0.01)


@asynccontextmanager
async def working(
    url: str,
    kinds: dict[str, Handler],
    *,
    queues: list[QueueSpec] | None = None,
    **changes: Any,
) -> AsyncIterator[Worker]:
    """A worker that runs in this loop, listening, until the block ends."""
    worker = Worker(settings(url, **changes), kinds, queues=queues)
    task = asyncio.create_task(worker.run())
    try:
        await first(lambda: _ready(worker, task), task)
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(task, PATIENCE)


async def first(condition: Callable[[], bool], task: Awaitable[Any]) -> None:
    """Wait for a condition while a task runs; its failure is raised."""
    await until(condition)
    if isinstance(task, asyncio.Task) and task.done():
        task.result()


def _ready(worker: Worker, task: asyncio.Task[bool]) -> bool:
    return task.done() or all(pool.table.use_floors for pool in worker.pools)
