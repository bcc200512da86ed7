"""Metrics: the names of the contract, bounded labels, and cheap enough for the hot path."""

from __future__ import annotations

import re
from time import time

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from jobq.metrics import MAX_LABELS, OUTCOMES, Metrics, render

#: contract.md, "Metrics", as far as a process counts itself; those of a worker alone.
OF_EVERYBODY = {
    "jobq_submitted_total": {"kind"},
    "jobq_database_errors_total": set(),
    "jobq_build_info": {"version", "python"},
}
OF_WORKERS = {
    "jobq_processed_total": {"kind", "outcome"},
    "jobq_recovered_total": set(),
    "jobq_run_duration_seconds_count": {"kind", "outcome"},
    "jobq_wait_duration_seconds_count": {"queue"},
    "jobq_claim_duration_seconds_count": set(),
    "jobq_worker_slots": {"state"},
    "jobq_claim_loop_last_success_timestamp_seconds": set(),
    "jobq_running_oldest_seconds": set(),
    "jobq_retention_last_success_timestamp_seconds": set(),
    "jobq_abandoned_handlers": set(),
}


def samples(registry: CollectorRegistry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """(name, labels) -> value, as Prometheus reads it."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(render(registry).decode())
        for sample in family.samples
    }


def use(metrics: Metrics) -> None:
    """Every method once."""
    metrics.submitted("k", 3)
    metrics.finished("k", "success", 0.2)
    metrics.waited("q", 0.1)
    metrics.claimed(0.01)
    metrics.slots(1, 2, 0)
    metrics.recovered(2)
    metrics.claim_loop_ok(0.0)
    metrics.running_oldest(5)
    metrics.database_error()
    metrics.abandoned_handlers(1)
    metrics.retention_ok()


@pytest.mark.parametrize("worker", [True, False])
def test_names_and_labels_are_those_of_the_contract(worker: bool) -> None:
    registry = CollectorRegistry()
    use(Metrics(registry, worker=worker))
    found = {name: {label for label, _ in labels} for name, labels in samples(registry)}
    assert OF_EVERYBODY.items() <= found.items()
    if worker:
        assert OF_WORKERS.items() <= found.items()
    else:
        # A worker's zero in an API would look like a claim loop that never ran.
        assert found.keys().isdisjoint(OF_WORKERS)
    assert not [name for name in found if name.endswith("_created")]
    assert "process_resident_memory_bytes" in found


def test_values_are_what_was_told() -> None:
    registry = CollectorRegistry()
    use(Metrics(registry))
    found = samples(registry)
    assert found["jobq_submitted_total", (("kind", "k"),)] == 3
    labels = (("kind", "k"), ("outcome", "success"))
    assert found["jobq_processed_total", labels] == 1
    assert found["jobq_run_duration_seconds_sum", labels] == 0.2
    assert found["jobq_worker_slots", (("state", "free"),)] == 2
    assert found["jobq_recovered_total", ()] == 2
    assert found["jobq_claim_loop_last_success_timestamp_seconds", ()] == pytest.approx(
        time(), abs=5
    )


def test_every_outcome_of_the_contract_is_known() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    for outcome in OUTCOMES:
        metrics.finished("k", outcome, 0)
    text = render(registry).decode()
    assert set(re.findall(r'jobq_processed_total\{kind="k",outcome="(\w+)"\}', text)) == set(
        OUTCOMES
    )
    with pytest.raises(KeyError):
        metrics.finished("k", "mistyped", 0)


def test_kinds_beyond_200_become_other_and_known_ones_keep_their_name() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, kinds=["email.welcome"])
    for at in range(1000):
        metrics.submitted(f"made.up.{at}")
        metrics.finished(f"made.up.{at}", "success", 0)
    metrics.submitted("email.welcome")
    found = {
        labels: value
        for (name, labels), value in samples(registry).items()
        if name == "jobq_submitted_total"
    }
    assert len(found) == MAX_LABELS + 1
    assert found[(("kind", "other"),)] == 1000 - MAX_LABELS + 1
    assert found[(("kind", "email.welcome"),)] == 1


def test_queues_are_bounded_too() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    for at in range(1000):
        metrics.waited(f"q{at}", 1)
    counts = [key for key in samples(registry) if key[0] == "jobq_wait_duration_seconds_count"]
    assert len(counts) == MAX_LABELS + 1


@pytest.mark.parametrize(
    "name", ["", "\n", 'a"b\\c\nd', "é" * 200, "x" * 1_000_000, "\x00", "\udcff"]
)
def test_a_name_put_there_by_sql_is_a_clean_short_label(name: str) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.submitted(name)
    metrics.finished(name, "failed", 1)
    metrics.waited(name, 1)
    for _, labels in samples(registry):
        for label, value in labels:
            if label in ("kind", "queue"):
                assert re.fullmatch(r"[A-Za-z0-9._:/@-]{1,128}", value)


def test_names_of_any_number_and_length_take_no_memory() -> None:
    metrics = Metrics(CollectorRegistry())
    for at in range(5000):
        metrics.submitted(f"{at}" + "x" * 1000)
        metrics.submitted(f"{at}")
    assert len(metrics._submitted._found) <= 2 * MAX_LABELS
