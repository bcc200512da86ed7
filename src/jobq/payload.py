"""JSON in and out: only what PostgreSQL's jsonb can hold and Python reads back unchanged."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any, NoReturn

import orjson

from jobq.errors import InvalidPayload, PayloadTooLarge

#: Levels of nesting that every reader (orjson, the standard library, jsonb) is known to take.
MAX_DEPTH = 100
#: Decimal digits of a number: what Python's int() reads without a changed limit is 4,300.
MAX_DIGITS = 4000
#: An attempt's error text is cut at this many bytes (contract: "each cut at 8 KiB").
MAX_ERROR = 8 * 1024

_NUL_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
# Sixteen digits in a row may exceed 64 bits or a double: those texts take the exact, slower road.
_LONG_NUMBER = re.compile(r"\d{16}")
# Looked for where a number starts: from each of its digits, time would grow with their square.
_TOO_LONG = re.compile(rf"(?<!\d)\d{{{MAX_DIGITS + 1},}}")
_STRING_OR_DIGITS = re.compile(r'"(?:[^"\\]|\\.)*"|\d+', re.DOTALL)
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def encode(value: Any, *, limit: int | None = None, name: str = "payload") -> str:
    """JSON text of a value, checked to be storable as jsonb.

    Args:
        value: anything JSON can express; dataclasses, datetimes, UUIDs and enums are written as
            text in their usual form.
        limit: bytes the text may have; `None` for no limit.
        name: the field to name in errors.

    Raises:
        InvalidPayload: NaN or an infinity, a NUL character, a lone surrogate, a type JSON does not
            know, or nesting deeper than `MAX_DEPTH`.
        PayloadTooLarge: the text is longer than `limit`.
    """
    try:
        text = _dump(value)
    except InvalidPayload as error:
        raise InvalidPayload(f"{name} {error}", fields={name: str(error)}) from None
    check_text(text, limit=limit, name=name)
    return text


def check_text(text: str, *, limit: int | None = None, name: str = "payload") -> None:
    """Refuse JSON text that jsonb or a reader would refuse (see `encode` for the errors).

    A number jsonb would hold but Python would not read is refused here as well.
    """
    if limit is not None and (len(text) > limit or len(text.encode()) > limit):
        _refuse(name, f"is larger than {limit:,} bytes", PayloadTooLarge)
    if "\\u0000" in text and _NUL_ESCAPE.search(text):
        _refuse(name, "contains a NUL character (\\u0000), which PostgreSQL cannot store")
    if text.count("[") + text.count("{") > MAX_DEPTH and depth(text) > MAX_DEPTH:
        _refuse(name, f"is nested deeper than {MAX_DEPTH} levels")


def decode(text: str) -> Any:
    """The value of JSON text as stored, exactly: integers of any size Python reads.

    Raises:
        ValueError: the text holds a number that Python refuses to read, or is nested too deeply.
    """
    try:
        if _LONG_NUMBER.search(text):
            return json.loads(text)
        return orjson.loads(text)
    except RecursionError:
        raise ValueError("the payload is nested too deeply to be read") from None


def parse(body: bytes, *, finite: bool = True) -> Any:
    """The value of a JSON body from outside: strict JSON, numbers exact, nothing unstorable.

    Args:
        body: the text, in UTF-8.
        finite: False reads NaN and infinities too, so that a check of fields can name the one that has it.

    Raises:
        ValueError: it is no JSON (RFC 8259), holds a number too large to be read back, or names a
            member of an object twice, of which one would be lost (jsonb keeps the last).
    """
    try:
        text = body.decode("utf-8")
        return json.loads(
            text,
            parse_constant=_no_constant if finite else float,
            parse_float=_finite_float if finite else float,
            parse_int=_bounded_int,
            object_pairs_hook=_no_duplicates,
        )
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels") from None
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None


def depth(text: str) -> int:
    """How deeply JSON text is nested; brackets inside strings do not count."""
    level = deepest = 0
    for token in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', text, re.DOTALL):
        mark = token.group()
        if mark in "[{":
            level += 1
            deepest = max(deepest, level)
        elif mark in "]}":
            level -= 1
    return deepest


def clean_text(text: str, limit: int = MAX_ERROR) -> str:
    """Text that PostgreSQL stores: NUL and lone surrogates become U+FFFD, cut at `limit` bytes."""
    if len(text) > limit:
        text = text[:limit]
    if _UNSTORABLE.search(text):
        text = _UNSTORABLE.sub("\ufffd", text)
    if text.isascii():
        return text
    return text.encode()[:limit].decode(errors="ignore")


def describe(error: BaseException) -> str:
    """An error in one line, whatever its `str()` does: class name and message, cleaned."""
    name = type(error).__name__
    try:
        message = str(error)
    except BaseException:  # noqa: BLE001 - a handler's own __str__ may raise anything
        message = "(its text cannot be shown)"
    return clean_text(f"{name}: {message}" if message else name)


def _dump(value: Any) -> str:
    try:
        data = orjson.dumps(value)
    except TypeError:  # also integers beyond 64 bits and keys that are numbers
        return _dump_exactly(value)
    if b"null" in data:
        # orjson writes NaN as null; the standard library refuses it.
        return _dump_exactly(value, default=_orjson_default)
    return data.decode()


def _dump_exactly(value: Any, default: Any = None) -> str:
    try:
        text = json.dumps(
            value, allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=default
        )
        text.encode()
    except RecursionError:
        raise InvalidPayload(f"is nested deeper than {MAX_DEPTH} levels") from None
    except UnicodeEncodeError:
        raise InvalidPayload("contains a lone surrogate, which is no text") from None
    except (TypeError, ValueError) as error:
        raise InvalidPayload(f"is no JSON: {error}") from None
    if _TOO_LONG.search(text) and any(map(_TOO_LONG.fullmatch, _STRING_OR_DIGITS.findall(text))):
        raise InvalidPayload(f"holds a number of more than {MAX_DIGITS} digits")
    return text


def _orjson_default(value: Any) -> Any:
    return json.loads(orjson.dumps(value))


def _refuse(name: str, reason: str, kind: type[InvalidPayload] = InvalidPayload) -> NoReturn:
    raise kind(f"{name} {reason}", fields={name: reason})


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = sorted(name for name, _ in pairs)
        twice = next(name for name, after in pairwise(names) if name == after)
        raise ValueError(f"an object has the member {twice[:100]!r} twice")
    return members


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite_float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text[:20]} is too large")
    return value


def _bounded_int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number has more than {MAX_DIGITS} digits")
    return int(text)
