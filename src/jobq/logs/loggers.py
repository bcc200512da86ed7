"""Loggers by name, and what they do before and after `configure`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import structlog
from structlog.typing import FilteringBoundLogger

from jobq.logs.fields import CURRENT, Fields
from jobq.logs.values import message, text

Logger = FilteringBoundLogger

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}


class Maker(Protocol):
    """Makes a structlog logger of a name that carries some fields."""

    def __call__(self, name: str, fields: Mapping[str, Any]) -> Any:
        """The logger."""


def get(name: str) -> Logger:
    """The logger of a name, such as `jobq.worker`; cheap to keep at module level.

    Its methods (`info(event, **fields)` and so on) never raise: what cannot be rendered is shown as
    far as it can be.
    """
    if name not in _named:
        _named[name] = _Lazy(name, {})
    return cast("Logger", _named[name])


def bind_job(*, job_id: int, kind: str, attempt: int, request_id: str | None = None) -> Logger:
    """Bind a run's fields to the current context, and return a logger that carries them anywhere.

    Call it inside the task or thread that runs the handler: the handler's own use of `logging` is
    then marked too. The logger also works where the context does not reach, as in threads of its own.
    """
    fields: dict[str, Any] = {"job_id": job_id, "kind": kind, "attempt": attempt}
    if request_id is not None:
        fields["request_id"] = request_id
    CURRENT.set(fields)
    return cast("Logger", _Lazy("jobq.handler", fields))


def use(make: Maker | None) -> None:
    """Let all loggers, kept ones too, be made in this way; None: by the standard library's."""
    _way.make = _of_stdlib if make is None else make
    for logger in _named.values():
        logger.forget()


def logger_class(
    level: int, method: Callable[[str], Callable[..., None]] | None = None
) -> Callable[..., Any]:
    """Structlog's filtering logger, whose levels below are empty methods; ours survives a bad format.

    Args:
        level: of the standard library.
        method: makes the method of a level's name; None: structlog's way, through its processors.
    """
    make = _method if method is None else method
    methods = {name: make(name) for name, value in LEVELS.items() if value >= level}
    return type("JobqLogger", (structlog.make_filtering_bound_logger(level),), dict(methods))


@dataclass
class _Way:
    """How loggers are made now."""

    make: Maker


class _Lazy:
    """A logger that is made when it is first used: by then `configure` has decided how."""

    def __init__(self, name: str, fields: Mapping[str, Any]) -> None:
        self._name = name
        self._fields = fields

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(_way.make(self._name, self._fields), attribute)
        self.__dict__[attribute] = value  # found without this method from now on
        return value

    def forget(self) -> None:
        """Drop the methods of the configuration before."""
        self.__dict__ = {"_name": self._name, "_fields": self._fields}


def _method(level: str) -> Callable[..., None]:
    def write(self: Any, event: str, *args: Any, **fields: Any) -> None:
        self._proxy_to_logger(level, message(event, args) if args else event, **fields)

    return write


def straight(level: str) -> Callable[..., None]:
    """A method that hands an event to its output at once: half the cost of structlog's chain of processors.

    Each job that ends writes a line, and a third of a line's time was spent on the way to the renderer.
    """

    def write(self: Any, event: str, *args: Any, **fields: Any) -> None:
        output = self._logger
        said = message(event, args) if args else event
        output.write(output.render(None, level, {**self._context, "event": said, **fields}))

    return write


def _of_stdlib(name: str, fields: Mapping[str, Any]) -> Any:
    return _to_stdlib(logging.getLogger(name), (_for_stdlib,), dict(fields))


def _for_stdlib(logger: Any, method: str, fields: Fields) -> Any:
    """Unconfigured: the event and its fields as the standard library's record, under its filters."""
    if not logger.isEnabledFor(LEVELS[method]):
        raise structlog.DropEvent
    exc_info = fields.pop("exc_info", None)
    event = fields.pop("event")
    known = {**CURRENT.get(), **fields}
    words = [str(text(event)), *(f"{name}={text(value)}" for name, value in known.items())]
    return (("%s", " ".join(words)), {"exc_info": exc_info, "extra": {"fields": known}})


_to_stdlib = logger_class(logging.DEBUG)
_way = _Way(_of_stdlib)
_named: dict[str, _Lazy] = {}
