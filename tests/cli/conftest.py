"""Fixtures of the command line's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import dict_row
from tests.cli.support import Process

Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `jobq` as a process; at the end of the test none is left."""
    started: list[Process] = []

    def begin(
        *arguments: str, cwd: Path = tmp_path, environment: Mapping[str, str] | None = None
    ) -> Process:
        process = Process(arguments, cwd=cwd, environment=environment)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.end()


@pytest.fixture
def rows(database_url: str) -> Iterator[psycopg.Connection[dict[str, object]]]:
    """A session that looks at the test's database."""
    with psycopg.connect(database_url, autocommit=True, row_factory=dict_row) as conn:
        yield conn
