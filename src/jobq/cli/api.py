"""`jobq api`."""

from __future__ import annotations

import os
import signal
from typing import Annotated

import typer

from jobq import config
from jobq.cli.lifeline import Lifeline
from jobq.cli.loading import load_app, settings_of

#: URL of the metrics of the worker beside; internal, set by `jobq dev`.
BESIDE_VARIABLE = "JOBQ_WORKER_METRICS_URL"

Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Serve an address that others reach, without asking for keys."),
]


def api(
    *,
    app: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:ATTRIBUTE",
            help="The JobQ whose kinds are taken; without it, any kind is. [JOBQ_APP]",
        ),
    ] = None,
    addr: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where it listens. [JOBQ_HTTP_ADDR]")
    ] = None,
    insecure: Insecure = False,
) -> None:
    """Serve the HTTP API until SIGTERM or Ctrl-C.

    Then /readyz answers 503 for JOBQ_DRAIN_DELAY, and requests under way are finished.
    """
    from jobq.api.serve import serve

    settings = config.load(app=app, http_addr=addr)
    lifeline = Lifeline.from_environment()
    handlers = None
    if settings.app:
        jobs = load_app(settings.app)
        settings, handlers = settings_of(jobs, app=settings.app, http_addr=addr), jobs.handlers
    if lifeline is not None:
        lifeline.watch(lambda: os.kill(os.getpid(), signal.SIGTERM))
    serve(
        settings,
        handlers=handlers,
        worker_metrics=os.environ.get(BESIDE_VARIABLE),
        insecure=insecure,
        ready=None if lifeline is None else lambda _url: lifeline.ready(),
    )
