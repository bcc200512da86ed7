"""One supervised process: a fresh interpreter that runs `jobq`, started again when it dies."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from jobq import logs
from jobq.cli.lifeline import READY, VARIABLE

log = logs.get("jobq.supervisor")

#: Seconds before a child that died is started again: the first time, and at most.
RESTART_FIRST, RESTART_MOST = 0.5, 30.0
#: Seconds after which a child counts as healthy: the next wait is the first again.
HEALTHY = 30.0
#: Last lines of a child's output that are kept to explain its end.
KEPT_LINES = 20

Sink = Callable[[str, bytes], None]


class ChildFailed(Exception):
    """A child ended before it was ready for the first time; the text says how, and its last lines."""


@dataclass
class Child:
    """A child process.

    It has a session of its own, so that the terminal's Ctrl-C reaches the supervisor alone, and a
    line to the supervisor (`jobq.cli.lifeline`), so that it ends when the supervisor does.

    Args:
        name: as it is called in messages.
        arguments: of `jobq`; nothing secret, other users of the machine see them.
        environment: variables besides those of this process.
        sockets: variable -> socket that it inherits; the variable says which.
        sink: gets the child's name and each line it writes; None lets it write where we do.
    """

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    sockets: Mapping[str, socket.socket] = field(default_factory=dict)
    sink: Sink | None = None
    pid: int | None = None
    #: How it ended when it was asked to; 0 where it did not run then.
    exit_code: int = 0
    _keeper: asyncio.Task[None] | None = None
    _ready: asyncio.Event = field(default_factory=asyncio.Event)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _lines: deque[bytes] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))

    async def start(self) -> None:
        """Start it, keep it running from then on, and return when it is ready.

        Raises:
            ChildFailed: it ended first.
        """
        self._keeper = asyncio.create_task(self._keep(), name=f"keep {self.name}")
        ready = asyncio.create_task(self._ready.wait())
        await asyncio.wait({ready, self._keeper}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._keeper.done():
            await self._keeper  # raises

    async def stop(self, limit: float) -> None:
        """Ask it to stop and wait for its end; killed after `limit` seconds."""
        self._stop.set()
        self.signal(signal.SIGTERM)
        if self._keeper is not None:
            await asyncio.wait({self._keeper}, timeout=limit)
            if not self._keeper.done():
                log.error("process does not stop and is killed", process=self.name, pid=self.pid)
                self.kill()
            await asyncio.gather(self._keeper, return_exceptions=True)

    def kill(self) -> None:
        """End it, and what it started, at once."""
        self._stop.set()
        self.signal(signal.SIGKILL, group=True)

    def signal(self, number: signal.Signals, *, group: bool = False) -> None:
        """Send a signal to it, or to its whole process group."""
        if self.pid is not None:
            try:
                (os.killpg if group else os.kill)(self.pid, number)
            except ProcessLookupError:
                return  # it has ended, `_keep` is about to notice

    async def _keep(self) -> None:
        wait = RESTART_FIRST
        while not self._stop.is_set():
            started = time.monotonic()
            code = await self._run()
            if self._stop.is_set():
                # One that was asked before it could listen had not begun anything.
                self.exit_code = 0 if code == -signal.SIGTERM else code
                return
            if not self._ready.is_set():
                raise ChildFailed(self._obituary(code))
            wait = RESTART_FIRST if time.monotonic() - started > HEALTHY else wait
            log.warning(
                "process ended; it is started again", process=self.name, how=how(code), wait=wait
            )
            try:
                async with asyncio.timeout(wait):
                    await self._stop.wait()
            except TimeoutError:
                wait = min(2 * wait, RESTART_MOST)

    async def _run(self) -> int:
        """Run it once, to its end; returns its exit code, negative for a signal."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            passed = {VARIABLE: theirs.fileno(), **{k: s.fileno() for k, s in self.sockets.items()}}
            output = None if self.sink is None else asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "jobq", *self.arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output and asyncio.subprocess.STDOUT,
                env={**os.environ, **self.environment, **{k: str(v) for k, v in passed.items()}},
                pass_fds=list(passed.values()),
                start_new_session=True,
            )  # fmt: skip
            theirs.close()
            self.pid = process.pid
            if self._stop.is_set():
                self.signal(signal.SIGTERM)
            tasks = [asyncio.create_task(self._hear(ours))]
            if process.stdout is not None:
                tasks.append(asyncio.create_task(self._read(process.stdout)))
            code = await process.wait()
            self.signal(signal.SIGKILL, group=True)  # what a killed worker's handlers had forked
            self.pid = None
            await asyncio.wait(
                tasks, timeout=1.0
            )  # what it wrote last; its own children may hold the pipe
            for task in tasks:
                task.cancel()
            return code

    async def _hear(self, line: socket.socket) -> None:
        line.setblocking(False)
        if READY in await asyncio.get_running_loop().sock_recv(line, 64):
            self._ready.set()

    async def _read(self, stream: asyncio.StreamReader) -> None:
        rest = b""
        while data := await stream.read(65536):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._wrote(line)
        if rest:
            self._wrote(rest)

    def _wrote(self, line: bytes) -> None:
        self._lines.append(line)
        if self.sink is not None:
            self.sink(self.name, line)

    def _obituary(self, code: int) -> str:
        last = b"\n".join(self._lines).decode("utf-8", "replace")
        return f"{self.name} {how(code)} before it was ready" + (f":\n{last}" if last else "")


def how(code: int) -> str:
    """How a process ended, from its exit code."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
