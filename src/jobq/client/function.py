"""Typed handlers: what `@app.job(...)` makes of a function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import (
    TYPE_CHECKING,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    overload,
)

from jobq import fields
from jobq.client.options import DECORATED, PLACE, EnqueueOptions
from jobq.context import Context
from jobq.handlers import Handler
from jobq.model import Job, NewJob
from jobq.payload import encode

if TYPE_CHECKING:
    from jobq.client.app import JobQ

C = ParamSpec("C")  # the function's parameters
P = ParamSpec("P")  # the same without the context: what is given when enqueuing
R_co = TypeVar("R_co", covariant=True)


class Enqueuer(Generic[P]):
    """Enqueues jobs of one kind with the options given so far.

    Args:
        app: its app.
        handler: the handler of the kind.
        options: see `jobq.client.options.EnqueueOptions`.

    Raises:
        InvalidJob: an option is out of bounds.
    """

    def __init__(self, app: JobQ, handler: Handler, options: EnqueueOptions) -> None:
        self._app = app
        self._options = options
        self._connection = options.get("connection")
        self._notify = options.get("notify", True)
        self._values = fields.check(
            {name: value for name, value in options.items() if name not in PLACE}
        )
        for name in DECORATED:
            self._values.setdefault(name, getattr(handler, name))
        #: The handler as the worker sees it.
        self.handler = handler

    @property
    def kind(self) -> str:
        """The kind of its jobs."""
        return self.handler.kind

    def options(self, **options: Unpack[EnqueueOptions]) -> Enqueuer[P]:
        """The same with further options.

        Raises:
            InvalidJob: an option is out of bounds; `fields` names all of them.
        """
        return Enqueuer(self._app, self.handler, {**self._options, **options})

    def new(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """A job for `JobQ.enqueue_many`; nothing is sent.

        Raises:
            InvalidPayload: the arguments do not fit the handler's, or cannot be stored.
        """
        payload = encode(self.handler.check(*args, **kwargs), limit=self._app.settings.max_payload)
        return NewJob(self.handler.kind, payload, **self._values)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Enqueue a job; the arguments are the handler's, without the context.

        Raises:
            InvalidPayload: the arguments do not fit the handler's, or cannot be stored.
            IdempotencyConflict: the idempotency key was used for another kind or payload.
            KeyInProgress: another transaction has held the same key for two seconds.
            DatabaseUnavailable: PostgreSQL cannot be reached.
        """
        return self._app.enqueue_many(
            [self.new(*args, **kwargs)], connection=self._connection, notify=self._notify
        )[0]

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """The same in a coroutine (see `enqueue`)."""
        return (
            await self._app.aenqueue_many(
                [self.new(*args, **kwargs)], connection=self._connection, notify=self._notify
            )
        )[0]


class JobFunction(Enqueuer[P], Generic[C, P, R_co]):
    """A function that can be enqueued. Calling it just runs it."""

    def __init__(self, app: JobQ, handler: Handler) -> None:
        super().__init__(app, handler, {})
        functools.update_wrapper(self, handler.function)

    def __call__(self, *args: C.args, **kwargs: C.kwargs) -> R_co:
        """Run the function here and now."""
        result: R_co = self.handler.function(*args, **kwargs)
        return result

    def __repr__(self) -> str:
        return f"<job {self.kind}: {self.handler.name}>"


class Decorator(Protocol):
    """What `app.job(...)` returns."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], R_co], /
    ) -> JobFunction[Concatenate[Context, P], P, R_co]: ...

    @overload
    def __call__(self, function: Callable[P, R_co], /) -> JobFunction[P, P, R_co]: ...
