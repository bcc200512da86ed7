"""Enqueuing: one job by a plain INSERT, or many with their keys in one transaction."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from jobq.errors import IdempotencyConflict
from jobq.model import Job, JobStatus, Lane, NewJob
from jobq.sql import Statements
from jobq.store.calls import Call, Row, array
from jobq.wakeup import from_micros

#: Seconds that a rival's open transaction over the same key is waited for (design.md 8).
KEY_WAIT = 2.0


@dataclass(slots=True)
class Enqueued:
    """A job as enqueued, and what a wake-up says of it: its lane and due time."""

    job: Job
    lane: Lane
    run_at: datetime


class WinnerGone(Exception):
    """A key was taken when the job was inserted and free when the winner was read: do it again."""


#: A conversation with the database: it yields calls, is sent their answers, and returns a value.
Conversation = Generator[Call[Any], Any, list[Enqueued]]


class EnqueueStore:
    """Statements that bring jobs in.

    Args:
        max_attempts, timeout: what a job gets that neither says itself nor has a kind that does
            (settings JOBQ_MAX_ATTEMPTS and JOBQ_JOB_TIMEOUT, the latter in seconds).
    """

    def __init__(self, statements: Statements, *, max_attempts: int, timeout: float) -> None:
        self._sql = statements
        self._defaults = {"default_max_attempts": max_attempts, "default_timeout": timeout}

    def enqueue(self, job: NewJob) -> Call[Enqueued]:
        """Insert one job that has neither an idempotency key nor a unique key."""
        tenant = job.tenant
        params = (
            job.kind,
            job.queue,
            tenant,
            job.priority,
            job.payload,
            job.max_attempts,
            job.timeout,
            job.delay or 0.0,
            job.run_at,
            job.concurrency_key,
            array(job.tags) if job.tags else None,
            orjson.dumps(job.meta).decode() if job.meta else None,
            *self._defaults.values(),
        )
        return Call(
            "enqueue", self._sql["enqueue"], params, lambda rows: _inserted(rows[0], tenant)
        )

    def enqueue_many(self, jobs: Sequence[NewJob]) -> Conversation:
        """Insert jobs, all or none; to be run inside a transaction (see `KEY_WAIT`).

        Raises:
            IdempotencyConflict: a key was used before for another kind or payload; its `index` tells
                which job's.
            WinnerGone: roll back and start again.
        """
        rows: list[Row] = yield self._insert_many(jobs)
        found = [_created(row) if row[1] is not None else None for row in rows]
        lost = [index for index, item in enumerate(found) if item is None]
        if lost:
            yield from self._resolve(jobs, rows, lost, found)
        return [item for item in found if item is not None]

    def _resolve(
        self, jobs: Sequence[NewJob], rows: list[Row], lost: list[int], found: list[Enqueued | None]
    ) -> Generator[Call[Any], Any, None]:
        winners: list[Row] = yield self._resolve_keys(jobs, rows, lost)
        adopted: dict[int, tuple[int, str]] = {}
        for index, (_, retained_id, same, live_id, found_status) in zip(lost, winners, strict=True):
            own_id, state = rows[index][0], found_status
            if jobs[index].idempotency_key is None:
                winner = live_id
            elif retained_id == own_id:  # only the unique key was taken
                winner = live_id
                adopted[own_id] = (live_id, state)
            elif retained_id is None or same:
                # The job it stands for may itself have given way to a live one, in this batch.
                winner, state = adopted.get(retained_id, (retained_id, state))
            else:
                raise _conflict(index, retained_id)
            if winner is None:
                raise WinnerGone
            found[index] = _replayed(rows[index], winner, state)
        if adopted:
            yield self._adopt_keys(jobs, rows, adopted)

    def _insert_many(self, jobs: Sequence[NewJob]) -> Call[list[Row]]:
        params = {
            "kind": array(job.kind for job in jobs),
            "queue": array(job.queue for job in jobs),
            "tenant": array(job.tenant for job in jobs),
            "priority": array(job.priority for job in jobs),
            "payload": array(job.payload for job in jobs),
            "max_attempts": array(job.max_attempts for job in jobs),
            "timeout": array(job.timeout for job in jobs),
            "delay": array(job.delay or 0.0 for job in jobs),
            "run_at": array(job.run_at and str(job.run_at) for job in jobs),
            "idempotency_key": array(job.idempotency_key for job in jobs),
            "unique_key": array(job.unique_key for job in jobs),
            "concurrency_key": array(job.concurrency_key for job in jobs),
            "tags": array(array(job.tags) if job.tags else None for job in jobs),
            "meta": array(orjson.dumps(job.meta).decode() if job.meta else None for job in jobs),
            **self._defaults,
        }
        return Call("enqueue_many", self._sql["enqueue_many"], params, list)

    def _resolve_keys(
        self, jobs: Sequence[NewJob], rows: list[Row], lost: list[int]
    ) -> Call[list[Row]]:
        params = {
            "ord": array(lost),
            "id": array(rows[index][0] for index in lost),
            "kind": array(jobs[index].kind for index in lost),
            "tenant": array(jobs[index].tenant for index in lost),
            "payload": array(jobs[index].payload for index in lost),
            "idempotency_key": array(jobs[index].idempotency_key for index in lost),
            "unique_key": array(jobs[index].unique_key for index in lost),
        }
        return Call("resolve_keys", self._sql["resolve_keys"], params, list)

    def _adopt_keys(
        self, jobs: Sequence[NewJob], rows: list[Row], adopted: Mapping[int, tuple[int, str]]
    ) -> Call[None]:
        pairs = [(job, row[0]) for job, row in zip(jobs, rows, strict=True) if row[0] in adopted]
        params = {
            "tenant": array(job.tenant for job, _ in pairs),
            "idempotency_key": array(job.idempotency_key for job, _ in pairs),
            "id": array(own_id for _, own_id in pairs),
            "live_id": array(adopted[own_id][0] for _, own_id in pairs),
        }
        return Call("adopt_keys", self._sql["adopt_keys"], params, lambda rows: None)

    def notify(self, messages: Sequence[str]) -> Call[None]:
        """Send wake-up messages (see `jobq.wakeup`)."""
        return Call("notify", self._sql["notify"], {"messages": array(messages)}, lambda rows: None)

    def wake(self, messages: Sequence[str]) -> Call[None]:
        """Send wake-up messages at once, in a transaction of their own."""
        return Call("wake", self._sql["wake"], {"messages": array(messages)}, lambda rows: None)


def _inserted(row: Row, tenant: str) -> Enqueued:
    id_, status, priority, micros, queue = row[0].split(" ", 4)
    lane = Lane(queue, tenant, int(priority))
    return Enqueued(Job(int(id_), JobStatus(status)), lane, from_micros(int(micros)))


def _created(row: Row) -> Enqueued:
    id_, status, queue, tenant, priority, run_at = row
    return Enqueued(Job(id_, JobStatus(status)), Lane(queue, tenant, priority), run_at)


def _replayed(row: Row, winner: int, status: str) -> Enqueued:
    _, _, queue, tenant, priority, run_at = row
    job = Job(winner, _status(status), created=False)
    return Enqueued(job, Lane(queue, tenant, priority), run_at)


def _status(text: str) -> JobStatus | str:
    """A status, or RETIRED for a job that is gone while its key lives on."""
    return JobStatus(text) if text in JobStatus.__members__ else text


def _conflict(index: int, winner: int) -> IdempotencyConflict:
    reason = f"was used before for another kind or payload (job {winner})"
    return IdempotencyConflict(
        f"idempotency_key {reason}", fields={"idempotency_key": reason}, index=index, job_id=winner
    )
