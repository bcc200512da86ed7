"""What a PostgreSQL data directory tells: its version, and the server that runs on it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from jobq.embedded.account import EmbeddedError

_PROC = Path("/proc")  # on Linux; elsewhere there is `ps`


class PidFile(NamedTuple):
    """What matters of postmaster.pid."""

    pid: int
    status: str


def check_cluster(cluster: Path) -> str:
    """Return the major version that made the cluster, nothing where none was made yet.

    Raises:
        EmbeddedError: it is something else, or broken.
    """
    if not cluster.exists() or (cluster.is_dir() and not any(cluster.iterdir())):
        return ""
    try:
        version = (cluster / "PG_VERSION").read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError):
        version = ""
    if not version:
        raise EmbeddedError(
            f"{cluster} is not empty and no PostgreSQL data directory (PG_VERSION is missing); "
            f"move it away or remove it"
        )
    return version


def check_version(cluster: Path, made_by: str, server: str) -> None:
    """Refuse a cluster of another major version; only `pg_upgrade` could convert it.

    Raises:
        EmbeddedError: the versions differ.
    """
    if made_by != server.split(".", maxsplit=1)[0]:
        raise EmbeddedError(
            f"{cluster} was made by PostgreSQL {made_by}, but this is PostgreSQL {server}; "
            f"move it away or remove it (make clean) to begin anew"
        )


def read_pid_file(cluster: Path) -> PidFile | None:
    """Return what postmaster.pid says, None where there is none or it is being written.

    Its lines are described in PostgreSQL's src/include/utils/pidfile.h.
    """
    try:
        lines = (
            (cluster / "postmaster.pid").read_text(encoding="utf-8", errors="replace").split("\n")
        )
        return PidFile(int(lines[0]), lines[7].strip() if len(lines) > 7 else "")
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def running_pid(cluster: Path) -> int | None:
    """Return the process id of the server that runs on the cluster, None where none does.

    A file that a killed server left is not enough, nor is a process of that id: it may be another
    program's by now, in a restarted container even probably.
    """
    said = read_pid_file(cluster)
    if said is None:
        return None
    directory = _directory_of_server(said.pid)
    if directory is None:
        return None
    # A running server's directory may have been renamed: rather take it for ours than start a rival.
    ours = not os.path.exists(directory) or os.path.samefile(directory, cluster)  # noqa: PTH110, PTH121
    return said.pid if ours else None


def forget_reused_pid(cluster: Path) -> None:
    """Remove a postmaster.pid whose process is alive, but is no server of this cluster.

    PostgreSQL would take that process for a rival. Where the process is dead the file stays: PostgreSQL
    finds in it whether backends of the old server are still about. They cannot be where the
    id has come round to another program.
    """
    said = read_pid_file(cluster)
    if said is not None and running_pid(cluster) is None:
        try:
            os.kill(said.pid, 0)
        except OSError:
            return
        (cluster / "postmaster.pid").unlink(missing_ok=True)


def _directory_of_server(pid: int) -> str | None:
    """Return the -D argument of a process that is a PostgreSQL server; None if it is none."""
    if _PROC.exists():
        try:
            arguments = os.fsdecode((_PROC / str(pid) / "cmdline").read_bytes()).split("\0")
        except OSError:
            return None
        if Path(arguments[0]).name != "postgres":
            return None
        return arguments[arguments.index("-D") + 1] if "-D" in arguments else ""
    found = subprocess.run(
        ["ps", "-ww", "-o", "command=", "-p", str(pid)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        errors="surrogateescape",
        check=False,
    )
    # A space here may be part of a path. Our command has an option after the program, -D at its end.
    command = found.stdout.strip()
    if not re.match(r".*?/postgres -", command):
        return None
    return command.rpartition(" -D ")[2]
