"""Payloads and fields that no database can hold are refused before it is asked, and the next job is fine."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.client.support import Colour, Database

from jobq import InvalidJob, InvalidPayload, JobQ, PayloadTooLarge


def nested(depth: int, *, objects: bool = False) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value} if objects else [value]
    return value


HOSTILE: dict[str, Any] = {
    "NaN": {"v": math.nan},
    "infinity": {"v": math.inf},
    "minus infinity": [-math.inf],
    "1e400": {"v": float("1e400")},
    "NUL": {"a": "x\0y"},
    "NUL in a list": {"a": [[["\0"]]]},
    "NUL in a name": {"a\0": 1},
    "high surrogate": "\ud800",
    "low surrogate in a name": {"\udc00": 1},
    "surrogates in a long text": ["x" * 5000 + "\udfff"],
    "deep lists": nested(101),
    "deep objects": nested(5000, objects=True),
    "deeper than the stack": nested(100_000),
    "4001 digits": {"n": 10**4000},
    "5000 digits": [10**4999],
    "bytes": b"abc",
    "no JSON at all": object(),
    "a class": {"a": int},
    "a ring": None,
}
_ring: list[Any] = []
_ring.append(_ring)
HOSTILE["a ring"] = _ring


@pytest.mark.case("B01", "B02")
@pytest.mark.parametrize("name", HOSTILE)
async def test_a_payload_that_cannot_be_stored_is_refused_by_name(
    colour: Colour, app: JobQ, database: Database, name: str
) -> None:
    @app.job("typed")
    def typed(value: Any) -> None: ...

    payload = HOSTILE[name]
    for options in ({}, {"idempotency_key": "i"}):
        with pytest.raises(InvalidPayload) as caught:
            await colour.enqueue("k", payload, **options)
        assert caught.value.fields.keys() == {"payload"}
    if name != "bytes":  # to a handler that takes anything they are text
        with pytest.raises(InvalidPayload):
            await colour.call(typed, payload)
    assert database.jobs() == 0
    assert (await colour.enqueue("k", {"fine": True})).created


FINE: dict[str, Any] = {
    "escaped NUL that is none": {"a": "\\u0000"},
    "two backslashes": "\\\\u0000\\",
    "control characters": "\x01\x1f\x7f\u2028",
    "emoji": "😀" * 100,
    "as deep as may be": nested(100),
    "many brackets in a text": "[" * 1000 + '"{' * 1000,
    "large integers": [2**63, -(2**64), 10**1000],
    "floats": [5e-324, -0.5, 1e22, 0.1, 123456.789],
    "null, true, false": [None, True, False],
    "empty names": {"": {"": []}},
    "null beside text": {"a": None, "null": "null"},
}


@pytest.mark.parametrize("name", FINE)
async def test_whatever_json_can_hold_comes_back_as_it_was(
    colour: Colour, app: JobQ, name: str
) -> None:
    payload = FINE[name]
    for options in ({}, {"unique_key": "u"}):
        job = await colour.enqueue("k", payload, **options)
        assert (await colour.get(job.id)).payload == payload
    (job,) = await colour.many([app.new("k", payload)])
    assert (await colour.get(job.id)).payload == payload


@pytest.mark.case("B01")
@pytest.mark.parametrize("field", ["kind", "idempotency_key", "unique_key", "tenant", "queue"])
async def test_nul_in_a_field_is_refused_by_name(
    colour: Colour, database: Database, field: str
) -> None:
    for text in ("a\0", "a\ud800"):
        options = {"kind": "k", field: text}
        with pytest.raises(InvalidJob) as caught:
            await colour.enqueue(options.pop("kind"), {}, **options)
        assert caught.value.fields.keys() == {field}
    assert database.jobs() == 0
    assert (await colour.enqueue("k")).created


async def test_a_payload_is_bounded_by_the_setting(colour: Colour, database: Database) -> None:
    limit = 1024**2
    assert (await colour.enqueue("k", "x" * (limit - 2))).created
    with pytest.raises(PayloadTooLarge, match="1,048,576 bytes"):
        await colour.enqueue("k", "x" * (limit - 1))
    with pytest.raises(PayloadTooLarge):
        await colour.enqueue("k", "é" * (limit // 2))
    assert database.jobs() == 1
