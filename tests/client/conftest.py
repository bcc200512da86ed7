"""Fixtures of the client's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.client.support import Async, Colour, Database, Listener, Sync

from jobq import JobQ


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[JobQ]:
    """An app on the test's database, closed after the test."""
    async with JobQ(database_url) as opened:
        yield opened


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest, app: JobQ) -> Colour:
    """The app as sync or async code uses it."""
    return Sync(app) if request.param == "sync" else Async(app)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """The test's database, looked at from outside."""
    looking = Database(database_url)
    yield looking
    looking.close()


@pytest.fixture
def listener(database_url: str) -> Iterator[Listener]:
    """A session that listens to wake-ups."""
    listening = Listener(database_url)
    yield listening
    listening.close()
