"""`jobq dev`: everything on one machine, for development: PostgreSQL, API, and a worker."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from typing import Annotated

import typer

from jobq import config, logs, migrate
from jobq.cli.api import BESIDE_VARIABLE, Insecure
from jobq.cli.child import Child, ChildFailed
from jobq.cli.lifeline import PROBE_VARIABLE
from jobq.cli.loading import DEMO, load_app, settings_of
from jobq.cli.signals import MARGIN
from jobq.cli.supervisor import Supervisor
from jobq.cli.terminal import Terminal
from jobq.config import Settings, parse_address
from jobq.embedded import DEFAULT_DATA_DIR, EmbeddedServer
from jobq.errors import ConfigurationError, DatabaseUnavailable

#: Seconds that the address may stay taken by what a killed `jobq dev` left, which is about to notice.
ADDRESS_WAIT = 3.0

#: Seconds between two looks whether PostgreSQL still runs.
WATCH = 1.0

log = logs.get("jobq.dev")


def dev(
    *,
    app: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:ATTRIBUTE", help="The JobQ to serve instead of the demo. [JOBQ_APP]"
        ),
    ] = None,
    addr: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where the API listens. [JOBQ_HTTP_ADDR]"),
    ] = None,
    insecure: Insecure = False,
) -> None:
    """Run all of it for development, until Ctrl-C.

    That is PostgreSQL, the API and one worker. PostgreSQL is an embedded one with its data in .jobq/, unless JOBQ_DATABASE_URL or DATABASE_URL
    names another. Ctrl-C lets running jobs finish; a second one ends everything at once.
    """
    os.environ.setdefault("JOBQ_LOG_FORMAT", "console")
    name = config.load(app=app).app or DEMO
    settings = settings_of(load_app(name), app=name, http_addr=addr)
    _check_address(settings.http_addr)
    terminal = Terminal(["worker", "api", "dev"])
    logs.configure(settings.log_level, settings.log_format, stream=terminal.stream("dev"))
    raise typer.Exit(asyncio.run(_Dev(settings, terminal, insecure=insecure).run()))


class _Dev:
    """A run of `jobq dev`."""

    def __init__(self, settings: Settings, terminal: Terminal, *, insecure: bool) -> None:
        self._settings = settings
        self._insecure = insecure
        self._terminal = terminal
        self._server: EmbeddedServer | None = None

    async def run(self) -> int:
        """Start, wait for a signal, stop; returns the exit code."""
        began = time.monotonic()
        supervisor = Supervisor([], self._settings.shutdown_timeout + 2 * MARGIN)
        supervisor.install()
        try:
            url = await asyncio.to_thread(self._start_database)
            supervisor.children = self._children(url)
            await supervisor.start(supervisor.children)
            if not supervisor.stopping:
                self._terminal.open(self._banner(url, time.monotonic() - began))
                await self._until_stopped(supervisor)
        except ChildFailed as error:
            await supervisor.stop(together=False)
            self._terminal.discard()
            raise ConfigurationError(str(error)) from None
        finally:
            self._terminal.open()
            await supervisor.stop(together=False)
            await asyncio.to_thread(self._stop_database, supervisor)
        return 0 if supervisor.hurried is None else 128 + supervisor.hurried

    async def _until_stopped(self, supervisor: Supervisor) -> None:
        """Wait for a signal; start PostgreSQL again where it ends before."""
        while not supervisor.stopping:
            try:
                async with asyncio.timeout(WATCH):
                    await supervisor.wait()
            except TimeoutError:
                if self._server is not None and self._server.pid is None:
                    log.warning("PostgreSQL ended; it is started again")
                    await asyncio.to_thread(self._server.start)

    def _start_database(self) -> str:
        url = self._settings.database_url
        if url is None:
            server = EmbeddedServer(DEFAULT_DATA_DIR)
            server.start()
            self._server, url = server, server.url()
        try:
            migrate.ensure(url, self._settings.schema_, auto=self._settings.auto_migrate)
        except DatabaseUnavailable as error:
            if self._server is not None:
                raise
            raise DatabaseUnavailable(
                f"{error}; this database comes from JOBQ_DATABASE_URL or DATABASE_URL: unset both for an embedded one"
            ) from None
        return url

    def _stop_database(self, supervisor: Supervisor) -> None:
        if self._server is not None:
            self._server.stop("immediate" if supervisor.hurried else "fast")

    def _children(self, url: str) -> list[Child]:
        """The worker first: it is stopped first, while the API still tells how far it is.

        The API shows the worker's metrics as well; their socket is made here, so that it stays the
        same where the worker has to be started again.
        """
        probe = socket.create_server(("127.0.0.1", 0))
        variables = {
            "JOBQ_DATABASE_URL": url,
            "JOBQ_APP": self._settings.app or DEMO,
            "JOBQ_HTTP_ADDR": self._settings.http_addr,
            BESIDE_VARIABLE: "http://{}:{}/metrics".format(*probe.getsockname()),
            "PYTHONUNBUFFERED": "1",  # what handlers print comes when they print it
            **({"FORCE_COLOR": "1"} if self._terminal.colored else {}),
        }
        line = self._terminal.line
        worker = Child("worker", ["worker"], variables, {PROBE_VARIABLE: probe}, line)
        options = ["--insecure"] if self._insecure else []
        return [worker, Child("api", ["api", *options], variables, sink=line)]

    def _banner(self, url: str, seconds: float) -> str:
        host, port = parse_address(self._settings.http_addr)
        base = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        example = [
            f"  curl -s -X POST {base}/api/jobs -H 'Content-Type: application/json' \\",
            """    -d '{"kind":"email.welcome","payload":{"to":"a@b.com"}}'""",
        ]
        own = self._settings.app not in (None, DEMO)
        return "\n".join(
            [
                f"jobq is ready after {seconds:.1f}s; Ctrl-C stops it.",
                "",
                f"  API       {base}        (documentation: {base}/docs)",
                f"  database  psql '{logs.mask(url)}'",
                "",
                "Try, in another terminal:",
                "",
                *([f"  curl -s {base}/api/kinds"] if own else example),
                f"  curl -s {base}/api/jobs",
                "",
                "",
            ]
        )


def _check_address(address: str) -> None:
    """Refuse an address that is taken, before anything is started.

    Raises:
        ConfigurationError: it is taken, or none of this machine's.
    """
    host, port = parse_address(address)
    deadline = time.monotonic() + ADDRESS_WAIT
    while True:
        try:
            family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            socket.create_server(target[:2], family=family).close()
        except OSError as error:
            if time.monotonic() > deadline:
                raise ConfigurationError(
                    f"cannot listen on {address}: {error.strerror or error} (is another jobq dev running?);"
                    " choose another address with --addr or JOBQ_HTTP_ADDR"
                ) from None
            time.sleep(0.1)
        else:
            return
