"""docs/metrics.md names every metric with its labels and where it is, and its alerts ask for no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from jobq.api.collector import DatabaseCollector
from jobq.api.gauges import Snapshot
from jobq.metrics import OUTCOMES, Metrics

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
SUFFIXES = {"counter": ("_total",), "info": ("_info",), "histogram": ("_bucket", "_sum", "_count")}


def families(*, worker: bool) -> dict[str, Metric]:
    """What a worker, or an API, shows."""
    registry = CollectorRegistry()
    metrics = Metrics(registry, worker=worker)
    if not worker:
        metrics.submitted("k")
    metrics.finished("k", "success", 1)
    metrics.waited("q", 1)
    found = {metric.name: metric for metric in registry.collect()}
    if not worker:
        shown = DatabaseCollector()
        shown.snapshot = Snapshot(
            queues={"q": {"QUEUED": 1}},
            oldest_queued={"q": 1},
            oldest_by_priority={0: 1},
            backlogs={"t": 1},
            workers={"q": 1},
        )
        found |= {metric.name: metric for metric in shown.collect()}
    return {name: m for name, m in found.items() if name.startswith("jobq_") and m.samples}


def shown_name(metric: Metric) -> str:
    return metric.name + {"counter": "_total", "info": "_info"}.get(metric.type, "")


def labels(metric: Metric) -> set[str]:
    return {label for sample in metric.samples for label in sample.labels} - {"le"}


def rows() -> dict[str, list[str]]:
    """Name -> the other cells."""
    found = re.findall(r"^\| `(jobq_\w+)` \| (.*) \|$", PAGE, re.MULTILINE)
    assert len(dict(found)) == len(found)
    return {name: [cell.strip() for cell in rest.split("|")] for name, rest in found}


@pytest.mark.parametrize(("worker", "word"), [(True, "worker"), (False, "API")])
def test_every_metric_is_told_with_its_labels(worker: bool, word: str) -> None:
    told = {
        name: set(re.findall(r"`(\w+)`", cells[0]))
        for name, cells in rows().items()
        if word in (cells[1] if len(cells) == 3 else "API")
    }
    assert told == {shown_name(m): labels(m) for m in families(worker=worker).values()}


def test_every_outcome_is_told() -> None:
    told = re.findall(r"[a-z_]+", rows()["jobq_processed_total"][2])
    assert set(OUTCOMES) <= set(told)


@pytest.mark.parametrize("page", ["metrics.md", "operations.md"])
def test_metrics_that_a_page_asks_for_exist(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    asked = set(re.findall(r"\bjobq_(?!runtime|template)[a-z_]+", text))
    known = {
        metric.name + suffix
        for worker in (True, False)
        for metric in families(worker=worker).values()
        for suffix in ("", *SUFFIXES.get(metric.type, ()))
    }
    assert asked
    assert asked <= known


def test_alerts_have_all_that_an_alert_needs() -> None:
    rules = re.split(r"^      - alert: ", PAGE.partition("```yaml")[2], flags=re.MULTILINE)[1:]
    assert len(rules) >= 10
    for rule in rules:
        name = rule.partition("\n")[0]
        assert re.fullmatch(r"Jobq[A-Za-z]+", name)
        for part in ("expr: ", "labels: {severity: ", 'annotations: {summary: "'):
            assert rule.count(part) == 1, (name, part)
        outcomes = re.findall(r'outcome=~?"([a-z_|]+)"', rule)
        assert set("|".join(outcomes).split("|")) - {""} <= set(OUTCOMES), name
