"""Rivals over one key: who wins, who waits for how long, and that nobody deadlocks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import pytest
from tests.client.support import Colour, Database, both

from jobq import Job, JobQ, KeyInProgress
from jobq.client import plan
from jobq.model import NewJob
from jobq.store import KEY_WAIT, EnqueueStore, WinnerGone

KEYS = ("idempotency_key", "unique_key")


@pytest.mark.parametrize("key", KEYS)
async def test_ten_tasks_with_one_key_make_one_job(
    database_url: str, database: Database, key: str
) -> None:
    async with JobQ(database_url, pool_size=10) as app:
        for number in range(10):
            options: Any = {key: f"once-{number}"}
            jobs = await asyncio.gather(*(app.aenqueue("k", **options) for _ in range(10)))
            assert len({job.id for job in jobs}) == 1
            assert sum(job.created for job in jobs) == 1
    assert database.jobs() == 10


@pytest.mark.parametrize("key", KEYS)
def test_ten_threads_with_one_key_make_one_job(
    database_url: str, database: Database, key: str
) -> None:
    with JobQ(database_url, pool_size=10) as app, ThreadPoolExecutor(10) as threads:

        def enqueue(number: int) -> Job:
            options: Any = {key: f"once-{number}"}
            return app.enqueue("k", **options)

        for number in range(10):
            jobs = list(threads.map(enqueue, [number] * 10))
            assert len({job.id for job in jobs}) == 1
            assert sum(job.created for job in jobs) == 1
    assert database.jobs() == 10


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_rival_waits_for_the_end_of_the_transaction_that_holds_the_key(
    colour: Colour, database: Database, key: str, end: str
) -> None:
    options: Any = {key: "held"}
    session = await colour.connect(database.url)
    first = await colour.enqueue("k", **options, connection=session.raw)

    rival = asyncio.create_task(colour.enqueue("k", **options))
    await database.until(lambda: database.waiting() == 1)
    await (session.commit() if end == "commit" else session.rollback())
    second = await rival

    if end == "commit":
        assert (second.id, second.created) == (first.id, False)
    else:
        assert second.created, "a key whose winner rolled back is not burnt"
        assert second.id != first.id
    assert database.jobs() == 1
    await session.close()


@pytest.mark.parametrize("key", KEYS)
async def test_a_rival_that_stays_open_longer_is_not_waited_for(
    colour: Colour, database: Database, key: str
) -> None:
    options: Any = {key: "held"}
    holder = await colour.connect(database.url)
    await colour.enqueue("k", **options, connection=holder.raw)
    caller = await colour.connect(database.url)
    await caller.execute("CREATE TEMP TABLE mine (x int)")
    await caller.execute("SET LOCAL lock_timeout = '77s'")

    begun = monotonic()
    own, within = await both(
        colour.enqueue("k", **options), colour.enqueue("k", **options, connection=caller.raw)
    )
    assert isinstance(own, KeyInProgress)
    assert isinstance(within, KeyInProgress)
    assert KEY_WAIT <= monotonic() - begun < KEY_WAIT + 5

    assert await caller.execute("SHOW lock_timeout") == [("77s",)], "the caller's own again"
    assert await caller.execute("SELECT count(*) FROM mine") == [(0,)], "its transaction goes on"
    await holder.rollback()
    assert (await colour.enqueue("k", **options)).created
    await holder.close()
    await caller.close()


@pytest.mark.parametrize("limit", ["lock_timeout", "statement_timeout"])
async def test_timeouts_of_the_role_do_not_shorten_the_wait(
    colour: Colour, database: Database, limit: str
) -> None:
    holder = await colour.connect(database.url)
    await colour.enqueue("k", unique_key="U", connection=holder.raw)
    database.rows(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET "
        f"{limit} = 100', current_database()); END $$"
    )
    rival = asyncio.create_task(colour.enqueue("k", unique_key="U"))
    await database.until(lambda: database.waiting() == 1)
    await asyncio.wait({rival}, timeout=0.3)
    assert not rival.done()
    await holder.rollback()
    assert (await rival).created
    await holder.close()


def _rounds(left: Callable[[int], Any], right: Callable[[int], Any]) -> None:
    """Two threads do opposite things at once, round after round."""
    with ThreadPoolExecutor(2) as threads:
        for number in range(30):
            for future in [threads.submit(left, number), threads.submit(right, number)]:
                assert len(future.result()) == 100


@pytest.mark.case("B60")
@pytest.mark.parametrize("key", [*KEYS, "both"])
def test_batches_with_the_same_keys_in_opposite_orders_do_not_deadlock(
    app: JobQ, database: Database, key: str
) -> None:
    def new(name: str) -> NewJob:
        names: dict[str, Any] = dict.fromkeys(KEYS if key == "both" else (key,), name)
        return app.new("k", **names)

    def batch(number: int, step: int) -> list[Job]:
        return app.enqueue_many([new(f"{number}/{i}") for i in range(100)][::step])

    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    _rounds(lambda number: batch(number, 1), lambda number: batch(number, -1))

    assert database.jobs() == 3000
    assert database.one("SELECT count(DISTINCT (tenant, scope, key)) FROM jobq.key") in (3000, 6000)
    database.rows("SELECT pg_stat_force_next_flush()")
    assert database.one(deadlocks) == 0


@pytest.mark.case("B60")
def test_batches_that_mix_both_kinds_of_keys_in_opposite_orders_do_not_deadlock(
    app: JobQ, database: Database
) -> None:
    def batch(number: int, step: int) -> list[Job]:
        keys: list[dict[str, Any]] = [{KEYS[i % 2]: f"{number}/{i}"} for i in range(100)]
        return app.enqueue_many([app.new("k", **key) for key in keys[::step]])

    _rounds(lambda number: batch(number, 1), lambda number: batch(number, -1))
    assert database.jobs() == 3000


@pytest.mark.case("B60")
@pytest.mark.parametrize("key", KEYS)
def test_batches_of_several_statements_do_not_deadlock_either(
    app: JobQ, database: Database, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setattr(plan, "CHUNK", 10)

    def batch(number: int, step: int) -> list[Job]:
        keys: list[dict[str, Any]] = [{key: f"{number}/{i}"} for i in range(100)]
        return app.enqueue_many([app.new("k", **key) for key in keys[::step]])

    _rounds(lambda number: batch(number, 1), lambda number: batch(number, -1))

    assert database.jobs() == 3000


async def test_a_deadlock_of_our_own_transaction_is_begun_again(
    colour: Colour, app: JobQ, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys of both scopes of a batch are each in order, but a caller may take them in any."""
    monkeypatch.setattr(plan, "CHUNK", 1)
    caller = await colour.connect(database.url)
    await caller.execute("SET deadlock_timeout = '60s'")
    await colour.enqueue("k", unique_key="b", connection=caller.raw)

    jobs = [app.new("k", unique_key=key) for key in ("a", "b")]
    rival = asyncio.create_task(colour.many(jobs))
    await database.until(lambda: database.waiting() == 1)
    # Closes the circle: now each waits for the other, and ours is the one to give way.
    (own,) = await asyncio.gather(colour.enqueue("k", unique_key="a", connection=caller.raw))
    await caller.commit()

    first, second = await rival
    assert own.created
    assert (first.id, first.created, second.created) == (own.id, False, False)
    await caller.close()


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_a_stricter_isolation_level_of_the_database_changes_nothing(
    database_url: str, database: Database, isolation: str
) -> None:
    database.rows(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = "
        f"%L', current_database(), '{isolation}'); END $$"
    )
    async with JobQ(database_url, pool_size=5) as app:
        for number in range(10):
            jobs = await asyncio.gather(
                *(app.aenqueue("k", idempotency_key=f"once-{number}") for _ in range(5))
            )
            assert len({job.id for job in jobs}) == 1
    assert database.jobs() == 10


async def test_a_winner_that_ends_between_two_looks_does_not_confuse(
    colour: Colour, database: Database
) -> None:
    """Its unique key was taken when the job was inserted and free when the winner was looked for."""
    live = await colour.enqueue("k", unique_key="U")
    # Holds the second statement of the rival, which reads the keys, after the first has inserted.
    barrier = await colour.connect(database.url, autocommit=True)
    await barrier.execute("BEGIN")
    await barrier.execute("LOCK TABLE jobq.job_archive IN ACCESS EXCLUSIVE MODE")

    rival = asyncio.create_task(colour.enqueue("k", unique_key="U"))
    await database.until(lambda: database.waiting() == 1)
    await barrier.execute("DELETE FROM jobq.key WHERE job_id = %s", (live.id,))
    await barrier.execute("DELETE FROM jobq.job WHERE id = %s", (live.id,))
    await barrier.execute("COMMIT")

    second = await rival
    assert second.created
    assert second.id != live.id
    await barrier.close()


async def test_a_key_that_keeps_changing_hands_ends_as_in_progress(
    app: JobQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []

    def gone(self: EnqueueStore, jobs: Any) -> Any:
        begun.append(jobs)
        raise WinnerGone
        yield

    monkeypatch.setattr(EnqueueStore, "enqueue_many", gone)
    with pytest.raises(KeyInProgress):
        await app.aenqueue("k", unique_key="U")
    with pytest.raises(KeyInProgress):
        app.enqueue("k", unique_key="U")
    assert len(begun) == 2 * plan.ATTEMPTS
