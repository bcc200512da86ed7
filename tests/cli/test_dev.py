"""`jobq dev` as a process: its session, its end by any means, and what may be in its way."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import psycopg
import pytest
from tests.cli.conftest import Start
from tests.cli.support import Process, Said, eventually, fetch, free_port, gone

from jobq.embedded import DEFAULT_DATA_DIR, EmbeddedServer

Dev = Callable[..., Process]


@pytest.fixture
def folder(server_folder: Path) -> Iterator[Path]:
    """Where `jobq dev` runs; its PostgreSQL goes with the test."""
    yield server_folder
    if (server_folder / DEFAULT_DATA_DIR / "lock").exists():
        EmbeddedServer(server_folder / DEFAULT_DATA_DIR).remove()


@pytest.fixture
def dev(folder: Path, start: Start) -> Dev:  # in this order: processes end before the folder goes
    """Starts `jobq dev` on an address of its own."""

    def begin(*arguments: str, port: int | None = None, **environment: str) -> Process:
        address = f"127.0.0.1:{free_port() if port is None else port}"
        return start("dev", "--addr", address, *arguments, cwd=folder, environment=environment)

    return begin


def url(process: Process) -> str:
    """The API's address, once all is ready."""
    process.line("jobq is ready")
    return re.search(r"http://\S+", process.line(r"^ +API")).group()  # type: ignore[union-attr]


def database(process: Process) -> str:
    """The database URL that it printed."""
    return re.search(r"psql '(.*)'", process.line("psql")).group(1)  # type: ignore[union-attr]


def test_a_session_survives_ctrl_c_and_a_kill(dev: Dev, folder: Path) -> None:
    first = dev()
    base = url(first)
    assert first.lines[0].startswith("jobq is ready")
    body = {"kind": "email.welcome", "payload": {"to": "a@b.com"}, "idempotencyKey": "welcome-42"}
    status, job = fetch(f"{base}/api/jobs", body)
    assert status == 202
    status, again = fetch(f"{base}/api/jobs", body)
    assert (status, again["id"]) == (200, job["id"])
    eventually(lambda: fetch(f"{base}/api/jobs/{job['id']}")[1]["status"] == "DONE")
    first.line("worker.* mail .*to=a@b.com")
    metrics = fetch(f"{base}/metrics")[1]
    assert 'jobq_jobs{status="queued"}' in metrics
    assert 'jobq_processed_total{kind="email.welcome",outcome="success"} 1.0' in metrics
    with psycopg.connect(database(first)) as conn:
        assert conn.execute("SELECT count(*) FROM jobq.jobs").fetchone() == (1,)

    napping = fetch(f"{base}/api/jobs", {"kind": "sleep", "payload": {"duration": "1s"}})[1]
    eventually(lambda: fetch(f"{base}/api/jobs/{napping['id']}")[1]["status"] == "RUNNING")
    family, server = first.family(), _server(folder)
    first.ctrl_c()
    assert first.wait() == 0
    assert gone([*family, server]) == []
    order = [
        first.output.index(f"{event} ") for event in ("worker stopped", "api stops", "api stopped")
    ]
    assert order == sorted(order)

    second = dev()
    base = url(second)
    assert fetch(f"{base}/api/jobs/{napping['id']}")[1]["status"] == "DONE"
    ours = [process for process in second.family() if process.name() != "postgres"]
    second.signal(signal.SIGKILL)
    assert gone(ours) == []

    third = dev(port=int(base.rpartition(":")[2]))
    assert fetch(f"{url(third)}/api/jobs/{job['id']}")[1]["status"] == "DONE"
    third.signal(signal.SIGTERM)
    assert third.wait() == 0
    assert EmbeddedServer(folder / DEFAULT_DATA_DIR).pid is None


def test_a_second_ctrl_c_ends_all_at_once(dev: Dev, folder: Path) -> None:
    process = dev()
    base = url(process)
    fetch(f"{base}/api/jobs", {"kind": "sleep", "payload": {"duration": "60s"}})
    eventually(lambda: fetch(f"{base}/api/jobs/1")[1]["status"] == "RUNNING")
    everything = [*process.family(), _server(folder)]
    process.ctrl_c()
    process.line("worker stops")
    process.ctrl_c()
    assert process.wait() == 128 + signal.SIGINT
    assert gone(everything) == []


def test_a_worker_that_is_killed_by_its_job_comes_back(dev: Dev) -> None:
    process = dev()
    base = url(process)
    crash = fetch(f"{base}/api/jobs", {"kind": "crash", "payload": {}})[1]
    process.line("process ended; it is started again .*SIGKILL")
    fetch(f"{base}/api/jobs/{crash['id']}/cancel", {})
    counted = fetch(f"{base}/api/jobs", {"kind": "word_count", "payload": {"text": "a b c"}})[1]
    eventually(lambda: fetch(f"{base}/api/jobs/{counted['id']}")[1]["status"] == "DONE")
    assert 'jobq_processed_total{kind="word_count"' in fetch(f"{base}/metrics")[1]


def test_postgresql_that_is_killed_comes_back(dev: Dev, folder: Path) -> None:
    process = dev()
    base = url(process)
    _server(folder).kill()
    process.line("PostgreSQL ended; it is started again")
    counted = eventually(
        lambda: (found := fetch(f"{base}/api/jobs", {"kind": "word_count", "payload": {"text": "a"}}))[0] == 202
        and found[1]
    )  # fmt: skip
    eventually(lambda: fetch(f"{base}/api/jobs/{counted['id']}")[1].get("status") == "DONE")
    process.ctrl_c()
    assert process.wait() == 0


def test_the_demo_session_goes_as_promised(dev: Dev, start: Start) -> None:
    base = url(dev())
    session = start("demo", "--url", base)
    assert session.wait() == 0, session.output
    assert session.lines[-1] == "All as promised."


def test_a_database_that_is_named_is_used(dev: Dev, empty_database_url: str, folder: Path) -> None:
    process = dev(DATABASE_URL=empty_database_url)
    assert database(process) == empty_database_url
    assert not (folder / ".jobq").exists()
    process.ctrl_c()
    assert process.wait() == 0


def test_no_password_is_shown(dev: Dev, empty_database_url: str) -> None:
    process = dev(DATABASE_URL=empty_database_url.replace("jobq@", "jobq:hunter2@"))
    url(process)
    process.ctrl_c()
    assert process.wait() == 0
    assert "hunter2" not in process.output


def test_existing_folders_keep_their_modes(dev: Dev, folder: Path) -> None:
    deep = folder / "a" / "b"
    deep.mkdir(parents=True)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [deep, *deep.parents]}
    process = dev(LC_ALL="C", LANG="C")
    url(process)
    process.ctrl_c()
    assert process.wait() == 0
    assert modes == {path: stat.S_IMODE(path.stat().st_mode) for path in modes}


def test_an_address_that_is_taken_is_a_sentence(dev: Dev, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = dev(port=listener.getsockname()[1])
        refused = _refused(process)
    assert "cannot listen on 127.0.0.1:" in refused.out
    assert not (folder / ".jobq").exists()


def test_another_jobq_dev_in_the_same_folder_is_a_sentence(dev: Dev) -> None:
    first = dev()
    url(first)
    assert f"is in use by process {first.pid}" in _refused(dev()).out


def test_data_of_another_major_version_is_a_sentence(dev: Dev, folder: Path) -> None:
    cluster = folder / DEFAULT_DATA_DIR / "cluster"
    cluster.mkdir(parents=True)
    (cluster / "PG_VERSION").write_text("9\n")
    if os.geteuid() == 0:
        shutil.chown(cluster, pwd.getpwnam("nobody").pw_uid)
    assert "was made by PostgreSQL 9, but this is PostgreSQL" in _refused(dev()).out


def test_a_broken_data_directory_is_a_sentence(dev: Dev, folder: Path) -> None:
    (folder / DEFAULT_DATA_DIR).mkdir(parents=True)
    (folder / DEFAULT_DATA_DIR / "notes.txt").write_text("not a database")
    assert "holds no embedded PostgreSQL" in _refused(dev()).out


def test_a_database_that_is_away_says_where_it_is_named(dev: Dev) -> None:
    said = _refused(dev(JOBQ_DATABASE_URL="postgresql://jobq@127.0.0.1:1/db?connect_timeout=2")).out
    assert "PostgreSQL cannot be reached" in said
    assert "unset both for an embedded one" in said


def test_an_app_of_ones_own_is_not_greeted_with_a_kind_of_the_demo(
    dev: Dev, folder: Path, empty_database_url: str
) -> None:
    (folder / "own.py").write_text("from jobq import JobQ\napp = JobQ()\n")
    process = dev("--app", "own:app", JOBQ_DATABASE_URL=empty_database_url)
    process.line(r"curl -s http\S+/api/kinds")
    assert "email.welcome" not in process.output


def test_a_part_that_does_not_come_up_is_named_with_its_last_lines(dev: Dev, folder: Path) -> None:
    (folder / "late.py").write_text(
        "import os\nfrom jobq import JobQ\napp = JobQ()\n"
        "if 'JOBQ_SUPERVISOR_FD' in os.environ and 'JOBQ_WORKER_HTTP_FD' in os.environ:\n"
        "    raise RuntimeError('no disk')\n"
    )
    process = dev("--app", "late:app")
    assert process.wait() == 1
    assert "worker ended with exit code 1 before it was ready" in process.output
    assert "importing late failed: RuntimeError: no disk" in process.output
    assert "Traceback" not in process.output


def _refused(process: Process) -> Said:
    """What a `jobq dev` says that does not start: one line."""
    code = process.wait()
    assert code == 1, process.output
    assert len(process.lines) == 1, process.output
    return Said(code, process.output, "")


def _server(folder: Path) -> psutil.Process:
    return psutil.Process(EmbeddedServer(folder / DEFAULT_DATA_DIR).pid)
