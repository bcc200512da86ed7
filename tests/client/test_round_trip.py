"""What a handler gets is what was given, or enqueue refuses it and names the field."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import pydantic
import pytest
from pydantic import AliasChoices, BaseModel, Field, SecretBytes, SecretStr

from jobq import JobQ
from jobq.errors import InvalidPayload
from jobq.handlers import Handler
from jobq.payload import decode, encode
from jobq.round_trip import as_stored, changes


class Colour(Enum):
    RED = 1


class Base(BaseModel):
    name: str = "x"


class Derived(Base):
    more: int = 1


class Hidden(BaseModel):
    shown: int = 0
    token: str = Field(default="", exclude=True)


class Renamed(BaseModel):
    amount: int = Field(default=0, validation_alias="in", serialization_alias="out")


class Choices(BaseModel):
    amount: int = Field(default=0, validation_alias=AliasChoices("a", "b"))  # type: ignore[pydantic-alias]


class Alias(BaseModel):
    amount: int = Field(alias="amountInCents")


class Odd(BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    at: datetime | None = None


@dataclasses.dataclass
class Point:
    x: int
    seen: Decimal = Decimal("1.10")


class Plain:
    """Equals only itself."""

    def __init__(self, text: str) -> None:
        self.text = text

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            lambda v: v if isinstance(v, cls) else cls(v),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda v: v.text),
        )


Doubled = Annotated[int, pydantic.AfterValidator(lambda value: value * 2)]
Shouted = Annotated[str, pydantic.PlainSerializer(lambda value: value.upper())]


def handler(kind: Any) -> Handler:
    def take(value: Any) -> None: ...

    take.__annotations__["value"] = kind
    return Handler("k", take)


NAIVE = datetime(2026, 1, 2)  # noqa: DTZ001 - no zone is what it is about

REFUSED: list[tuple[Any, Any, str]] = [
    (SecretStr, SecretStr("hunter2"), "payload.value"),
    (SecretBytes, SecretBytes(b"hunter2"), "payload.value"),
    (list[SecretStr], [SecretStr("hunter2")], "payload.value[0]"),
    (dict[str, SecretStr], {"a": SecretStr("hunter2")}, "payload.value.a"),
    (Base, Derived(more=2), "payload.value"),
    (list[Base], [Base(), Derived(more=2)], "payload.value[1]"),
    (Hidden, Hidden(shown=1, token="secret"), "payload.value.token"),
    (Renamed, Renamed(**{"in": 7}), "payload.value.amount"),
    (Choices, Choices(a=7), "payload.value.amount"),
    (date | datetime, NAIVE, "payload.value"),
    (str | date, date(2026, 1, 2), "payload.value"),
    (str | UUID, UUID(int=1), "payload.value"),
    (int | Decimal, Decimal(1), "payload.value"),
    (str | bytes, b"abc", "payload.value"),
    (Doubled, 3, "payload.value"),
    (Shouted, "quiet", "payload.value"),
    (Any, (1, 2), "payload.value"),
    (Any, date(2026, 1, 2), "payload.value"),
    (Any, {1: "a"}, "payload.value.1"),
    (Any, Colour.RED, "payload.value"),
    (Any, {"deep": [{1, 2}]}, "payload.value.deep[0]"),
    (Any, 1e300, "payload.value"),
    (Odd, Odd(extra=Decimal("1.1")), "payload.value.extra"),  # type: ignore[call-arg]
]


@pytest.mark.case("N07")
@pytest.mark.parametrize(("kind", "value", "place"), REFUSED)
def test_what_would_come_back_changed_is_refused_by_name(kind: Any, value: Any, place: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        handler(kind).check(value=value)
    assert list(caught.value.fields) == [place]
    assert "hunter2" not in str(caught.value)


BERLIN = ZoneInfo("Europe/Berlin")

KEPT: list[tuple[Any, Any]] = [
    (date, date(2026, 1, 2)),
    (datetime, datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1)),
    (datetime, datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)),
    (datetime, NAIVE),
    (time, time(3, 4, 5, 6)),
    (timedelta, timedelta(days=400, microseconds=1)),
    (UUID, uuid4()),
    (Decimal, Decimal("1.100")),
    (bytes, b"abc"),
    (Colour, Colour.RED),
    (Base | Derived, Derived(more=2)),
    (Hidden, Hidden(shown=1)),
    (Alias, Alias(amountInCents=7)),
    (Point, Point(1)),
    (dict[int, Point], {1: Point(1), 2: Point(2)}),
    (set[date], {date(2026, 1, 2)}),
    (tuple[int, str], (1, "a")),
    (float, 1e300),
    (float, 3),
    (float, -0.0),
    (Literal["a", "b"], "a"),
    (Plain, Plain("text")),
    (Any, {"a": [1, 2.5, None, True, "x", {"b": 10**30}]}),
    (Any, 1e22),
    (list[int], (1, 2)),
    (Odd, Odd(at=datetime(2026, 1, 2, tzinfo=UTC), extra=[1])),  # type: ignore[call-arg]
]


@pytest.mark.parametrize(("kind", "value"), KEPT)
def test_what_comes_back_equal_is_taken(kind: Any, value: Any) -> None:
    taken = handler(kind)
    payload = taken.check(value=value)
    read = taken.bind(as_stored(decode(encode(payload))))
    expected = taken._adapter.validator.validate_python({"value": value})  # type: ignore[union-attr]
    assert list(changes(expected, read)) == []


def test_arguments_without_annotations_are_checked_too() -> None:
    def anything(**fields: Any) -> None: ...

    taken = Handler("k", anything)
    assert taken.check(a=1, b=[2]) == {"a": 1, "b": [2]}
    with pytest.raises(InvalidPayload) as caught:
        taken.check(a=1, when=date(2026, 1, 2))
    assert caught.value.fields == {
        "payload.when": "is a date, but would come back from JSON as a str"
    }


def test_the_sentence_says_what_would_become_of_it() -> None:
    with pytest.raises(
        InvalidPayload, match="is a Derived, but would come back from JSON as a Base"
    ):
        handler(Base).check(value=Derived())
    with pytest.raises(
        InvalidPayload, match="is a SecretStr that JSON does not give back as it was"
    ):
        handler(SecretStr).check(value=SecretStr("x"))


@pytest.mark.parametrize("call", ["new", "enqueue"])
def test_enqueue_refuses_it_before_the_database_is_asked(call: str) -> None:
    app = JobQ("postgresql://nobody@localhost:1/none")

    @app.job("login")
    def login(secret: SecretStr) -> None: ...

    enqueue: Callable[..., Any] = getattr(login, call)
    with pytest.raises(InvalidPayload):
        enqueue(secret=SecretStr("hunter2"))


async def test_numbers_come_back_from_the_database_as_foretold(database_url: str) -> None:
    async with JobQ(database_url) as app:
        numbers = [1e15, 1e16, 1.5e16, 1e22, 1e-7, 5e-324, 0.1, -2.0, 123456789.125, 2.0**53]
        job = await app.aenqueue("k", {"numbers": numbers})
        found = await app.aget(job.id)
    expected = as_stored(decode(encode({"numbers": numbers})))["numbers"]
    assert found.payload["numbers"] == expected
    assert [type(n) for n in found.payload["numbers"]] == [type(n) for n in expected]
