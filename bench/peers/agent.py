"""A process of one queue: sets up, fills, works or enqueues, through that queue's adapter alone."""

from __future__ import annotations

import asyncio
import importlib
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uvloop

from jobq import logs
from jobq.bench.board import Board
from jobq.bench.children import answer, receive
from jobq.bench.enqueuers import for_a_while
from jobq.bench.producer import WARM_UP, now_and_then


async def prepare(queue: Any, url: str, jobs: int) -> None:
    """Make the schema and enqueue `jobs` in bulk."""
    await queue.setup(url)
    producer = queue.Producer(url, 1)
    await producer.open()
    for first in range(0, jobs, queue.BULK):
        await producer.many(range(first, min(jobs, first + queue.BULK)))
    await producer.close()
    answer(ready=True)


async def work(queue: Any, url: str, board: Board, place: int, concurrency: int) -> None:
    """Wait for the word, then work until standard input ends."""

    def handle(i: int) -> None:
        board.count(place)
        board.stamp(i)

    stop = asyncio.Event()
    answer(ready=True)
    receive()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop.set)
    await queue.work(url, concurrency, handle, stop)


async def produce(queue: Any, url: str, board: Board, jobs: int) -> None:
    """Five jobs to warm up, then wait for the word, then the others, one now and then."""
    producer = queue.Producer(url, 1)
    await producer.open()
    await now_and_then(producer.one, board, 0, WARM_UP)
    answer(ready=True)
    receive()
    await now_and_then(producer.one, board, WARM_UP, jobs)
    await asyncio.to_thread(receive)
    await producer.close()


async def enqueue(queue: Any, url: str, clients: int) -> None:
    """Enqueue whenever told: for some seconds one job a call, or many in bulk."""
    producer = queue.Producer(url, clients)
    await producer.open()
    await asyncio.gather(*(producer.one(0) for _ in range(4 * clients)))
    answer(ready=True)
    receive()
    while message := await asyncio.to_thread(receive):
        began = time.monotonic()
        if "seconds" in message:
            jobs = await for_a_while(lambda: producer.one(0), clients, message["seconds"])
        else:
            jobs = message["jobs"]
            for first in range(0, jobs, queue.BULK):
                await producer.many(range(first, first + queue.BULK))
        answer(jobs=jobs, seconds=time.monotonic() - began)
    await producer.close()


ROLES = {"prepare": prepare, "work": work, "produce": produce, "enqueue": enqueue}


def main(arguments: Mapping[str, Any]) -> None:
    """Play a role."""
    given = dict(arguments)
    role, queue = ROLES[given.pop("role")], importlib.import_module(f"adapter_{given.pop('queue')}")
    if "board" in given:
        given["board"] = Board(given["board"])
    with Path(given.pop("log")).open("wb") as stream:
        logs.configure("info", "json", stream=stream)
        uvloop.run(role(queue, **given))


if __name__ == "__main__":
    main(receive())
