"""Where an embedded server keeps its files.

The data directory that a caller names is ours, and holds

    location.json   where the rest lies; the socket folder stays the same over restarts
    lock            locked by the process that uses the server
    server.log      what the server says
    cluster/        PostgreSQL's own data directory

As root, the account that the server runs as has to reach the programs and the cluster, which it
cannot in a clone below /root. They go then to a new folder of root's elsewhere, the *home*, and
location.json points there. No directory that was there before changes its mode or owner.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from jobq.embedded.account import Account, EmbeddedError, can_write, hand_over

HOME_PREFIX = "jobq-postgresql-"
SOCKET_PREFIX = "jobq-socket-"
SOCKET = ".s.PGSQL.5432"
# sun_path holds 104 bytes on macOS and 108 on Linux, the final zero included.
MAX_SOCKET_PATH = 103
_FILES = ("location.json", "location.json.new", "lock", "server.log", "server.log.1")
_FOLDERS = ("cluster", "cluster.new-*", "binaries-*")


@dataclass(frozen=True)
class Location:
    """What location.json says.

    Attributes:
        data_dir: the directory that the caller named.
        home: what holds the cluster: `data_dir`, or a folder of root's elsewhere.
        socket_dir: where the server listens; None before the first start.
    """

    data_dir: Path
    home: Path
    socket_dir: Path | None = None

    @property
    def cluster(self) -> Path:
        """PostgreSQL's data directory."""
        return self.home / "cluster"

    @classmethod
    def read(cls, data_dir: Path) -> Location:
        """Return what location.json says; all in place where there is none.

        Raises:
            EmbeddedError: the file is broken, or what it names is not ours.
        """
        try:
            said = json.loads((data_dir / "location.json").read_text(encoding="utf-8"))
            home = Path(said["home"])
            socket_dir = Path(said["socket_dir"]) if said["socket_dir"] else None
            moved = said["data_dir"] != str(data_dir)
        except FileNotFoundError:
            return cls(data_dir, data_dir)
        except (ValueError, KeyError, TypeError):
            raise EmbeddedError(
                f"{data_dir / 'location.json'} is broken; move {data_dir} away or remove it"
            ) from None
        home = _verified(home, data_dir) if home.name.startswith(HOME_PREFIX) else data_dir
        # A copy must not listen where the original does.
        return cls(data_dir, home, None if moved else socket_dir)

    def write(self) -> None:
        """Write location.json, whole or not at all."""
        fresh = self.data_dir / "location.json.new"
        said = {
            "data_dir": str(self.data_dir),
            "home": str(self.home),
            "socket_dir": str(self.socket_dir) if self.socket_dir else None,
        }
        fresh.write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
        fresh.replace(self.data_dir / "location.json")

    def with_socket_dir(self, account: Account | None) -> Location:
        """Return this location with a socket folder that exists and is the server's alone."""
        if self.socket_dir and _make_again(self.socket_dir, account):
            _empty(self.socket_dir)
            return self
        for parent in (tempfile.gettempdir(), "/tmp"):  # noqa: S108 - mkdtemp makes a private one
            made = Path(tempfile.mkdtemp(prefix=SOCKET_PREFIX, dir=parent))
            hand_over(made, account)
            if len(os.fsencode(made / SOCKET)) <= MAX_SOCKET_PATH and can_write(made, account):
                return replace(self, socket_dir=made)
            made.rmdir()
        raise EmbeddedError("no temporary folder has a path short enough for a Unix socket")

    def remove_socket_dir(self) -> None:
        """Remove the socket folder, with what a killed server left in it."""
        if self.socket_dir and self.socket_dir.name.startswith(SOCKET_PREFIX):
            with contextlib.suppress(FileNotFoundError):  # tidied up by somebody
                _empty(self.socket_dir)
                self.socket_dir.rmdir()

    def abandon_home(self) -> None:
        """Forget a home in which no cluster came about; if it is elsewhere, remove it."""
        (self.data_dir / "location.json").unlink(missing_ok=True)
        if self.home != self.data_dir:
            shutil.rmtree(self.home)

    def remove_files(self) -> None:
        """Delete everything of the server's, and `data_dir` itself if that leaves it empty."""
        if self.home != self.data_dir:
            shutil.rmtree(self.home)
        for pattern in _FOLDERS:
            for folder in self.data_dir.glob(pattern):
                shutil.rmtree(folder)
        for name in _FILES:
            (self.data_dir / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty
            self.data_dir.rmdir()


def prepare(data_dir: Path) -> None:
    """Make the data directory, or see that the one that is there is ours.

    Raises:
        EmbeddedError: it holds something else.
    """
    if data_dir.exists() and not data_dir.is_dir():
        raise EmbeddedError(f"{data_dir} is a file, not a data directory")
    data_dir.mkdir(parents=True, exist_ok=True)
    found = {path.name for path in data_dir.iterdir()}
    if found and not found & {*_FILES, "cluster"}:
        raise EmbeddedError(f"{data_dir} is not empty and holds no embedded PostgreSQL")


def take_lock(path: Path) -> int:
    """Lock the data directory for this process; return the lock's file descriptor.

    Raises:
        EmbeddedError: another living process has it.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(lock)
        raise EmbeddedError(
            f"{path.parent} is in use by process {holder}; stop that first"
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def new_cluster_dir(location: Location, account: Account | None) -> tuple[Location, Path]:
    """Make an empty directory for initdb, beside its later name, where the account reaches it.

    Returns:
        The location, its home elsewhere if need be, and the new directory.
    """
    for home in _homes(location, account):
        for left in home.glob("cluster.new-*"):
            shutil.rmtree(left)  # by an initdb that was killed
        made = Path(tempfile.mkdtemp(prefix="cluster.new-", dir=home))
        hand_over(made, account)
        if can_write(made, account):
            return replace(location, home=home), made
        made.rmdir()
        if home != location.home:
            home.rmdir()
    raise EmbeddedError(
        f"PostgreSQL has to run as uid {account.uid if account else os.geteuid()}, which can write "
        f"neither to {location.data_dir} nor to a temporary folder"
    )


def _homes(location: Location, account: Account | None) -> Iterator[Path]:
    """Yield where the cluster may lie: in place, then, as root, in folders made for it."""
    yield location.home
    if account is None:
        return
    temporary = Path(tempfile.gettempdir())
    # /var/lib is root's and nobody tidies it up; but throw-away data stays with the throw-away.
    lasting = () if location.data_dir.is_relative_to(temporary) else (Path("/var/lib"),)
    for parent in (*lasting, temporary, Path("/var/tmp")):  # noqa: S108 - mkdtemp, again
        with contextlib.suppress(OSError):  # absent or read-only: the next one
            home = Path(tempfile.mkdtemp(prefix=HOME_PREFIX, dir=parent))
            home.chmod(0o711)  # new and ours; the account passes through to its cluster
            yield home


def _verified(home: Path, data_dir: Path) -> Path:
    """Return the home elsewhere, if it is our own; `data_dir` if it is gone."""
    try:
        found = home.lstat()
    except FileNotFoundError:
        return data_dir  # temporary folders may be emptied at boot: begin anew
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise EmbeddedError(
            f"{data_dir} keeps its data in {home}, which belongs to another user; "
            f"run as that user, or move {data_dir} away"
        )
    return home


def _make_again(path: Path, account: Account | None) -> bool:
    """Make a socket folder of that name, or see that the one there is the server's alone."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        uid = account.uid if account else os.geteuid()
        found = path.lstat()
        return stat.S_ISDIR(found.st_mode) and (found.st_uid, found.st_mode & 0o777) == (uid, 0o700)
    except OSError:
        return False  # its parent is gone, or closed to us
    hand_over(path, account)
    return True


def _empty(socket_dir: Path) -> None:
    for name in (SOCKET, f"{SOCKET}.lock"):
        (socket_dir / name).unlink(missing_ok=True)
