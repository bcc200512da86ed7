"""Runs that end per second, on a clock that the test sets."""

from __future__ import annotations

import pytest
from tests.engine.support import Jobs, handlers, until, working

from jobq.engine.pace import MEMORY, Pace


def ends(pace: Pace, rate: float, begin: float, seconds: float) -> float:
    """Lets runs end at a steady rate; returns the time at the end."""
    for n in range(int(rate * seconds)):
        pace.ended(begin + (n + 1) / rate, 0.5)
    return begin + seconds


@pytest.mark.parametrize("rate", [0.1, 1.0, 50.0, 2000.0])
@pytest.mark.parametrize("seconds", [20.0, MEMORY, 10 * MEMORY])
def test_a_steady_stream_reads_as_its_rate_from_the_beginning(rate: float, seconds: float) -> None:
    pace = Pace(1000.0)
    now = ends(pace, rate, 1000.0, seconds)
    assert pace.per_second(now) == pytest.approx(rate, rel=0.1)


def test_what_ended_long_ago_is_forgotten() -> None:
    pace = Pace(0.0)
    now = ends(pace, 100.0, 0.0, 5 * MEMORY)
    assert pace.per_second(now + MEMORY) == pytest.approx(100 / 2.718, rel=0.1)
    assert pace.per_second(now + 10 * MEMORY) < 0.01


def test_a_change_of_rate_shows_within_minutes() -> None:
    pace = Pace(0.0)
    now = ends(pace, 10.0, 0.0, 10 * MEMORY)
    now = ends(pace, 1.0, now, 3 * MEMORY)
    assert 1.0 < pace.per_second(now) < 1.6


def test_one_quick_end_is_no_flood() -> None:
    pace = Pace(0.0)
    assert pace.per_second(0.0) == 0.0
    pace.ended(0.001, 0.001)
    assert pace.per_second(0.001) < 1.1


def test_how_long_a_run_takes_follows_the_last_ones_whatever_comes_between() -> None:
    pace = Pace(0.0)
    assert pace.run_seconds([]) is None
    assert pace.run_seconds([5.0]) is None, "none has ended"
    for n in range(100):
        pace.ended(float(n), 4.0)
    for n in range(100):
        pace.ended(100_000.0 + n, 0.5)
    assert pace.run_seconds([]) == pytest.approx(0.5, rel=0.1)
    assert pace.run_seconds([0.1, 0.2]) == pytest.approx(0.5, rel=0.1)
    assert pace.run_seconds([30.0, 60.0]) == 45.0, "what hangs counts"


async def test_a_worker_s_row_tells_what_it_finishes(database_url: str) -> None:
    async def quick() -> None:
        return

    jobs = Jobs(database_url)
    async with working(database_url, handlers(quick=quick), lease_duration=1.0):
        await jobs.finished(jobs.put_many(20, "quick"))

        def told() -> float:
            row = jobs.conn.execute("SELECT finished_per_second FROM jobq.worker").fetchone()
            assert row is not None
            return float(row["finished_per_second"])

        await until(lambda: told() > 0)
    jobs.close()
