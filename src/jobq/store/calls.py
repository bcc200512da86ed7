"""A store method does no I/O: it returns a `Call`, which runs on a sync or an async connection alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import psycopg
from psycopg.rows import tuple_row

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Row = tuple[Any, ...]


@dataclass(slots=True)  # not frozen: that costs half a microsecond a call
class Call(Generic[T_co]):
    """One statement with its parameters, and how to read its rows."""

    name: str
    statement: bytes
    params: Mapping[str, Any] | Sequence[Any]
    read: Callable[[list[Row]], T_co]


async def run(
    conn: psycopg.AsyncConnection[Any], call: Call[T], *, prepare: bool | None = None
) -> T:
    """Run a call on an async connection, whatever its row and cursor factories are, and read its answer.

    Args:
        conn: an open connection.
        call: what a store method returned.
        prepare: True to prepare it where the connection may, False never; None leaves it to the connection.
    """
    cursor = psycopg.AsyncCursor(conn, row_factory=tuple_row)
    await cursor.execute(call.statement, call.params, prepare=prepare, binary=True)
    if cursor.pgresult is None:  # in a caller's pipeline: leaving a nested one brings the answer
        async with conn.pipeline():
            pass
    return call.read(await cursor.fetchall() if _has_rows(cursor) else [])


def run_sync(conn: psycopg.Connection[Any], call: Call[T], *, prepare: bool | None = None) -> T:
    """The same for sync callers (see `run`)."""
    cursor = psycopg.Cursor(conn, row_factory=tuple_row)
    cursor.execute(call.statement, call.params, prepare=prepare, binary=True)
    if cursor.pgresult is None:
        with conn.pipeline():
            pass
    return call.read(cursor.fetchall() if _has_rows(cursor) else [])


def _has_rows(cursor: psycopg.AsyncCursor[Row] | psycopg.Cursor[Row]) -> bool:
    """Whether a statement returned rows, perhaps none; `cursor.description` would describe each column."""
    return cursor.pgresult is not None and cursor.pgresult.nfields > 0


def array(values: Iterable[object]) -> str:
    """A PostgreSQL array literal of numbers, booleans, text and None (PostgreSQL manual 8.15.2).

    It goes as a text parameter with a cast, which costs a fraction of psycopg's list adapter.
    """
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)
