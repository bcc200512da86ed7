"""Values as they can be shown: whatever a value is, and whatever its `__str__` does, nothing is raised."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from datetime import datetime
from typing import Any

#: Longest text of one value in a line; a payload in an error must not become a line of megabytes.
MAX_VALUE = 32 * 1024


def text(value: Any) -> Any:
    """Text of a value that JSON does not know."""
    if isinstance(value, bytes | bytearray | memoryview):
        return _cut(bytes(value).decode("utf-8", "replace"))
    try:
        return _cut(value if type(value) is str else str(value))
    except BaseException:  # noqa: BLE001 - SystemExit out of a __str__ included
        return f"<{type(value).__name__} that cannot be shown>"


def plain(value: Any) -> Any:
    """The value itself where every JSON encoder takes it, else its text."""
    if (
        value is None
        or isinstance(value, bool | float)
        or (type(value) is int and value.bit_length() < 64)
    ):
        return value
    if type(value) is datetime:
        return value
    return text(value)


def message(event: str, args: tuple[Any, ...]) -> str:
    """`event % args`; where they do not fit, the arguments beside the text."""
    try:
        single = args[0] if len(args) == 1 and isinstance(args[0], Mapping) else args
        return event % single
    except BaseException:  # noqa: BLE001 - a hostile __str__ may raise SystemExit
        return f"{text(event)} {text(args)}"


def show_exception(line: dict[str, Any]) -> None:
    """Put the traceback into `exception` that `exc_info` stands for, as the standard library means it."""
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


def _cut(whole: str) -> str:
    if len(whole) > MAX_VALUE:
        whole = f"{whole[:MAX_VALUE]}... ({len(whole):,} characters)"
    return whole if whole.isascii() else whole.encode("utf-8", "replace").decode()
