"""Claim strategies, bare: so many claimers, each on a connection of its own, claim and finish for a while.

They are coroutines of one process. Statements and sessions are those of a worker; the strategies differ in
the lock (`blocking` claims without SKIP LOCKED) and in how many jobs one claim takes.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import uvloop

from jobq.bench.children import answer, receive
from jobq.bench.raw_loop import LANE, SETTINGS, complete
from jobq.db import AsyncConn, connect_engine
from jobq.sql import Statements
from jobq.store import RunStore, Share, Span, run

#: Jobs a claim takes, by strategy.
TAKES = {"blocking": 1, "skip_locked": 1, "batch10": 10}


class Blocking(Statements):
    """The shipped statements, but a claim waits for locked rows instead of passing them by.

    Two words are taken out of the shipped text, so that this remains the only difference.
    """

    def __getitem__(self, name: str) -> bytes:
        text = super().__getitem__(name)
        return text.replace(b" SKIP LOCKED", b"") if name == "claim" else text


async def cycle(conn: AsyncConn, store: RunStore, takes: int, seconds: float) -> int:
    """Claim and finish until the time is over or no job is left; returns how many.

    Each claim begins where the last one ended, as a worker's does.
    """
    done, span, ends = 0, Span(LANE), time.monotonic() + seconds
    while time.monotonic() < ends:
        share = Share(takes, [span])
        found = await run(conn, store.claim(secrets.randbits(63), takes, [share], SETTINGS))
        jobs = found.jobs
        if not jobs:
            break
        await complete(conn, store, jobs)
        span = Span(LANE, *max((job.run_at, job.id) for job in jobs))
        done += len(jobs)
    return done


async def work(url: str, strategy: str, claimers: int, seconds: float) -> dict[str, float]:
    """Connect, wait for the word, claim; returns jobs and the seconds they took."""
    statements = Blocking("jobq") if strategy == "blocking" else Statements("jobq")
    store, takes = RunStore(statements), TAKES[strategy]
    async with AsyncExitStack() as stack:
        conns = [
            await stack.enter_async_context(await connect_engine(url, "jobq bench"))
            for _ in range(claimers)
        ]
        answer(ready=True)
        receive()
        began = time.monotonic()
        done = await asyncio.gather(*(cycle(conn, store, takes, seconds) for conn in conns))
        return {"jobs": sum(done), "seconds": time.monotonic() - began}


def main(arguments: Mapping[str, Any]) -> None:
    """Report how it went."""
    answer(**uvloop.run(work(**arguments)))


if __name__ == "__main__":
    main(receive())
