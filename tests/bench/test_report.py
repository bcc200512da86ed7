"""What results say: medians, ratios, budgets, and the shape that contract.md promises."""

import inspect
import json
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from jobq.bench import catalog, display
from jobq.bench.claimers import Blocking
from jobq.bench.report import Budget, Metric, Sample, document, percentile, summarize, write
from jobq.cli.bench import bench
from jobq.errors import ConfigurationError
from jobq.sql import Statements

DRAIN = Metric("drain_1_process", "jobs/s", "raw SQL loop", Budget("ratio", ">=", 0.65))

PROMISED = (
    "drain_1_process", "drain_2_processes", "idle_pickup_p50", "idle_pickup_p99", "enqueue_8_clients",
    "enqueue_bulk", "crash_recovery_lost", "pinned_horizon", "idle_transactions", "worker_memory_growth",
    "wal_per_job", "many_tenants_claim_p99", "many_tenants_drain",
    "caps_violations", "serial_key_rate", "uncapped_beside_caps", "rate_used", "rate_most",
    *(f"{prefix}noisy_neighbour_{share}" for prefix in ("", "fifo_") for share in ("p50", "p95", "max")),
    *(f"claim_{strategy}_{n}" for strategy in ("blocking", "skip_locked", "batch10") for n in (1, 2, 4, 8, 16)),
)  # fmt: skip


def test_value_and_reference_are_medians_and_every_run_is_listed() -> None:
    result = summarize(
        DRAIN, [Sample(30_000, 40_000), Sample(10_000, 41_000), Sample(31_000, 50_000)]
    )
    assert (result.value, result.reference_value) == (30_000, 41_000)
    assert (result.budget, result.reference_runs) == ("ratio >= 0.65", [40_000, 41_000, 50_000])
    assert result.runs == [30_000, 10_000, 31_000]
    assert result.spread == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("budget", "sample", "ok"),
    [
        (Budget("ratio", ">=", 0.65), Sample(65, 100), True),
        (Budget("ratio", ">=", 0.65), Sample(64, 100), False),
        (Budget("ratio", ">=", 0.65), Sample(64), False),
        (Budget("value", "<=", 2), Sample(2.0, 700), True),
        (Budget("value", "<=", 2), Sample(2.1, 700), False),
        (Budget("value", "<=", 0), Sample(0), True),
        (None, Sample(1, 2), None),
    ],
)
def test_a_budget_is_judged_by_value_or_ratio(
    budget: Budget | None, sample: Sample, ok: bool | None
) -> None:
    assert summarize(Metric("name", "unit", None, budget), [sample]).ok is ok


def windows(*ratios: float) -> list[Sample]:
    """Windows of these ratios, each at a speed of its own."""
    return [Sample(ratio * speed, speed) for speed, ratio in enumerate(ratios, start=1)]


@pytest.mark.parametrize(
    ("ratios", "ok"),
    [
        ((0.7, 0.71, 0.69), True),  # all windows say so
        ((0.5, 0.6, 0.4), False),  # all say so, however far apart
        ((0.66, 0.64, 0.67), True),  # the limit lies within a small spread: the median tells
        ((0.9, 0.5, 0.7), None),  # it lies within a large one: nothing does
        ((0.9, 0.9, 0.9, 0.9, 0.4), None),
        ((*[0.9] * 9, 0.4), True),  # one burst among ten windows changes no verdict
        ((*[0.9] * 6, *[0.4] * 4), None),
    ],
)
def test_a_verdict_needs_windows_that_agree_or_lie_close_together(
    ratios: tuple[float, ...], ok: bool | None
) -> None:
    result = summarize(DRAIN, windows(*ratios))
    assert (result.ok, result.noisy) == (ok, ok is None)


def test_the_ratio_is_the_median_of_the_windows_own() -> None:
    burst = [
        Sample(70, 100),
        Sample(7, 10),
        Sample(71, 100),
    ]  # the second window was ten times slower
    assert summarize(DRAIN, burst).ratio == pytest.approx(0.7)


def test_a_document_has_the_promised_shape_and_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "bench" / "results" / "latest.json"
    write(path, document({"cores": 2}, [summarize(DRAIN, [Sample(30_000, 40_000)])]))
    content = json.loads(path.read_text())
    assert set(content) == {"machine", "date", "results"}
    assert set(content["results"][0]) >= {
        "name", "value", "unit", "reference", "reference_value", "ratio", "budget", "ok", "noisy", "runs",
    }  # fmt: skip
    assert [file.name for file in path.parent.iterdir()] == ["latest.json"]


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(n) for n in range(200, 0, -1)]
    assert percentile(values, 0.5) == 101
    assert percentile(values, 0.99) == 199
    assert percentile(values, 1.0) == 200


def test_the_table_fits_a_hundred_columns_and_names_what_is_missed() -> None:
    metrics = [metric for benchmark in catalog.ALL for metric in benchmark.metrics]
    results = [
        summarize(metric, [Sample(123_456.0, 234_567.0), Sample(123_455.0, 150_000.0)])
        for metric in metrics
    ]
    out = StringIO()
    Console(file=out, width=display.WIDTH).print(display.table(results))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 100
    assert all(any(metric.name in line for line in lines) for metric in metrics)
    assert any("idle_pickup_p50" in line and " NO " in line for line in lines)
    assert any("enqueue_8_clients" in line and " noisy " in line for line in lines)


def test_every_promised_name_is_there_once() -> None:
    names = [metric.name for benchmark in catalog.ALL for metric in benchmark.metrics]
    assert set(names) >= set(PROMISED)
    assert len(names) == len(set(names))


def test_one_benchmark_is_chosen_by_its_name_and_several_by_a_beginning() -> None:
    def names(only: str | None) -> list[str]:
        return [metric.name for _, metrics in catalog.select(only) for metric in metrics]

    assert names("drain_2_processes") == ["drain_2_processes"]
    assert names("claim_batch10_1") == ["claim_batch10_1"]
    assert names("idle_pickup_p") == ["idle_pickup_p50", "idle_pickup_p99"]
    assert len(names(None)) == len([m for benchmark in catalog.ALL for m in benchmark.metrics])
    with pytest.raises(ConfigurationError, match=r"'nonsense'.*drain_1_process"):
        names("nonsense")


def test_the_blocking_claim_is_the_shipped_one_but_for_the_lock() -> None:
    shipped, blocking = Statements("jobq"), Blocking("jobq")
    assert shipped["claim"].count(b" SKIP LOCKED") > 0
    assert blocking["claim"] == shipped["claim"].replace(b" SKIP LOCKED", b"")
    assert blocking["complete"] == shipped["complete"]


def test_the_page_tells_of_every_benchmark_and_option() -> None:
    page = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    page += " ".join(
        f"`claim_{strategy}_{n}`"
        for strategy in ("blocking", "skip_locked", "batch10")
        for n in (1, 2, 4, 8, 16)
    )
    for benchmark in catalog.ALL:
        for metric in benchmark.metrics:
            assert f"`{metric.name}`" in page
    options = {f"--{name.replace('_', '-')}" for name in inspect.signature(bench).parameters}
    assert options == set(re.findall(r"--[a-z][a-z-]*", page)) | {"--only"}
