"""The numbers of a snapshot as Prometheus' gauges (contract.md, "Metrics")."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from jobq.api.gauges import Snapshot
from jobq.fields import MAX_PRIORITY
from jobq.metrics import Labels

#: Label values, in the order of a metric's labels.
Key = tuple[str, ...]


class DatabaseCollector(Collector):
    """Shows a snapshot as Prometheus' gauges; with none, shows nothing of it."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self._queues = Labels()

    def describe(self) -> Iterable[Metric]:
        """Names for the registry, which has no snapshot yet when it asks."""
        return self._families(Snapshot())

    def collect(self) -> Iterable[Metric]:
        """The gauges of the snapshot."""
        return [] if self.snapshot is None else self._families(self.snapshot)

    def _families(self, found: Snapshot) -> Iterable[Metric]:
        yield _gauge(
            "jobq_jobs", "Jobs by status.", ["status"],
            {(status.lower(),): float(jobs) for status, jobs in found.jobs.items()},
        )  # fmt: skip
        by_queue: dict[Key, float] = {
            (queue, status.lower()): float(jobs)
            for queue, statuses in found.queues.items()
            for status, jobs in statuses.items()
        }
        yield _gauge(
            "jobq_queue_jobs",
            "Live jobs by queue and status.",
            ["queue", "status"],
            self._merge(by_queue, sum),
        )
        yield _gauge(
            "jobq_oldest_queued_age_seconds", "How long the oldest queued job of a queue has been due.", ["queue"],
            self._merge({(queue,): age for queue, age in found.oldest_queued.items()}, max),
        )  # fmt: skip
        yield _gauge(
            "jobq_oldest_queued_age_by_priority_seconds", "How long the oldest queued job of a priority has been due.",
            ["priority"],
            _merged([((_priority(number),), age) for number, age in sorted(found.oldest_by_priority.items())], max),
        )  # fmt: skip
        yield _gauge(
            "jobq_held_jobs", "Queued jobs kept aside: for a limit of their kind or concurrency key, or as no live worker knows their kind.", ["reason"],
            {(reason,): float(jobs) for reason, jobs in found.held.items()},
        )  # fmt: skip
        tenants = Labels()
        yield _gauge(
            "jobq_tenant_backlog", "Queued jobs of the ten tenants that have most.", ["tenant"],
            _merged([((tenants(tenant),), float(jobs)) for tenant, jobs in found.backlogs.items()], sum),
        )  # fmt: skip
        yield _gauge(
            "jobq_paused", "Tenants, queues and kinds that are paused.", ["scope"],
            {(scope,): float(number) for scope, number in found.paused.items()},
        )  # fmt: skip
        yield _gauge(
            "jobq_live_workers", "Live workers that serve a queue.", ["queue"],
            self._merge({(queue,): float(workers) for queue, workers in found.workers.items()}, max),
        )  # fmt: skip
        yield _gauge(
            "jobq_running_oldest_seconds", "How long the oldest run has been running.", [],
            {(): found.oldest_running},
        )  # fmt: skip
        yield _gauge(
            "jobq_snapshot_age_seconds",
            "Age of the oldest open snapshot in this database; an old one keeps dead rows from being cleaned.",
            [], {(): found.snapshot_age},
        )  # fmt: skip

    def _merge(
        self, values: Mapping[Key, float], how: Callable[[list[float]], float]
    ) -> dict[Key, float]:
        return _merged(
            [((self._queues(key[0]), *key[1:]), value) for key, value in values.items()], how
        )


def _priority(number: int) -> str:
    """The label of a priority; SQL may have written any."""
    return str(number) if abs(number) <= MAX_PRIORITY else "other"


def _merged(
    values: Iterable[tuple[Key, float]], how: Callable[[list[float]], float]
) -> dict[Key, float]:
    """One value for each key: names that share a label (`other`) are taken together."""
    groups: dict[Key, list[float]] = {}
    for key, value in values:
        groups.setdefault(key, []).append(value)
    return {key: how(group) for key, group in groups.items()}


def _gauge(
    name: str, text: str, labels: list[str], values: Mapping[Key, float]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(list(key), value)
    return family
