"""Where logs go: whole lines, whatever becomes of their reader, and nobody is killed by one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobq import logs


def run(program: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    head = "import logging, os, sys\nfrom jobq import logs\n"
    return subprocess.run(
        [sys.executable, "-c", head + program],
        capture_output=True,
        check=False,
        timeout=60,
        **options,
    )


def test_a_reader_that_is_gone_kills_nobody() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    program = """
logs.configure()
for _ in range(3): logs.get("x").info("lost"); logging.getLogger("y").info("lost")
sys.stderr.write("alive")
"""
    done = subprocess.run(
        [sys.executable, "-c", "import logging, sys\nfrom jobq import logs\n" + program],
        stdout=write_end, stderr=subprocess.PIPE, check=False, timeout=60,
    )  # fmt: skip
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, b"alive")


@pytest.mark.parametrize(
    "program",
    [
        "logs.configure(); sys.stdout.close(); logs.get('x').info('still written')",
        "sys.stdout.close(); logs.configure(); logs.get('x').info('lost')",
        "os.close(1); logs.configure(); logs.get('x').info('lost'); os.open(os.devnull, os.O_WRONLY)",
        "sys.stdout = None; logs.configure(); logs.get('x').info('lost')",
        "logs.configure('info', 'console'); os.close(1); logs.get('x').info('still written')",
    ],
)
def test_a_closed_output_kills_nobody(program: str) -> None:
    done = run(program + "\nsys.stderr.write('alive'); sys.stderr.flush(); os._exit(0)")
    assert done.stderr == b"alive", done.stderr
    assert (b"still written" in done.stdout) == ("still written" in program)


def test_lines_of_many_threads_do_not_mix() -> None:
    program = """
import threading
logs.configure()
def write(n):
    for _ in range(200): logs.get("x").info("y" * 10_000, n=n)
threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
"""
    lines = run(program).stdout.splitlines()
    assert len(lines) == 1600
    for line in lines:
        assert json.loads(line)["event"] == "y" * 10_000


def test_a_fork_in_the_middle_of_a_line_leaves_the_child_its_logs() -> None:
    program = """
import threading
logs.configure()
log = logs.get("x")
stop = threading.Event()
def chatter():
    while not stop.is_set(): log.info("parent")
thread = threading.Thread(target=chatter); thread.start()
for _ in range(50):
    child = os.fork()
    if child == 0:
        log.info("child"); os._exit(0)
    os.waitpid(child, 0)
stop.set(); thread.join()
"""
    done = run(program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b'"child"') == 50


def test_a_signal_in_the_middle_of_a_line_may_log_too() -> None:
    program = """
import signal
logs.configure()
log = logs.get("x")
def interrupt(*_):
    log.info("signal")
    signal.setitimer(signal.ITIMER_REAL, 0.0001)
signal.signal(signal.SIGALRM, interrupt)
interrupt()
for _ in range(20_000): log.info("line")
signal.signal(signal.SIGALRM, signal.SIG_IGN)
"""
    done = run(program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b'"line"') == 20_000
    assert done.stdout.count(b'"signal"') > 1


def test_lines_written_together_leave_by_one_call_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[bytes] = []
    write = os.write

    def count(descriptor: int, data: bytes) -> int:
        calls.append(data)
        return write(descriptor, data)

    monkeypatch.setattr("jobq.logs.output.os.write", count)
    with (tmp_path / "log").open("wb") as stream:
        logs.configure("info", "json", stream=stream)
        log = logs.get("test")
        try:
            with logs.together():
                for number in range(3):
                    log.info("line", number=number)
                with logs.together():
                    log.info("inner")
                assert calls == []
            log.info("after")
        finally:
            logs.reset()
    assert len(calls) == 2
    lines = (tmp_path / "log").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == [
        "line",
        "line",
        "line",
        "inner",
        "after",
    ]
