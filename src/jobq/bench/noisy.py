"""Noisy neighbour: a tenant floods the queue, and five quiet tenants want their few jobs run all the same.

Fair is the worker as it is. FIFO is the same worker with all jobs in one lane, which it runs in
order of their due time, as a queue without tenants does. Both have eight slots in all.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from jobq.bench import picture
from jobq.bench.board import Board
from jobq.bench.children import BenchmarkFailed, Child
from jobq.bench.picture import Wait
from jobq.bench.report import Budget, Metric, Sample, percentile
from jobq.bench.stage import Benchmark, Stage
from jobq.model import NewJob

SLOTS = 8
#: Settings of the worker: the same total of slots.
FAIR: dict[str, Any] = {"concurrency": SLOTS - 1, "express_slots": 1}
FIFO: dict[str, Any] = {"concurrency": SLOTS, "express_slots": 0}

QUIET = tuple(f"quiet-{n}" for n in range(1, 6))
NOISY = "noisy"
#: Seconds between two jobs of the quiet tenants, taken together, and that a job takes.
GAP, WORK = 0.1, 0.005
#: Jobs of quiet tenants, at most.
MOST_QUIET = 1_000
#: Seconds. The worker has begun to listen before the quiet tenants come; looking seldom leaves the cores to
#: those that are measured.
SETTLE, TIMEOUT, TICK = 0.3, 120.0, 0.01
SHARES = (("p50", 0.5), ("p95", 0.95), ("max", 1.0))


@dataclass(frozen=True)
class Flood:
    """What the noisy tenant enqueues, and for how long the quiet tenants are watched.

    Args:
        jobs: of the noisy tenant, all there from the start.
        seconds: that each takes.
        watch: seconds; None for as long as the flood lasts.
    """

    jobs: int
    seconds: float
    watch: float | None = None


@dataclass(frozen=True)
class Outcome:
    """How it went.

    Args:
        waits: of the quiet tenants' jobs, in order.
        seconds: from the start of the flood's first job to that of its last.
    """

    waits: list[Wait]
    seconds: float

    def percentiles(self) -> Iterator[tuple[str, float]]:
        """Names and values in milliseconds."""
        waits = [wait.milliseconds for wait in self.waits]
        return ((name, percentile(waits, share)) for name, share in SHARES)


def beside(stage: Stage, flood: Flood, *, fair: bool) -> Outcome:
    """Run the flood and the quiet tenants' jobs through one worker."""
    noisy, quiet = (NOISY, QUIET) if fair else ("default", ["default"])
    path = stage.path("board")
    board = Board.create(path, MOST_QUIET)
    with stage.server.database() as database:
        payload = orjson.dumps({"seconds": flood.seconds}).decode()
        database.fill([NewJob("nap", payload, tenant=noisy)] * flood.jobs)
        worker = stage.worker(database, path, **(FAIR if fair else FIFO))
        neighbours = stage.child(
            "neighbours", url=database.url, board=str(path), tenants=quiet, gap=GAP, seconds=WORK
        )
        with neighbours, stage.ready(worker):
            neighbours.read()
            both = [worker, neighbours]
            stage.wait(lambda: board.begin > 0, both, timeout=TIMEOUT)
            time.sleep(SETTLE)
            neighbours.send()
            seconds = _watch(stage, flood, board, both, "fair" if fair else "FIFO")
            neighbours.stop()
            stage.wait(lambda: _all_started(board), [worker], timeout=TIMEOUT, tick=TICK)
            worker.kill()  # jobs of ten seconds need not end
    return Outcome(_waits(board), seconds)


def _watch(stage: Stage, flood: Flood, board: Board, children: Sequence[Child], way: str) -> float:
    """Wait until the flood is over, or the time; returns seconds since its first job started."""
    began = board.begin / 1e9

    def progress() -> tuple[float, float, str]:
        if flood.watch is None:
            return _flooded(board), flood.jobs, f"{way}: jobs of the flood"
        return time.monotonic() - began, flood.watch, f"{way}: seconds beside slow jobs"

    def over() -> bool:
        done, total, _ = progress()
        return done >= total and any(board.sent)

    stage.wait(over, children, timeout=TIMEOUT, progress=progress, tick=TICK)
    return time.monotonic() - began


def _flooded(board: Board) -> int:
    """Jobs of the flood that have started: all that have, but the quiet tenants'."""
    return board.total - sum(board.runs)


def _all_started(board: Board) -> bool:
    return all(started or not sent for sent, started in zip(board.sent, board.started, strict=True))


def _waits(board: Board) -> list[Wait]:
    pairs = [pair for pair in zip(board.sent, board.started, strict=True) if all(pair)]
    if not pairs:
        raise BenchmarkFailed("no job of a quiet tenant was run")
    # A job that started before its enqueue call came back has not waited at all.
    return [
        Wait((sent - board.begin) / 1e9, max(0.0, (started - sent) / 1e6))
        for sent, started in pairs
    ]


def picture_of(stage: Stage, name: str, flood: Flood, ours: Outcome, reference: Outcome) -> None:
    """Draw how both ways went, where pictures are wanted."""
    if stage.pictures is not None:
        title = f"Quiet tenants beside a flood of jobs of {_duration(flood.seconds)}, {SLOTS} slots"
        path = stage.pictures / f"{name}.png"
        stage.tell(picture.draw(path, title, {"FIFO": reference.waits, "fair": ours.waits}))


def samples(name: str, windows: Sequence[tuple[Outcome, Outcome]]) -> dict[str, list[Sample]]:
    """Both ways' waits by metric name, a sample for each window."""
    found: dict[str, list[Sample]] = defaultdict(list)
    for ours, reference in windows:
        for (share, fair), (_, fifo) in zip(
            ours.percentiles(), reference.percentiles(), strict=True
        ):
            found[f"{name}_{share}"].append(Sample(fair, fifo))
            found[f"fifo_{name}_{share}"].append(Sample(fifo))
    return found


def short_jobs(stage: Stage) -> Mapping[str, Sequence[Sample]]:
    """A flood of jobs as short as the quiet tenants' own, until it is over: in turns, fair and FIFO."""
    flood = Flood(stage.sizes.flood_jobs, WORK)
    windows = stage.windows(
        stage.sizes.flood_windows,
        lambda: beside(stage, flood, fair=True),
        lambda: beside(stage, flood, fair=False),
    )
    picture_of(stage, "noisy_neighbour", flood, *windows[-1])
    seconds = [Sample(ours.seconds, reference.seconds) for ours, reference in windows]
    return {**samples("noisy_neighbour", windows), "noisy_neighbour_flood": seconds}


def long_jobs(stage: Stage) -> Mapping[str, Sequence[Sample]]:
    """A flood of jobs that keep all slots for long. FIFO gets two of them a slot, or the wait would have no end."""
    seconds = stage.sizes.slow_seconds
    fair, fifo = (Flood(jobs, seconds, 2 * seconds) for jobs in (100 * SLOTS, 2 * SLOTS))
    both = stage.both(
        lambda: beside(stage, fair, fair=True), lambda: beside(stage, fifo, fair=False)
    )
    picture_of(stage, "noisy_neighbour_slow", fair, *both)
    return samples("noisy_neighbour_slow", [both])


def _duration(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"


def _metrics(name: str, limits: Mapping[str, float]) -> tuple[Metric, ...]:
    ours = (
        Metric(
            f"{name}_{share}", "ms", "FIFO, the same slots",
            Budget("value", "<=", limits[share]) if share in limits else None,
        )
        for share, _ in SHARES
    )  # fmt: skip
    return (*ours, *(Metric(f"fifo_{name}_{share}", "ms") for share, _ in SHARES))


BENCHMARKS = (
    Benchmark(
        f"a flood of 10,000 jobs of 5 ms, five quiet tenants with a job each 100 ms between them, {SLOTS} slots",
        (
            *_metrics("noisy_neighbour", {"p50": 2.5, "p95": 5, "max": 15}),
            Metric(
                "noisy_neighbour_flood", "s", "FIFO, the same slots", Budget("ratio", "<=", 1.05)
            ),
        ),
        short_jobs,
        most_runs=1,  # of several windows
    ),
    Benchmark(
        f"the same beside jobs of 10 s, watched for 20 s, {SLOTS} slots",
        _metrics("noisy_neighbour_slow", {"p95": 10}),
        long_jobs,
        most_runs=1,
    ),
)
