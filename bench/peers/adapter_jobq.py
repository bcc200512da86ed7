"""jobq, as the peers are run: concurrency 200, everything else as shipped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from jobq import JobQ
from jobq.config import load
from jobq.engine.worker import Worker
from jobq.handlers import Handler
from jobq.migrate import migrate

LIVE = "SELECT count(*) FROM jobq.job"
CONCURRENCY = 200
#: Jobs of one bulk call.
BULK = 10_000
#: Jobs that are drained, as a share of what the fastest drains.
SHARE = 1.0


async def setup(url: str) -> None:
    """Make the schema."""
    await asyncio.to_thread(migrate, url)


class Producer:
    """Enqueues jobs by number."""

    def __init__(self, url: str, clients: int) -> None:
        self._app = JobQ(url, pool_size=clients)

    async def open(self) -> None:
        """Nothing: it connects when needed."""

    async def one(self, i: int) -> None:
        """One job in a call."""
        await self._app.aenqueue("job", {"i": i})

    async def many(self, numbers: Sequence[int]) -> None:
        """Many jobs in a call."""
        await self._app.aenqueue_many([self._app.new("job", {"i": i}) for i in numbers])

    async def close(self) -> None:
        """Close its connections."""
        await self._app.aclose()


async def work(
    url: str, concurrency: int, handle: Callable[[int], None], stop: asyncio.Event
) -> None:
    """Run jobs until told to stop."""

    async def job(i: int) -> None:
        handle(i)

    worker = Worker(load(database_url=url, concurrency=concurrency), {"job": Handler("job", job)})
    running = asyncio.create_task(worker.run())
    await stop.wait()
    worker.stop()
    await running
