"""The plan is behaviour: statements touch as many rows as they are about, whatever the statistics say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.store.plans import Plan, explain, explain_prepared, warm
from tests.store.support import (
    KEEP_PAYLOAD,
    LEASE,
    OTHER_LEASE,
    SETTINGS,
    STORE,
    Server,
    claim,
    client,
    complete,
    engine,
    fail,
    new_database,
)

from jobq.db import Conn
from jobq.model import Claim, JobStatus, Lane, Verdict
from jobq.store import BEGINNING, NO_SLOT, Call, Facts, Share, Span

#: Pairs, jobs or lanes that a statement is about.
BATCH = 200
#: What one of them may cost, and a statement beside them. The archive has dozens of partitions, each with its index.
ROWS, MORE_ROWS = 25, 200
#: Rows that the emptied tables keep, live and finished.
LEFT = 2000
BUFFERS, MORE_BUFFERS = 60, 600

#: Live rows: a lane of 100,000 jobs, and as many that may not be claimed.
FILL = f"""
SELECT setval('jobq.job_id_seq', 1, false);
INSERT INTO jobq.job (kind, status, held_by, tenant, run_at, lease, lease_until, attempts, max_attempts)
SELECT 'k', CASE g % 5 WHEN 1 THEN 'RUNNING' WHEN 2 THEN 'SCHEDULED' ELSE 'QUEUED' END,
       CASE WHEN g % 5 = 3 THEN 'kind:k' END,
       CASE WHEN g % 5 = 4 THEN 'tenant' || g % 499 ELSE 'default' END,
       now() - interval '1 hour' + g * interval '1 ms',
       CASE WHEN g % 5 = 1 THEN {LEASE} END, CASE WHEN g % 5 = 1 THEN now() - interval '1 second' END, 1, 5
FROM generate_series(1, 125000) g;
INSERT INTO jobq.job (kind, run_at) SELECT 'k', now() - interval '1 minute' FROM generate_series(1, 75000);
INSERT INTO jobq.job_archive (id, class, status, finished_at, kind, queue, tenant, priority, attempts, created_at, run_at,
                              lease, payload)
SELECT 1000000 + g, CASE WHEN g % 2 = 0 THEN 'done' ELSE 'dead' END, CASE WHEN g % 2 = 0 THEN 'DONE' ELSE 'DEAD' END,
       now(), 'k', 'default', 'default', 0, 1, now(), now(), {LEASE}, '{{}}'
FROM generate_series(1, 100000) g;
INSERT INTO jobq.worker (id, host, pid, version, kinds, slots, express, expires_at)
VALUES ('w', 'h', 1, '1', '{{k}}', 20, 2, now() + interval '1 day');
INSERT INTO jobq.cap_slot (scope, n) SELECT 'key:' || g, 0 FROM generate_series(1, 20000) g;
"""
#: Ids of `FILL`: of jobs that run, that wait, and of those that ended.
RUNNING = [1 + 5 * n for n in range(BATCH)]
WAITING = 200_000
DEAD = 1_000_001
FINISHED = [DEAD + n for n in range(BATCH)]


def _pairs(ids: list[int]) -> list[Claim]:
    return [Claim(id_, LEASE) for id_ in ids]


def _lanes(most: int) -> Call[Any]:
    spans = [
        [Span(Lane("default", f"tenant{n}", 0)), Span(Lane("default", f"tenant{n}", 5))]
        for n in range(100)
    ]
    call = STORE.runs.claim(OTHER_LEASE, most, [Share(5, some) for some in spans], SETTINGS)
    return Call(call.name, call.statement, call.params, lambda rows: call.read(rows).jobs)


#: A worker's statements, about a number of jobs.
ENGINE: dict[str, Callable[[int], Call[Any]]] = {
    "claim": lambda n: claim(OTHER_LEASE, n),
    "claim_of_many_lanes": _lanes,
    "claims_of_lease": lambda n: STORE.runs.claims_of_lease(OTHER_LEASE),
    "discover": lambda n: STORE.upkeep.discover(Lane("", "", -101), n),
    "complete": lambda n: complete(*_pairs(RUNNING[:n])),
    "fail": lambda n: fail(*_pairs(RUNNING[:n])),
    "fail_for_good": lambda n: fail(*_pairs(RUNNING[:n]), verdict=Verdict.PERMANENT),
    "release": lambda n: STORE.runs.release(_pairs(RUNNING[:n]), KEEP_PAYLOAD),
    "extend": lambda n: STORE.runs.extend(_pairs(RUNNING[:n]), 60),
    "locked": lambda n: STORE.runs.locked(_pairs(RUNNING[:n])),
    "progress": lambda n: STORE.runs.progress([(pair, "1") for pair in _pairs(RUNNING[:n])]),
    "recorded": lambda n: STORE.runs.recorded(_pairs(FINISHED[:n])),
    "reclaim": lambda n: STORE.upkeep.reclaim(BEGINNING, n, KEEP_PAYLOAD),
    "expired": lambda n: STORE.upkeep.expired(BEGINNING, n),
    "bound_leases": lambda n: STORE.upkeep.bound_leases(60),
    "reap_check": lambda n: STORE.upkeep.reap_check(BEGINNING, 60),
    "promote": lambda n: STORE.upkeep.promote(BEGINNING, n),
    "expire_keys": lambda n: STORE.upkeep.expire_keys(3600.0, n),
    "expire_slots": lambda n: STORE.upkeep.expire_slots(NO_SLOT, n),
    "heal_slots": STORE.upkeep.heal_slots,
}
_WAITS = Facts(
    id=WAITING, kind="k", queue="default", tenant="tenant7", priority=0, status=JobStatus.QUEUED, attempts=0,
    max_attempts=5, run_at=datetime.now(UTC), started_at=None, finished_at=None, worker=None, lease_until=None,
    cancel_requested=False, last_error=None, now=datetime.now(UTC), alive=1, serving=1, knowing=1,
)  # fmt: skip
#: Statements of the API and of people.
CLIENT: dict[str, Callable[[int], Call[Any]]] = {
    "find_job": lambda n: STORE.jobs.find_job(WAITING),
    "find_finished_job": lambda n: STORE.jobs.find_job(DEAD),
    "list_jobs": lambda n: STORE.jobs.list_jobs(most=n),
    "cancel": lambda n: STORE.jobs.cancel(RUNNING[: n // 2] + FINISHED[: n // 2], KEEP_PAYLOAD),
    "retry": lambda n: STORE.jobs.retry(FINISHED[:n]),
    "retry_waiting": lambda n: STORE.jobs.retry([2 + 5 * i for i in range(n)]),
    "why": lambda n: STORE.why.why(WAITING),
    "ahead": lambda n: STORE.why.ahead(_WAITS, n),
}
#: Those that, of a partition which was never analysed, may sort all jobs asked for.
LISTS: dict[str, Callable[[int], Call[Any]]] = {
    "list_dead_jobs": lambda n: STORE.jobs.list_jobs(most=n, statuses=["DEAD"]),
}
#: Those that walk all running jobs: no more of them than a fleet has slots.
WALKS = {"ahead", "claims_of_lease", "heal_slots"}


@dataclass
class Hostile:
    """Sessions, each with plans made under statistics that no longer hold."""

    prepared_while_empty: Conn
    analysed_empty: Conn
    client: Conn


@dataclass
class Emptied:
    """Sessions on a table that was analysed when it was full."""

    prepared_while_full: Conn
    client: Conn


@pytest.fixture(scope="module")
def hostile(server: Server, template: str) -> Iterator[Hostile]:
    with (
        new_database(server, template) as url,
        engine(url) as early,
        engine(url) as late,
        client(url) as plain,
    ):
        _freeze_statistics(early)
        early.execute("ANALYZE")
        for make in ENGINE.values():
            warm(early, make(3))
        early.execute(FILL)
        for make in ENGINE.values():
            warm(late, make(3))
        yield Hostile(early, late, plain)


@pytest.fixture(scope="module")
def emptied(server: Server, template: str) -> Iterator[Emptied]:
    with new_database(server, template) as url, engine(url) as early, client(url) as plain:
        _freeze_statistics(early)
        early.execute(FILL)
        early.execute("ANALYZE")
        for make in ENGINE.values():
            warm(early, make(1))
        early.execute("DELETE FROM jobq.job WHERE id > 1000")
        early.execute("DELETE FROM jobq.job_archive WHERE id > 1001000")
        early.execute("VACUUM jobq.job, jobq.job_archive")
        yield Emptied(early, plain)


def _freeze_statistics(conn: Conn) -> None:
    rows = conn.execute(
        "SELECT format('ALTER TABLE %I.%I SET (autovacuum_enabled = false)', nspname, relname)"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = 'jobq' AND relkind = 'r'"
    ).fetchall()
    for (statement,) in rows:
        conn.execute(statement)


def _bounded(name: str, plan: Plan, batch: int = BATCH, *, read_whole: int = 0) -> None:
    if name in WALKS:
        batch = 25_000
    most = max(ROWS * batch + MORE_ROWS, read_whole)
    assert plan.rows <= most, f"{name} touches {plan.rows} rows\n{plan}"
    assert plan.buffers <= BUFFERS * batch + MORE_BUFFERS, (
        f"{name} reads {plan.buffers} pages\n{plan}"
    )


@pytest.mark.parametrize("name", ENGINE)
def test_a_plan_prepared_while_the_table_was_empty_stays_bounded(
    hostile: Hostile, name: str
) -> None:
    _bounded(name, explain_prepared(hostile.prepared_while_empty, ENGINE[name](BATCH)))


@pytest.mark.parametrize("name", ENGINE)
def test_a_plan_made_for_a_table_analysed_empty_stays_bounded(hostile: Hostile, name: str) -> None:
    _bounded(name, explain(hostile.analysed_empty, ENGINE[name](BATCH)))
    _bounded(name, explain_prepared(hostile.analysed_empty, ENGINE[name](BATCH)))


@pytest.mark.parametrize("name", CLIENT)
def test_a_caller_s_statement_on_a_table_analysed_empty_stays_bounded(
    hostile: Hostile, name: str
) -> None:
    _bounded(name, explain(hostile.client, CLIENT[name](BATCH)))


@pytest.mark.parametrize("name", ENGINE)
def test_a_plan_prepared_while_the_table_was_full_stays_bounded(
    emptied: Emptied, name: str
) -> None:
    _bounded(name, explain_prepared(emptied.prepared_while_full, ENGINE[name](BATCH)))


@pytest.mark.parametrize("name", CLIENT | LISTS)
def test_a_caller_s_statement_on_a_table_that_was_emptied_stays_bounded(
    emptied: Emptied, name: str
) -> None:
    plan = explain(emptied.client, (CLIENT | LISTS)[name](BATCH))
    # What is left may be read whole and sorted, once VACUUM has cut the file down to it (it does where it can).
    _bounded(name, plan, read_whole=4 * LEFT)


@pytest.mark.parametrize("session", ["prepared_while_empty", "analysed_empty"])
def test_completions_delete_as_they_scan_so_in_the_order_of_ids(
    hostile: Hostile, session: str
) -> None:
    plan = explain_prepared(getattr(hostile, session), ENGINE["complete"](BATCH))
    (deletion,) = (
        node
        for node in plan.nodes
        if node.get("Operation") == "Delete" and "job" in node["Relation Name"]
    )
    scans = [node["Node Type"] for node in deletion["Plans"] if "Subplan Name" not in node]
    assert scans == ["Index Scan"], f"a join may decide the order\n{plan}"


def test_the_bound_tells_a_nested_loop_over_a_batch(hostile: Hostile) -> None:
    """What the pinned settings are for: a loop compares every pair of the batch with every row."""
    conn = hostile.client
    conn.execute("SET enable_hashjoin = off; SET enable_mergejoin = off")
    plan = explain(conn, STORE.runs.extend(_pairs(RUNNING), 60))
    conn.execute("RESET enable_hashjoin; RESET enable_mergejoin")
    assert plan.rows > ROWS * BATCH + MORE_ROWS
