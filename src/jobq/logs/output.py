"""The way out: whole lines to a descriptor or a stream, masked here, whoever made them.

Nothing here raises: there is nowhere left to say it.
"""

from __future__ import annotations

import io
import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from jobq.logs.masking import mask_lines

#: Seconds that a terminal or pipe that somebody made non-blocking may stay full before a line is lost.
PATIENCE = 1.0


def open_output(stream: IO[Any] | None) -> Descriptor | Stream:
    """The file under a stream; the stream itself where it has none."""
    try:
        return Stream(None) if stream is None else Descriptor(stream.fileno())
    except (AttributeError, OSError, ValueError):  # in memory, or closed
        return Stream(stream)


def has_colors(stream: IO[Any] | None) -> bool:
    """Whether colours are for a terminal, or asked for."""
    if "NO_COLOR" in os.environ:  # https://no-color.org
        return False
    if "FORCE_COLOR" in os.environ:  # a pipe to a terminal, as in `jobq dev`
        return True
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # a closed one
        return False


class Descriptor:
    """Writes to a file, pipe or terminal; one that is full or gone swallows lines, and kills nobody."""

    def __init__(self, descriptor: int) -> None:
        # A copy: after sys.stdout.close() the number may come to stand for a socket.
        self._descriptor = os.dup(descriptor)
        self._gatherer, self._gathered = 0, list[bytes]()
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def write(self, line: bytes) -> None:
        """Write a whole line, not mixed with those of other threads."""
        if self._gatherer == threading.get_ident():
            self._gathered.append(line)
        else:
            self._write(line)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Write the lines of this thread at the end, by one system call."""
        if self._gatherer:
            yield
            return
        self._gatherer = threading.get_ident()
        try:
            yield
        finally:
            self._gatherer, lines, self._gathered = 0, self._gathered, []
            self._write(b"".join(lines))

    def _write(self, line: bytes) -> None:
        line = mask_lines(line)
        with self._lock:
            while line:
                try:
                    line = line[os.write(self._descriptor, line) :]
                except BlockingIOError:  # somebody made a shared terminal non-blocking
                    if not select.select([], [self._descriptor], [], PATIENCE)[1]:
                        return
                except OSError:  # its reader is gone, or the disk is full
                    return

    def close(self) -> None:
        """Close the copy."""
        with self._lock:
            os.close(self._descriptor)
            self._descriptor = -1

    def _renew(self) -> None:
        # A fork in the middle of another thread's line must not leave the child without logs. Reentrant:
        # a signal handler or a finalizer may log in the middle of a line of the same thread.
        self._lock = threading.RLock()


class Stream:
    """Writes to a stream in memory, or to none (a daemon without standard output)."""

    def __init__(self, stream: IO[Any] | None) -> None:
        self._stream = stream

    def write(self, line: bytes) -> None:
        """Write a whole line."""
        if self._stream is None:
            return
        line = mask_lines(line)
        try:
            in_text = isinstance(self._stream, io.TextIOBase)
            self._stream.write(line.decode() if in_text else line)
        except (OSError, ValueError):  # closed
            return

    @contextmanager
    def together(self) -> Iterator[None]:
        """Nothing is gained here."""
        yield

    def close(self) -> None:
        """Nothing was opened."""
