"""A worker of a benchmark: the real one, in a process of its own, with handlers that stamp a board.

Logs are written to a file, as shipped: level info, JSON, one line a finished job.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import uvloop
from prometheus_client import CollectorRegistry

from jobq import logs
from jobq.bench.board import Board, Figures
from jobq.bench.children import answer, receive
from jobq.config import load
from jobq.engine.process import spare_the_collector
from jobq.engine.worker import Worker
from jobq.handlers import Handler
from jobq.metrics import Metrics


def handlers(board: Board, place: int) -> dict[str, Handler]:
    """What the worker runs.

    `noop` counts its start, `nap` as well, and sleeps a while; `stamp` notes the time of its start, by job, and
    `work` does all of that. `rest` and
    `rest.capped` sleep and count nothing.
    """

    async def noop() -> None:
        board.count(place)

    async def nap(seconds: float) -> None:
        board.count(place)
        await asyncio.sleep(seconds)

    async def rest(seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def stamp(i: int) -> None:
        board.stamp(i)

    async def work(i: int, seconds: float) -> None:
        board.count(place)
        board.stamp(i)
        await asyncio.sleep(seconds)

    return {
        "noop": Handler("noop", noop),
        "nap": Handler("nap", nap),
        "rest": Handler("rest", rest),
        "rest.capped": Handler("rest.capped", rest),
        "stamp": Handler("stamp", stamp),
        "work": Handler("work", work),
    }


class NotingClaims(Metrics):
    """A worker's metrics, which note each claim's seconds as well."""

    def __init__(self, path: str, kinds: Iterable[str]) -> None:
        super().__init__(CollectorRegistry(), kinds=kinds)
        self._figures = Figures(path)

    def claimed(self, seconds: float) -> None:
        """Note how long a claim took."""
        super().claimed(seconds)
        self._figures.add(seconds)


def make(arguments: Mapping[str, Any]) -> Worker:
    """The worker."""
    settings = load(database_url=arguments["url"], **arguments["settings"])
    runs = handlers(Board(arguments["board"]), arguments["place"])
    path = arguments.get("claims")
    return Worker(settings, runs, metrics=NotingClaims(path, runs) if path else None)


async def serve(worker: Worker) -> None:
    """Run the worker until SIGTERM or the end of standard input."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.stop)
    loop.add_reader(sys.stdin.fileno(), worker.stop)
    await worker.run()


@contextlib.contextmanager
def logging_to(path: str) -> Iterator[None]:
    """Log to a file as a worker does to its standard output."""
    with Path(path).open("wb") as stream:
        logs.configure("info", "json", stream=stream)
        yield
        logs.reset()


def main(arguments: Mapping[str, Any]) -> None:
    """Get ready, wait for the word, work."""
    with logging_to(arguments["log"]):
        worker = make(arguments)
        answer(ready=os.getpid())
        receive()
        spare_the_collector()
        uvloop.run(serve(worker))


if __name__ == "__main__":
    main(receive())
