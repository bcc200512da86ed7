"""docs/cases.md names, for every case, the tests that prove it, or says why it cannot apply."""

from __future__ import annotations

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "scripts" / "cases.py"


def test_the_map_of_cases_agrees_with_the_markers() -> None:
    spec = importlib.util.spec_from_file_location("cases", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    cases = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cases)
    found = cases.markers()
    assert len(found) > 40
    assert cases.problems(cases.PAGE.read_text("utf-8"), found) == []
    assert cases.problems("", found), "a map without rows is wrong"
