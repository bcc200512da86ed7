"""Procrastinate: async tasks through psycopg's pool, woken by LISTEN; concurrency 20 was its best here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from procrastinate import App, PsycopgConnector

LIVE = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
CONCURRENCY = 20
BULK = 1_000
SHARE = 0.05


def make(url: str, connections: int) -> App:
    """An app with a pool."""
    return App(
        connector=PsycopgConnector(conninfo=url, min_size=min(connections, 4), max_size=connections)
    )


async def setup(url: str) -> None:
    """Make the schema."""
    app = make(url, 2)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


class Producer:
    """Enqueues jobs by number."""

    def __init__(self, url: str, clients: int) -> None:
        self._app = make(url, max(clients, 2))

        @self._app.task(name="job")
        async def job(i: int) -> None: ...

        self._job = job

    async def open(self) -> None:
        """Connect."""
        await self._app.open_async()

    async def one(self, i: int) -> None:
        """One job in a call."""
        await self._job.defer_async(i=i)

    async def many(self, numbers: Sequence[int]) -> None:
        """Many jobs in a call."""
        await self._job.batch_defer_async(*[{"i": i} for i in numbers])

    async def close(self) -> None:
        """Close its connections."""
        await self._app.close_async()


async def work(
    url: str, concurrency: int, handle: Callable[[int], None], stop: asyncio.Event
) -> None:
    """Run jobs until told to stop."""
    app = make(url, concurrency + 4)

    @app.task(name="job")
    async def job(i: int) -> None:
        handle(i)

    async with app.open_async():
        task = asyncio.create_task(
            app.run_worker_async(
                concurrency=concurrency,
                listen_notify=True,
                delete_jobs="never",
                install_signal_handlers=False,
            )
        )
        await stop.wait()
        task.cancel()
        await asyncio.wait([task])
