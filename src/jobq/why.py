"""Why a job is where it is: decided from facts, then worded (pure, no I/O).

Several reasons may hold at once. They come in one order: first what only a person changes (a pause, a missing
worker or handler), then what passes by itself (caps, the order of a concurrency key, rates), then the
jobs ahead. The first is the answer, the others are named beside it.

Ahead in fair order are the jobs of the job's own tenant that come before it (`own`: higher priority, or the same
and earlier, in queues that its workers serve), and of every other tenant with a backlog the smaller of
that backlog and (own + 1) x its weight / the own weight: start-time fair queuing gives each tenant so much while
the own jobs start, as long as all jobs take equally long. When the job starts follows from it:

    (ahead + 1 - free slots) / runs that the slots of its queue's workers can do per second: slots by the time of a run, lately

What nobody can know is left out: jobs yet to come, how long jobs will take, what the tenants' clocks
in the workers' memory still owe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from jobq.config import format_duration
from jobq.model import JobStatus
from jobq.payload import clean_text
from jobq.store.why import Ahead, Facts, Limit

#: Ids that a sentence names; the data has up to 20.
NAMED = 3
#: Bytes of a name, and of an error, in a sentence.
MOST_NAME, MOST_ERROR = 128, 200


class Reason(StrEnum):
    """Stable words for programs; those of limits are in the order in which they are looked at."""

    SCHEDULED = "scheduled"
    QUEUE_PAUSED = "queue_paused"
    TENANT_PAUSED = "tenant_paused"
    KIND_PAUSED = "kind_paused"
    KEY_PAUSED = "key_paused"
    NO_WORKER = "no_worker"
    UNKNOWN_KIND = "unknown_kind"
    QUEUE_CAP = "queue_cap"
    TENANT_CAP = "tenant_cap"
    KIND_CAP = "kind_cap"
    KEY_CAP = "key_cap"
    KEY_TURN = "key_turn"
    QUEUE_RATE = "queue_rate"
    TENANT_RATE = "tenant_rate"
    KIND_RATE = "kind_rate"
    KEY_RATE = "key_rate"
    AHEAD = "ahead"
    NEXT = "next"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True)
class Why:
    """The answer.

    Attributes:
        sentence: for people; may change.
        data: for programs, with camelCase names.
        also: what else holds, in order.
    """

    reason: Reason
    sentence: str
    data: dict[str, Any]
    also: tuple[Why, ...] = ()


def explain(facts: Facts, ahead: Ahead | None = None) -> Why:
    """Why a job waits, or what became of it.

    Args:
        facts: the job and what concerns it.
        ahead: what comes before it; needed where it is QUEUED.
    """
    match facts.status:
        case JobStatus.SCHEDULED:
            found = [_scheduled(facts), *_for_people(facts)]
        case JobStatus.QUEUED:
            assert ahead is not None
            found = [*_for_people(facts), *_passing(facts)]
            order = _order(facts, ahead)
            if not found or (facts.serving and order.reason is not Reason.NEXT):
                found.append(order)
        case JobStatus.RUNNING:
            found = [_running(facts)]
        case _:
            found = [_finished(facts)]
    first, *others = found
    return Why(first.reason, first.sentence, first.data, tuple(others))


def view(facts: Facts, why: Why) -> dict[str, Any]:
    """The answer as the API and `--json` show it."""
    also = [str(other.reason) for other in why.also]
    return {
        "id": facts.id,
        "status": facts.status.value,
        "reason": why.reason.value,
        "sentence": why.sentence,
        "data": {**why.data, "also": also},
    }


# --- what only a person changes -------------------------------------------------------------------


def _for_people(facts: Facts) -> Iterator[Why]:
    for limit in _in_order(facts.limits):
        if limit.paused:
            yield Why(
                Reason(f"{limit.which}_paused"),
                f"{_whose(limit)} is paused: nothing of it starts until it is resumed.",
                _scope(limit),
            )
    if not facts.serving:
        one = facts.alive == 1
        others = (
            f"; the {_count(facts.alive, 'live worker')} {'serves' if one else 'serve'} other queues"
            if facts.alive
            else ""
        )
        yield Why(
            Reason.NO_WORKER,
            f"No live worker serves queue {_name(facts.queue)}{others}.",
            {"queue": facts.queue, "liveWorkers": facts.alive},
        )
    elif not facts.knowing:
        yield Why(
            Reason.UNKNOWN_KIND,
            f"No live worker that serves queue {_name(facts.queue)} has a handler for kind {_name(facts.kind)}: "
            "it waits, at no cost in attempts, until one that has starts.",
            {"queue": facts.queue, "kind": facts.kind, "workers": facts.serving},
        )


# --- what passes by itself ------------------------------------------------------------------------


def _passing(facts: Facts) -> Iterator[Why]:
    limits = _in_order(facts.limits)
    for limit in limits:
        if limit.cap is not None and limit.taken >= limit.cap:
            yield _capped(limit, limit.cap)
    for limit in limits:
        if limit.cap is not None and limit.earlier >= max(limit.cap - limit.taken, 1):
            yield _in_turn(limit)
    for limit in limits:
        if limit.refill is not None and limit.refill > 0:
            yield _limited(limit, facts.now)


def _capped(limit: Limit, cap: int) -> Why:
    holders = limit.holders or []
    who = _jobs(holders, limit.taken)
    # More than may: they ran when the cap was set or lowered.
    held = f"{'slots are' if cap > 1 else 'slot is'} held by {who}"
    state = f"{limit.taken} run, {who}" if limit.taken > cap else f"its {held}"
    return Why(
        Reason(f"{limit.which}_cap"),
        f"{_whose(limit)} may run {_count(cap, 'job')} at once; {state}.",
        {**_scope(limit), "cap": cap, "running": limit.taken, "heldBy": holders},
    )


def _in_turn(limit: Limit) -> Why:
    ids = limit.earlier_ids or []
    comes = "comes" if limit.earlier == 1 else "come"
    who = _jobs(ids, limit.earlier)
    return Why(
        Reason.KEY_TURN,
        f"{who[0].upper()}{who[1:]} of its concurrency key {_name(limit.name)} {comes} first.",
        {**_scope(limit), "cap": limit.cap, "jobs": limit.earlier, "first": ids},
    )


def _limited(limit: Limit, now: datetime) -> Why:
    refill = limit.refill or 0.0
    refills_at = _utc(now + timedelta(seconds=refill))
    return Why(
        Reason(f"{limit.which}_rate"),
        f"{_whose(limit)} may start {_count(limit.rate_limit or 0, 'job')} in {format_duration(limit.rate_period or 0)}; "
        f"the next may start {_when(refills_at, now)}.",
        {
            **_scope(limit), "limit": limit.rate_limit, "periodSeconds": limit.rate_period, "refillsAt": refills_at,
            "inSeconds": round(refill, 3),
        },
    )  # fmt: skip


# --- its place ------------------------------------------------------------------------------------


def _order(facts: Facts, ahead: Ahead) -> Why:
    jobs = ahead.own + ahead.other
    able = ahead.workers - ahead.draining - ahead.stalled
    starts_now = jobs < ahead.free or (ahead.own == 0 and 0 < ahead.express >= ahead.other)
    data = {
        "jobs": jobs, "atLeast": ahead.at_least, "ownJobs": ahead.own, "otherJobs": ahead.other,
        "workers": ahead.workers, "draining": ahead.draining, "stalled": ahead.stalled, "slots": ahead.slots,
        "running": ahead.running, "runsPerSecond": round(ahead.runs_per_second, 3),
    }  # fmt: skip
    if able and starts_now and not ahead.at_least:
        return Why(Reason.NEXT, "Nothing is in its way: it starts now.", data)
    seconds = _wait(ahead)
    starts_at = None if seconds is None else _utc(facts.now + timedelta(seconds=seconds))
    sentences = [_place(ahead, jobs)]
    if able and starts_at is not None:
        word = "not before" if ahead.at_least else "about"
        sentences.append(f"it starts {_when(starts_at, facts.now, word)}")
    elif able:
        sentences.append("when it starts cannot be told, as no run has ended there yet")
    estimate = {"startsInSeconds": seconds, "startsAt": starts_at}
    return Why(Reason.AHEAD, "; ".join(sentences) + ".", {**data, **estimate})


def _wait(ahead: Ahead) -> float | None:
    """Seconds until the job starts; None where nothing tells."""
    if not ahead.runs_per_second or ahead.workers == ahead.draining + ahead.stalled:
        return None
    needed = max(0, ahead.own + ahead.other + 1 - ahead.free)
    return round(needed / ahead.runs_per_second, 1)


def _place(ahead: Ahead, jobs: int) -> str:
    """How many come first, and what the workers are up to."""
    least = "At least " if ahead.at_least else ""
    own = f" ({ahead.own} of its own tenant)" if ahead.own and ahead.other else ""
    queue = f"{least}{_count(jobs, 'job')}{own} {'comes' if jobs == 1 else 'come'} before it"
    if ahead.workers == ahead.draining + ahead.stalled:
        state = _nobody_able(ahead)
    elif ahead.free == 0:
        state = f"all {_count(ahead.slots, 'slot')} of its queue's workers are busy"
    else:
        state = ""
    if jobs:
        return f"{queue}; {state}" if state else queue
    return f"It is first, but {state}" if state else "It is first"


def _nobody_able(ahead: Ahead) -> str:
    if not ahead.workers:
        return "no worker serves its queue"
    whose = "the only worker of its queue" if ahead.workers == 1 else "every worker of its queue"
    if not ahead.stalled:
        return f"{whose} is shutting down"
    if not ahead.draining:
        return f"the claim loop of {whose} stands still"
    return f"{whose} is shutting down or its claim loop stands still"


# --- statuses -------------------------------------------------------------------------------------


def _scheduled(facts: Facts) -> Why:
    due = _utc(facts.run_at)
    retry = facts.attempts > 0
    tries = f"{facts.attempts} of {facts.max_attempts or '-'}"
    what = f"Attempt {tries} failed; the next" if retry else "It was enqueued for later: it"
    overdue = facts.run_at <= facts.now
    end = f"has been due since {_stamp(due)}" if overdue else f"is due {_when(due, facts.now)}"
    seconds = max(0.0, (facts.run_at - facts.now).total_seconds())
    return Why(
        Reason.SCHEDULED,
        f"{what} {end}.",
        {
            "cause": "retry" if retry else "delay", "dueAt": due, "inSeconds": round(seconds, 3),
            "attempts": facts.attempts, "maxAttempts": facts.max_attempts, "lastError": _error(facts),
        },
    )  # fmt: skip


def _running(facts: Facts) -> Why:
    since, until = _utc(facts.started_at), _utc(facts.lease_until)
    seconds = 0.0 if since is None else max(0.0, (facts.now - since).total_seconds())
    ended = until is not None and until <= facts.now
    lease = (
        f"its lease ended at {_stamp(until)}, so it is about to be taken back"
        if ended
        else f"its lease runs until {_stamp(until)} unless it is extended"
    )
    asked = " It was asked to stop." if facts.cancel_requested else ""
    return Why(
        Reason.RUNNING,
        f"It has been running for {_duration(seconds)} on worker {_name(facts.worker)}; {lease}.{asked}",
        {
            "since": since, "seconds": round(seconds, 3), "worker": facts.worker, "leaseUntil": until,
            "attempt": facts.attempts, "cancelRequested": facts.cancel_requested,
        },
    )  # fmt: skip


def _finished(facts: Facts) -> Why:
    at = _utc(facts.finished_at)
    error = _error(facts)
    because = f"; the last error was {error}" if error else ""
    match facts.status:
        case JobStatus.DEAD:
            end = f"{_count(facts.attempts, 'attempt')} failed and it has no more{because}"
        case JobStatus.FAILED:
            end = f"its handler said that trying again is of no use{because}"
        case JobStatus.CANCELLED:
            end = "somebody cancelled it"
        case _:
            end = f"attempt {facts.attempts} succeeded"
    return Why(
        Reason.FINISHED,
        f"It has been {facts.status} since {_stamp(at)}: {end}.",
        {
            "finishedAt": at, "attempts": facts.attempts, "maxAttempts": facts.max_attempts,
            "lastError": error if facts.status in (JobStatus.DEAD, JobStatus.FAILED) else None,
        },
    )  # fmt: skip


# --- words ----------------------------------------------------------------------------------------

_ORDER = ("queue", "tenant", "kind", "key")


def _in_order(limits: Sequence[Limit]) -> list[Limit]:
    return sorted(limits, key=lambda limit: _ORDER.index(limit.which))


def _scope(limit: Limit) -> dict[str, Any]:
    return {"scope": limit.which, "name": limit.name}


def _whose(limit: Limit) -> str:
    what = "Concurrency key" if limit.which == "key" else limit.which.capitalize()
    return f"{what} {_name(limit.name)}"


def _name(text: str | None) -> str:
    """A name as sentences show it: SQL may have put anything there."""
    return clean_text(text or "?", MOST_NAME)


def _error(facts: Facts) -> str | None:
    """The first line of the last error."""
    if not facts.last_error:
        return None
    return clean_text(facts.last_error.strip().partition("\n")[0], MOST_ERROR)


def _count(n: int, word: str) -> str:
    return f"{n} {word}{'' if n == 1 else 's'}"


def _jobs(ids: Sequence[int], n: int) -> str:
    """Some jobs by their ids: `jobs 1, 2, 3 and 4 more`."""
    named = [str(id_) for id_ in ids[:NAMED]]
    if n > len(named):
        return f"jobs {', '.join(named)} and {n - len(named)} more" if named else _count(n, "job")
    *most, last = named
    return f"jobs {', '.join(most)} and {last}" if most else f"job {last}"


def _utc(time: datetime | None) -> Any:
    return None if time is None else time.astimezone(UTC)


def _stamp(time: datetime | None) -> str:
    return "?" if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def _when(time: datetime, now: datetime, word: str = "") -> str:
    """`at 2030-01-01 12:00:00Z, in 5m`, or `about 2030-...`."""
    seconds = max(0.0, (time - now).total_seconds())
    return f"{word or 'at'} {_stamp(time)}, in {_duration(seconds)}"


def _duration(seconds: float) -> str:
    return format_duration(round(seconds, 1) if seconds < 10 else round(seconds))
