"""`python bench/peers`: makes a virtual environment with jobq and its peers, and compares them there."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
VENV = ROOT / ".venv" / "peers"
STAMP = VENV / ".installed"
PINS = (ROOT / "requirements.lock", HERE / "requirements.txt")


def install() -> None:
    """Install everything that is pinned, unless it is there."""
    wanted = "\n".join([sys.version, *(path.read_text(encoding="utf-8") for path in PINS)])
    if STAMP.is_file() and STAMP.read_text(encoding="utf-8") == wanted:
        return
    print("peers: installing pgqueuer and procrastinate beside jobq, in .venv/peers")
    venv.create(VENV, with_pip=True, clear=True)
    pip = [
        VENV / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    subprocess.run([*pip, "--no-deps", "--require-hashes", "-r", PINS[0]], check=True)
    subprocess.run([*pip, "-r", PINS[1]], check=True)
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-e", ROOT], check=True)
    STAMP.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    install()
    python = VENV / "bin" / "python"
    os.execv(python, [str(python), str(HERE / "compare.py"), *sys.argv[1:]])
