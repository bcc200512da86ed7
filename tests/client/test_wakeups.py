"""Wake-ups after our own commit: at once, gathered under load, and without any data of the jobs."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

import pytest
from tests.client.support import PATIENCE, Colour, Database, Listener

from jobq import Job, JobQ
from jobq.client.announcer import AsyncAnnouncer, SyncAnnouncer, Wakeups
from jobq.model import JobStatus, Lane
from jobq.store import Enqueued
from jobq.wakeup import DueAt, LanesReady, LookEverywhere, parse, ready, token

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LANES = [
    Lane("default", "default", 0),
    Lane("q", "t", -100),
    Lane("a:/@._-Z", "acme", 100),
    Lane("x" * 128, "y" * 128, 7),
]


def enqueued(
    lane: Lane = LANES[0],
    *,
    status: JobStatus = JobStatus.QUEUED,
    created: bool = True,
    late: int = 0,
) -> Enqueued:
    return Enqueued(Job(1, status, created), lane, NOW + timedelta(seconds=late))


async def test_a_job_is_announced_by_its_lane_and_due_time(
    colour: Colour, listener: Listener
) -> None:
    job = await colour.enqueue("k", queue="q", tenant="t", priority=5)
    message = parse(await listener.next())
    at = (await colour.get(job.id)).run_at
    assert message == LanesReady({token(Lane("q", "t", 5)): (at, at)})


async def test_a_keyed_job_is_announced_once_and_its_repetition_not(
    colour: Colour, listener: Listener
) -> None:
    for key in ("idempotency_key", "unique_key"):
        first = await colour.enqueue("k", **{key: "K"})
        assert await listener.next()
        assert (await colour.enqueue("k", **{key: "K"})).id == first.id
        await colour.enqueue("later", delay=60)
        assert isinstance(parse(await listener.next()), DueAt), "nothing came in between"


async def test_a_batch_is_announced_as_few_lanes(
    colour: Colour, app: JobQ, listener: Listener
) -> None:
    jobs = [app.new("k", n, tenant=f"t{n % 3}", delay=60 if n == 50 else None) for n in range(100)]
    made = await colour.many(jobs)
    lanes, due = parse(await listener.next()), parse(await listener.next())
    assert isinstance(lanes, LanesReady)
    assert lanes.spans.keys() == {token(Lane("default", f"t{n}", 0)) for n in range(3)}
    assert due == DueAt((await colour.get(made[50].id)).run_at)
    assert listener.heard() == []


async def test_without_notify_nothing_is_announced(
    colour: Colour, app: JobQ, listener: Listener
) -> None:
    await colour.enqueue("k", notify=False)
    await colour.many([app.new("k")] * 3, notify=False)
    await colour.enqueue("last", delay=60)
    assert isinstance(parse(await listener.next()), DueAt)


async def test_messages_are_short_and_hold_no_data_of_the_jobs(
    colour: Colour, app: JobQ, listener: Listener
) -> None:
    secret = "secret-7f3a"
    for count in (1, 500, 2000):
        await colour.many([
            app.new(f"{secret}.k", {secret: secret}, queue=secret, tenant=f"{secret}-{n}", tags=[secret])
            for n in range(count)
        ])  # fmt: skip
        await colour.enqueue("end", delay=60)
        heard: list[str] = []
        while not heard or not heard[-1].startswith("d "):
            heard.append(await listener.next())
        assert all(len(message) < 8000 for message in heard)
        assert not any("secret" in message for message in heard)
        assert ("q *" in heard) is (count == 2000)


@pytest.mark.parametrize("lane", LANES)
def test_sql_and_python_name_a_lane_alike(database: Database, lane: Lane) -> None:
    assert database.one("SELECT jobq.lane_token(%s, %s, %s::smallint)", lane) == token(lane)


@pytest.mark.parametrize("count", [1, 3, 1000])
async def test_sql_and_python_write_the_same_message(
    database: Database, listener: Listener, count: int
) -> None:
    jobs = [
        (Lane("q", f"t{n % 500}", 0), NOW + timedelta(microseconds=n * 7919)) for n in range(count)
    ]
    times = [at for _, at in jobs]
    names = [token(lane) for lane, _ in jobs]
    database.rows("SELECT jobq.announce(%s, %s::timestamptz[], %s)", (names, times, times))
    message = parse(await listener.next())
    ours = [parse(text) for text in ready(jobs)]
    if count < 1000:
        assert [message] == ours
    else:
        assert message == LookEverywhere(), "one message in SQL, several in Python"
        assert len(ours) > 1


def test_wakeups_grow_with_the_lanes_not_with_the_jobs() -> None:
    wakeups = Wakeups(enqueued(late=n) for n in range(10_000))
    wakeups.add([enqueued(LANES[1], status=JobStatus.SCHEDULED, late=9)])
    wakeups.add([enqueued(LANES[2], created=False)])
    lanes, due = map(parse, wakeups.take())
    assert lanes == LanesReady({token(LANES[0]): (NOW, NOW + timedelta(seconds=9999))})
    assert due == DueAt(NOW + timedelta(seconds=9))
    assert not wakeups
    assert wakeups.take() == []


class Wire:
    """Where announcers send to: notes messages, and can be held or broken."""

    def __init__(self) -> None:
        self.sent: list[list[str]] = []
        self.error: Exception | None = None
        self.begun, self.held = threading.Event(), threading.Event()
        self.held.set()

    def send(self, messages: list[str]) -> None:
        self.begun.set()
        assert self.held.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        self.sent.append(messages)

    async def asend(self, messages: list[str]) -> None:
        await asyncio.to_thread(self.send, messages)


async def test_async_announcements_are_gathered_while_one_is_under_way() -> None:
    wire = Wire()
    wire.held.clear()
    announcer = AsyncAnnouncer(wire.asend)
    announcer.add([enqueued()])
    await asyncio.to_thread(wire.begun.wait, PATIENCE)
    for late in range(1000):
        announcer.add([enqueued(late=late)])
    wire.held.set()
    await announcer.flush()
    assert len(wire.sent) == 2


def test_sync_announcements_are_gathered_and_never_hold_the_caller_up() -> None:
    wire = Wire()
    wire.held.clear()
    announcer = SyncAnnouncer(wire.send)
    begun = monotonic()
    announcer.add([enqueued()])
    assert wire.begun.wait(PATIENCE)
    for late in range(1000):
        announcer.add([enqueued(late=late)])
    assert monotonic() - begun < PATIENCE / 2
    wire.held.set()
    announcer.flush()
    assert len(wire.sent) == 2
    announcer.add([enqueued()])
    announcer.flush()
    assert len(wire.sent) == 3, "it starts again"


async def test_trouble_is_told_once_until_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    wire = Wire()
    announcers: list[Any] = [AsyncAnnouncer(wire.asend), SyncAnnouncer(wire.send)]
    for announcer in announcers:
        caplog.clear()
        for error, told in ((OSError(), 1), (OSError(), 1), (None, 1), (OSError(), 2)):
            wire.error = error
            announcer.add([enqueued()])
            flushed = announcer.flush()
            if flushed is not None:
                await flushed
            assert sum(r.levelno == logging.WARNING for r in caplog.records) == told


async def test_a_wake_up_that_cannot_be_sent_fails_no_enqueue(
    colour: Colour, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    database.rows("ALTER FUNCTION pg_catalog.pg_notify RENAME TO no_notify")
    assert (await colour.enqueue("k")).created
    await database.until(lambda: "wake-ups cannot be sent" in caplog.text)
    assert database.jobs() == 1


async def test_closing_sends_the_last_wake_up(database_url: str, listener: Listener) -> None:
    async with JobQ(database_url) as app:
        await app.aenqueue("k")
    assert len(listener.heard()) == 1
    with JobQ(database_url) as app:
        app.enqueue("k")
    assert len(listener.heard()) == 1
