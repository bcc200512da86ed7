"""The command line: `jobq`."""

from __future__ import annotations

import typer

from jobq import __version__
from jobq.cli.api import api
from jobq.cli.dev import dev
from jobq.cli.group import Commands
from jobq.cli.worker import worker

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"jobq {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
) -> None:
    """A multi-tenant, fair job queue and worker pool for Python on PostgreSQL."""


for command in (dev, worker, api):
    app.command()(command)
