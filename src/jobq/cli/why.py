"""`jobq why`: why a job waits, or what became of it."""

from __future__ import annotations

from typing import Annotated

import typer

from jobq.cli.database import Database, connected
from jobq.cli.filters import parse_id
from jobq.cli.show import Json, cell, console, print_json
from jobq.errors import JobNotFound
from jobq.model import JobStatus
from jobq.store import Facts
from jobq.why import Why, explain, view


def why(
    id: Annotated[int, typer.Argument(metavar="ID", parser=parse_id, help="The job's id.")],
    *,
    as_json: Json = False,
) -> None:
    """Say why a job waits, or what became of it."""
    with connected() as database:
        facts, found = ask(database, id)
    if as_json:
        print_json(view(facts, found))
    else:
        print_why(found)


def ask(database: Database, number: int) -> tuple[Facts, Why]:
    """Why a job is where it is.

    Raises:
        JobNotFound: there is none with this id.
    """
    facts = database.ask(database.why.why(number))
    if facts is None:
        raise JobNotFound(f"there is no job {number}")
    queued = facts.status is JobStatus.QUEUED
    ahead = database.ask(database.why.ahead(facts)) if queued else None
    return facts, explain(facts, ahead)


def print_why(found: Why) -> None:
    """The sentence, and one for each further reason."""
    out = console()
    out.print(cell(found.sentence))
    for other in found.also:
        out.print(cell(f"Besides: {other.sentence}"))
