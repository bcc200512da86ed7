"""Answers: JSON with times in UTC, and the one shape of every error."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson
import psycopg
from psycopg import errors as pg
from starlette.exceptions import HTTPException
from starlette.responses import Response

from jobq import db
from jobq.errors import (
    DatabaseUnavailable,
    IdempotencyConflict,
    InvalidJob,
    InvalidLimit,
    JobNotFound,
    JobQError,
    KeyInProgress,
    PayloadTooLarge,
    SchemaError,
    TooSlow,
    WrongStatus,
)
from jobq.payload import clean_text

#: Seconds that a client is told to wait before it asks again.
RETRY_AFTER = {"Retry-After": "2"}

#: Bytes of an error's sentence, and of the name of a bad field.
MAX_SENTENCE = 1000
MAX_NAME = 200

_STATUS: tuple[tuple[type[JobQError], int], ...] = (
    (PayloadTooLarge, 413),
    (InvalidJob, 422),
    (InvalidLimit, 422),
    (IdempotencyConflict, 409),
    (KeyInProgress, 409),
    (WrongStatus, 409),
    (JobNotFound, 404),
    (DatabaseUnavailable, 503),
    (SchemaError, 503),
    (TooSlow, 503),
)
_OF_ROUTING = {
    404: ("not_found", "nothing is at this path; /docs lists what is"),
    405: (
        "method_not_allowed",
        "this path does not take that method; the Allow header names those it takes",
    ),
}


class HttpError(Exception):
    """A request that is answered with an error.

    Args:
        status: HTTP status.
        code: stable word for programs.
        sentence: for people.
        fields: field name -> what is wrong with it.
        headers: further response headers.
    """

    def __init__(
        self,
        status: int,
        code: str,
        sentence: str,
        *,
        fields: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.code = code
        self.fields = dict(fields or {})
        self.headers = dict(headers or {})


def invalid(fields: Mapping[str, str]) -> HttpError:
    """422 that names all bad fields at once."""
    sentence = "; ".join(f"{name} {problem}" for name, problem in fields.items())
    return HttpError(422, "invalid_field", sentence, fields=fields)


def leaving() -> HttpError:
    """503: another process has to serve this."""
    return HttpError(503, "draining", "this process is shutting down", headers=RETRY_AFTER)


def answer(
    value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A JSON answer; `orjson.Fragment` in it is JSON text that goes out as it is."""
    body = orjson.dumps(value, default=str, option=orjson.OPT_UTC_Z)
    return Response(body, status, dict(headers or {}), "application/json")


def when(time: datetime | None) -> datetime | None:
    """A time as it goes out: in UTC (RFC 3339 with Z), whatever zone the session has."""
    return None if time is None else time.astimezone(UTC)


def refusal(error: BaseException) -> HttpError | None:
    """What an error is to a client; None: a fault of ours, whose text stays in the log."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, HTTPException) and error.status_code in _OF_ROUTING:
        code, sentence = _OF_ROUTING[error.status_code]
        return HttpError(error.status_code, code, sentence, headers=error.headers)
    if isinstance(error, JobQError):
        return _of_jobq(error)
    if isinstance(error, TimeoutError) or db.is_unavailable(error):
        return _of_jobq(db.unavailable(error))
    if isinstance(error, psycopg.Error):
        return _of_postgres(error)
    return None


def render(error: HttpError, request_id: str) -> Response:
    """The answer for an error: `{"error", "code", "requestId", "fields"?}`."""
    body: dict[str, Any] = {
        "error": clean_text(str(error), MAX_SENTENCE),
        "code": error.code,
        "requestId": request_id,
    }
    if error.fields:
        # Names come from the request: they may be endless, or no text at all.
        body["fields"] = {
            clean_text(name, MAX_NAME): clean_text(problem, MAX_SENTENCE)
            for name, problem in error.fields.items()
        }
    return answer(body, error.status, error.headers)


def _of_jobq(error: JobQError) -> HttpError | None:
    for kind, status in _STATUS:
        if isinstance(error, kind):
            wait = status == 503 or isinstance(error, KeyInProgress)
            return HttpError(
                status,
                error.code,
                str(error),
                fields=error.fields,
                headers=RETRY_AFTER if wait else None,
            )
    return None


def _of_postgres(error: psycopg.Error) -> HttpError | None:
    match error:
        case pg.LockNotAvailable() | pg.DeadlockDetected() | pg.SerializationFailure():
            return HttpError(
                409,
                "busy",
                "another transaction holds this; try again shortly",
                headers=RETRY_AFTER,
            )
        case pg.QueryCanceled():
            return HttpError(
                503,
                "too_slow",
                "the database took too long for this; narrow the question",
                headers=RETRY_AFTER,
            )
        case pg.UndefinedTable() | pg.InvalidSchemaName() | pg.UndefinedColumn():
            return HttpError(
                503,
                "schema",
                "the schema is missing or too old: run jobq migrate",
                headers=RETRY_AFTER,
            )
        case pg.DataError():
            return HttpError(
                422, "invalid_field", "a value in the request is none that PostgreSQL can store"
            )
    return None
