"""The command line: `jobq`."""

from __future__ import annotations

from typing import Annotated

import typer

from jobq import __version__
from jobq.cli.actions import cancel, retry
from jobq.cli.api import api
from jobq.cli.bench import bench
from jobq.cli.demo import demo
from jobq.cli.dev import dev
from jobq.cli.enqueue import enqueue
from jobq.cli.group import Commands
from jobq.cli.jobs import list_jobs, show_job
from jobq.cli.limit_lists import GROUPS
from jobq.cli.migrate import migrate
from jobq.cli.views import workers
from jobq.cli.why import why
from jobq.cli.worker import worker

_SETTINGS = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=_SETTINGS,
)
jobs = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List, show, retry and cancel jobs."
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"jobq {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """A multi-tenant, fair job queue and worker pool for Python on PostgreSQL.

    Settings come from the environment: JOBQ_DATABASE_URL and others, see docs/operations.md.
    """


for command in (
    dev,
    worker,
    api,
    migrate,
    enqueue,
    bench,
    demo,
    workers,
    why,
    retry,
    cancel,
):
    app.command()(command)
for name, of_jobs in (
    ("list", list_jobs),
    ("show", show_job),
    ("why", why),
    ("retry", retry),
    ("cancel", cancel),
):
    jobs.command(name)(of_jobs)
app.add_typer(jobs, name="jobs")
for name, group in GROUPS.items():
    app.add_typer(group, name=name)
