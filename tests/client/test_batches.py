"""Enqueuing many jobs: all or none, in order, with the rules of a single enqueue."""

from __future__ import annotations

from typing import Any

import pytest
from tests.client.support import Colour, Database

from jobq import IdempotencyConflict, InvalidPayload, JobQ, JobStatus
from jobq.client import plan
from jobq.fields import CAMEL
from jobq.model import NewJob


def keyed(app: JobQ, key: str, number: int = 0, **options: Any) -> NewJob:
    return app.new("k", {"n": number}, idempotency_key=key, **options)


async def test_a_batch_of_any_size_comes_back_in_order(
    colour: Colour, app: JobQ, database: Database
) -> None:
    count = 2 * plan.CHUNK + 1
    jobs = await colour.many([app.new("k", n) for n in range(count)])
    assert [job.id for job in jobs] == list(range(jobs[0].id, jobs[0].id + count))
    wrong = "SELECT count(*) FROM jobq.job WHERE payload::bigint <> id - %s"
    assert database.one(wrong, (jobs[0].id,)) == 0
    assert database.jobs() == count


async def test_an_empty_batch_needs_no_database(colour: Colour) -> None:
    assert await colour.many([]) == []
    with JobQ("postgresql://127.0.0.1:1/none") as nowhere:
        assert nowhere.enqueue_many([]) == []


async def test_a_generator_of_jobs_will_do(app: JobQ) -> None:
    @app.job("send")
    def send(to: str) -> None: ...

    jobs = app.enqueue_many(send.new(to=to) for to in "abc")
    assert [app.get(job.id).payload for job in jobs] == [{"to": to} for to in "abc"]


async def test_a_batch_mixes_kinds_options_and_due_times(colour: Colour, app: JobQ) -> None:
    jobs = await colour.many([
        app.new("a", [1], queue="q1", tags=["x", '"y"'], meta={"m": 1}),
        app.new("b", {"t": 'quote " backslash \\ brace {'}, delay=60),
        app.new("c", None, tenant="t", priority=3, max_attempts=1, timeout=2.5),
    ])  # fmt: skip
    first, second, third = [await colour.get(job.id) for job in jobs]
    assert (first.payload, first.queue, first.tags) == ([1], "q1", ["x", '"y"'])
    assert (second.payload, second.status) == ({"t": 'quote " backslash \\ brace {'}, "SCHEDULED")
    assert (third.payload, third.tenant, third.priority) == (None, "t", 3)
    assert (third.max_attempts, third.timeout) == (1, 2.5)


@pytest.mark.case("B61")
async def test_existing_and_repeated_keys_in_a_batch_collapse(
    colour: Colour, app: JobQ, database: Database
) -> None:
    existing = await colour.many([keyed(app, f"old-{n}", n) for n in range(10)])
    batch = [app.new("k", n) for n in range(1000)]
    for n in range(10):
        batch[n * 90 + 5] = keyed(app, f"old-{n}", n)
    for at in (7, 500, 999):
        batch[at] = keyed(app, "new", 1)

    jobs = await colour.many(batch)

    assert len(jobs) == 1000
    assert [jobs[n * 90 + 5].id for n in range(10)] == [job.id for job in existing]
    assert not any(jobs[n * 90 + 5].created for n in range(10))
    assert jobs[7].id == jobs[500].id == jobs[999].id
    assert [jobs[at].created for at in (7, 500, 999)] == [True, False, False]
    assert sum(job.created for job in jobs) == 1000 - 10 - 2
    assert database.jobs() == 10 + 1000 - 10 - 2


@pytest.mark.case("B61")
@pytest.mark.parametrize("chunk", [3, 1000])
async def test_a_conflict_in_a_batch_is_named_by_its_index_and_nothing_is_kept(
    colour: Colour, app: JobQ, database: Database, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "CHUNK", chunk)
    await colour.many([keyed(app, "taken", 1)])
    batch = [keyed(app, f"z-{n}", n) for n in range(10)]
    batch[7] = keyed(app, "taken", 2)
    with pytest.raises(IdempotencyConflict) as caught:
        await colour.many(batch, naming=CAMEL)
    assert caught.value.fields.keys() == {"jobs[7].idempotencyKey"}
    assert caught.value.index == 7
    assert database.jobs() == 1
    assert database.one("SELECT count(*) FROM jobq.key") == 1


async def test_the_same_key_for_two_requests_in_one_batch_conflicts(
    colour: Colour, app: JobQ, database: Database
) -> None:
    with pytest.raises(IdempotencyConflict) as caught:
        await colour.many([keyed(app, "one", 1), keyed(app, "one", 1), keyed(app, "one", 2)])
    assert caught.value.fields.keys() == {"jobs[2].idempotency_key"}
    assert database.jobs() == 0


@pytest.mark.parametrize("chunk", [2, 1000])
async def test_keyed_jobs_of_several_statements_come_back_in_order(
    colour: Colour, app: JobQ, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "CHUNK", chunk)
    keys = ["c", "a", "b", "a", "c", "d"]
    jobs = await colour.many([keyed(app, key, ord(key)) for key in keys])
    assert [(await colour.get(job.id)).idempotency_key for job in jobs] == keys
    assert len({job.id for job in jobs}) == 4


async def test_unique_keys_in_a_batch_collapse_too(
    colour: Colour, app: JobQ, database: Database
) -> None:
    live = await colour.enqueue("k", unique_key="U")
    jobs = await colour.many(
        [app.new("k", n, unique_key=key) for n, key in enumerate(["U", "V", "V", "U"])]
    )
    assert [job.created for job in jobs] == [False, True, False, False]
    assert [jobs[0].id, jobs[3].id] == [live.id, live.id]
    assert jobs[1].id == jobs[2].id
    assert database.jobs() == 2


async def test_a_batch_repeats_a_request_that_gave_way_to_a_live_job(
    colour: Colour, app: JobQ, database: Database
) -> None:
    live = await colour.enqueue("k", unique_key="U")
    jobs = await colour.many([keyed(app, "K", 1, unique_key="U"), keyed(app, "K", 1)])
    assert [(job.id, job.status, job.created) for job in jobs] == [
        (live.id, JobStatus.QUEUED, False),
        (live.id, JobStatus.QUEUED, False),
    ]
    assert database.jobs() == 1


async def test_keys_of_a_batch_belong_to_its_jobs_tenants(
    colour: Colour, app: JobQ, database: Database
) -> None:
    jobs = await colour.many([keyed(app, "K", n, tenant=tenant) for n, tenant in enumerate("ab")])
    assert [job.created for job in jobs] == [True, True]
    assert database.jobs() == 2


@pytest.mark.parametrize(
    "payload", ['{"n":1e200000}', '"\\u0000"', '"\\ud800"', "{", "NaN", '{"n":01}']
)
@pytest.mark.parametrize("count", [1, 2000])
async def test_a_payload_that_only_postgresql_refuses_leaves_nothing(
    colour: Colour, app: JobQ, database: Database, payload: str, count: int
) -> None:
    """Jobs from `.new` cannot be so; these are made by hand."""
    batch = [app.new("k", n) for n in range(count - 1)] + [NewJob("k", payload)]
    with pytest.raises(InvalidPayload, match="is refused by PostgreSQL"):
        await colour.many(batch)
    assert database.jobs() == 0
    assert (await colour.enqueue("k")).created
