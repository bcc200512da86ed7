"""Quiet tenants: between them one job at a time, evenly, noting when each was committed."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import uvloop

from jobq import JobQ
from jobq.bench.board import Board, now
from jobq.bench.children import answer, receive


async def enqueue_evenly(
    app: JobQ, board: Board, tenants: Sequence[str], gap: float, seconds: float
) -> None:
    """Enqueue a job every `gap` seconds, the tenants in turns, until standard input ends.

    The times are fixed beforehand: an enqueue that takes long delays no other.

    Args:
        board: told when each call came back, the job committed and its wake-up not yet sent.
        seconds: that each job takes.
    """
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
    began = time.monotonic()
    for i in range(len(board.sent)):
        await asyncio.sleep(began + i * gap - time.monotonic())
        if ended.is_set():
            return
        await app.aenqueue("work", {"i": i, "seconds": seconds}, tenant=tenants[i % len(tenants)])
        board.sent[i] = now()


async def work(url: str, board: Board, tenants: Sequence[str], gap: float, seconds: float) -> None:
    """Connect, wait for the word, enqueue."""
    async with JobQ(url) as app:
        answer(ready=True)
        receive()
        await enqueue_evenly(app, board, tenants, gap, seconds)


def main(arguments: Mapping[str, Any]) -> None:
    """Enqueue until the benchmark says that it is enough."""
    board = Board(arguments["board"])
    uvloop.run(
        work(arguments["url"], board, arguments["tenants"], arguments["gap"], arguments["seconds"])
    )


if __name__ == "__main__":
    main(receive())
