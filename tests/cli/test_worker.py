"""`jobq worker` as a process: signals, exit codes, exits that handlers raise, probes, several processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from tests.cli.conftest import Start
from tests.cli.support import PATIENCE, Process, eventually, fetch, free_port, gone

from jobq import JobQ, JobStatus

JOBS = """
import asyncio, os, signal, sys, time
from jobq import JobQ

app = JobQ()

@app.job("nap")
async def nap(seconds: float = 0.0) -> int:
    print("nap begins", flush=True)
    await asyncio.sleep(seconds)
    return os.getpid()

@app.job("block")
async def block(seconds: float) -> None:
    print("block begins", flush=True)
    time.sleep(seconds)

@app.job("stubborn")
def stubborn(seconds: float) -> None:
    print("stubborn begins", flush=True)
    time.sleep(seconds)

@app.job("deaf")
async def deaf(seconds: float) -> None:
    print("deaf begins", flush=True)
    while True:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            continue

@app.job("die")
def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

@app.job("stray")
async def stray(interrupt: bool = False) -> None:
    async def leave() -> None:
        raise KeyboardInterrupt if interrupt else SystemExit(3)
    stray.task = asyncio.create_task(leave())
    asyncio.get_running_loop().call_soon(sys.exit, 3)
    await asyncio.sleep(0.05)

@app.job("leave")
async def leave() -> None:
    async def exit() -> None:
        sys.exit(3)
    await asyncio.create_task(exit())
"""


@pytest.fixture
def q(database_url: str) -> Iterator[JobQ]:
    """A client on the test's database."""
    with JobQ(database_url) as client:
        yield client


@pytest.fixture
def begin(start: Start, database_url: str, tmp_path: Path) -> Start:
    """Starts `jobq worker` with the handlers above, and waits until it works."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "jobs.py").write_text(JOBS)

    def worker(*arguments: str, **settings: str) -> Process:
        environment = {"JOBQ_DATABASE_URL": database_url, **settings}
        process = start("worker", "--app", "shop.jobs:app", *arguments, environment=environment)
        process.line("all worker processes run" if "--processes" in arguments else "worker started")
        return process

    return worker


def test_the_first_signal_lets_jobs_finish_and_ends_with_0(begin: Start, q: JobQ) -> None:
    worker = begin()
    job = q.enqueue("nap", {"seconds": 0.5})
    worker.line("nap begins")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert q.get(job.id).status is JobStatus.DONE


def test_ctrl_c_does_the_same(begin: Start) -> None:
    worker = begin()
    worker.ctrl_c()
    assert worker.wait() == 0
    assert "Traceback" not in worker.output


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once_even_where_a_handler_blocks_the_loop(
    begin: Start, q: JobQ, second: signal.Signals
) -> None:
    worker = begin()
    q.enqueue("block", {"seconds": 60})
    worker.line("block begins")
    worker.signal(signal.SIGTERM)
    eventually(lambda: _caught(worker.pid))

    def insist() -> bool:
        # Two that come before the interpreter looks are one to it.
        worker.signal(second)
        return worker.popen.poll() is not None

    eventually(insist)
    assert worker.wait() == 128 + second


@pytest.mark.case("B47")
@pytest.mark.parametrize("kind", ["stubborn", "deaf"])
def test_a_handler_that_does_not_stop_cannot_hold_the_process(
    begin: Start, q: JobQ, kind: str
) -> None:
    worker = begin(JOBQ_SHUTDOWN_TIMEOUT="500ms")
    job = q.enqueue(kind, {"seconds": 600})
    worker.line(f"{kind} begins")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert q.get(job.id).status is JobStatus.QUEUED
    assert q.get(job.id).attempts == 0


@pytest.mark.case("B47")
def test_a_handler_that_blocks_the_loop_cannot_hold_the_process(begin: Start, q: JobQ) -> None:
    worker = begin(JOBQ_SHUTDOWN_TIMEOUT="0s")
    q.enqueue("block", {"seconds": 600})
    worker.line("block begins")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 1
    worker.line("the shutdown hangs beyond its budget")


@pytest.mark.case("B50")
@pytest.mark.parametrize(
    "payload", [{}, {"interrupt": True}], ids=["SystemExit", "KeyboardInterrupt"]
)
def test_an_exit_raised_in_a_handlers_own_task_does_not_end_the_worker(
    begin: Start, q: JobQ, payload: dict[str, bool]
) -> None:
    worker = begin()
    stray = q.enqueue("stray", payload)
    worker.line("a handler's own task raised an exit")
    leave = q.enqueue("leave", max_attempts=1)
    nap = q.enqueue("nap")
    eventually(lambda: q.get(nap.id).status is JobStatus.DONE)
    eventually(lambda: q.get(stray.id).status is JobStatus.DONE)
    eventually(lambda: q.get(leave.id).status is JobStatus.DEAD)
    assert "SystemExit" in (q.get(leave.id).last_error or "")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_worker_answers_probes_and_shows_its_metrics(begin: Start, q: JobQ) -> None:
    base = f"http://127.0.0.1:{free_port()}"
    worker = begin("--http-addr", base.removeprefix("http://"))
    job = q.enqueue("nap")
    eventually(lambda: q.get(job.id).status is JobStatus.DONE)
    assert fetch(f"{base}/healthz") == (200, {"status": "ok"})
    assert fetch(f"{base}/readyz") == (200, {"status": "ok"})
    status, text = fetch(f"{base}/metrics")
    assert status == 200
    assert 'jobq_processed_total{kind="nap",outcome="success"} 1.0' in text
    assert "jobq_jobs{" not in text  # read from the database: the API's to tell
    assert fetch(f"{base}/nothing")[0] == 404
    assert fetch(f"{base}/healthz", {})[0] == 405
    q.enqueue("nap", {"seconds": 60})
    worker.line("nap begins", 2)
    worker.signal(signal.SIGTERM)
    worker.line("worker stops")
    assert fetch(f"{base}/readyz") == (
        503, {"status": "draining", "reason": "the worker is shutting down"},
    )  # fmt: skip
    assert fetch(f"{base}/healthz")[0] == 200


def test_processes_are_restarted_when_they_die(begin: Start, q: JobQ) -> None:
    supervisor = begin("--processes", "2", "--concurrency", "3")
    lines = [json.loads(line) for line in supervisor.lines if "worker started" in line]
    assert [line["slots"] for line in lines] == [3, 3]
    victim, other = (int(line["worker"].split(":")[1]) for line in lines)
    os.kill(victim, signal.SIGKILL)
    supervisor.line("was killed by SIGKILL")
    supervisor.line("worker started", 3)
    assert psutil.pid_exists(other)
    job = q.enqueue("nap", {"seconds": 0.3})
    supervisor.line("nap begins")
    supervisor.ctrl_c()
    assert supervisor.wait() == 0
    assert q.get(job.id).status is JobStatus.DONE


@pytest.mark.case("B29")
def test_a_job_that_kills_its_process_ends_dead_and_the_others_get_done(
    begin: Start, q: JobQ
) -> None:
    supervisor = begin("--processes", "2", JOBQ_LEASE_DURATION="1s", JOBQ_REAP_INTERVAL="200ms")
    crash = q.enqueue("die", max_attempts=2)
    supervisor.line("was killed by SIGKILL", 2)
    naps = [q.enqueue("nap").id for _ in range(20)]
    eventually(lambda: q.get(crash.id).status is JobStatus.DEAD)
    assert "lease" in (q.get(crash.id).last_error or "")
    assert q.get(crash.id).attempts == 2
    eventually(lambda: all(q.get(nap).status is JobStatus.DONE for nap in naps))


def test_every_process_answers_probes_on_a_port_of_its_own(begin: Start) -> None:
    port = _two_free_ports()
    begin("--processes", "2", "--http-addr", f"127.0.0.1:{port}")
    assert fetch(f"http://127.0.0.1:{port}/healthz")[0] == 200
    assert fetch(f"http://127.0.0.1:{port + 1}/healthz")[0] == 200


def test_processes_end_with_a_supervisor_that_was_killed(begin: Start, q: JobQ) -> None:
    supervisor = begin("--processes", "2")
    job = q.enqueue("nap", {"seconds": 0.5})
    supervisor.line("nap begins")
    family = supervisor.family()
    assert len(family) == 2
    supervisor.signal(signal.SIGKILL)
    assert gone(family) == []
    assert q.get(job.id).status is JobStatus.DONE  # they stop as if by a signal


def test_a_second_signal_ends_a_supervisor_and_its_processes_at_once(begin: Start, q: JobQ) -> None:
    supervisor = begin("--processes", "2")
    q.enqueue("nap", {"seconds": 60})
    supervisor.line("nap begins")
    family = supervisor.family()
    supervisor.ctrl_c()
    supervisor.line("worker stops", 2)
    supervisor.ctrl_c()
    assert supervisor.wait() == 128 + signal.SIGINT
    assert gone(family) == []


def test_a_signal_while_processes_are_being_started_ends_with_0(
    start: Start, begin: Start, database_url: str
) -> None:
    """Their interpreters cannot hear it yet."""
    begin().end()  # the handlers are there now
    for children in (1, 2):
        environment = {"JOBQ_DATABASE_URL": database_url}
        supervisor = start(
            "worker", "--app", "shop.jobs:app", "--processes", "2", environment=environment
        )
        eventually(lambda s=supervisor, n=children: len(s.family()) >= n)  # type: ignore[misc]
        supervisor.signal(signal.SIGTERM)
        assert supervisor.wait() == 0, supervisor.output


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_signal_while_a_worker_is_imported_ends_with_0(
    start: Start, database_url: str, processes: str
) -> None:
    environment = {"JOBQ_DATABASE_URL": database_url}
    worker = start("worker", "--processes", processes, environment=environment)
    process = psutil.Process(worker.pid)
    eventually(lambda: any("psycopg_binary" in m.path for m in process.memory_maps()))
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.output


def test_a_signal_between_the_end_of_a_process_and_its_next_start_ends_with_0(
    begin: Start,
) -> None:
    supervisor = begin("--processes", "2")
    supervisor.family()[0].kill()
    supervisor.line("it is started again")
    supervisor.signal(signal.SIGTERM)
    assert supervisor.wait() == 0, supervisor.output


def test_what_is_wrong_with_all_processes_is_said_once(
    start: Start, database_url: str, tmp_path: Path
) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    environment = {"JOBQ_DATABASE_URL": database_url, "JOBQ_WORKER_HTTP_ADDR": "203.0.113.1:9000"}
    process = start("worker", "--app", "jobs:app", "--processes", "2", environment=environment)
    assert process.wait() == 1
    assert len(re.findall("cannot listen on 203.0.113.1:9000", process.output)) == 1
    assert "worker 1 ended with exit code 1 before it was ready" in process.output
    assert "Traceback" not in process.output


def _caught(pid: int) -> bool | None:
    """Whether a signal that was sent is no longer pending."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return True
    pending = re.findall(r"(?:Shd|Sig)Pnd:\s*([0-9a-f]+)", status.read_text())
    return all(int(mask, 16) == 0 for mask in pending) or None


def _two_free_ports() -> int:
    """The first of two neighbouring free ports."""

    def look() -> int | None:
        port = free_port()
        in_use = {c.laddr.port for c in psutil.net_connections("tcp") if c.laddr}
        return port if port < 65535 and port + 1 not in in_use else None

    return eventually(look)


def test_a_worker_whose_output_is_closed_works_and_gives_its_numbers_to_nothing(
    database_url: str, tmp_path: Path, q: JobQ
) -> None:
    """A connection with the number 1 would get what a handler's programs print."""
    (tmp_path / "shop.py").write_text(
        "import os\nfrom jobq import JobQ\napp = JobQ()\n"
        "@app.job('look')\ndef look():\n    return [os.readlink(f'/proc/self/fd/{n}') for n in range(3)]\n"
    )
    environment = {**os.environ, "JOBQ_DATABASE_URL": database_url}
    line = f"exec {sys.executable} -P -m jobq worker --app shop:app <&- >&- 2>&-"
    with subprocess.Popen(["/bin/sh", "-c", line], env=environment, cwd=tmp_path) as worker:
        try:
            id_ = q.enqueue("look").id
            eventually(lambda: q.get(id_).status is JobStatus.DONE)
            assert q.get(id_).result == ["/dev/null"] * 3
            worker.terminate()
            assert worker.wait(PATIENCE) == 0
        finally:
            worker.kill()
