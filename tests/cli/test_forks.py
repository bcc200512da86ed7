"""Handlers that fork: their children obey signals as in plain Python, and none outlives the worker."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from tests.cli.conftest import Start
from tests.cli.support import Process, eventually, gone

from jobq import JobQ, JobStatus

JOBS = """
import multiprocessing, os, signal, threading
from jobq import JobQ

app = JobQ()
fork = multiprocessing.get_context("fork")

def rest() -> None:
    threading.Event().wait()

@app.job("pools")
def pools() -> int:
    for _ in range(20):
        with fork.Pool(6) as pool:
            assert pool.map(abs, range(-12, 0)) == list(range(12, 0, -1))
    return len(multiprocessing.active_children())

@app.job("terminate")
def terminate(number: int) -> int | None:
    rests = fork.Event()
    child = fork.Process(target=lambda: rests.set() or rest())
    child.start()
    rests.wait()
    os.kill(child.pid, number)
    child.join(10)
    code = child.exitcode
    child.kill()
    return code

@app.job("early")
def early(number: int) -> int:
    ended = 0
    for _ in range(100):
        pid = os.fork()
        if not pid:
            rest()
        os.kill(pid, number)
        ended += os.WTERMSIG(os.waitpid(pid, 0)[1]) == number
    return ended

def ignore() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    rest()

kept = []

@app.job("leave")
def leave() -> None:
    kept.append(fork.Pool(3))
    for target in (rest, ignore):
        child = fork.Process(target=target)
        child.start()
        kept.append(child)
    print("children run", flush=True)

@app.job("leave_and_stay")
def leave_and_stay() -> None:
    leave()
    rest()
"""


@pytest.fixture
def q(database_url: str) -> Iterator[JobQ]:
    """A client on the test's database."""
    with JobQ(database_url) as client:
        yield client


@pytest.fixture
def begin(start: Start, database_url: str, tmp_path: Path) -> Callable[..., Process]:
    """Starts `jobq worker` with the handlers above, and waits until it works."""
    (tmp_path / "forking.py").write_text(JOBS)

    def worker(*arguments: str, **settings: str) -> Process:
        environment = {"JOBQ_DATABASE_URL": database_url, **settings}
        process = start("worker", "--app", "forking:app", *arguments, environment=environment)
        process.line("all worker processes run" if "--processes" in arguments else "worker started")
        return process

    return worker


def _result(q: JobQ, kind: str, **payload: object) -> object:
    job = q.enqueue(kind, payload, max_attempts=1)
    eventually(lambda: q.get(job.id).finished_at)
    done = q.get(job.id)
    assert done.status is JobStatus.DONE, done.last_error
    return done.result


@pytest.mark.case("N12")
def test_pools_start_and_end_as_in_plain_python(begin: Start, q: JobQ) -> None:
    worker = begin()
    assert _result(q, "pools") == 0
    assert worker.family() == []


@pytest.mark.case("N12")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_child_that_is_asked_to_end_ends(begin: Start, q: JobQ, number: signal.Signals) -> None:
    worker = begin()
    # SIGINT is a KeyboardInterrupt there, with which multiprocessing ends a child with 1.
    assert _result(q, "terminate", number=number) == (1 if number is signal.SIGINT else -number)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


@pytest.mark.case("N12")
def test_a_child_that_is_asked_to_end_before_its_first_step_ends(begin: Start, q: JobQ) -> None:
    worker = begin()
    assert _result(q, "early", number=signal.SIGTERM) == 100
    assert worker.popen.poll() is None


@pytest.mark.case("N12")
@pytest.mark.parametrize("kind", ["leave", "leave_and_stay"])
def test_no_child_outlives_a_worker_that_stops(begin: Start, q: JobQ, kind: str) -> None:
    worker = begin(JOBQ_SHUTDOWN_TIMEOUT="500ms")
    family = _left(worker, q, kind)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert gone(family) == []


@pytest.mark.case("N12")
def test_no_child_outlives_a_second_signal(begin: Start, q: JobQ) -> None:
    worker = begin(JOBQ_SHUTDOWN_TIMEOUT="10m")
    family = _left(worker, q, "leave_and_stay")
    worker.signal(signal.SIGTERM)
    worker.line("worker stops")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 128 + signal.SIGTERM
    assert gone(family) == []


def test_no_child_outlives_a_killed_process_of_several(begin: Start, q: JobQ) -> None:
    supervisor = begin("--processes", "2")
    q.enqueue("leave")
    supervisor.line("children run")
    parent = next(p for p in supervisor.family() if len(p.children()) == 5)
    family = parent.children()
    parent.kill()
    assert gone(family) == [], [p.as_dict() for p in family if p.is_running()]
    supervisor.signal(signal.SIGTERM)
    assert supervisor.wait() == 0


def _left(worker: Process, q: JobQ, kind: str) -> list[psutil.Process]:
    q.enqueue(kind)
    worker.line("children run")
    family = worker.family()
    assert len(family) == 5, "three of the pool, and two"
    return family
