"""Many tenants, each with jobs waiting: what a claim costs then, and how fast they are drained."""

from __future__ import annotations

import time
from collections.abc import Mapping

from jobq.bench.board import Board, Figures
from jobq.bench.children import Child
from jobq.bench.enqueuers import read
from jobq.bench.machine import room
from jobq.bench.report import Budget, Metric, Sample, percentile
from jobq.bench.server import Database
from jobq.bench.stage import Benchmark, Stage

CONCURRENCY = 200
#: Jobs of one INSERT.
BATCH = 25_000
#: Bytes that a waiting job takes with its indexes, and while it is loaded and drained its write-ahead log.
BYTES = 2_500
#: Claims that are noted, at most.
MOST_CLAIMS = 1_000_000
#: Seconds until the worker has to have found something.
TIMEOUT = 60.0


def measure(stage: Stage) -> Mapping[str, Sample]:
    """A worker drains for some seconds: the jobs it starts, and the claims it makes for them, from the first on."""
    path, claims_path = stage.path("board"), stage.path("claims")
    board, claims = Board.create(path), Figures.create(claims_path, MOST_CLAIMS)
    with stage.server.database() as database:
        jobs = load(stage, database)
        worker = stage.worker(database, path, claims=claims_path, concurrency=CONCURRENCY)
        with stage.ready(worker):
            stage.wait(lambda: board.begin > 0, [worker], timeout=TIMEOUT)
            rate = _drain(stage, board, worker, jobs)
            times = claims.all()
            worker.kill()  # what is left need not be drained
    return {
        "many_tenants_claim_p99": Sample(
            *(percentile(times, share) * 1e3 for share in (0.99, 0.5))
        ),
        "many_tenants_drain": Sample(rate),
    }


def load(stage: Stage, database: Database) -> int:
    """Make the waiting jobs; returns how many."""
    jobs, tenants = _fitting(stage), stage.sizes.tenants
    insert = read("fill_tenants.sql")
    for first in range(0, jobs, BATCH):
        stage.say(first, jobs, f"jobs of {tenants:,} tenants are made")
        params = {"tenants": tenants, "first": first, "last": min(first + BATCH, jobs) - 1}
        database.conn.execute(insert, params)
    database.settle()
    return jobs


def _fitting(stage: Stage) -> int:
    """As many jobs as are asked for, or as a small machine has room for."""
    wanted = stage.sizes.tenant_jobs
    jobs = min(wanted, room(stage.folder) // 2 // BYTES)
    if jobs < wanted:
        stage.tell(f"Memory or disk is short: {jobs:,} jobs of many tenants instead of {wanted:,}.")
    return jobs


def _drain(stage: Stage, board: Board, worker: Child, jobs: int) -> float:
    """Jobs a second that the worker starts, until the time is over or all have been."""
    began, seconds = board.begin / 1e9, stage.sizes.tenant_seconds

    def passed() -> float:
        return time.monotonic() - began

    stage.wait(
        lambda: passed() >= seconds or board.total >= jobs,
        [worker],
        timeout=seconds + TIMEOUT,
        progress=lambda: (passed(), seconds, "seconds of draining"),
        tick=0.01,
    )
    return board.total / passed()


BENCHMARKS = (
    Benchmark(
        "10,000 tenants with 1,000,000 no-op jobs waiting, a worker process, concurrency 200, for 10 s",
        (
            Metric("many_tenants_claim_p99", "ms", "the median claim", Budget("value", "<=", 15)),
            Metric("many_tenants_drain", "jobs/s", None, Budget("value", ">=", 10_000)),
        ),
        measure,
        most_runs=1,
    ),
)
