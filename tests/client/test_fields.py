"""The bounds of every field of a job."""

from __future__ import annotations

import enum
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from jobq import InvalidJob, InvalidPayload, JobQError, PayloadTooLarge
from jobq.fields import CAMEL, check, new_job, parse_time

TEN_YEARS = 3650 * 86400
INDIA = timezone(timedelta(hours=5, minutes=30))


class Name(enum.StrEnum):
    SLOW = "slow"


@pytest.mark.parametrize(
    ("field", "value", "stored"),
    [
        ("queue", "a-Z.0_9:/@", "a-Z.0_9:/@"),
        ("queue", "x" * 128, "x" * 128),
        ("queue", Name.SLOW, "slow"),
        ("tenant", "acme", "acme"),
        ("priority", -100, -100),
        ("priority", 100, 100),
        ("delay", 0, 0.0),
        ("delay", timedelta(minutes=5), 300.0),
        ("delay", TEN_YEARS, float(TEN_YEARS)),
        ("timeout", 0.001, 0.001),
        ("timeout", timedelta(days=3650), float(TEN_YEARS)),
        ("max_attempts", 1, 1),
        ("max_attempts", 100, 100),
        ("run_at", datetime(2030, 1, 1, tzinfo=INDIA), datetime(2029, 12, 31, 18, 30, tzinfo=UTC)),
        ("run_at", "2030-01-01T00:00:00z", datetime(2030, 1, 1, tzinfo=UTC)),
        ("run_at", datetime(1, 1, 2, tzinfo=UTC), datetime(1, 1, 2, tzinfo=UTC)),
        ("idempotency_key", " ", " "),
        ("idempotency_key", "  padded\t", "  padded\t"),
        ("idempotency_key", "é" * 127, "é" * 127),
        ("unique_key", "x" * 255, "x" * 255),
        ("concurrency_key", "Case", "Case"),
        ("tags", (), []),
        ("tags", ["x" * 64] * 16, ["x" * 64] * 16),
        ("tags", ("a", "Ä😀"), ["a", "Ä😀"]),
        ("meta", {"request": "1"}, {"request": "1"}),
    ],
)
def test_a_value_within_bounds_is_taken(field: str, value: Any, stored: Any) -> None:
    taken = check({field: value})[field]
    assert taken == stored
    assert type(taken) is type(stored)


_NAMES = ("", "a b", "ä", "x" * 129, "a\n", 7, b"a")
_DURATIONS = (-1, TEN_YEARS + 1, 10**400, float("nan"), float("inf"), "5m", True, timedelta.max)
_KEYS = ("", "x" * 256, "é" * 128, "a\0", "\ud800", 7)
REFUSED: dict[str, tuple[Any, ...]] = {
    "queue": _NAMES,
    "tenant": _NAMES,
    "priority": (-101, 101, 2**31, 1.0, "1", True),
    "max_attempts": (0, 101, -1, 2.0, "5", True),
    "delay": _DURATIONS,
    "timeout": (*_DURATIONS, 0, timedelta(0)),
    "run_at": (
        datetime(2030, 1, 1),  # noqa: DTZ001 - naive is what is refused
        "2030-01-01T00:00:00",
        "2030-01-01",
        1893456000,
        datetime(9999, 6, 1, tzinfo=UTC),
        datetime.min.replace(tzinfo=INDIA),
    ),
    "idempotency_key": _KEYS,
    "unique_key": _KEYS,
    "concurrency_key": _KEYS,
    "tags": ("abc", ["a"] * 17, [""], ["x" * 65], ["a\0"], [1], {"a": 1}),
    "meta": ([], {"a": "\0"}, {"a": float("nan")}, {"a": "x" * 20_000}),
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in REFUSED.items() for value in values]
)
def test_a_value_out_of_bounds_is_refused_with_what_would_be_right(field: str, value: Any) -> None:
    with pytest.raises(InvalidJob) as caught:
        check({field: value})
    assert caught.value.fields.keys() == {field}
    assert "must" in caught.value.fields[field] or field == "meta"


def test_all_bad_fields_are_named_at_once_as_the_caller_calls_them() -> None:
    options = {
        "max_attempts": 0,
        "timeout": -1,
        "run_at": "soon",
        "idempotency_key": "",
        "queue": "?",
    }
    with pytest.raises(InvalidJob) as caught:
        new_job("no kind", float("nan"), options, naming=CAMEL)
    assert caught.value.fields.keys() == {
        "kind", "payload", "maxAttempts", "timeoutSeconds", "runAt", "idempotencyKey", "queue",
    }  # fmt: skip


def test_delay_and_run_at_exclude_each_other() -> None:
    with pytest.raises(InvalidJob, match="runAt must not be given together with delaySeconds"):
        check({"delay": 1, "run_at": datetime(2030, 1, 1, tzinfo=UTC)}, naming=CAMEL)


def test_an_unknown_field_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InvalidJob, match="idempotencyKey") as caught:
        check({"idempotncyKey": "a"}, naming=CAMEL)
    assert caught.value.fields.keys() == {"idempotncyKey"}


def test_none_leaves_a_field_open_but_a_kind_is_needed() -> None:
    assert new_job("k", {}, {"queue": None, "delay": None}).queue is None
    with pytest.raises(InvalidJob, match="kind must"):
        new_job(None, {}, {})


@pytest.mark.case("B02")
@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -float("inf"), {"a": [float("nan")]}]
)
def test_a_payload_alone_gives_its_own_error(value: Any) -> None:
    with pytest.raises(InvalidPayload):
        new_job("k", value, {})


def test_a_payload_is_bounded_in_bytes() -> None:
    assert new_job("k", "é" * 10, {}, limit=22).payload == '"éééééééééé"'
    with pytest.raises(PayloadTooLarge):
        new_job("k", "é" * 10, {}, limit=21)


def test_a_refusal_is_a_value_error_and_a_jobq_error() -> None:
    assert issubclass(InvalidJob, ValueError)
    assert issubclass(InvalidJob, JobQError)


@pytest.mark.case("B72")
@pytest.mark.parametrize(
    "text",
    [
        "2030-01-01T00:00:00Z",
        "2030-01-01t00:00:00z",
        "2030-01-01 00:00:00+00:00",
        "2030-01-01T05:30:00+05:30",
        "2029-12-31T19:00:00.000000-05:00",
    ],
)
def test_equal_instants_are_equal_times(text: str) -> None:
    assert parse_time(text) == datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.case("B72")
@pytest.mark.parametrize(
    "text",
    [
        "2030-01-01T00:00:00", "2030-01-01", "1893456000", "2030-W01-1T00:00:00Z", "20300101T000000Z",
        "2030-02-30T00:00:00Z", "2030-01-01T25:00:00Z", "2030-01-01T00:00:00+25:00", "", "now",
    ],
)  # fmt: skip
def test_a_time_without_zone_or_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a time"):
        parse_time(text)
