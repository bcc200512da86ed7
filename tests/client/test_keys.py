"""Idempotency keys and unique keys: what they stand for, for how long, and what they compare."""

from __future__ import annotations

import secrets
from typing import Any

import pytest
from tests.client.support import Colour, Database

from jobq import IdempotencyConflict, InvalidJob, JobQ, JobStatus
from jobq.payload import encode

KEYS = ("idempotency_key", "unique_key")


@pytest.mark.parametrize("key", KEYS)
async def test_a_key_used_again_gives_the_same_job(
    colour: Colour, database: Database, key: str
) -> None:
    first = await colour.enqueue("k", {"a": 1}, **{key: "once"})
    second = await colour.enqueue("k", {"a": 1}, **{key: "once"})
    assert (first.created, second.created) == (True, False)
    assert (second.id, second.status) == (first.id, JobStatus.QUEUED)
    assert database.jobs() == 1


@pytest.mark.case("B54")
@pytest.mark.parametrize(
    "payload",
    [
        '{"to":"a","n":1}',
        '{"n": 1,\n "to":  "a"}',
        '{"n":1.0,"to":"a"}',
        '{"n":1e0,"to":"\\u0061"}',
        '{"n":2,"to":"a","n":1}',
    ],
)
async def test_equal_json_is_the_same_request(app: JobQ, payload: str) -> None:
    first = app.new("k", {"to": "a", "n": 1}, idempotency_key="K")
    again = app.new("k", {}, idempotency_key="K")
    again.payload = payload
    jobs = app.enqueue_many([first]) + await app.aenqueue_many([again])
    assert [job.created for job in jobs] == [True, False]
    assert jobs[0].id == jobs[1].id


@pytest.mark.case("B54")
@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("k", {"to": "b"}),
        ("k", {"to": "A"}),
        ("k", {"to": "a", "more": None}),
        ("k", {}),
        ("k", [{"to": "a"}]),
        ("other", {"to": "a"}),
    ],
)
async def test_another_request_with_the_same_key_conflicts(
    colour: Colour, database: Database, kind: str, payload: Any
) -> None:
    first = await colour.enqueue("k", {"to": "a"}, idempotency_key="K")
    with pytest.raises(
        IdempotencyConflict, match=rf"idempotency_key .*\(job {first.id}\)"
    ) as caught:
        await colour.enqueue(kind, payload or {}, idempotency_key="K")
    assert caught.value.fields.keys() == {"idempotency_key"}
    assert caught.value.job_id == first.id
    assert database.jobs() == 1
    assert (await colour.enqueue("k", {"to": "a"})).created, "the connection still works"


async def test_options_are_no_part_of_the_request(colour: Colour) -> None:
    first = await colour.enqueue("k", idempotency_key="K", queue="a", priority=1)
    again = await colour.enqueue("k", idempotency_key="K", queue="b", delay=5, tags=["x"])
    assert again.id == first.id


@pytest.mark.case("B59")
async def test_a_key_belongs_to_its_tenant(colour: Colour, database: Database) -> None:
    for key in KEYS:
        jobs = [
            await colour.enqueue("k", {"for": tenant}, tenant=tenant, **{key: "order-1"})
            for tenant in ("a", "b")
        ]
        assert [job.created for job in jobs] == [True, True]
    assert database.jobs() == 4


async def test_both_kinds_of_keys_are_apart(colour: Colour, database: Database) -> None:
    await colour.enqueue("k", idempotency_key="same")
    assert (await colour.enqueue("k", unique_key="same")).created
    assert database.jobs() == 2


@pytest.mark.case("B55")
async def test_an_idempotency_key_outlives_its_job_and_tells_how_it_ended(
    colour: Colour, database: Database
) -> None:
    first = await colour.enqueue("k", idempotency_key="K")
    database.finish(first.id)
    again = await colour.enqueue("k", idempotency_key="K")
    assert (again.id, again.status, again.created) == (first.id, JobStatus.DONE, False)

    database.rows("DELETE FROM jobq.job_archive")
    retired = await colour.enqueue("k", idempotency_key="K")
    assert (retired.id, retired.status, retired.created) == (first.id, "RETIRED", False)

    database.rows("DELETE FROM jobq.key")
    assert (await colour.enqueue("k", idempotency_key="K")).id > first.id


async def test_a_unique_key_is_free_again_when_its_job_has_finished(
    colour: Colour, database: Database
) -> None:
    first = await colour.enqueue("k", {"n": 1}, unique_key="U")
    assert (await colour.enqueue("other", {"n": 2}, unique_key="U")).id == first.id
    database.finish(first.id)
    second = await colour.enqueue("k", {"n": 3}, unique_key="U")
    assert second.created
    assert second.id > first.id


async def test_a_request_with_both_keys_stands_for_the_live_job_for_good(
    colour: Colour, database: Database
) -> None:
    live = await colour.enqueue("k", {"n": 1}, unique_key="U")
    adopted = await colour.enqueue("k", {"n": 2}, unique_key="U", idempotency_key="K")
    assert (adopted.id, adopted.created) == (live.id, False)

    database.finish(live.id)
    again = await colour.enqueue("k", {"n": 2}, unique_key="U", idempotency_key="K")
    assert (again.id, again.status) == (live.id, JobStatus.DONE), "the key had found its job"
    with pytest.raises(IdempotencyConflict):
        await colour.enqueue("k", {"n": 1}, unique_key="U", idempotency_key="K")


async def test_a_known_idempotency_key_decides_before_the_unique_key(
    colour: Colour, database: Database
) -> None:
    first = await colour.enqueue("k", idempotency_key="K")
    again = await colour.enqueue("k", idempotency_key="K", unique_key="U")
    assert again.id == first.id
    assert (await colour.enqueue("k", unique_key="U")).created, "the unique key was not taken"
    assert database.jobs() == 2


@pytest.mark.case("B58")
@pytest.mark.parametrize(
    "key",
    [
        secrets.token_hex(1500),
        "".join(chr(0x1F600 + i % 80) for i in range(800)),
        "a" * 100_000,
        "",
    ],
    ids=["hex", "emoji", "repetitive", "empty"],
)
async def test_a_key_beyond_its_bounds_is_refused(
    colour: Colour, database: Database, key: str
) -> None:
    for name in KEYS:
        with pytest.raises(InvalidJob, match=rf"{name} must be 1 to 255 bytes"):
            await colour.enqueue("k", **{name: key})
    assert database.jobs() == 0


@pytest.mark.case("B58")
async def test_keys_differ_as_their_bytes_do(colour: Colour, database: Database) -> None:
    keys = [
        " ", "  ", "key", " key", "key ", "key\n", "KEY", "Key", "\u00e9", "e\u0301", "\u1f600" * 50, "x" * 255,
        secrets.token_hex(127), "NULL", '"', "\\", "{}", "a,b", "%s", "'; DROP TABLE jobq.job; --",
    ]  # fmt: skip
    for name in KEYS:
        jobs = {key: await colour.enqueue("k", **{name: key}) for key in keys}
        assert all(job.created for job in jobs.values())
        for key in keys:
            assert (await colour.enqueue("k", **{name: key})).id == jobs[key].id
    assert database.jobs() == 2 * len(keys)


@pytest.mark.case("B10")
async def test_repeats_use_up_no_small_sequence(app: JobQ, database: Database) -> None:
    for _ in range(20):
        await app.aenqueue_many([app.new("k", idempotency_key="one")] * 500)
    assert database.jobs() == 1
    small = "SELECT count(*) FROM pg_sequences WHERE schemaname = 'jobq' AND data_type <> 'bigint'::regtype"
    assert database.one(small) == 0


async def test_a_payload_that_is_compared_is_stored_as_it_was_sent(colour: Colour) -> None:
    payload = {"big": 2**80, "text": 'ä\n\\"{},', "nested": [{"a": [None, True, 1.5]}], "": ""}
    job = await colour.enqueue("k", payload, idempotency_key="K")
    assert (await colour.get(job.id)).payload == payload
    assert (await colour.enqueue("k", payload, idempotency_key="K")).id == job.id
    assert encode(payload)
