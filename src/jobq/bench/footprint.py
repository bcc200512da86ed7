"""What jobq costs while nothing happens, and what it leaves behind: transactions, memory, write-ahead log."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping

from jobq.bench.board import Board
from jobq.bench.drain import TIMEOUT
from jobq.bench.machine import resident_memory
from jobq.bench.report import Budget, Metric, Sample
from jobq.bench.server import Database
from jobq.bench.stage import Benchmark, Stage
from jobq.db import Conn
from jobq.model import NewJob

#: Seconds until an idle worker polls at its slowest, and until every backend has reported what it did before
#: (after 10 s when it is idle: PostgreSQL's pgstat.c, PGSTAT_IDLE_INTERVAL).
SETTLE = 12.0
WINDOWS = 5
#: Jobs enqueued at a time while memory is watched.
BATCH = 20_000


def idle_transactions(stage: Stage) -> Mapping[str, Sample]:
    """Transactions a second of two workers that have nothing to do.

    The median of some windows: once a minute autovacuum looks in, which is no doing of theirs.
    """
    path, window = stage.path("board"), stage.sizes.idle_seconds / WINDOWS
    Board.create(path)
    with stage.server.database() as database, stage.server.connect() as observer:

        def rate(index: int) -> float:
            began, before = time.monotonic(), _transactions(observer, database)
            stage.say(index, WINDOWS, f"windows of {window:g} s, idle")
            time.sleep(window)
            return (_transactions(observer, database) - before) / (time.monotonic() - began)

        with stage.ready(*(stage.worker(database, path, place) for place in range(2))) as workers:
            time.sleep(min(SETTLE, stage.sizes.idle_seconds))
            rates = [rate(index) for index in range(WINDOWS)]
            for worker in workers:
                worker.check()
    return {"idle_transactions": Sample(statistics.median(rates))}


def _transactions(observer: Conn, database: Database) -> int:
    """Transactions in a database so far. Asked from another one, so that asking does not count."""
    row = observer.execute(
        "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s",
        (database.conn.info.dbname,),
    ).fetchone()
    assert row is not None
    return int(row[0])


def worker_memory(stage: Stage) -> Mapping[str, Sample]:
    """Resident memory of a worker after many jobs, beside that after the first tenth."""
    path = stage.path("board")
    board = Board.create(path)
    early, late = stage.sizes.memory_jobs
    with stage.server.database() as database:
        worker = stage.worker(database, path, concurrency=200)
        with stage.ready(worker):

            def work_until(total: int) -> float:
                for done in range(board.total, total, BATCH):
                    database.fill([NewJob("noop")] * min(BATCH, total - done))
                    stage.wait(
                        database.drained,
                        [worker],
                        timeout=TIMEOUT,
                        tick=0.02,
                        progress=lambda: (board.total, late, "jobs, memory watched"),
                    )
                return resident_memory(worker.pid)

            before = work_until(early)
            after = work_until(late)
    return {
        "worker_memory_growth": Sample(after - before),
        "worker_memory": Sample(after, before),
    }


def wal_per_job(stage: Stage) -> Mapping[str, Sample]:
    """Write-ahead log from enqueue to completion, beside that of the enqueue alone."""
    path, jobs = stage.path("board"), min(stage.sizes.drain_jobs, 20_000)
    board = Board.create(path)
    with stage.server.database() as database:
        database.settle()
        worker = stage.worker(database, path, concurrency=200)
        began = _wal(database)
        database.fill([NewJob("noop")] * jobs)
        enqueued = _wal(database) - began
        with stage.ready(worker):
            stage.wait(lambda: board.total >= jobs, [worker], timeout=TIMEOUT)
            stage.wait(database.drained, [worker], timeout=TIMEOUT)
        total = _wal(database) - began
    return {"wal_per_job": Sample(total / jobs, enqueued / jobs)}


def _wal(database: Database) -> float:
    return database.number("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')")


BENCHMARKS = (
    Benchmark(
        "two idle workers, their transactions by pg_stat_database",
        (Metric("idle_transactions", "1/s", None, Budget("value", "<=", 5)),),
        idle_transactions,
        most_runs=1,  # it is a median already
    ),
    Benchmark(
        "a worker's resident memory after 1,000,000 no-op jobs against after 100,000",
        (
            Metric("worker_memory_growth", "MB", None, Budget("value", "<=", 10)),
            Metric("worker_memory", "MB", "after the first 100,000 jobs"),
        ),
        worker_memory,
        most_runs=1,
    ),
    Benchmark(
        "write-ahead log of a no-op job: enqueued in bulk, claimed, completed, archived",
        (Metric("wal_per_job", "bytes", "the enqueue alone"),),
        wal_per_job,
    ),
)
