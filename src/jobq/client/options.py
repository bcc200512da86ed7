"""What an enqueue may say beside its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypedDict

import psycopg


class JobOptions(TypedDict, total=False):
    """Fields of a job. What is left open comes from the kind's decorator, then from the settings.

    queue, tenant: names of 1 to 128 characters of A-Z a-z 0-9 . _ : / @ -
    priority: -100 to 100, higher first.
    delay: seconds, or a timedelta, from now on; excludes run_at.
    run_at: a datetime with a zone; a time in the past means now.
    max_attempts: 1 to 100.
    timeout: seconds, or a timedelta, per attempt.
    idempotency_key: 1 to 255 bytes, within the tenant; the same request again gives the same job.
    unique_key: likewise; at most one live job has it.
    concurrency_key: likewise; what a cap on running jobs counts by.
    tags: at most 16 of 1 to 64 characters.
    meta: request id, trace context; not shown to handlers as arguments.
    """

    queue: str | None
    tenant: str | None
    priority: int | None
    delay: float | timedelta | None
    run_at: datetime | None
    max_attempts: int | None
    timeout: float | timedelta | None
    idempotency_key: str | None
    unique_key: str | None
    concurrency_key: str | None
    tags: Sequence[str] | None
    meta: Mapping[str, Any] | None


class EnqueueOptions(JobOptions, total=False):
    """Fields of a job, and where it is enqueued.

    connection: a psycopg connection whose transaction the job becomes part of; a sync one for
        `enqueue`, an async one for `aenqueue`.
    notify: whether workers are woken, True unless said; within a caller's transaction by a NOTIFY,
        which holds a database-wide lock while it commits. Workers also poll.
    """

    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any] | None
    notify: bool


#: Options that are no fields of the job.
PLACE = frozenset({"connection", "notify"})
#: Fields that come from the kind's decorator where they are left open.
DECORATED = ("queue", "priority", "max_attempts", "timeout")
