"""The outermost layer: what holds for every request, whatever its path and whatever goes wrong.

A request id, the Host and origin checks, security headers, one log line, and an answer of ours where
something unforeseen was raised.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobq import logs
from jobq.api.answers import HttpError, leaving, refusal, render

log = logs.get("jobq.api")

#: Names under which a loopback address is reached. Any other Host would be a page of somebody else's
#: whose name was pointed at this machine ("DNS rebinding").
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
#: Headers of every answer; `/docs` loosens the content policy for its own style sheet.
SECURITY_HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"cache-control": b"no-store",
}

_SANE_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of a name (lower case)."""
    return next((value for key, value in scope["headers"] if key == name), None)


def request_id(scope: Scope) -> str:
    """The id of a request: the caller's where it is 1 to 128 visible ASCII characters, else a new one."""
    if "jobq.request_id" not in scope:
        given = header(scope, b"x-request-id") or b""
        sane = _SANE_ID.fullmatch(given)
        scope["jobq.request_id"] = given.decode() if sane else uuid.uuid4().hex
    return str(scope["jobq.request_id"])


class Edge:
    """Wraps an ASGI application.

    Args:
        hosts: host names that requests may be for; None: any.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str] | None) -> None:
        self._app = app
        self._hosts = None if hosts is None else frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the lifespan."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, send)
        with logs.bound(request_id=exchange.id):
            try:
                self._check(scope)
                inner = {**scope, "method": "GET"} if exchange.head else scope
                await self._app(inner, receive, exchange.send)
            except asyncio.CancelledError:
                # The server ends and waits no longer: this is the last that the request can get.
                await exchange.fail(leaving(), receive)
            except Exception as error:  # noqa: BLE001 - the last resort: no answer may show a stack trace
                await exchange.fail(error, receive)
            finally:
                exchange.log()

    def _check(self, scope: Scope) -> None:
        host = header(scope, b"host")
        if self._hosts is not None and host is not None and _name(host) not in self._hosts:
            raise HttpError(
                421, "bad_host", "the Host header names another host than this API serves"
            )
        if scope["method"] not in _SAFE_METHODS and _cross_site(scope, host):
            raise HttpError(403, "cross_site", "a page of another site may not send this request")


class _Exchange:
    """One request on its way: what was answered so far."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.id = request_id(scope)
        self.head = scope["method"] == "HEAD"
        self._scope = scope
        self._send = send
        self._status: int | None = None
        self._start = time.perf_counter()

    async def send(self, message: Message) -> None:
        """Pass an answer on, with the headers that every answer has."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            given = list(message.get("headers", []))
            names = {key.lower() for key, _ in given}
            common = ((k, v) for k, v in SECURITY_HEADERS.items() if k not in names)
            headers = [*given, *common, (b"x-request-id", self.id.encode())]
            message = {**message, "headers": headers}
        elif self.head and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await self._send(message)

    async def fail(self, error: Exception, receive: Receive) -> None:
        """Answer an error that nobody caught, unless an answer is on its way already."""
        known = refusal(error)
        if known is None:
            log.error("request failed", path=self._path(), exc_info=error)
            known = HttpError(
                500, "internal", "an error of ours; the log tells more under this request id"
            )
        if self._status is None:
            await render(known, self.id)(self._scope, receive, self.send)

    def log(self) -> None:
        """Write the line of this request."""
        seconds = round(time.perf_counter() - self._start, 6)
        log.info(
            "request",
            method=self._scope["method"],
            path=self._path(),
            status=self._status,
            seconds=seconds,
        )

    def _path(self) -> str:
        # As it was sent: what is encoded stays so, and nothing in it is obeyed by a terminal.
        return ascii(self._scope.get("raw_path", b"").decode("latin-1"))[1:-1][:200]


def _name(host: bytes) -> str:
    """The host name of a Host header, without port and brackets."""
    text = host.decode("latin-1").strip().lower()
    name = text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]
    return name.removesuffix(".")


def _cross_site(scope: Scope, host: bytes | None) -> bool:
    """Whether a browser sends this for a page of another origin (Fetch Metadata, W3C; RFC 6454)."""
    site = header(scope, b"sec-fetch-site")
    if site is not None and site not in (b"same-origin", b"none"):
        return True
    origin = header(scope, b"origin")
    if origin is None:
        return False
    try:
        return (
            urlsplit(origin.decode("latin-1")).netloc.lower()
            != (host or b"").decode("latin-1").lower()
        )
    except ValueError:
        return True
