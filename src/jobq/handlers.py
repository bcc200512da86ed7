"""Handlers: what runs a kind of job, and how its arguments travel as a payload. No I/O."""

from __future__ import annotations

import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import pydantic
import pydantic_core
from pydantic import ConfigDict, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # typing's own is not enough for pydantic before 3.12

from jobq import fields, functions, limits, round_trip
from jobq.context import Context
from jobq.errors import ConfigurationError, InvalidJob, InvalidLimit, InvalidPayload, UnknownKind
from jobq.payload import decode, encode

_Kind = inspect.Parameter


class Handler:
    """A function registered for a kind of job.

    Args:
        kind: name of the kind.
        function: a coroutine function, or a plain one, which runs in a thread. Its parameters are
            the payload's fields, checked by pydantic; one annotated with `Context` gets the run.
        queue, priority, max_attempts: what a job of this kind gets that does not say it itself.
        timeout: likewise; seconds per attempt, or a `timedelta`.
        max_per_key: how many of its jobs with one concurrency key run at once; 1 unless said.
        durable: whether its claims are on PostgreSQL's disk before it runs.

    Raises:
        ConfigurationError: the function cannot be called with a payload's fields, an annotation
            cannot be resolved, or an option is out of bounds.
    """

    def __init__(
        self,
        kind: str,
        function: Callable[..., Any],
        *,
        queue: str | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        timeout: float | timedelta | None = None,
        max_per_key: int | None = None,
        durable: bool = False,
    ) -> None:
        _demand_function(function)
        self.function = function
        self.name = functions.describe(function)
        options = {
            "kind": kind,
            "queue": queue,
            "priority": priority,
            "max_attempts": max_attempts,
            "timeout": timeout,
        }
        try:
            checked = fields.check(options)
            cap = limits.check("kind", {"max_per_key": max_per_key})
        except (InvalidJob, InvalidLimit) as error:
            raise ConfigurationError(f"handler {self.name}: {error}", fields=error.fields) from None
        self.kind: str = checked["kind"]
        self.queue: str | None = checked.get("queue")
        self.priority: int | None = checked.get("priority")
        self.max_attempts: int | None = checked.get("max_attempts")
        self.timeout: float | None = checked.get("timeout")
        self.max_per_key: int | None = cap["max_per_key"]
        if not isinstance(durable, bool):
            raise ConfigurationError(f"handler {self.name}: durable must be True or False")
        self.durable = durable
        self.is_async = functions.is_coroutine_function(function)
        arguments = _Arguments(self.name, function)
        #: Name of the parameter that takes the `Context`, or None.
        self.context_parameter = arguments.context
        self._names = arguments.names
        self._open = arguments.open
        self._adapter = arguments.adapter()
        #: Decoded payload -> keyword arguments without the context; see `_Binder`.
        self.bind: Callable[[Any], dict[str, Any]] = arguments.binder(kind, self._adapter)

    @property
    def defaults(self) -> dict[str, Any]:
        """What table `kind` keeps of it, for jobs however they are enqueued."""
        names = ("kind", "queue", "priority", "max_attempts", "timeout", "max_per_key")
        return {name: getattr(self, name) for name in names}

    def check(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The payload of a call with these arguments (without the context), as values JSON knows.

        Raises:
            InvalidPayload: they do not fit the signature; `fields` names each and what would be right.
        """
        given = self._assign(args, kwargs) if args else kwargs
        if self._adapter is None:
            return self._check_open(given) if self._open else _bind_empty(self.kind, given)
        try:
            values = self._adapter.validator.validate_python(given)
            payload: dict[str, Any] = self._adapter.serializer.to_python(
                values, mode="json", by_alias=True, round_trip=True
            )
            # Where a type is open, pydantic writes NaN as None.
            if "None" in repr(payload):
                _demand_finite(self._adapter.dump_python(values))
        except ValidationError as error:
            raise mismatch(self.kind, error) from None
        except (pydantic_core.PydanticSerializationError, ValueError, RecursionError) as error:
            reason = f"is no JSON: {error}"
            raise InvalidPayload(f"payload {reason}", fields={"payload": reason}) from None
        self._demand_unchanged(values, payload)
        return payload

    def _demand_unchanged(self, values: dict[str, Any], payload: dict[str, Any]) -> None:
        """Refuse what the handler would get back changed: secrets, excluded fields, what a subclass adds."""
        assert self._adapter is not None
        try:
            read = self._adapter.validator.validate_python(round_trip.as_stored(payload))
        except ValidationError as error:
            problems = mismatch(self.kind, error).fields
            raise _invalid(
                self.kind, {name: f"cannot be read back: {why}" for name, why in problems.items()}
            ) from None
        self._demand_equal(values, read)

    def _demand_equal(self, values: dict[str, Any], read: dict[str, Any]) -> None:
        if problems := dict(round_trip.changes(values, read)):
            raise _invalid(self.kind, problems)

    def _check_open(self, given: dict[str, Any]) -> dict[str, Any]:
        """A payload without annotations: JSON is all that is known of it."""
        try:
            read = decode(encode(given))
        except InvalidPayload:
            return given  # said by whoever encodes it
        self._demand_equal(given, round_trip.as_stored(read))
        return given

    def _assign(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Positional arguments by name."""
        named = dict(zip(self._names, args, strict=False))
        twice = named.keys() & kwargs.keys()
        problems = {f"payload.{name}": "was given twice" for name in twice}
        if len(args) > len(self._names):
            problems["payload"] = f"takes {len(self._names)} positional arguments, not {len(args)}"
        if problems:
            raise _invalid(self.kind, problems)
        return named | kwargs


class Registry(Mapping[str, Handler]):
    """The handlers of an app by kind."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def add(self, handler: Handler) -> None:
        """Register a handler; one that is defined anew, as when its module is reloaded, replaces itself.

        Raises:
            ConfigurationError: its kind has another one already.
        """
        present = self._handlers.get(handler.kind)
        if present is None or functions.is_same_definition(present.function, handler.function):
            self._handlers[handler.kind] = handler
        else:
            raise ConfigurationError(
                f"kind {handler.kind!r} has two handlers: {present.name} and {handler.name}"
            )

    def find(self, kind: str) -> Handler:
        """The handler of a kind.

        Raises:
            UnknownKind: there is none; the sentence names the kinds there are.
        """
        handler = self._handlers.get(kind)
        if handler is None:
            known = ", ".join(sorted(self._handlers)) or "none"
            reason = f"must be a kind this app has a handler for: {known}"
            raise UnknownKind(f"kind {reason}", fields={"kind": reason})
        return handler

    def __getitem__(self, kind: str) -> Handler:
        return self._handlers[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)


class _Arguments:
    """What a function takes: its payload fields, and the parameter for the context."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigurationError(f"handler {name} must not be a generator")
        parameters = inspect.signature(function).parameters
        hints = self._resolve(function, parameters)
        contexts = [key for key in parameters if _is_context(hints.get(key))]
        if len(contexts) > 1:
            raise ConfigurationError(f"handler {name} has {len(contexts)} parameters for Context")
        self.context = contexts[0] if contexts else None
        self.open = False
        #: Payload fields that may be given by position when enqueuing.
        self.names: list[str] = []
        self._types: dict[str, Any] = {}
        for parameter in parameters.values():
            self._take(parameter, hints.get(parameter.name, Any))

    def adapter(self) -> TypeAdapter[Any] | None:
        """A validator of payloads, compiled; None where there is nothing to validate."""
        if not self._types:
            return None
        make: Any = TypedDict
        payload = make("payload", self._types)
        payload.__pydantic_config__ = ConfigDict(extra="allow" if self.open else "forbid")
        try:
            return TypeAdapter(payload)
        except pydantic.errors.PydanticUserError as error:
            reason = str(error).partition("\n")[0]
            raise ConfigurationError(f"handler {self._name}: {reason}") from error

    def binder(
        self, kind: str, adapter: TypeAdapter[Any] | None
    ) -> Callable[[Any], dict[str, Any]]:
        """The function behind `Handler.bind`: as little as these arguments need."""
        if adapter is not None:
            return functools.partial(_bind_fields, kind, adapter.validator.validate_python)
        if self.open:
            return functools.partial(_bind_anything, kind)
        if self.context is not None:
            return _bind_nothing
        return functools.partial(_bind_empty, kind)

    def _take(self, parameter: inspect.Parameter, hint: Any) -> None:
        if parameter.name == self.context:
            return
        if parameter.kind in {_Kind.VAR_POSITIONAL, _Kind.POSITIONAL_ONLY}:
            raise ConfigurationError(
                f"handler {self._name}: parameter {parameter.name} cannot be given by name, "
                "as the fields of a payload are"
            )
        if parameter.kind is _Kind.VAR_KEYWORD:
            self.open = True
            return
        if parameter.kind is _Kind.POSITIONAL_OR_KEYWORD:
            self.names.append(parameter.name)
        required = parameter.default is _Kind.empty
        self._types[parameter.name] = hint if required else typing.NotRequired[hint]

    def _resolve(
        self, function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter]
    ) -> dict[str, Any]:
        """Annotations of the parameters, those that are strings evaluated where they were written."""
        target = inspect.unwrap(functions.plain(function))
        stand_in = types.FunctionType((lambda: None).__code__, getattr(target, "__globals__", {}))
        stand_in.__annotations__ = {
            name: parameter.annotation
            for name, parameter in parameters.items()
            if parameter.annotation is not _Kind.empty
        }
        closed = inspect.getclosurevars(target).nonlocals if inspect.isfunction(target) else {}
        try:
            return typing.get_type_hints(stand_in, localns=dict(closed), include_extras=True)
        except NameError as error:
            raise ConfigurationError(
                f"handler {self._name}: the annotation {error.name!r} cannot be resolved; "
                "import it at the top of the module, not under TYPE_CHECKING"
            ) from None


def _demand_function(function: Any) -> None:
    if functions.is_unbound_method(function):
        function = getattr(function, "__func__", function)
        raise ConfigurationError(
            f"handler {functions.describe(function)} is a method, and a job has no object to call it on: "
            "register a function, a static method, or the method of an object: app.job(...)(service.send)"
        )
    if not callable(function):
        raise ConfigurationError(f"a handler must be a function, not {function!r:.100}")
    if "self" in inspect.signature(function).parameters:
        raise ConfigurationError(
            f"handler {functions.describe(function)}: no parameter may be called self; rename it"
        )


def mismatch(kind: str, error: ValidationError) -> InvalidPayload:
    """The error for a payload that pydantic refused; values are not repeated, they may be private."""
    problems = {
        _place(detail["loc"]): _reason(detail["type"], detail["msg"])
        for detail in error.errors(include_url=False, include_context=False, include_input=False)
    }
    return _invalid(kind, problems)


def _bind_fields(
    kind: str, validate: Callable[[Any], dict[str, Any]], payload: Any
) -> dict[str, Any]:
    try:
        return validate(payload)
    except ValidationError as error:
        raise mismatch(kind, error) from None


def _bind_anything(kind: str, payload: Any) -> dict[str, Any]:
    if not isinstance(payload, dict):
        raise _invalid(kind, {"payload": "must be an object"})
    return payload


def _bind_nothing(payload: Any) -> dict[str, Any]:
    """For handlers of only a `Context`: whatever the payload is, they find it in `ctx.job`."""
    return {}


def _bind_empty(kind: str, payload: Any) -> dict[str, Any]:
    if payload == {}:
        return {}
    if not isinstance(payload, dict):
        raise _invalid(kind, {"payload": "must be an object"})
    raise _invalid(kind, {f"payload.{name}": "is not expected" for name in payload})


def _invalid(kind: str, problems: Mapping[str, str]) -> InvalidPayload:
    sentence = "; ".join(f"{name}: {reason}" for name, reason in problems.items())
    return InvalidPayload(f"{kind}: {sentence}", fields=problems)


def _reason(kind: str, message: str) -> str:
    """What would be right, in words of JSON."""
    if kind == "extra_forbidden":
        return "is not expected"
    return message.removeprefix("Value error, ").replace("a valid dictionary", "an object")


def _demand_finite(value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("NaN and infinities are no JSON numbers")
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        for item in value:
            _demand_finite(item)


def _place(location: tuple[int | str, ...]) -> str:
    """Where in the payload: `payload.items[2].price`."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return "payload" + "".join(steps)


def _is_context(hint: Any) -> bool:
    """Whether an annotation is `Context`, also as `Context | None` or `Annotated[Context, ...]`."""
    if typing.get_origin(hint) is not None:
        return any(_is_context(part) for part in typing.get_args(hint))
    return isinstance(hint, type) and issubclass(hint, Context)
