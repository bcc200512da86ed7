"""What a finished job costs beside its statements: a line of the log, and its metrics.

30,000 jobs a second leave 33 us of a core for everything, so each part has a budget of its own.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

from prometheus_client import CollectorRegistry

from jobq import logs
from jobq.bench.report import Budget, Metric, Sample
from jobq.bench.stage import Benchmark, Stage
from jobq.metrics import Metrics

#: Calls timed together, how often, and windows: the best of many rounds is what a core of its own would take.
CALLS, ROUNDS, WINDOWS = 1_000, 50, 5
FIELDS: dict[str, Any] = {
    "job_id": 123456, "kind": "email.welcome", "queue": "default", "tenant": "acme", "attempt": 1,
    "outcome": "success", "seconds": 0.0123, "request_id": "abc-def-0123",
}  # fmt: skip


def microseconds(call: Callable[[], None]) -> float:
    """What one call takes, the best of many rounds."""

    def once() -> float:
        start = perf_counter()
        for _ in range(CALLS):
            call()
        return (perf_counter() - start) / CALLS * 1e6

    return min(once() for _ in range(ROUNDS))


def log_line(stage: Stage) -> Mapping[str, Sequence[Sample]]:
    """A JSON line with eight fields; the reference is a line of plain text by the standard library."""
    log = logs.get("jobq.bench")
    plain = logging.getLogger("bench.plain")
    plain.propagate = False
    with open(os.devnull, "w") as text, open(os.devnull, "wb", buffering=0) as nowhere:  # noqa: PTH123
        handler = logging.StreamHandler(text)
        plain.addHandler(handler)
        logs.configure("info", "json", stream=nowhere)
        try:
            windows = stage.windows(
                WINDOWS,
                lambda: microseconds(lambda: log.info("job finished", **FIELDS)),
                lambda: microseconds(lambda: plain.warning("job finished %s", FIELDS)),
            )
        finally:
            logs.reset()
            plain.removeHandler(handler)
    return {"log_line": [Sample(*window) for window in windows]}


def finished_metrics(stage: Stage) -> Mapping[str, Sequence[Sample]]:
    """The metrics of a job that waited, ran and ended."""
    metrics = Metrics(CollectorRegistry())

    def count() -> None:
        metrics.finished("email.welcome", "success", 0.2)
        metrics.waited("default", 0.001)

    return {"finished_metrics": [Sample(microseconds(count)) for _ in range(WINDOWS)]}


BENCHMARKS = (
    Benchmark(
        "a line of the log with eight fields, JSON, to nowhere",
        (
            Metric(
                "log_line", "us", "a line of text by the standard library's logging",
                Budget("value", "<=", 6),
            ),
        ),
        log_line,
        most_runs=1,  # of several windows
    ),
    Benchmark(
        "what a job adds to the metrics: a count and two histograms",
        (Metric("finished_metrics", "us", None, Budget("value", "<=", 10)),),
        finished_metrics,
        most_runs=1,
    ),
)  # fmt: skip
