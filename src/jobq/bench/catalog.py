"""All benchmarks, in the order they run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jobq.bench import (
    caps,
    claims,
    costs,
    drain,
    enqueue,
    footprint,
    horizon,
    noisy,
    pickup,
    rates,
    recovery,
    tenants,
)
from jobq.bench.report import Metric
from jobq.bench.stage import Benchmark
from jobq.errors import ConfigurationError

ALL: tuple[Benchmark, ...] = (
    *drain.BENCHMARKS,
    *pickup.BENCHMARKS,
    *enqueue.BENCHMARKS,
    *claims.BENCHMARKS,
    *recovery.BENCHMARKS,
    *footprint.BENCHMARKS,
    *horizon.BENCHMARKS,
    *noisy.BENCHMARKS,
    *tenants.BENCHMARKS,
    *caps.BENCHMARKS,
    *rates.BENCHMARKS,
    *costs.BENCHMARKS,
)


def select(
    only: str | None, among: Sequence[Benchmark] = ALL
) -> list[tuple[Benchmark, list[Metric]]]:
    """What to run, each with the metrics to report.

    Args:
        only: a name, or the beginning of one or more; None for all.
        among: to choose from.

    Raises:
        ConfigurationError: there is none of that name.
    """
    names = [metric.name for benchmark in among for metric in benchmark.metrics]
    wanted = {only} if only in names else {name for name in names if name.startswith(only or "")}
    if not wanted:
        raise ConfigurationError(f"there is no benchmark {only!r}; known are {', '.join(names)}")
    return list(_chosen(among, wanted))


def _chosen(
    among: Sequence[Benchmark], wanted: set[str]
) -> Iterator[tuple[Benchmark, list[Metric]]]:
    for benchmark in among:
        metrics = [metric for metric in benchmark.metrics if metric.name in wanted]
        if metrics:
            yield benchmark, metrics
