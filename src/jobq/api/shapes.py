"""How jobs look in answers."""

from __future__ import annotations

from typing import Any

import orjson

from jobq.api.answers import when
from jobq.payload import MAX_ERROR, clean_text, decode

Record = dict[str, Any]

#: Attempts whose errors are shown.
MAX_ERRORS = 20


def job_view(record: Record) -> dict[str, Any]:
    """Everything about one job (`JobStore.find_job`)."""
    return {
        **summary(record),
        "payload": _raw(record["payload"]),
        "payloadDropped": record["payload"] is None,
        "result": _raw(record["result"]),
        "errors": errors(record["history"]),
    }


def summary(record: Record) -> dict[str, Any]:
    """A job as lists show it: without payload, result and errors."""
    return {
        "id": record["id"],
        "kind": record["kind"],
        "queue": record["queue"],
        "tenant": record["tenant"],
        "priority": record["priority"],
        "status": record["status"],
        "attempts": record["attempts"],
        "maxAttempts": record["max_attempts"],
        "timeoutSeconds": record["timeout"],
        "createdAt": when(record["created_at"]),
        "runAt": when(record["run_at"]),
        "readyAt": when(record["ready_at"]),
        "startedAt": when(record["started_at"]),
        "finishedAt": when(record["finished_at"]),
        "worker": record["worker"],
        "progress": _raw(record["progress"]),
        "lastError": _cut(record["last_error"]),
        "tags": record["tags"] or [],
        "idempotencyKey": record["idempotency_key"],
        "uniqueKey": record["unique_key"],
        "concurrencyKey": record["concurrency_key"],
        "cancelRequested": record["cancel_requested_at"] is not None,
        "heldBy": record["held_by"],
        "requestId": _request_id(record["meta"]),
    }


def status_view(record: Record) -> dict[str, Any]:
    """What a client polls."""
    full = summary(record)
    return {
        name: full[name]
        for name in ("id", "status", "attempts", "maxAttempts", "runAt", "lastError")
    }


def errors(history: str | None) -> list[dict[str, Any]]:
    """The attempts that ended with an error, oldest first, the last 20."""
    attempts = _decode(history)
    if not isinstance(attempts, list):
        return []
    failed = [
        entry for entry in attempts if isinstance(entry, dict) and entry.get("error") is not None
    ]
    return [{**entry, "error": _cut(str(entry["error"]))} for entry in failed[-MAX_ERRORS:]]


def _raw(text: str | None) -> Any:
    """JSON text as it is: a number that no reader here could hold goes out unchanged."""
    return None if text is None else orjson.Fragment(text)


def _cut(text: str | None) -> str | None:
    return None if text is None else clean_text(text, MAX_ERROR)


def _decode(text: str | None) -> Any:
    try:
        return None if text is None else decode(text)
    except ValueError:  # written by SQL: numbers that only the database can read
        return None


def _request_id(meta: str | None) -> str | None:
    found = _decode(meta)
    value = found.get("request_id") if isinstance(found, dict) else None
    return value[:128] if isinstance(value, str) else None
