"""Handlers: which functions can be one, and how arguments become a payload and back."""

from __future__ import annotations

import dataclasses
import decimal
import enum
import functools
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import pydantic
import pytest

from jobq import ConfigurationError, Context, InvalidPayload, UnknownKind
from jobq.handlers import Handler, Registry
from jobq.payload import decode, encode

if TYPE_CHECKING:
    from fractions import Fraction


class Colour(enum.StrEnum):
    RED = "red"


class Address(pydantic.BaseModel):
    street: str
    zip_code: str = pydantic.Field(alias="zip")


@dataclasses.dataclass
class Item:
    name: str
    price: decimal.Decimal


def nothing() -> None: ...


def only_context(ctx: Context) -> None: ...


def send(to: str, copies: int = 1) -> None: ...


def with_context(month: str, ctx: Context, *, draft: bool = False) -> None: ...


def anything(kind: str, **more: object) -> None: ...


def only_anything(**more: object) -> None: ...


def every_type(
    *, at: datetime, day: date, wait: timedelta, id: uuid.UUID, colour: Colour, price: decimal.Decimal,
    address: Address, items: list[Item], names: set[str], pair: tuple[int, str], maybe: int | None = None,
) -> None: ...  # fmt: skip


async def coroutine() -> None: ...


class Service:
    async def __call__(self, to: str) -> None: ...

    def method(self, to: str) -> None: ...


@pytest.mark.parametrize(
    ("function", "is_async"),
    [
        (nothing, False),
        (coroutine, True),
        (functools.partial(coroutine), True),
        (Service(), True),
        (Service().method, False),
    ],
)
def test_tells_coroutine_functions_from_plain_ones(
    function: Callable[..., Any], is_async: bool
) -> None:
    assert Handler("k", function).is_async is is_async


@pytest.mark.parametrize(
    ("function", "parameter"),
    [(nothing, None), (only_context, "ctx"), (with_context, "ctx"), (send, None)],
)
def test_finds_the_parameter_for_the_context_also_behind_string_annotations(
    function: Callable[..., Any], parameter: str | None
) -> None:
    assert Handler("k", function).context_parameter == parameter


def test_context_may_be_optional_or_annotated() -> None:
    def optional(ctx: Context | None = None) -> None: ...
    def annotated(ctx: Annotated[Context, "of the run"]) -> None: ...

    assert Handler("k", optional).context_parameter == "ctx"
    assert Handler("k", annotated).context_parameter == "ctx"


def test_arguments_become_the_payload_and_come_back_as_what_they_were() -> None:
    handler = Handler("k", every_type)
    given = {
        "at": datetime(2030, 1, 1, tzinfo=UTC), "day": date(2030, 1, 1), "wait": timedelta(hours=1.5),
        "id": uuid.uuid4(), "colour": Colour.RED, "price": decimal.Decimal("0.10"),
        "address": Address(street="Mint St", zip="SE1"), "items": [Item("pen", decimal.Decimal("1.5"))],
        "names": {"a"}, "pair": (1, "b"),
    }  # fmt: skip

    stored = encode(handler.check(**given))

    assert handler.bind(decode(stored)) == given


def test_positional_arguments_take_the_parameters_names_without_the_context() -> None:
    assert Handler("k", send).check("a@b.com", 2) == {"to": "a@b.com", "copies": 2}
    assert Handler("k", with_context).check("2030-01") == {"month": "2030-01"}


def test_a_default_stays_with_the_function_and_is_not_stored() -> None:
    handler = Handler("k", send)
    assert handler.check(to="a@b.com") == {"to": "a@b.com"}
    assert handler.bind({"to": "a@b.com"}) == {"to": "a@b.com"}


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "fields"),
    [
        (send, (), {}, {"payload.to"}),
        (send, (), {"to": 1}, {"payload.to"}),
        (send, (), {"to": "a", "copies": "many"}, {"payload.copies"}),
        (send, (), {"to": "a", "bcc": "b"}, {"payload.bcc"}),
        (send, ("a", 1, 2), {}, {"payload"}),
        (send, ("a",), {"to": "b"}, {"payload.to"}),
        (send, (1, "x"), {}, {"payload.to", "payload.copies"}),
        (nothing, (), {"to": "a"}, {"payload.to"}),
        (only_context, (), {"to": "a"}, {"payload.to"}),
        (only_context, (1,), {}, {"payload"}),
    ],
)
def test_arguments_that_do_not_fit_are_named_all_at_once(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], fields: set[str]
) -> None:
    with pytest.raises(InvalidPayload, match=r"k: payload") as caught:
        Handler("k", function).check(*args, **kwargs)
    assert caught.value.fields.keys() == fields


@pytest.mark.parametrize(
    ("function", "payload", "fields"),
    [
        (send, {}, {"payload.to"}),
        (send, {"to": "a", "copies": [1]}, {"payload.copies"}),
        (send, ["a"], {"payload"}),
        (send, None, {"payload"}),
        (nothing, [], {"payload"}),
        (nothing, {"x": 1}, {"payload.x"}),
        (anything, [], {"payload"}),
        (only_anything, "text", {"payload"}),
        (every_type, {"items": [{"name": "a"}]}, None),
    ],
)
def test_a_payload_that_does_not_fit_is_refused_with_the_place(
    function: Callable[..., Any], payload: Any, fields: set[str] | None
) -> None:
    with pytest.raises(InvalidPayload) as caught:
        Handler("k", function).bind(payload)
    named = caught.value.fields.keys()
    assert named == fields if fields else "payload.items[0].price" in named


@pytest.mark.parametrize("payload", [{}, {"any": "thing"}, [], [1], None, "text", 7])
def test_any_payload_reaches_a_handler_of_only_a_context(payload: Any) -> None:
    assert Handler("k", only_context).bind(payload) == {}


def test_a_handler_with_keywords_takes_every_field() -> None:
    assert Handler("k", anything).bind({"kind": "a", "x": [1]}) == {"kind": "a", "x": [1]}
    assert Handler("k", only_anything).bind({"x": 1}) == {"x": 1}
    assert Handler("k", only_anything).check(x=1) == {"x": 1}


def test_a_refusal_does_not_repeat_the_value() -> None:
    with pytest.raises(InvalidPayload) as caught:
        Handler("k", send).bind({"to": "a", "copies": "secret-7f3a"})
    assert "secret" not in str(caught.value)


def test_arguments_that_json_cannot_hold_are_refused() -> None:
    def take(value: Any) -> None: ...

    ring: list[Any] = []
    ring.append(ring)
    for value in (object(), ring, b"\xff"):
        with pytest.raises(InvalidPayload) as caught:
            encode(Handler("k", take).check(value))
        assert caught.value.fields.keys() == {"payload"}


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


def positional(to: str, /) -> None: ...


def variadic(*to: str) -> None: ...


def two_contexts(a: Context, b: Context) -> None: ...


def unresolvable(ratio: Fraction) -> None: ...


def unknown_type(thing: functools.partial[Any]) -> None: ...


@pytest.mark.parametrize(
    "function",
    [generator, async_generator, positional, variadic, two_contexts, unresolvable, unknown_type],
)
def test_a_function_that_cannot_be_a_handler_is_refused_by_name(
    function: Callable[..., Any],
) -> None:
    with pytest.raises(ConfigurationError, match=function.__name__):
        Handler("k", function)


@pytest.mark.parametrize(
    "options",
    [
        {"queue": "a b"},
        {"priority": 101},
        {"max_attempts": 0},
        {"timeout": 0},
        {"timeout": "5m"},
        {"max_per_key": 0},
        {"max_per_key": True},
    ],
)
def test_options_out_of_bounds_are_refused_when_registering(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"test_handlers\.nothing") as caught:
        Handler("k", nothing, **options)
    assert caught.value.fields.keys() == options.keys()


def test_the_cap_of_a_key_is_one_of_a_kind_s_defaults() -> None:
    assert Handler("k", nothing, max_per_key=3).defaults["max_per_key"] == 3
    assert Handler("k", nothing).defaults["max_per_key"] is None


def test_timeout_may_be_a_timedelta() -> None:
    assert Handler("k", nothing, timeout=timedelta(minutes=1)).timeout == 60.0


def test_a_kind_has_one_handler() -> None:
    registry = Registry()
    registry.add(Handler("k", nothing))
    with pytest.raises(ConfigurationError, match=r"'k' has two handlers.*nothing.*send"):
        registry.add(Handler("k", send))
    assert registry["k"].function is nothing


def test_an_unknown_kind_is_answered_with_the_known_ones() -> None:
    registry = Registry()
    registry.add(Handler("b", nothing))
    registry.add(Handler("a", nothing))
    with pytest.raises(UnknownKind, match="a, b") as caught:
        registry.find("c")
    assert caught.value.fields.keys() == {"kind"}
    assert registry.find("a").kind == "a"
