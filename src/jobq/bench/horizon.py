"""A pinned snapshot: somebody forgets a transaction, and nothing that was claimed since can be vacuumed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import psycopg

from jobq.bench.board import Board
from jobq.bench.children import Child
from jobq.bench.report import Budget, Metric, Sample
from jobq.bench.stage import Benchmark, Stage

CONCURRENCY = 200
#: Seconds under load before the snapshot is taken.
WARM_UP = 2.0


def measure(stage: Stage) -> Mapping[str, Sample]:
    """Full load by a producer that keeps a backlog; the rate at the end beside that at the beginning."""
    path = stage.path("board")
    board = Board.create(path)
    with stage.server.database() as database:
        worker = stage.worker(database, path, concurrency=CONCURRENCY)
        producer = stage.child("producer", url=database.url, board=str(path), jobs=0)
        with stage.ready(worker, producer) as children:
            time.sleep(WARM_UP)
            with psycopg.connect(database.url) as other:
                other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                other.execute("SELECT count(*) FROM jobq.job")
                first, last = _rates(stage, board, children)
                other.rollback()
    return {"pinned_horizon": Sample(last, first)}


def _rates(stage: Stage, board: Board, children: Sequence[Child]) -> tuple[float, float]:
    """Jobs a second in the first and in the last window."""
    length, window = stage.sizes.horizon_seconds, stage.sizes.horizon_window
    began = time.monotonic()

    def progress() -> tuple[float, float, str]:
        return time.monotonic() - began, length, "seconds under a pinned snapshot"

    def mark(until: float) -> tuple[float, int]:
        stage.wait(
            lambda: time.monotonic() >= began + until,
            children,
            timeout=length + 10,
            tick=0.01,
            progress=progress,
        )
        return time.monotonic(), board.total

    (t0, n0), (t1, n1), (t2, n2), (t3, n3) = map(mark, (0.0, window, length - window, length))
    return (n1 - n0) / (t1 - t0), (n3 - n2) / (t3 - t2)


BENCHMARKS = (
    Benchmark(
        f"no-op jobs under steady load, concurrency {CONCURRENCY}, a REPEATABLE READ snapshot held for 60 s",
        (
            Metric(
                "pinned_horizon",
                "jobs/s",
                "in the first 10 s (value: in the last 10 s)",
                Budget("ratio", ">=", 0.9),
            ),
        ),
        measure,
        most_runs=1,
    ),
)
