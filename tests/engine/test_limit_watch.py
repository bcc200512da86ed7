"""The look at held jobs: all reasons in steps, the soonest token of any of them, and not at once again when it was in vain."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.store.limited import limit, serve
from tests.store.support import client

from jobq.db import Conn
from jobq.engine.limits import BATCH, LONGEST, LimitWatch
from jobq.engine.session import Session
from jobq.engine.weights import Weights
from jobq.sql import Statements
from jobq.store import UpkeepStore

REASONS = 2 * BATCH + 50


@pytest.fixture
async def watch(database_url: str) -> AsyncIterator[LimitWatch]:
    session = Session(database_url, "test", lost=lambda error: None, found=lambda: None)
    watch = LimitWatch(session, UpkeepStore(Statements("jobq")), Weights(), lambda: None)
    watch.wake = lambda: None
    await watch.step()  # as at the start of a worker: it loads the limits
    yield watch
    await session.close()


def _hold(conn: Conn) -> None:
    """A job for each of many keys, whose slots are all taken, and some for a kind, which sorts last."""
    serve(conn)
    conn.execute(
        "INSERT INTO jobq.job (kind, concurrency_key, held_by)"
        f" SELECT 'k', 'k' || g, 'key:k' || g FROM generate_series(1, {REASONS}) g".encode()
    )
    conn.execute(
        "INSERT INTO jobq.cap_slot SELECT held_by, 0, 1, id FROM jobq.job WHERE held_by LIKE 'key:%'"
    )


async def _pass(watch: LimitWatch) -> tuple[int, float]:
    """Steps until it pauses, and how long it does."""
    steps = 1
    while (pause := await watch.step()) == 0.0:
        steps += 1
    return steps, pause


async def test_it_looks_through_all_reasons_in_steps(watch: LimitWatch, database_url: str) -> None:
    with client(database_url) as conn:
        _hold(conn)
        watch.noticed(held=True, version=0)
        assert (await _pass(watch))[0] == 3
        conn.execute("UPDATE jobq.cap_slot SET lease = NULL, job_id = NULL")
        watch.review()
        await _pass(watch)
        assert conn.execute(
            "SELECT count(*) FROM jobq.job WHERE held_by IS NOT NULL"
        ).fetchone() == (0,)


async def test_the_next_token_of_the_first_reasons_counts_as_well(
    watch: LimitWatch, database_url: str
) -> None:
    with client(database_url) as conn:
        _hold(conn)
        limit(conn, "key", "k1", rate=(1, 100.0, 1), max_running=2)
        conn.execute("UPDATE jobq.rate_bucket SET tokens = 0")
        watch.hint()
        steps, pause = await _pass(watch)
        assert steps == 3
        assert 50 < pause < 100 / 0.97


async def test_looks_in_vain_are_throttled_until_limits_change(
    watch: LimitWatch, database_url: str
) -> None:
    with client(database_url) as conn:
        _hold(conn)
        pauses = []
        for _ in range(4):  # one slow look proves nothing
            watch.noticed(held=True, version=0)
            pauses.append((await _pass(watch))[1])
        assert min(pauses) < LONGEST
        limit(conn, "kind", "k", weight=2.0)
        watch.hint()
        assert (await _pass(watch))[0] == 3
