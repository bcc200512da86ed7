"""Jobs as part of a caller's transaction, on a caller's connection."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from tests.client.support import Colour, Database, Listener, Session

from jobq import IdempotencyConflict, InvalidJob, InvalidPayload, JobQ
from jobq.model import NewJob
from jobq.wakeup import DueAt, LanesReady, parse

#: Ways to enqueue: a plain job, keyed ones, many.
SHAPES = ("plain", "idempotency_key", "unique_key", "many", "many keyed")


async def enqueue(colour: Colour, app: JobQ, shape: str, connection: Any, **options: Any) -> int:
    """Enqueue in one of the shapes; returns how many jobs that makes."""
    match shape:
        case "plain":
            await colour.enqueue("k", connection=connection, **options)
            return 1
        case "many" | "many keyed":
            keys = "ab" if shape == "many keyed" else [None, None]
            jobs = [app.new("k", n, unique_key=key) for n, key in enumerate(keys)]
            await colour.many(jobs, connection=connection, **options)
            return 2
    await colour.enqueue("k", connection=connection, **{shape: "K"}, **options)
    return 1


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_rollback_leaves_nothing(
    colour: Colour, app: JobQ, database: Database, listener: Listener, shape: str
) -> None:
    session = await colour.connect(database.url)
    await session.execute("CREATE TABLE mine (x int)")
    await enqueue(colour, app, shape, session.raw)
    assert database.jobs() == 0
    await session.rollback()

    assert database.jobs() == 0
    assert database.one("SELECT count(*) FROM jobq.key") == 0
    assert database.one("SELECT to_regclass('mine')") is None
    assert listener.heard() == []
    await session.close()


@pytest.mark.case("B111")
@pytest.mark.parametrize("shape", SHAPES)
async def test_the_commit_shows_the_job_and_wakes_the_workers_in_one(
    colour: Colour, app: JobQ, database: Database, listener: Listener, shape: str
) -> None:
    session = await colour.connect(database.url)
    count = await enqueue(colour, app, shape, session.raw)
    assert database.jobs() == 0
    assert listener.heard() == []
    await session.commit()

    assert database.jobs() == count
    assert isinstance(parse(await listener.next()), LanesReady)
    assert listener.heard() == []
    await session.close()


async def test_a_delayed_job_tells_when_it_is_due(
    colour: Colour, database: Database, listener: Listener
) -> None:
    session = await colour.connect(database.url)
    job = await colour.enqueue("k", delay=3600, connection=session.raw)
    await session.commit()
    message = parse(await listener.next())
    assert isinstance(message, DueAt)
    assert message.at == (await colour.get(job.id)).run_at
    await session.close()


@pytest.mark.parametrize("shape", SHAPES)
async def test_without_notify_the_commit_is_silent(
    colour: Colour, app: JobQ, database: Database, listener: Listener, shape: str
) -> None:
    session = await colour.connect(database.url)
    count = await enqueue(colour, app, shape, session.raw, notify=False)
    await session.commit()
    assert database.jobs() == count
    assert listener.heard() == []
    await session.close()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("autocommit", [False, True])
async def test_the_callers_connection_may_be_set_up_in_any_way(
    colour: Colour, app: JobQ, database: Database, shape: str, autocommit: bool
) -> None:
    database.rows('CREATE SCHEMA "elsewhere"; CREATE TABLE elsewhere.job (x int)')
    session = await colour.connect(
        database.url,
        autocommit=autocommit,
        row_factory=dict_row,
        prepare_threshold=0,
        cursor_factory=psycopg.AsyncRawCursor if colour.name == "async" else psycopg.RawCursor,
        options="-c search_path=elsewhere -c lock_timeout=77s -c statement_timeout=88s"
        " -c timezone=Asia/Tokyo -c datestyle=SQL,DMY -c intervalstyle=sql_standard",
    )
    count = await enqueue(colour, app, shape, session.raw)

    expected = (
        psycopg.pq.TransactionStatus.IDLE if autocommit else psycopg.pq.TransactionStatus.INTRANS
    )
    assert session.raw.info.transaction_status == expected
    assert session.raw.autocommit is autocommit
    assert await _show(session) == ["elsewhere", "77s", "88s"]
    prepared = await session.execute("SELECT count(*) AS n FROM pg_prepared_statements WHERE statement LIKE '%jobq%' AND statement NOT LIKE '%pg_prepared%'")  # fmt: skip
    assert prepared == [{"n": 0}]
    await session.commit()
    assert database.jobs() == count
    await session.close()


async def _show(session: Session) -> list[str]:
    names = ("search_path", "lock_timeout", "statement_timeout")
    return [(await session.execute(f"SHOW {name}"))[0][name] for name in names]


@pytest.mark.parametrize("shape", SHAPES)
async def test_an_explicit_transaction_in_autocommit_is_joined(
    colour: Colour, app: JobQ, database: Database, shape: str
) -> None:
    session = await colour.connect(database.url, autocommit=True)
    await session.execute("BEGIN")
    await enqueue(colour, app, shape, session.raw)
    await session.execute("ROLLBACK")
    assert database.jobs() == 0
    await session.close()


async def test_inside_a_transaction_block_and_a_savepoint(app: JobQ, database: Database) -> None:
    with psycopg.connect(database.url) as conn, conn.transaction():
        app.enqueue("kept", unique_key="a", connection=conn)
        with conn.transaction(force_rollback=True):
            app.enqueue("lost", unique_key="b", connection=conn)
        app.enqueue("kept", connection=conn)
    assert database.rows("SELECT kind FROM jobq.job") == [("kept",), ("kept",)]


@pytest.mark.parametrize("autocommit", [False, True])
async def test_in_pipeline_mode(app: JobQ, database: Database, autocommit: bool) -> None:
    jobs = [app.new("k", unique_key=key) for key in "aab"]
    adopting = app.new("k", unique_key="a", idempotency_key="i")
    with psycopg.connect(database.url, autocommit=autocommit) as conn, conn.pipeline():
        assert app.enqueue("k", connection=conn).created
        assert sum(job.created for job in app.enqueue_many(jobs, connection=conn)) == 2
        assert not app.enqueue_many([adopting], connection=conn)[0].created
    async with (
        await psycopg.AsyncConnection.connect(database.url, autocommit=autocommit) as aconn,
        aconn.pipeline(),
    ):
        assert (await app.aenqueue("k", connection=aconn)).created
        assert not any(job.created for job in await app.aenqueue_many(jobs, connection=aconn))
        assert not (await app.aenqueue_many([adopting], connection=aconn))[0].created
    assert database.jobs() == 4


async def test_a_conflict_leaves_the_callers_transaction_usable(
    colour: Colour, app: JobQ, database: Database
) -> None:
    await colour.enqueue("k", {"n": 1}, idempotency_key="K")
    session = await colour.connect(database.url)
    await session.execute("CREATE TABLE mine (x int)")
    with pytest.raises(IdempotencyConflict):
        await colour.enqueue("k", {"n": 2}, idempotency_key="K", connection=session.raw)
    with pytest.raises(InvalidPayload):
        await colour.many([app.new("k"), NewJob("k", "{")], connection=session.raw)
    with pytest.raises(InvalidPayload):
        await colour.enqueue("k", {"n": "\0"}, connection=session.raw)
    await colour.enqueue("k", connection=session.raw)
    await session.commit()
    assert database.jobs() == 2
    assert database.one("SELECT to_regclass('mine')") is not None
    await session.close()


async def test_a_deadlock_in_the_callers_transaction_is_the_callers(
    colour: Colour, database: Database
) -> None:
    one, other = [await colour.connect(database.url) for _ in range(2)]
    await one.execute("SET deadlock_timeout = '60s'")
    await colour.enqueue("k", unique_key="a", connection=one.raw)
    await colour.enqueue("k", unique_key="b", connection=other.raw)
    waiting = asyncio.create_task(colour.enqueue("k", unique_key="b", connection=one.raw))
    await database.until(lambda: database.waiting() == 1)
    with pytest.raises(psycopg.errors.DeadlockDetected):
        await colour.enqueue("k", unique_key="a", connection=other.raw)
    await other.rollback()
    assert (await waiting).created
    await one.close()
    await other.close()


async def test_a_connection_of_the_wrong_colour_is_refused_with_the_right_call(
    app: JobQ, database: Database
) -> None:
    @app.job("send")
    def send(to: str) -> None: ...

    with psycopg.connect(database.url) as conn:
        with pytest.raises(InvalidJob, match=r"AsyncConnection; with this one use enqueue"):
            await app.aenqueue("k", connection=conn)
        with pytest.raises(InvalidJob, match=r"AsyncConnection; with this one use enqueue"):
            await send.options(connection=conn).aenqueue("x")
        with pytest.raises(InvalidJob, match=r"must be a psycopg\.Connection"):
            app.enqueue("k", connection=conn.cursor())  # type: ignore[arg-type]
    async with await psycopg.AsyncConnection.connect(database.url) as aconn:
        with pytest.raises(InvalidJob, match=r"psycopg\.Connection; with this one use aenqueue"):
            app.enqueue("k", connection=aconn)
        with pytest.raises(InvalidJob) as caught:
            app.enqueue_many([app.new("k")], connection=aconn)
    assert caught.value.fields.keys() == {"connection"}
    assert database.jobs() == 0


async def test_a_typed_enqueue_joins_the_callers_transaction(app: JobQ, database: Database) -> None:
    @app.job("send")
    def send(to: str) -> None: ...

    with psycopg.connect(database.url) as conn:
        send.options(connection=conn).enqueue(to="a")
        conn.rollback()
        send.options(connection=conn, notify=False).enqueue(to="b")
    assert database.rows("SELECT payload FROM jobq.job") == [({"to": "b"},)]


async def test_a_callers_connection_needs_no_database_url(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JOBQ_DATABASE_URL", raising=False)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    app = JobQ()
    with psycopg.connect(database.url) as conn:
        app.enqueue("k", unique_key="U", connection=conn)
    async with await psycopg.AsyncConnection.connect(database.url) as aconn:
        await app.aenqueue("k", connection=aconn)
    assert database.jobs() == 2
