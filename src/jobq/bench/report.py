"""What a benchmark reports: metrics with their budgets, samples of runs, and the JSON they become."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from math import comb
from pathlib import Path
from typing import Any, Literal

#: Windows that disagree on a budget are judged by their median up to this spread, and not at all beyond it.
MAX_SPREAD = 0.1


@dataclass(frozen=True)
class Budget:
    """What a value, or its ratio to the reference, must keep (design.md section 6)."""

    of: Literal["value", "ratio"]
    sign: Literal[">=", "<="]
    limit: float

    def __str__(self) -> str:
        return f"{self.of} {self.sign} {self.limit:g}"

    def met(self, measured: float | None) -> bool:
        """Whether it is kept; a ratio that is missing keeps nothing."""
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
    """What one window measured: ours, and the reference beside it where there is one.

    A run has one window or several. Whatever else the machine does during a window slows both down.
    """

    value: float
    reference: float | None = None


@dataclass(frozen=True)
class Result:
    """A metric over all windows of all runs.

    `value` and `reference_value` are medians. `ratio` is the median of the windows' own ratios: a neighbour's burst in
    one window changes both of its sides, and not the others. `ok` is None where there is no budget, and where `noisy`.
    """

    name: str
    value: float
    unit: str
    reference: str | None
    reference_value: float | None
    ratio: float | None
    budget: str | None
    ok: bool | None
    noisy: bool
    runs: list[float]
    reference_runs: list[float]

    @property
    def spread(self) -> float | None:
        """Largest minus smallest window, as a share of the median; None for a single one or a median of 0."""
        return _spread(self.runs, self.value)


def summarize(metric: Metric, samples: Sequence[Sample]) -> Result:
    """The result of a metric's samples, at least one."""
    runs = [sample.value for sample in samples]
    references = [sample.reference for sample in samples if sample.reference is not None]
    ratios = [sample.value / sample.reference for sample in samples if sample.reference]
    ratio = statistics.median(ratios) if ratios else None
    budget = metric.budget
    judged = runs if budget is None or budget.of == "value" else ratios
    noisy = budget is not None and _too_noisy(budget, judged)
    return Result(
        name=metric.name,
        value=_short(statistics.median(runs)),
        unit=metric.unit,
        reference=metric.reference,
        reference_value=_short(statistics.median(references)) if references else None,
        ratio=None if ratio is None else round(ratio, 3),
        budget=None if budget is None else str(budget),
        ok=None if budget is None or noisy else budget.met(_median(judged)),
        noisy=noisy,
        runs=[_short(run) for run in runs],
        reference_runs=[_short(run) for run in references],
    )


def _too_noisy(budget: Budget, judged: Sequence[float]) -> bool:
    """Whether the windows disagree on the budget, and lie too far apart for their median to settle it.

    What counts is the interval that holds the true median with 90 % confidence or more, whatever the distribution: all
    windows but as many at each end as the binomial distribution allows (Conover, "Practical Nonparametric
    Statistics", 3.2).
    """
    ordered = sorted(judged)
    cut = _cut(len(ordered))
    inner = ordered[cut : len(ordered) - cut]
    if len(inner) < 2 or budget.met(inner[0]) == budget.met(inner[-1]):
        return False
    return (_spread(inner, statistics.median(ordered)) or 0.0) > MAX_SPREAD


def _cut(windows: int) -> int:
    """How many windows may be left out at each end."""
    cut, tail = (
        0,
        0.5**windows,
    )  # the probability that at most `cut` windows lie below the true median
    while (tail := tail + comb(windows, cut + 1) * 0.5**windows) <= 0.05:
        cut += 1
    return cut


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _spread(values: Sequence[float], median: float) -> float | None:
    return (max(values) - min(values)) / median if len(values) > 1 and median else None


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
