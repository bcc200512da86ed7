"""Caps: exact while workers are killed, quick enough for a key that runs one job at a time, and free for others."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial

import orjson

from jobq.bench.board import Board, now
from jobq.bench.children import BenchmarkFailed
from jobq.bench.history import runs_by_scope, violations
from jobq.bench.recovery import Fleet, kill_until_done
from jobq.bench.report import Budget, Metric, Sample
from jobq.bench.server import Database
from jobq.bench.stage import Benchmark, Stage
from jobq.model import NewJob

WORKERS = 4
#: Settings of workers that are killed: leases that end soon, looked for often.
KILLED = {"concurrency": 20, "lease_duration": 1, "reap_interval": 0.25}
#: Seconds that a capped job runs, so that runs overlap where nothing keeps them apart.
WORK = 0.001
#: Seconds.
TIMEOUT = 300.0

#: What is capped while others are not, and seconds that its jobs run.
BESIDE, REST = (("tenant", "capped"), ("queue", "capped"), ("kind", "rest.capped")), 0.2

#: Jobs that wait for a kind or a key and are still in the claim index.
MET = """SELECT count(*) FROM jobq.job WHERE status = 'QUEUED' AND held_by IS NULL
         AND (kind = 'rest.capped' OR concurrency_key IS NOT NULL)"""

TENANTS, QUEUES, KEYS = 8, 4, 8
#: By scope: some of each are capped, most jobs by more than one of them.
CAPS = {"tenant:t0": 6, "tenant:t1": 3, "queue:q0": 8, "kind:nap": 16, "key:k0": 3, "key:k1": 2}


def exact(stage: Stage) -> Mapping[str, Sample]:
    """Four workers drain jobs under many caps, one is killed now and then; the history is checked afterwards."""
    jobs, path = stage.sizes.cap_claims, stage.path("board")
    board = Board.create(path)
    with stage.server.database() as database, ExitStack() as stack:
        for scope, cap in CAPS.items():
            database.limit(*scope.split(":"), max_running=cap)
        database.fill([capped_job(i) for i in range(jobs)])
        fleet = Fleet(stage, database, str(path), stack, KILLED)
        for _ in range(WORKERS):
            fleet.start()

        def progress() -> tuple[float, float, str]:
            return board.total, jobs, f"jobs under caps, {fleet.started - WORKERS} kills"

        kill_until_done(fleet, board, stage.sizes.cap_kill_period, progress, TIMEOUT)
        return _checked(database, jobs, fleet.started - WORKERS)


def capped_job(i: int) -> NewJob:
    """The jobs by number: tenants, queues, kinds and keys cross one another."""
    kind = "noop" if i % 5 else "nap"
    return NewJob(
        kind,
        payload=orjson.dumps({"seconds": WORK}).decode() if kind == "nap" else "{}",
        tenant=f"t{i % TENANTS}",
        queue=f"q{i // TENANTS % QUEUES}",
        concurrency_key=f"k{i // 9 % KEYS}" if i % 9 == 0 else None,
        max_attempts=100,  # however often its workers are killed
    )


def _checked(database: Database, jobs: int, kills: int) -> dict[str, Sample]:
    """What the history says.

    Raises:
        BenchmarkFailed: a job was lost, so the history is no ground to judge by.
    """
    runs = runs_by_scope(database)
    done = database.number("SELECT count(*) FROM jobq.jobs WHERE status = 'DONE'")
    if done < jobs:
        raise BenchmarkFailed(f"{jobs - done:g} jobs did not end DONE")
    caps = {scope: 1 for scope in runs if scope.startswith("key:")} | CAPS
    claims = sum(len(found) for scope, found in runs.items() if scope.startswith("tenant:"))
    return {
        "caps_violations": Sample(violations(runs, caps)),
        "caps_claims": Sample(claims, jobs),
        "caps_kills": Sample(kills),
    }


def serial_key(stage: Stage) -> Mapping[str, Sample]:
    """Two workers and one key that lets one job run at a time."""
    jobs = [NewJob("noop", concurrency_key="serial")] * stage.sizes.serial_jobs
    with stage.server.database() as database:
        return {"serial_key_rate": Sample(drain(stage, database, jobs, workers=2))}


def drain(stage: Stage, database: Database, jobs: list[NewJob], workers: int) -> float:
    """Jobs a second that workers start, from the first of these to the last; others rest meanwhile."""
    path = stage.path("board")
    board, wanted = Board.create(path), len(jobs)
    database.fill(jobs)
    children = [stage.worker(database, path, place, concurrency=200) for place in range(workers)]
    with stage.ready(*children):
        stage.wait(
            lambda: board.total >= wanted,
            children,
            timeout=TIMEOUT,
            progress=lambda: (board.total, wanted, f"jobs through {workers} worker(s)"),
        )
        ended = now()
        for child in children:
            child.kill()  # what rests need not end
    return wanted / (ended - board.begin) * 1e9


def uncapped(stage: Stage) -> Mapping[str, Sample]:
    """Tenants without caps, beside a backlog of capped ones and alone."""
    free = [NewJob("noop", tenant=f"free-{i % 10}") for i in range(stage.sizes.beside_jobs)]

    def alone() -> float:
        with stage.server.database() as database:
            return drain(stage, database, free, workers=1)

    def beside() -> float:
        with stage.server.database() as database:
            for scope, name in BESIDE:
                database.limit(scope, name, max_running=2)
            meet(stage, database, backlog(stage.sizes.beside_jobs // 20))
            return drain(stage, database, free, workers=1)

    return {"uncapped_beside_caps": Sample(*stage.both(beside, alone))}


def meet(stage: Stage, database: Database, jobs: list[NewJob]) -> None:
    """Let a worker meet jobs that caps keep waiting, so that each of them is held, as in a backlog that is not new."""
    path = stage.path("board")
    Board.create(path)
    database.fill(jobs)
    worker = stage.worker(database, path)

    def held() -> bool:
        """Whether all but those that come next are."""
        return database.number(MET) < 50

    with stage.ready(worker):
        stage.wait(
            held,
            [worker],
            timeout=TIMEOUT,
            tick=0.1,
            progress=lambda: (len(jobs) - database.number(MET), len(jobs), "capped jobs are met"),
        )


def backlog(most: int) -> list[NewJob]:
    """Jobs that wait for a tenant's, a queue's, a kind's and some keys' caps, so many of each."""
    job = partial(NewJob, payload=orjson.dumps({"seconds": REST}).decode())
    each = [
        job("rest", tenant="capped"),
        job("rest", tenant="of-a-queue", queue="capped"),
        job("rest.capped", tenant="of-a-kind"),
        *(job("rest", tenant="of-a-key", concurrency_key=f"capped-{n}") for n in range(5)),
    ]
    return each * most


BENCHMARKS = (
    Benchmark(
        f"100,000 jobs under caps of tenants, a queue, a kind and keys, {WORKERS} workers, one SIGKILL every 4 s",
        (
            Metric("caps_violations", "runs", None, Budget("value", "<=", 0)),
            Metric("caps_claims", "claims", "jobs"),
            Metric("caps_kills", "workers"),
        ),
        exact,
        most_runs=1,
    ),
    Benchmark(
        "no-op jobs of one concurrency key with cap 1, two workers",
        (Metric("serial_key_rate", "jobs/s", None, Budget("value", ">=", 100)),),
        serial_key,
    ),
    Benchmark(
        "no-op jobs of ten tenants without caps, concurrency 200, beside a backlog of capped ones",
        (
            Metric(
                "uncapped_beside_caps",
                "jobs/s",
                "the same jobs alone, no caps set",
                Budget("ratio", ">=", 0.9),
            ),
        ),
        uncapped,
    ),
)
