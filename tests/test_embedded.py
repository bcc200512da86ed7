"""The embedded server's life: start, stop, restart, crash, adoption, refusal."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import scalar_row
from tests.store.support import until

from jobq.embedded import EmbeddedError, EmbeddedServer
from jobq.embedded.account import choose_account, environment
from jobq.embedded.location import MAX_SOCKET_PATH, SOCKET, Location

UNSAFE_BUT_FAST = {"fsync": "off"}


def ask(server: EmbeddedServer, query: str) -> object:
    with psycopg.connect(server.url(), row_factory=scalar_row, autocommit=True) as connection:
        return connection.execute(query).fetchone()


@pytest.fixture
def data_dir(server_folder: Path) -> Iterator[Path]:
    path = server_folder / "data"
    yield path
    EmbeddedServer(path).remove()


@pytest.fixture
def stopped(data_dir: Path) -> EmbeddedServer:
    """A server that has run before."""
    server = EmbeddedServer(data_dir, settings=UNSAFE_BUT_FAST)
    with server:
        pass
    return server


def run_holder(data_dir: Path, *, then: str) -> subprocess.Popen[str]:
    """Start a process that starts the server, does `then`, and says so on its output."""
    program = f"""
        import os, signal, sys
        from pathlib import Path
        from jobq.embedded import EmbeddedServer
        server = EmbeddedServer(Path(sys.argv[1]), settings={UNSAFE_BUT_FAST})
        server.start()
        {then}
        print("ready", flush=True)
        sys.stdin.read()
    """
    holder = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), str(data_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    return holder


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


def test_a_started_server_answers_and_a_stopped_one_does_not(data_dir: Path) -> None:
    with EmbeddedServer(data_dir, settings=UNSAFE_BUT_FAST) as server:
        assert ask(server, "SELECT 1") == 1
        running = server.pid
    assert running is not None
    assert server.pid is None
    with pytest.raises(psycopg.OperationalError):
        ask(server, "SELECT 1")


def test_text_is_utf8_sorted_by_code_point_and_times_are_utc(own_server: EmbeddedServer) -> None:
    assert ask(own_server, "SHOW server_encoding") == "UTF8"
    assert ask(own_server, "SELECT 'Z' < 'a' AND 'z' < 'ä'") is True
    assert ask(own_server, "SHOW timezone") == "UTC"


def test_nothing_is_reachable_from_the_network(own_server: EmbeddedServer) -> None:
    assert ask(own_server, "SHOW listen_addresses") == ""
    assert ask(own_server, "SELECT inet_server_addr() IS NULL") is True


def test_the_socket_folder_is_for_the_server_alone(own_server: EmbeddedServer) -> None:
    socket_dir = Location.read(own_server.data_dir).socket_dir
    assert socket_dir is not None
    assert socket_dir.stat().st_mode & 0o777 == 0o700


def test_a_second_start_keeps_the_data_and_the_address(stopped: EmbeddedServer) -> None:
    with stopped:
        first = stopped.url()
        with psycopg.connect(stopped.url()) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    with EmbeddedServer(stopped.data_dir, settings=UNSAFE_BUT_FAST) as again:
        assert again.url() == first
        assert ask(again, "SELECT answer FROM kept") == 42


def test_settings_reach_the_server(data_dir: Path) -> None:
    settings = {**UNSAFE_BUT_FAST, "max_connections": "17"}
    with EmbeddedServer(data_dir, settings=settings) as server:
        assert ask(server, "SHOW max_connections") == "17"


def test_the_environment_of_a_postgresql_client_does_no_harm(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"PGPORT": "1", "PGDATA": "/none", "PGHOST": "none", "LANG": "xx"}.items():
        monkeypatch.setenv(name, value)
        assert environment().get(name) is None
    with EmbeddedServer(data_dir, settings=UNSAFE_BUT_FAST) as server:
        assert ask(server, "SELECT 1") == 1


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_it_starts_under_any_umask(data_dir: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with EmbeddedServer(data_dir, settings=UNSAFE_BUT_FAST) as server:
            assert ask(server, "SELECT 1") == 1
    finally:
        os.umask(before)


def test_it_starts_in_a_deep_folder_with_spaces(server_folder: Path) -> None:
    deep = server_folder.joinpath(*["a rather long name", "noch ein Ördner"] * 8)
    assert len(str(deep)) > 2 * MAX_SOCKET_PATH
    with EmbeddedServer(deep, settings=UNSAFE_BUT_FAST) as server:
        assert ask(server, "SELECT 1") == 1
        socket_dir = Location.read(server.data_dir).socket_dir
        assert socket_dir is not None
        assert len(str(socket_dir / SOCKET)) <= MAX_SOCKET_PATH


def test_a_long_temporary_folder_is_passed_over(
    data_dir: Path, server_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = server_folder / ("t" * MAX_SOCKET_PATH)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with EmbeddedServer(data_dir, settings=UNSAFE_BUT_FAST) as server:
        assert ask(server, "SELECT 1") == 1
    assert not list(long.iterdir())


def test_restart_breaks_connections_and_keeps_address_and_data(own_server: EmbeddedServer) -> None:
    before = own_server.url(), own_server.pid
    with psycopg.connect(own_server.url(), autocommit=True) as connection:
        connection.execute("CREATE TABLE kept ()")
        own_server.restart()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert own_server.url() == before[0]
    assert own_server.pid != before[1]
    assert ask(own_server, "SELECT to_regclass('kept') IS NOT NULL") is True


def test_a_killed_server_recovers_what_was_committed(own_server: EmbeddedServer) -> None:
    with psycopg.connect(own_server.url()) as connection:
        connection.execute("CREATE TABLE kept ()")
    address = own_server.url()
    own_server.kill()
    assert own_server.pid is None
    own_server.start()
    assert own_server.url() == address
    assert ask(own_server, "SELECT to_regclass('kept') IS NOT NULL") is True


def test_start_on_a_running_server_changes_nothing(own_server: EmbeddedServer) -> None:
    before = own_server.pid
    own_server.start()
    assert own_server.pid == before


def test_stop_is_harmless_where_nothing_runs(stopped: EmbeddedServer, tmp_path: Path) -> None:
    stopped.stop()
    EmbeddedServer(tmp_path / "never").stop()
    assert not (tmp_path / "never").exists()


def test_ctrl_c_in_the_terminal_is_not_for_the_server(own_server: EmbeddedServer) -> None:
    assert own_server.pid is not None
    assert os.getsid(own_server.pid) == own_server.pid != os.getsid(0)


def test_a_server_whose_starter_was_killed_is_adopted(data_dir: Path) -> None:
    holder = run_holder(data_dir, then="")
    server = EmbeddedServer(data_dir)
    orphan = server.pid
    end(holder)
    server.start()
    assert server.pid == orphan
    assert ask(server, "SELECT 1") == 1
    server.stop()
    assert server.pid is None


def test_a_forked_child_of_the_killed_starter_does_not_keep_the_directory(
    data_dir: Path, tmp_path: Path
) -> None:
    # The child says so itself: by then it has let go of what it inherited.
    said = tmp_path / "child"
    child_does = f"(Path({str(said)!r}).write_text(str(os.getpid())), signal.pause())"
    holder = run_holder(data_dir, then=f"os.fork() or {child_does}")
    until(lambda: said.exists() and said.read_text(), "the child has begun")
    end(holder)
    child = int(said.read_text())
    os.kill(child, 0)
    try:
        with EmbeddedServer(data_dir) as server:
            assert ask(server, "SELECT 1") == 1
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_directory_in_use_is_refused_but_its_address_is_told(data_dir: Path) -> None:
    holder = run_holder(data_dir, then="")
    try:
        server = EmbeddedServer(data_dir)
        for act in (server.start, server.stop, server.restart, server.remove):
            with pytest.raises(EmbeddedError, match=f"in use by process {holder.pid}"):
                act()
        assert ask(server, "SELECT 1") == 1
    finally:
        end(holder)


def test_an_old_server_that_does_not_answer_is_named(
    own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobq.embedded.server._ANSWER_TIMEOUT", 0.1)
    location = Location.read(own_server.data_dir)
    assert location.socket_dir is not None
    (location.socket_dir / SOCKET).unlink()
    with pytest.raises(EmbeddedError, match=f"process {own_server.pid}, still has"):
        own_server.start()


def without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make it a system that has only `ps`, such as macOS."""
    if shutil.which("ps") is None:
        pytest.skip("ps is missing")
    monkeypatch.setattr("jobq.embedded.cluster._PROC", Path("/no/proc"))


@pytest.mark.parametrize("prepare", [lambda _: None, without_proc], ids=["proc", "ps"])
def test_a_running_server_is_recognised_in_any_folder(
    server_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[pytest.MonkeyPatch], None],
) -> None:
    prepare(monkeypatch)
    server = EmbeddedServer(server_folder / "a -D b" / "c", settings=UNSAFE_BUT_FAST)
    with server:
        assert server.pid is not None
        server.kill()
        server.start()
        running = server.pid
        server.start()
        assert server.pid == running is not None


def put_into_pid_files(server: EmbeddedServer, pid: int) -> None:
    """Let what a killed server left name another process, as if its id had come round."""
    location = Location.read(server.data_dir)
    assert location.socket_dir is not None
    for path in (location.cluster / "postmaster.pid", location.socket_dir / f"{SOCKET}.lock"):
        _, rest = path.read_text().split("\n", 1)
        path.write_text(f"{pid}\n{rest}")


def test_another_server_with_the_old_ones_id_is_not_taken_for_it(
    stopped: EmbeddedServer, own_server: EmbeddedServer
) -> None:
    stopped.start()
    stopped.kill()
    assert own_server.pid is not None
    put_into_pid_files(stopped, own_server.pid)
    with stopped:
        assert stopped.pid != own_server.pid
        assert ask(stopped, "SHOW data_directory") != ask(own_server, "SHOW data_directory")


@pytest.mark.parametrize("prepare", [lambda _: None, without_proc], ids=["proc", "ps"])
def test_another_process_with_the_old_servers_id_is_not_taken_for_it(
    stopped: EmbeddedServer,
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[pytest.MonkeyPatch], None],
) -> None:
    prepare(monkeypatch)
    account = choose_account(Location.read(stopped.data_dir).cluster)
    other = subprocess.Popen(["sleep", "600"], **(account.popen if account else {}))
    try:
        stopped.start()
        stopped.kill()
        put_into_pid_files(stopped, other.pid)
        assert stopped.pid is None
        stopped.start()
        assert ask(stopped, "SELECT 1") == 1
        assert other.poll() is None
        stopped.stop()
    finally:
        other.kill()
        other.wait()


def test_the_address_of_a_server_that_never_ran_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError, match="no PostgreSQL server was ever started"):
        EmbeddedServer(tmp_path / "never").url()


def test_remove_stops_the_server_and_leaves_what_is_not_its_own(data_dir: Path) -> None:
    server = EmbeddedServer(data_dir, settings=UNSAFE_BUT_FAST)
    server.start()
    pid = server.pid
    assert pid is not None
    socket_dir = Location.read(data_dir).socket_dir
    assert socket_dir is not None
    (data_dir / "notes.txt").write_text("mine")
    server.remove()
    assert [path.name for path in data_dir.iterdir()] == ["notes.txt"]
    assert not socket_dir.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    (data_dir / "notes.txt").unlink()


def test_the_starters_death_during_initdb_leaves_nothing_half_made(data_dir: Path) -> None:
    data_dir.mkdir()
    (data_dir / "lock").touch()
    (data_dir / "cluster.new-killed").mkdir()
    (data_dir / "cluster.new-killed" / "PG_VERSION").write_text("18")
    with EmbeddedServer(data_dir, settings=UNSAFE_BUT_FAST) as server:
        assert ask(server, "SELECT 1") == 1
    assert not list(Location.read(data_dir).home.glob("cluster.new-*"))


def test_ctrl_c_during_start_leaves_no_server(
    stopped: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep, presses = time.sleep, iter([KeyboardInterrupt])

    def interrupt(seconds: float) -> None:
        for press in presses:  # once
            raise press
        sleep(seconds)

    with monkeypatch.context() as patch:
        patch.setattr("jobq.embedded.server.time.sleep", interrupt)
        with pytest.raises(KeyboardInterrupt):
            stopped.start()
    assert stopped.pid is None
    with stopped:
        assert ask(stopped, "SELECT 1") == 1
