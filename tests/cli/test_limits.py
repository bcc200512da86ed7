"""`jobq tenants`, `queues`, `kinds` and `limits`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests.cli.support import Said, jobq
from tests.store.support import STORE

from jobq.db import connect_sync
from jobq.store import run_sync

Run = Callable[..., Said]
Rows = psycopg.Connection[dict[str, object]]


@pytest.fixture
def cli(database_url: str) -> Run:
    """Runs commands on the test's database."""

    def run(*arguments: str) -> Said:
        return jobq(*arguments, JOBQ_DATABASE_URL=database_url)

    return run


def shown(cli: Run, *arguments: str) -> dict[str, Any]:
    said = cli(*arguments, "--json")
    assert (said.code, said.err) == (0, "")
    found: dict[str, Any] = said.json
    return found


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_what_is_not_named_stays_and_none_and_reset_put_back(cli: Run) -> None:
    before = shown(cli, "tenants", "show", "acme")
    options = ["--weight", "3", "--max-running", "10", "--rate", "100/1m", "--burst", "5"]
    found = shown(cli, "tenants", "set", "acme", *options)
    rate = {"limit": 100, "periodSeconds": 60.0, "burst": 5}
    assert found == {**before, "weight": 3.0, "maxRunning": 10, "rate": rate}
    found = shown(cli, "tenants", "set", "acme", "--max-running", "none")
    assert found == {**before, "weight": 3.0, "rate": rate}
    found = shown(cli, "tenants", "set", "acme", "--rate", "5/250ms", "--reset", "weight")
    assert found == {**before, "rate": {"limit": 5, "periodSeconds": 0.25, "burst": 1}}
    assert shown(cli, "tenants", "set", "acme", "--rate", "none") == before
    assert shown(cli, "tenants", "set", "acme") == before == shown(cli, "tenants", "show", "acme")


def test_a_weight_in_one_queue(cli: Run) -> None:
    found = shown(cli, "tenants", "set", "acme", "--weight", "5", "--queue", "mail")
    assert (found["weight"], found["queueWeights"]) == (1.0, {"mail": 5.0})
    cli("tenants", "set", "acme", "--weight", "2", "--queue", "slow")
    found = shown(cli, "tenants", "set", "acme", "--weight", "none", "--queue", "mail")
    assert found["queueWeights"] == {"slow": 2.0}
    assert shown(cli, "tenants", "set", "acme", "--reset", "queue-weights")["queueWeights"] == {}


def test_a_kind_has_a_cap_for_its_keys_and_a_key_one_of_its_own(cli: Run) -> None:
    assert shown(cli, "kinds", "set", "k", "--max-per-key", "3")["maxPerKey"] == 3
    key = "account 42/[red]"
    assert shown(cli, "limits", "set", key, "--max-running", "4")["maxRunning"] == 4
    assert cells(cli("limits", "list").out.splitlines()[1]) == [key, "0", "at most 4"]
    assert shown(cli, "limits")["limits"][0]["key"] == key
    assert "1, or what the kind says" in cli("limits", "show", "another").out


@pytest.mark.parametrize("group", ["tenants", "queues", "kinds"])
def test_pause_and_resume(cli: Run, rows: Rows, group: str) -> None:
    rows.execute(f"LISTEN {STORE.statements.channel}")
    scope = group.removesuffix("s")
    said = cli(group, "pause", "a/b")
    assert (said.code, said.out) == (0, f"{scope} a/b is paused; jobs that run finish\n")
    lines = [cells(line) for line in cli(group, "list").out.splitlines()]
    assert [line[-1] for line in lines if line[0] == "a/b"] == ["paused"]
    assert "paused      yes" in cli(group, "show", "a/b").out
    assert shown(cli, group, "resume", "a/b")["paused"] is False
    assert "paused" not in cli(group).out
    heard = [notify.payload for notify in rows.notifies(timeout=10, stop_after=2)]
    assert heard == ["l", "l"]


def test_all_that_is_set_is_shown_in_words(cli: Run) -> None:
    cli("tenants", "set", "acme", "--weight", "3", "--max-running", "10", "--rate", "100/1m")
    cli("tenants", "set", "acme", "--weight", "0.5", "--queue", "mail")
    cli("tenants", "pause", "acme")
    assert cli("tenants", "show", "acme").out.splitlines() == [
        "tenant      acme", "paused      yes", "weight      3", "in mail     0.5", "at most     10 at once; 0 now",
        "rate        100 per 1m",
    ]  # fmt: skip
    line = cli("tenants").out.splitlines()[1]
    assert cells(line) == ["acme", "paused, weight 3, weight 0.5 in mail, at most 10, 100 per 1m"]
    cli("kinds", "set", "k", "--max-per-key", "2", "--rate", "5/1s", "--burst", "7")
    assert cells(cli("kinds").out.splitlines()[1]) == ["k", "2 per key, 5 per 1s (burst 7)"]
    assert "2 at once" in cli("kinds", "show", "k").out


def test_tenants_with_large_backlogs_and_kinds_that_workers_know_are_listed(
    cli: Run, database_url: str
) -> None:
    for tenant in ("b", "b", "a"):
        cli("enqueue", "k", "--tenant", tenant)
    cli("tenants", "set", "c", "--weight", "2")
    listed = shown(cli, "tenants", "list")["tenants"]
    assert [(each["tenant"], each["queued"]) for each in listed] == [
        ("a", 1),
        ("b", 2),
        ("c", None),
    ]
    kind = {"kind": "known", "queue": "q", "priority": 7, "max_attempts": 3, "timeout": 90.0}
    with connect_sync(database_url) as conn:
        run_sync(conn, STORE.upkeep.register_kinds([{**kind, "max_per_key": 2}]))
    assert cells(cli("kinds").out.splitlines()[1]) == ["known", "q", "7", "3", "1m30s", "2 per key"]
    assert "per key     2 at once" in cli("kinds", "show", "known").out


def test_a_list_is_paged(cli: Run) -> None:
    for tenant in ("a", "b", "c"):
        cli("tenants", "set", tenant, "--weight", "2")
    page = cli("tenants", "list", "--limit", "2")
    assert [line.split()[0] for line in page.out.splitlines()[1:]] == ["a", "b"]
    assert page.err == "there are more: --after 'b'\n"
    rest = shown(cli, "tenants", "list", "--limit", "2", "--after", "b")
    assert ([each["tenant"] for each in rest["tenants"]], rest["nextCursor"]) == (["c"], None)
    assert cli("limits").err == "no concurrency keys with limits\n"
    assert (
        cli("tenants", "list", "--after", "c").err == "no more tenants with limits or QUEUED jobs\n"
    )


def test_queues_show_what_is_set_for_them(cli: Run) -> None:
    cli("enqueue", "k", "--queue", "mail")
    cli("queues", "set", "mail", "--max-running", "2")
    cli("queues", "pause", "empty")
    lines = [cells(line) for line in cli("queues").out.splitlines()]
    assert lines[0][-1] == "LIMITS"
    assert [(line[0], line[-1]) for line in lines[2:]] == [
        ("empty", "paused"),
        ("mail", "at most 2"),
    ]
    queues = {each["queue"]: each for each in shown(cli, "queues", "list")["queues"]}
    assert queues["mail"]["queued"] == 1
    assert (queues["empty"]["queued"], queues["empty"]["paused"]) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["tenants", "set", "t", "--weight", "heavy"], "'heavy' is no number"),
        (["tenants", "set", "t", "--max-running", "1.5"], "'1.5' is no whole number"),
        (["tenants", "set", "t", "--max-running", "many"], "'many' is no whole number"),
        (["tenants", "set", "t", "--rate", "100"], "write 100/1m for a hundred jobs a minute"),
        (["tenants", "set", "t", "--rate", "100/"], "is no duration"),
        (["tenants", "set", "t", "--rate", "100/soon"], "is no duration"),
        (["tenants", "set", "t", "--rate", "x/1m"], "'x' is no whole number"),
        (["tenants", "set", "t", "--burst", "5"], "goes with --rate"),
        (["tenants", "set", "t", "--burst", "5", "--rate", "none"], "goes with --rate"),
        (["tenants", "set", "t", "--reset", "name"], "'name' cannot be reset; those are weight, queue-weights"),
        (["limits", "set", "k", "--reset", "weight"], "those are max-running, rate"),
        (["tenants", "set", "t", "--weight", "2", "--reset", "weight"], "weight is set and reset"),
        (["queues", "set", "q", "--queue", "r"], "No such option"),
        (["tenants", "set", "t", "--max-per-key", "2"], "No such option"),
        (["limits", "set", "k", "--weight", "2"], "No such option"),
        (["limits", "pause", "k"], "No such command"),
        (["tenants", "acme"], "No such command"),
        (["tenants", "--json", "list"], "--json goes after the command"),
        (["tenants", "set"], "Missing argument"),
        (["kinds", "list", "--limit", "501"], "less than or equal to 500"),
    ],
)  # fmt: skip
def test_wrong_usage_ends_with_2_and_says_why(cli: Run, arguments: list[str], problem: str) -> None:
    said = cli(*arguments)
    assert said.code == 2, said.out
    assert problem in " ".join(said.err.split())
    assert said.out == ""


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["tenants", "set", "t", "--weight", "0"], "--weight must be a number from 0.0001 to 1,000,000; to stop it, run jobq tenants pause t"),
        (["tenants", "set", "t", "--weight", "-1"], "--weight must be a number"),
        (["tenants", "set", "t", "--weight", "nan"], "--weight must be a number"),
        (["tenants", "set", "t", "--weight", "inf"], "--weight must be a number"),
        (["tenants", "set", "t", "--queue", "mail"], "--queue says where --weight holds: give both"),
        (["tenants", "set", "t", "--weight", "2", "--queue", "a b"], "--queue must be 1 to 128 characters"),
        (["kinds", "set", "k", "--max-running", "0"], "--max-running must be a whole number from 1 to 10,000; to stop it, run jobq kinds pause k"),
        (["kinds", "set", "k", "--max-per-key", "0"], "--max-per-key must be a whole number"),
        (["limits", "set", "k", "--max-running", "10001"], "--max-running must be a whole number"),
        (["queues", "set", "q", "--rate", "0/1m"], "the limit of --rate must be a whole number"),
        (["queues", "set", "q", "--rate", "5/0s"], "the period of --rate, in seconds, must be a number from 0.001"),
        (["queues", "set", "q", "--rate", "5/1s", "--burst", "0"], "--burst must be a whole number"),
        (["queues", "set", "a b", "--weight", "2"], "queue must be 1 to 128 characters"),
        (["queues", "pause", "a b"], "queue must be 1 to 128 characters"),
        (["tenants", "show", ""], "tenant must be 1 to 128 characters"),
        (["limits", "show", "x" * 256], "key must be 1 to 255 bytes"),
    ],
)  # fmt: skip
def test_what_cannot_be_set_is_one_sentence_and_ends_with_1(
    cli: Run, rows: Rows, arguments: list[str], problem: str
) -> None:
    said = cli(*arguments)
    assert said.code == 1
    assert problem in said.err
    assert said.err.startswith("jobq: ")
    assert said.err.count("\n") == 1
    assert rows.execute("SELECT name FROM jobq.limiter").fetchall() == []
