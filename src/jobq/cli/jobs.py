"""`jobq jobs list` and `jobq jobs show`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from jobq.cli.database import Database, connected
from jobq.cli.filters import Filters, Kind, Queue, Status, Tag, Tenant, parse_id
from jobq.cli.show import Json, ago, cell, console, print_json, print_table, utc
from jobq.cli.why import ask, print_why
from jobq.config import format_duration
from jobq.errors import JobNotFound
from jobq.model import JobStatus
from jobq.store.jobs import Record

#: Characters of an error in a list: shown where at least so many fit, and at most so many.
LEAST_ERROR, MOST_ERROR = 16, 200


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
    """Show everything about a job, and why it waits if it does."""
    from jobq.api.shapes import job_view

    with connected() as database:
        job = find(database, id)
        waits = job["status"] in (JobStatus.SCHEDULED, JobStatus.QUEUED)
        reason = ask(database, id)[1] if waits and not as_json else None
    if as_json:
        print_json(job_view(job))
        return
    _print_job(job, job_view(job))
    if reason is not None:
        typer.echo()
        print_why(reason)


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
    headers = ["ID#", "STATUS", "KIND", *(name.upper() for name in optional), "TRIES", "WHEN"]
    rows: list[list[object]] = [
        [job["id"], job["status"], job["kind"], *(job[name] for name in optional), tries(job), moment(job)]
        for job in jobs
    ]  # fmt: skip
    columns = zip(headers, *rows, strict=True)
    widths = [max(len(str(value)) for value in column) for column in columns]
    room = console().width - sum(widths) - 2 * len(widths)
    if any(job["last_error"] for job in jobs) and room >= LEAST_ERROR:
        headers.append("LAST ERROR")
        for row, job in zip(rows, jobs, strict=True):
            row.append(_cut((job["last_error"] or "").partition("\n")[0], min(room, MOST_ERROR)))
    print_table(headers, rows, keep=2)


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


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _print_job(job: Record, view: dict[str, Any]) -> None:
    out = console()
    json = [(label, job[label]) for label in ("payload", "result", "progress")]
    for label, value in [*_facts(job, view), *json]:
        if value not in (None, "", []):
            line = cell(f"{label:<12}")
            line.stylize("bold")
            out.print(line.append_text(cell(value)))
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
        ("timeout", job["timeout"] and format_duration(job["timeout"])),
        *times,
        ("worker", job["worker"]),
        ("tags", ", ".join(map(str, view["tags"]))),
        ("idempotency", job["idempotency_key"]),
        ("unique", job["unique_key"]),
        ("concurrency", job["concurrency_key"]),
        ("request", view["requestId"]),
        ("", "its payload was dropped (JOBQ_KEEP_PAYLOAD)" if view["payloadDropped"] else None),
    ]
