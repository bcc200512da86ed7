"""Fails when a Python file is longer than 400 lines or a function longer than 60.

Tests and benchmarks are exempt from the rule for functions, not from the one for files: a scenario
told from top to bottom may be long, a file nobody can survey may not.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_FILE = 400
MAX_FUNCTION = 60
FOLDERS = ("src", "scripts", "tests", "bench", "examples")
LONG_FUNCTIONS_ALLOWED = ("tests", "bench")


def too_long(path: Path, *, functions: bool) -> Iterator[str]:
    """Yield a sentence for each rule that the file breaks."""
    source = path.read_text(encoding="utf-8")
    lines = len(source.splitlines())
    if lines > MAX_FILE:
        yield f"{path}:1: {lines} lines, at most {MAX_FILE} are allowed"
    if not functions:
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION:
                yield (
                    f"{path}:{node.lineno}: {node.name} has {length} lines, "
                    f"at most {MAX_FUNCTION} are allowed"
                )


def main(root: Path) -> int:
    """Print every offence under `root`; return the exit code."""
    offences = [
        sentence
        for folder in FOLDERS
        for path in sorted((root / folder).rglob("*.py"))
        if not any(part.startswith(".") for part in path.relative_to(root).parts)
        for sentence in too_long(path, functions=folder not in LONG_FUNCTIONS_ALLOWED)
    ]
    print("\n".join(offences or ["sizes: every file and function is short enough"]))
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path()))
