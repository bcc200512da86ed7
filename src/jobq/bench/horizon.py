"""A pinned snapshot: somebody forgets a transaction, and nothing that was claimed since can be vacuumed.

Two queues on one server take turns under full load, one with the snapshot and one without. While one works, the
other's processes are frozen. So each window has its reference right beside it: a neighbour's burst hits both, and what
remains is what the snapshot costs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import psycopg

from jobq.bench.board import Board
from jobq.bench.children import Child
from jobq.bench.report import Budget, Metric, Sample
from jobq.bench.server import Database
from jobq.bench.stage import Benchmark, Stage

CONCURRENCY = 200
#: Seconds under load before the snapshot is taken, and after a thaw before anything is counted.
WARM_UP, THAW = 2.0, 0.5
#: Windows at the end that are judged.
LAST = 8


@dataclass
class Queue:
    """A database under steady load: a worker and a producer that keeps a backlog."""

    database: Database
    board: Board
    children: Sequence[Child]

    def freeze(self) -> None:
        """Stop its processes where they are."""
        for child in self.children:
            child.freeze()

    def rate(self, stage: Stage, seconds: float) -> float:
        """Jobs a second in a window of its own."""
        for child in self.children:
            child.thaw()
        self._pause(stage, THAW)
        began, before = time.monotonic(), self.board.total
        self._pause(stage, seconds)
        found = (self.board.total - before) / (time.monotonic() - began)
        self.freeze()
        return found

    def _pause(self, stage: Stage, seconds: float) -> None:
        ends = time.monotonic() + seconds
        stage.wait(lambda: time.monotonic() >= ends, self.children, timeout=seconds + 10, tick=0.01)


def measure(stage: Stage) -> Mapping[str, Sequence[Sample]]:
    """Both queues in turns, until the pinned one was under load for as long as it should."""
    with ExitStack() as stack:
        pinned, free = (stack.enter_context(_loaded(stage)) for _ in range(2))
        time.sleep(WARM_UP)
        pinned.freeze()
        free.freeze()
        stack.enter_context(_snapshot(pinned.database))
        window = stage.sizes.horizon_window
        count = round(stage.sizes.horizon_seconds / (window + THAW))
        samples = []
        for index in range(count):
            stage.say(index, count, "windows with and without a pinned snapshot")
            rates = stage.both(
                lambda: pinned.rate(stage, window), lambda: free.rate(stage, window), index
            )
            samples.append(Sample(*rates))
    return {"pinned_horizon": samples[-LAST:], "pinned_horizon_first": samples[:LAST]}


@contextmanager
def _loaded(stage: Stage) -> Iterator[Queue]:
    path = stage.path("board")
    board = Board.create(path)
    with stage.server.database() as database:
        worker = stage.worker(database, path, concurrency=CONCURRENCY)
        producer = stage.child("producer", url=database.url, board=str(path), jobs=0)
        with stage.ready(worker, producer) as children:
            yield Queue(database, board, children)


@contextmanager
def _snapshot(database: Database) -> Iterator[None]:
    """A forgotten transaction. It pins the rows of its own database only."""
    with psycopg.connect(database.url) as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        other.execute("SELECT count(*) FROM jobq.job")
        yield
        other.rollback()


_REFERENCE = "a queue without the snapshot, in turns"

BENCHMARKS = (
    Benchmark(
        f"no-op jobs under steady load, concurrency {CONCURRENCY}, a REPEATABLE READ snapshot held for 60 s of load",
        (
            Metric("pinned_horizon", "jobs/s", _REFERENCE, Budget("ratio", ">=", 0.9)),
            Metric("pinned_horizon_first", "jobs/s", _REFERENCE),
        ),
        measure,
        most_runs=1,  # of many windows
    ),
)
