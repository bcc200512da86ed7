"""A producer for workers under observation: one job now and then, or a steady load."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import uvloop

from jobq import JobQ
from jobq.bench.board import Board, now
from jobq.bench.children import answer, receive

#: Jobs of one call under steady load.
BATCH = 1_000
#: Jobs that are enqueued and not yet started, at most, under steady load.
BACKLOG = 5_000
#: Seconds between two jobs that come now and then.
GAP = (0.02, 0.1)
#: Jobs that come first and do not count.
WARM_UP = 5


async def now_and_then(
    enqueue: Callable[[int], Awaitable[object]], board: Board, first: int, last: int
) -> list[float]:
    """Enqueue jobs by number, one by one, noting the time just before each call; returns the seconds each call took."""
    took: list[float] = []
    for i in range(first, last):
        await asyncio.sleep(random.uniform(*GAP))
        board.sent[i] = now()
        began = time.perf_counter()
        await enqueue(i)
        took.append(time.perf_counter() - began)
    return took


async def steadily(app: JobQ, board: Board) -> None:
    """Keep a backlog of `noop` jobs until standard input ends."""
    ended, sent = asyncio.Event(), 0
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
    while not ended.is_set():
        if sent - board.total > BACKLOG - BATCH:
            await asyncio.sleep(0.002)
            continue
        await app.aenqueue_many([app.new("noop") for _ in range(BATCH)])
        sent += BATCH


async def work(url: str, board: Board, jobs: int) -> None:
    """Five jobs to warm up, then wait for the word, then the others; or a steady load where `jobs` is 0."""
    async with JobQ(url) as app:

        async def stamped(i: int) -> None:
            await app.aenqueue("stamp", {"i": i})

        if not jobs:
            answer(ready=True)
            receive()
            await steadily(app, board)
            return
        await now_and_then(stamped, board, 0, WARM_UP)
        answer(ready=True)
        receive()
        answer(calls=await now_and_then(stamped, board, WARM_UP, jobs))


def main(arguments: Mapping[str, Any]) -> None:
    """Produce, and stay until the benchmark is over."""
    uvloop.run(work(arguments["url"], Board(arguments["board"]), arguments["jobs"]))
    receive()


if __name__ == "__main__":
    main(receive())
