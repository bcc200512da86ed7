"""A job as it stands, for `JobQ.get`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobq.model import JobStatus
from jobq.payload import decode


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job, live or finished. `timeout` is in seconds; `payload` is None where it was dropped."""

    id: int
    kind: str
    status: JobStatus
    queue: str
    tenant: str
    priority: int
    attempts: int
    max_attempts: int | None
    timeout: float | None
    created_at: datetime
    run_at: datetime
    finished_at: datetime | None
    idempotency_key: str | None
    unique_key: str | None
    concurrency_key: str | None
    tags: list[str]
    payload: Any
    result: Any
    last_error: str | None


def record(row: dict[str, Any]) -> JobRecord:
    """From what `JobStore.find_job` reads."""
    values = {name: row[name] for name in JobRecord.__dataclass_fields__}
    values["status"] = JobStatus(row["status"])
    values["tags"] = row["tags"] or []
    for name in ("payload", "result"):
        values[name] = None if row[name] is None else decode(row[name])
    return JobRecord(**values)
