"""What a person sees: progress bars while benchmarks run, a table of results at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from jobq.bench.report import Result

#: Columns of the table where nothing says how wide the reader's screen is.
WIDTH = 100
VERDICTS = {None: "", True: "[green]yes[/]", False: "[bold red]NO[/]"}


def terminal() -> Console:
    """The console on standard output; in a file or pipe, wide enough for the table."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)


class Bars:
    """Two bars: runs of all benchmarks, and how far the present one is. Off a terminal, a line a run."""

    def __init__(self, console: Console, runs: int) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description:<44}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._all = self._progress.add_task("all benchmarks", total=runs)
        self._one = self._progress.add_task("", total=None)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the bars meanwhile."""
        with self._progress:
            yield

    def begin(self, name: str, run: int, runs: int) -> None:
        """A run begins."""
        text = f"{name}, run {run + 1} of {runs}"
        self._progress.update(self._all, description=text)
        if not self._console.is_terminal:
            self._console.print(text)

    def show(self, done: float, total: float, text: str) -> None:
        """How far the present run is."""
        self._progress.update(
            self._one,
            completed=min(round(done), round(total)),
            total=round(total),
            description=text,
        )

    def tell(self, sentence: str) -> None:
        """Say something that stays on the screen."""
        self._console.print(sentence, markup=False)

    def end(self) -> None:
        """A run has ended."""
        self._progress.advance(self._all)


def table(results: Sequence[Result]) -> Table:
    """The results, one a line."""
    table = Table(box=box.SIMPLE, pad_edge=False, collapse_padding=True)
    table.add_column("benchmark", no_wrap=True)
    for name in ("value", "unit", "reference", "ratio", "budget", "ok", "spread"):
        table.add_column(
            name, justify="left" if name in ("unit", "budget") else "right", no_wrap=True
        )
    for result in results:
        verdict = "[yellow]noisy[/]" if result.noisy else VERDICTS[result.ok]
        spread = "" if result.spread is None else f"{result.spread:.0%}"
        table.add_row(
            result.name,
            _number(result.value),
            result.unit,
            _number(result.reference_value),
            "" if result.ratio is None else f"{result.ratio:.2f}",
            result.budget or "",
            verdict,
            spread,
        )
    return table


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 or value == round(value) else f"{value:g}"
