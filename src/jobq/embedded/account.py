"""As whom PostgreSQL's programs run: PostgreSQL refuses to run as root."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobq.errors import JobQError


class EmbeddedError(JobQError):
    """The embedded PostgreSQL cannot be used; the sentence says why and what helps."""

    code = "embedded_postgresql"


@dataclass(frozen=True)
class Account:
    """An account other than ours, for when we are root."""

    uid: int
    gid: int

    @property
    def popen(self) -> dict[str, Any]:
        """The arguments for `subprocess` that run a program as this account."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


def choose_account(cluster: Path) -> Account | None:
    """Return whom the server must run as: None for ourselves; as root its files' owner or `nobody`.

    Raises:
        EmbeddedError: we are root and there is nobody to run the server.
    """
    if os.geteuid() != 0:
        return None
    if cluster.is_dir():
        owner = cluster.stat()
        if owner.st_uid == 0:
            raise EmbeddedError(f"{cluster} belongs to root, as whom PostgreSQL refuses to run")
        return Account(owner.st_uid, owner.st_gid)
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        raise EmbeddedError(
            "PostgreSQL refuses to run as root, and there is no account `nobody` to run it as; "
            "run as an ordinary user, or set JOBQ_DATABASE_URL"
        ) from None
    return Account(nobody.pw_uid, nobody.pw_gid)


def environment() -> dict[str, str]:
    """Return the environment for PostgreSQL's programs: no secret of ours, no PG* variable."""
    kept = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    return {"LC_ALL": "C", **{name: os.environ[name] for name in kept if name in os.environ}}


def run(command: Sequence[str | Path], account: Account | None) -> subprocess.CompletedProcess[str]:
    """Run a program to its end as the account; both of its outputs are in `stdout`.

    Raises:
        OSError: the account cannot reach the program.
    """
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        check=False,
        cwd="/",  # the account may not be allowed into ours
        env=environment(),
        start_new_session=True,  # the terminal's Ctrl-C is for us
        **(account.popen if account else {}),
    )


def can_write(path: Path, account: Account | None) -> bool:
    """Tell whether the account can reach the directory and write there, by letting it try."""
    script = 'cd "$1" && test -w .'
    return run(["/bin/sh", "-c", script, "sh", path], account).returncode == 0


def hand_over(path: Path, account: Account | None) -> None:
    """Give a directory that was made just now to the account."""
    if account:
        os.chown(path, account.uid, account.gid, follow_symlinks=False)
