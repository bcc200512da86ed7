"""Migrations: applied once whoever starts first, whole or not at all, and they reach what schema.sql says."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from tests.migrations.catalog import describe
from tests.store.support import PATIENCE, client, one, until

from jobq import migrate
from jobq.db import Conn
from jobq.errors import DatabaseUnavailable, SchemaError
from jobq.sql import Statements

PROCESSES, ROUNDS = 8, 5


@pytest.fixture
def empty(empty_database_url: str) -> Iterator[Conn]:
    with client(empty_database_url) as conn:
        yield conn


def _versions(conn: Conn, schema: str = "jobq") -> list[int]:
    query = sql.SQL("SELECT version FROM {}.migration ORDER BY 1").format(sql.Identifier(schema))
    return [version for (version,) in conn.execute(query)]


def _known() -> list[int]:
    return [version for version, _ in migrate.KNOWN]


# --- many at once, and one that is killed ------------------------------------------------------------


def _start_together(barrier: Barrier, url: str, schemas: list[str]) -> None:
    for schema in schemas:
        barrier.wait(PATIENCE)
        migrate.migrate(url, schema)


@pytest.mark.case("B102")
def test_eight_processes_that_start_at_once_on_an_empty_database_all_succeed(
    empty_database_url: str, empty: Conn
) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["jobq.migrate"])
    barrier = context.Barrier(PROCESSES)
    schemas = [f"round{number}" for number in range(ROUNDS)]
    processes = [
        context.Process(target=_start_together, args=(barrier, empty_database_url, schemas))
        for _ in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE * 3)
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    for schema in schemas:
        assert _versions(empty, schema) == _known()


@pytest.mark.case("B102")
def test_a_process_killed_in_the_middle_leaves_nothing_and_the_next_one_finishes(
    empty_database_url: str, empty: Conn
) -> None:
    empty.execute(Statements("jobq").render("bootstrap.sql"))
    with client(empty_database_url) as observer, empty.transaction():
        # It may look which migrations were applied, but not write that one was: it stands at its last step.
        empty.execute("LOCK TABLE jobq.migration IN SHARE MODE")
        process = subprocess.Popen(
            [sys.executable, "-c", "import sys; from jobq.migrate import migrate; migrate(sys.argv[1])",
             empty_database_url],
        )  # fmt: skip
        pid = until(lambda: _blocked(observer, empty.info.backend_pid), "it never came to the lock")
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
        assert one(observer, "SELECT to_regclass('jobq.job')") == (None,)
        assert one(observer, "SELECT count(*) FROM pg_stat_activity WHERE pid = %s", (pid,)) == (1,)
    assert migrate.migrate(empty_database_url) == _known()
    assert _versions(empty) == _known()


def _blocked(observer: Conn, by: int) -> int | None:
    row = observer.execute(
        "SELECT pid FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))", (by,)
    ).fetchone()
    return row[0] if row else None


def test_migrating_again_changes_nothing(database_url: str) -> None:
    with client(database_url) as conn:
        before = describe(conn)
        assert migrate.migrate(database_url) == []
        assert describe(conn) == before


# --- what is reached ------------------------------------------------------------------------------------


def test_the_migrations_reach_what_schema_sql_says(database_url: str, empty: Conn) -> None:
    empty.execute(Statements("jobq").render("schema.sql"))
    with client(database_url) as conn:
        assert describe(empty) == describe(conn), "bring jobq/sql/schema.sql up to date"


@pytest.mark.parametrize("schema", ["jobq", "JobQ", "50%"])
def test_the_script_makes_the_same(empty_database_url: str, empty: Conn, schema: str) -> None:
    empty.execute(migrate.script(schema).encode())
    scripted = describe(empty, schema)
    assert migrate.migrate(empty_database_url, schema) == []
    empty.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))
    migrate.migrate(empty_database_url, schema)
    assert describe(empty, schema) == scripted


def test_the_comparison_sees_comments_checks_defaults_and_functions(
    database_url: str, empty: Conn
) -> None:
    empty.execute(Statements("jobq").render("schema.sql"))
    with client(database_url) as conn:
        for change in (
            "COMMENT ON COLUMN jobq.job.meta IS 'something else'",
            "ALTER TABLE jobq.job DROP CONSTRAINT job_timeout_check",
            "ALTER TABLE jobq.key ALTER COLUMN created_at SET DEFAULT now()",
            "ALTER TABLE jobq.job SET (fillfactor = 90)",
            "DROP INDEX jobq.job_held_idx",
            "ALTER FUNCTION jobq.lane_token(text, text, smallint) VOLATILE",
            "GRANT EXECUTE ON FUNCTION jobq.make_partition TO PUBLIC",
        ):
            with conn.transaction(force_rollback=True):
                conn.execute(change.encode())
                assert describe(conn) != describe(empty), change


def test_the_tables_and_what_people_call_are_documented(database_url: str) -> None:
    with client(database_url) as conn:
        relations = {
            row[0]: row[5] for row in describe(conn)["relations"] if row[1] in ("r", "p", "v")
        }
        functions = {row[0]: row[3] for row in describe(conn)["functions"]}
    parts = {"job_archive_done", "job_archive_dead"}  # of a table that is documented
    assert {name for name, comment in relations.items() if not comment} <= parts
    assert functions["enqueue"]


# --- status, and schemas of another version ---------------------------------------------------------------


def test_status_tells_what_was_applied(empty_database_url: str) -> None:
    assert [(each.version, each.applied_at) for each in migrate.status(empty_database_url)] == [
        (version, None) for version in _known()
    ]
    migrate.migrate(empty_database_url)
    assert all(each.applied_at for each in migrate.status(empty_database_url))


def test_a_schema_that_needs_newer_clients_is_refused(database_url: str) -> None:
    with client(database_url) as conn:
        conn.execute("INSERT INTO jobq.migration (version, name) VALUES (9999, '9999_future.sql')")
        migrate.ensure(
            database_url, "jobq", auto=True
        )  # expanded only: this client still works with it
        conn.execute("UPDATE jobq.compatibility SET oldest_client = 9999")
    for start in (
        lambda: migrate.ensure(database_url, "jobq", auto=False),
        lambda: migrate.ensure(database_url, "jobq", auto=True),
        lambda: migrate.migrate(database_url),
    ):
        with pytest.raises(SchemaError, match="needs a newer jobq"):
            start()


def test_a_schema_that_is_behind_is_migrated_or_says_who_must(empty_database_url: str) -> None:
    with pytest.raises(SchemaError, match="run jobq migrate"):
        migrate.ensure(empty_database_url, "jobq", auto=False)
    migrate.ensure(empty_database_url, "jobq", auto=True)
    migrate.ensure(empty_database_url, "jobq", auto=False)


def test_a_server_that_is_away_is_said_without_the_password(tmp_path: Path) -> None:
    url = make_conninfo(host=str(tmp_path), user="u", password="s3cret", dbname="d")
    for call in (
        lambda: migrate.migrate(url),
        lambda: migrate.status(url),
        lambda: migrate.ensure(url, "jobq", auto=True),
        lambda: migrate.grant(url, "r"),
    ):
        with pytest.raises(DatabaseUnavailable) as away:
            call()
        assert "s3cret" not in str(away.value)
        assert isinstance(away.value.__cause__, psycopg.OperationalError)


def test_migrating_waits_for_another_one_that_is_under_way(
    empty_database_url: str, empty: Conn
) -> None:
    lock = "SELECT pg_advisory_xact_lock(hashtextextended('jobq.migrate', 0))"
    with (
        multiprocessing.get_context("forkserver").Pool(1) as pool,
        client(empty_database_url) as observer,
    ):
        with empty.transaction():
            empty.execute(lock)
            waiting = pool.apply_async(migrate.migrate, (empty_database_url,))
            until(lambda: _blocked(observer, empty.info.backend_pid), "it does not wait")
            assert not waiting.ready()
        assert waiting.get(PATIENCE) == _known()
