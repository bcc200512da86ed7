"""Every error that jobq raises on purpose. All share `JobQError`, so one `except` catches them."""

from __future__ import annotations

from collections.abc import Mapping


class JobQError(Exception):
    """Base of all errors raised by jobq.

    Attributes:
        code: a stable word for programs; the sentence may change, the code does not.
        fields: field name -> what is wrong with it and what would be right.
    """

    code = "error"

    def __init__(self, message: str, *, fields: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.fields = dict(fields or {})


class ConfigurationError(JobQError):
    """A setting is missing or has a value that cannot work."""

    code = "configuration"


class InvalidJob(JobQError, ValueError):
    """A field of a job to enqueue is out of bounds; `fields` names it."""

    code = "invalid_field"


class InvalidPayload(InvalidJob):
    """The payload is no JSON that PostgreSQL can hold, or does not fit the handler's arguments."""

    code = "invalid_payload"


class PayloadTooLarge(InvalidPayload):
    """The payload is larger than JOBQ_MAX_PAYLOAD."""

    code = "payload_too_large"


class InvalidLimit(JobQError, ValueError):
    """What is to be set for a tenant, queue, kind or key is out of bounds; `fields` names it."""

    code = "invalid_field"


class UnknownKind(InvalidJob):
    """No handler of this app is registered for the kind."""

    code = "unknown_kind"


class IdempotencyConflict(JobQError):
    """The idempotency key was used before for another kind or payload.

    Attributes:
        index: which job of a batch, from 0.
        job_id: the job that the key stands for.
    """

    code = "idempotency_conflict"

    def __init__(
        self,
        message: str,
        *,
        fields: Mapping[str, str] | None = None,
        index: int = 0,
        job_id: int | None = None,
    ) -> None:
        super().__init__(message, fields=fields)
        self.index = index
        self.job_id = job_id


class KeyInProgress(JobQError):
    """Another open transaction holds the same key; its end could not be awaited any longer."""

    code = "key_in_progress"


class TooSlow(JobQError):
    """The database kept the request waiting for too long; nothing of it was done."""

    code = "too_slow"


class JobNotFound(JobQError):
    """No job has this id, neither live nor finished."""

    code = "not_found"


class WrongStatus(JobQError):
    """The job's status does not allow the operation."""

    code = "wrong_status"


class DatabaseUnavailable(JobQError):
    """PostgreSQL cannot be reached, is shutting down, or accepts no writes."""

    code = "database_unavailable"


class SchemaError(JobQError):
    """The schema is missing, too old or too new for this version of jobq."""

    code = "schema"


class PermanentError(JobQError):
    """Raise it in a handler to fail the job at once: no further attempt can succeed (FAILED)."""

    code = "permanent"


class RetryAfter(JobQError):
    """Raise it in a handler to choose when the next attempt starts.

    Args:
        delay: seconds, or a `timedelta`, from now on; it replaces the backoff of this attempt.
        message: why; it becomes the attempt's error text.
    """

    code = "retry_after"

    def __init__(self, delay: object, message: str = "") -> None:
        super().__init__(message or f"retry after {delay}")
        self.delay = delay
