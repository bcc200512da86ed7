"""Draining: no-op jobs enqueued beforehand, from the first start to the last committed completion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


def compare(
    stage: Stage, workers: int, concurrency: int, loops: Sequence[int]
) -> tuple[float, list[float]]:
    """Jobs a second through worker processes, and through so many raw loops each."""

    def through_workers() -> float:
        with stage.server.database() as database:
            return ours(stage, database, workers, concurrency)

    def through_loops() -> list[float]:
        rates = []
        for count in loops:
            with stage.server.database() as database:
                rates.append(raw(stage, database, count))
        return rates

    return stage.both(through_workers, through_loops)


def one_process(stage: Stage) -> Mapping[str, Sample]:
    """One worker process, 200 slots."""
    rate, (loop,) = compare(stage, 1, 200, [1])
    return {"drain_1_process": Sample(rate, loop)}


def two_processes(stage: Stage) -> Mapping[str, Sample]:
    """Two worker processes, 200 slots each, beside the one loop and beside two."""
    rate, (loop, two) = compare(stage, 2, 200, [1, 2])
    return {
        "drain_2_processes": Sample(rate, loop),
        "drain_2_processes_2_loops": Sample(rate, two),
    }


def few_slots(stage: Stage) -> Mapping[str, Sample]:
    """One worker process with as many slots as it has by default."""
    rate, (loop,) = compare(stage, 1, 20, [1])
    return {"drain_concurrency_20": Sample(rate, loop)}


_LOOP = "raw SQL loop: claim 100, finish 100, two connections"
_BUDGET = Budget("ratio", ">=", 0.65)

BENCHMARKS = (
    Benchmark(
        "no-op jobs through a worker process, concurrency 200",
        (Metric("drain_1_process", "jobs/s", _LOOP, _BUDGET),),
        one_process,
    ),
    Benchmark(
        "no-op jobs through two worker processes, concurrency 200 each",
        (
            Metric("drain_2_processes", "jobs/s", _LOOP, _BUDGET),
            Metric("drain_2_processes_2_loops", "jobs/s", f"two processes of the {_LOOP}"),
        ),
        two_processes,
    ),
    Benchmark(
        "no-op jobs through a worker process, concurrency 20",
        (Metric("drain_concurrency_20", "jobs/s", _LOOP),),
        few_slots,
    ),
)
