"""`jobq bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def bench(
    *,
    only: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Run this one, or those that begin so."),
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs of each; the median counts.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, rough numbers.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 if a budget is missed.")
    ] = False,
    server_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="A PostgreSQL server to make databases on. Without it an embedded one.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="The JSON file to write. Without it bench/results/latest.json."),
    ] = None,
) -> None:
    """Measure jobq on this machine, beside references and budgets.

    In databases of its own, which are made and dropped: the configured one is not touched. All of them
    take about half an hour; docs/benchmarks.md tells what each does.
    """
    from jobq.bench import run  # the engine and the client, which other commands need not

    raise typer.Exit(
        run(only, runs=runs, quick=quick, check=check, server_url=server_url, output=output)
    )
