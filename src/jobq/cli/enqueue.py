"""`jobq enqueue`."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Annotated, Any

import typer

from jobq import config, fields
from jobq.cli.loading import load_app
from jobq.cli.show import Json, print_json
from jobq.client import JobQ
from jobq.payload import parse


def _duration(text: str) -> float:
    try:
        return config.parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _time(text: str) -> datetime:
    try:
        return fields.parse_time(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def enqueue(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Which handler runs it.")],
    payload: Annotated[
        str,
        typer.Argument(metavar="[PAYLOAD]", help="Any JSON value; - reads it from standard input."),
    ] = "{}",
    *,
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="Whose job it is.")] = None,
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="Where it waits.")] = None,
    priority: Annotated[
        int | None, typer.Option(metavar="N", help="-100 to 100, higher first.")
    ] = None,
    delay: Annotated[
        float | None, typer.Option(parser=_duration, metavar="DURATION", help="From now, as 5m.")
    ] = None,
    run_at: Annotated[
        datetime | None,
        typer.Option(parser=_time, metavar="TIME", help="Not before, as 2030-01-01T12:00:00Z."),
    ] = None,
    max_attempts: Annotated[int | None, typer.Option(metavar="N", help="1 to 100.")] = None,
    timeout: Annotated[
        float | None, typer.Option(parser=_duration, metavar="DURATION", help="Of an attempt.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The same request again gives the same job.")
    ] = None,
    unique_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="At most one live job has it.")
    ] = None,
    concurrency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="What a cap on running jobs counts by.")
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Repeatable, at most 16.")
    ] = None,
    app: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:ATTRIBUTE",
            help="The JobQ that the kind and payload have to fit. [JOBQ_APP]",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Enqueue one job and print its id and status."""
    value = _read(payload)
    options: Any = {
        "tenant": tenant, "queue": queue, "priority": priority, "delay": delay, "run_at": run_at,
        "max_attempts": max_attempts, "timeout": timeout, "idempotency_key": idempotency_key,
        "unique_key": unique_key, "concurrency_key": concurrency_key, "tags": tag or None,
    }  # fmt: skip
    name = config.load(app=app).app
    with load_app(name) if name else JobQ() as jobs:
        if name:
            jobs.handlers.find(kind)
        [job] = jobs.enqueue_many([jobs.new(kind, value, **options)])
    if as_json:
        print_json({"id": job.id, "status": job.status, "created": job.created})
    else:
        typer.echo(f"{job.id} {job.status}" + ("" if job.created else " (it was there before)"))


def _read(payload: str) -> Any:
    data = sys.stdin.buffer.read() if payload == "-" else payload.encode("utf-8", "surrogateescape")
    try:
        return parse(data)
    except ValueError as error:
        raise typer.BadParameter(f"the payload is no JSON: {error}", param_hint="PAYLOAD") from None
