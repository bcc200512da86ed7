"""Fixtures of the engine's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engine.fleet import Fleet
from tests.engine.support import Jobs


@pytest.fixture
def jobs(database_url: str) -> Iterator[Jobs]:
    """Enqueue jobs and look at them."""
    opened = Jobs(database_url)
    yield opened
    opened.close()


@pytest.fixture
def fleet(database_url: str, jobs: Jobs, tmp_path: Path) -> Iterator[Fleet]:
    """Worker processes that are gone when the test ends."""
    made = Fleet(database_url, jobs, tmp_path)
    yield made
    made.end()
