"""Whether values come back from JSON as what they were: what was given to a handler, and what it would get."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import pydantic

#: Reads back as what it is where the classes differ by subclassing alone, such as a `datetime` of another library.
_TAKEN_AS = (datetime, date, time, timedelta, str, bytes, int, float, Decimal)
#: Doubles from here on are written with an exponent, which jsonb turns into a whole number.
_EXPONENT_FROM = 1e16


def as_stored(payload: Any) -> Any:
    """JSON values as jsonb gives them back: a large double is a whole number, names of members are texts."""
    if isinstance(payload, float):
        whole = abs(payload) >= _EXPONENT_FROM and math.isfinite(payload)
        return int(Decimal(repr(payload))) if whole else payload
    if isinstance(payload, dict):
        return {name: as_stored(value) for name, value in payload.items()}
    if isinstance(payload, list | tuple):
        return [as_stored(value) for value in payload]
    return payload


def changes(given: Any, read: Any, place: str = "payload") -> Iterator[tuple[str, str]]:
    """Places where the value read back is not the one given, each with what became of it.

    Args:
        given: what is to be enqueued, as the handler's annotations make it.
        read: what the handler would get.
        place: what to call the value.
    """
    if isinstance(given, Mapping) and isinstance(read, Mapping):
        yield from _members(given, read, place)
    elif isinstance(given, pydantic.BaseModel) and type(given) is type(read):
        yield from _attributes(_of_model(given), _of_model(read), place)
    elif dataclasses.is_dataclass(given) and type(given) is type(read):
        yield from _attributes(_of_dataclass(given), _of_dataclass(read), place)
    elif isinstance(given, list | tuple) and type(given) is type(read):
        yield from _items(given, read, place)
    elif not _same(given, read):
        yield place, _became(given, read)


def _members(
    given: Mapping[Any, Any], read: Mapping[Any, Any], place: str
) -> Iterator[tuple[str, str]]:
    for name, value in given.items():
        if name in read:
            yield from changes(value, read[name], f"{place}.{name}")
        else:
            yield f"{place}.{name}", "would be lost: JSON does not hold it under that name"
    for name in read:
        if name not in given:
            yield f"{place}.{name}", "would come back although it was not given"


def _attributes(
    given: Mapping[str, Any], read: Mapping[str, Any], place: str
) -> Iterator[tuple[str, str]]:
    for name, value in given.items():
        yield from changes(value, read.get(name), f"{place}.{name}")


def _items(given: Any, read: Any, place: str) -> Iterator[tuple[str, str]]:
    if len(given) != len(read):
        yield place, f"would come back with {len(read)} items instead of {len(given)}"
        return
    for index, (one, other) in enumerate(zip(given, read, strict=True)):
        yield from changes(one, other, f"{place}[{index}]")


def _of_model(model: pydantic.BaseModel) -> dict[str, Any]:
    return {**vars(model), **(model.__pydantic_extra__ or {})}


def _of_dataclass(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}


def _same(given: Any, read: Any) -> bool:
    if given is read:
        return True
    if not _same_type(given, read):
        return False
    if isinstance(given, datetime) and given.tzinfo is not None and read.tzinfo is not None:
        # One instant, whatever the zone is called.
        return bool(given.astimezone(UTC) == read.astimezone(UTC))
    if not isinstance(given, Enum) and "__eq__" not in _defined(type(given)):
        return _same_object(given, read)
    try:
        return bool(given == read)
    except Exception:  # noqa: BLE001 - an equality of its own, such as an array's
        return repr(given) == repr(read)


def _same_type(given: Any, read: Any) -> bool:
    if type(given) is type(read):
        return True
    if isinstance(given, bool) or isinstance(read, bool):
        return False
    if isinstance(given, Enum) or isinstance(read, Enum):
        return False
    if {type(given), type(read)} == {int, float}:
        return True  # JSON knows numbers only
    base = next((base for base in _TAKEN_AS if isinstance(given, base)), None)
    return base is not None and type(read) is base


def _defined(kind: type) -> set[str]:
    """Names that a class or one of its bases but `object` defines."""
    return {name for base in kind.__mro__[:-1] for name in vars(base)}


def _same_object(given: Any, read: Any) -> bool:
    """Objects that equal only themselves are compared by what they hold, as far as that can be seen."""
    held, found = (getattr(value, "__dict__", {}) for value in (given, read))
    return next(changes(held, found, ""), None) is None


def _became(given: Any, read: Any) -> str:
    was, became = _a(given), _a(read)
    if was != became:
        return f"is {was}, but would come back from JSON as {became}"
    return f"is {was} that JSON does not give back as it was"


def _a(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
