"""A rate's bucket: never more starts in any period than its limit and burst allow, and no token is lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.limited import finish, held, limit, queued, review, start, tokens
from tests.store.support import Server, client, new_database, one, until

from jobq.db import Conn

Rate = tuple[int, float, int]


@dataclass
class Bucket:
    """What the database does, with a clock of the test's own."""

    limit: int
    period: float
    burst: int
    tokens: float = 0.0
    filled_at: float = 0.0

    def __post_init__(self) -> None:
        self.tokens = self.burst

    def fill(self, now: float) -> float:
        """Tokens at a time."""
        gained = max(0.0, now - self.filled_at) * 0.97 * self.limit / self.period
        self.tokens = min(self.burst + 0.02 * self.limit, self.tokens + gained)
        self.filled_at = now
        return self.tokens

    def start(self, now: float, wanted: int) -> int:
        """How many of so many jobs start."""
        started = max(0, min(wanted, int(self.fill(now))))
        self.tokens -= started
        return started


RATES = st.tuples(st.integers(1, 1000), st.floats(0.01, 1e6), st.integers(1, 100))
#: Claims: periods since the one before, jobs that wait then.
CLAIMS = st.lists(st.tuples(st.floats(0, 1.5), st.integers(0, 300)), max_size=60)


def _most_in_a_period(starts: list[tuple[float, int]], period: float) -> int:
    return max(
        (sum(many for when, many in starts if at <= when <= at + period) for at, _ in starts),
        default=0,
    )


@given(RATES, CLAIMS)
def test_no_period_has_more_starts_than_its_limit_and_its_burst_less_one(
    rate: Rate, claims: list[tuple[float, int]]
) -> None:
    allowed, period, burst = rate
    bucket, now, starts = Bucket(*rate), 0.0, []
    for pause, wanted in claims:
        now += pause * period
        starts.append((now, bucket.start(now, wanted)))
    assert _most_in_a_period(starts, period) <= allowed + burst - 1


@given(st.integers(1, 1000), st.floats(0.001, 0.02))
def test_a_backlog_that_is_asked_often_enough_uses_95_percent(allowed: int, step: float) -> None:
    bucket = Bucket(allowed, 1.0, 1)
    asks = int(20 / step)
    started = sum(bucket.start(at * step, 10**6) for at in range(1, asks + 1))
    assert started >= 0.95 * allowed * asks * step - 1


@pytest.fixture(scope="module")
def asked(server: Server, template: str) -> Iterator[Conn]:
    """A session that only calculates."""
    with new_database(server, template) as url, client(url) as conn:
        yield conn


@settings(max_examples=50)
@given(rate=RATES, before=st.floats(-100, 100), periods=st.floats(-5, 5))
def test_the_database_fills_a_bucket_as_the_model_does(
    asked: Conn, rate: Rate, before: float, periods: float
) -> None:
    model = Bucket(*rate)
    model.tokens = before
    seconds = round(periods * rate[1], 6)
    found = one(
        asked,
        "SELECT jobq.tokens_now(jsonb_populate_record(NULL::jobq.limiter, jsonb_build_object("
        "'rate_limit', %s::integer, 'rate_period', %s::double precision, 'rate_burst', %s::integer)),"
        " ROW('tenant:x', %s, 'epoch')::jobq.rate_bucket, 'epoch'::timestamptz + make_interval(secs => %s))",
        (*rate, before, seconds),
    )
    assert found[0] == pytest.approx(model.fill(seconds), rel=1e-9, abs=1e-3)


# --- with real statements and the real clock ------------------------------------------------------


def test_a_backlog_starts_in_no_period_more_than_the_rate_allows_and_nearly_as_many(
    conn: Conn,
) -> None:
    allowed, period, burst = 20, 0.2, 4
    limit(conn, "tenant", rate=(allowed, period, burst))
    queued(conn, 400, concurrency_key=None)
    began = monotonic()
    while monotonic() < began + 5 * period:
        finish(conn, *start(conn, free=7))
    rows = conn.execute(
        "SELECT extract(epoch FROM started_at)::float FROM jobq.job_archive ORDER BY 1"
    ).fetchall()
    starts = [(at, 1) for (at,) in rows]
    # A start is stamped a moment after its token was taken, and a machine may stand still in between: 20 ms of grace.
    assert _most_in_a_period(starts, period - 0.02) <= allowed + burst - 1
    took = starts[-1][0] - starts[0][0]
    assert len(starts) <= burst + 2 + 0.97 * allowed * took / period


def test_no_token_is_lost_however_often_the_bucket_is_asked(conn: Conn) -> None:
    """Each ask fills it: what it gains in between is far below one token, and adds up."""
    limit(conn, "tenant", rate=(100_000, 1.0, 50_000))
    queued(conn, 300, concurrency_key=None)
    conn.execute("UPDATE jobq.rate_bucket SET tokens = -1000000")
    (began,) = one(
        conn, "UPDATE jobq.rate_bucket SET filled_at = clock_timestamp() RETURNING filled_at"
    )
    for _ in range(100):
        assert start(conn) == []
    ended, left = one(conn, "SELECT filled_at, tokens FROM jobq.rate_bucket")
    gained = 0.97 * 100_000 * (ended - began).total_seconds()
    assert left == pytest.approx(-1_000_000 + gained, abs=0.01)


def test_jobs_of_one_claim_take_a_token_each(conn: Conn) -> None:
    limit(conn, "tenant", rate=(1, 1e6, 50))
    queued(conn, 30, concurrency_key=None)
    assert len(start(conn)) == 30
    assert tokens(conn, "tenant:acme") == pytest.approx(20, abs=0.01)


@pytest.mark.parametrize("left", [0, 5])
def test_a_clock_that_was_set_back_costs_no_more_than_the_time_it_lost(
    conn: Conn, left: int
) -> None:
    limit(conn, "tenant", rate=(1, 3600.0, 5))
    queued(conn, 50, concurrency_key=None)
    conn.execute(
        "UPDATE jobq.rate_bucket SET tokens = %s, filled_at = now() + interval '1 year'", (left,)
    )
    assert len(start(conn)) == left
    stamp = "SELECT filled_at <= clock_timestamp(), tokens FROM jobq.rate_bucket"
    assert one(conn, stamp) == (True, pytest.approx(0, abs=0.01)), "it fills from now on"


def test_jobs_held_for_a_rate_come_back_after_a_clock_was_set_back(conn: Conn) -> None:
    limit(conn, "kind", rate=(4, 1.0, 1))
    jobs = queued(conn, 2, concurrency_key=None)
    assert len(start(conn)) == 1
    assert set(held(conn)) == set(jobs[1:])
    conn.execute("UPDATE jobq.rate_bucket SET filled_at = now() + interval '1 year'")
    until(lambda: bool(review(conn)) and not held(conn), "a token came back")
    assert len(start(conn)) == 1
