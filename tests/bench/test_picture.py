"""The picture of waits, and what is said where it cannot be drawn."""

import sys
from pathlib import Path

import pytest

from jobq.bench.picture import Wait, draw

SERIES = {"FIFO": [Wait(0.1, 7_000.0), Wait(3.0, 900.0)], "fair": [Wait(0.1, 0.0), Wait(3.0, 2.0)]}


def test_a_picture_is_written_where_the_results_are(tmp_path: Path) -> None:
    path = tmp_path / "results" / "waits.png"
    assert draw(path, "Waits", SERIES) == f"The picture is {path}."
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_one_sentence_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    said = draw(tmp_path / "waits.png", "Waits", SERIES)
    assert "matplotlib is not installed" in said
    assert "jobq[bench]" in said
    assert not list(tmp_path.iterdir())
