"""How the command line shows things: tables for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jobq.config import format_duration

#: The option of every command that shows something.
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]

_STYLES = {
    "DONE": "green", "RUNNING": "cyan", "QUEUED": "blue", "SCHEDULED": "yellow",
    "DEAD": "bold red", "FAILED": "red", "CANCELLED": "dim",
}  # fmt: skip
#: Columns of a line that goes to a file or a pipe: whatever it holds.
UNBOUNDED = 100_000


def console() -> Console:
    """Standard output: as wide as the terminal; what is piped is neither wrapped nor coloured."""
    return Console(
        width=None if sys.stdout.isatty() else UNBOUNDED, highlight=False, soft_wrap=False
    )


def print_json(value: Any) -> None:
    """Print a value as one indented JSON document."""
    data = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z, default=str)
    typer.echo(data.decode())


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]], *, keep: int = 1) -> None:
    """Print rows under headers.

    Args:
        headers: of the columns; numbers below one ending in `#` are aligned to the right.
        keep: how many of the first columns are never folded.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for n, header in enumerate(headers):
        right = header.endswith("#")
        table.add_column(
            header.removesuffix("#"), justify="right" if right else "left",
            no_wrap=n < keep or right, overflow="fold",
        )  # fmt: skip
    for row in rows:
        table.add_row(*(cell(value) for value in row))
    out = console()
    with out.capture() as captured:
        out.print(table)
    lines = captured.get().splitlines()
    typer.echo("\n".join(line.rstrip() for line in lines), color=True)


def cell(value: object) -> Text:
    """A value as a cell: never markup, control characters made visible."""
    text = "" if value is None else str(value)
    visible = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return Text(visible, style=_STYLES.get(visible, ""))


def utc(time: datetime | None) -> datetime | None:
    """A time as JSON shows it, whatever zone the session has."""
    return None if time is None else time.astimezone(UTC)


def ago(time: datetime | None) -> str:
    """A time as people say it: `3m20s ago`, `in 5m`."""
    if time is None:
        return ""
    seconds = (datetime.now(UTC) - time).total_seconds()
    if abs(seconds) < 1:
        return "now"
    text = format_duration(round(abs(seconds)))
    return f"{text} ago" if seconds > 0 else f"in {text}"
