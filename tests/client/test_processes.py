"""Several processes: forked ones leave their parent's connections alone, and the hourly recipe makes one job."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.client.support import Database, Listener

HOURLY = """
import sys
from datetime import UTC, datetime
from jobq import JobQ

sys.stdout.write("ready\\n")
sys.stdout.flush()
moment = datetime.fromisoformat(sys.stdin.readline().strip())
with JobQ(sys.argv[1]) as app:
    hour = moment.astimezone(UTC).strftime("%Y-%m-%dT%H")
    job = app.enqueue("report.hourly", {"hour": hour}, idempotency_key=f"report.hourly:{hour}")
    sys.stdout.write(f"{job.id}\\n")
"""


FORKING = """
import asyncio, os, sys
import psycopg
from jobq import JobQ

app = JobQ(sys.argv[1])
loop = asyncio.new_event_loop()
database = psycopg.connect(sys.argv[1], autocommit=True)

def pids():
    query = "SELECT pid FROM pg_stat_activity WHERE application_name = 'jobq' AND datname = current_database()"
    return {pid for (pid,) in database.execute(query)}

async def use_and_close():
    await app.aenqueue("child")
    await app.aclose()

def child():
    app.enqueue("child", unique_key=str(os.getpid()))
    asyncio.run(use_and_close())
    sys.exit(0)

app.enqueue("parent")
loop.run_until_complete(app.aenqueue("parent"))
before = pids()
assert len(before) >= 2
for _ in range(3):
    if (pid := os.fork()) == 0:
        child()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert before <= pids(), "the parent's connections still stand"
app.enqueue("parent")
loop.run_until_complete(app.aenqueue("parent"))
assert pids() & before, "and are still used"
loop.run_until_complete(app.aclose())
database.close()
loop.close()
"""


def test_a_forked_child_has_connections_of_its_own(database_url: str, database: Database) -> None:
    subprocess.run([sys.executable, "-c", FORKING, database_url], check=True, timeout=60)
    counts = "SELECT kind, count(*) FROM jobq.job GROUP BY kind ORDER BY kind"
    assert database.rows(counts) == [("child", 6), ("parent", 4)]


def test_a_program_that_ends_waits_for_its_wake_up(database_url: str, listener: Listener) -> None:
    program = "import sys; from jobq import JobQ; JobQ(sys.argv[1]).enqueue('k')"
    for _ in range(3):
        subprocess.run([sys.executable, "-W", "error", "-c", program, database_url], check=True)
        assert len(listener.heard()) == 1


@pytest.mark.parametrize(
    ("moments", "jobs"),
    [
        (["2030-06-01T12:05:00+00:00"] * 10, 1),
        # One instant as ten hosts in different zones see it.
        (["2030-06-01T14:05:00+02:00", "2030-06-01T21:05:00+09:00"] * 5, 1),
        # The hour that Berlin's clocks show twice when summer time ends is two hours.
        (["2030-10-27T02:30:00+02:00", "2030-10-27T02:30:00+01:00"] * 5, 2),
        # The clocks jump from 2 to 3 when it begins: no hour is missing.
        (["2030-03-31T01:59:00+01:00", "2030-03-31T03:01:00+02:00"] * 5, 2),
    ],
    ids=["one zone", "many zones", "autumn", "spring"],
)
def test_ten_processes_enqueue_an_hourly_report_once(
    database_url: str, database: Database, moments: list[str], jobs: int
) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", HOURLY, database_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in moments
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    ids = set()
    for process, moment in zip(processes, moments, strict=True):
        assert process.stdin is not None
        process.stdin.write(moment + "\n")
        process.stdin.flush()
    for process in processes:
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        ids.add(int(out))
    assert len(ids) == jobs
    assert database.jobs() == jobs
