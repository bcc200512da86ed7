"""The command line's way to the database: one connection, every wait for a lock bounded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from psycopg import errors as pg

from jobq import config, db
from jobq.config import Settings
from jobq.errors import DatabaseUnavailable, SchemaError
from jobq.sql import Statements
from jobq.store import Call, JobStore, LimiterStore, WhyStore, run_sync

T = TypeVar("T")

#: Seconds that an operator's statement waits for a lock (design.md 14).
LOCK_WAIT = 2.0


@dataclass(frozen=True)
class Database:
    """An open connection, and what is asked on it."""

    settings: Settings
    conn: db.Conn
    jobs: JobStore
    limiters: LimiterStore
    why: WhyStore

    def ask(self, call: Call[T]) -> T:
        """Run one call.

        Raises:
            DatabaseUnavailable: a lock was not to be had.
        """
        try:
            with db.bounded_sync(self.conn, lock=LOCK_WAIT):
                return run_sync(self.conn, call)
        except pg.LockNotAvailable:
            raise DatabaseUnavailable(
                f"another transaction has held these jobs for {LOCK_WAIT:g} seconds; try again"
            ) from None


@contextmanager
def connected() -> Iterator[Database]:
    """A connection by the settings of the environment.

    Raises:
        ConfigurationError: no database is set.
        SchemaError: the schema is missing, or this role may not use it.
    """
    settings = config.load()
    try:
        with db.connect_sync(settings.require_database(), "jobq cli") as conn:
            statements = Statements(settings.schema_)
            jobs, limiters = JobStore(statements), LimiterStore(statements)
            yield Database(settings, conn, jobs, limiters, WhyStore(statements))
    except (pg.UndefinedTable, pg.UndefinedFunction, pg.InvalidSchemaName, pg.UndefinedColumn):
        raise SchemaError(
            f"schema {settings.schema_!r} is missing or older than this version: run jobq migrate"
        ) from None
    except pg.InsufficientPrivilege as error:
        raise SchemaError(
            f"this role may not: {error.diag.message_primary}; jobq migrate --grant ROLE helps"
        ) from None
