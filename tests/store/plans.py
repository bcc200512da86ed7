"""Plans as they run: what a statement that a session keeps prepared touches, by EXPLAIN ANALYZE."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from jobq.db import Conn
from jobq.store import Call, run_sync

#: psycopg prepares at the second run, PostgreSQL thinks of a generic plan from the sixth on.
RUNS = 8
_EXPLAIN = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "


@dataclass(frozen=True)
class Plan:
    """What one run of a statement did."""

    tree: dict[str, Any]
    seconds: float

    @property
    def nodes(self) -> Iterator[dict[str, Any]]:
        """All nodes, from the top."""
        todo = [self.tree]
        while todo:
            node = todo.pop()
            yield node
            todo += node.get("Plans", ())

    @property
    def rows(self) -> float:
        """Rows that the nodes gave or looked at in vain."""
        names = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Join Filter")
        return sum(
            float(node["Actual Loops"] * sum(node.get(name, 0) for name in names))
            for node in self.nodes
        )

    @property
    def buffers(self) -> int:
        """Pages read, from memory or disk."""
        return int(self.tree["Shared Hit Blocks"] + self.tree["Shared Read Blocks"])

    def __str__(self) -> str:
        """The tree, for a failing test."""
        return "\n".join(_lines(self.tree, 0))


def warm(conn: Conn, call: Call[Any]) -> None:
    """Run a statement as often as it takes to have a plan that stays, and undo what it did."""
    with _undone(conn):
        for _ in range(RUNS):
            run_sync(conn, call)


def explain_prepared(conn: Conn, call: Call[Any]) -> Plan:
    """Explain a statement with the plan that the session has kept for it, and undo what it did."""
    name, types = _prepared(conn, call)
    order = dict.fromkeys(re.findall(rb"%\((\w+)\)s", call.statement))
    values = [
        sql.SQL("{}::{}").format(sql.Literal(call.params[param.decode()]), sql.SQL(type_))
        for param, type_ in zip(order, types, strict=True)
    ]
    arguments = sql.SQL("({})").format(sql.SQL(", ").join(values)) if values else sql.SQL("")
    with _undone(conn):
        row = conn.execute(
            sql.SQL(_EXPLAIN + "EXECUTE {} {}").format(sql.Identifier(name), arguments)
        ).fetchone()
    return _plan(row)


def explain(conn: Conn, call: Call[Any]) -> Plan:
    """Explain a statement planned anew, as callers' sessions do, and undo what it did."""
    with _undone(conn):
        row = conn.execute(_EXPLAIN.encode() + call.statement, call.params).fetchone()
    return _plan(row)


def _prepared(conn: Conn, call: Call[Any]) -> tuple[str, list[str]]:
    head = call.statement.splitlines()[0].decode().replace("%%", "%")
    row = conn.execute(
        "SELECT name, parameter_types::text[] FROM pg_prepared_statements WHERE starts_with(statement, %s)",
        (head,),
        prepare=False,
    ).fetchone()
    assert row is not None, f"{call.name} is not prepared"
    return row[0], row[1]


@contextmanager
def _undone(conn: Conn) -> Iterator[None]:
    # Past psycopg, which forgets its prepared statements at every rollback.
    conn.pgconn.exec_(b"BEGIN")
    try:
        yield
    finally:
        conn.pgconn.exec_(b"ROLLBACK")


def _plan(row: Any) -> Plan:
    found = row[0][0]
    return Plan(found["Plan"], found["Execution Time"] / 1000)


def _lines(node: dict[str, Any], depth: int) -> Iterator[str]:
    words = [node["Node Type"], node.get("Index Name", ""), node.get("CTE Name", "")]
    numbers = {
        name: node[name]
        for name in ("Plan Rows", "Actual Rows", "Actual Loops", "Rows Removed by Filter",
                     "Rows Removed by Join Filter", "Shared Hit Blocks")
        if node.get(name)
    }  # fmt: skip
    yield "  " * depth + " ".join(filter(None, words)) + f" {numbers}"
    for child in node.get("Plans", ()):
        yield from _lines(child, depth + 1)
