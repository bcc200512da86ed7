"""Weights: what is set, what counts, and what a worker learns of changes."""

from __future__ import annotations

import psycopg
import pytest

from jobq.engine.pool import QueueSpec, make_pools
from jobq.engine.weights import LEAST, MOST, WeightRow, Weights
from jobq.sql import Statements
from jobq.store import LimiterStore, UpkeepStore, run_sync


def test_a_jobs_weight_is_its_tenants_times_its_queues_times_its_kinds() -> None:
    weights = Weights()
    assert weights.of("acme", "mail", "send") == 1.0
    weights.learn([WeightRow("tenant", "acme", 3.0, {"mail": 5.0})])
    assert weights.of("acme", "other", "send") == 3.0
    assert weights.of("acme", "mail", "send") == 5.0, (
        "one for this queue comes before the one for all"
    )
    weights.learn([WeightRow("queue", "mail", 2.0), WeightRow("kind", "send", 0.5)])
    assert weights.of("acme", "mail", "send") == 5.0
    assert weights.of("acme", "other", "send") == 1.5
    assert weights.of("beta", "mail", "else") == 2.0


def test_a_row_says_all_that_is_set_for_its_name() -> None:
    weights = Weights()
    weights.learn([WeightRow("tenant", "acme", 3.0, {"mail": 5.0, "web": 7.0})])
    weights.learn([WeightRow("tenant", "acme", None, {"web": 8.0})])
    assert weights.of("acme", "mail", "send") == 1.0
    assert weights.of("acme", "web", "send") == 8.0
    weights.learn([WeightRow("tenant", "acme", None)])
    assert weights.of("acme", "web", "send") == 1.0


def test_what_is_no_weight_is_ignored_and_no_product_leaves_the_bounds() -> None:
    weights = Weights()
    odd = {"a": -1, "b": 0, "c": "3", "d": None, "e": True, "f": [2], "g": 10**400, "h": 2}
    weights.learn([WeightRow("tenant", "acme", None, odd), WeightRow("elsewhere", "acme", 9.0)])
    assert [weights.of("acme", queue, "send") for queue in "abcdefgh"] == [1.0] * 6 + [MOST, 2.0]
    weights.learn([WeightRow("queue", "g", 1e6), WeightRow("kind", "least", 1e-300)])
    assert weights.of("acme", "g", "send") == MOST
    assert weights.of("beta", "x", "least") == LEAST


def test_ten_thousand_tenants_are_learned_at_once() -> None:
    weights = Weights()
    weights.learn(WeightRow("tenant", f"t{n}", 1.0 + n, {"q": 2.0}) for n in range(10_000))
    assert weights.of("t9999", "x", "k") == 10_000.0


def test_a_run_keeps_the_weight_it_was_started_with_and_the_next_has_the_new_one() -> None:
    weights = Weights()
    mail, shared = make_pools([QueueSpec("mail", 2), QueueSpec("web")], 4, 0, weights)[::-1]
    weights.learn([WeightRow("tenant", "acme", 4.0, {"web": 2.0})])
    runs = [
        (pool, pool.started("acme", queue, "send"))
        for pool, queue in ((mail, "mail"), (shared, "web"))
    ]
    weights.learn([WeightRow("tenant", "acme", 1.0)])
    for pool, charge in runs:
        pool.ended(charge, "send", 8.0)
    tags = [pool.clock.tenant("acme").finish for pool in (mail, shared)]
    assert tags == pytest.approx([2.0, 4.0]), (
        "pools share the weights, and each has a clock of its own"
    )
    assert shared.started("acme", "web", "send").weight == 1.0


@pytest.fixture
def upkeep() -> UpkeepStore:
    """Its statements."""
    return UpkeepStore(Statements("jobq"))


def test_a_worker_loads_what_was_set_after_the_version_it_knows(
    database_url: str, upkeep: UpkeepStore
) -> None:
    limits = LimiterStore(Statements("jobq"))
    with psycopg.connect(database_url, autocommit=True) as conn:
        version, rows = run_sync(conn, upkeep.weights(-1))
        assert rows == []
        run_sync(conn, limits.set_limiter("tenant", "acme", {"weight": 3.0}))
        run_sync(conn, limits.set_limiter("key", "serial", {"max_running": 2}))
        run_sync(conn, limits.set_limiter("tenant", "beta", {"queue_weights": {"mail": 2}}))
        version, rows = run_sync(conn, upkeep.weights(version))
        assert sorted(rows) == [("tenant", "acme", 3.0, {}), ("tenant", "beta", None, {"mail": 2})]
        assert run_sync(conn, upkeep.weights(version)) == (version, [])
        run_sync(conn, limits.set_limiter("tenant", "acme", {"weight": None}))
        assert run_sync(conn, upkeep.weights(version)) == (
            version + 1,
            [("tenant", "acme", None, {})],
        )


@pytest.mark.parametrize(
    "text", ["[1]", '"x"', "null", f'{{"mail": {"9" * 5000}}}', '{"mail": 1e400}']
)
def test_weights_that_only_sql_can_hold_set_none_and_stop_nobody(
    database_url: str, upkeep: UpkeepStore, text: str
) -> None:
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute(
            "INSERT INTO jobq.limiter (scope, name, weight, queue_weights, version) VALUES ('tenant', 'acme', 2, %s, 1)",
            (text,),
        )
        _, rows = run_sync(conn, upkeep.weights(0))
    weights = Weights()
    weights.learn(WeightRow(*row) for row in rows)
    assert weights.of("acme", "web", "send") == 2.0
    assert weights.of("acme", "mail", "send") in (2.0, MOST)
