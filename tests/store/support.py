"""What the store's tests share: rows in any status, an image of the database, rivals in a forced order."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from time import monotonic
from typing import Any, Protocol, TypeVar

import psycopg
from psycopg import sql

from jobq.db import Conn, connect_engine_sync
from jobq.model import LIVE, Claim, JobStatus, Lane, Outcome, Verdict
from jobq.sql import Statements
from jobq.store import (
    Call,
    ClaimSettings,
    EnqueueStore,
    JobStore,
    LimiterStore,
    RunStore,
    Share,
    Span,
    UpkeepStore,
    WhyStore,
    run_sync,
)

T = TypeVar("T")
Row = dict[str, Any]

#: Seconds until a test gives up waiting for an event.
PATIENCE = 20.0
#: Lease of rows that `put` makes, and one that nobody holds.
LEASE, OTHER_LEASE = 2**62 + 11, 2**62 + 12
LANE = Lane("default", "default", 0)
SETTINGS = ClaimSettings(
    worker="w1", lease_seconds=60, grace=10, default_max_attempts=5, default_timeout=300
)
KEEP_PAYLOAD = 8 * 1024


class Server(Protocol):
    """What the tests need of a PostgreSQL server."""

    def url(self, database: str = "postgres") -> str:
        """The address of one of its databases."""
        ...


class Store:
    """All statements of one schema."""

    def __init__(self, schema: str = "jobq") -> None:
        self.statements = Statements(schema)
        self.runs = RunStore(self.statements)
        self.upkeep = UpkeepStore(self.statements)
        self.jobs = JobStore(self.statements)
        self.limiters = LimiterStore(self.statements)
        self.why = WhyStore(self.statements)
        self.enqueue = EnqueueStore(self.statements, max_attempts=5, timeout=300)


STORE = Store()


@contextmanager
def new_database(server: Server, template: str) -> Iterator[str]:
    """A database that several tests share, copied from another one."""
    name = sql.Identifier(f"store_{uuid.uuid4().hex}")
    with psycopg.connect(server.url(), autocommit=True) as admin:
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
        admin.execute(statement.format(name, sql.Identifier(template)))
        try:
            yield server.url(name.as_string().strip('"'))
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


def engine(url: str, **settings: str) -> Conn:
    """A session as a worker has it."""
    conn = connect_engine_sync(url, "jobq test", **{"statement_timeout": "0", **settings})
    conn.silence = None  # a test may fill tables
    return conn


def client(url: str) -> Conn:
    """A session as the API and callers have it: unprepared, the planner as it comes."""
    return psycopg.connect(url, autocommit=True, prepare_threshold=None)


# --- rows -----------------------------------------------------------------------------------------

_STAMPS: Mapping[str, Mapping[str, str]] = {
    "SCHEDULED": {"run_at": "now() + interval '1 hour'"},
    "QUEUED": {"run_at": "now() - interval '1 minute'", "ready_at": "now() - interval '1 minute'"},
    "RUNNING": {
        "run_at": "now() - interval '1 minute'",
        "ready_at": "now() - interval '1 minute'",
        "started_at": "now() - interval '1 second'",
        "lease_until": "now() + interval '1 minute'",
        "deadline": "now() + interval '5 minutes'",
    },
}
_FINISHED_STAMPS = {
    "created_at": "now() - interval '2 minutes'",
    "run_at": "now() - interval '1 minute'",
    "finished_at": "now()",
}


def uncheck(conn: Conn, *columns: str) -> None:
    """Let live jobs hold anything in some columns, as before there were checks: a reader still bears it."""
    for column in columns:
        name = sql.Identifier(f"job_{column}_check")
        conn.execute(sql.SQL("ALTER TABLE jobq.job DROP CONSTRAINT {}").format(name))


def put(conn: Conn, status: str, /, **columns: Any) -> int:
    """Insert a job in any status by plain SQL and return its id; a `sql.SQL` value is an expression."""
    live = JobStatus(status) in LIVE
    stamps = _STAMPS[status] if live else _FINISHED_STAMPS
    values: dict[str, Any] = {name: sql.SQL(text) for name, text in stamps.items()}
    values |= {"kind": "test", "status": status, "max_attempts": 5, "timeout": 300.0}
    if status == "RUNNING":
        values |= {"lease": LEASE, "worker": "w1", "attempts": 1}
    if not live:
        values |= {
            "id": sql.SQL("nextval('jobq.job_id_seq')"),
            "class": "done" if status in ("DONE", "CANCELLED") else "dead",
            "queue": "default", "tenant": "default", "priority": 0, "attempts": 1, "lease": LEASE,
            "payload": sql.SQL("'{}'"),
        }  # fmt: skip
    return _insert(conn, "job" if live else "job_archive", values | columns)


def _insert(conn: Conn, table: str, values: Mapping[str, Any]) -> int:
    statement = sql.SQL("INSERT INTO {} ({}) VALUES ({}) RETURNING id").format(
        sql.Identifier("jobq", table),
        sql.SQL(", ").join(map(sql.Identifier, values)),
        sql.SQL(", ").join(
            value if isinstance(value, sql.Composable) else sql.Literal(value)
            for value in values.values()
        ),
    )
    return int(one(conn, statement)[0])


def give_key(conn: Conn, id_: int, key: str) -> None:
    """Let a job hold a unique key."""
    conn.execute(
        "INSERT INTO jobq.key (tenant, scope, key, job_id) VALUES ('default', 'live', %s, %s)",
        (key, id_),
    )


def one(conn: Conn, statement: Any, params: Any = None) -> tuple[Any, ...]:
    """The one row of a query."""
    row = conn.execute(statement, params).fetchone()
    assert row is not None
    return row


def job(conn: Conn, id_: int) -> Row:
    """All columns of a job, live or finished, and the table it lies in as `table`; free JSON as text."""
    rows = conn.execute(_JOB, {"id": id_}).fetchall()
    assert len(rows) == 1, f"job {id_} is {len(rows)} rows"
    return dict(rows[0][0])


_JOB = (
    "SELECT to_jsonb(j) || jsonb_build_object('table', 'job', 'payload', payload::text, 'meta', meta::text,"
    " 'result', result::text, 'progress', progress::text) FROM jobq.job j WHERE id = %(id)s"
    " UNION ALL"
    " SELECT to_jsonb(a) || jsonb_build_object('table', 'job_archive', 'payload', payload::text, 'meta', meta::text,"
    " 'result', result::text, 'progress', progress::text) FROM jobq.job_archive a WHERE id = %(id)s"
)


def status(conn: Conn, id_: int) -> str:
    """A job's status."""
    return str(job(conn, id_)["status"])


def image(conn: Conn) -> dict[str, str]:
    """Every row of the queue as text, by table and key."""
    rows = conn.execute(
        "SELECT 'job ' || id, to_jsonb(j)::text FROM jobq.job j"
        " UNION ALL SELECT 'archive ' || id, to_jsonb(a)::text FROM jobq.job_archive a"
        " UNION ALL SELECT concat_ws(' ', 'key', tenant, scope, key), to_jsonb(k)::text FROM jobq.key k"
    ).fetchall()
    assert len({name for name, _ in rows}) == len(rows), "a job is there twice"
    return dict(rows)


# --- operations -----------------------------------------------------------------------------------


def claim(
    lease: int, free: int = 100, *, most: int | None = None, spans: list[Span] | None = None
) -> Call[Any]:
    """A claim of one tenant's share."""
    share = Share(free if most is None else most, spans or [Span(LANE)])
    call = STORE.runs.claim(lease, free, [share], SETTINGS)
    return Call(call.name, call.statement, call.params, lambda rows: call.read(rows).jobs)


def complete(*claims: Claim, result: str | None = None) -> Call[set[Claim]]:
    """Success of some runs."""
    return STORE.runs.complete([Outcome(c, Verdict.SUCCESS, result=result) for c in claims])


def fail(*claims: Claim, verdict: Verdict = Verdict.RETRY, delay: float | None = 60.0) -> Call[Any]:
    """Failure of some runs."""
    outcomes = [Outcome(c, verdict, error="no luck", delay=delay) for c in claims]
    return STORE.runs.fail(outcomes, base=1.0, maximum=300.0)


def converse(conn: Conn, conversation: Any) -> Any:
    """Run a conversation of `EnqueueStore.enqueue_many` in a transaction."""
    with conn.transaction():
        try:
            call = next(conversation)
            while True:
                call = conversation.send(run_sync(conn, call))
        except StopIteration as end:
            return end.value


# --- rivals ---------------------------------------------------------------------------------------


class Rivals:
    """Sessions whose statements run in threads, so that a test can hold one of them at a lock."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._threads = ThreadPoolExecutor()
        self._conns: list[Conn] = []
        self.observer = self.session()

    def session(self, **settings: str) -> Conn:
        """One more session of a worker."""
        self._conns.append(engine(self.url, **settings))
        return self._conns[-1]

    def start(self, step: Callable[[], T]) -> Future[T]:
        """Run something in a thread of its own."""
        return self._threads.submit(step)

    def waits(self, conn: Conn, future: Future[Any]) -> bool:
        """Whether a session comes to stand at a lock (True) or gets done without (False).

        `pg_blocking_pids` is asked until one of both is so.
        """
        return stands(self.observer, conn.info.backend_pid, future)

    def close(self) -> None:
        """Close all sessions."""
        for conn in self._conns:
            conn.close()
        self._threads.shutdown()


def stands(observer: Conn, pid: int, future: Future[Any]) -> bool:
    """Whether a backend comes to stand at a lock (True), or its statement ends (False)."""
    end = monotonic() + PATIENCE
    while monotonic() < end:
        if wait_for([future], timeout=0.005).done:
            return False
        if one(observer, "SELECT cardinality(pg_blocking_pids(%s)) > 0", (pid,))[0]:
            return True
    raise AssertionError(f"backend {pid} neither waits nor ends")


def until(condition: Callable[[], T], what: str) -> T:
    """The first true value of a condition that the database decides, asked until a deadline."""
    end = monotonic() + PATIENCE
    while monotonic() < end:
        if value := condition():
            return value
    raise AssertionError(f"timed out: {what}")
