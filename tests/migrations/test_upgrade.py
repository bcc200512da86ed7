"""Newer migrations on a schema in use: odd rows are brought into bounds, and nobody waits behind a lock that is not to be had."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import errors, sql
from tests.store.support import client, one, until

from jobq import migrate
from jobq.db import Conn
from jobq.errors import SchemaError
from jobq.sql import Statements

FIRST_WITHOUT_CHECKS = 3
#: Columns as SQL that plain SQL could write before there were checks.
ODD = {
    "kind": ("E'send\nmail'", "send_mail"),
    "queue": ("'größte'", "gr__te"),
    "tenant": ("repeat('t', 200)", "t" * 128),
    "priority": ("-32768", -100),
    "concurrency_key": ("repeat('k', 300)", None),
    "held_by": ("''", None),
}


@pytest.fixture
def old(empty_database_url: str) -> Iterator[Conn]:
    """A database whose schema is that of an older version."""
    statements = Statements("jobq")
    with client(empty_database_url) as conn:
        conn.execute(statements.render("bootstrap.sql"))
        for version, name in migrate.KNOWN[:FIRST_WITHOUT_CHECKS]:
            conn.execute(statements.render(f"migrations/{name}"))
            conn.execute(migrate._record("jobq", version, name))
        conn.execute(
            "SELECT jobq.make_partition(class, current_date) FROM unnest(ARRAY['done', 'dead']) class"
        )
        yield conn


def test_odd_rows_come_into_bounds_and_none_is_lost(old: Conn, empty_database_url: str) -> None:
    for column, (text, _) in ODD.items():
        insert = "INSERT INTO jobq.job (id, kind) VALUES (DEFAULT, 'k') RETURNING id"
        (id_,) = one(old, insert)
        change = sql.SQL("UPDATE jobq.job SET {} = {} WHERE id = %s")
        old.execute(change.format(sql.Identifier(column), sql.SQL(text)), (id_,))
    times = "started_at = '-infinity', lease_until = '1969-07-20Z', deadline = 'infinity', cancel_requested_at = '10000-01-01Z'"
    old.execute(
        f"UPDATE jobq.job SET status = 'RUNNING', lease = 1, {times} WHERE queue = 'größte'".encode()
    )
    old.execute(
        "INSERT INTO jobq.kind (kind, queue, priority, timeout) VALUES ('a b', NULL, NULL, NULL), ('k', 'q q', 32767, -1)"
    )
    old.execute(
        "INSERT INTO jobq.limiter (scope, name, paused, version) VALUES ('tenant', '', true, 0), ('tenant', 'a', true, 0)"
    )
    assert migrate.migrate(empty_database_url) == [
        v for v, _ in migrate.KNOWN[FIRST_WITHOUT_CHECKS:]
    ]
    rows = old.execute(
        "SELECT kind, queue, tenant, priority, concurrency_key, held_by FROM jobq.job ORDER BY id"
    ).fetchall()
    for at, (column, (_, right)) in enumerate(ODD.items()):
        found = dict(zip(ODD, rows[at], strict=True))[column]
        assert found == right if column != "concurrency_key" else len(str(found)) == 64
    assert one(
        old,
        "SELECT count(*) FROM jobq.job WHERE lease_until < now() AND extract(year FROM deadline) = 9998",
    ) == (1,)
    assert old.execute("SELECT kind, queue, priority, timeout FROM jobq.kind").fetchall() == [
        ("k", None, 100, None)
    ]
    assert old.execute("SELECT name FROM jobq.limiter").fetchall() == [("a",)]
    with pytest.raises(errors.CheckViolation):
        old.execute("UPDATE jobq.kind SET priority = 101")


@pytest.mark.parametrize("table", ["job", "job_archive"])
def test_traffic_goes_on_while_a_migration_waits_for_a_report(
    old: Conn, empty_database_url: str, table: str
) -> None:
    """Old: the ALTER waited behind the report, and all else behind the ALTER."""
    applied: list[int] = []
    waits = "SELECT pid FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
    with client(empty_database_url) as reporter, client(empty_database_url) as traffic:
        with reporter.transaction():
            reporter.execute(sql.SQL("SELECT count(*) FROM jobq.{}").format(sql.Identifier(table)))
            thread = threading.Thread(
                target=lambda: applied.extend(migrate.migrate(empty_database_url))
            )
            thread.start()
            for _ in range(3):
                until(
                    lambda: old.execute(waits, (reporter.info.backend_pid,)).fetchone(),
                    "it never waited",
                )
                traffic.execute("INSERT INTO jobq.job (kind) VALUES ('k')")
                traffic.execute("SELECT count(*) FROM jobq.jobs")
            assert thread.is_alive()
        thread.join(30)
    assert applied == [version for version, _ in migrate.KNOWN[FIRST_WITHOUT_CHECKS:]]


def test_a_lock_that_is_never_to_be_had_ends_in_a_sentence_that_names_its_holder(
    old: Conn, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "PATIENCE", 0.0)
    with psycopg.connect(empty_database_url, application_name="the report") as reporter:
        reporter.execute("SELECT count(*) FROM jobq.job")
        with pytest.raises(
            SchemaError,
            match=rf"process {reporter.info.backend_pid} \(the report, idle in transaction\)",
        ):
            migrate.migrate(empty_database_url)
    assert migrate.migrate(empty_database_url)[-1] == migrate.CLIENT_VERSION


@pytest.mark.case("N01")
def test_every_table_tells_its_rows_apart(old: Conn, empty_database_url: str) -> None:
    migrate.migrate(empty_database_url)
    bare = (
        "SELECT relname FROM pg_class c WHERE relnamespace = 'jobq'::regnamespace AND relkind IN ('r', 'p') AND relreplident = 'd'"
        " AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)"
    )
    assert old.execute(bare.encode()).fetchall() == []
    assert one(
        old, "SELECT count(*) > 20 FROM pg_class WHERE relname ~ '^job_archive_.*[0-9]$'"
    ) == (True,)
