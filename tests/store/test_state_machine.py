"""Every operation of the store against a job in every status: what `model.TRANSITIONS` allows, and nothing else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from psycopg import sql
from tests.store.support import (
    KEEP_PAYLOAD,
    LEASE,
    OTHER_LEASE,
    STORE,
    claim,
    complete,
    fail,
    give_key,
    image,
    job,
    put,
)

from jobq.db import Conn
from jobq.model import LIVE, TRANSITIONS, Claim, JobStatus, Verdict
from jobq.store import BEGINNING, Call, run_sync

#: What of a job no transition changes.
LASTING = (
    "id", "kind", "queue", "tenant", "priority", "max_attempts", "timeout", "created_at", "concurrency_key",
    "idempotency_key", "unique_key", "tags", "meta", "payload",
)  # fmt: skip

#: What may have happened to a job before: columns by name of the circumstance.
CIRCUMSTANCES: dict[str, dict[str, Any]] = {
    "plain": {},
    "cancel requested": {"cancel_requested_at": sql.SQL("now()")},
    "last attempt": {"attempts": 5},
    "attempts overdrawn": {"attempts": 9},
    "cancel requested in the last attempt": {
        "attempts": 5,
        "cancel_requested_at": sql.SQL("now()"),
    },
}

OPERATIONS: dict[str, Callable[[int, Verdict], Call[Any]]] = {
    "promote": lambda id_, _: STORE.upkeep.promote(BEGINNING, 100),
    "claim": lambda id_, _: claim(OTHER_LEASE),
    "extend": lambda id_, _: STORE.runs.extend([Claim(id_, LEASE)], 600),
    "complete": lambda id_, _: complete(Claim(id_, LEASE), result="7"),
    "fail": lambda id_, verdict: fail(Claim(id_, LEASE), verdict=verdict),
    "release": lambda id_, _: STORE.runs.release([Claim(id_, LEASE)], KEEP_PAYLOAD),
    "reclaim": lambda id_, _: STORE.upkeep.reclaim(BEGINNING, 100, KEEP_PAYLOAD),
    "retry": lambda id_, _: STORE.jobs.retry([id_]),
    "force_retry": lambda id_, _: STORE.jobs.retry([id_], force=True),
    "cancel": lambda id_, _: STORE.jobs.cancel([id_], KEEP_PAYLOAD),
}


class Case(NamedTuple):
    operation: str
    status: str
    circumstance: str
    verdict: Verdict

    def __str__(self) -> str:
        verdict = f"-{self.verdict}" if self.operation == "fail" else ""
        return f"{self.operation}{verdict}-{self.status}-{self.circumstance}".replace(" ", "_")

    @property
    def fate(self) -> str | None:
        """The status it must lead to; None: nothing may change."""
        exhausted = CIRCUMSTANCES[self.circumstance].get("attempts", 1) >= 5
        cancelled = "cancel_requested_at" in CIRCUMSTANCES[self.circumstance]
        if JobStatus(self.status) not in TRANSITIONS[self.operation]:
            return None
        match self.operation:
            case "complete":
                return "DONE"
            case "claim" | "extend":
                return "RUNNING"
            case "promote" | "retry" | "force_retry":
                return "QUEUED"
            case "cancel":
                return "RUNNING" if self.status == "RUNNING" else "CANCELLED"
            case "fail" if self.verdict is Verdict.STOPPED:
                return "CANCELLED"
            case _ if cancelled:
                return "CANCELLED"
            case "fail" if self.verdict is Verdict.PERMANENT:
                return "FAILED"
            case "release":
                return "QUEUED"
            case _ if exhausted:
                return "DEAD"
        return "SCHEDULED" if self.operation == "fail" else "QUEUED"


VERDICTS = (Verdict.RETRY, Verdict.PERMANENT, Verdict.STOPPED)
CASES = [
    Case(operation, status, circumstance, verdict)
    for operation in TRANSITIONS
    for status in JobStatus
    for circumstance in CIRCUMSTANCES
    for verdict in (VERDICTS if operation == "fail" else VERDICTS[:1])
]


def test_the_cases_lead_exactly_where_the_table_allows() -> None:
    reached: dict[str, dict[JobStatus, set[JobStatus]]] = defaultdict(lambda: defaultdict(set))
    for case in CASES:
        if case.fate is not None:
            reached[case.operation][JobStatus(case.status)].add(JobStatus(case.fate))
    assert reached == TRANSITIONS
    assert set(OPERATIONS) == set(TRANSITIONS)


@pytest.mark.parametrize("operation", TRANSITIONS)
@pytest.mark.parametrize("status", JobStatus)
def test_an_operation_changes_the_job_as_allowed_and_nothing_else(
    undone: Conn, operation: str, status: JobStatus
) -> None:
    for case in CASES:
        if case.operation == operation and case.status == status:
            with undone.transaction(force_rollback=True):
                _try(undone, case)


def _try(conn: Conn, case: Case) -> None:
    id_ = _prepare(conn, case)
    before, row = image(conn), job(conn, id_)
    answer = run_sync(conn, OPERATIONS[case.operation](id_, case.verdict))
    after = image(conn)

    if case.fate is None:
        assert after == before, case
    else:
        changed = {
            name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
        }
        assert changed <= {f"job {id_}", f"archive {id_}", "key default live mine"}, case
        now = job(conn, id_)
        assert now["status"] == case.fate, case
        assert {name: now[name] for name in LASTING} == {name: row[name] for name in LASTING}, case
        assert now["table"] == ("job" if JobStatus(case.fate) in LIVE else "job_archive")
        assert ("key default live mine" in after) == (JobStatus(case.fate) in LIVE), case
    assert bool(getattr(answer, "moved", answer)) == (case.fate is not None), case


def _prepare(conn: Conn, case: Case) -> int:
    """A job as the case says, among others in every status that must not change."""
    for status in JobStatus:
        put(conn, status, tenant="other", unique_key=f"other-{status}")
    columns: dict[str, Any] = {
        "unique_key": "mine", "idempotency_key": "i", "concurrency_key": "c", "tags": ["a", "b"],
        "meta": sql.SQL("'{\"request_id\": \"r\"}'"), "payload": sql.SQL("'{\"n\": 1}'"),
    }  # fmt: skip
    if case.operation == "reclaim" and case.status == "RUNNING":
        columns["lease_until"] = sql.SQL("now() - interval '1 second'")
    if case.operation == "promote" and case.status == "SCHEDULED":
        columns["run_at"] = sql.SQL("now() - interval '1 second'")
    id_ = put(conn, case.status, **columns | CIRCUMSTANCES[case.circumstance])
    if JobStatus(case.status) in LIVE:
        give_key(conn, id_, "mine")
    return id_


@pytest.mark.parametrize("operation", ["extend", "complete", "fail", "release", "progress"])
@pytest.mark.parametrize("status", JobStatus)
def test_a_wrong_lease_changes_nothing_in_any_status(
    undone: Conn, operation: str, status: JobStatus
) -> None:
    id_ = put(undone, status)
    stale = Claim(id_, OTHER_LEASE)
    calls: dict[str, Call[Any]] = {
        "extend": STORE.runs.extend([stale], 600),
        "complete": complete(stale),
        "fail": fail(stale),
        "release": STORE.runs.release([stale], KEEP_PAYLOAD),
        "progress": STORE.runs.progress([(stale, "0.5")]),
    }
    before = image(undone)
    assert not run_sync(undone, calls[operation])
    assert image(undone) == before


@pytest.mark.parametrize(
    ("put_status", "columns", "operation"),
    [
        ("SCHEDULED", {}, "promote"),
        ("QUEUED", {"run_at": "now() + interval '1 hour'"}, "claim"),
        ("QUEUED", {"held_by": "'kind:test'"}, "claim"),
        ("RUNNING", {}, "reclaim"),
    ],
    ids=["early_promote", "early_claim", "held_claim", "reclaim_of_a_living_lease"],
)
def test_what_is_not_due_stays(
    undone: Conn, put_status: str, columns: dict[str, str], operation: str
) -> None:
    id_ = put(undone, put_status, **{name: sql.SQL(text) for name, text in columns.items()})
    before = image(undone)
    run_sync(undone, OPERATIONS[operation](id_, Verdict.RETRY))
    assert image(undone) == before
