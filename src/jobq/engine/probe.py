"""A worker's own HTTP: /healthz, /readyz and /metrics, served in the loop that the probes are about."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import orjson
import uvicorn
from prometheus_client import CollectorRegistry

from jobq import logs
from jobq.config import parse_address
from jobq.engine.worker import Worker
from jobq.errors import ConfigurationError
from jobq.metrics import CONTENT_TYPE, render

log = logs.get("jobq.worker")

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Answer = tuple[int, str, bytes]

_JSON = "application/json"


class Probe:
    """The ASGI application.

    Args:
        worker: whose health it tells.
        registry: whose metrics it shows.
    """

    def __init__(self, worker: Worker, registry: CollectorRegistry) -> None:
        self._worker = worker
        self._registry = registry

    async def __call__(self, scope: Scope, _receive: object, send: Send) -> None:
        """Answer one request."""
        status, media_type, body = self._answer(scope["method"], scope["path"])
        headers = [(b"content-type", media_type.encode()), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send(
            {"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body}
        )

    def _answer(self, method: str, path: str) -> Answer:
        if path not in {"/healthz", "/readyz", "/health", "/metrics"}:
            return _error(404, "not_found", "here are /healthz, /readyz and /metrics")
        if method not in {"GET", "HEAD"}:
            return _error(405, "method_not_allowed", "this path takes GET and HEAD")
        if path == "/metrics":
            self._worker.update_metrics()
            return 200, CONTENT_TYPE, render(self._registry)
        return self._health() if path == "/healthz" else self._readiness()

    def _health(self) -> Answer:
        health = self._worker.health()
        return _status("ok") if health.ok else _status("failing", health.reason)

    def _readiness(self) -> Answer:
        if self._worker.draining:
            return _status("draining", "the worker is shutting down")
        if not self._worker.started.is_set():
            return _status("starting")
        if not self._worker.ready:
            return _status("not ready", "the database cannot be reached, or makes claims wait")
        return _status("ok")


@asynccontextmanager
async def serve(app: Probe, listener: socket.socket) -> AsyncIterator[None]:
    """Serve the probe on a bound socket while the block runs; closes the socket."""
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        log_level="error",  # what it says below that is of no use here
        access_log=False,
        ws="none",
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    log.info("worker answers probes", address="http://{}:{}".format(*listener.getsockname()[:2]))
    task = asyncio.create_task(server.serve(sockets=[listener]), name="jobq probe")
    try:
        yield
    finally:
        server.should_exit = True
        await task


class _Server(uvicorn.Server):
    """A server that leaves the signals to the worker."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def bind(address: str) -> socket.socket:
    """A socket bound to an address such as `127.0.0.1:9000`.

    Raises:
        ConfigurationError: the address is taken, or none of this machine's.
    """
    host, port = parse_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"JOBQ_WORKER_HTTP_ADDR: cannot listen on {address}: {error.strerror or error}"
        ) from None
    return listener


def _status(status: str, reason: str = "") -> Answer:
    body = {"status": status, **({"reason": reason} if reason else {})}
    return 200 if status == "ok" else 503, _JSON, orjson.dumps(body)


def _error(status: int, code: str, sentence: str) -> Answer:
    return status, _JSON, orjson.dumps({"error": sentence, "code": code})
