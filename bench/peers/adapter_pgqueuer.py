"""PgQueuer: as its documentation runs a worker, one asyncpg connection; 500 jobs a dequeue was its best here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from psycopg.conninfo import conninfo_to_dict

LIVE = "SELECT count(*) FROM pgqueuer WHERE status IN ('queued', 'picked')"
CONCURRENCY = 500
BULK = 1_000
SHARE = 0.5


def address(url: str) -> dict[str, object]:
    """What asyncpg calls the parts of an address."""
    parts = conninfo_to_dict(url)
    names = {
        "host": "host",
        "port": "port",
        "user": "user",
        "password": "password",
        "database": "dbname",
    }
    return {name: parts[part] for name, part in names.items() if part in parts}


async def setup(url: str) -> None:
    """Make the schema."""
    conn = await asyncpg.connect(**address(url))
    await Queries(AsyncpgDriver(conn)).install()
    await conn.close()


class Producer:
    """Enqueues jobs by number."""

    def __init__(self, url: str, clients: int) -> None:
        self._url, self._clients = url, clients

    async def open(self) -> None:
        """Connect."""
        self._pool = await asyncpg.create_pool(
            **address(self._url), min_size=self._clients, max_size=self._clients
        )
        self._queries = Queries(AsyncpgPoolDriver(self._pool))

    async def one(self, i: int) -> None:
        """One job in a call."""
        await self._queries.enqueue("job", str(i).encode())

    async def many(self, numbers: Sequence[int]) -> None:
        """Many jobs in a call."""
        count = len(numbers)
        await self._queries.enqueue(
            ["job"] * count, [str(i).encode() for i in numbers], [0] * count
        )

    async def close(self) -> None:
        """Close its connections."""
        await self._pool.close()


async def work(
    url: str, concurrency: int, handle: Callable[[int], None], stop: asyncio.Event
) -> None:
    """Run jobs until told to stop."""
    conn = await asyncpg.connect(**address(url))
    queue = PgQueuer(AsyncpgDriver(conn))

    @queue.entrypoint("job")
    async def job(job: Job) -> None:
        handle(int(job.payload or b""))

    if concurrency <= 10:  # few slots: half of them a dequeue, no more than all at once
        running = queue.run(batch_size=max(1, concurrency // 2), max_concurrent_tasks=concurrency)
    else:
        running = queue.run(batch_size=concurrency)
    task = asyncio.create_task(running)
    await stop.wait()
    queue.shutdown.set()
    await task
