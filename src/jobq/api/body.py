"""Reading a request: its body as strict JSON, its query parameters, each with every fault named."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from jobq import payload
from jobq.api.answers import HttpError, invalid

#: Seconds that a client may let pass between two pieces of its body.
BODY_PAUSE = 30.0
#: Bytes of a body that is read in a few milliseconds.
AT_ONCE = 64 * 1024
#: Rows of a page: what it has where nothing is said, and at most.
DEFAULT_LIMIT = 50
MAX_LIMIT = 500

T = TypeVar("T")


async def read_json(
    request: Request, limit: int, prepare: Callable[[Any], T], *, finite: bool = True
) -> T:
    """What `prepare` makes of the body of a request: strict JSON (RFC 8259), numbers exact.

    A large body is read in a thread, so that probes and small requests do not wait for it.

    Args:
        request: the request.
        limit: bytes.
        prepare: gets the value.
        finite: whether NaN and infinities are refused here (see `jobq.payload.parse`).

    Raises:
        HttpError: 413 too large, 415 not application/json, 400 no JSON, 408 it did not arrive.
    """
    _check_media_type(request)
    raw = await read(request, limit)

    def work() -> T:
        return prepare(parse_json(raw, finite=finite))

    return work() if len(raw) <= AT_ONCE else await asyncio.to_thread(work)


async def read_options(request: Request, limit: int, known: Collection[str]) -> dict[str, Any]:
    """The members of a body that may be left out altogether (then: none).

    Raises:
        HttpError: as `read_json`, and 422 for members that are not `known`.
    """
    raw = await read(request, limit)
    if not raw.strip():
        return {}
    _check_media_type(request)
    options = members(parse_json(raw))
    unknown = {name: _no_field(known) for name in options if name not in known}
    if unknown:
        raise invalid(unknown)
    return options


async def read(request: Request, limit: int) -> bytes:
    """The body of a request; reading stops where it exceeds the limit (see `read_json`)."""
    too_large = HttpError(
        413,
        "body_too_large",
        f"the body is larger than {limit:,} bytes",
        headers={"Connection": "close"},
    )
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise too_large
    parts: list[bytes] = []
    size = 0
    stream = request.stream()
    try:
        while True:
            async with asyncio.timeout(BODY_PAUSE):
                part = await anext(stream, None)
            if part is None:
                return b"".join(parts)
            size += len(part)
            if size > limit:
                raise too_large
            parts.append(part)
    except (TimeoutError, ClientDisconnect):
        raise HttpError(
            408, "body_incomplete", "the body did not arrive", headers={"Connection": "close"}
        ) from None


def parse_json(raw: bytes, *, finite: bool = True) -> Any:
    """The value of JSON text from outside (see `jobq.payload.parse`).

    Raises:
        HttpError: 400 that names the position where it is no JSON.
    """
    try:
        return payload.parse(raw, finite=finite)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise HttpError(400, "bad_json", f"the body is no JSON: {error.msg} at {place}") from None
    except ValueError as error:
        raise HttpError(
            400, "bad_json", f"the body is no JSON that can be taken: {error}"
        ) from None


def members(value: Any) -> dict[str, Any]:
    """The members of a JSON object.

    Raises:
        HttpError: 422, it is no object.
    """
    if not isinstance(value, dict):
        raise HttpError(422, "invalid_field", "the body must be a JSON object")
    return value


def query(request: Request, known: Collection[str]) -> dict[str, list[str]]:
    """Query parameters by name, each with all its values; snake_case names are taken as camelCase.

    Raises:
        HttpError: 422 for a name that is not `known`.
    """
    found: dict[str, list[str]] = {}
    unknown: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        key = camel(name)
        if key in known:
            found.setdefault(key, []).append(value)
        else:
            unknown[name[:100]] = _no_field(known)
    if unknown:
        raise invalid(unknown)
    return found


def read_limit(text: str) -> int:
    """How many a page is to have.

    Raises:
        ValueError: it is no number, or too many.
    """
    if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= MAX_LIMIT:
        raise ValueError(f"must be a whole number from 1 to {MAX_LIMIT}")
    return int(text)


def camel(name: str) -> str:
    """`delay_seconds` -> `delaySeconds`; camelCase stays."""
    first, *rest = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


def _no_field(known: Collection[str]) -> str:
    names = ", ".join(sorted(known)) or "none"
    return f"is not known here (known: {names})"


def _check_media_type(request: Request) -> None:
    media, *parameters = (
        part.strip().lower() for part in request.headers.get("content-type", "").split(";")
    )
    charsets = [
        part.partition("=")[2].strip('" ') for part in parameters if part.startswith("charset")
    ]
    if media != "application/json" or any(name not in ("utf-8", "utf8") for name in charsets):
        raise HttpError(
            415, "unsupported_media_type", "send Content-Type: application/json, in UTF-8"
        )
