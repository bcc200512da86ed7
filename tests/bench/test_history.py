"""The checker of caps and rates: what it counts, by hand-made histories and by plain counting."""

import psycopg
from hypothesis import given
from hypothesis import strategies as st

from jobq.bench.history import Run, above, most_within, runs_by_scope, violations
from jobq.bench.server import Database
from jobq.model import NewJob


def test_runs_that_touch_do_not_overlap() -> None:
    assert above([Run(0, 10), Run(10, 20), Run(20, 30)], 1) == 0


def test_each_run_that_began_above_the_cap_counts() -> None:
    runs = [Run(0, 10), Run(1, 4), Run(2, 3), Run(5, 6)]
    assert above(runs, 1) == 3
    assert above(runs, 2) == 1
    assert above(runs, 3) == 0


def test_violations_are_those_of_all_scopes_and_a_scope_without_runs_has_none() -> None:
    runs = {
        "tenant:a": [Run(0, 9), Run(1, 9)],
        "key:k": [Run(0, 9), Run(1, 9)],
        "kind:free": [Run(0, 9)] * 5,
    }
    assert violations(runs, {"tenant:a": 1, "key:k": 2, "queue:q": 1}) == 1


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), max_size=15), st.integers(1, 4))
def test_it_agrees_with_counting_at_every_start(spans: list[tuple[int, int]], cap: int) -> None:
    runs = [Run(began, began + length) for began, length in spans]
    busiest = max((sum(r.began <= t < r.ended for r in runs) for t in range(41)), default=0)
    assert (above(runs, cap) > 0) == (busiest > cap)


@given(st.lists(st.integers(0, 60), max_size=20), st.integers(1, 20))
def test_most_within_agrees_with_sliding_a_window(begins: list[int], period: int) -> None:
    slid = max(sum(t <= b < t + period for b in begins) for t in range(-20, 62))
    assert most_within(begins, period) == slid


def test_the_history_of_a_database_has_earlier_runs_as_well(database_url: str) -> None:
    conn = psycopg.connect(database_url, autocommit=True)
    with conn:
        database = Database(database_url, conn)
        database.fill([NewJob("noop", tenant="a", concurrency_key="k"), NewJob("noop", tenant="a")])
        conn.execute(
            """WITH gone AS (DELETE FROM jobq.job RETURNING id, kind, queue, tenant, priority, created_at, run_at, concurrency_key)
               INSERT INTO jobq.job_archive_done
                      (id, class, status, kind, queue, tenant, priority, attempts, created_at, run_at, concurrency_key,
                       started_at, finished_at, history)
               SELECT id, 'done', 'DONE', kind, queue, tenant, priority, 2, created_at, run_at, concurrency_key,
                      now(), now() + interval '1 s',
                      jobq.add_attempt(NULL, 1, now() - interval '1 h', 'w', 'lease_lost', 'lease expired')
               FROM gone"""
        )
        found = runs_by_scope(database)
    assert {scope: len(runs) for scope, runs in found.items()} == {
        "tenant:a": 4, "queue:default": 4, "kind:noop": 4, "key:k": 2,
    }  # fmt: skip
    earlier, last = sorted(found["key:k"])
    assert last.ended - last.began == 1_000_000
    assert earlier.ended - earlier.began >= 3_600_000_000
