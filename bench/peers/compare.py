"""jobq beside its peers: the same loads, the same harness, in turns on one server (bench/README.md)."""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from jobq.bench import display, machine
from jobq.bench.board import Board, now
from jobq.bench.children import BenchmarkFailed, Child
from jobq.bench.producer import WARM_UP
from jobq.bench.report import Budget, Metric, Result, Sample, document, percentile, summarize, write
from jobq.bench.server import Database, open_server
from jobq.bench.stage import QUICK, Sizes, Stage

QUEUES = ("jobq", "pgqueuer", "procrastinate")
#: Beside which peer jobq's numbers are put.
RIVAL = "pgqueuer"
AGENT = Path(__file__).with_name("agent.py")
OUTPUT = Path("bench/results/peers.json")
#: Seconds.
TIMEOUT, SETTLE = 300.0, 1.0

Measure = Callable[[Stage, str], Mapping[str, float]]


def adapter(queue: str) -> Any:
    """The module that knows a queue."""
    return importlib.import_module(f"adapter_{queue}")


def agent(stage: Stage, queue: str, role: str, database: Database, **arguments: Any) -> Child:
    """Start a process of a queue."""
    log = str(stage.path("log"))
    return stage.child(AGENT, queue=queue, role=role, url=database.url, log=log, **arguments)


def prepare(stage: Stage, queue: str, database: Database, jobs: int) -> None:
    """Make the queue's schema, fill it, tidy up."""
    with agent(stage, queue, "prepare", database, jobs=jobs) as child:
        child.read(TIMEOUT)
    database.settle()


def drain(processes: int, name: str, stage: Stage, queue: str) -> Mapping[str, float]:
    """Jobs a second, from the first start until the store holds nothing outstanding."""
    known, path = adapter(queue), stage.path("board")
    jobs = int(stage.sizes.drain_jobs * known.SHARE)
    board = Board.create(path, jobs)
    with stage.server.empty_database() as database:
        prepare(stage, queue, database, jobs)
        workers = [
            agent(
                stage,
                queue,
                "work",
                database,
                board=str(path),
                place=place,
                concurrency=known.CONCURRENCY,
            )
            for place in range(processes)
        ]

        def progress() -> tuple[float, float, str]:
            return board.total, jobs, f"jobs through {queue}"

        with stage.ready(*workers):
            stage.wait(lambda: board.total >= jobs, workers, timeout=TIMEOUT, progress=progress)
            stage.wait(lambda: not database.number(known.LIVE), workers, timeout=TIMEOUT)
            return {name: jobs / (now() - board.begin) * 1e9}


def pickup(stage: Stage, queue: str) -> Mapping[str, float]:
    """Milliseconds from just before the enqueue call to the handler's start, the worker idle."""
    path, total = stage.path("board"), stage.sizes.pickups + WARM_UP
    board = Board.create(path, total)

    def started() -> int:
        return sum(map(bool, board.started))

    with stage.server.empty_database() as database:
        prepare(stage, queue, database, 0)
        worker = agent(stage, queue, "work", database, board=str(path), place=0, concurrency=10)
        producer = agent(stage, queue, "produce", database, board=str(path), jobs=total)
        with stage.ready(worker), producer:
            producer.read()
            both = [worker, producer]
            stage.wait(lambda: started() == WARM_UP, both, timeout=TIMEOUT, tick=0.05)
            time.sleep(SETTLE)
            producer.send()
            stage.wait(
                lambda: started() == total,
                both,
                timeout=TIMEOUT,
                tick=0.05,
                progress=lambda: (started(), total, f"jobs to {queue}"),
            )
    waits = board.waits()[WARM_UP:]
    return {"idle_pickup_p50": percentile(waits, 0.5), "idle_pickup_p99": percentile(waits, 0.99)}


def enqueue(name: str, stage: Stage, queue: str) -> Mapping[str, float]:
    """Jobs a second from eight clients, one job a call; or in bulk."""
    message = (
        {"jobs": stage.sizes.bulk_jobs}
        if name == "enqueue_bulk"
        else {"seconds": stage.sizes.enqueue_seconds}
    )
    stage.say(0, 1, f"{name} to {queue}")
    with stage.server.empty_database() as database:
        prepare(stage, queue, database, 0)
        with stage.ready(agent(stage, queue, "enqueue", database, clients=8)) as (child,):
            child.send(**message)
            found = child.read(TIMEOUT)
    return {name: found["jobs"] / found["seconds"]}


#: What is measured: names and units, how, and what jobq has to keep beside its rival (design.md section 6).
LOADS: tuple[tuple[tuple[str, ...], str, Measure, Budget | None], ...] = (
    (
        ("drain_1_process",),
        "jobs/s",
        partial(drain, 1, "drain_1_process"),
        Budget("ratio", ">=", 1.5),
    ),
    (
        ("drain_2_processes",),
        "jobs/s",
        partial(drain, 2, "drain_2_processes"),
        Budget("ratio", ">=", 1.5),
    ),
    (("idle_pickup_p50", "idle_pickup_p99"), "ms", pickup, None),
    (("enqueue_8_clients",), "jobs/s", partial(enqueue, "enqueue_8_clients"), None),
    (("enqueue_bulk",), "jobs/s", partial(enqueue, "enqueue_bulk"), None),
)


def measure(
    stage: Stage, runs: int, loads: Sequence[Any], bars: display.Bars
) -> tuple[list[Result], list[str]]:
    """All loads; within a run the queues take turns, and in every other run the other way round."""
    results: list[Result] = []
    failed: list[str] = []
    for names, unit, load, budget in loads:
        found: dict[str, list[Mapping[str, float]]] = {queue: [] for queue in QUEUES}
        for run in range(runs):
            for queue in QUEUES if run % 2 == 0 else QUEUES[::-1]:
                bars.begin(f"{queue} {names[0]}", run, runs)
                try:
                    with tempfile.TemporaryDirectory(prefix="jobq-bench-") as folder:
                        found[queue].append(
                            load(replace(stage, folder=Path(folder), run=run), queue)
                        )
                except BenchmarkFailed as error:
                    failed.append(f"{queue}_{names[0]}: {error}")
                bars.end()
        for name in names:
            results += summaries(name, unit, budget, found)
    return results, failed


def summaries(
    name: str, unit: str, budget: Budget | None, found: Mapping[str, list[Mapping[str, float]]]
) -> list[Result]:
    """The results of one load, jobq's beside its rival's."""
    ours = Metric(f"jobq_{name}", unit, f"{RIVAL}_{name}", budget)
    results = []
    for queue, runs in found.items():
        metric = ours if queue == "jobq" else Metric(f"{queue}_{name}", unit)
        rival = found[RIVAL] if queue == "jobq" else []
        samples = [
            Sample(run[name], rival[index][name] if index < len(rival) else None)
            for index, run in enumerate(runs)
        ]
        if samples:
            results.append(summarize(metric, samples))
    return results


def main() -> int:
    """Compare, show, write."""
    parser = argparse.ArgumentParser(prog="make bench-peers", description=__doc__)
    parser.add_argument("only", nargs="?", default="", help="loads whose names begin so")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small sizes, rough numbers")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args()
    loads = [load for load in LOADS if any(name.startswith(given.only) for name in load[0])]
    if not loads:
        parser.error(f"no load begins with {given.only!r}")
    console = display.terminal()
    bars = display.Bars(console, len(loads) * given.runs * len(QUEUES))
    with open_server(None) as server:
        with server.connect() as conn:
            host = machine.describe(conn)
        stage = Stage(server, sizes=QUICK if given.quick else Sizes(), show=bars.show)
        with bars.shown():
            results, failed = measure(stage, given.runs, loads, bars)
    console.print(display.table(results))
    for sentence in failed:
        console.print(sentence, style="bold red", markup=False)
    write(given.output, document(host, results))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
