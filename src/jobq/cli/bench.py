"""`jobq bench`."""

from __future__ import annotations

import importlib
from typing import Annotated

import typer

from jobq.errors import ConfigurationError


def bench(
    *,
    only: Annotated[
        str | None, typer.Option(metavar="NAME", help="Run this one benchmark.")
    ] = None,
    peers: Annotated[
        bool, typer.Option("--peers", help="Put the same loads on other queues.")
    ] = False,
) -> None:
    """Measure jobq on this machine, beside its budgets.

    In a database of its own, which is made and dropped.
    """
    try:
        benchmarks = importlib.import_module("jobq.bench")
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"the benchmarks are not installed: {error}") from None
    raise typer.Exit(benchmarks.run(only, peers=peers))
