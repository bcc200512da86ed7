"""GET /api/queues, /api/workers and /api/stats."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from jobq import limits
from jobq.api import limit_models, models
from jobq.api.answers import answer, when
from jobq.api.body import camel
from jobq.api.docs import errors
from jobq.api.gauges import LIVE, Snapshot
from jobq.api.state import api

router = APIRouter(tags=["fleet"])

_TIMES = ("started_at", "heartbeat_at", "claimed_at")


@router.get("/api/queues", response_model=limit_models.Queues, responses=errors(503))
async def list_queues(request: Request) -> Response:
    """Queues that have live jobs or workers, or for which something is set."""
    found = await api(request).gauges.snapshot()
    call = api(request).limiters.list_limiters("queue", also=list(found.queues))
    records = await api(request).database.ask_bounded(call)
    return answer({"queues": [_queue(found, record) for record in records]})


@router.get("/api/workers", response_model=models.Workers, responses=errors(503))
async def list_workers(request: Request) -> Response:
    """Workers that are alive."""
    records = await api(request).database.ask(api(request).jobs.list_workers())
    workers = [
        {camel(name): when(value) if name in _TIMES else value for name, value in record.items()}
        for record in records
    ]
    return answer({"workers": workers})


@router.get("/api/stats", response_model=models.Stats, responses=errors(503))
async def show_stats(request: Request) -> Response:
    """Jobs by status, who is at work, and what is paused."""
    found = await api(request).gauges.snapshot()
    paused = await api(request).database.ask(api(request).limiters.list_paused())
    backlogs = [{"tenant": tenant, "queued": jobs} for tenant, jobs in found.backlogs.items()]
    return answer(
        {
            "jobs": {status.lower(): jobs for status, jobs in found.jobs.items()},
            "workers": found.alive,
            "oldestQueuedSeconds": max(found.oldest_queued.values(), default=0.0),
            "oldestRunningSeconds": found.oldest_running,
            "largestBacklogs": backlogs,
            "paused": [
                {"scope": scope, "name": name}
                for scope, (_, names) in paused.items()
                for name in names
            ],
            "snapshotAgeSeconds": found.snapshot_age,
        }
    )


def _queue(found: Snapshot, record: dict[str, Any]) -> dict[str, Any]:
    name = record["name"]
    jobs = found.queues.get(name, dict.fromkeys(LIVE, 0))
    return {
        "queue": name,
        **{status.lower(): number for status, number in jobs.items()},
        "oldestQueuedSeconds": found.oldest_queued.get(name, 0.0),
        "workers": found.workers.get(name, 0),
        **limits.view(record),
    }
