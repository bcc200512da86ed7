"""`JobQ`: registers handlers and enqueues jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import cached_property
from typing import Any, Self, TypeVar, Unpack, cast

import psycopg

from jobq import config, fields, migrate
from jobq.client.asynchronous import enqueue_within
from jobq.client.drivers import Drivers
from jobq.client.function import Decorator, JobFunction
from jobq.client.options import DECORATED, EnqueueOptions, JobOptions
from jobq.client.plan import Request, is_plain
from jobq.client.record import JobRecord, record
from jobq.client.synchronous import enqueue_within as enqueue_within_sync
from jobq.errors import ConfigurationError, InvalidJob, JobNotFound
from jobq.fields import SNAKE, Naming
from jobq.handlers import Handler, Registry
from jobq.model import Job, NewJob
from jobq.payload import decode
from jobq.sql import Statements
from jobq.store import EnqueueStore, JobStore

T = TypeVar("T")

_NO_ARGUMENTS: dict[str, Any] = {}


class JobQ:
    """An app: its handlers by kind, and the way to enqueue jobs. No I/O until first use; safe to fork.

    Args:
        database_url: connection URL; without it JOBQ_DATABASE_URL or DATABASE_URL.
        schema: the schema; without it JOBQ_SCHEMA, else `jobq`.
        pool_size: connections that this process opens at most, per event loop and for its threads.
        settings: further settings by name, such as `max_payload="2MiB"` (contract.md, "Settings").
    """

    def __init__(
        self,
        database_url: str | None = None,
        *,
        schema: str | None = None,
        pool_size: int = 4,
        **settings: Any,
    ) -> None:
        self._given = {"database_url": database_url, "schema": schema, **settings}
        self._pool_size = pool_size
        #: The handlers registered with `job`, by kind.
        self.handlers = Registry()

    @cached_property
    def settings(self) -> config.Settings:
        """The settings, read when first needed.

        Raises:
            ConfigurationError: one sentence that names every offending setting.
        """
        return config.load(**self._given)

    def job(
        self,
        kind: str,
        *,
        queue: str | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        timeout: float | timedelta | None = None,
        max_per_key: int | None = None,
        durable: bool = False,
    ) -> Decorator:
        """Register a function as the handler of a kind.

        Its parameters become the fields of the payload and are checked by pydantic, at enqueue and
        before it runs. One parameter, best the first, may be annotated `Context`. A coroutine function
        runs on the worker's loop, a plain one in a thread.

        Args:
            kind: name of the kind.
            queue, priority, max_attempts: what jobs of this kind get that do not say it themselves.
            timeout: likewise; seconds per attempt, or a `timedelta`.
            max_per_key: how many of its jobs with one concurrency key run at once, in all workers; 1
                unless said. An operator's setting wins (docs/fairness.md).
            durable: whether a claim of its jobs is on PostgreSQL's disk before they run. Otherwise a crash of the server may
                forget a claim, so that a job which still runs starts again. Jobs that hold a slot of a limit or key are always so.

        Raises:
            ConfigurationError: the kind has a handler already, the function cannot be one, or the kind was
                left out (`@app.job` without parentheses).
        """
        if not isinstance(kind, str):
            raise ConfigurationError(
                'a handler needs the name of its kind: write @app.job("email.welcome"), not @app.job alone'
            )

        def register(function: Callable[..., Any]) -> JobFunction[..., ..., Any]:
            if isinstance(function, JobFunction):
                function = function.handler.function
            handler = Handler(
                kind,
                function,
                queue=queue,
                priority=priority,
                max_attempts=max_attempts,
                timeout=timeout,
                max_per_key=max_per_key,
                durable=durable,
            )
            self.handlers.add(handler)
            return JobFunction(self, handler)

        return cast("Decorator", register)

    def new(
        self,
        kind: str,
        payload: Any = _NO_ARGUMENTS,
        *,
        naming: Naming = SNAKE,
        **options: Unpack[JobOptions],
    ) -> NewJob:
        """A job of a kind by name, for `enqueue_many`; nothing is sent.

        Where this app has a handler for the kind, the payload must fit it.

        Args:
            kind: name of the kind.
            payload: anything JSON can express.
            naming: how fields are called in errors (`jobq.fields`).
            options: see `jobq.client.options.JobOptions`.

        Raises:
            InvalidPayload: the payload cannot be stored, or does not fit the handler.
            InvalidJob: a field is out of bounds; `fields` names all of them.
        """
        limit = self.settings.max_payload
        job = fields.new_job(kind, payload, options, limit=limit, naming=naming)
        handler = self.handlers.get(job.kind)
        if handler is not None:
            handler.bind(decode(job.payload))
            for name in DECORATED:
                if getattr(job, name) is None:
                    setattr(job, name, getattr(handler, name))
        return job

    def enqueue(
        self, kind: str, payload: Any = _NO_ARGUMENTS, **options: Unpack[EnqueueOptions]
    ) -> Job:
        """Enqueue a job of a kind by name.

        Args:
            kind: name of the kind.
            payload: anything JSON can express.
            options: see `jobq.client.options.EnqueueOptions`.

        Raises:
            InvalidPayload, InvalidJob: see `new`.
            IdempotencyConflict: the idempotency key was used for another kind or payload.
            KeyInProgress: another transaction has held the same key for two seconds.
            DatabaseUnavailable: PostgreSQL cannot be reached.
        """
        connection, notify = options.pop("connection", None), options.pop("notify", True)
        job = self.new(kind, payload, **cast("JobOptions", options))
        return self.enqueue_many([job], connection=connection, notify=notify)[0]

    async def aenqueue(
        self, kind: str, payload: Any = _NO_ARGUMENTS, **options: Unpack[EnqueueOptions]
    ) -> Job:
        """The same in a coroutine (see `enqueue`)."""
        connection, notify = options.pop("connection", None), options.pop("notify", True)
        job = self.new(kind, payload, **cast("JobOptions", options))
        return (await self.aenqueue_many([job], connection=connection, notify=notify))[0]

    def enqueue_many(
        self,
        jobs: Iterable[NewJob],
        *,
        connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any] | None = None,
        notify: bool = True,
        naming: Naming = SNAKE,
    ) -> list[Job]:
        """Enqueue any number of jobs in one transaction, all or none; the result has their order.

        Args:
            jobs: from `.new(...)` of a handler or of the app.
            connection: a psycopg connection whose transaction they become part of.
            notify: whether workers are woken (see `jobq.client.options.EnqueueOptions`).
            naming: how fields are called in errors.

        Raises:
            IdempotencyConflict, KeyInProgress, DatabaseUnavailable: see `enqueue`.
        """
        listed = jobs if isinstance(jobs, list) else list(jobs)
        if not listed:
            return []
        if connection is not None:
            conn = _of_colour(connection, psycopg.Connection, "aenqueue")
            request = Request(self._store, listed, own=False, notify=notify, naming=naming)
            return enqueue_within_sync(conn, request)
        if len(listed) == 1 and is_plain(listed[0]):
            return [self._drivers.sync().insert(listed[0], notify=notify)]
        request = Request(self._store, listed, own=True, notify=notify, naming=naming)
        return self._drivers.sync().enqueue(request)

    async def aenqueue_many(
        self,
        jobs: Iterable[NewJob],
        *,
        connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any] | None = None,
        notify: bool = True,
        naming: Naming = SNAKE,
    ) -> list[Job]:
        """The same in a coroutine (see `enqueue_many`)."""
        listed = jobs if isinstance(jobs, list) else list(jobs)
        if not listed:
            return []
        if connection is not None:
            conn = _of_colour(connection, psycopg.AsyncConnection, "enqueue")
            request = Request(self._store, listed, own=False, notify=notify, naming=naming)
            return await enqueue_within(conn, request)
        if len(listed) == 1 and is_plain(listed[0]):
            return [await self._drivers.asynchronous().insert(listed[0], notify=notify)]
        request = Request(self._store, listed, own=True, notify=notify, naming=naming)
        return await self._drivers.asynchronous().enqueue(request)

    def get(self, id: int) -> JobRecord:
        """A job as it stands, live or finished.

        Raises:
            JobNotFound: there is none with this id.
            DatabaseUnavailable: PostgreSQL cannot be reached.
        """
        return _found(id, self._drivers.sync().ask(JobStore(self._statements).find_job(id)))

    async def aget(self, id: int) -> JobRecord:
        """The same in a coroutine (see `get`)."""
        call = JobStore(self._statements).find_job(id)
        return _found(id, await self._drivers.asynchronous().ask(call))

    def migrate(self) -> list[int]:
        """Bring the schema up to date; returns the versions applied (see `jobq.migrate.migrate`)."""
        return migrate.migrate(self.settings.require_database(), self.settings.schema_)

    def close(self) -> None:
        """Send the last wake-ups of sync calls and close their connections; a further use opens new ones."""
        self._drivers.close()

    async def aclose(self) -> None:
        """The same for this event loop, and for sync calls too."""
        await self._drivers.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    @cached_property
    def _statements(self) -> Statements:
        return Statements(self.settings.schema_)

    @cached_property
    def _drivers(self) -> Drivers:
        return Drivers(self._store, self.settings.require_database(), self._pool_size)

    @cached_property
    def _store(self) -> EnqueueStore:
        return EnqueueStore(
            self._statements,
            max_attempts=self.settings.max_attempts,
            timeout=self.settings.job_timeout,
        )


def _of_colour(connection: object, wanted: type[T], other: str) -> T:
    if isinstance(connection, wanted):
        return connection
    reason = f"must be a psycopg.{wanted.__name__}"
    if isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
        reason += f"; with this one use {other}"
    raise InvalidJob(f"connection {reason}", fields={"connection": reason})


def _found(id: int, row: dict[str, Any] | None) -> JobRecord:
    if row is None:
        raise JobNotFound(f"there is no job {id}")
    return record(row)
