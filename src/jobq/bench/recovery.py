"""Crash recovery: workers are killed one after the other, and no job may be lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import orjson

from jobq.bench.board import PLACES, Board
from jobq.bench.children import Child
from jobq.bench.report import Budget, Metric, Sample
from jobq.bench.server import Database
from jobq.bench.stage import Benchmark, Stage
from jobq.model import NewJob

WORKERS = 4
#: Settings of the workers: leases that end soon, looked for often.
SETTINGS: dict[str, Any] = {"concurrency": 1, "lease_duration": 2, "reap_interval": 0.5}
#: Seconds.
WORK, TIMEOUT = 0.02, 120.0


@dataclass
class Fleet:
    """Workers that can be killed and replaced, the oldest first."""

    stage: Stage
    database: Database
    path: str
    stack: ExitStack
    settings: Mapping[str, Any]
    workers: list[tuple[int, Child]] = field(default_factory=list)
    started: int = 0

    def start(self) -> None:
        """Start one more; it need not wait for the others."""
        child = self.stage.worker(self.database, self.path, self.started, **self.settings)
        self.workers.append((self.started, self.stack.enter_context(child)))
        self.started += 1
        child.send()

    def at_work(self, board: Board) -> bool:
        """Whether the oldest has started a job."""
        return board.counts[self.workers[0][0]] > 0

    def replace_oldest(self) -> None:
        """Kill the oldest by SIGKILL and start another."""
        self.workers.pop(0)[1].kill()
        self.start()


def measure(stage: Stage) -> Mapping[str, Sample]:
    """All jobs are enqueued, then a worker is killed every second, and at once replaced, until all are done."""
    jobs, path = stage.sizes.crash_jobs, stage.path("board")
    board = Board.create(path, jobs)
    with stage.server.database() as database:
        # Attempts enough: whether a job is lost is asked, not how often its worker may die.
        database.fill([NewJob("work", _payload(i), max_attempts=100) for i in range(jobs)])
        with ExitStack() as stack:
            fleet = Fleet(stage, database, str(path), stack, SETTINGS)
            for _ in range(WORKERS):
                fleet.start()

            def progress() -> tuple[float, float, str]:
                return sum(map(bool, board.runs)), jobs, f"jobs, {fleet.started - WORKERS} kills"

            kill_until_done(fleet, board, stage.sizes.kill_period, progress)
        done = database.number("SELECT count(*) FROM jobq.jobs WHERE status = 'DONE'")
        recovered = database.number("SELECT count(*) FROM jobq.jobs WHERE history IS NOT NULL")
    return {
        "crash_recovery_lost": Sample(jobs - done),
        "crash_recovery_recovered": Sample(recovered),
        "crash_recovery_kills": Sample(fleet.started - WORKERS),
        "crash_recovery_runs": Sample(sum(board.runs), jobs),
    }


def kill_until_done(
    fleet: Fleet,
    board: Board,
    period: float,
    progress: Callable[[], tuple[float, float, str]],
    timeout: float = TIMEOUT,
) -> None:
    """Kill a worker that runs jobs every `period` seconds, until no job is live.

    Raises:
        BenchmarkFailed: that takes longer than `timeout` seconds.
    """
    ends, next_kill = time.monotonic() + timeout, time.monotonic() + period

    def time_to_kill() -> bool:
        return time.monotonic() >= next_kill and fleet.at_work(board) and fleet.started < PLACES

    while not fleet.database.drained():
        fleet.stage.wait(
            lambda: time_to_kill() or fleet.database.drained(),
            [child for _, child in fleet.workers],
            timeout=max(0.0, ends - time.monotonic()),
            tick=0.02,
            progress=progress,
        )
        if time_to_kill():
            fleet.replace_oldest()
            next_kill = time.monotonic() + period  # on a busy machine kills do not pile up


def _payload(i: int) -> str:
    return orjson.dumps({"i": i, "seconds": WORK}).decode()


BENCHMARKS = (
    Benchmark(
        f"{WORKERS} workers of one slot, jobs of 20 ms, leases of 2 s; one SIGKILL a second, the oldest worker first",
        (
            Metric("crash_recovery_lost", "jobs", None, Budget("value", "<=", 0)),
            Metric("crash_recovery_recovered", "jobs"),
            Metric("crash_recovery_kills", "workers"),
            Metric("crash_recovery_runs", "runs", "jobs"),
        ),
        measure,
    ),
)
