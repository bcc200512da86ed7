"""Benchmarks: jobq beside its references, in the same run, on a database of their own (docs/benchmarks.md).

Each benchmark starts real worker processes with the log level as shipped. Nothing here reads the
user's own settings or touches the configured database.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from jobq.bench import catalog, display, machine
from jobq.bench.children import BenchmarkFailed
from jobq.bench.report import Metric, Result, Sample, document, summarize, write
from jobq.bench.server import open_server
from jobq.bench.stage import QUICK, Benchmark, Sizes, Stage

__all__ = ["RESULTS", "RUNS", "measure", "run"]

#: Where results go, from the directory the benchmark is started in.
RESULTS = Path("bench/results/latest.json")
#: Runs of each benchmark: five windows are the fewest whose extremes enclose the median with 90 % confidence.
RUNS = 5


def run(
    only: str | None = None,
    *,
    runs: int = RUNS,
    quick: bool = False,
    check: bool = False,
    server_url: str | None = None,
    output: Path | None = None,
    console: Console | None = None,
) -> int:
    """Run benchmarks, show a table and write the results.

    Args:
        only: a name, or the beginning of one or more; None for all.
        runs: of each benchmark; the median counts. Those that take minutes run once.
        quick: small sizes, for a look; the numbers are rough.
        check: whether a missed budget is a failure.
        server_url: a server whose role may create databases; without it an embedded one of its own.
        output: the JSON file to write; without it `RESULTS`.
        console: where to show progress and table.

    Returns:
        An exit code: 1 if a benchmark failed, or missed its budget and `check` is set; else 0.

    Raises:
        ConfigurationError: there is no benchmark of that name.
    """
    chosen = catalog.select(only)
    console = console or display.terminal()
    with _ended_by_sigterm(), open_server(server_url) as server:
        with server.connect() as conn:
            host = machine.describe(conn)
        folder = (output or RESULTS).parent
        stage = Stage(server, sizes=QUICK if quick else Sizes(), pictures=folder)
        results, failed = measure(chosen, stage, runs, console)
    _show(console, host, results, failed)
    write(output or RESULTS, document(host, results))
    missed = check and any(result.ok is False for result in results)
    return 1 if failed or missed else 0


def measure(
    chosen: Sequence[tuple[Benchmark, list[Metric]]], stage: Stage, runs: int, console: Console
) -> tuple[list[Result], list[str]]:
    """Run what was chosen.

    Returns:
        The results, and a sentence for each benchmark that could not be carried out.
    """
    results: list[Result] = []
    failed: list[str] = []
    counts = [min(runs, benchmark.most_runs or runs) for benchmark, _ in chosen]
    bars = display.Bars(console, sum(counts))
    stage = replace(stage, show=bars.show, tell=bars.tell)
    with bars.shown():
        for (benchmark, metrics), count in zip(chosen, counts, strict=True):
            try:
                samples = _samples(benchmark, metrics[0].name, count, stage, bars)
            except BenchmarkFailed as error:
                failed.append(f"{metrics[0].name}: {error}")
            else:
                results += [
                    summarize(metric, [s for one in samples for s in _windows(one[metric.name])])
                    for metric in metrics
                ]
    return results, failed


def _samples(
    benchmark: Benchmark, name: str, count: int, stage: Stage, bars: display.Bars
) -> list[Mapping[str, Sample | Sequence[Sample]]]:
    """All runs of one benchmark."""
    samples = []
    for index in range(count):
        bars.begin(name, index, count)
        with tempfile.TemporaryDirectory(prefix="jobq-bench-") as folder:
            samples.append(benchmark.measure(replace(stage, run=index, folder=Path(folder))))
        bars.end()
    return samples


def _windows(measured: Sample | Sequence[Sample]) -> Sequence[Sample]:
    return [measured] if isinstance(measured, Sample) else measured


def _show(
    console: Console, host: dict[str, Any], results: Sequence[Result], failed: Sequence[str]
) -> None:
    console.print(
        f"{host['cpu']}, {host['cores']} cores, {host['memory_gib']} GiB, {host['kernel']}, "
        f"Python {host['python']}, PostgreSQL {host['postgresql']}"
    )
    console.print(display.table(results))
    for result in results:
        if result.noisy:
            console.print(
                f"{result.name}: too noisy to judge ({result.budget}); try a quieter machine",
                style="yellow",
                markup=False,
            )
    for sentence in failed:
        console.print(sentence, style="bold red", markup=False)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the benchmark as an exception does: processes and databases go with it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
