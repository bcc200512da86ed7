"""jobq: a multi-tenant, fair job queue and worker pool for Python on PostgreSQL."""

from typing import TYPE_CHECKING, Any

from jobq.buckets import time_bucket
from jobq.context import Context
from jobq.errors import (
    ConfigurationError,
    DatabaseUnavailable,
    IdempotencyConflict,
    InvalidJob,
    InvalidPayload,
    JobNotFound,
    JobQError,
    KeyInProgress,
    PayloadTooLarge,
    PermanentError,
    RetryAfter,
    SchemaError,
    TooSlow,
    UnknownKind,
    WrongStatus,
)
from jobq.model import Job, JobStatus

if TYPE_CHECKING:
    from jobq.client import JobQ

__version__ = "0.1.0"

__all__ = [
    "ConfigurationError",
    "Context",
    "DatabaseUnavailable",
    "IdempotencyConflict",
    "InvalidJob",
    "InvalidPayload",
    "Job",
    "JobNotFound",
    "JobQ",
    "JobQError",
    "JobStatus",
    "KeyInProgress",
    "PayloadTooLarge",
    "PermanentError",
    "RetryAfter",
    "SchemaError",
    "TooSlow",
    "UnknownKind",
    "WrongStatus",
    "__version__",
    "time_bucket",
]


def __getattr__(name: str) -> Any:
    """`JobQ` when it is first asked for: it brings the database driver, which takes a while to import."""
    if name == "JobQ":
        from jobq.client import JobQ  # noqa: PLC0415 - see above

        globals()["JobQ"] = JobQ
        return JobQ
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
