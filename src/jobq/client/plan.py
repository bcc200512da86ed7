"""How an enqueue goes, for sync and async alike: what is said to the database, and what its errors mean."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from typing import Any, NoReturn

import psycopg
from psycopg import errors as pg

from jobq import db
from jobq.client.announcer import Wakeups
from jobq.errors import (
    IdempotencyConflict,
    InvalidJob,
    InvalidPayload,
    JobQError,
    KeyInProgress,
    SchemaError,
    TooSlow,
)
from jobq.fields import SNAKE, Naming
from jobq.model import NewJob
from jobq.store import KEY_WAIT, Call, Enqueued, EnqueueStore, WinnerGone

#: Jobs in one statement; more of them go in several, in one transaction.
CHUNK = 10_000
#: Times an enqueue is begun again after a deadlock or a key that changed hands.
ATTEMPTS = 5

Conversation = Generator[Call[Any], Any, list[Enqueued]]


class Request:
    """Jobs to enqueue, all or none.

    Args:
        store: its statements.
        jobs: one or more.
        own: whether the transaction is ours; otherwise it is the caller's.
        notify: whether workers are woken: from a caller's transaction within it, else afterwards.
        naming: how fields are called in errors.
    """

    def __init__(
        self,
        store: EnqueueStore,
        jobs: Sequence[NewJob],
        *,
        own: bool,
        notify: bool = True,
        naming: Naming = SNAKE,
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._naming = naming
        keyed = not all(map(is_plain, jobs))
        self._keyed = keyed
        self._single = len(jobs) == 1 and not keyed
        self._riding = notify and not own
        self.announce = notify and own
        #: Several statements, or one that may fail or wait for a rival: a transaction of its own, or
        #: a savepoint in the caller's.
        self.guarded = keyed or len(jobs) > CHUNK or not (own or self._single)
        #: Only the plain INSERT has a plan that cannot go wrong, and only our connections know whether
        #: they may prepare.
        self.prepare = own and self._single
        self._attempts = ATTEMPTS
        self._own = own
        self._repeatable = own and keyed and all(job.idempotency_key is not None for job in jobs)

    def conversation(self) -> Conversation:
        """The calls to make, on one connection, and the jobs as enqueued."""
        if self._single:
            found = [(yield self._store.enqueue(self._jobs[0]))]
        else:
            found = yield from self._many()
        if self._riding and (messages := Wakeups(found).take()):
            yield self._store.notify(messages)
        return found

    def failed(self, error: Exception) -> None:
        """Decide after an error: return to begin again.

        Raises:
            JobQError: what the error means for the caller.
            psycopg.Error: jobq has nothing to add to it, or it concerns the caller's transaction.
        """
        again = isinstance(error, WinnerGone) or (
            self._own and isinstance(error, pg.DeadlockDetected | pg.SerializationFailure)
        )
        if self._repeatable and db.is_unavailable(error):
            # Once: the answer may have been lost while the server ended, and the keys tell.
            again, self._repeatable = True, False
        self._attempts -= 1
        if not again or not self._attempts:
            refuse(error)

    def _many(self) -> Conversation:
        order = self._order()
        found: dict[int, Enqueued] = {}
        for start in range(0, len(order), CHUNK):
            places = order[start : start + CHUNK]
            try:
                enqueued = yield from self._store.enqueue_many([self._jobs[at] for at in places])
            except IdempotencyConflict as conflict:
                raise self._renamed(conflict, places[conflict.index]) from None
            found.update(zip(places, enqueued, strict=True))
        return [found[at] for at in range(len(order))]

    def _order(self) -> Sequence[int]:
        """In which order jobs are inserted: as given, but by key where several statements take keys.

        One statement takes its keys in their order, so that rivals wait for one another; several have
        to continue that order, or they deadlock.
        """
        if not self._keyed or len(self._jobs) <= CHUNK:
            return range(len(self._jobs))
        return sorted(range(len(self._jobs)), key=lambda at: _key_order(self._jobs[at]))

    def _renamed(self, conflict: IdempotencyConflict, index: int) -> IdempotencyConflict:
        """A conflict with the field called as the caller calls it, and the job's place in the whole batch."""
        name = self._naming.get("idempotency_key", "idempotency_key")
        if len(self._jobs) > 1:
            name = f"jobs[{index}].{name}"
        (reason,) = conflict.fields.values()
        return IdempotencyConflict(
            f"{name} {reason}", fields={name: reason}, index=index, job_id=conflict.job_id
        )


def refuse(error: Exception) -> NoReturn:
    """Raise what a database error means for the caller; the error itself where jobq has nothing to add."""
    meaning = _explain(error)
    if meaning is None:
        raise error
    raise meaning from error


def _explain(error: Exception) -> JobQError | None:
    if isinstance(error, WinnerGone):
        return KeyInProgress("the key keeps changing hands; try again")
    if db.is_unavailable(error):
        return db.unavailable(error)
    return _explain_statement(error)


def _explain_statement(error: Exception) -> JobQError | None:
    match error:
        case pg.LockNotAvailable() if not _waited_for_key(error):
            return TooSlow(
                "a lock on a table of jobq was not to be had; nothing was enqueued, try again"
            )
        case pg.QueryCanceled():
            return TooSlow("PostgreSQL took too long; nothing was enqueued, try again")
        case pg.LockNotAvailable():
            return KeyInProgress(
                f"another transaction has held the same key for {KEY_WAIT:g} seconds; try again"
            )
        case pg.UndefinedTable() | pg.UndefinedFunction() | pg.InvalidSchemaName():
            return SchemaError("the schema is missing or older than this version: run jobq migrate")
        case pg.InsufficientPrivilege():
            return SchemaError("this role may not enqueue: grant it what jobq migrate grants")
        case pg.CheckViolation():
            reason = "is refused by PostgreSQL: a field is out of bounds"
            return InvalidJob(f"the job {reason}", fields={"job": reason})
        case psycopg.DataError() | pg.ProgramLimitExceeded():
            reason = f"is refused by PostgreSQL: {error.diag.message_primary or error}"
            return InvalidPayload(f"payload {reason}", fields={"payload": reason})
    return None


def _waited_for_key(error: psycopg.Error) -> bool:
    """Whether the lock was a rival's new row: PostgreSQL names its place, `(0,7)`, in the context, in any language."""
    return _ROW.search(error.diag.context or "") is not None


_ROW = re.compile(r"\(\d+,\d+\)")


def is_plain(job: NewJob) -> bool:
    """Whether a job has no key that others may hold."""
    return job.idempotency_key is None and job.unique_key is None


def _key_order(job: NewJob) -> tuple[str, str, str]:
    return job.tenant, job.idempotency_key or "", job.unique_key or ""
