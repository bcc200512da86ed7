"""What a process counts about itself, for Prometheus (contract.md, "Metrics"; docs/metrics.md).

Numbers read from the database are not here: they come from the API alone (`jobq.api.gauges`),
otherwise sums over instances would multiply them.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from platform import python_version
from typing import Generic, TypeVar

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from jobq import __version__

#: Media type of `render`.
CONTENT_TYPE = CONTENT_TYPE_LATEST
#: How a run may end, as `jobq_processed_total` says it.
OUTCOMES = ("success", "retry", "dead", "failed", "cancelled", "released", "lease_lost")
#: Kinds, and queues, beyond this many share the label `other`: a label costs memory here and there.
MAX_LABELS = 200
#: A label is at most this long; the longest name a job may have.
MAX_LABEL = 128

_RUN_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600,
)  # fmt: skip
_WAIT_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300, 1800, 7200, 86400,
)  # fmt: skip
_CLAIM_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_ODD = re.compile(r"[^A-Za-z0-9._:/@-]")

T = TypeVar("T")


class Labels:
    """Bounded label values: the first `MAX_LABELS` names keep their own, the others are `other`."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def __call__(self, name: str) -> str:
        """The label for a name, which may be anything: a row inserted by SQL is not checked."""
        label = _ODD.sub("_", name[:MAX_LABEL]) or "_"
        if label not in self._known:
            if len(self._known) >= MAX_LABELS:
                return "other"
            self._known.add(label)
        return label


class _Children(Generic[T]):
    """Children of a metric by raw name: a dictionary look-up in the hot path, bounded all the same."""

    def __init__(self, labels: Labels, make: Callable[[str], T]) -> None:
        self._labels = labels
        self._make = make
        self._found: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        child = self._found.get(name)
        if child is None:
            child = self._make(self._labels(name))
            if len(name) <= MAX_LABEL and len(self._found) < 2 * MAX_LABELS:
                self._found[name] = child
        return child


class _Series:
    """One series of a histogram. For one thread: the loop that runs the jobs."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value


class _Histogram(Collector):
    """A histogram at a third of the cost of the library's, which takes a lock for each of three numbers.

    Args:
        name, documentation, labels: as usual.
        bounds: upper ends of the buckets, in order.
        counted: name and documentation of a counter that is the histogram's count.
    """

    def __init__(
        self, name: str, documentation: str, labels: tuple[str, ...], bounds: tuple[float, ...], *,
        counted: tuple[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._name, self._documentation, self._labels = name, documentation, labels
        self._bounds = bounds
        self._counted = counted
        self._series: dict[tuple[str, ...], _Series] = {}

    def labels(self, *values: str) -> _Series:
        """The series of label values."""
        return self._series.setdefault(values, _Series(self._bounds))

    def collect(self) -> Iterator[Metric]:
        """What there is, for a scrape."""
        histogram = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        series = list(self._series.items())
        for values, one in series:
            ends = [*map(floatToGoString, self._bounds), "+Inf"]
            buckets = list(zip(ends, accumulate(one.counts), strict=True))
            histogram.add_metric(values, buckets, one.total)
        yield histogram
        if self._counted is not None:
            counter = CounterMetricFamily(*self._counted, labels=self._labels)
            for values, one in series:
                counter.add_metric(values, sum(one.counts))
            yield counter


class Metrics:
    """Counters, histograms and gauges of one process, in a registry of its own.

    Args:
        registry: where they are registered.
        worker: whether this process runs jobs. An API does not show a worker's gauges, whose zero
            would look like a claim loop that never ran.
        kinds: kinds that keep their own label whatever else turns up.
    """

    def __init__(
        self, registry: CollectorRegistry, *, worker: bool = True, kinds: Iterable[str] = ()
    ) -> None:
        self.registry = registry
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a timestamp beside every series doubles their number
        self._kinds = Labels()
        for kind in kinds:
            self._kinds(kind)
        self._add_process(registry)
        self._add_runs(registry if worker else None)
        self._add_loops(registry if worker else None)

    def _add_process(self, registry: CollectorRegistry) -> None:
        submitted = Counter(
            "jobq_submitted",
            "Jobs enqueued through this process, replays excluded.",
            ["kind"],
            registry=registry,
        )
        self._submitted = _Children(self._kinds, submitted.labels)
        self._database_errors = Counter(
            "jobq_database_errors",
            "Database calls that failed because PostgreSQL was away.",
            registry=registry,
        )
        build = Info("jobq_build", "Version of this process.", registry=registry)
        build.info({"version": __version__, "python": python_version()})
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)

    def _add_runs(self, registry: CollectorRegistry | None) -> None:
        run = _Histogram(
            "jobq_run_duration_seconds", "How long handlers ran.", ("kind", "outcome"), _RUN_BUCKETS,
            counted=("jobq_processed", "Runs that ended, by outcome."),
        )  # fmt: skip
        self._runs = {
            outcome: _Children(self._kinds, _by_kind(run, outcome)) for outcome in OUTCOMES
        }
        wait = _Histogram(
            "jobq_wait_duration_seconds", "From due and queued to the start of the run.", ("queue",), _WAIT_BUCKETS
        )  # fmt: skip
        self._waits = _Children(Labels(), wait.labels)
        if registry is not None:
            registry.register(run)
            registry.register(wait)
        self._blocked = Counter(
            "jobq_limiter_blocked", "Jobs that a claim met and a limit kept from starting, by limit.",
            ("reason",), registry=registry,
        )  # fmt: skip
        self._recovered = Counter(
            "jobq_recovered", "Jobs taken back after their lease had ended.", registry=registry
        )
        self._abandoned = Gauge(
            "jobq_abandoned_handlers",
            "Threads still running for a job whose outcome is recorded; each holds a slot.",
            registry=registry,
        )
        self._oldest = Gauge(
            "jobq_running_oldest_seconds",
            "How long the oldest run has been running.",
            registry=registry,
        )

    def _add_loops(self, registry: CollectorRegistry | None) -> None:
        self._claims = Histogram(
            "jobq_claim_duration_seconds",
            "Duration of a claim.",
            registry=registry,
            buckets=_CLAIM_BUCKETS,
        )
        slots = Gauge("jobq_worker_slots", "Slots of this worker.", ["state"], registry=registry)
        self._busy, self._free = slots.labels("busy"), slots.labels("free")
        self._express = slots.labels("express")
        self._claim_loop = Gauge(
            "jobq_claim_loop_last_success_timestamp_seconds",
            "When the claim loop last got an answer, in seconds since 1970.",
            registry=registry,
        )
        self._retention = Gauge(
            "jobq_retention_last_success_timestamp_seconds",
            "When this process last expired old data, in seconds since 1970; 0: never.",
            registry=registry,
        )

    def submitted(self, kind: str, n: int = 1) -> None:
        """Count `n` jobs enqueued, replays excluded."""
        self._submitted[kind].inc(n)

    def finished(self, kind: str, outcome: str, seconds: float) -> None:
        """Count a run that ended.

        Args:
            kind: of the job.
            outcome: one of `OUTCOMES`.
            seconds: how long it ran.
        """
        self._runs[outcome][kind].observe(seconds)

    def waited(self, queue: str, seconds: float) -> None:
        """Note how long a job waited, from due and queued to its start."""
        self._waits[queue].observe(seconds)

    def claimed(self, seconds: float) -> None:
        """Note how long a claim took."""
        self._claims.observe(seconds)

    def slots(self, busy: int, free: int, express: int) -> None:
        """Say how many slots are busy, free, and in use of the express ones."""
        self._busy.set(busy)
        self._free.set(free)
        self._express.set(express)

    def limiter_blocked(self, reason: str, n: int) -> None:
        """A claim met so many jobs that a limit keeps from starting; reasons as in `jobq.store.Blocked`."""
        self._blocked.labels(reason).inc(n)

    def recovered(self, n: int) -> None:
        """Count `n` jobs taken back from runs whose lease had ended."""
        self._recovered.inc(n)

    def claim_loop_ok(self, seconds_ago: float) -> None:
        """Say when the claim loop last did what it should."""
        self._claim_loop.set(time.time() - seconds_ago)

    def running_oldest(self, seconds: float) -> None:
        """Say how long this worker's oldest run has been running; 0 where nothing runs."""
        self._oldest.set(seconds)

    def database_error(self) -> None:
        """Count a database call that failed because the database was away."""
        self._database_errors.inc()

    def abandoned_handlers(self, n: int) -> None:
        """Say how many threads run on for jobs whose outcome is recorded."""
        self._abandoned.set(n)

    def retention_ok(self) -> None:
        """Say that old data was expired now."""
        self._retention.set(time.time())


def render(registry: CollectorRegistry) -> bytes:
    """All metrics of a registry in Prometheus' text format."""
    return generate_latest(registry)


def _by_kind(run: _Histogram, outcome: str) -> Callable[[str], _Series]:
    return lambda kind: run.labels(kind, outcome)
