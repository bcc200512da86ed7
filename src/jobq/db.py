"""Connections: a worker's direct sessions, a client's, and what a database error means."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg import DataError, IsolationLevel, errors
from psycopg.abc import Buffer
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types.datetime import TimestamptzBinaryLoader

from jobq import silence
from jobq.errors import ConfigurationError, DatabaseUnavailable
from jobq.silence import CLIENT_SILENCE, STATEMENT_LIMIT, WORKER_SILENCE

Row = tuple[Any, ...]
AsyncConn = psycopg.AsyncConnection[Row]
Conn = psycopg.Connection[Row]

#: Seconds that a client's statement waits for a lock.
CLIENT_LOCK_WAIT = 2.0
#: What none of our sessions inherits from its role, database, server or environment, whatever it does: how values are
#: written and read, how long a statement or an idle session lives (every limit is our own), under which isolation
#: it runs. Rivals lock and fence by the newest version of a row: under a stricter isolation than READ COMMITTED they would fail
#: instead of passing one another. `row_security` off makes a policy that would hide rows an error. A default of
#: read-only is not overruled: it is refused with a sentence.
PINNED = {
    "datestyle": "ISO, YMD",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "row_security": "off",
    "search_path": "",
    "statement_timeout": "0",
    "lock_timeout": f"{CLIENT_LOCK_WAIT:g}s",
    "idle_in_transaction_session_timeout": "60s",
    "idle_session_timeout": "0",
}
#: The same, since these versions of the server.
PINNED_SINCE = {170000: {"transaction_timeout": "0"}}
#: What a worker's own sessions have besides: a statement ends before its connection is given up (`jobq.silence`), and
#: planner settings (design.md 13): a queue table is empty at one ANALYZE and
#: full at the next, so a plan must never rest on its size. A nested loop over a batch that the planner takes
#: for ten pairs compares every pair with every row: 350 ms instead of 7 for 1,000 heartbeats; where only a
#: loop will do (LATERAL, in the claim) it is still taken. So every plan may be made once and kept; `jit` would
#: compile statements of a millisecond.
ENGINE = {
    "statement_timeout": STATEMENT_LIMIT,
    "lock_timeout": "0",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_mergejoin": "off",
    "enable_nestloop": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}
#: What a transaction in somebody else's session needs of these while our statements run in it; put back afterwards.
LENT = {name: PINNED[name] for name in ("array_nulls", "transform_null_equals")}
#: Seconds to wait for a connection.
CONNECT_TIMEOUT = 5
#: SQLSTATE classes and codes that say "not now" rather than "not this": connection lost (08), server
#: shutting down or starting (57P), too many connections and out of resources (53), read-only (25006).
_UNAVAILABLE = ("08", "57P", "53")
READ_ONLY = "PostgreSQL accepts no writes at the moment (read-only)"
#: SQLSTATEs of a lock that was not to be had, a statement that was cancelled or took too long, and rivals.
_NOT_NOW = frozenset({"55P03", "57014", "40P01", "40001"})


def conninfo(url: str) -> dict[str, Any]:
    """Parameters of a connection URL.

    Raises:
        ConfigurationError: it is no PostgreSQL URL; the text is not repeated, since it may hold a password.
    """
    try:
        return dict(conninfo_to_dict(url))
    except psycopg.ProgrammingError:
        raise ConfigurationError(
            "JOBQ_DATABASE_URL is no PostgreSQL URL: write for example postgresql://user@host/db"
        ) from None


async def connect_engine(url: str, name: str, **settings: str) -> silence.AsyncConnection:
    """A direct session of a worker, in autocommit, with everything pinned, the planner too.

    Args:
        url: connection URL.
        name: shown as application_name in pg_stat_activity.
        settings: further settings of the session, such as lock_timeout.
    """
    conn = await silence.AsyncConnection.connect(
        **_parameters(url, name), autocommit=True, prepare_threshold=1
    )
    conn.silence, conn.curt = WORKER_SILENCE, True
    try:
        await conn.execute(_PIN, _pins(conn, ENGINE, settings))
    except BaseException:
        await conn.close()
        raise
    return conn


def connect_engine_sync(url: str, name: str, **settings: str) -> silence.Connection:
    """The same for a thread (see `connect_engine`)."""
    conn = silence.Connection.connect(
        **_parameters(url, name), autocommit=True, prepare_threshold=1
    )
    conn.silence = WORKER_SILENCE
    try:
        conn.execute(_PIN, _pins(conn, ENGINE, settings))
    except BaseException:
        conn.close()
        raise
    return conn


async def connect(url: str, name: str = "jobq") -> AsyncConn:
    """A client's session, in autocommit, with what is `PINNED`.

    Through a transaction pooler nothing is: its sessions are everybody's. Statements there read and write values in
    binary or as text that no setting changes; `bounded` lends what is left, and psycopg asks for the isolation.
    A statement that is run with `prepare=True` is prepared, unless such a pooler is in between.
    """
    conn = await silence.AsyncConnection.connect(
        **_parameters(url, name), autocommit=True, prepare_threshold=None
    )
    conn.silence = CLIENT_SILENCE
    try:
        conn.adapters.register_loader("timestamptz", _ClampedTime)
        await conn.set_isolation_level(IsolationLevel.READ_COMMITTED)
        row = await (await conn.execute(_PIN_IF_DIRECT, _pins(conn))).fetchone()
    except BaseException:
        await conn.close()
        raise
    conn.prepare_threshold = _prepare_threshold(row)
    return conn


def connect_sync(url: str, name: str = "jobq", *, patient: bool = False) -> Conn:
    """The same for sync callers (see `connect`).

    Args:
        url: connection URL.
        name: shown as application_name in pg_stat_activity.
        patient: whether its statements may take as long as they will, such as those of a migration.
    """
    conn = silence.Connection.connect(
        **_parameters(url, name), autocommit=True, prepare_threshold=None
    )
    conn.silence = None if patient else CLIENT_SILENCE
    try:
        conn.adapters.register_loader("timestamptz", _ClampedTime)
        conn.isolation_level = IsolationLevel.READ_COMMITTED
        row = conn.execute(_PIN_IF_DIRECT, _pins(conn)).fetchone()
    except BaseException:
        conn.close()
        raise
    conn.prepare_threshold = _prepare_threshold(row)
    return conn


class _ClampedTime(TimestamptzBinaryLoader):
    """Times that Python cannot hold come as the first or last that it can: no row spoils the list it is in."""

    def load(self, data: Buffer) -> datetime:
        try:
            return super().load(data)
        except DataError:
            return _FIRST if bytes(data[:1]) >= b"\x80" else _LAST  # the sign of its microseconds


_FIRST, _LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def pin_locally(conn: Conn, **settings: str) -> None:
    """Pin what is `PINNED`, and further settings, until the end of the open transaction."""
    conn.execute(_PIN_LOCALLY, _pins(conn, settings))


_PIN = "SELECT set_config(name, value, false) FROM unnest(%(names)s::text[], %(values)s::text[]) AS s(name, value)"
_PIN_LOCALLY = _PIN.replace("false", "true")
# A pooler makes up the process id that it tells.
_PIN_IF_DIRECT = (
    "SELECT pg_backend_pid() = %(pid)s,"
    " (SELECT count(set_config(name, value, false)) FROM unnest(%(names)s::text[], %(values)s::text[]) AS s(name, value)"
    " WHERE pg_backend_pid() = %(pid)s)"
)


def _pins(conn: AsyncConn | Conn, *more: Mapping[str, str]) -> dict[str, list[str] | int]:
    wanted = dict(PINNED)
    for version, newer in PINNED_SINCE.items():
        if conn.info.server_version >= version:
            wanted |= newer
    for settings in more:
        wanted |= settings
    return {"names": list(wanted), "values": list(wanted.values()), "pid": conn.info.backend_pid}


def _prepare_threshold(row: Row | None) -> int | None:
    """Prepare on request on a direct connection, else never: a pooler mixes up the statements of its clients."""
    return sys.maxsize if row is not None and row[0] else None


@asynccontextmanager
async def bounded(
    conn: AsyncConn, *, lock: float, statement: float = 0.0
) -> AsyncIterator[AsyncConn]:
    """A transaction (or a savepoint in an open one) in which a lock is waited for `lock` seconds at most.

    The settings, and what is `LENT`, are local to it and put back, so a caller's own transaction keeps its own. A
    connection that is not in autocommit gets its implicit transaction first, and is left in it.

    Args:
        conn: an open connection, ours or a caller's.
        lock: seconds.
        statement: seconds a statement may take; 0 for no limit.
    """
    before = (
        None
        if _is_outermost(conn)
        else await (await _cursor(conn).execute(_LIMITS, (_LENT,), prepare=False)).fetchone()
    )
    async with conn.transaction():
        await _cursor(conn).execute(_LIMIT, (_LENT, _limits(lock, statement)), prepare=False)
        yield conn
        if before is not None:
            await _cursor(conn).execute(_LIMIT, (_LENT, before[0]), prepare=False)


@contextmanager
def bounded_sync(conn: Conn, *, lock: float, statement: float = 0.0) -> Iterator[Conn]:
    """The same for sync callers (see `bounded`)."""
    before = (
        None
        if _is_outermost(conn)
        else _cursor_sync(conn).execute(_LIMITS, (_LENT,), prepare=False).fetchone()
    )
    with conn.transaction():
        _cursor_sync(conn).execute(_LIMIT, (_LENT, _limits(lock, statement)), prepare=False)
        yield conn
        if before is not None:
            _cursor_sync(conn).execute(_LIMIT, (_LENT, before[0]), prepare=False)


_LENT = ["lock_timeout", "statement_timeout", *LENT]
_LIMITS = "SELECT array_agg(current_setting(name) ORDER BY n) FROM unnest(%s::text[]) WITH ORDINALITY AS s(name, n)"
_LIMIT = "SELECT count(set_config(name, value, true)) FROM unnest(%s::text[], %s::text[]) AS s(name, value)"


def _is_outermost(conn: psycopg.AsyncConnection[Any] | psycopg.Connection[Any]) -> bool:
    """Whether `conn.transaction()` begins a transaction, which takes its local settings with it."""
    return conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE


def _limits(lock: float, statement: float) -> list[str]:
    return [f"{lock * 1000:.0f}", f"{statement * 1000:.0f}", *LENT.values()]


def _cursor(conn: psycopg.AsyncConnection[Any]) -> psycopg.AsyncCursor[Row]:
    """A cursor of ours on anybody's connection, whatever its cursor and row factories are."""
    return psycopg.AsyncCursor(conn, row_factory=tuple_row)


def _cursor_sync(conn: psycopg.Connection[Any]) -> psycopg.Cursor[Row]:
    return psycopg.Cursor(conn, row_factory=tuple_row)


def is_pooled(conn: AsyncConn | Conn) -> bool:
    """Whether a client's session of ours goes through a transaction pooler, so that nothing is pinned in it."""
    return (
        isinstance(conn, silence.AsyncConnection | silence.Connection)
        and conn.prepare_threshold is None
    )


def must_wait(error: BaseException) -> bool:
    """Whether an error says "not now" though the database is there: a lock, a timeout or a rival was in the way."""
    return isinstance(error, psycopg.Error) and error.sqlstate in _NOT_NOW


def is_unavailable(error: BaseException) -> bool:
    """Whether an error says that the database is away or takes no writes, not that a statement is wrong."""
    if not isinstance(error, psycopg.Error):
        return isinstance(error, OSError)
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state.startswith(_UNAVAILABLE) or state == errors.ReadOnlySqlTransaction.sqlstate


def unavailable(error: BaseException) -> DatabaseUnavailable:
    """The error for a caller, without host names or SQL text."""
    if (
        isinstance(error, psycopg.Error)
        and error.sqlstate == errors.ReadOnlySqlTransaction.sqlstate
    ):
        return DatabaseUnavailable(READ_ONLY)
    return DatabaseUnavailable("PostgreSQL cannot be reached at the moment")


def _parameters(url: str, name: str) -> dict[str, Any]:
    given = conninfo(url)
    return {
        "connect_timeout": CONNECT_TIMEOUT,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 20_000,
        **given,
        "client_encoding": "UTF8",
        "application_name": given.get("application_name") or name,
    }
