"""What a benchmark reports: metrics with their budgets, samples of runs, and the JSON they become."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class Budget:
    """What a value, or its ratio to the reference, must keep (design.md section 6)."""

    of: Literal["value", "ratio"]
    sign: Literal[">=", "<="]
    limit: float

    def __str__(self) -> str:
        return f"{self.of} {self.sign} {self.limit:g}"

    def met(self, value: float, ratio: float | None) -> bool:
        """Whether it is kept; a ratio that is missing keeps nothing."""
        measured = value if self.of == "value" else ratio
        if measured is None:
            return False
        return measured >= self.limit if self.sign == ">=" else measured <= self.limit


@dataclass(frozen=True)
class Metric:
    """One line of the report.

    Args:
        name: as in contract.md, "Benchmarks".
        unit: of value and reference.
        reference: what is measured beside it in the same run, in words.
        budget: None where the number is only reported.
    """

    name: str
    unit: str
    reference: str | None = None
    budget: Budget | None = None


@dataclass(frozen=True)
class Sample:
    """What one run measured: ours, and the reference where there is one."""

    value: float
    reference: float | None = None


@dataclass(frozen=True)
class Result:
    """A metric over all runs. `value` and `reference_value` are medians, `ratio` theirs."""

    name: str
    value: float
    unit: str
    reference: str | None
    reference_value: float | None
    ratio: float | None
    budget: str | None
    ok: bool | None
    runs: list[float]
    reference_runs: list[float]

    @property
    def spread(self) -> float | None:
        """Largest minus smallest run, as a share of the median; None for a single run or a median of 0."""
        if len(self.runs) < 2 or not self.value:
            return None
        return (max(self.runs) - min(self.runs)) / self.value


def summarize(metric: Metric, samples: Sequence[Sample]) -> Result:
    """The result of a metric's samples, at least one."""
    runs = [sample.value for sample in samples]
    references = [sample.reference for sample in samples if sample.reference is not None]
    value = statistics.median(runs)
    reference = statistics.median(references) if references else None
    ratio = value / reference if reference else None
    budget = metric.budget
    return Result(
        name=metric.name,
        value=_short(value),
        unit=metric.unit,
        reference=metric.reference,
        reference_value=None if reference is None else _short(reference),
        ratio=None if ratio is None else round(ratio, 3),
        budget=None if budget is None else str(budget),
        ok=None if budget is None else budget.met(value, ratio),
        runs=[_short(run) for run in runs],
        reference_runs=[_short(run) for run in references],
    )


def document(machine: Mapping[str, Any], results: Sequence[Result]) -> dict[str, Any]:
    """The content of `bench/results/*.json` (contract.md, "Benchmarks")."""
    return {
        "machine": dict(machine),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "results": [asdict(result) for result in results],
    }


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a document, whole or not at all, making its folder where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    fresh.replace(path)


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile, `share` from 0 to 1."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _short(value: float) -> float:
    """Four significant digits or whole numbers: more would claim a precision that is not there."""
    return round(value) if abs(value) >= 1000 else float(f"{value:.4g}")
