"""Draining: no-op jobs enqueued beforehand, from the first start to the last committed completion."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jobq.bench.board import Board, now
from jobq.bench.report import Budget, Metric, Sample
from jobq.bench.server import Database
from jobq.bench.stage import Benchmark, Stage
from jobq.model import NewJob

#: Seconds after which a drain has failed.
TIMEOUT = 300.0


def ours(stage: Stage, database: Database, workers: int, concurrency: int) -> float:
    """Jobs a second through worker processes."""
    jobs = stage.sizes.drain_jobs
    path = stage.path("board")
    board = Board.create(path)
    database.fill([NewJob("noop")] * jobs)
    children = [
        stage.worker(database, path, place, concurrency=concurrency) for place in range(workers)
    ]

    def progress() -> tuple[float, float, str]:
        return board.total, jobs, f"jobs through {workers} x {concurrency} slots"

    with stage.ready(*children):
        stage.wait(lambda: board.total >= jobs, children, timeout=TIMEOUT, progress=progress)
        # Only now is the database asked: the question is not part of what is measured.
        stage.wait(database.drained, children, timeout=TIMEOUT)
        ended = now()
    return jobs / (ended - board.begin) * 1e9


def raw(stage: Stage, database: Database, loops: int) -> float:
    """Jobs a second through raw SQL loops."""
    jobs = stage.sizes.drain_jobs
    database.fill([NewJob("noop")] * jobs)
    stage.say(0, 1, f"jobs through {loops} raw loop(s)")
    with stage.ready(
        *(stage.child("raw_loop", url=database.url) for _ in range(loops))
    ) as children:
        answers = [child.read(TIMEOUT) for child in children]
    began = min(answer["first"] for answer in answers if answer["jobs"])
    ended = max(answer["last"] for answer in answers)
    return float(jobs / (ended - began) * 1e9)


def drain(name: str, workers: int, concurrency: int) -> Callable[[Stage], Mapping[str, Sample]]:
    """The benchmark of so many processes with so many slots each."""

    def measure(stage: Stage) -> Mapping[str, Sample]:
        def through_workers() -> float:
            with stage.server.database() as database:
                return ours(stage, database, workers, concurrency)

        def through_loops() -> float:
            with stage.server.database() as database:
                return raw(stage, database, workers)

        return {name: Sample(*stage.both(through_workers, through_loops))}

    return measure


def _benchmark(name: str, workers: int, concurrency: int, budget: Budget | None) -> Benchmark:
    loops = "raw SQL loop" if workers == 1 else f"{workers} raw SQL loops"
    metric = Metric(name, "jobs/s", f"{loops}: claim 100, finish 100, two connections", budget)
    return Benchmark(
        f"no-op jobs, {workers} worker process(es) with concurrency {concurrency}",
        (metric,),
        drain(name, workers, concurrency),
    )


_BUDGET = Budget("ratio", ">=", 0.65)

BENCHMARKS = (
    _benchmark("drain_1_process", 1, 200, _BUDGET),
    _benchmark("drain_2_processes", 2, 200, _BUDGET),
    _benchmark("drain_concurrency_20", 1, 20, None),
)
