"""Fixtures of the store's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.store.support import Rivals, Server, client, engine, new_database

from jobq.db import Conn


@pytest.fixture
def conn(database_url: str) -> Iterator[Conn]:
    """A worker's session on a database of the test's own."""
    with engine(database_url) as session:
        yield session


@pytest.fixture
def rivals(database_url: str) -> Iterator[Rivals]:
    """Sessions that get in one another's way, on a database of the test's own."""
    sessions = Rivals(database_url)
    yield sessions
    sessions.close()


@pytest.fixture(scope="module")
def shared_url(server: Server, template: str) -> Iterator[str]:
    """A migrated database that the tests of a module share; they undo what they do. Its ids are past 2^53."""
    with new_database(server, template) as url:
        with engine(url) as session:
            session.execute("ALTER SEQUENCE jobq.job_id_seq RESTART WITH 9007199254740993")
        yield url


@pytest.fixture
def undone(shared_url: str) -> Iterator[Conn]:
    """A worker's session on the shared database, in a transaction that is rolled back."""
    with engine(shared_url) as session, session.transaction(force_rollback=True):
        yield session


@pytest.fixture
def undone_client(shared_url: str) -> Iterator[Conn]:
    """The same as the API has it."""
    with client(shared_url) as session, session.transaction(force_rollback=True):
        yield session
