"""Why a job waits: the verdict and its sentence, from facts alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest

from jobq.api import models
from jobq.model import JobStatus
from jobq.store import Ahead, Facts, Limit
from jobq.why import Reason, Why, explain, view

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)

JOB = Facts(
    id=7, kind="nap", queue="mail", tenant="acme", priority=0, status=JobStatus.QUEUED, attempts=0, max_attempts=5,
    run_at=NOW, started_at=None, finished_at=None, worker=None, lease_until=None, cancel_requested=False,
    last_error=None, now=NOW, alive=1, serving=1, knowing=1,
)  # fmt: skip
#: A worker with a free slot, and nothing ahead.
IDLE = Ahead(
    own=0, other=0, at_least=False, workers=1, draining=0, stalled=0, slots=20, running=5, free=15, express=2,
    runs_per_second=2.0,
)  # fmt: skip
BUSY = IDLE._replace(running=20, free=0, express=0)

CAP = Limit("tenant", "acme", cap=2, taken=2, holders=[3, 4])
RATE = Limit("kind", "nap", rate_limit=10, rate_period=60.0, refill=5.0)
KEY = Limit("key", "order-7", cap=1, taken=0, holders=None)


def ask(ahead: Ahead = IDLE, **changes: Any) -> Why:
    return explain(replace(JOB, **changes), ahead)


def paused(which: str, name: str = "x") -> Limit:
    return Limit(which, name, paused=True)


WAITING: dict[str, tuple[dict[str, Any], Ahead, Reason, str]] = {
    "nothing": ({}, IDLE, Reason.NEXT, "Nothing is in its way: it starts now."),
    "queue paused": (
        {"limits": (paused("queue", "mail"),)}, IDLE, Reason.QUEUE_PAUSED,
        "Queue mail is paused: nothing of it starts until it is resumed.",
    ),
    "tenant paused": (
        {"limits": (paused("tenant", "acme"),)}, IDLE, Reason.TENANT_PAUSED,
        "Tenant acme is paused: nothing of it starts until it is resumed.",
    ),
    "kind paused": ({"limits": (paused("kind"),)}, IDLE, Reason.KIND_PAUSED, "Kind x is paused: nothing of it starts until it is resumed."),
    "key paused": (
        {"limits": (paused("key"),)}, IDLE, Reason.KEY_PAUSED, "Concurrency key x is paused: nothing of it starts until it is resumed.",
    ),
    "no worker": ({"alive": 0, "serving": 0, "knowing": 0}, BUSY, Reason.NO_WORKER, "No live worker serves queue mail."),
    "workers of other queues": (
        {"alive": 2, "serving": 0, "knowing": 0}, BUSY, Reason.NO_WORKER,
        "No live worker serves queue mail; the 2 live workers serve other queues.",
    ),
    "unknown kind": (
        {"knowing": 0}, IDLE, Reason.UNKNOWN_KIND,
        "No live worker that serves queue mail has a handler for kind nap: it waits, at no cost in attempts, until one that has starts.",
    ),
    "cap": (
        {"limits": (CAP,)}, IDLE, Reason.TENANT_CAP,
        "Tenant acme may run 2 jobs at once; its slots are held by jobs 3 and 4.",
    ),
    "cap of one": (
        {"limits": (Limit("key", "order-7", cap=1, taken=1, holders=[3]),)}, IDLE, Reason.KEY_CAP,
        "Concurrency key order-7 may run 1 job at once; its slot is held by job 3.",
    ),
    "cap held by many": (
        {"limits": (Limit("queue", "mail", cap=50, taken=50, holders=list(range(1, 21))),)}, IDLE, Reason.QUEUE_CAP,
        "Queue mail may run 50 jobs at once; its slots are held by jobs 1, 2, 3 and 47 more.",
    ),
    "more than its cap": (
        {"limits": (CAP._replace(cap=1),)}, IDLE, Reason.TENANT_CAP,
        "Tenant acme may run 1 job at once; 2 run, jobs 3 and 4.",
    ),
    "a free slot of its cap": ({"limits": (CAP._replace(taken=1, holders=[3]),)}, IDLE, Reason.NEXT, "Nothing is in its way: it starts now."),
    "another of its key first": (
        {"limits": (KEY._replace(earlier=1, earlier_ids=[6]),)}, IDLE, Reason.KEY_TURN,
        "Job 6 of its concurrency key order-7 comes first.",
    ),
    "others of its key first": (
        {"limits": (KEY._replace(cap=2, earlier=5, earlier_ids=[1, 2, 3, 4, 5]),)}, IDLE, Reason.KEY_TURN,
        "Jobs 1, 2, 3 and 2 more of its concurrency key order-7 come first.",
    ),
    "others of its key, and slots for all": ({"limits": (KEY._replace(cap=2, earlier=1, earlier_ids=[6]),)}, IDLE, Reason.NEXT, "Nothing is in its way: it starts now."),
    "rate": (
        {"limits": (RATE,)}, IDLE, Reason.KIND_RATE,
        "Kind nap may start 10 jobs in 1m; the next may start at 2026-05-01 12:00:05Z, in 5s.",
    ),
    "a rate with a token": ({"limits": (RATE._replace(refill=-3.0),)}, IDLE, Reason.NEXT, "Nothing is in its way: it starts now."),
    "jobs ahead": (
        {}, BUSY._replace(own=2, other=10), Reason.AHEAD,
        ("12 jobs (2 of its own tenant) come before it; all 20 slots of its queue's workers are busy; "
        "it starts about 2026-05-01 12:00:06Z, in 6.5s."),
    ),
    "one job ahead": (
        {}, BUSY._replace(own=1), Reason.AHEAD,
        "1 job comes before it; all 20 slots of its queue's workers are busy; it starts about 2026-05-01 12:00:01Z, in 1s.",
    ),
    "too many to count": (
        {}, BUSY._replace(other=10_000, at_least=True), Reason.AHEAD,
        ("At least 10000 jobs come before it; all 20 slots of its queue's workers are busy; "
        "it starts not before 2026-05-01 13:23:20Z, in 1h23m."),
    ),
    "no run has ended yet": (
        {}, BUSY._replace(other=1, runs_per_second=0.0), Reason.AHEAD,
        "1 job comes before it; all 20 slots of its queue's workers are busy; when it starts cannot be told, as no run has ended there yet.",
    ),
    "slots busy": (
        {}, BUSY, Reason.AHEAD,
        "It is first, but all 20 slots of its queue's workers are busy; it starts about 2026-05-01 12:00:00Z, in 0.5s.",
    ),
    "more ahead than free slots": (
        {}, IDLE._replace(other=15), Reason.AHEAD, "15 jobs come before it; it starts about 2026-05-01 12:00:00Z, in 0.5s.",
    ),
    "fewer ahead than free slots": ({}, IDLE._replace(other=14), Reason.NEXT, "Nothing is in its way: it starts now."),
    "an express slot": ({}, BUSY._replace(other=1, express=1), Reason.NEXT, "Nothing is in its way: it starts now."),
    "its own tenant first in the express slot": (
        {}, BUSY._replace(own=1, express=1), Reason.AHEAD,
        "1 job comes before it; all 20 slots of its queue's workers are busy; it starts about 2026-05-01 12:00:01Z, in 1s.",
    ),
    "all draining": (
        {"serving": 3}, IDLE._replace(workers=3, draining=3), Reason.AHEAD, "It is first, but every worker of its queue is shutting down.",
    ),
    "one draining": ({}, IDLE._replace(draining=1, other=4), Reason.AHEAD, "4 jobs come before it; the only worker of its queue is shutting down."),
    "claim loop stands still": (
        {}, IDLE._replace(stalled=1), Reason.AHEAD, "It is first, but the claim loop of the only worker of its queue stands still.",
    ),
    "nobody able": (
        {"serving": 2}, IDLE._replace(workers=2, stalled=1, draining=1), Reason.AHEAD,
        "It is first, but every worker of its queue is shutting down or its claim loop stands still.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WAITING)
def test_a_queued_job_is_told_why_it_waits(case: str) -> None:
    changes, ahead, reason, sentence = WAITING[case]
    found = ask(ahead, **changes)
    assert (found.reason, found.sentence) == (reason, sentence)


def job(status: str, **changes: Any) -> Why:
    return explain(replace(JOB, status=JobStatus(status), **changes))


def test_a_job_that_was_enqueued_for_later_says_when() -> None:
    found = job("SCHEDULED", run_at=NOW + timedelta(minutes=5))
    assert found.sentence == "It was enqueued for later: it is due at 2026-05-01 12:05:00Z, in 5m."
    assert found.data["cause"] == "delay"
    assert found.data["inSeconds"] == 300


def test_a_job_that_failed_says_when_it_is_tried_again() -> None:
    found = job("SCHEDULED", run_at=NOW + timedelta(seconds=4), attempts=2, last_error="Bad\nluck")
    assert (
        found.sentence == "Attempt 2 of 5 failed; the next is due at 2026-05-01 12:00:04Z, in 4s."
    )
    assert (found.data["cause"], found.data["lastError"]) == ("retry", "Bad")


def test_a_job_that_is_due_and_not_queued_yet_says_since_when() -> None:
    found = job("SCHEDULED", run_at=NOW - timedelta(seconds=4), alive=0, serving=0)
    assert (
        found.sentence == "It was enqueued for later: it has been due since 2026-05-01 11:59:56Z."
    )
    assert [other.reason for other in found.also] == [Reason.NO_WORKER]


def test_a_running_job_says_where_and_until_when_it_is_held() -> None:
    run = {
        "started_at": NOW - timedelta(seconds=90),
        "worker": "h:1:a",
        "lease_until": NOW + timedelta(seconds=60),
    }
    assert job("RUNNING", **run).sentence == (
        "It has been running for 1m30s on worker h:1:a; its lease runs until 2026-05-01 12:01:00Z unless it is extended."
    )
    assert job("RUNNING", **{**run, "cancel_requested": True}).sentence.endswith(
        "It was asked to stop."
    )
    late = job("RUNNING", **{**run, "lease_until": NOW - timedelta(seconds=1)}).sentence
    assert "its lease ended at 2026-05-01 11:59:59Z, so it is about to be taken back" in late


@pytest.mark.parametrize(
    ("status", "end"),
    [
        ("DONE", "attempt 3 succeeded."),
        ("CANCELLED", "somebody cancelled it."),
        ("DEAD", "3 attempts failed and it has no more; the last error was Bad."),
        (
            "FAILED",
            "its handler said that trying again is of no use; the last error was Bad.",
        ),
    ],
)
def test_a_finished_job_says_what_became_of_it(status: str, end: str) -> None:
    found = job(status, finished_at=NOW, attempts=3, last_error="Bad\nluck")
    assert found.reason is Reason.FINISHED
    assert found.sentence == f"It has been {status} since 2026-05-01 12:00:00Z: {end}"
    assert found.data["lastError"] == ("Bad" if status in ("DEAD", "FAILED") else None)


def test_several_reasons_come_in_their_fixed_order() -> None:
    everything = (
        RATE,
        Limit("queue", "mail", paused=True, cap=1, taken=1, holders=[1], rate_limit=1, rate_period=1.0, refill=1.0),
        KEY._replace(paused=True, taken=1, earlier=1, earlier_ids=[6]),
        CAP._replace(paused=True),
        Limit("kind", "nap", paused=True, cap=1, taken=1, holders=[1]),
    )  # fmt: skip
    found = ask(BUSY._replace(other=3), knowing=0, limits=everything)
    assert [found.reason, *(other.reason for other in found.also)] == [
        "queue_paused", "tenant_paused", "kind_paused", "key_paused", "unknown_kind", "queue_cap", "tenant_cap",
        "kind_cap", "key_cap", "key_turn", "queue_rate", "kind_rate", "ahead",
    ]  # fmt: skip
    assert view(JOB, found)["data"]["also"] == [other.reason.value for other in found.also]


def test_nobody_is_told_of_the_order_where_nobody_works() -> None:
    assert ask(BUSY._replace(other=3), alive=0, serving=0).also == ()


def test_an_estimate_counts_free_slots_and_what_ends_a_second() -> None:
    found = ask(IDLE._replace(other=34)).data
    assert (found["startsInSeconds"], found["startsAt"]) == (10.0, NOW + timedelta(seconds=10))
    assert ask(IDLE._replace(other=34, runs_per_second=0.0)).data["startsAt"] is None
    assert ask(IDLE._replace(other=34, draining=1)).data["startsAt"] is None


def test_names_from_sql_do_not_swell_the_sentence() -> None:
    found = ask(limits=(paused("tenant", "t" * 10_000),))
    assert len(found.sentence) < 250
    assert found.data["name"] == "t" * 10_000


def test_every_reason_is_described() -> None:
    assert set(get_args(models.Why.model_fields["reason"].annotation)) == set(Reason)
