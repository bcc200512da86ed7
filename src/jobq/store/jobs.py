"""What people do with jobs: look at them, retry and cancel them, count them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobq.model import JobStatus
from jobq.sql import Statements
from jobq.store.calls import Call, Row

_SUMMARY = (
    "id", "kind", "queue", "tenant", "priority", "status", "attempts", "max_attempts", "timeout", "created_at", "run_at",
    "ready_at", "started_at", "finished_at", "worker", "cancel_requested_at", "held_by", "concurrency_key",
    "idempotency_key", "unique_key", "last_error", "tags", "meta",
)  # fmt: skip
_FULL = (*_SUMMARY, "payload", "result", "progress", "history")
_LISTED = (*_SUMMARY, "progress")

#: Where jobs of a status lie: the live table, or a class of the archive.
_CLASSES = {
    **dict.fromkeys(("SCHEDULED", "QUEUED", "RUNNING"), "live"),
    **dict.fromkeys(("DONE", "CANCELLED"), "done"),
    **dict.fromkeys(("DEAD", "FAILED"), "dead"),
}

Record = dict[str, Any]


class JobStore:
    """Statements for the API and the command line."""

    def __init__(self, statements: Statements) -> None:
        self._sql = statements

    def find_job(self, id: int) -> Call[Record | None]:
        """One job with everything; meta, payload, result, progress and history as JSON text."""
        return Call(
            "find_job",
            self._sql["find_job"],
            {"id": id},
            lambda rows: dict(zip(_FULL, rows[0], strict=True)) if rows else None,
        )

    def list_jobs(
        self,
        *,
        most: int,
        before: int | None = None,
        statuses: Sequence[str] | None = None,
        kind: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        tag: str | None = None,
    ) -> Call[list[Record]]:
        """Jobs with ids below `before`, newest first; meta and progress as JSON text, no payload and result."""
        params = {
            "most": most,
            "before": before,
            "statuses": list(statuses) if statuses else None,
            "classes": sorted({_CLASSES[status] for status in statuses}) if statuses else None,
            "kind": kind,
            "queue": queue,
            "tenant": tenant,
            "tag": tag,
        }
        return Call("list_jobs", self._sql["list_jobs"], params, _records(_LISTED))

    def retry(self, ids: Sequence[int], *, force: bool = False) -> Call[list[int]]:
        """DEAD or SCHEDULED -> QUEUED (FAILED and CANCELLED too when forced); returns the ids of those it applied to."""
        return Call(
            "retry",
            self._sql["retry"],
            {"ids": list(ids), "force": force},
            lambda rows: [row[0] for row in rows],
        )

    def cancel(self, ids: Sequence[int], keep_payload: int) -> Call[dict[int, JobStatus]]:
        """Cancel jobs; returns the status of those it applied to, RUNNING meaning asked to stop.

        Args:
            ids: of the jobs.
            keep_payload: bytes; a cancelled job keeps a payload up to this.
        """
        return Call(
            "cancel",
            self._sql["cancel"],
            {"ids": list(ids), "keep_payload": keep_payload},
            lambda rows: {row[0]: JobStatus(row[1]) for row in rows},
        )

    def count_live(self) -> Call[list[Record]]:
        """Live jobs by queue, status and priority, with the ages (seconds) of the oldest queued and running."""
        columns = (
            "queue", "status", "priority", "jobs", "held_for_kind", "held_for_key", "held_for_unknown_kind", "oldest_queued", "oldest_running",
        )  # fmt: skip
        return Call("count_live", self._sql["count_live"], {}, _records(columns))

    def count_finished(self) -> Call[dict[str, int]]:
        """DEAD and FAILED jobs by status."""
        return Call("count_finished", self._sql["count_finished"], {}, dict)

    def count_backlogs(self) -> Call[dict[str, int]]:
        """The ten tenants with the most queued jobs."""
        return Call("count_backlogs", self._sql["count_backlogs"], {}, dict)

    def snapshot_age(self) -> Call[float]:
        """Age in seconds of the oldest open snapshot in this database."""
        return Call("snapshot_age", self._sql["snapshot_age"], {}, lambda rows: float(rows[0][0]))

    def list_workers(self) -> Call[list[Record]]:
        """Live workers."""
        columns = (
            "id", "host", "pid", "version", "queues", "kinds", "slots", "express", "running", "draining",
            "started_at", "heartbeat_at", "claimed_at", "claim_loop_ok", "finished_per_second",
        )  # fmt: skip
        return Call("list_workers", self._sql["list_workers"], {}, _records(columns))


def _records(columns: tuple[str, ...]) -> Any:
    def read(rows: list[Row]) -> list[Record]:
        return [dict(zip(columns, row, strict=True)) for row in rows]

    return read
