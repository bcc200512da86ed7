"""Lines of events: JSON, or aligned text for people."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import orjson
import structlog

from jobq.logs.fields import CURRENT, Fields
from jobq.logs.masking import SECRET_NAME, mask
from jobq.logs.values import MAX_VALUE, plain, show_exception, text

_JSON_OPTIONS = orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z


def render_json(_logger: Any, method: str, fields: Fields) -> bytes:
    """One object in a line; whoever writes it masks it (jobq.logs.output)."""
    line: dict[str, Any] = {
        "timestamp": datetime.now(UTC),
        "level": method,
        "logger": None,  # places; the fields have them
        "event": None,
        **CURRENT.get(),
        **fields,
    }
    if "exc_info" in line:
        show_exception(line)
    try:
        data = orjson.dumps(line, default=text, option=_JSON_OPTIONS)
    except Exception:  # noqa: BLE001 - integers beyond 64 bits, lone surrogates, cycles, hostile objects
        data = _plain_json(line)
    if len(data) > MAX_VALUE:
        data = _plain_json(line)
    return data


def _plain_json(line: dict[str, Any]) -> bytes:
    return orjson.dumps(
        {str(text(name)): plain(value) for name, value in line.items()}, option=_JSON_OPTIONS
    )


class Console:
    """Aligned text for people; control characters in values are shown, never obeyed by the terminal."""

    def __init__(self, *, colors: bool) -> None:
        self._render = structlog.dev.ConsoleRenderer(
            colors=colors,
            sort_keys=False,
            pad_event_to=36,
            exception_formatter=structlog.dev.plain_traceback,
        )

    def __call__(self, _logger: Any, method: str, fields: Fields) -> bytes:
        """One line, and below it the traceback where there is one."""
        line: dict[str, Any] = {
            "timestamp": datetime.now().astimezone().strftime("%H:%M:%S.%f")[:-3],
            "level": method,
            **CURRENT.get(),
            **fields,
        }
        if "exc_info" in line:
            show_exception(line)
        exception = line.pop("exception", None)
        shown = {_visible(name): _console_value(name, value) for name, value in line.items()}
        if exception is not None:
            shown["exception"] = mask(str(exception))
        try:
            rendered = str(self._render(None, method, shown))
        except Exception:  # noqa: BLE001 - a log call must not raise
            rendered = repr(shown)
        return (rendered + "\n").encode("utf-8", "replace")


def _console_value(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if SECRET_NAME.search(name):
        return "***"
    said = mask(_visible(text(value)))
    return _Escaped(said) if "\\" in said and name not in _WHOLE else said


#: Fields that structlog shows as they are.
_WHOLE = frozenset({"timestamp", "level", "event", "logger", "stack"})


class _Escaped:
    """Text whose control characters are escaped; structlog would escape the backslashes once more."""

    def __init__(self, said: str) -> None:
        self._said = said

    def __repr__(self) -> str:
        quote = '"' if "'" in self._said else "'"
        return f"{quote}{self._said}{quote}"


def _visible(value: Any) -> str:
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda match: repr(match[0])[1:-1], str(value))
