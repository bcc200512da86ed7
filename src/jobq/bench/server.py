"""The PostgreSQL server of a benchmark, and the databases it makes there and drops again."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from jobq.db import Conn
from jobq.embedded import EmbeddedServer
from jobq.migrate import migrate
from jobq.model import NewJob
from jobq.sql import Statements
from jobq.store import EnqueueStore, LimiterStore, run_sync

SCHEMA = "jobq"
PREFIX = "jobq_bench_"
#: Jobs of one transaction when a database is filled.
BATCH = 10_000


@dataclass(frozen=True)
class Database:
    """A database of its own, and a connection to look into it."""

    url: str
    conn: Conn

    def fill(self, jobs: Sequence[NewJob]) -> None:
        """Enqueue jobs in bulk, then tidy up, so that nothing of it runs while we measure."""
        store = EnqueueStore(Statements(SCHEMA), max_attempts=5, timeout=300.0)
        for first in range(0, len(jobs), BATCH):
            talk = store.enqueue_many(jobs[first : first + BATCH])
            with self.conn.transaction(), suppress(StopIteration):
                call = next(talk)
                while True:
                    call = talk.send(run_sync(self.conn, call))
        self.settle()

    def limit(self, scope: str, name: str, **change: object) -> None:
        """Set a limit (see `LimiterStore.set_limiter`)."""
        store = LimiterStore(Statements(SCHEMA))
        run_sync(self.conn, store.set_limiter(scope, name, change))

    def settle(self) -> None:
        """VACUUM, ANALYZE and CHECKPOINT, the last where this role may."""
        self.conn.execute("VACUUM (ANALYZE)")
        with suppress(psycopg.errors.InsufficientPrivilege):
            self.conn.execute("CHECKPOINT")

    def drained(self) -> bool:
        """Whether no job is live any more."""
        return not self.number("SELECT EXISTS (SELECT FROM jobq.job)")

    def number(self, query: str) -> float:
        """The one number (or truth) that a query gives."""
        row = self.conn.execute(query.encode()).fetchone()
        assert row is not None
        return float(row[0])


@dataclass(frozen=True)
class Server:
    """A server on which the benchmark may make databases."""

    url: str

    @contextmanager
    def connect(self) -> Iterator[Conn]:
        """A connection to the server's own database, for questions about the server."""
        conn: Conn = psycopg.connect(self.url, autocommit=True)
        with conn:
            yield conn

    @contextmanager
    def database(self) -> Iterator[Database]:
        """A fresh database with the schema; dropped at the end, whatever happens."""
        with self.empty_database() as database:
            migrate(database.url, SCHEMA)
            yield database

    @contextmanager
    def empty_database(self) -> Iterator[Database]:
        """The same without a schema."""
        name = PREFIX + uuid.uuid4().hex[:12]
        with self.connect() as admin:
            admin.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name))
            )
            try:
                url = make_conninfo(self.url, dbname=name)
                conn: Conn = psycopg.connect(url, autocommit=True)
                with conn:
                    yield Database(url, conn)
            finally:
                admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def open_server(url: str | None) -> Iterator[Server]:
    """The server at an address, or an embedded one of the benchmark's own: fsync on, settings as shipped."""
    if url is not None:
        yield Server(url)
        return
    folder = Path(tempfile.mkdtemp(prefix="jobq-bench-"))
    folder.chmod(0o711)  # as root, the server runs as somebody else, who has to pass
    try:
        server = EmbeddedServer(folder / "postgresql")
        try:
            server.start()
            yield Server(server.url())
        finally:
            server.remove()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
