"""Idle pickup: from just before the call that enqueues, in one process, to the handler's start in another."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from jobq.bench.board import Board
from jobq.bench.children import Child
from jobq.bench.producer import WARM_UP
from jobq.bench.report import Budget, Metric, Sample, percentile
from jobq.bench.server import Database
from jobq.bench.stage import Benchmark, Stage

CONCURRENCY = 10
#: Seconds.
SETTLE, TIMEOUT = 1.0, 60.0


def waits(
    stage: Stage, database: Database, worker: Child, path: Path, jobs: int
) -> tuple[list[float], list[float]]:
    """Milliseconds that jobs waited, 20 to 100 ms apart, the worker idle in between, and that the calls took."""
    board, total = Board(path), jobs + WARM_UP

    def started() -> int:
        return sum(map(bool, board.started))

    def progress() -> tuple[float, float, str]:
        return started(), total, f"jobs to {worker.name}"

    with (
        stage.ready(worker),
        stage.child("producer", url=database.url, board=str(path), jobs=total) as producer,
    ):
        producer.read()
        both = [worker, producer]
        stage.wait(lambda: started() == WARM_UP, both, timeout=TIMEOUT, tick=0.05)
        time.sleep(SETTLE)
        producer.send()
        stage.wait(lambda: started() == total, both, timeout=TIMEOUT, tick=0.05, progress=progress)
        calls = [seconds * 1000 for seconds in producer.read()["calls"]]
    return board.waits()[WARM_UP:], calls


def measure(stage: Stage) -> Mapping[str, Sample]:
    """A worker that is woken, and one that polls."""

    def woken() -> tuple[list[float], list[float]]:
        path = stage.path("board")
        Board.create(path, stage.sizes.pickups + WARM_UP)
        with stage.server.database() as database:
            worker = stage.worker(database, path, concurrency=CONCURRENCY)
            return waits(stage, database, worker, path, stage.sizes.pickups)

    def polled() -> list[float]:
        path = stage.path("board")
        Board.create(path, stage.sizes.polled_pickups + WARM_UP)
        with stage.server.database() as database:
            poller = stage.child("poller", url=database.url, board=str(path))
            return waits(stage, database, poller, path, stage.sizes.polled_pickups)[0]

    (ours, calls), reference = stage.both(woken, polled)
    shares = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    return {
        **{
            f"idle_pickup_{name}": Sample(percentile(ours, s), percentile(reference, s))
            for name, s in shares
        },
        "idle_pickup_call_p50": Sample(percentile(calls, 0.5)),
    }


_REFERENCE = "the same claim, polling every second"

BENCHMARKS = (
    Benchmark(
        f"an idle worker process, concurrency {CONCURRENCY}; jobs 20 to 100 ms apart from another process",
        (
            Metric("idle_pickup_p50", "ms", _REFERENCE, Budget("value", "<=", 2.0)),
            Metric("idle_pickup_p99", "ms", _REFERENCE, Budget("value", "<=", 6.0)),
            Metric("idle_pickup_max", "ms", _REFERENCE),
            Metric(
                "idle_pickup_call_p50", "ms"
            ),  # of which the enqueue call itself, with its commit
        ),
        measure,
    ),
)
