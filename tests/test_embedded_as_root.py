"""As root: the server runs as somebody else, and nothing that was there before is opened to them."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from jobq.embedded import EmbeddedError, EmbeddedServer
from jobq.embedded.account import choose_account
from jobq.embedded.binaries import reachable_binaries, wheel_binaries
from jobq.embedded.location import HOME_PREFIX, Location

UNSAFE_BUT_FAST = {"fsync": "off"}

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def rights(path: Path) -> dict[str, tuple[int, int, int]]:
    """Return mode, owner and group of a path and of everything above it."""
    return {
        str(above): (above.stat().st_mode, above.stat().st_uid, above.stat().st_gid)
        for above in (path, *path.parents)
    }


@pytest.fixture
def closed_folder() -> Iterator[Path]:
    """A folder that only its owner may enter, like a home."""
    folder = Path(tempfile.mkdtemp(prefix="jobq-closed-"))
    yield folder
    shutil.rmtree(folder)


def test_no_existing_directory_changes_mode_or_owner(
    server_folder: Path, closed_folder: Path
) -> None:
    for folder in (server_folder, closed_folder):
        before = rights(folder) | rights(wheel_binaries())
        server = EmbeddedServer(folder / "new" / "data", settings=UNSAFE_BUT_FAST)
        with server:
            assert server.pid
        assert rights(folder) | rights(wheel_binaries()) == before
        server.remove()
        assert rights(folder) | rights(wheel_binaries()) == before


@as_root
def test_the_server_runs_as_nobody(own_server: EmbeddedServer) -> None:
    assert os.stat(f"/proc/{own_server.pid}").st_uid == pwd.getpwnam("nobody").pw_uid  # noqa: PTH116


@as_root
def test_the_server_runs_as_the_owner_of_its_files(server_folder: Path) -> None:
    server = EmbeddedServer(server_folder / "data", settings=UNSAFE_BUT_FAST)
    with server:
        location = Location.read(server.data_dir)
    owner = next(
        each for each in pwd.getpwall() if each.pw_uid not in {0, location.cluster.stat().st_uid}
    )
    for path in (location.cluster, *location.cluster.rglob("*")):
        os.chown(path, owner.pw_uid, owner.pw_gid, follow_symlinks=False)
    with server:
        assert os.stat(f"/proc/{server.pid}").st_uid == owner.pw_uid  # noqa: PTH116
    server.remove()


@as_root
def test_in_a_closed_folder_the_data_goes_elsewhere_and_is_found_again(closed_folder: Path) -> None:
    server = EmbeddedServer(closed_folder / "data", settings=UNSAFE_BUT_FAST)
    with server, psycopg.connect(server.url()) as connection:
        connection.execute("CREATE TABLE kept ()")
    home = Location.read(server.data_dir).home
    assert home.name.startswith(HOME_PREFIX)
    assert not home.is_relative_to(closed_folder)
    with (
        EmbeddedServer(server.data_dir, settings=UNSAFE_BUT_FAST) as again,
        psycopg.connect(again.url()) as connection,
    ):
        connection.execute("SELECT FROM kept")
    server.remove()
    assert not home.exists()
    assert not server.data_dir.exists()


@as_root
def test_data_that_was_elsewhere_and_is_gone_begins_anew(closed_folder: Path) -> None:
    server = EmbeddedServer(closed_folder / "data", settings=UNSAFE_BUT_FAST)
    with server:
        pass
    shutil.rmtree(Location.read(server.data_dir).home)
    with server:
        assert server.pid
    server.remove()


@as_root
def test_a_home_elsewhere_that_is_not_ours_is_refused(
    closed_folder: Path, server_folder: Path
) -> None:
    server = EmbeddedServer(closed_folder / "data", settings=UNSAFE_BUT_FAST)
    with server:
        pass
    home = Location.read(server.data_dir).home
    os.chown(home, pwd.getpwnam("nobody").pw_uid, -1)
    for act in (server.start, server.remove):
        with pytest.raises(EmbeddedError, match="belongs to another user"):
            act()
    os.chown(home, 0, -1)
    server.remove()


@as_root
def test_binaries_out_of_reach_are_copied_once(
    closed_folder: Path, server_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = wheel_binaries().parents[1]
    for source in (package, *package.parent.glob(f"{package.name}.libs")):
        shutil.copytree(source, closed_folder / source.name)
    out_of_reach = closed_folder / package.name / "pginstall" / "bin"
    monkeypatch.setattr("jobq.embedded.binaries.wheel_binaries", lambda: out_of_reach)
    server = EmbeddedServer(server_folder / "data", settings=UNSAFE_BUT_FAST)
    copies = []
    for _ in range(2):
        with server:
            assert server.pid
        copies.append(
            [path.stat().st_ino for path in Location.read(server.data_dir).home.glob("binaries-*")]
        )
    assert len(copies[0]) == 1
    assert copies[0] == copies[1]
    server.remove()


@as_root
def test_other_binaries_out_of_reach_are_refused(closed_folder: Path, server_folder: Path) -> None:
    shutil.copytree(wheel_binaries(), closed_folder / "bin")
    server = EmbeddedServer(server_folder / "data", bin_dir=closed_folder / "bin")
    with pytest.raises(EmbeddedError, match="as whom PostgreSQL runs, cannot run"):
        server.start()
    assert [path.name for path in server.data_dir.iterdir()] == ["lock"]
    server.remove()


@as_root
def test_an_ordinary_user_has_a_server_too(server_folder: Path) -> None:
    nobody = choose_account(server_folder / "none")
    assert nobody is not None
    folder = server_folder / "home"
    folder.mkdir()
    os.chown(folder, nobody.uid, nobody.gid)
    binaries = reachable_binaries(wheel_binaries(), server_folder, nobody)
    # The interpreter and its modules may be out of reach for the user: load them before.
    program = """
        import os, sys, psycopg
        from pathlib import Path
        from jobq.embedded import EmbeddedServer
        uid, gid, folder, binaries = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
        os.setgroups([]); os.setgid(gid); os.setuid(uid)
        server = EmbeddedServer(Path(folder) / "data", bin_dir=Path(binaries))
        with server:
            with psycopg.connect(server.url()) as connection:
                print(connection.execute("SELECT 42").fetchone()[0])
            server.restart()
        server.remove()
        print(os.listdir(folder))
    """
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            textwrap.dedent(program),
            str(nobody.uid),
            str(nobody.gid),
            str(folder),
            str(binaries),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    assert done.stderr == ""
    assert done.stdout == "42\n[]\n"
