"""An enqueue beside a lock on a table: bounded, told apart from a key that is taken, nothing half done."""

from __future__ import annotations

import psycopg
import pytest
from tests.api.support import check_error, serving
from tests.client.support import Colour, Database

from jobq import JobQ, TooSlow, db

SHAPES: dict[str, dict[str, str]] = {
    "plain": {},
    "unique": {"unique_key": "fresh"},
    "idempotent": {"idempotency_key": "fresh"},
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks are waited for less long than in life."""
    monkeypatch.setitem(db.PINNED, "lock_timeout", "200ms")
    for module in ("asynchronous", "synchronous"):
        monkeypatch.setattr(f"jobq.client.{module}.KEY_WAIT", 0.2)


@pytest.fixture(params=["direct", "pooled"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connected directly, or as if through a transaction pooler, where sessions keep no settings."""
    if request.param == "pooled":
        monkeypatch.setattr(db, "_PIN_IF_DIRECT", "SELECT %(pid)s = -1")


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    ("table", "shape"),
    [
        ("job", "plain"),
        ("job", "unique"),
        ("job", "idempotent"),
        ("key", "unique"),
        ("key", "idempotent"),
    ],
)
async def test_it_is_too_slow_and_nothing_is_enqueued(
    colour: Colour, database: Database, table: str, shape: str
) -> None:
    with psycopg.connect(database.url) as rival:
        rival.execute(f"LOCK TABLE jobq.{table} IN ACCESS EXCLUSIVE MODE".encode())
        with pytest.raises(TooSlow, match="lock on a table"):
            await colour.enqueue("k", **SHAPES[shape])
    assert database.jobs() == 0
    assert (await colour.enqueue("k", **SHAPES[shape])).created


@pytest.mark.usefixtures("way")
async def test_a_batch_is_too_slow_as_a_whole(
    colour: Colour, database: Database, app: JobQ
) -> None:
    with psycopg.connect(database.url) as rival:
        rival.execute("LOCK TABLE jobq.job IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(TooSlow, match="lock on a table"):
            await colour.many([app.new("k", {}), app.new("k", {})])
    assert database.jobs() == 0


async def test_over_http_it_is_503_too_slow(database_url: str) -> None:
    async with serving(database_url) as http:
        with psycopg.connect(database_url) as rival:
            rival.execute("LOCK TABLE jobq.job IN ACCESS EXCLUSIVE MODE")
            for body in ({"kind": "k"}, {"kind": "k", "idempotencyKey": "fresh"}):
                check_error(await http.post("/api/jobs", json=body), 503, "too_slow")


async def test_readiness_turns_off_where_no_writes_are_taken(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as conn:
        database = conn.info.dbname
        conn.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on".encode())
    async with serving(database_url) as http:
        check_error(await http.get("/readyz"), 503, "database_unavailable")
        assert (await http.get("/healthz")).status_code == 200
