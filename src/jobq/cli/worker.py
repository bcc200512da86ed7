"""`jobq worker`."""

from __future__ import annotations

from typing import Annotated

import typer

from jobq import config, logs
from jobq.cli.loading import load_app, settings_of
from jobq.errors import ConfigurationError

App = Annotated[
    str | None,
    typer.Option(
        "--app", metavar="MODULE:ATTRIBUTE", help="The JobQ whose handlers run. [JOBQ_APP]"
    ),
]


def worker(
    *,
    app: App = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:SLOTS]",
            help="A queue to serve, repeatable; with a number it has that many slots of its own."
            " Without any, every queue. [JOBQ_QUEUES]",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(metavar="N", help="Jobs that run at once in a process. [JOBQ_CONCURRENCY]"),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(
            min=1, max=256, metavar="N", help="Worker processes, supervised if there are several."
        ),
    ] = 1,
    http_addr: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where it answers /healthz, /readyz and /metrics; process n of several on the n-th"
            " port from there. [JOBQ_WORKER_HTTP_ADDR]",
        ),
    ] = None,
) -> None:
    """Run jobs until SIGTERM or Ctrl-C.

    Then what runs is finished within JOBQ_SHUTDOWN_TIMEOUT, and the rest released. Ends with 0 when everything is recorded, otherwise with 1; a second signal ends it at once
    with 128 + its number.
    """
    from jobq.cli.fleet import supervise_workers
    from jobq.cli.signals import StopSignals
    from jobq.cli.work import work
    from jobq.engine.pool import parse_queues

    signals = StopSignals()
    signals.install()
    given = {
        "app": app,
        "queues": ",".join(queue) if queue else None,
        "concurrency": concurrency,
        "worker_http_addr": http_addr,
    }
    settings = config.load(**given)
    if not settings.app:
        raise ConfigurationError("no app is named: give --app module:attribute or set JOBQ_APP")
    logs.configure(settings.log_level, settings.log_format)
    jobs = load_app(settings.app)
    settings = settings_of(jobs, **{**given, "app": settings.app})
    settings.require_database()
    queues = parse_queues((settings.queues or "").replace(",", " ").split())
    if processes > 1:
        raise typer.Exit(supervise_workers(settings, processes))
    work(settings, jobs.handlers, queues, signals)
