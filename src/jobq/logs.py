"""Logs: one line an event on standard output, JSON for machines or aligned text for people.

Loggers are structlog's, with a configuration of their own: a user's `structlog.configure` does not
change ours, and jobq used as a library configures nobody else's. Until `configure` is called, events
go to the standard library's logger of the same name, as any library's do. After it, records of the
standard library (uvicorn, psycopg, asyncio, handlers) leave by the same road in the same format.
"""

from __future__ import annotations

import io
import logging
import os
import re
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import IO, Any, cast

import orjson
import structlog
from structlog.typing import FilteringBoundLogger

Logger = FilteringBoundLogger
Fields = MutableMapping[str, Any]

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}
_JSON_OPTIONS = orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z
#: Longest text of one value in a line; a payload in an error must not become a line of megabytes.
MAX_VALUE = 32 * 1024

_bound: ContextVar[Mapping[str, Any]] = ContextVar("jobq_log_fields", default={})  # noqa: B039 - never changed in place


# --- loggers -----------------------------------------------------------------------------------


def get(name: str) -> Logger:
    """The logger of a name, such as `jobq.worker`; cheap to keep at module level.

    Its methods (`info(event, **fields)` and so on) never raise: what cannot be rendered is shown as
    far as it can be.
    """
    if name not in _loggers:
        _loggers[name] = _Named(name)
    return cast("Logger", _loggers[name])


@contextmanager
def bound(**fields: Any) -> Iterator[None]:
    """Add fields to every line written in this context: this task, or this thread, and what it calls."""
    token = _bound.set({**_bound.get(), **fields})
    try:
        yield
    finally:
        _bound.reset(token)


def bind_job(*, job_id: int, kind: str, attempt: int, request_id: str | None = None) -> Logger:
    """Bind a run's fields to the current context, and return a logger that carries them anywhere.

    Call it inside the task or thread that runs the handler: the handler's own use of `logging` is
    then marked too. The logger also works where the context does not reach, as in threads of its own.
    """
    fields: dict[str, Any] = {"job_id": job_id, "kind": kind, "attempt": attempt}
    if request_id is not None:
        fields["request_id"] = request_id
    _bound.set(fields)
    return cast("Logger", _build("jobq.handler", fields))


class Repeat:
    """Says the first event of an outage at once, then at most one every `every` seconds.

    What was left out in between is counted in the next line's field `more`.

    Args:
        log: where to say it.
        every: seconds.
        clock: seconds of a steady clock.
    """

    def __init__(
        self, log: Logger, every: float = 30.0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._every = every
        self._clock = clock
        self._next: float | None = None
        self._left_out = 0

    def warning(self, event: str, **fields: Any) -> bool:
        """Log at warning unless said lately; whether a line was written."""
        return self._say(self._log.warning, event, fields)

    def error(self, event: str, **fields: Any) -> bool:
        """Log at error unless said lately; whether a line was written."""
        return self._say(self._log.error, event, fields)

    def over(self) -> bool:
        """The outage is over: the next event is a first one again. Whether there had been one."""
        was = self._next is not None
        self._next = None
        self._left_out = 0
        return was

    def _say(self, write: Callable[..., Any], event: str, fields: dict[str, Any]) -> bool:
        now = self._clock()
        if self._next is not None and now < self._next:
            self._left_out += 1
            return False
        if self._left_out:
            fields["more"] = self._left_out
        self._next, self._left_out = now + self._every, 0
        write(event, **fields)
        return True


class _Named:
    """What `get` hands out at import: `configure`, later, decides what its methods are."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(_build(self._name, {}), attribute)
        self.__dict__[attribute] = value  # found without this method from now on
        return value

    def forget(self) -> None:
        """Drop the methods of the configuration before."""
        self.__dict__ = {"_name": self._name}


_loggers: dict[str, _Named] = {}


def _method(level: str) -> Callable[..., None]:
    def write(self: Any, event: str, *args: Any, **fields: Any) -> None:
        self._proxy_to_logger(level, _interpolate(event, args) if args else event, **fields)

    return write


def _logger_class(level: int) -> Callable[..., Any]:
    """Structlog's filtering logger, whose levels below are empty methods; ours survives a bad format."""
    methods = {name: _method(name) for name, value in _LEVELS.items() if value >= level}
    return type("JobqLogger", (structlog.make_filtering_bound_logger(level),), dict(methods))


def _interpolate(event: str, args: tuple[Any, ...]) -> str:
    try:
        single = args[0] if len(args) == 1 and isinstance(args[0], Mapping) else args
        return event % single
    except Exception:  # noqa: BLE001 - a log call must not raise, whatever a value's __str__ does
        return f"{event} {_text(args)}"


def _build(name: str, fields: Mapping[str, Any]) -> Any:
    if _output is None:
        return _to_stdlib(logging.getLogger(name), (_for_stdlib,), dict(fields))
    return _output.logger_class(_output, (_output.render,), {"logger": name, **fields})


def _for_stdlib(logger: Any, method: str, fields: Fields) -> Any:
    """Unconfigured: the event and its fields as the standard library's record, under its filters."""
    if not logger.isEnabledFor(_LEVELS[method]):
        raise structlog.DropEvent
    exc_info = fields.pop("exc_info", None)
    event = fields.pop("event")
    known = {**_bound.get(), **fields}
    words = [str(_text(event)), *(f"{key}={_text(value)}" for key, value in known.items())]
    return (("%s", " ".join(words)), {"exc_info": exc_info, "extra": {"fields": known}})


_to_stdlib = _logger_class(logging.DEBUG)


# --- configuration -----------------------------------------------------------------------------


def configure(
    level: str = "info",
    format: str = "json",  # noqa: A002 - named as the setting JOBQ_LOG_FORMAT is
    *,
    stream: IO[Any] | None = None,
) -> None:
    """Send all logs of this process to standard output; may be called again to change it.

    Args:
        level: debug, info, warning or error.
        format: `json`, one object a line; `console`, aligned text, coloured on a terminal.
        stream: a text or binary stream instead of standard output.
    """
    _use(_Output(_LEVELS[level], format, sys.stdout if stream is None else stream))
    root = logging.getLogger()
    # A plain handler that somebody's basicConfig left would say every line twice.
    replaced = (_StdlibHandler, logging.StreamHandler)
    root.handlers = [handler for handler in root.handlers if type(handler) not in replaced]
    root.addHandler(_StdlibHandler())
    root.setLevel(_LEVELS[level])
    logging.captureWarnings(True)


def reset() -> None:
    """Undo `configure` (for tests): jobq's events go to the standard library's loggers again."""
    _use(None)
    root = logging.getLogger()
    root.handlers = [h for h in root.handlers if not isinstance(h, _StdlibHandler)]
    root.setLevel(logging.WARNING)
    logging.captureWarnings(False)


def _use(output: _Output | None) -> None:
    global _output
    before, _output = _output, output
    for logger in _loggers.values():
        logger.forget()
    if before is not None:
        before.close()


class _Output:
    """Renders events and writes lines. Nothing here raises: there is nowhere left to say it."""

    def __init__(self, level: int, style: str, stream: IO[Any] | None) -> None:
        self.logger_class = _logger_class(level)
        self.render: Callable[[Any, str, Fields], bytes] = _render_json
        if style == "console":
            self.render = _Console(_is_terminal(stream))
        self._way_out = _Descriptor.of(stream) or _Stream(stream)

    def write(self, line: bytes) -> None:
        """Write a whole line."""
        self._way_out.write(line)

    debug = info = warning = error = critical = write  # what structlog calls, by level

    def close(self) -> None:
        """Give back what was opened; the stream itself stays open."""
        self._way_out.close()


def _render_json(logger: Any, method: str, fields: Fields) -> bytes:
    line: dict[str, Any] = {
        "timestamp": datetime.now(UTC),
        "level": method,
        "logger": fields.pop("logger", None),
        "event": fields.pop("event", None),
        **_bound.get(),
        **fields,
    }
    if "exc_info" in line:
        _show_exception(line)
    try:
        data = orjson.dumps(line, default=_text, option=_JSON_OPTIONS)
    except Exception:  # noqa: BLE001 - integers beyond 64 bits, lone surrogates, cycles, hostile objects
        data = orjson.dumps(
            {_cut(str(_text(k))): _plain(v) for k, v in line.items()}, option=_JSON_OPTIONS
        )
    if len(data) > MAX_VALUE:
        data = orjson.dumps({k: _plain(v) for k, v in line.items()}, option=_JSON_OPTIONS)
    if b"://" in data or b"assw" in data or b"ASSW" in data:
        data = mask(data.decode()).encode()
    return data


class _Console:
    """Aligned text for people; control characters in values are shown, never obeyed by the terminal."""

    def __init__(self, colors: bool) -> None:
        self._render = structlog.dev.ConsoleRenderer(
            colors=colors,
            sort_keys=False,
            pad_event_to=36,
            exception_formatter=structlog.dev.plain_traceback,
        )

    def __call__(self, logger: Any, method: str, fields: Fields) -> bytes:
        line: dict[str, Any] = {
            "timestamp": datetime.now().astimezone().strftime("%H:%M:%S.%f")[:-3],
            "level": method,
            **_bound.get(),
            **fields,
        }
        if "exc_info" in line:
            _show_exception(line)
        exception = line.pop("exception", None)
        shown = {_visible(key): _console_value(key, value) for key, value in line.items()}
        if exception is not None:
            shown["exception"] = mask(str(exception))
        try:
            text = str(self._render(None, method, shown))
        except Exception:  # noqa: BLE001 - a log call must not raise
            text = repr(shown)
        return (text + "\n").encode("utf-8", "replace")


def _console_value(key: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    return "***" if _SECRET_NAME.search(str(key)) else mask(_visible(_text(value)))


def _visible(value: Any) -> str:
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda match: repr(match[0])[1:-1], str(value))


# --- values ------------------------------------------------------------------------------------


def _text(value: Any) -> Any:
    """Text of a value that JSON does not know, whatever its `__str__` does."""
    if isinstance(value, bytes | bytearray | memoryview):
        return _cut(bytes(value).decode("utf-8", "replace"))
    try:
        return _cut(value if type(value) is str else str(value))
    except BaseException:  # noqa: BLE001 - SystemExit out of a __str__ included
        return f"<{type(value).__name__} that cannot be shown>"


def _plain(value: Any) -> Any:
    if (
        value is None
        or isinstance(value, bool | float)
        or (type(value) is int and value.bit_length() < 64)
    ):
        return value
    if type(value) is datetime:
        return value
    return _text(value)


def _cut(text: str) -> str:
    if len(text) > MAX_VALUE:
        text = f"{text[:MAX_VALUE]}... ({len(text):,} characters)"
    return text.encode("utf-8", "replace").decode() if not text.isascii() else text


def _show_exception(line: dict[str, Any]) -> None:
    exc_info = line.pop("exc_info")
    if exc_info is True:
        exc_info = sys.exc_info()
    elif isinstance(exc_info, BaseException):
        exc_info = (type(exc_info), exc_info, exc_info.__traceback__)
    if not isinstance(exc_info, tuple) or exc_info[0] is None:
        return
    try:
        line["exception"] = "".join(traceback.format_exception(*exc_info)).rstrip()
    except BaseException:  # noqa: BLE001 - an exception may refuse to be formatted in any way
        line["exception"] = f"<{exc_info[0].__name__} that cannot be shown>"


_SECRET_NAME = re.compile(r"passw(or)?d|secret", re.IGNORECASE)
_SECRETS = (
    # The password of a URL: postgresql://user:secret@host.
    (re.compile(r"(://[^\s:/@\"]*:)(?:[^\s@/\"\\]|\\.)+(?=@)"), r"\1***"),
    # password=secret in a connection string or a query, also quoted.
    (
        re.compile(
            r"(passw(?:or)?d\s*=\s*)(?:'(?:[^'\\]|\\.)*'|(?:[^\s\"'&;,\\]|\\.)+)", re.IGNORECASE
        ),
        r"\1***",
    ),
    # A field of that name in a JSON line.
    (
        re.compile(
            r'("[^"\s]*(?:passw(?:or)?d|secret)[^"\s]*":\s*")(?:[^"\\]|\\.)*', re.IGNORECASE
        ),
        r"\1***",
    ),
)


def mask(text: str) -> str:
    """Text with the passwords of URLs and connection strings replaced by `***`."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


# --- the way out -------------------------------------------------------------------------------


def _is_terminal(stream: IO[Any] | None) -> bool:
    if "NO_COLOR" in os.environ:  # https://no-color.org
        return False
    if "FORCE_COLOR" in os.environ:  # a pipe to a terminal, as in `jobq dev`
        return True
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # a closed one
        return False


class _Descriptor:
    """Writes to a file, pipe or terminal; one that is full or gone swallows lines, and kills nobody."""

    def __init__(self, descriptor: int) -> None:
        # A copy: after sys.stdout.close() the number may come to stand for a socket.
        self._descriptor = os.dup(descriptor)
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._renew)

    @classmethod
    def of(cls, stream: IO[Any] | None) -> _Descriptor | None:
        """For the file under a stream; None where there is none."""
        try:
            return None if stream is None else cls(stream.fileno())
        except (AttributeError, OSError, ValueError):  # in memory, or closed
            return None

    def write(self, line: bytes) -> None:
        """Write a whole line, not mixed with those of other threads."""
        with self._lock:
            while line:
                try:
                    line = line[os.write(self._descriptor, line) :]
                except BlockingIOError:  # somebody made a shared terminal non-blocking
                    if not select.select([], [self._descriptor], [], 1.0)[1]:
                        return
                except (
                    OSError
                ):  # its reader is gone, or the disk is full: nowhere is left to say so
                    return

    def close(self) -> None:
        """Close the copy."""
        with self._lock:
            os.close(self._descriptor)
            self._descriptor = -1

    def _renew(self) -> None:
        # A fork in the middle of another thread's line must not leave the child without logs.
        self._lock = threading.Lock()


class _Stream:
    """Writes to a stream in memory, or to none (a daemon without standard output)."""

    def __init__(self, stream: IO[Any] | None) -> None:
        self._stream = stream

    def write(self, line: bytes) -> None:
        """Write a whole line."""
        if self._stream is None:
            return
        try:
            text = isinstance(self._stream, io.TextIOBase)
            self._stream.write(line.decode() if text else line)
        except (OSError, ValueError):  # closed: nowhere is left to say so
            return

    def close(self) -> None:
        """Nothing was opened."""


_output: _Output | None = None


class _StdlibHandler(logging.Handler):
    """Takes records of the standard library to the same output in the same format."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        output = _output
        if output is None:
            return
        fields: dict[str, Any] = {"logger": record.name, "event": _message(record)}
        if record.exc_info:
            fields["exc_info"] = record.exc_info
        output.write(output.render(None, record.levelname.lower(), fields))


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except BaseException:  # noqa: BLE001 - arguments that do not fit, or a hostile __str__
        return f"{_text(record.msg)} {_text(record.args)}"
