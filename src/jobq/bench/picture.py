"""Waits over time as a picture, where matplotlib is installed (`pip install 'jobq[bench]'`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Colours that people with any kind of colour blindness tell apart (Okabe and Ito, 2008), and marks beside them.
LOOKS = (("#D55E00", "x"), ("#0072B2", "o"))
#: Inches, and dots per inch.
SIZE, DPI = (8.0, 4.2), 120
#: Milliseconds that a log scale begins with: less is noise.
LEAST = 0.1


class Wait(NamedTuple):
    """A job's wait: when it was enqueued, in seconds since the start, and how many milliseconds it took."""

    at: float
    milliseconds: float


def draw(path: Path, title: str, series: Mapping[str, Sequence[Wait]]) -> str:
    """Write the picture of up to two series, one dot a job.

    Returns:
        A sentence that tells where it is, or why there is none.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  # optional, and slow to import
    except ImportError:
        return f"No picture {path.name}: matplotlib is not installed (pip install 'jobq[bench]')."
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    for (name, waits), (colour, mark) in zip(series.items(), LOOKS, strict=False):
        _dots(axes, name, waits, colour, mark)
    _scales(axes)
    axes.set_title(title, loc="left", fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI)
    return f"The picture is {path}."


def _dots(axes: Axes, name: str, waits: Sequence[Wait], colour: str, mark: str) -> None:
    axes.plot(
        [wait.at for wait in waits],
        [max(LEAST, wait.milliseconds) for wait in waits],
        linestyle="", marker=mark, markersize=4, color=colour, label=name,
    )  # fmt: skip


def _scales(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.set_ylim(bottom=LEAST)
    axes.yaxis.set_major_formatter(lambda value, place: _readable(value))
    axes.set_xlabel("enqueued, seconds since the flood's first job started")
    axes.set_ylabel("wait until the handler starts")
    axes.grid(alpha=0.3)
    axes.legend(loc="center right")


def _readable(milliseconds: float) -> str:
    return f"{milliseconds / 1000:g} s" if milliseconds >= 1000 else f"{milliseconds:g} ms"
