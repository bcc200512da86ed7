"""`jobq jobs list` and `jobq jobs show`."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from jobq.cli.database import Database, connected
from jobq.cli.filters import Filters, Kind, Queue, Status, Tag, Tenant
from jobq.cli.show import Json, ago, cell, console, print_json, print_table, utc
from jobq.errors import JobNotFound
from jobq.store.jobs import Record

#: The largest id: PostgreSQL's bigint.
MAX_ID = 2**63 - 1
#: Characters of an error in a list; `jobq jobs show` has all of it.
ERROR_SHOWN = 120


def parse_id(text: str) -> int:
    """An id as it is given on the command line.

    Raises:
        typer.BadParameter: it is none.
    """
    if not re.fullmatch(r"[0-9]{1,19}", text) or not 0 < int(text) <= MAX_ID:
        raise typer.BadParameter(f"{text!r} is no id of a job")
    return int(text)


def list_jobs(
    *,
    status: Status = None,
    kind: Kind = None,
    queue: Queue = None,
    tenant: Tenant = None,
    tag: Tag = None,
    limit: Annotated[
        int, typer.Option(min=1, max=500, metavar="N", help="Jobs at most, up to 500.")
    ] = 50,
    before: Annotated[
        int | None, typer.Option(parser=parse_id, metavar="ID", help="Older ones than this job.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List jobs, newest first."""
    from jobq.api.shapes import summary

    filters = Filters.of(status, kind, queue, tenant, tag)
    with connected() as database:
        found = database.ask(
            database.jobs.list_jobs(most=limit + 1, before=before, **filters.arguments)
        )
    page = found[:limit]
    cursor = page[-1]["id"] if len(found) > limit else None
    if as_json:
        print_json({"jobs": [summary(job) for job in page], "nextCursor": cursor and str(cursor)})
    elif not page:
        typer.echo("no such jobs", err=True)
    else:
        print_jobs(page)
        if cursor is not None:
            typer.echo(f"there are more: --before {cursor}", err=True)


def show_job(
    id: Annotated[int, typer.Argument(metavar="ID", parser=parse_id, help="The job's id.")],
    *,
    as_json: Json = False,
) -> None:
    """Show everything about a job."""
    from jobq.api.shapes import job_view

    with connected() as database:
        job = find(database, id)
    if as_json:
        print_json(job_view(job))
    else:
        _print_job(job, job_view(job))


def find(database: Database, number: int) -> Record:
    """A job.

    Raises:
        JobNotFound: there is none with this id.
    """
    job = database.ask(database.jobs.find_job(number))
    if job is None:
        raise JobNotFound(f"there is no job {number}")
    return job


def print_jobs(jobs: list[Record]) -> None:
    """Print jobs as a table; queue and tenant only where they are not all `default`."""
    optional = [name for name in ("queue", "tenant") if any(job[name] != "default" for job in jobs)]
    with_errors = any(job["last_error"] for job in jobs)
    headers = ["ID#", "STATUS", "KIND", *(name.upper() for name in optional), "TRIES", "WHEN"]
    rows = [
        [
            job["id"], job["status"], job["kind"], *(job[name] for name in optional), tries(job), moment(job),
            *([_first_line(job["last_error"])] if with_errors else []),
        ]
        for job in jobs
    ]  # fmt: skip
    print_table([*headers, *(["LAST ERROR"] if with_errors else [])], rows, keep=2)


def tries(job: Record) -> str:
    """Attempts of those it may have."""
    return f"{job['attempts']}/{job['max_attempts'] or '-'}"


def moment(job: Record) -> str:
    """When it finished, started, or is due: what matters in its status."""
    match job["status"]:
        case "SCHEDULED" | "QUEUED":
            return ago(job["run_at"])
        case "RUNNING":
            return ago(job["started_at"])
    return ago(job["finished_at"])


def _first_line(error: str | None) -> str:
    line = (error or "").partition("\n")[0]
    return line if len(line) <= ERROR_SHOWN else line[: ERROR_SHOWN - 3] + "..."


def _print_job(job: Record, view: dict[str, Any]) -> None:
    out = console()
    for label, value in _facts(job, view):
        if value not in (None, "", []):
            line = cell(f"{label:<12}")
            line.stylize("bold")
            out.print(line.append_text(cell(value)))
    for label in ("payload", "result", "progress"):
        if job[label] is not None:
            out.print(cell(f"{label:<12}").append_text(cell(job[label])))
    for entry in view["errors"]:
        out.print()
        out.print(
            cell(f"attempt {entry.get('attempt', '?')}  {entry.get('outcome', '')}"), style="bold"
        )
        for text in str(entry["error"]).splitlines():
            out.print(cell(f"  {text}"))


def _facts(job: Record, view: dict[str, Any]) -> list[tuple[str, Any]]:
    times = [
        (label, job[name] and f"{utc(job[name]):%Y-%m-%d %H:%M:%S}Z, {ago(job[name])}")
        for label, name in (
            ("created", "created_at"), ("due", "run_at"), ("started", "started_at"), ("finished", "finished_at"),
        )
    ]  # fmt: skip
    return [
        ("job", job["id"]),
        ("kind", job["kind"]),
        ("status", job["status"]),
        (
            "",
            "cancel requested" if view["cancelRequested"] and job["status"] == "RUNNING" else None,
        ),
        ("held by", job["held_by"]),
        ("queue", job["queue"]),
        ("tenant", job["tenant"]),
        ("priority", job["priority"]),
        ("tries", tries(job)),
        ("timeout", job["timeout"] and f"{job['timeout']:g}s"),
        *times,
        ("worker", job["worker"]),
        ("tags", ", ".join(view["tags"])),
        ("idempotency", job["idempotency_key"]),
        ("unique", job["unique_key"]),
        ("concurrency", job["concurrency_key"]),
        ("request", view["requestId"]),
        ("", "its payload was dropped (JOBQ_KEEP_PAYLOAD)" if view["payloadDropped"] else None),
    ]
