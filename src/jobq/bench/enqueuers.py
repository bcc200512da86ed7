"""Clients that enqueue as fast as they can, in one process: through jobq, or by a bare INSERT.

Both insert the same rows over the same kind of connections, prepare their statements, commit each call by
itself and read the ids back. jobq checks arguments, fields and sizes, takes defaults from the kind's row and
wakes workers; the bare INSERT does nothing of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from importlib import resources

import orjson
import uvloop

from jobq import JobQ
from jobq.bench.children import answer, receive
from jobq.client.pool import AsyncPool
from jobq.store import array

#: Jobs of one call in bulk.
BATCH = 10_000

Enqueue = Callable[[], Awaitable[object]]


def through_jobq(url: str, clients: int) -> tuple[Enqueue, Enqueue]:
    """Calls that enqueue one job, and `BATCH` of them."""
    app = JobQ(url, pool_size=clients)

    @app.job("email.welcome")
    async def welcome(to: str) -> None: ...

    async def one() -> None:
        await welcome.aenqueue(to="a@b.com")

    async def many() -> None:
        await app.aenqueue_many([welcome.new(to=f"{i}@b.com") for i in range(BATCH)])

    return one, many


def bare(url: str, clients: int) -> tuple[Enqueue, Enqueue]:
    """The same by INSERT."""
    pool = AsyncPool(url, clients)
    insert_one, insert_many = read("insert_one.sql"), read("insert_many.sql")

    async def insert(statement: bytes, **params: str) -> None:
        conn = await pool.take()
        try:
            cursor = await conn.execute(statement, params, prepare=True, binary=True)
            await cursor.fetchall()
        finally:
            pool.give(conn)

    async def one() -> None:
        await insert(insert_one, payload=payload("a@b.com"))

    async def many() -> None:
        await insert(insert_many, payloads=array(payload(f"{i}@b.com") for i in range(BATCH)))

    return one, many


def payload(to: str) -> str:
    """The payload as JSON text."""
    return orjson.dumps({"to": to}).decode()


def read(name: str) -> bytes:
    """A statement of this folder."""
    return resources.files("jobq.bench").joinpath(name).read_bytes()


async def for_a_while(enqueue: Enqueue, clients: int, seconds: float) -> int:
    """Every client enqueues one job after the other; returns how many."""
    done, ends = 0, time.monotonic() + seconds

    async def client() -> None:
        nonlocal done
        while time.monotonic() < ends:
            await enqueue()
            done += 1

    await asyncio.gather(*(client() for _ in range(clients)))
    return done


async def work(url: str, way: str, clients: int) -> None:
    """Warm up, then enqueue whenever told: for some seconds one job a call, or once in bulk.

    Args:
        url: of the database.
        way: `jobq` or `bare`.
        clients: at once.
    """
    one, many = (through_jobq if way == "jobq" else bare)(url, clients)
    await asyncio.gather(*(one() for _ in range(4 * clients)))
    answer(ready=True)
    receive()
    while message := await asyncio.to_thread(receive):
        began = time.monotonic()
        if "seconds" in message:
            jobs = await for_a_while(one, clients, message["seconds"])
        else:
            await many()
            jobs = BATCH
        answer(jobs=jobs, seconds=time.monotonic() - began)


if __name__ == "__main__":
    uvloop.run(work(**receive()))
