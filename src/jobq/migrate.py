"""Migrations: numbered SQL files, each applied once, whoever starts first."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

import psycopg
from psycopg import errors as pg
from psycopg import sql

from jobq import logs
from jobq.db import Conn, connect_sync, pin_locally
from jobq.errors import DatabaseUnavailable, SchemaError
from jobq.sql import Statements, migrations, read

#: Migrations that this version of jobq knows; the newest number is this client's version.
KNOWN = migrations()
CLIENT_VERSION = KNOWN[-1][0]
#: Days of archive partitions made ahead (design.md 5).
PARTITION_DAYS = 14
#: How long a migration waits for a lock: whoever comes after it waits behind it, workers and enqueues alike.
LOCK_WAIT = "200ms"
#: Seconds for which it tries again, and between tries: at first, and at most.
PATIENCE = 60.0
PAUSE_FIRST, PAUSE_MOST = 0.3, 3.0
#: How long a process waits while another one migrates; it holds nothing meanwhile.
TURN_WAIT = "10min"

log = logs.get("jobq.migrate")

T = TypeVar("T")


@dataclass(frozen=True)
class Migration:
    """A migration, and when it was applied (`None`: not yet)."""

    version: int
    name: str
    applied_at: datetime | None


def migrate(url: str, schema: str = "jobq") -> list[int]:
    """Apply what is missing, each migration in a transaction of its own; returns the versions applied.

    Safe to call from any number of processes at once: an advisory lock lets one work and the
    others find nothing left to do. A process killed in the middle leaves no half of a migration. A migration waits
    for locks by tries of `LOCK_WAIT`, between which everybody else goes on.

    Args:
        url: connection URL of a role that owns the schema, or may create it.
        schema: name of the schema, unquoted.

    Raises:
        DatabaseUnavailable: the server cannot be reached.
        SchemaError: the role may not, the schema is too new for this version, or a lock was not to be had for `PATIENCE` seconds.
    """
    statements = Statements(schema)
    with _connected(url, schema) as conn:
        _patiently(conn, schema, "bootstrap.sql", lambda: _bootstrap(conn, statements))
        applied = [
            version
            for version, name in KNOWN
            if _patiently(conn, schema, name, lambda: _apply(conn, statements, version, name))  # noqa: B023 - called at once
        ]
        check(conn, schema)
        _patiently(conn, schema, "make_partitions.sql", lambda: _partition(conn, statements))
    return applied


def status(url: str, schema: str = "jobq") -> list[Migration]:
    """All migrations this version knows, with the time each was applied.

    Raises:
        DatabaseUnavailable: the server cannot be reached.
    """
    with _connected(url, schema) as conn:
        applied = _applied(conn, schema)
    return [Migration(version, name, applied.get(version)) for version, name in KNOWN]


def script(schema: str = "jobq") -> str:
    """The SQL of all migrations, rendered for a schema, for those who apply it by other means."""
    statements = Statements(schema)
    parts = [statements.render("bootstrap.sql").decode()]
    for version, name in KNOWN:
        parts += [f"-- {name}", statements.render(f"migrations/{name}").decode()]
        parts.append(_record(schema, version, name).as_string() + ";")
    return "BEGIN;\n" + "\n".join(parts) + "\nCOMMIT;\n"


def grant(url: str, role: str, schema: str = "jobq") -> None:
    """Give a runtime role what it needs to enqueue and to work, without owning anything.

    Raises:
        DatabaseUnavailable: the server cannot be reached.
        SchemaError: this role does not own the schema.
    """
    text = sql.SQL(read("grant.sql")).format(
        schema=sql.Identifier(schema), role=sql.Identifier(role)
    )
    with _connected(url, schema) as conn, conn.transaction():
        if not _may_migrate(conn, schema):  # PostgreSQL itself only warns, and grants nothing
            raise SchemaError(
                f"this role does not own schema {schema!r}, so it cannot grant its use"
            )
        conn.execute(text.as_bytes())


def check(conn: Conn, schema: str) -> None:
    """Refuse a schema that this version cannot work with.

    Raises:
        SchemaError: it is missing or incomplete ("run jobq migrate"), or made for newer clients only.
    """
    applied = _applied(conn, schema)
    missing = [name for version, name in KNOWN if version not in applied]
    if missing:
        raise SchemaError(f"schema {schema!r} lacks {', '.join(missing)}: run jobq migrate")
    row = conn.execute(
        sql.SQL("SELECT oldest_client FROM {}.compatibility").format(sql.Identifier(schema))
    ).fetchone()
    if row is not None and isinstance(row[0], int) and row[0] > CLIENT_VERSION:
        raise SchemaError(
            f"schema {schema!r} needs a newer jobq (client {row[0]}, this one is {CLIENT_VERSION})"
        )


def ensure(url: str, schema: str, *, auto: bool) -> None:
    """Bring the schema up to date at start where this role may, else only check it.

    Args:
        url: connection URL.
        schema: name of the schema, unquoted.
        auto: JOBQ_AUTO_MIGRATE.

    Raises:
        SchemaError, DatabaseUnavailable: see `migrate` and `check`.
    """
    with _connected(url, schema) as conn:
        behind = any(version not in _applied(conn, schema) for version, _ in KNOWN)
        if behind and auto and _may_migrate(conn, schema):
            migrate(url, schema)
        check(conn, schema)


def make_partitions(conn: Conn, statements: Statements) -> None:
    """Make the archive's partitions for the coming days; returns at once where they exist."""
    conn.execute(statements["make_partitions"], {"days": PARTITION_DAYS})


def _bootstrap(conn: Conn, statements: Statements) -> None:
    with _step(conn, statements.schema):
        if _missing_bootstrap(conn, statements.schema):
            conn.execute(statements.render("bootstrap.sql"))


def _apply(conn: Conn, statements: Statements, version: int, name: str) -> bool:
    if version in _applied(conn, statements.schema):
        return False
    with _step(conn, statements.schema):
        if version in _applied(conn, statements.schema):
            return False
        conn.execute(statements.render(f"migrations/{name}"))
        conn.execute(_record(statements.schema, version, name))
    return True


def _partition(conn: Conn, statements: Statements) -> None:
    with _step(conn, statements.schema):
        make_partitions(conn, statements)


@contextmanager
def _step(conn: Conn, schema: str) -> Iterator[None]:
    """A transaction of one process at a time, in which no lock is waited for longer than `LOCK_WAIT`."""
    with conn.transaction():
        pin_locally(conn, lock_timeout=TURN_WAIT)
        conn.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s || '.migrate', 0))", (schema,)
        )
        pin_locally(conn, lock_timeout=LOCK_WAIT)
        yield


def _patiently(conn: Conn, schema: str, name: str, step: Callable[[], T]) -> T:
    """Run a step, and again where a lock was not to be had, for `PATIENCE` seconds."""
    ends = time.monotonic() + PATIENCE
    pause = PAUSE_FIRST
    told = logs.Repeat(log, every=10.0)
    while True:
        try:
            return step()
        except (pg.LockNotAvailable, pg.DeadlockDetected):
            holder = _holder(conn, schema)
            if time.monotonic() > ends:
                raise SchemaError(
                    f"{name} was not applied: for {PATIENCE:g} seconds {holder}; end that and run jobq migrate again"
                ) from None
            told.warning(
                "a migration waits for a lock; it tries again", migration=name, reason=holder
            )
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, PAUSE_MOST)


_HOLDER = """
SELECT a.pid, coalesce(nullif(a.application_name, ''), a.backend_type), a.state, c.relname,
       extract(epoch FROM clock_timestamp() - a.xact_start)::bigint
FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid JOIN pg_catalog.pg_class c ON c.oid = l.relation
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE l.granted AND l.locktype = 'relation' AND l.pid <> pg_backend_pid() AND n.nspname = %s AND c.relkind IN ('r', 'p')
  AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
ORDER BY a.xact_start, a.pid, c.relname LIMIT 1
"""


def _holder(conn: Conn, schema: str) -> str:
    """Whose transaction has held a table the longest, as a clause."""
    row = conn.execute(_HOLDER, (schema,)).fetchone()
    if row is None:
        return "another transaction held a lock"
    pid, application, state, table, seconds = row
    return f"process {pid} ({application}, {state or 'state unknown'}) has held table {table} in a transaction of {seconds} seconds"


def _record(schema: str, version: int, name: str) -> sql.Composed:
    return sql.SQL("INSERT INTO {}.migration (version, name) VALUES ({}, {})").format(
        sql.Identifier(schema), sql.Literal(version), sql.Literal(name)
    )


@contextmanager
def _connected(url: str, schema: str) -> Iterator[Conn]:
    """A connection for a while, its errors said in the words of this package."""
    try:
        with connect_sync(url, "jobq migrate", patient=True) as conn:
            yield conn
    except psycopg.OperationalError as error:
        reason = str(error).partition("\n")[0]
        raise DatabaseUnavailable(f"PostgreSQL cannot be reached: {reason}") from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise SchemaError(
            f"this role may not use or change schema {schema!r}: run jobq migrate as its owner"
        ) from error


def _missing_bootstrap(conn: Conn, schema: str) -> bool:
    return _table(conn, schema, "compatibility") is None


def _applied(conn: Conn, schema: str) -> dict[int, datetime]:
    if _table(conn, schema, "migration") is None:
        return {}
    rows = conn.execute(
        sql.SQL("SELECT version, applied_at FROM {}.migration").format(sql.Identifier(schema)),
        binary=True,
    )
    return {
        version: at for version, at in rows if isinstance(version, int) and isinstance(at, datetime)
    }


def _table(conn: Conn, schema: str, name: str) -> object:
    row = conn.execute(
        "SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s",
        (schema, name),
    ).fetchone()
    return row[0] if row else None


def _may_migrate(conn: Conn, schema: str) -> bool:
    row = conn.execute(
        "SELECT coalesce((SELECT pg_has_role(nspowner, 'USAGE') FROM pg_catalog.pg_namespace"
        " WHERE nspname = %s), has_database_privilege(current_database(), 'CREATE'))",
        (schema,),
    ).fetchone()
    return bool(row and row[0])
