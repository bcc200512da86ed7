"""What several processes write, merged on one terminal: whole lines, each with its process's name."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import IO, cast

_COLORS = ("\033[36m", "\033[35m", "\033[34m", "\033[33m")
_RESET = "\033[0m"


class Terminal:
    """Standard output, shared.

    Lines are held back until `open`, so that what a reader needs first comes first.

    Args:
        names: who writes, for aligned prefixes.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.colored = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        width = max(map(len, names))
        self._prefixes = {
            name: self._colored(f"{name:{width}} | ", _COLORS[n % len(_COLORS)]).encode()
            for n, name in enumerate(names)
        }
        self._held: list[bytes] | None = []

    def line(self, name: str, line: bytes) -> None:
        """Write one line, without its end, of a process."""
        self._write(self._prefixes[name] + line + b"\n")

    def stream(self, name: str) -> IO[bytes]:
        """A stream whose lines are written under a name."""
        return cast("IO[bytes]", _Lines(self, name))

    def open(self, first: str = "") -> None:
        """Write `first`, then what was held back, and from now on everything at once."""
        if self._held is not None:
            held, self._held = self._held, None
            self._write(first.encode() + b"".join(held))

    def discard(self) -> None:
        """Forget what was held back."""
        self._held = []

    def _colored(self, text: str, color: str) -> str:
        return f"{color}{text}{_RESET}" if self.colored else text

    def _write(self, data: bytes) -> None:
        if self._held is not None:
            self._held.append(data)
            return
        try:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        except (OSError, ValueError):
            return  # its reader is gone: nowhere is left to say so


class _Lines(io.RawIOBase):
    """Takes the whole lines that `jobq.logs` writes."""

    def __init__(self, terminal: Terminal, name: str) -> None:
        self._terminal = terminal
        self._name = name

    def write(self, data: object) -> int:
        line = bytes(cast("bytes", data))
        self._terminal.line(self._name, line.rstrip(b"\n"))
        return len(line)
