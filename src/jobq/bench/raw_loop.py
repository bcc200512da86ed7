"""The raw SQL loop: what the schema and its statements allow, with no engine and no handler around them.

One process, one event loop, two connections. One claims 100 jobs by `claim.sql`, beginning where its last
claim ended; meanwhile the other finishes the 100 before by `complete.sql`. Both are the shipped
statements, run through the store, in sessions with a worker's planner settings; rows are decoded into the
same objects. Nothing is logged, timed, announced, extended or checked.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any

import uvloop

from jobq.bench.board import now
from jobq.bench.children import answer, receive
from jobq.db import AsyncConn, connect_engine
from jobq.model import ClaimedJob, Lane, Outcome, Verdict
from jobq.sql import Statements
from jobq.store import ClaimSettings, RunStore, Share, Span, run

BATCH = 100
LANE = Lane("default", "default", 0)
SETTINGS = ClaimSettings("raw", 60.0, 10.0, 5, 300.0)


async def loop(claiming: AsyncConn, finishing: AsyncConn, store: RunStore) -> dict[str, int]:
    """Drain the lane; returns jobs, and when the first claim and the last completion were answered."""
    done, first, span = 0, 0, Span(LANE)
    finish: asyncio.Task[None] | None = None
    while jobs := await claim(claiming, store, span):
        first = first or now()
        if finish is not None:
            await finish
        finish = asyncio.create_task(complete(finishing, store, jobs))
        done += len(jobs)
        span = Span(LANE, *max((job.run_at, job.id) for job in jobs))
    if finish is not None:
        await finish
    return {"jobs": done, "first": first, "last": now()}


async def claim(conn: AsyncConn, store: RunStore, span: Span) -> list[ClaimedJob]:
    """Claim up to a batch."""
    call = store.claim(secrets.randbits(63), BATCH, [Share(BATCH, [span])], SETTINGS)
    return (await run(conn, call)).jobs


async def complete(conn: AsyncConn, store: RunStore, jobs: list[ClaimedJob]) -> None:
    """Finish a batch."""
    await run(conn, store.complete([Outcome(job.claim, Verdict.SUCCESS) for job in jobs]))


async def work(url: str) -> dict[str, int]:
    """Connect, wait for the word, drain."""
    store = RunStore(Statements("jobq"))
    claiming, finishing = [await connect_engine(url, "jobq bench") for _ in range(2)]
    async with claiming, finishing:
        answer(ready=True)
        receive()
        return await loop(claiming, finishing, store)


def main(arguments: Mapping[str, Any]) -> None:
    """Report how it went."""
    answer(**uvloop.run(work(arguments["url"])))


if __name__ == "__main__":
    main(receive())
