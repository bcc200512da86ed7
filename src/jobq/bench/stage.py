"""What every benchmark works with: server, sizes, files, processes, and a way to show its progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TypeVar

from jobq.bench.children import BenchmarkFailed, Child
from jobq.bench.report import Metric, Sample
from jobq.bench.server import Database, Server

T = TypeVar("T")
U = TypeVar("U")

#: Seconds between two looks at what is waited for.
TICK = 0.002


@dataclass(frozen=True)
class Sizes:
    """How much is run; seconds and numbers of jobs. The defaults are those of the published figures."""

    drain_jobs: int = 100_000
    claim_seconds: float = 1.5
    pickups: int = 200
    polled_pickups: int = 30
    enqueue_seconds: float = 3.0
    bulk_jobs: int = 100_000
    crash_jobs: int = 1_000
    kill_period: float = 1.0
    horizon_seconds: float = 60.0
    horizon_window: float = 2.5
    idle_seconds: float = 20.0
    memory_jobs: tuple[int, int] = (100_000, 1_000_000)
    flood_jobs: int = 10_000
    flood_windows: int = 5
    slow_seconds: float = 10.0
    tenants: int = 10_000
    tenant_jobs: int = 1_000_000
    tenant_seconds: float = 10.0
    cap_claims: int = 100_000
    cap_kill_period: float = 4.0
    serial_jobs: int = 2_000
    beside_jobs: int = 100_000
    rate_seconds: float = 10.0


#: For a look while developing: a minute or two altogether; the numbers are rough.
QUICK = Sizes(
    drain_jobs=20_000, claim_seconds=0.3, pickups=40, polled_pickups=10, enqueue_seconds=0.7, bulk_jobs=20_000,
    crash_jobs=300, kill_period=0.7, horizon_seconds=8.0, horizon_window=1.0, idle_seconds=5.0,
    memory_jobs=(20_000, 60_000), flood_jobs=2_000, flood_windows=2, slow_seconds=2.0, tenants=2_000, tenant_jobs=100_000, tenant_seconds=3.0,
    cap_claims=10_000, cap_kill_period=1.5, serial_jobs=500, beside_jobs=20_000, rate_seconds=4.0,
)  # fmt: skip


@dataclass
class Stage:
    """One run of a benchmark.

    Args:
        server: where databases are made.
        folder: for shared memory and logs, removed afterwards.
        run: index of this run, from 0.
        show: told how far it is: done, total, and what is being done.
        tell: told what a reader of the results should know, in a sentence.
        pictures: the folder that pictures are written to; None: draw none.
    """

    server: Server
    folder: Path = Path()
    sizes: Sizes = field(default_factory=Sizes)
    run: int = 0
    show: Callable[[float, float, str], None] = lambda done, total, text: None
    tell: Callable[[str], None] = lambda sentence: None
    pictures: Path | None = None
    _files: Iterator[int] = field(default_factory=count)
    _shown: float = 0.0

    def path(self, name: str) -> Path:
        """A new file's path."""
        return self.folder / f"{name}-{next(self._files)}"

    def child(self, program: str | Path, **arguments: object) -> Child:
        """Start a process; see `Child`."""
        return Child(program, self.path("errors"), **arguments)

    @contextmanager
    def ready(self, *children: Child) -> Iterator[Sequence[Child]]:
        """Processes that have said that they are ready and are told to go, all at once; stopped at the end."""
        with ExitStack() as stack:
            for child in children:
                stack.enter_context(child)
            for child in children:
                child.read()
            for child in children:
                child.send()
            yield children

    def worker(
        self,
        database: Database,
        board: Path | str,
        place: int = 0,
        *,
        claims: Path | None = None,
        **settings: object,
    ) -> Child:
        """Start a worker process; it says that it is ready, and works once it is told to go.

        Args:
            place: on the board.
            claims: the file of `Figures` that takes the seconds of each claim.
            settings: of `jobq.config.Settings`; all others are the defaults, also what is logged.
        """
        arguments = {
            "url": database.url,
            "board": str(board),
            "place": place,
            "log": str(self.path("log")),
            "claims": None if claims is None else str(claims),
        }
        return self.child("worker_process", **arguments, settings=settings)

    def wait(
        self,
        done: Callable[[], bool],
        children: Sequence[Child],
        *,
        timeout: float,
        progress: Callable[[], tuple[float, float, str]] | None = None,
        tick: float = TICK,
    ) -> None:
        """Wait for a condition.

        Args:
            children: what has to live meanwhile.
            timeout: seconds without it after which the benchmark has failed.
            progress: what to show meanwhile.

        Raises:
            BenchmarkFailed: it took too long, or a process ended.
        """
        ends = time.monotonic() + timeout
        while not done():
            for child in children:
                child.check()
            if time.monotonic() > ends:
                raise BenchmarkFailed(f"nothing came of it in {timeout:g} s")
            if progress is not None:
                self.say(*progress())
            time.sleep(tick)

    def say(self, done: float, total: float, text: str) -> None:
        """Show how far it is, ten times a second at most."""
        if time.monotonic() - self._shown > 0.1:
            self._shown = time.monotonic()
            self.show(done, total, text)

    def both(
        self, ours: Callable[[], T], reference: Callable[[], U], window: int = 0
    ) -> tuple[T, U]:
        """Measure ours and the reference, first the one and in the next run or window first the other."""
        if (self.run + window) % 2 == 0:
            first = ours()
            return first, reference()
        second = reference()
        return ours(), second

    def windows(
        self, windows: int, ours: Callable[[], T], reference: Callable[[], U]
    ) -> list[tuple[T, U]]:
        """Measure both in so many windows, one right after the other."""
        return [self.both(ours, reference, window) for window in range(windows)]


@dataclass(frozen=True)
class Benchmark:
    """Metrics that are measured together.

    Args:
        about: what is run, in a sentence.
        measure: one run; by metric name a sample, or one for each window of the run.
        most_runs: for those that take minutes.
    """

    about: str
    metrics: tuple[Metric, ...]
    measure: Callable[[Stage], Mapping[str, Sample | Sequence[Sample]]]
    most_runs: int | None = None
