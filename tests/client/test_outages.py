"""Connections: few, opened when needed, and what becomes of an enqueue when the server goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any

import psycopg
import pytest
from tests.client.support import Async, Colour, Database, Sync

from jobq import DatabaseUnavailable, JobQ, db
from jobq.client import pool
from jobq.embedded import EmbeddedServer
from jobq.migrate import migrate

OURS = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


class Lock:
    """Holds every insert up until it is released."""

    def __init__(self, url: str) -> None:
        self._conn = psycopg.connect(url)
        self._conn.execute("LOCK TABLE jobq.job IN EXCLUSIVE MODE")

    def release(self) -> None:
        """Let them go on."""
        self._conn.close()


def connections(database: Database) -> int:
    return int(database.one(f"SELECT count(*) {OURS} AND application_name = 'jobq'"))


@pytest.fixture
async def away(own_server: EmbeddedServer) -> AsyncIterator[JobQ]:
    """An app on a server that the test may stop."""
    migrate(own_server.url())
    async with JobQ(own_server.url(), pool_size=6) as app:
        yield app


@pytest.fixture(params=["sync", "async"])
def away_colour(request: pytest.FixtureRequest, away: JobQ) -> Colour:
    """The same as sync or async code uses it."""
    return Sync(away) if request.param == "sync" else Async(away)


async def warm_up(colour: Colour, count: int) -> None:
    """Let the pool open connections."""
    await asyncio.gather(*(colour.enqueue("k", {"n": n}) for n in range(count)))


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("how", ["restart", "kill"])
async def test_the_first_enqueue_after_a_restart_finds_the_server(
    away_colour: Colour, own_server: EmbeddedServer, keyed: bool, how: str
) -> None:
    options: dict[str, Any] = {"unique_key": "U"} if keyed else {}
    await warm_up(away_colour, 6)
    if how == "kill":
        own_server.kill()
        await asyncio.to_thread(own_server.start)
    else:
        await asyncio.to_thread(own_server.restart)
    assert (await away_colour.enqueue("k", **options)).created
    await warm_up(away_colour, 6)


async def test_an_outage_is_told_at_once_and_over_at_once(
    away_colour: Colour, own_server: EmbeddedServer
) -> None:
    await warm_up(away_colour, 3)
    own_server.stop()
    begun = monotonic()
    for options in ({}, {"idempotency_key": "K"}):
        for _ in range(3):
            with pytest.raises(DatabaseUnavailable):
                await away_colour.enqueue("k", **options)
    assert monotonic() - begun < 5
    await asyncio.to_thread(own_server.start)
    assert (await away_colour.enqueue("k", idempotency_key="K")).created


async def test_idle_connections_that_were_terminated_are_replaced(
    colour: Colour, database: Database
) -> None:
    await warm_up(colour, 4)
    database.rows(f"SELECT pg_terminate_backend(pid, 5000) {OURS}")
    assert (await colour.enqueue("k", unique_key="U")).created
    await warm_up(colour, 4)
    assert database.jobs() == 9


async def test_an_answer_lost_on_the_way_is_an_error_and_no_second_job(
    colour: Colour, database: Database
) -> None:
    """Nobody knows whether a plain job was inserted: the caller has to decide."""
    lock = Lock(database.url)
    doubtful = asyncio.create_task(colour.enqueue("k"))
    await _terminate_when_it_stands(database)
    with pytest.raises(DatabaseUnavailable):
        await doubtful
    lock.release()
    assert database.jobs() == 0
    assert (await colour.enqueue("k")).created


async def test_an_idempotency_key_lets_a_lost_answer_be_asked_for_again(
    colour: Colour, database: Database
) -> None:
    lock = Lock(database.url)
    enqueued = asyncio.create_task(colour.enqueue("k", idempotency_key="K"))
    await _terminate_when_it_stands(database)
    await database.until(lambda: database.waiting() == 1)
    lock.release()
    assert (await enqueued).created
    assert database.jobs() == 1


async def _terminate_when_it_stands(database: Database) -> None:
    stands = f"{OURS} AND cardinality(pg_blocking_pids(pid)) > 0"
    await database.until(lambda: database.waiting() == 1)
    assert database.rows(f"SELECT pg_terminate_backend(pid, 5000) {stands}") == [(True,)]


async def test_a_read_only_server_is_unavailable(colour: Colour, database: Database) -> None:
    database.rows(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on',"
        " current_database()); END $$"
    )
    for options in ({}, {"unique_key": "U"}):
        with pytest.raises(DatabaseUnavailable, match="read-only"):
            await colour.enqueue("k", **options)


@pytest.mark.parametrize("size", [1, 3])
async def test_a_client_opens_no_more_connections_than_it_may(
    database_url: str, database: Database, size: int
) -> None:
    async with JobQ(database_url, pool_size=size) as app:
        assert connections(database) == 0, "none before they are needed"
        await warm_up(Async(app), 50)
        assert 1 <= connections(database) <= size
        await app.aclose()
        await warm_up(Sync(app), 50)
        assert 1 <= connections(database) <= size
    await database.until(lambda: connections(database) == 0)
    assert database.jobs() == 100


async def test_a_closed_app_opens_connections_again(colour: Colour, app: JobQ) -> None:
    await colour.enqueue("k")
    await app.aclose()
    assert (await colour.enqueue("k")).created


async def test_waiting_for_a_connection_has_an_end(
    database_url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "PATIENCE", 0.2)
    async with JobQ(database_url, pool_size=1) as app:
        for colour in (Sync(app), Async(app)):
            lock = Lock(database_url)
            first = asyncio.create_task(colour.enqueue("k"))
            await database.until(lambda: database.waiting() == 1)
            with pytest.raises(DatabaseUnavailable, match="pool_size"):
                await colour.enqueue("k")
            lock.release()
            await first


async def test_a_cancelled_enqueue_leaves_the_pool_whole(
    database_url: str, database: Database
) -> None:
    async with JobQ(database_url, pool_size=2) as app:
        await warm_up(Async(app), 2)
        for options in ({}, {"unique_key": "U"}):
            lock = Lock(database_url)
            tasks = [
                asyncio.create_task(Async(app).enqueue("k", **{k: f"{v}{n}" for k, v in options.items()}))
                for n in range(4)
            ]  # fmt: skip
            await database.until(lambda: database.waiting() == 2)
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(result, asyncio.CancelledError) for result in results)
            lock.release()
            assert database.jobs() == 2
        await warm_up(Async(app), 10)
        assert database.jobs() == 12
        assert connections(database) <= 2


def test_an_app_serves_one_event_loop_after_another(database_url: str, database: Database) -> None:
    app = JobQ(database_url)

    async def enqueue(*, close: bool) -> None:
        await asyncio.gather(*(app.aenqueue("k") for _ in range(3)))
        if close:
            await app.aclose()

    for close in (True, False, False, True):
        asyncio.run(enqueue(close=close))
    assert database.jobs() == 12


async def test_sync_and_async_calls_of_one_app_go_together(app: JobQ, database: Database) -> None:
    await asyncio.gather(
        *(Sync(app).enqueue("k") for _ in range(20)), *(Async(app).enqueue("k") for _ in range(20))
    )
    assert database.jobs() == 40


@pytest.mark.parametrize("direct", [True, False])
async def test_the_insert_is_prepared_unless_a_pooler_is_in_between(
    database_url: str, database: Database, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    """A transaction pooler makes up the process id it tells, and mixes up prepared statements."""
    if not direct:
        monkeypatch.setattr(db, "_PIN_IF_DIRECT", "SELECT %(pid)s = -1")
    query = "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%insert_job%'"
    async with JobQ(database_url, pool_size=1) as app:
        for options in ({}, {}, {"unique_key": "U"}):
            app.enqueue("k", notify=False, **options)  # type: ignore[arg-type]
            await app.aenqueue("k", notify=False, **options)  # type: ignore[arg-type]
        conn = app._drivers.sync()._pool.take()
        assert conn.execute(query).fetchall() == [(int(direct),)]
        app._drivers.sync()._pool.give(conn)
        aconn = await app._drivers.asynchronous()._pool.take()
        assert await (await aconn.execute(query)).fetchall() == [(int(direct),)]
        app._drivers.asynchronous()._pool.give(aconn)
    assert database.jobs() == 5


@pytest.mark.parametrize("shape", ["plain", "keyed", "many"])
async def test_a_serialization_failure_of_our_own_transaction_is_begun_again(
    colour: Colour, app: JobQ, database: Database, shape: str
) -> None:
    database.rows(
        "CREATE SEQUENCE public.tries; CREATE FUNCTION public.fail_once() RETURNS trigger LANGUAGE plpgsql AS $$"
        " BEGIN IF nextval('public.tries') = 1 THEN RAISE EXCEPTION 'no' USING ERRCODE = '40001'; END IF;"
        " RETURN NEW; END $$; CREATE TRIGGER fail_once BEFORE INSERT ON jobq.job"
        " FOR EACH ROW EXECUTE FUNCTION public.fail_once()"
    )
    jobs = [app.new("k", unique_key="U" if shape == "keyed" else None)]
    made = await colour.many(jobs * 3 if shape == "many" else jobs)
    assert made[0].created
    assert database.jobs() == len(made)
