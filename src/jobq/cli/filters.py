"""Which jobs a command is about: the filters of GET /api/jobs as options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from jobq import fields
from jobq.cli.database import Database
from jobq.errors import InvalidJob
from jobq.model import JobStatus
from jobq.store.jobs import Record

Status = Annotated[
    list[str] | None,
    typer.Option(
        "--status", metavar="STATUS", help="Jobs of this status, in any case; repeatable."
    ),
]
Kind = Annotated[str | None, typer.Option("--kind", metavar="KIND", help="Jobs of this kind.")]
Queue = Annotated[str | None, typer.Option("--queue", metavar="QUEUE", help="Jobs of this queue.")]
Tenant = Annotated[
    str | None, typer.Option("--tenant", metavar="TENANT", help="Jobs of this tenant.")
]
Tag = Annotated[str | None, typer.Option("--tag", metavar="TAG", help="Jobs with this tag.")]

#: Jobs that are read at a time.
PAGE = 500
#: The largest id: PostgreSQL's bigint.
MAX_ID = 2**63 - 1


def parse_id(text: str) -> int:
    """An id as it is given on the command line.

    Raises:
        typer.BadParameter: it is none.
    """
    if not re.fullmatch(r"[0-9]{1,19}", text) or not 0 < int(text) <= MAX_ID:
        raise typer.BadParameter(f"{text!r} is no id of a job")
    return int(text)


@dataclass(frozen=True)
class Filters:
    """Filters that were checked; `arguments` are those of `JobStore.list_jobs`."""

    arguments: dict[str, Any]

    @classmethod
    def of(
        cls,
        status: list[str] | None,
        kind: str | None,
        queue: str | None,
        tenant: str | None,
        tag: str | None,
    ) -> Filters:
        """Check options.

        Raises:
            typer.BadParameter: one has a value that no job can have.
        """
        try:
            checked = fields.check({"queue": queue, "tenant": tenant, "tags": tag and [tag]})
            if kind is not None:
                checked |= fields.check({"kind": kind})
        except InvalidJob as error:
            raise typer.BadParameter(str(error)) from None
        if "tags" in checked:
            checked["tag"] = checked.pop("tags")[0]
        if status:
            checked["statuses"] = [_status(text) for text in status]
        return cls(checked)

    def with_statuses(self, *statuses: JobStatus) -> Filters:
        """The same with these statuses where none was given."""
        return Filters({"statuses": [str(status) for status in statuses]} | self.arguments)

    def pages(self, database: Database, most: int | None = None) -> Iterator[list[Record]]:
        """The jobs, newest first, in pages; those that come meanwhile are left out.

        Args:
            most: jobs after which it ends.
        """
        before: int | None = None
        while most is None or most > 0:
            size = PAGE if most is None else min(PAGE, most)
            page = database.ask(database.jobs.list_jobs(most=size, before=before, **self.arguments))
            if page:
                yield page
            if len(page) < size:
                return
            before = page[-1]["id"]
            most = None if most is None else most - len(page)


def _status(text: str) -> str:
    try:
        return JobStatus(text.upper()).value
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no status; those are {', '.join(JobStatus)}", param_hint="--status"
        ) from None
