"""Fixtures of the engine's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.engine.support import Jobs


@pytest.fixture
def jobs(database_url: str) -> Iterator[Jobs]:
    """Enqueue jobs and look at them."""
    opened = Jobs(database_url)
    yield opened
    opened.close()
