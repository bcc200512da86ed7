"""A store method does no I/O: it returns a `Call`, which runs on a sync or an async connection alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import psycopg
from psycopg.abc import Query

T = TypeVar("T")
Row = tuple[Any, ...]


@dataclass(slots=True, frozen=True)
class Call(Generic[T]):
    """One statement with its parameters, and how to read its rows."""

    name: str
    statement: Query
    params: Mapping[str, Any]
    read: Callable[[list[Row]], T]


async def run(conn: psycopg.AsyncConnection[Row], call: Call[T]) -> T:
    """Run a call on an async connection and read its answer."""
    cursor = await conn.execute(call.statement, call.params, binary=True)
    return call.read(await cursor.fetchall() if cursor.description else [])


def run_sync(conn: psycopg.Connection[Row], call: Call[T]) -> T:
    """Run a call on a sync connection and read its answer."""
    cursor = conn.execute(call.statement, call.params, binary=True)
    return call.read(cursor.fetchall() if cursor.description else [])


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
