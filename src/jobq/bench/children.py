"""The benchmark's own processes, and the few words it exchanges with them.

A child reads its arguments as one line of JSON from
standard input (a database address with a password belongs neither into `ps` nor into the environment),
answers in lines of JSON, and ends when its standard input does: so none outlives the benchmark.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from jobq.errors import JobQError

#: Seconds a child may take to stop before it is killed.
STOP_TIMEOUT = 30.0


class BenchmarkFailed(JobQError):
    """A benchmark could not be carried out; the sentence says why."""

    code = "benchmark_failed"


def receive() -> dict[str, Any]:
    """In a child: the next line from the benchmark; empty when it has gone."""
    line = sys.stdin.readline()
    message: dict[str, Any] = json.loads(line) if line else {}
    return message


def answer(**message: Any) -> None:
    """In a child: send a line to the benchmark."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class Child:
    """A process of a benchmark.

    Args:
        program: a module below `jobq.bench`, or the path of a script.
        errors: the file that takes its standard error.
        arguments: what it reads first.
    """

    def __init__(self, program: str | Path, errors: Path, **arguments: Any) -> None:
        self.name = Path(program).stem
        script = [str(program)] if isinstance(program, Path) else ["-m", f"jobq.bench.{program}"]
        self._errors = errors
        with errors.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, *script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment(os.environ),
                start_new_session=True,  # the terminal's Ctrl-C is for the benchmark
            )
        self._buffer = b""
        self.send(**arguments)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, **message: Any) -> None:
        """Send a line.

        Raises:
            BenchmarkFailed: the process has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self.check()

    def read(self, timeout: float = 60.0) -> dict[str, Any]:
        """The next line it sends.

        Args:
            timeout: seconds.

        Raises:
            BenchmarkFailed: it ended, or took too long.
        """
        assert self._process.stdout is not None
        ends = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            left = ends - time.monotonic()
            if not select.select([self._process.stdout], [], [], max(0.0, left))[0]:
                raise BenchmarkFailed(f"{self.name} did not answer in {timeout:g} s")
            data = os.read(self._process.stdout.fileno(), 65536)
            if not data:
                self._process.wait()
                self.check()
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def check(self) -> None:
        """Do nothing while it runs.

        Raises:
            BenchmarkFailed: it has ended.
        """
        status = self._process.poll()
        if status is not None:
            said = self._errors.read_text(encoding="utf-8", errors="replace").strip()
            end = "\n".join(said.splitlines()[-12:])
            raise BenchmarkFailed(f"{self.name} ended with status {status}:\n{end}")

    def freeze(self) -> None:
        """Let it do nothing until it is thawed."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()
        self._process.wait()
        self._close_pipes()

    def stop(self) -> None:
        """Ask it to end, by the end of its input, and wait for that."""
        self.thaw()
        self._close_pipes()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def __enter__(self) -> Self:
        """Nothing to do: it was started when it was made."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop it."""
        self.stop()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child: no setting of the user's own jobq reaches a benchmark."""
    return {
        name: value
        for name, value in given.items()
        if not name.startswith("JOBQ_") and name != "DATABASE_URL"
    }
