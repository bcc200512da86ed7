"""Migrations: numbered SQL files, each applied once, whoever starts first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

import psycopg
from psycopg import sql

from jobq.db import CONNECT_TIMEOUT, Conn, conninfo
from jobq.errors import DatabaseUnavailable, SchemaError
from jobq.sql import Statements, migrations, read

#: Migrations that this version of jobq knows; the newest number is this client's version.
KNOWN = migrations()
CLIENT_VERSION = KNOWN[-1][0]
#: Days of archive partitions made ahead (design.md 5).
PARTITION_DAYS = 14


@dataclass(frozen=True)
class Migration:
    """A migration, and when it was applied (`None`: not yet)."""

    version: int
    name: str
    applied_at: datetime | None


def migrate(url: str, schema: str = "jobq") -> list[int]:
    """Apply what is missing, each migration in a transaction of its own; returns the versions applied.

    Safe to call from any number of processes at once: an advisory lock lets one work and the
    others find nothing left to do. A process killed in the middle leaves no half of a migration.

    Args:
        url: connection URL of a role that owns the schema, or may create it.
        schema: name of the schema, unquoted.

    Raises:
        DatabaseUnavailable: the server cannot be reached.
        SchemaError: the role may not, or the schema is too new for this version.
    """
    statements = Statements(schema)
    with _connected(url, schema) as conn:
        with conn.transaction():
            _lock(conn, schema)
            if _missing_bootstrap(conn, schema):
                conn.execute(statements.render("bootstrap.sql"))
        applied = [version for version, name in KNOWN if _apply(conn, statements, version, name)]
        check(conn, schema)
        make_partitions(conn, statements)
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


def _apply(conn: Conn, statements: Statements, version: int, name: str) -> bool:
    with conn.transaction():
        _lock(conn, statements.schema)
        if version in _applied(conn, statements.schema):
            return False
        conn.execute(statements.render(f"migrations/{name}"))
        conn.execute(_record(statements.schema, version, name))
    return True


def _record(schema: str, version: int, name: str) -> sql.Composed:
    return sql.SQL("INSERT INTO {}.migration (version, name) VALUES ({}, {})").format(
        sql.Identifier(schema), sql.Literal(version), sql.Literal(name)
    )


@contextmanager
def _connected(url: str, schema: str) -> Iterator[Conn]:
    """A connection for a while, its errors said in the words of this package."""
    given = {"connect_timeout": CONNECT_TIMEOUT, **conninfo(url)}
    try:
        with psycopg.connect(**given, autocommit=True, prepare_threshold=None) as conn:
            yield conn
    except psycopg.OperationalError as error:
        reason = str(error).partition("\n")[0]
        raise DatabaseUnavailable(f"PostgreSQL cannot be reached: {reason}") from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise SchemaError(
            f"this role may not use or change schema {schema!r}: run jobq migrate as its owner"
        ) from error


def _lock(conn: Conn, schema: str) -> None:
    conn.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s || '.migrate', 0))", (schema,))


def _missing_bootstrap(conn: Conn, schema: str) -> bool:
    return _table(conn, schema, "compatibility") is None


def _applied(conn: Conn, schema: str) -> dict[int, datetime]:
    if _table(conn, schema, "migration") is None:
        return {}
    rows = conn.execute(
        sql.SQL("SELECT version, applied_at FROM {}.migration").format(sql.Identifier(schema))
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
