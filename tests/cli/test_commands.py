"""The commands that look at jobs and change them, in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.cli.support import Said, jobq

from jobq import JobQ, __version__
from jobq.db import Conn, connect_sync
from jobq.migrate import KNOWN
from jobq.model import Claim, Lane, Outcome, Verdict
from jobq.sql import Statements
from jobq.store import Call, RunStore, run_sync
from jobq.store.runs import ClaimSettings, Share, Span

Run = Callable[..., Said]


@pytest.fixture
def cli(database_url: str) -> Run:
    """Runs commands on the test's database."""

    def run(*arguments: str, stdin: str | None = None, **environment: str) -> Said:
        return jobq(*arguments, stdin=stdin, JOBQ_DATABASE_URL=database_url, **environment)

    return run


@pytest.fixture
def ends(database_url: str) -> Callable[..., int]:
    """Enqueues a job and lets it end; returns its id."""

    def end(verdict: Verdict, **options: Any) -> int:
        with JobQ(database_url) as q:
            job = q.enqueue("k", {"a": 1}, **{"max_attempts": 1, **options})
        with connect_sync(database_url) as conn:
            runs = RunStore(Statements("jobq"))
            share = Share(1, [Span(Lane("default", options.get("tenant", "default"), 0))])
            settings = ClaimSettings("w", 60.0, 10.0, 5, 300.0)
            [claimed] = run_sync(conn, runs.claim(7, 1, [share], settings)).jobs
            outcome = Outcome(Claim(claimed.id, 7), verdict, error="it\nbroke" if verdict else None)
            if verdict is Verdict.SUCCESS:
                run_sync(conn, runs.complete([outcome]))
            else:
                run_sync(conn, runs.fail([outcome], 1.0, 1.0))
        return job.id

    return end


def test_a_job_is_enqueued_shown_and_listed(cli: Run) -> None:
    options = [
        "--tenant", "acme", "--queue", "mail", "--priority", "7", "--delay", "5m", "--max-attempts", "3",
        "--timeout", "1m30s", "--idempotency-key", "welcome-42", "--unique-key", "u", "--concurrency-key", "c",
        "--tag", "a", "--tag", "b",
    ]  # fmt: skip
    made = cli("enqueue", "email.welcome", '{"to":"a@b.com"}', *options, "--json").json
    assert made == {"id": made["id"], "status": "SCHEDULED", "created": True}
    again = cli("enqueue", "email.welcome", "-", *options, stdin='{"to": "a@b.com"}')
    assert again.out == f"{made['id']} SCHEDULED (it was there before)\n"
    job = cli("jobs", "show", str(made["id"]), "--json").json
    expected = {
        "kind": "email.welcome", "payload": {"to": "a@b.com"}, "tenant": "acme", "queue": "mail", "priority": 7,
        "maxAttempts": 3, "timeoutSeconds": 90.0, "idempotencyKey": "welcome-42", "uniqueKey": "u",
        "concurrencyKey": "c", "tags": ["a", "b"],
    }  # fmt: skip
    assert {name: job[name] for name in expected} == expected
    shown = cli("jobs", "show", str(made["id"])).out
    assert '{"to": "a@b.com"}' in shown
    listed = cli("jobs", "list", "--tenant", "acme", "--status", "scheduled")
    assert listed.out.splitlines()[0].split() == [
        "ID",
        "STATUS",
        "KIND",
        "QUEUE",
        "TENANT",
        "TRIES",
        "WHEN",
    ]
    assert listed.out.splitlines()[1].split()[:6] == [
        str(made["id"]), "SCHEDULED", "email.welcome", "mail", "acme", "0/3",
    ]  # fmt: skip


def test_a_time_to_run_at_and_an_app_to_fit(cli: Run) -> None:
    made = cli("enqueue", "k", "[1]", "--run-at", "2999-01-01T00:00:00+01:00", "--json").json
    assert cli("jobs", "show", str(made["id"]), "--json").json["runAt"] == "2998-12-31T23:00:00Z"
    fits = cli("enqueue", "word_count", '{"text":"a"}', "--app", "jobq.demo:app")
    assert (fits.code, fits.err) == (0, "")
    for kind, payload, problem in (
        ("word_count", '{"txt":"a"}', "payload.text: Field required"),
        ("nothing", "{}", "kind must be a kind this app has a handler for: crash, email.welcome"),
    ):
        refused = cli("enqueue", kind, payload, "--app", "jobq.demo:app")
        assert refused.code == 1
        assert problem in refused.err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["enqueue"], "Missing argument"),
        (["enqueue", "k", "{"], "the payload is no JSON"),
        (["enqueue", "k", '{"a":1,"a":2}'], "the payload is no JSON"),
        (["enqueue", "k", "--delay", "soon"], "is no duration"),
        (["enqueue", "k", "--run-at", "2030-01-01T00:00:00"], "must be a time with a zone"),
        (["enqueue", "k", "--priority", "high"], "valid integer"),
        (["jobs", "list", "--status", "lost"], "SCHEDULED, QUEUED, RUNNING, DONE"),
        (["jobs", "list", "--queue", "a b"], "must be 1 to 128 characters"),
        (["jobs", "list", "--limit", "0"], "greater than or equal to 1"),
        (["jobs", "show", "x"], "'x' is no id of a job"),
        (["jobs", "show", "99999999999999999999"], "is no id of a job"),
        (["jobs", "retry"], "which jobs?"),
        (["cancel", "1", "--kind", "k"], "either ids or filters"),
        (["migrate", "--sql", "--status"], "exclude one another"),
        (["worker", "--processes", "0"], "greater than or equal to 1"),
        (["nothing"], "No such command"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_why(cli: Run, arguments: list[str], problem: str) -> None:
    said = cli(*arguments)
    assert said.code == 2
    assert problem in " ".join(said.err.split())
    assert said.out == ""


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["enqueue", "k", "--priority", "101"], "priority must be a whole number from -100 to 100"),
        (["enqueue", "k", "--delay", "1s", "--run-at", "2030-01-01T00:00:00Z"], "together with"),
        (["enqueue", "k", '"\\u0000"'], "NUL character"),
        (["jobs", "show", "999"], "there is no job 999"),
        (["retry", "999"], "there is no job 999"),
        (["cancel", "999"], "there is no job 999"),
        (["worker"], "no app is named"),
        (["worker", "--app", "nothing"], "must be module:attribute"),
        (["worker", "--app", "no.such:app"], "there is no module no in"),
        (["worker", "--app", "jobq.demo:nothing"], "module jobq.demo has no attribute nothing"),
        (["worker", "--app", "jobq.demo:STEP"], "is float, not JobQ"),
        (
            ["worker", "--app", "jobq.demo:app", "--queue", "a:0"],
            "slots must be between 1 and 10000",
        ),
        (["worker", "--app", "jobq.demo:app", "--queue", "a", "--queue", "a:1"], "is named twice"),
        (["worker", "--app", "jobq.demo:app", "--concurrency", "0"], "JOBQ_CONCURRENCY: "),
        (["worker", "--app", "jobq.demo:app", "--http-addr", "x"], "JOBQ_WORKER_HTTP_ADDR: "),
        (["api", "--addr", "0.0.0.0:0"], "can be reached from outside"),
        (["migrate", "--grant", "nobody at all"], "there is no role nobody at all"),
        (["demo", "--url", "http://127.0.0.1:1"], "no API answers at http://127.0.0.1:1"),
    ],
)
def test_a_failure_is_one_sentence_and_ends_with_1(
    cli: Run, arguments: list[str], problem: str
) -> None:
    said = cli(*arguments)
    assert said.code == 1
    assert problem in said.err
    assert said.err.startswith("jobq: ")
    assert said.err.count("\n") == 1


def test_settings_are_checked_together(cli: Run) -> None:
    said = cli(
        "jobs", "list", JOBQ_CONCURRENCY="many", JOBQ_POLL_INTERVAL="0", JOBQ_LOG_LEVEL="loud"
    )
    assert said.code == 1
    for name in ("JOBQ_CONCURRENCY", "JOBQ_POLL_INTERVAL", "JOBQ_LOG_LEVEL"):
        assert name in said.err


@pytest.mark.parametrize("command", [["jobs", "list"], ["enqueue", "k"], ["migrate"], ["workers"]])
def test_a_database_that_is_away_is_a_sentence_without_its_password(command: list[str]) -> None:
    url = "postgresql://me:hunter2@127.0.0.1:1/db?connect_timeout=2"
    said = jobq(*command, DATABASE_URL=url)
    assert said.code == 1
    assert "PostgreSQL cannot be reached" in said.err
    assert "hunter2" not in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("url", ["mysql://me:hunter2@host/db", "hunter2"])
def test_a_url_that_is_none_is_a_sentence_that_does_not_repeat_it(url: str) -> None:
    said = jobq("jobs", "list", JOBQ_DATABASE_URL=url)
    assert said.code == 1
    assert "JOBQ_DATABASE_URL is no PostgreSQL URL" in said.err
    assert "hunter2" not in said.err


def test_without_a_database_the_setting_is_named() -> None:
    said = jobq("queues")
    assert said.code == 1
    assert "JOBQ_DATABASE_URL is not set" in said.err


def test_dead_jobs_are_retried_by_id_or_by_filter_after_a_preview(
    cli: Run, ends: Callable[..., int]
) -> None:
    dead = [ends(Verdict.RETRY) for _ in range(3)]
    first = cli("retry", str(dead[0]))
    assert (first.code, first.out) == (0, f"{dead[0]} QUEUED\n")
    again = cli("jobs", "retry", str(dead[0]), str(dead[1]), "--json")
    assert again.code == 1
    assert again.json == {"jobs": [{"id": dead[1], "status": "QUEUED"}]}
    assert f"job {dead[0]} is QUEUED: nothing to retry" in again.err
    dead += [ends(Verdict.RETRY) for _ in range(2)]
    preview = cli("jobs", "retry", "--kind", "k")
    assert preview.code == 0
    assert "it" in preview.out
    assert "retry would apply to 3 jobs; nothing was done: add --yes" in preview.err
    assert len(cli("jobs", "list", "--status", "dead", "--json").json["jobs"]) == 3
    assert cli("jobs", "retry", "--kind", "k", "--yes").out == "retry: 3 of 3 jobs\n"
    assert cli("jobs", "list", "--status", "dead", "--json").json["jobs"] == []


def test_failed_jobs_need_force(cli: Run, ends: Callable[..., int]) -> None:
    failed = str(ends(Verdict.PERMANENT))
    refused = cli("retry", failed)
    assert refused.code == 1
    assert "--force runs it again" in refused.err
    assert cli("retry", failed, "--force").out == f"{failed} QUEUED\n"


def test_done_jobs_are_neither_retried_nor_cancelled(cli: Run, ends: Callable[..., int]) -> None:
    done = str(ends(Verdict.SUCCESS))
    assert "is DONE; enqueue a new one" in cli("retry", done, "--force").err
    assert "is DONE already" in cli("cancel", done).err


def test_a_retry_by_filter_takes_a_statement_a_page(
    cli: Run, ends: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        ends(Verdict.RETRY)
    asked: list[str] = []

    def count(conn: Conn, call: Call[Any]) -> Any:
        asked.append(call.name)
        return run_sync(conn, call)

    monkeypatch.setattr("jobq.cli.database.run_sync", count)
    monkeypatch.setattr("jobq.cli.filters.PAGE", 2)
    assert cli("jobs", "retry", "--kind", "k", "--yes").out == "retry: 5 of 5 jobs\n"
    assert asked.count("retry") == 3


def test_a_retry_that_a_unique_key_forbids_says_so(
    cli: Run, ends: Callable[..., int], database_url: str
) -> None:
    dead = str(ends(Verdict.RETRY, unique_key="u"))
    with JobQ(database_url) as q:
        q.enqueue("k", unique_key="u")
    assert "another live job holds its unique key" in cli("retry", dead).err


def test_jobs_are_cancelled_by_id_or_by_filter_after_a_preview(
    cli: Run, ends: Callable[..., int]
) -> None:
    dead = str(ends(Verdict.RETRY))
    ids = [cli("enqueue", "k", "--tenant", "acme", "--json").json["id"] for _ in range(12)]
    assert cli("cancel", str(ids[0])).out == f"{ids[0]} CANCELLED\n"
    assert cli("cancel", str(ids[0])).code == 0  # as it is over HTTP
    assert cli("cancel", dead).out == f"{dead} CANCELLED\n"
    preview = cli("jobs", "cancel", "--tenant", "acme", "--json")
    assert preview.json == {"matched": 11, "applied": 0}
    assert "to 11 jobs, of which 10 are shown" in cli("cancel", "--tenant", "acme").err
    assert cli("cancel", "--tenant", "acme", "-y", "--json").json == {"matched": 11, "applied": 11}


def test_a_list_is_paged_and_is_whole_where_it_is_piped(cli: Run) -> None:
    kind = "k" * 128
    ids = [cli("enqueue", kind, "--tenant", "t" * 128, "--json").json["id"] for _ in range(3)]
    page = cli("jobs", "list", "--limit", "2")
    assert [line.split()[0] for line in page.out.splitlines()[1:]] == [str(ids[2]), str(ids[1])]
    assert all(line.split()[2] == kind for line in page.out.splitlines()[1:])
    assert f"--before {ids[1]}" in page.err
    rest = cli("jobs", "list", "--before", str(ids[1]), "--json").json
    assert ([job["id"] for job in rest["jobs"]], rest["nextCursor"]) == ([ids[0]], None)
    assert "\x1b" not in page.out


def test_what_jobs_hold_does_not_reach_the_terminal_as_it_is(cli: Run, database_url: str) -> None:
    with JobQ(database_url) as q:
        job = q.enqueue(
            "k", {"a": "[red]\x1b[31m"}, tags=["[bold]x\x1b[0m"], idempotency_key="\x07key"
        )
    shown = cli("jobs", "show", str(job.id)).out
    assert "[bold]x\\x1b[0m" in shown
    assert "\\x07key" in shown
    assert "\x1b" not in shown
    assert "\x07" not in shown


def test_queues_and_workers_are_shown(cli: Run) -> None:
    cli("enqueue", "k", "--queue", "mail")
    queues = cli("queues", "--json").json["queues"]
    assert [(queue["queue"], queue["queued"], queue["workers"]) for queue in queues] == [
        ("default", 0, 0), ("mail", 1, 0),
    ]  # fmt: skip
    assert cli("queues").out.splitlines()[0].split() == [
        "QUEUE", "SCHEDULED", "QUEUED", "RUNNING", "WAITS", "WORKERS", "LIMITS",
    ]  # fmt: skip
    assert cli("workers", "--json").json == {"workers": []}
    assert cli("workers").err == "no worker is alive\n"


def test_a_schema_is_migrated_and_its_state_shown(empty_database_url: str) -> None:
    def run(*arguments: str) -> Said:
        return jobq(*arguments, JOBQ_DATABASE_URL=empty_database_url, JOBQ_SCHEMA="JobQ")

    missing = run("jobs", "list")
    assert missing.code == 1
    assert "run jobq migrate" in missing.err
    assert [m["appliedAt"] for m in run("migrate", "--status", "--json").json["migrations"]] == [
        None
    ] * len(KNOWN)
    assert run("migrate").out.startswith("schema JobQ: applied 0001")
    assert run("migrate").out == "schema JobQ: nothing to do\n"
    assert "pending" not in run("migrate", "--status").out
    assert run("jobs", "list").code == 0


def test_the_sql_of_migrations_needs_no_database() -> None:
    said = jobq("migrate", "--sql", JOBQ_SCHEMA="shop")
    assert said.code == 0
    assert said.out.startswith("BEGIN;\n")
    assert '"shop".job' in said.out


def test_a_role_is_granted_what_it_needs(cli: Run, database_url: str) -> None:
    role = "runtime_" + database_url.rpartition("test_")[2][:12]
    with connect_sync(database_url) as conn:
        conn.execute(f"CREATE ROLE {role} LOGIN")
        try:
            assert f"role {role} may enqueue and work" in cli("migrate", "--grant", role).out
            as_role = database_url.replace("jobq@", f"{role}@")
            assert jobq("enqueue", "k", JOBQ_DATABASE_URL=as_role).code == 0
            assert (
                "does not own schema"
                in jobq("migrate", "--grant", role, JOBQ_DATABASE_URL=as_role).err
            )
        finally:
            conn.execute(f"DROP OWNED BY {role}")
            conn.execute(f"DROP ROLE {role}")


def test_the_version_and_the_help() -> None:
    assert jobq("--version").out == f"jobq {__version__}\n"
    assert "Usage: jobq" in jobq("-h").out
    assert jobq().code == 2


def test_json_is_one_document(cli: Run) -> None:
    for command in ("queues", "workers"):
        json.loads(cli(command, "--json").out)


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        (">&-", "standard output is closed"),
        (">/dev/full", "standard output cannot be written: No space left on device"),
    ],
)
@pytest.mark.parametrize("command", ["--version", "--help", "jobs list", "jobs list --json"])
def test_an_output_that_takes_nothing_ends_in_a_sentence(
    database_url: str, output: str, problem: str, command: str
) -> None:
    with JobQ(database_url) as q:
        q.enqueue("k")
    line = f"{sys.executable} -P -m jobq {command} {output}"
    environment = {**os.environ, "JOBQ_DATABASE_URL": database_url}
    ended = subprocess.run(
        ["/bin/sh", "-c", line], env=environment, stderr=subprocess.PIPE, check=False
    )
    assert ended.returncode == 1
    said = ended.stderr.decode().splitlines()
    assert len(said) == 1, said
    assert problem in said[0]
