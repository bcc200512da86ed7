"""A worker process for tests that kill, stop and restart it: `python -m tests.engine.process URL JSON`.

Its handlers write every start and end to table `witness`, on a connection of their own.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from typing import Any

import psycopg
import uvloop
from tests.engine.support import handlers, settings

from jobq import logs
from jobq.context import Context
from jobq.engine.worker import Worker

URL = ""

WITNESS = """
CREATE TABLE IF NOT EXISTS witness (
    job_id bigint, attempt int, pid int, what text, at timestamptz DEFAULT clock_timestamp()
)
"""


def witness(ctx: Context, what: str) -> None:
    """Write down that something happened, whatever becomes of the outcome."""
    with psycopg.connect(URL, autocommit=True) as conn:
        conn.execute(
            "INSERT INTO witness (job_id, attempt, pid, what) VALUES (%s, %s, %s, %s)",
            (ctx.job.id, ctx.attempt, os.getpid(), what),
        )


async def nap(ctx: Context, seconds: float = 0.0) -> str:
    """Sleep, honouring cancellation."""
    witness(ctx, "start")
    await asyncio.sleep(seconds)
    witness(ctx, "end")
    return "slept"


async def rest(seconds: float) -> None:
    """Take some time, and tell nobody."""
    await asyncio.sleep(seconds)


async def block(ctx: Context, seconds: float) -> None:
    """Block the event loop."""
    witness(ctx, "start")
    time.sleep(seconds)
    witness(ctx, "end")


async def nest(ctx: Context, seconds: float) -> None:
    """Block the event loop in a task of its own."""

    async def child() -> None:
        time.sleep(seconds)

    witness(ctx, "start")
    await asyncio.create_task(child())
    witness(ctx, "end")


def spin(ctx: Context, seconds: float) -> None:
    """Hold the interpreter lock in slices, in a thread."""
    witness(ctx, "start")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(100_000))
    witness(ctx, "end")


def die(ctx: Context) -> None:
    """Kill the process."""
    witness(ctx, "start")
    os.kill(os.getpid(), signal.SIGKILL)


async def main(changes: dict[str, Any]) -> None:
    """Work until SIGTERM."""
    worker = Worker(
        settings(URL, **changes),
        handlers(nap=nap, rest=rest, block=block, nest=nest, spin=spin, die=die),
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    recorded = await worker.run()
    sys.stdout.flush()
    os._exit(0 if recorded else 1)


if __name__ == "__main__":
    URL = sys.argv[1]
    logs.configure("info", "json")
    uvloop.run(main(json.loads(sys.argv[2])))
