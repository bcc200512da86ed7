"""What the command line's tests share: commands in this process, and `jobq` as a process."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil  # type: ignore[import-untyped]
from typer.testing import CliRunner

from jobq.cli import app

T = TypeVar("T")

#: Seconds until a test gives up waiting for an event.
PATIENCE = 30.0
JOBQ = [sys.executable, "-P", "-m", "jobq"]


@dataclass(frozen=True)
class Said:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its output as JSON."""
        return json.loads(self.out)


def jobq(*arguments: str, stdin: str | bytes | None = None, **environment: str) -> Said:
    """Run a command in this process.

    Args:
        environment: variables instead of those that jobq reads.
    """
    unset = dict.fromkeys([name for name in os.environ if name.startswith("JOBQ_")])
    result = CliRunner().invoke(
        app,
        list(arguments),
        prog_name="jobq",
        input=stdin,
        env={**unset, "DATABASE_URL": None, **environment},
    )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Said(result.exit_code, result.stdout, result.stderr)


class Process:
    """`jobq` as a process of its own session, as a terminal's foreground job is a group of its own.

    Args:
        arguments: of jobq.
        cwd: where it runs.
        environment: what it gets besides this process's, those that jobq reads aside.
    """

    def __init__(
        self, arguments: Sequence[str], *, cwd: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        inherited = {
            k: v for k, v in os.environ.items() if not k.startswith(("JOBQ_", "DATABASE_"))
        }
        self.popen = subprocess.Popen(
            [*JOBQ, *arguments],
            cwd=cwd,
            env={**inherited, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            encoding="utf-8",
        )
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.popen.pid

    @property
    def output(self) -> str:
        """What it printed so far."""
        return "\n".join(self.lines)

    def line(self, pattern: str, count: int = 1) -> str:
        """Wait until it has printed `count` lines that match a regular expression; returns the last."""
        deadline = time.monotonic() + PATIENCE
        with self._changed:
            while True:
                found = [line for line in self.lines if re.search(pattern, line)]
                if len(found) >= count:
                    return found[count - 1]
                if self._ended or not self._changed.wait(deadline - time.monotonic()):
                    raise AssertionError(f"no line {pattern!r} came:\n{self.output}")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it alone."""
        self.popen.send_signal(number)

    def ctrl_c(self) -> None:
        """Send SIGINT to its whole process group, as a terminal does."""
        os.killpg(self.pid, signal.SIGINT)

    def wait(self) -> int:
        """Wait for its end; returns its exit code, negative for a signal."""
        code = self.popen.wait(PATIENCE)
        with self._changed:
            self._changed.wait_for(lambda: self._ended, 5.0)
        return code

    def family(self) -> list[psutil.Process]:
        """Its descendants."""
        found: list[psutil.Process] = psutil.Process(self.pid).children(recursive=True)
        return found

    def end(self) -> None:
        """Leave nothing running, whatever the test came to."""
        try:
            family = self.family()
        except psutil.NoSuchProcess:
            family = []
        for process in [self.popen, *family]:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.popen.wait()
        psutil.wait_procs(family, PATIENCE)

    def _read(self) -> None:
        assert self.popen.stdout is not None
        with self.popen.stdout as out:
            for line in out:
                with self._changed:
                    self.lines.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


def eventually(look: Callable[[], T | None]) -> T:
    """Look until there is something to see."""
    deadline = time.monotonic() + PATIENCE
    while (found := look()) is None or found is False:
        assert time.monotonic() < deadline, f"nothing came of {look}"
        threading.Event().wait(0.02)
    return found


def gone(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Wait for processes to end; returns those that live on."""
    _, alive = psutil.wait_procs(processes, PATIENCE)
    return list(alive)


def free_port() -> int:
    """A port of the loopback address that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def fetch(url: str, body: object = None) -> tuple[int, Any]:
    """GET, or POST a body as JSON: the status and the JSON of the answer, its text where it is none."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            status, text = response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text
