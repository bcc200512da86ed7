"""Keeps docs/cases.md true: which test proves which case, read off the `case` markers.

`python scripts/cases.py` rewrites the tests named in the table; `--check` only compares and fails.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "cases.md"
_ROW = re.compile(r"^\| ([BN]\d+) \| (.*?) \| (.*) \|$")


def markers() -> dict[str, list[str]]:
    """Case -> tests that say they prove it, as `path::name`."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, case in _marked(ast.parse(path.read_text("utf-8"))):
            found[case].append(f"{path.relative_to(ROOT / 'tests')}::{name}")
    return dict(found)


def rewrite(text: str, found: dict[str, list[str]]) -> str:
    """The page with the tests of each row as the markers say; a row without tests keeps its reason."""
    lines = []
    for line in text.splitlines():
        row = _ROW.match(line)
        if row and row[1] in found:
            tests = "<br>".join(f"`{test}`" for test in found[row[1]])
            lines.append(f"| {row[1]} | {row[2]} | {tests} |")
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def problems(text: str, found: dict[str, list[str]]) -> list[str]:
    """What the page gets wrong."""
    rows = {row[1]: row[3] for line in text.splitlines() if (row := _ROW.match(line))}
    wrong = [f"{case} has a test but no row" for case in sorted(found.keys() - rows.keys())]
    for case, proof in rows.items():
        if case not in found and ("::" in proof or not proof.strip()):
            wrong.append(f"{case}: no test is marked with it, and the row gives no reason")
    if rewrite(text, found) != text:
        wrong.append("the tests named differ from the markers: run python scripts/cases.py")
    return wrong


def _marked(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.case":
                for case in mark.args:
                    yield node.name, ast.literal_eval(case)


def main() -> int:
    """Rewrite the page, or check it."""
    text, found = PAGE.read_text("utf-8"), markers()
    if "--check" in sys.argv:
        wrong = problems(text, found)
        print("\n".join(wrong))
        return bool(wrong)
    PAGE.write_text(rewrite(text, found), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
