"""A worker of a benchmark: the real one, in a process of its own, with handlers that stamp a board.

Logs are written to a file, as shipped: level info, JSON, one line a finished job.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import uvloop

from jobq import logs
from jobq.bench.board import Board
from jobq.bench.children import answer, receive
from jobq.config import load
from jobq.engine.process import spare_the_collector
from jobq.engine.worker import Worker
from jobq.handlers import Handler


def handlers(board: Board, place: int) -> dict[str, Handler]:
    """What the worker runs.

    `noop` counts its start; `stamp` notes the time of it, by job; `work` does both and sleeps a while.
    """

    async def noop() -> None:
        board.count(place)

    async def stamp(i: int) -> None:
        board.stamp(i)

    async def work(i: int, seconds: float) -> None:
        board.count(place)
        board.stamp(i)
        await asyncio.sleep(seconds)

    return {
        "noop": Handler("noop", noop),
        "stamp": Handler("stamp", stamp),
        "work": Handler("work", work),
    }


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
    board = Board(arguments["board"])
    settings = load(database_url=arguments["url"], **arguments["settings"])
    with logging_to(arguments["log"]):
        worker = Worker(settings, handlers(board, arguments["place"]))
        answer(ready=os.getpid())
        receive()
        spare_the_collector()
        uvloop.run(serve(worker))


if __name__ == "__main__":
    main(receive())
