"""Any schema name, several installations in one database, any search_path: each keeps to its own schema."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from psycopg import sql
from tests.migrations.catalog import owned_by
from tests.migrations.smoke import everything
from tests.store.support import Server, Store, client, engine, new_database

from jobq import migrate
from jobq.model import NewJob
from jobq.store import run_sync

NAMES = [
    "JobQ", "job-q", "select", 'q"x', "it's", "50%", "%s", "a$$b", "back\\slash", "dotted.name", "{braces}", " ", "größe",
    "q" * 63,
]  # fmt: skip


@pytest.fixture(scope="module")
def several(server: Server) -> Iterator[str]:
    """A database with an installation of each name; `public` is first in its search_path, then one of them."""
    with new_database(server, "template0") as url:
        with client(url) as conn:
            database = sql.Identifier(conn.info.dbname)
            conn.execute(
                sql.SQL('ALTER DATABASE {} SET search_path = public, "JobQ"').format(database)
            )
        for name in NAMES:
            assert migrate.migrate(url, name)
        yield url


@pytest.mark.case("B103")
@pytest.mark.parametrize("name", NAMES)
def test_everything_works_in_a_schema_of_any_name(several: str, name: str) -> None:
    assert all(each.applied_at for each in migrate.status(several, name))
    with client(several) as conn:
        everything(Store(name), conn)


@pytest.mark.case("B103")
@pytest.mark.parametrize("path", ["", "pg_temp", "public, pg_catalog", "nowhere"])
def test_the_search_path_does_not_matter(several: str, path: str) -> None:
    migrate.migrate(several, f"path {path}")
    with engine(several, search_path=path) as conn:
        everything(Store(f"path {path}"), conn)


@pytest.mark.case("B103")
def test_installations_in_one_database_are_independent(several: str) -> None:
    first, second = Store("JobQ"), Store("jobq")
    migrate.migrate(several, "jobq")
    with client(several) as conn:
        before = len(run_sync(conn, first.jobs.list_jobs(most=500)))
        run_sync(conn, second.enqueue.enqueue(NewJob("test")))
        assert len(run_sync(conn, first.jobs.list_jobs(most=500))) == before
        assert len(run_sync(conn, second.jobs.list_jobs(most=500))) == 1
        conn.execute('DROP SCHEMA "JobQ" CASCADE')
        assert len(run_sync(conn, second.jobs.list_jobs(most=500))) == 1
    assert len({Store(name).statements.channel for name in [*NAMES, "jobq"]}) == len(NAMES) + 1
    migrate.migrate(several, "JobQ")


@pytest.mark.case("B103")
def test_nothing_is_made_in_public(several: str) -> None:
    with client(several) as conn:
        assert owned_by(conn, "public") == []
