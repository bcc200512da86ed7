"""Enqueuing: one job a call from eight clients, and many a call, beside bare INSERTs of the same rows."""

from __future__ import annotations

from collections.abc import Mapping

from jobq.bench.enqueuers import BATCH
from jobq.bench.report import Budget, Metric, Sample
from jobq.bench.stage import Benchmark, Stage

CLIENTS = 8
WAYS = ("jobq", "bare")
#: Seconds that one side enqueues before the other's turn: what disturbs the machine disturbs both.
TURN = 0.3


def rates(stage: Stage, turns: int, message: Mapping[str, float]) -> Sample:
    """Jobs a second through jobq and by bare INSERT, in turns.

    Args:
        stage: of this run.
        turns: of each side.
        message: what each is told, a turn.
    """
    jobs, seconds = dict.fromkeys(WAYS, 0.0), dict.fromkeys(WAYS, 0.0)
    with stage.server.database() as database:
        children = {
            way: stage.child("enqueuers", url=database.url, way=way, clients=CLIENTS)
            for way in WAYS
        }
        with stage.ready(*children.values()):
            for turn in range(2 * turns):
                way = WAYS[(turn + stage.run) % 2]
                stage.say(turn, 2 * turns, f"turns of {' and '.join(WAYS)}")
                children[way].send(**message)
                answer = children[way].read()
                jobs[way] += answer["jobs"]
                seconds[way] += answer["seconds"]
    return Sample(*(jobs[way] / seconds[way] for way in WAYS))


def eight_clients(stage: Stage) -> Mapping[str, Sample]:
    """One job a call."""
    turns = max(1, round(stage.sizes.enqueue_seconds / TURN))
    return {"enqueue_8_clients": rates(stage, turns, {"seconds": TURN})}


def bulk(stage: Stage) -> Mapping[str, Sample]:
    """Ten thousand jobs a call."""
    turns = max(1, stage.sizes.bulk_jobs // BATCH)
    return {"enqueue_bulk": rates(stage, turns, {"jobs": BATCH})}


BENCHMARKS = (
    Benchmark(
        f"{CLIENTS} coroutines of one process enqueue, one job a call",
        (
            Metric(
                "enqueue_8_clients",
                "jobs/s",
                "bare INSERT of the same row, same connections",
                Budget("ratio", ">=", 0.8),
            ),
        ),
        eight_clients,
    ),
    Benchmark(
        "one client enqueues 10,000 jobs a call",
        (
            Metric(
                "enqueue_bulk",
                "jobs/s",
                "bare INSERT ... SELECT FROM unnest of the same rows",
                Budget("value", ">=", 60_000),
            ),
        ),
        bulk,
    ),
)
