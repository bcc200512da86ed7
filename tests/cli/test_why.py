"""`jobq why`, and what `jobq workers` shows of a worker whose claim loop stands still."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from psycopg import sql
from tests.cli.support import Said, jobq
from tests.store.support import client, put, uncheck

from jobq.db import Conn

Run = Callable[..., Said]


@pytest.fixture
def cli(database_url: str) -> Run:
    """Runs commands on the test's database."""

    def run(*arguments: str) -> Said:
        return jobq(*arguments, JOBQ_DATABASE_URL=database_url)

    return run


@pytest.fixture
def conn(database_url: str) -> Iterator[Conn]:
    """A session on the test's database."""
    with client(database_url) as session:
        yield session


def work(conn: Conn, name: str, kinds: list[str], *, ok: bool = True) -> None:
    conn.execute(
        "INSERT INTO jobq.worker (id, host, pid, version, kinds, slots, express, expires_at, claimed_at, claim_loop_ok,"
        " finished_per_second) VALUES (%s, 'h', 1, '1', %s, 20, 2, now() + interval '1 hour', now() - interval '5 minutes',"
        " %s, 1.23456)",
        (name, kinds, ok),
    )


def test_a_reason_is_one_sentence_and_others_stand_below(cli: Run, conn: Conn) -> None:
    conn.execute(
        "INSERT INTO jobq.limiter (scope, name, paused, version) VALUES ('queue', 'default', true, 1)"
    )
    id_ = put(conn, "QUEUED")
    expected = (
        "Queue default is paused: nothing of it starts until it is resumed.\n"
        "Besides: No live worker serves queue default.\n"
    )
    assert cli("why", str(id_)).out == cli("jobs", "why", str(id_)).out == expected
    assert cli("jobs", "show", str(id_)).out.endswith(f"\n\n{expected}")


def test_the_same_as_json(cli: Run, conn: Conn) -> None:
    id_ = put(conn, "SCHEDULED", run_at=sql.SQL("now() + interval '10 days 12 hours 30 minutes'"))
    found = cli("why", str(id_), "--json").json
    assert (found["id"], found["status"], found["reason"]) == (id_, "SCHEDULED", "scheduled")
    assert found["sentence"] + "\n" == cli("why", str(id_)).out.splitlines(keepends=True)[0]
    assert found["data"]["dueAt"].endswith("Z")
    assert found["data"]["also"] == ["no_worker"]
    assert "sentence" not in cli("jobs", "show", str(id_), "--json").json


def test_a_job_that_waits_for_nothing_more_is_shown_without_a_reason(cli: Run, conn: Conn) -> None:
    for status in ("RUNNING", "DONE"):
        id_ = str(put(conn, status))
        assert "It " not in cli("jobs", "show", id_).out
        assert cli("why", id_).out.startswith("It ")


def test_what_is_no_job_has_no_reason(cli: Run) -> None:
    said = cli("why", "77")
    assert (said.code, said.out, said.err) == (1, "", "jobq: there is no job 77\n")
    assert cli("why", "x").code == 2


def test_names_written_by_sql_cannot_paint_the_terminal(cli: Run, conn: Conn) -> None:
    uncheck(conn, "queue")
    id_ = put(conn, "QUEUED", queue="q\x1b[31m\n[red]")
    assert cli("why", str(id_)).out == "No live worker serves queue q\\x1b[31m\\n[red].\n"


def test_workers_are_shown_with_what_they_do_and_whether_they_claim(cli: Run, conn: Conn) -> None:
    work(conn, "a", ["k1", "k2"])
    work(conn, "b", [f"k{n}" for n in range(9)], ok=False)
    work(conn, "c", [])
    head, *rows = cli("workers").out.splitlines()
    assert head.split() == [
        "WORKER", "BUSY/SLOTS", "ENDED/S", "STATE", "QUEUES", "KINDS", "HEARTBEAT", "STARTED",
    ]  # fmt: skip
    assert "0/20+2     1.23  working" in rows[0]
    assert "k1, k2  " in rows[0]
    assert "stands still, last claim 5m ago" in rows[1]
    assert "k0, k1, k2, k3 + 5 more" in rows[1]
    assert "none" in rows[2]
    found = cli("workers", "--json").json["workers"]
    assert [worker["claimLoopOk"] for worker in found] == [True, False, True]
