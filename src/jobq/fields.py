"""What a job to enqueue may say: the bounds of every field (contract.md), checked in one place."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from jobq.errors import InvalidJob, InvalidPayload
from jobq.model import NewJob
from jobq.payload import encode

#: Field -> its name in errors. Python speaks snake_case, HTTP camelCase.
Naming = Mapping[str, str]
SNAKE: Naming = {}
CAMEL: Naming = {
    "delay": "delaySeconds",
    "run_at": "runAt",
    "max_attempts": "maxAttempts",
    "timeout": "timeoutSeconds",
    "idempotency_key": "idempotencyKey",
    "unique_key": "uniqueKey",
    "concurrency_key": "concurrencyKey",
}

MAX_PRIORITY = 100
MAX_ATTEMPTS = 100
MAX_KEY = 255  # bytes
MAX_TAGS = 16
MAX_TAG = 64  # characters
MAX_META = 16 * 1024  # bytes
#: The longest delay and timeout, in seconds: ten years.
LONGEST = 3650 * 86400

_NAME = re.compile(r"[A-Za-z0-9._:/@-]{1,128}")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_END = datetime(9999, 1, 1, tzinfo=UTC)


def new_job(
    kind: object,
    payload: object,
    options: Mapping[str, Any],
    *,
    limit: int | None = None,
    naming: Naming = SNAKE,
) -> NewJob:
    """A job from values of any origin.

    Args:
        kind: which handler is to run it.
        payload: anything JSON can express, not yet encoded.
        options: fields of `NewJob`; those that are None are left open. `delay` and `timeout` are
            seconds or a `timedelta`, `run_at` is a `datetime` with a zone or RFC 3339 text.
        limit: bytes the encoded payload may have.
        naming: how fields are called in errors.

    Raises:
        InvalidPayload, PayloadTooLarge: the payload alone is wrong.
        InvalidJob: anything else is; `fields` names all that is wrong, with what would be right.
    """
    values, problems = _checked({"kind": kind, **options}, naming)
    text = "{}"
    try:
        text = encode(payload, limit=limit)
    except InvalidPayload as error:
        if not problems:
            raise
        problems.update(error.fields)
    if problems:
        raise _invalid(problems)
    return NewJob(payload=text, **values)


def check(options: Mapping[str, Any], *, naming: Naming = SNAKE) -> dict[str, Any]:
    """The options that are not None, checked and in the form `NewJob` takes (see `new_job`).

    Raises:
        InvalidJob: `fields` names all that is wrong, with what would be right.
    """
    values, problems = _checked(options, naming)
    if problems:
        raise _invalid(problems)
    return values


def seconds(value: object) -> float:
    """Seconds of a number or a `timedelta`, from 0 to ten years.

    Raises:
        ValueError: it is neither, or out of bounds.
    """
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if (
        not isinstance(number, int | float)
        or isinstance(number, bool)
        or not 0 <= number <= LONGEST
    ):
        raise ValueError("must be a duration of 0 seconds to 10 years")
    return float(number)


def parse_time(text: str) -> datetime:
    """The instant of a text such as `2030-01-01T12:00:00Z` or `2030-01-01T12:00:00+05:30`.

    Raises:
        ValueError: it is not of that form (RFC 3339), which demands a zone.
    """
    if not _TIME.fullmatch(text):
        raise ValueError("must be a time with a zone, such as 2030-01-01T12:00:00Z")
    try:
        return datetime.fromisoformat(text.upper())
    except ValueError:
        raise ValueError("must be a time that exists, such as 2030-01-01T12:00:00Z") from None


def _checked(options: Mapping[str, Any], naming: Naming) -> tuple[dict[str, Any], dict[str, str]]:
    values: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for name, value in options.items():
        if value is None and name != "kind":
            continue
        try:
            values[name] = _CHECKS[name](value)
        except KeyError:
            problems[naming.get(name, name)] = f"is no field of a job; those are {_known(naming)}"
        except ValueError as error:
            problems[naming.get(name, name)] = str(error)
    if "delay" in values and "run_at" in values:
        delay, run_at = (naming.get(name, name) for name in ("delay", "run_at"))
        problems[run_at] = f"must not be given together with {delay}"
    return values, problems


def _invalid(problems: Mapping[str, str]) -> InvalidJob:
    sentence = "; ".join(f"{name} {reason}" for name, reason in problems.items())
    return InvalidJob(sentence, fields=problems)


def _known(naming: Naming) -> str:
    return ", ".join(naming.get(name, name) for name in _CHECKS if name != "meta")


def _name(value: object) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError("must be 1 to 128 characters of A-Z a-z 0-9 . _ : / @ -")
    return str.__str__(value)  # also of an enum that is a str


def _whole(least: int, most: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return int(value)

    return check


def _timeout(value: object) -> float:
    number = seconds(value)
    if number == 0:
        raise ValueError("must be a duration of more than 0 seconds, at most 10 years")
    return number


def _run_at(value: object) -> datetime:
    if isinstance(value, str):
        value = parse_time(value)
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise ValueError(
            "must be a time with a zone: datetime.now(UTC), not a naive datetime.now()"
        )
    try:
        instant = value.astimezone(UTC)
    except OverflowError:
        instant = _END
    if instant >= _END:
        raise ValueError("must be a time between the years 1 and 9998")
    return instant


def _text(value: object) -> str:
    if not isinstance(value, str) or _UNSTORABLE.search(value):
        raise ValueError("must be text without NUL characters and lone surrogates")
    return str.__str__(value)


def _key(value: object) -> str:
    key = _text(value)
    if not key or len(key) > MAX_KEY or len(key.encode()) > MAX_KEY:
        raise ValueError(f"must be 1 to {MAX_KEY} bytes of UTF-8")
    return key


def _tags(value: object) -> list[str]:
    reason = f"must be a list of at most {MAX_TAGS} texts of 1 to {MAX_TAG} characters"
    if not isinstance(value, list | tuple | set | frozenset) or len(value) > MAX_TAGS:
        raise ValueError(reason)
    tags = [_text(tag) for tag in value]
    if not all(1 <= len(tag) <= MAX_TAG for tag in tags):
        raise ValueError(reason)
    return tags


def _meta(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("must be an object")  # noqa: TRY004 - one class of error for all fields
    meta = dict(value)
    try:
        encode(meta, limit=MAX_META, name="meta")
    except InvalidPayload as error:
        raise ValueError(error.fields["meta"]) from None
    return meta


_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "kind": _name,
    "queue": _name,
    "tenant": _name,
    "priority": _whole(-MAX_PRIORITY, MAX_PRIORITY),
    "delay": seconds,
    "run_at": _run_at,
    "max_attempts": _whole(1, MAX_ATTEMPTS),
    "timeout": _timeout,
    "idempotency_key": _key,
    "unique_key": _key,
    "concurrency_key": _key,
    "tags": _tags,
    "meta": _meta,
}
