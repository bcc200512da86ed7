"""Shared memory that handlers stamp, so that measuring a run costs no statement.

Times are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import mmap
import time
from pathlib import Path

#: Processes that may count.
PLACES = 64

now = time.monotonic_ns


class Board:
    """A file that is mapped by the benchmark and by its processes.

    Args:
        path: of a file made by `create`.

    Attributes:
        counts: handlers started, by process.
        firsts: when a process started its first handler.
        sent: by job, when it was about to be enqueued.
        started: by job, when its handler first started.
        runs: by job, how often its handler started.
    """

    def __init__(self, path: str | Path) -> None:
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        words = memoryview(self._map).cast("q")
        jobs = (len(words) - 2 * PLACES) // 3
        self.counts = words[:PLACES]
        self.firsts = words[PLACES : 2 * PLACES]
        rest = words[2 * PLACES :]
        self.sent, self.started, self.runs = (rest[i * jobs : (i + 1) * jobs] for i in range(3))

    @classmethod
    def create(cls, path: Path, jobs: int = 0) -> Board:
        """Make the file, all zero, with room to stamp `jobs` jobs one by one."""
        with path.open("wb") as file:
            file.truncate(8 * (2 * PLACES + 3 * jobs))
        return cls(path)

    def count(self, place: int) -> None:
        """A handler starts in the process at a place."""
        if not self.counts[place]:
            self.firsts[place] = now()
        self.counts[place] += 1

    def stamp(self, job: int) -> None:
        """The handler of a job starts."""
        if not self.runs[job]:
            self.started[job] = now()
        self.runs[job] += 1

    @property
    def total(self) -> int:
        """Handlers started in all processes."""
        return sum(self.counts)

    @property
    def begin(self) -> int:
        """When the first handler of all started; 0 before."""
        return min((first for first in self.firsts if first), default=0)

    def waits(self) -> list[float]:
        """Milliseconds from sending to starting, of the jobs that started."""
        pairs = zip(self.sent, self.started, strict=True)
        return [(started - sent) / 1e6 for sent, started in pairs if started]


class Figures:
    """A file of numbers in the order in which one process adds them, while another reads.

    Args:
        path: of a file made by `create`.
    """

    def __init__(self, path: str | Path) -> None:
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._count = memoryview(self._map).cast("q")[:1]
        self._numbers = memoryview(self._map).cast("d")[1:]

    @classmethod
    def create(cls, path: Path, most: int) -> Figures:
        """Make the file, with room for `most` numbers."""
        with path.open("wb") as file:
            file.truncate(8 * (1 + most))
        return cls(path)

    def add(self, number: float) -> None:
        """One more; where there is no room left, it is dropped."""
        count = self._count[0]
        if count < len(self._numbers):
            self._numbers[count] = number
            self._count[0] = count + 1

    def all(self) -> list[float]:
        """What was added so far."""
        return list(self._numbers[: self._count[0]])
