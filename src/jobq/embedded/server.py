"""The embedded server's life: start, stop, restart, kill, adopt.

It listens on a Unix socket only, in a folder that only it and root may enter; that folder is the
password. SIGKILL of either side is survived: `start` adopts a server whose starter died, and starts
anew after one that died itself.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import quote

import psycopg

from jobq.embedded.account import Account, EmbeddedError, choose_account, environment, run
from jobq.embedded.binaries import find_binaries, reachable_binaries, server_version
from jobq.embedded.cluster import (
    PidFile,
    check_cluster,
    check_version,
    forget_reused_pid,
    read_pid_file,
    running_pid,
)
from jobq.embedded.location import Location, new_cluster_dir, prepare, take_lock

DEFAULT_DATA_DIR = Path(".jobq/postgresql")
SUPERUSER = "jobq"

StopMode = Literal["smart", "fast", "immediate"]
# https://www.postgresql.org/docs/current/server-shutdown.html
_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}

_START_TIMEOUT = 60.0  # seconds; recovery after a SIGKILL may take a while
_STOP_TIMEOUT = 60.0
_ANSWER_TIMEOUT = 10.0
_QUIT_TIMEOUT = 5.0
_TICK = 0.01
_MAX_LOG = 10 * 1024 * 1024  # bytes
_LOG_LINES = 12  # of the log, in an error

_SETTINGS = {
    "listen_addresses": "",
    "port": "5432",  # no port, only part of the socket's name
    "max_connections": "200",
    "logging_collector": "off",
    "log_destination": "stderr",
    "timezone": "UTC",
    "log_timezone": "UTC",
}

# A data directory is in use while the process lives that started the server; the kernel lets go of
# its lock then. A forked child would keep hold of it, so it drops its copies.
_held_locks: set[int] = set()


def _drop_inherited_locks() -> None:
    for descriptor in _held_locks:
        os.close(descriptor)
    _held_locks.clear()


os.register_at_fork(after_in_child=_drop_inherited_locks)


class EmbeddedServer:
    """One PostgreSQL server on a data directory of its own.

    `start` makes what is missing. One living process at a time starts and stops a server; any other
    may ask for `url` and `pid`, which are read from files. Not to be used by several threads at once.

    Args:
        data_dir: the directory, made if it is missing.
        bin_dir: other binaries than the wheel's, for example /usr/lib/postgresql/15/bin.
        settings: PostgreSQL settings over the defaults here, for example `{"fsync": "off"}`.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        bin_dir: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.data_dir = Path(os.path.abspath(data_dir))  # noqa: PTH100 - symlinks stay as named
        self._bin_dir = bin_dir
        self._settings = {**_SETTINGS, **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: int | None = None

    @property
    def log_file(self) -> Path:
        """The server's log."""
        return self.data_dir / "server.log"

    @property
    def pid(self) -> int | None:
        """The process id of the running server, whoever started it; None where none runs."""
        return running_pid(Location.read(self.data_dir).cluster)

    def url(self, database: str = "postgres") -> str:
        """Return the address of a database, the same over restarts; the server may be down now.

        Raises:
            EmbeddedError: the server was never started.
        """
        socket_dir = Location.read(self.data_dir).socket_dir
        if socket_dir is None:
            raise EmbeddedError(f"no PostgreSQL server was ever started in {self.data_dir}")
        host = quote(str(socket_dir), safe="")
        return f"postgresql://{SUPERUSER}@/{quote(database, safe='')}?host={host}&port=5432"

    def start(self) -> None:
        """Start the server and wait until it answers; adopt one that a dead process left running.

        An adopted server keeps the settings that it was started with.

        Raises:
            EmbeddedError: the data directory is broken, in use, or of another PostgreSQL version;
                or the server does not start, with the end of its log.
        """
        with self._locked(keep=True):
            if not self._adopt():
                self._start()

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server and wait for its end; do nothing where none runs.

        Args:
            mode: `smart` waits until all clients have left, `fast` breaks their transactions off,
                `immediate` also skips the checkpoint, so that the next start has to recover.

        Raises:
            EmbeddedError: another living process uses the server, or it did not stop in time.
        """
        if self.data_dir.is_dir():
            with self._locked(keep=False):
                self._halt(mode)
                Location.read(self.data_dir).remove_socket_dir()

    def restart(self) -> None:
        """Stop the server, breaking off open transactions, and start it at the same address."""
        with self._locked(keep=True):
            self._halt("fast")
            self._start()

    def kill(self) -> None:
        """End the server by SIGKILL, as a crash would; `start` recovers, at the same address."""
        if (pid := self.pid) is not None:
            os.kill(pid, signal.SIGKILL)
            self._await_end(pid)

    def remove(self) -> None:
        """Stop the server and delete all its files, also those that lie elsewhere."""
        if self.data_dir.is_dir():
            with self._locked(keep=False):
                self._halt("immediate")
                location = Location.read(self.data_dir)
                location.remove_socket_dir()
                location.remove_files()

    def __enter__(self) -> Self:
        """Start the server."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the server."""
        self.stop()

    @contextlib.contextmanager
    def _locked(self, *, keep: bool) -> Iterator[None]:
        """Hold the lock for the block, and beyond if it succeeds and `keep` says so."""
        try:
            if self._lock is None:
                prepare(self.data_dir)
                self._lock = take_lock(self.data_dir / "lock")
                _held_locks.add(self._lock)
            yield
        except PermissionError as error:
            keep = False
            raise EmbeddedError(
                f"cannot use {self.data_dir}: no permission for {error.filename}; "
                f"run as the user who made it, or have that user remove it"
            ) from error
        except (OSError, subprocess.SubprocessError) as error:
            keep = False
            raise EmbeddedError(f"cannot use {self.data_dir}: {error}") from error
        except BaseException:
            keep = False
            raise
        finally:
            if self._lock is not None and not keep:
                _held_locks.discard(self._lock)
                os.close(self._lock)
                self._lock = None

    def _adopt(self) -> bool:
        """Return whether a server runs here already and answers."""
        if self._process is not None:
            self._process.poll()  # reaps it if it died meanwhile
        cluster = Location.read(self.data_dir).cluster
        deadline = time.monotonic() + _ANSWER_TIMEOUT
        while (pid := running_pid(cluster)) is not None:
            if self._answers():
                return True
            if time.monotonic() > deadline:
                raise EmbeddedError(
                    f"an old PostgreSQL server, process {pid}, still has {cluster} "
                    f"but does not answer; end it with: kill -QUIT {pid}"
                )
            time.sleep(_TICK)  # it may be starting, recovering or stopping
        return False

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _start(self) -> None:
        location = Location.read(self.data_dir)
        made_by = check_cluster(location.cluster)
        binaries = find_binaries(self._bin_dir)
        account = choose_account(location.cluster)
        if made_by:
            check_version(location.cluster, made_by, server_version(binaries, None))
            binaries = reachable_binaries(binaries, location.home, account)
        else:
            location, binaries = self._make_cluster(location, binaries, account)
        location = location.with_socket_dir(account)
        location.write()
        forget_reused_pid(location.cluster)
        self._launch(location, binaries, account)

    def _make_cluster(
        self, location: Location, binaries: Path, account: Account | None
    ) -> tuple[Location, Path]:
        """Run initdb beside the final name, so that half a cluster is never taken for one."""
        location, fresh = new_cluster_dir(location, account)
        try:
            location.write()  # now, so that `remove` finds what lies elsewhere whatever comes
            binaries = reachable_binaries(binaries, location.home, account)
            self._initdb(binaries, fresh, account)
            fresh.rename(location.cluster)  # onto nothing, or onto an empty directory
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            location.abandon_home()
            raise
        return location, binaries

    def _initdb(self, binaries: Path, cluster: Path, account: Account | None) -> None:
        command: list[str | Path] = [binaries / "initdb", "-D", cluster, "-U", SUPERUSER]
        command += ["-A", "trust", "-E", "UTF8", "--locale=C", "--no-instructions"]
        if self._settings.get("fsync") == "off":
            command.append("--no-sync")
        made = run(command, account)
        if made.returncode:
            raise EmbeddedError(f"initdb failed in {cluster.parent}:\n{made.stdout.strip()}")

    def _launch(self, location: Location, binaries: Path, account: Account | None) -> None:
        settings = {**self._settings, "unix_socket_directories": f'"{location.socket_dir}"'}
        command: list[str | Path] = [binaries / "postgres"]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        command += ["-D", location.cluster]  # last, where running_pid looks for it
        deadline = time.monotonic() + _START_TIMEOUT
        while True:
            before = self._spawn(command, account)
            if self._await_ready(location.cluster, deadline):
                return
            said = self._log_from(before)
            # After a SIGKILL the old server's backends need a moment to notice and leave.
            if "pre-existing shared memory block" in said and time.monotonic() < deadline:
                time.sleep(10 * _TICK)
                continue
            end = "\n".join(said.splitlines()[-_LOG_LINES:])
            raise EmbeddedError(f"PostgreSQL did not start; the end of {self.log_file}:\n{end}")

    def _spawn(self, command: list[str | Path], account: Account | None) -> int:
        """Start the server process; return where in the log its first line will be."""
        with contextlib.suppress(FileNotFoundError):
            if self.log_file.stat().st_size > _MAX_LOG:
                self.log_file.replace(self.log_file.with_suffix(".log.1"))
        log = os.open(self.log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            before = os.lseek(log, 0, os.SEEK_END)
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=environment(),
                umask=0o077,
                start_new_session=True,  # the terminal's Ctrl-C is for us, not for the server
                **(account.popen if account else {}),
            )
            return before
        finally:
            os.close(log)

    def _await_ready(self, cluster: Path, deadline: float) -> bool:
        """Wait until the server accepts connections; return whether it does."""
        process = self._process
        assert process is not None
        try:
            while process.poll() is None and time.monotonic() < deadline:
                if read_pid_file(cluster) == PidFile(process.pid, "ready"):
                    return True
                time.sleep(_TICK)
        except BaseException:  # Ctrl-C while we wait: leave nothing behind
            _quit(process)
            raise
        _quit(process)
        return False

    def _log_from(self, offset: int) -> str:
        with self.log_file.open("rb") as log:
            log.seek(offset)
            return log.read().decode("utf-8", "replace")

    def _halt(self, mode: StopMode) -> None:
        if (pid := self.pid) is not None:
            os.kill(pid, _SIGNALS[mode])
            self._await_end(pid)

    def _await_end(self, pid: int) -> None:
        """Wait until the server process is gone."""
        deadline = time.monotonic() + _STOP_TIMEOUT
        cluster = Location.read(self.data_dir).cluster
        while running_pid(cluster) == pid:
            if self._process is not None:
                self._process.poll()  # reaps it
            if time.monotonic() > deadline:
                raise EmbeddedError(f"PostgreSQL, process {pid}, did not stop; see {self.log_file}")
            time.sleep(_TICK)
        if self._process is not None:
            self._process.wait()
            self._process = None


def _quit(process: subprocess.Popen[bytes]) -> None:
    """End a server that is still starting. It may lose SIGQUIT at that moment, and has nothing to lose."""
    process.send_signal(signal.SIGQUIT)  # Popen sends none to a process that has ended
    try:
        process.wait(_QUIT_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
