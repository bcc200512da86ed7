"""A worker that only polls, once a second: what pickup is like without wake-ups.

It claims with the shipped statement, runs the handler at once, finishes, and sleeps when nothing is left.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Mapping
from typing import Any

import orjson
import uvloop

from jobq.bench.board import Board
from jobq.bench.children import answer, receive
from jobq.bench.raw_loop import LANE, SETTINGS, complete
from jobq.db import connect_engine
from jobq.model import ClaimedJob
from jobq.sql import Statements
from jobq.store import RunStore, Share, Span, run

#: Jobs of one claim.
SLOTS = 10
#: Seconds.
INTERVAL = 1.0


async def poll(url: str, board: Board) -> None:
    """Poll until standard input ends."""
    store = RunStore(Statements("jobq"))
    async with await connect_engine(url, "jobq bench") as conn:
        answer(ready=True)
        receive()
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
        while not ended.is_set():
            call = store.claim(secrets.randbits(63), SLOTS, [Share(SLOTS, [Span(LANE)])], SETTINGS)
            jobs: list[ClaimedJob] = (await run(conn, call)).jobs
            for job in jobs:
                board.stamp(orjson.loads(job.payload or "{}")["i"])
            if jobs:
                await complete(conn, store, jobs)
            else:
                await asyncio.wait([asyncio.create_task(ended.wait())], timeout=INTERVAL)


def main(arguments: Mapping[str, Any]) -> None:
    """Work."""
    uvloop.run(poll(arguments["url"], Board(arguments["board"])))


if __name__ == "__main__":
    main(receive())
