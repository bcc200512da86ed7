"""Rates: how much of a limit is used while jobs wait for it, and that no period ever sees more."""

from __future__ import annotations

import time
from collections.abc import Mapping

from jobq.bench.board import Board
from jobq.bench.history import most_within, runs_by_scope
from jobq.bench.report import Budget, Metric, Sample
from jobq.bench.stage import Benchmark, Stage
from jobq.model import NewJob

WORKERS = 2
#: Jobs a period, by scope; each job falls under one of them. No burst.
LIMITS = {"tenant:rated": 200, "kind:nap": 50, "key:rated": 20}
#: Seconds, and the same in microseconds.
PERIOD, MICROSECONDS = 1.0, 1_000_000
#: Seconds until the workers have to have found something.
TIMEOUT = 60.0


def measure(stage: Stage) -> Mapping[str, Sample]:
    """Two workers with more jobs than the limits let start; the worst of all limits counts."""
    path, seconds = stage.path("board"), stage.sizes.rate_seconds
    board = Board.create(path)
    with stage.server.database() as database:
        for scope, limit in LIMITS.items():
            database.limit(*scope.split(":"), rate_limit=limit, rate_period=PERIOD, rate_burst=None)
        database.fill(_jobs(seconds))
        workers = [stage.worker(database, path, place) for place in range(WORKERS)]
        with stage.ready(*workers):
            stage.wait(lambda: board.begin > 0, workers, timeout=TIMEOUT)
            ends = board.begin / 1e9 + seconds
            stage.wait(
                lambda: time.monotonic() >= ends,
                workers,
                timeout=seconds + TIMEOUT,
                progress=lambda: (seconds - (ends - time.monotonic()), seconds, "seconds of rates"),
                tick=0.01,
            )
        return _judged(
            {scope: [run.began for run in runs] for scope, runs in runs_by_scope(database).items()},
            seconds,
        )


def _jobs(seconds: float) -> list[NewJob]:
    """Twice as many of each as the limit lets start, in turns."""
    kinds = {
        "tenant:rated": NewJob("noop", tenant="rated"),
        "kind:nap": NewJob("nap", '{"seconds":0}'),
        "key:rated": NewJob("noop", concurrency_key="rated"),
    }
    return [
        kinds[scope]
        for scope, limit in LIMITS.items()
        for _ in range(round(2 * limit * (seconds + 1) / PERIOD))
    ]


def _judged(begins: Mapping[str, list[int]], seconds: float) -> dict[str, Sample]:
    """The least share of a limit that was used until the time was over, and the most of one within a period."""
    used, most = [], []
    for scope, limit in LIMITS.items():
        starts = begins[scope]
        until = min(starts) + seconds * MICROSECONDS
        used.append(sum(start < until for start in starts) / (limit * seconds / PERIOD))
        most.append(most_within(starts, round(PERIOD * MICROSECONDS)) / limit)
    return {"rate_used": Sample(min(used)), "rate_most": Sample(max(most))}


BENCHMARKS = (
    Benchmark(
        "jobs of a tenant, a kind and a key with a rate each, twice as many as may start, two workers, for 10 s",
        (
            Metric("rate_used", "of the limit", None, Budget("value", ">=", 0.95)),
            Metric("rate_most", "of the limit", None, Budget("value", "<=", 1)),
        ),
        measure,
        most_runs=1,
    ),
)
