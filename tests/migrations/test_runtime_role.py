"""A runtime role owns nothing: it can do every operation of the store, and nothing else."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from psycopg import errors, sql
from psycopg.conninfo import make_conninfo
from tests.migrations.smoke import everything
from tests.store.support import LEASE, STORE, client, complete, engine, put

from jobq import migrate
from jobq.errors import SchemaError
from jobq.model import Claim
from jobq.store import run_sync


@pytest.fixture
def role(database_url: str) -> Iterator[str]:
    """A role that may connect and nothing more."""
    name = f"role_{uuid.uuid4().hex[:12]}"
    with client(database_url) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
        yield name
        admin.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(sql.Identifier(name)))
        admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def _as(url: str, role: str) -> str:
    return make_conninfo(url, user=role)


def test_a_runtime_role_can_do_everything_the_store_does(database_url: str, role: str) -> None:
    migrate.grant(database_url, role)
    with engine(_as(database_url, role)) as conn:
        assert conn.execute("SELECT current_user").fetchone() == (role,)
        everything(STORE, conn)


def test_it_makes_partitions_and_its_completions_find_them(database_url: str, role: str) -> None:
    migrate.grant(database_url, role)
    with engine(database_url) as owner, engine(_as(database_url, role)) as conn:
        day = owner.execute("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')").fetchone()
        assert day is not None
        owner.execute(
            sql.SQL("DROP TABLE {}").format(sql.Identifier("jobq", f"job_archive_done_{day[0]}"))
        )
        id_ = put(owner, "RUNNING")
        with pytest.raises(errors.CheckViolation):
            run_sync(conn, complete(Claim(id_, LEASE)))
        assert run_sync(conn, STORE.upkeep.make_partitions(14)) == 1
        assert run_sync(conn, complete(Claim(id_, LEASE)))


FORBIDDEN = [
    "CREATE TABLE jobq.mine (a int)",
    "CREATE FUNCTION jobq.mine() RETURNS int LANGUAGE sql RETURN 1",
    "CREATE INDEX ON jobq.job (kind)",
    "ALTER TABLE jobq.job ADD COLUMN a int",
    "ALTER TABLE jobq.job DISABLE TRIGGER ALL",
    "DROP TABLE jobq.job",
    "DROP FUNCTION jobq.make_partition",
    "TRUNCATE jobq.job",
    "TRUNCATE jobq.job_archive",
    "BEGIN; LOCK TABLE jobq.migration IN ACCESS EXCLUSIVE MODE",
    "INSERT INTO jobq.migration (version, name) VALUES (5, 'x')",
    "DELETE FROM jobq.migration",
    "UPDATE jobq.compatibility SET oldest_client = 5",
    "ALTER SEQUENCE jobq.job_id_seq RESTART",
    "SELECT setval('jobq.job_id_seq', 1)",
    "COMMENT ON TABLE jobq.job IS 'mine'",
    "DROP SCHEMA jobq CASCADE",
]


@pytest.mark.parametrize("statement", FORBIDDEN)
def test_it_can_do_nothing_else(database_url: str, role: str, statement: str) -> None:
    migrate.grant(database_url, role)
    with client(_as(database_url, role)) as conn, pytest.raises(errors.InsufficientPrivilege):
        conn.execute(statement.encode())


def test_the_owner_s_function_is_deaf_to_the_caller_s_search_path(
    database_url: str, role: str
) -> None:
    migrate.grant(database_url, role)
    with client(database_url) as admin:
        admin.execute(sql.SQL("CREATE SCHEMA trap AUTHORIZATION {}").format(sql.Identifier(role)))
    with client(_as(database_url, role)) as conn:
        conn.execute(
            "CREATE FUNCTION trap.to_char(date, text) RETURNS text LANGUAGE sql RETURN '_trapped'"
        )
        conn.execute("SET search_path = trap, pg_catalog")
        assert conn.execute("SELECT to_char(current_date, 'YYYY')").fetchone() == ("_trapped",)
        made = conn.execute("SELECT jobq.make_partition('done', '2100-01-01')").fetchone()
        assert made == (True,)
        found = conn.execute("SELECT to_regclass('jobq.job_archive_done_21000101') IS NOT NULL")
        assert found.fetchone() == (True,)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT jobq.make_partition('done', '2100-01-01')",
        "SELECT jobq.enqueue(kind => 'k')",
        "SELECT FROM jobq.job",
    ],
)
def test_a_role_without_a_grant_can_do_nothing(
    database_url: str, role: str, statement: str
) -> None:
    with client(_as(database_url, role)) as conn, pytest.raises(errors.InsufficientPrivilege):
        conn.execute(statement.encode())


def test_use_of_the_schema_alone_does_not_make_partitions(database_url: str, role: str) -> None:
    with client(database_url) as admin:
        admin.execute(sql.SQL("GRANT USAGE ON SCHEMA jobq TO {}").format(sql.Identifier(role)))
    with client(_as(database_url, role)) as conn, pytest.raises(errors.InsufficientPrivilege):
        conn.execute("SELECT jobq.make_partition('done', '2100-01-01')")


# --- starting as such a role -----------------------------------------------------------------------------


def test_it_starts_on_a_schema_that_is_up_to_date(database_url: str, role: str) -> None:
    migrate.grant(database_url, role)
    migrate.ensure(_as(database_url, role), "jobq", auto=True)


def test_it_is_told_who_must_migrate(database_url: str, role: str) -> None:
    migrate.grant(database_url, role)
    with client(database_url) as admin:
        admin.execute("DELETE FROM jobq.migration")
    with pytest.raises(SchemaError, match="run jobq migrate"):
        migrate.ensure(_as(database_url, role), "jobq", auto=True)
    with pytest.raises(SchemaError, match="as its owner"):
        migrate.migrate(_as(database_url, role))


def test_a_role_that_cannot_look_into_the_schema_is_told_so(database_url: str, role: str) -> None:
    with pytest.raises(SchemaError, match="may not use"):
        migrate.ensure(_as(database_url, role), "jobq", auto=True)


def test_the_owner_of_an_empty_schema_needs_no_right_on_the_database(
    database_url: str, role: str
) -> None:
    with client(database_url) as admin:
        admin.execute(sql.SQL("CREATE SCHEMA given AUTHORIZATION {}").format(sql.Identifier(role)))
        admin.execute(
            sql.SQL("REVOKE CREATE ON DATABASE {} FROM PUBLIC").format(
                sql.Identifier(admin.info.dbname)
            )
        )
    url = _as(database_url, role)
    with client(url) as conn, pytest.raises(errors.InsufficientPrivilege):
        conn.execute("CREATE SCHEMA another")
    migrate.ensure(url, "given", auto=True)
    with pytest.raises(SchemaError):
        migrate.migrate(url, "another")
    with client(url) as conn:
        assert conn.execute("SELECT count(*) FROM given.job").fetchone() == (0,)
