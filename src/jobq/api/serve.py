"""Runs the API in this process: its socket, its signals, its shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Iterator

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from jobq import logs, migrate
from jobq.api.answers import HttpError, render
from jobq.api.app import build
from jobq.api.beside import WorkerBeside
from jobq.api.state import Api
from jobq.config import Settings, parse_address
from jobq.errors import ConfigurationError
from jobq.handlers import Registry

log = logs.get("jobq.api")

#: Bytes that a request's line and headers may have.
MAX_HEAD = 64 * 1024


def serve(
    settings: Settings,
    *,
    handlers: Registry | None = None,
    insecure: bool = False,
    worker_metrics: str | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Run the API until SIGTERM or SIGINT, then finish what is under way and return.

    After the signal `/readyz` answers 503 for JOBQ_DRAIN_DELAY, so that load balancers look elsewhere;
    then no connection is accepted any more. A second signal ends the process at once, with 128 + n.

    Args:
        settings: address, database, budgets.
        handlers: see `create_app`.
        insecure: see `create_app`.
        worker_metrics: URL of the metrics of a worker, to be shown with the API's (`jobq dev`).
        ready: called with the URL once requests are served.

    Raises:
        ConfigurationError: the address cannot be used.
        SchemaError, DatabaseUnavailable: the schema is not as it must be, or nobody knows.
    """
    logs.configure(settings.log_level, settings.log_format)
    # Its errors are worth a line; what it says at info and warning the edge says better.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    app, api = build(settings, handlers=handlers, insecure=insecure)
    if worker_metrics is not None:
        own = [*api.registry.collect(), *api.collector.describe()]
        api.beside = WorkerBeside(worker_metrics, own)
        api.registry.register(api.beside)
    migrate.ensure(settings.require_database(), settings.schema_, auto=settings.auto_migrate)
    with contextlib.closing(bind(settings.http_addr)) as listener:
        config = uvicorn.Config(
            app,
            http=Protocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=round(settings.keep_alive),
            h11_max_incomplete_event_size=MAX_HEAD,
            timeout_graceful_shutdown=int(settings.shutdown_timeout - settings.drain_delay),
        )
        server = Server(config, lambda: _say_ready(listener, ready))
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_run(server, listener, api, settings.drain_delay))
    log.info("api stopped")


def bind(address: str) -> socket.socket:
    """A listening socket.

    Raises:
        ConfigurationError: the address is taken, or none of this machine's.
    """
    host, port = parse_address(address)
    try:
        family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(target[:2], family=family)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigurationError(f"JOBQ_HTTP_ADDR: cannot listen on {address}: {reason}") from None


class Server(uvicorn.Server):
    """Leaves signals to `_run` and says when it serves."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take no signals: the drain delay comes first."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        self._ready()


class Protocol(H11Protocol):
    """Answers what is no HTTP at all in the shape of our other errors."""

    def send_400_response(self, msg: str) -> None:
        """Refuse the request and close the connection."""
        request_id = uuid.uuid4().hex
        log.info("request", method=None, path=None, status=400, request_id=request_id)
        response = render(HttpError(400, "bad_http", "this is no HTTP/1.1 request"), request_id)
        headers = [
            *response.raw_headers,
            (b"x-request-id", request_id.encode()),
            (b"connection", b"close"),
        ]
        events = (
            h11.Response(status_code=400, headers=headers),
            h11.Data(data=bytes(response.body)),
            h11.EndOfMessage(),
        )
        try:
            for event in events:
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            log.debug("an answer was under way when the connection broke")
        self.transport.close()


async def _run(server: Server, listener: socket.socket, api: Api, drain_delay: float) -> None:
    loop = asyncio.get_running_loop()

    def stop(number: signal.Signals) -> None:
        if api.draining:
            log.warning("second signal: leaving at once", signal=number.name)
            os._exit(128 + number)
        api.draining = True
        log.info("api stops", signal=number.name, drain_delay=drain_delay)
        loop.call_later(drain_delay, setattr, server, "should_exit", True)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    await server.serve(sockets=[listener])


def _say_ready(listener: socket.socket, ready: Callable[[str], None] | None) -> None:
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    log.info("api listens", url=url)
    if ready is not None:
        ready(url)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop  # noqa: PLC0415 - not on Windows

    return uvloop.new_event_loop
