"""The examples of the pages about Python run, in the order in which they stand."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.client.support import Database

from jobq import JobQ

DOCS = Path(__file__).parents[2] / "docs"


def run_examples(page: str, names: dict[str, Any]) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, page, "exec"), names)  # our own pages


@pytest.fixture
def names(database_url: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What examples take for granted: the environment, and a table of orders."""
    monkeypatch.setenv("JOBQ_DATABASE_URL", database_url)
    with psycopg.connect(database_url) as conn:
        conn.execute("CREATE TABLE orders (id bigint, paid boolean NOT NULL DEFAULT false)")
        conn.execute("CREATE TABLE charge (order_id bigint PRIMARY KEY)")
        conn.execute("INSERT INTO orders (id) VALUES (1), (2)")
    return {"url": database_url}


def test_the_examples_of_the_python_page_run(names: dict[str, Any], database: Database) -> None:
    run_examples("python.md", names)
    asyncio.run(names["in_a_coroutine"]())
    assert names["build_report"](None, names["date"](2030, 1, 1)) == {"month": "2030-01-01"}
    names["app"].close()
    counts = "SELECT kind, count(*) FROM jobq.job GROUP BY kind ORDER BY kind"
    assert database.rows(counts) == [("email.welcome", 9), ("video.encode", 101)]


def test_the_recipes_run(names: dict[str, Any], database: Database) -> None:
    with JobQ() as app:
        run_examples("recipes.md", {"app": app, **names})
    counts: dict[str, int] = dict(
        database.rows("SELECT kind, count(*) FROM jobq.job GROUP BY kind")
    )
    assert counts == {
        "report.hourly": 1,
        "report.daily": 1,
        "cache.rebuild": 1,
        "payment.book": 1,
        "order.ship": 2,
    }
