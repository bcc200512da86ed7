"""Claim strategies beside each other: what SKIP LOCKED is for, and what claiming in batches adds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jobq.bench.claimers import TAKES
from jobq.bench.report import Metric, Sample
from jobq.bench.server import Database
from jobq.bench.stage import Benchmark, Stage
from jobq.model import NewJob

#: Jobs that are there for a second of claims, one at a time; more than any strategy has been seen to do.
JOBS_PER_SECOND = 8_000


def rate(stage: Stage, database: Database, strategy: str, claimers: int) -> float:
    """Jobs a second that claimers claim and finish."""
    seconds = stage.sizes.claim_seconds
    wanted = int(JOBS_PER_SECOND * seconds) * (3 if TAKES[strategy] > 1 else 1)
    left = int(database.number("SELECT count(*) FROM jobq.job WHERE status = 'QUEUED'"))
    database.fill([NewJob("noop")] * (wanted - left))
    stage.say(0, 1, f"{strategy}, {claimers} claimer(s)")
    child = stage.child(
        "claimers", url=database.url, strategy=strategy, claimers=claimers, seconds=seconds
    )
    with stage.ready(child):
        answer = child.read(seconds + 60)
    return float(answer["jobs"] / answer["seconds"])


def measure_with(claimers: int) -> Callable[[Stage], Mapping[str, Sample]]:
    """The benchmark of so many claimers: every strategy, the order turned round in every other run."""

    def measure(stage: Stage) -> Mapping[str, Sample]:
        strategies = list(TAKES) if stage.run % 2 == 0 else list(TAKES)[::-1]
        with stage.server.database() as database:
            rates = {name: rate(stage, database, name, claimers) for name in strategies}
        blocking = rates["blocking"]
        return {
            f"claim_{name}_{claimers}": Sample(found, None if name == "blocking" else blocking)
            for name, found in rates.items()
        }

    return measure


def _metric(strategy: str, claimers: int) -> Metric:
    reference = None if strategy == "blocking" else f"claim_blocking_{claimers}"
    return Metric(f"claim_{strategy}_{claimers}", "jobs/s", reference)


BENCHMARKS = tuple(
    Benchmark(
        f"{claimers} claimer(s) that claim and finish: one job a claim with and without SKIP LOCKED, ten a claim",
        tuple(_metric(strategy, claimers) for strategy in TAKES),
        measure_with(claimers),
    )
    for claimers in (1, 2, 4, 8, 16)
)
