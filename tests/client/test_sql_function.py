"""`jobq.enqueue(...)` in plain SQL: the same rules in any client's own transaction."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from psycopg import errors
from tests.client.support import Async, Database, Listener

from jobq import JobQ, JobStatus
from jobq.model import Lane
from jobq.store import UpkeepStore, run_sync
from jobq.wakeup import DueAt, LanesReady, parse, token

KEYS = ("idempotency_key", "unique_key")


def enqueue(database: Database, conn: Any = None, **arguments: Any) -> int:
    """Call the function with named arguments; a text for payload is JSON."""
    named = ", ".join(f"{name} => %({name})s" for name in arguments)
    statement = f"SELECT jobq.enqueue({named})".encode()
    cursor = (conn or database.conn).execute(statement, arguments)
    ((id_,),) = cursor.fetchall()
    return int(id_)


async def test_a_kind_is_enough(app: JobQ, database: Database) -> None:
    job = app.get(enqueue(database, kind="k"))
    assert (job.kind, job.payload, job.queue, job.tenant) == ("k", {}, "default", "default")
    assert (job.status, job.priority, job.tags) == (JobStatus.QUEUED, 0, [])
    assert (job.max_attempts, job.timeout) == (None, None), "the worker that claims it decides"


async def test_every_argument_is_stored(app: JobQ, database: Database) -> None:
    arguments = {
        "kind": "k", "payload": '{"to": ["a"]}', "queue": "mail", "tenant": "acme", "priority": -7,
        "max_attempts": 9, "timeout": "2 minutes", "idempotency_key": "i", "unique_key": "u",
        "concurrency_key": "c", "tags": ["a", "ä"], "meta": '{"request": "1"}',
    }  # fmt: skip
    id_ = enqueue(database, **arguments)
    job = app.get(id_)
    stored = {name: getattr(job, name) for name in arguments if name != "meta"}
    assert stored == {k: v for k, v in arguments.items() if k != "meta"} | {
        "payload": {"to": ["a"]},
        "timeout": 120.0,
    }
    assert database.one("SELECT meta FROM jobq.job WHERE id = %s", (id_,)) == {"request": "1"}


async def test_what_a_job_leaves_open_comes_from_its_kind(app: JobQ, database: Database) -> None:
    kind = {"kind": "k", "queue": "slow", "priority": 5, "max_attempts": 2, "timeout": 7.5}
    run_sync(database.conn, UpkeepStore(app._statements).register_kinds([kind]))
    job = app.get(enqueue(database, kind="k"))
    assert (job.queue, job.priority, job.max_attempts, job.timeout) == ("slow", 5, 2, 7.5)
    told = app.get(
        enqueue(database, kind="k", queue="q", priority=0, max_attempts=1, timeout="1 second")
    )
    assert (told.queue, told.priority, told.max_attempts, told.timeout) == ("q", 0, 1, 1.0)


async def test_due_times(app: JobQ, database: Database) -> None:
    delayed = enqueue(database, kind="k", delay="5 minutes")
    assert app.get(delayed).status == JobStatus.SCHEDULED
    seconds = "SELECT extract(epoch FROM run_at - created_at)::float8 FROM jobq.job WHERE id = %s"
    assert database.one(seconds, (delayed,)) == 300
    late = enqueue(database, kind="k", run_at="2001-01-01T00:00:00Z")
    assert app.get(late).status == JobStatus.QUEUED
    assert database.one(seconds, (late,)) == 0


@pytest.mark.parametrize("key", KEYS)
async def test_a_key_used_again_gives_the_same_job_whichever_way_it_was_used(
    app: JobQ, database: Database, key: str
) -> None:
    keyed: dict[str, Any] = {key: "K"}
    first = enqueue(database, kind="k", payload='{"n": 1.0, "m": 2}', **keyed)
    assert enqueue(database, kind="k", payload='{"m":2,"n":1}', **keyed) == first
    again = app.enqueue("k", {"m": 2, "n": 1}, **keyed)
    assert (again.id, again.created) == (first, False)
    other: dict[str, Any] = {key: "L"}
    made = app.enqueue("k", {"n": 3}, **other)
    assert enqueue(database, kind="k", payload='{"n": 3}', **other) == made.id
    assert enqueue(database, kind="k", tenant="other", **keyed) != first


async def test_another_request_with_the_same_key_conflicts(app: JobQ, database: Database) -> None:
    first = enqueue(database, kind="k", payload='{"n": 1}', idempotency_key="K")
    for arguments in (
        {"kind": "k", "payload": '{"n": 2}'},
        {"kind": "other", "payload": '{"n": 1}'},
    ):
        with pytest.raises(errors.UniqueViolation, match=rf"idempotency_key .*\(job {first}\)"):
            enqueue(database, idempotency_key="K", **arguments)
    assert database.jobs() == 1


async def test_both_keys_together_stand_for_the_live_job(database: Database) -> None:
    live = enqueue(database, kind="k", unique_key="U")
    assert enqueue(database, kind="k", payload="[2]", unique_key="U", idempotency_key="K") == live
    database.finish(live)
    assert enqueue(database, kind="k", payload="[2]", unique_key="U", idempotency_key="K") == live
    assert enqueue(database, kind="k", unique_key="U") != live


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_rival_waits_for_the_end_of_the_transaction_that_holds_the_key(
    app: JobQ, database: Database, key: str, end: str
) -> None:
    keyed: dict[str, Any] = {key: "K"}
    with psycopg.connect(database.url) as holder, psycopg.connect(database.url) as other:
        first = enqueue(database, holder, kind="k", **keyed)
        by_sql = asyncio.create_task(asyncio.to_thread(enqueue, database, other, kind="k", **keyed))
        by_client = asyncio.create_task(Async(app).enqueue("k", **keyed))
        await database.until(lambda: database.waiting() == 2)
        (holder.commit if end == "commit" else holder.rollback)()
        if end == "commit":
            assert {await by_sql, (await by_client).id} == {first}
        else:
            second = await by_sql
            other.commit()
            assert second != first, "a key whose winner rolled back is not burnt"
            assert (await by_client).id == second or (await by_client).created
        other.commit()
    assert database.jobs() == 1


async def test_a_rollback_leaves_nothing_and_a_commit_wakes_the_workers(
    app: JobQ, database: Database, listener: Listener
) -> None:
    with psycopg.connect(database.url) as conn:
        enqueue(database, conn, kind="k", idempotency_key="K")
        conn.rollback()
        assert database.jobs() == 0
        id_ = enqueue(
            database, conn, kind="k", queue="q", tenant="t", priority=3, idempotency_key="K"
        )
        assert database.jobs() == 0
        assert listener.heard() == []
        conn.commit()
    at = app.get(id_).run_at
    assert parse(await listener.next()) == LanesReady({token(Lane("q", "t", 3)): (at, at)})
    later = enqueue(database, kind="k", delay="1 hour")
    assert parse(await listener.next()) == DueAt(app.get(later).run_at)
    enqueue(database, kind="k", notify=False)
    assert listener.heard() == []


REFUSED: list[dict[str, Any]] = [
    {"kind": None}, {"kind": ""}, {"kind": "a b"}, {"kind": "x" * 129}, {"kind": "a\nb"}, {"kind": "ä"},
    {"queue": ""}, {"queue": "a b"}, {"tenant": None}, {"tenant": "?"}, {"payload": None},
    {"payload": '"' + "x" * 1024**2 + '"'},
    {"priority": 101}, {"priority": -101}, {"max_attempts": 0}, {"max_attempts": 101},
    {"timeout": "0"}, {"timeout": "-1 second"}, {"timeout": "11 years"},
    {"delay": "-1 second"}, {"delay": "11 years"}, {"delay": "1 second", "run_at": "2030-01-01Z"},
    *({key: value} for key in (*KEYS, "concurrency_key") for value in ("", "x" * 256, "é" * 128)),
    {"tags": ["x"] * 17}, {"tags": [""]}, {"tags": ["x" * 65]}, {"tags": [None]},
]  # fmt: skip


@pytest.mark.parametrize("arguments", REFUSED, ids=lambda a: f"{[*a]}={str([*a.values()])[:20]}")
async def test_a_value_out_of_bounds_is_refused_by_name(
    database: Database, arguments: dict[str, Any]
) -> None:
    with pytest.raises(errors.InvalidParameterValue) as caught:
        enqueue(database, **{"kind": "k", **arguments})
    assert any(name in str(caught.value) for name in arguments)
    assert database.jobs() == 0


@pytest.mark.parametrize(
    "arguments",
    [{"payload": "{"}, {"payload": '"\\u0000"'}, {"payload": "NaN"}, {"run_at": "10000-01-01Z"}],
)
async def test_what_postgresql_itself_refuses_leaves_nothing(
    database: Database, arguments: dict[str, Any]
) -> None:
    with pytest.raises((errors.DataError, errors.CheckViolation)):
        enqueue(database, kind="k", idempotency_key="K", **arguments)
    assert database.jobs() == 0
    assert enqueue(database, kind="k", idempotency_key="K")
