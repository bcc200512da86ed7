"""Upkeep in bounded steps: the archive and the keys hourly, the slots of caps each minute."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.store.limited import ids, limit, queued, serve, start
from tests.store.support import engine, one

from jobq.engine.retention import BATCH, PAUSE, SLOTS_PERIOD, Retention
from jobq.engine.session import Session
from jobq.sql import Statements
from jobq.store import UpkeepStore

KEY_LIFE = 3600.0


@pytest.fixture
def passes() -> list[str]:
    """A mark for each whole pass."""
    return []


@pytest.fixture
async def retention(database_url: str, passes: list[str]) -> AsyncIterator[Retention]:
    session = Session(database_url, "test", lost=lambda error: None, found=lambda: None)
    upkeep = UpkeepStore(Statements("jobq"))
    yield Retention(session, upkeep, KEY_LIFE, lambda: passes.append("done"))
    await session.close()


async def _minute(retention: Retention) -> int:
    """Steps until it rests for a minute."""
    steps = 1
    while await retention.step() == PAUSE:
        steps += 1
    return steps


async def test_a_minute_s_pass_heals_slots_and_drops_those_nobody_will_take(
    retention: Retention, database_url: str
) -> None:
    with engine(database_url) as conn:
        serve(conn)
        limit(conn, "kind", max_running=1)
        lost, next_ = queued(conn, 2, concurrency_key=None)
        queued(conn, kind="other", concurrency_key="mine")
        assert lost in ids(start(conn))
        conn.execute("DELETE FROM jobq.job WHERE status = 'RUNNING'")
        conn.execute(
            "INSERT INTO jobq.cap_slot (scope, n) SELECT 'key:' || g, 0 FROM generate_series(1, %s) g",
            (2 * BATCH,),
        )
        assert await _minute(retention) == 4
        assert one(conn, "SELECT count(*), count(lease) FROM jobq.cap_slot") == (1, 0)
        assert ids(start(conn)) == [next_]


async def test_keys_expire_in_batches_once_an_hour(
    retention: Retention, passes: list[str], database_url: str
) -> None:
    with engine(database_url) as conn:
        conn.execute(
            "INSERT INTO jobq.key (tenant, scope, key, job_id, created_at)"
            " SELECT 't', 'retained', g, g, now() - interval '2 hours' FROM generate_series(1, %s) g",
            (BATCH + 10,),
        )
        assert await retention.step() == PAUSE
        assert passes == []
        assert await retention.step() == SLOTS_PERIOD
        assert passes == ["done"]
        assert one(conn, "SELECT count(*) FROM jobq.key") == (0,)
        await _minute(retention)
        assert passes == ["done"]
