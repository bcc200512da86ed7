"""`jobq jobs retry` and `jobq jobs cancel`, by id or, with a preview, by filter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

import typer

from jobq.cli.database import Database, connected
from jobq.cli.filters import PAGE, Filters, Kind, Queue, Status, Tag, Tenant, parse_id
from jobq.cli.jobs import find, print_jobs
from jobq.cli.show import Json, print_json
from jobq.errors import JobNotFound, WrongStatus
from jobq.model import JobStatus

Ids = Annotated[list[int] | None, typer.Argument(metavar="ID", parser=parse_id, help="Jobs by id.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it to all that the filters match.")]
Force = Annotated[bool, typer.Option("--force", help="FAILED and CANCELLED jobs too.")]

#: Jobs that a preview shows, and at most counts.
SHOWN, COUNTED = 10, 20 * PAGE

#: Does it to jobs; returns the new status by id, for those it applied to.
Act = Callable[[Database, list[int]], dict[int, JobStatus]]


def retry(
    ids: Ids = None,
    *,
    status: Status = None,
    kind: Kind = None,
    queue: Queue = None,
    tenant: Tenant = None,
    tag: Tag = None,
    force: Force = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Queue jobs again.

    DEAD ones start over with all their attempts, SCHEDULED ones run now. Filters without ids show what would be retried (DEAD jobs, unless --status says otherwise);
    --yes does it.
    """
    filters = Filters.of(status, kind, queue, tenant, tag)

    def act(database: Database, numbers: list[int]) -> dict[int, JobStatus]:
        done = database.ask(database.jobs.retry(numbers, force=force))
        return dict.fromkeys(done, JobStatus.QUEUED)

    if ids:
        _by_id(ids, filters, act, partial(_why_no_retry, force), as_json=as_json)
    else:
        _by_filter(
            "retry", filters, filters.with_statuses(JobStatus.DEAD), act, yes=yes, as_json=as_json
        )


def cancel(
    ids: Ids = None,
    *,
    status: Status = None,
    kind: Kind = None,
    queue: Queue = None,
    tenant: Tenant = None,
    tag: Tag = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Cancel jobs that wait or run, dismiss DEAD and FAILED ones.

    Those that run are asked to stop; one that finishes anyway keeps its outcome. Filters without ids show what would be cancelled (SCHEDULED, QUEUED and RUNNING jobs, unless
    --status says otherwise); --yes does it.
    """
    filters = Filters.of(status, kind, queue, tenant, tag)

    def act(database: Database, numbers: list[int]) -> dict[int, JobStatus]:
        return database.ask(database.jobs.cancel(numbers, database.settings.keep_payload))

    def act_once(database: Database, numbers: list[int]) -> dict[int, JobStatus]:
        """What is CANCELLED already counts as done."""
        done = act(database, numbers)
        left = [number for number in numbers if number not in done]
        again = [n for n in left if find(database, n)["status"] == JobStatus.CANCELLED]
        return done | dict.fromkeys(again, JobStatus.CANCELLED)

    live = (JobStatus.SCHEDULED, JobStatus.QUEUED, JobStatus.RUNNING)
    if ids:
        _by_id(ids, filters, act_once, _why_no_cancel, as_json=as_json)
    else:
        _by_filter("cancel", filters, filters.with_statuses(*live), act, yes=yes, as_json=as_json)


def _by_id(
    ids: list[int],
    filters: Filters,
    act: Act,
    why_not: Callable[[Database, int], str],
    *,
    as_json: bool,
) -> None:
    if filters.arguments:
        raise typer.BadParameter("give either ids or filters, not both")
    done: dict[int, JobStatus] = {}
    with connected() as database:
        for number in ids:
            try:
                applied = _apply(act, database, number, why_not)
            except (JobNotFound, WrongStatus) as error:
                typer.echo(f"jobq: {error}", err=True)
                continue
            done |= applied
            if not as_json:
                asked = applied[number] is JobStatus.RUNNING
                typer.echo(f"{number} {'RUNNING, asked to stop' if asked else applied[number]}")
    if as_json:
        print_json({"jobs": [{"id": number, "status": status} for number, status in done.items()]})
    if len(done) < len(set(ids)):
        raise typer.Exit(1)


def _apply(
    act: Act, database: Database, number: int, why_not: Callable[[Database, int], str]
) -> dict[int, JobStatus]:
    applied = act(database, [number])
    if not applied:
        raise WrongStatus(why_not(database, number))
    return applied


def _by_filter(
    verb: str, given: Filters, filters: Filters, act: Act, *, yes: bool, as_json: bool
) -> None:
    if not given.arguments:
        raise typer.BadParameter(
            f"which jobs? give ids, or filters such as --status or --kind ({verb})"
        )
    with connected() as database:
        if yes:
            _do(verb, database, filters, act, as_json)
        else:
            _preview(verb, database, filters, as_json)


def _do(verb: str, database: Database, filters: Filters, act: Act, as_json: bool) -> None:
    matched = applied = 0
    for page in filters.pages(database):
        matched += len(page)
        applied += len(act(database, sorted(job["id"] for job in page)))
    if as_json:
        print_json({"matched": matched, "applied": applied})
    else:
        rest = f"; {matched - applied} had changed or may not" if applied < matched else ""
        typer.echo(f"{verb}: {applied} of {matched} jobs{rest}")


def _preview(verb: str, database: Database, filters: Filters, as_json: bool) -> None:
    pages = list(filters.pages(database, COUNTED))
    jobs = [job for page in pages for job in page]
    count = f"{len(jobs)}" if len(jobs) < COUNTED else f"{COUNTED} or more"
    if as_json:
        print_json({"matched": len(jobs), "applied": 0})
        return
    if jobs:
        print_jobs(jobs[:SHOWN])
    more = f", of which {SHOWN} are shown" if len(jobs) > SHOWN else ""
    typer.echo(f"{verb} would apply to {count} jobs{more}; nothing was done: add --yes", err=True)


def _why_no_retry(force: bool, database: Database, number: int) -> str:
    job = find(database, number)
    match job["status"]:
        case "DONE":
            return f"job {number} is DONE; enqueue a new one"
        case "FAILED" | "CANCELLED" if not force:
            return f"job {number} is {job['status']}: --force runs it again all the same"
        case "FAILED" | "CANCELLED" | "DEAD" if job["payload"] is None:
            return f"job {number}: its payload was dropped when it finished; enqueue a new one"
        case "FAILED" | "CANCELLED" | "DEAD":
            return f"job {number}: another live job holds its unique key"
    return f"job {number} is {job['status']}: nothing to retry"


def _why_no_cancel(database: Database, number: int) -> str:
    return f"job {number} is {find(database, number)['status']} already"
