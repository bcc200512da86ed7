"""Fixtures of the API's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from tests.api.support import serving
from tests.store import support as store

from jobq.db import Conn


@pytest.fixture
def conn(database_url: str) -> Iterator[Conn]:
    """A session on the test's database."""
    with store.client(database_url) as session:
        yield session


@pytest.fixture
async def http(database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an API that was started without an app."""
    async with serving(database_url) as session:
        yield session
