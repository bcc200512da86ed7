"""A proxy before PostgreSQL whose connections can fall silent: they stand, take everything and pass nothing on."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo


class Proxy:
    """The proxy; `url` leads through it."""

    def __init__(self, url: str, folder: Path) -> None:
        given = conninfo_to_dict(url)
        self._real = f"{given['host']}/.s.PGSQL.{given.get('port', 5432)}"
        self.path = folder / f".s.PGSQL.{given.get('port', 5432)}"
        self.url = make_conninfo(url, host=str(folder))
        self._links: list[tuple[str, asyncio.Event]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        #: Whether new connections are silent from their beginning.
        self.closed = False

    def silence(self, name: str = "") -> int:
        """Silence the open connections of an application, or all; returns how many."""
        found = [silent for application, silent in self._links if name in application]
        for silent in found:
            silent.set()
        self._links = [link for link in self._links if link[1] not in found]
        return len(found)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        first = await reader.read(65536)
        words = first.split(b"\0")
        named = words.index(b"application_name") + 1 if b"application_name" in words else 0
        silent = asyncio.Event()
        if self.closed:
            silent.set()
        self._links.append((words[named].decode(), silent))
        server_reader, server_writer = await asyncio.open_unix_connection(self._real)
        if not silent.is_set():
            server_writer.write(first)
        for source, target in ((reader, server_writer), (server_reader, writer)):
            task = asyncio.create_task(_pump(source, target, silent))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End all connections."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _pump(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, silent: asyncio.Event
) -> None:
    try:
        with suppress(OSError):
            while data := await source.read(65536):
                if not silent.is_set():
                    target.write(data)
    finally:
        target.close()
        with suppress(OSError):
            await target.wait_closed()


@asynccontextmanager
async def proxy(url: str) -> AsyncIterator[Proxy]:
    """A proxy before a database."""
    with tempfile.TemporaryDirectory(prefix="jobq-proxy-") as folder:
        found = Proxy(url, Path(folder))
        server = await asyncio.start_unix_server(found.serve, found.path)
        try:
            yield found
        finally:
            server.close()
            await found.close()
