"""GET /api/queues, /api/workers and /api/stats."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from jobq.api import models
from jobq.api.answers import answer, when
from jobq.api.body import camel
from jobq.api.docs import errors
from jobq.api.state import api

router = APIRouter(tags=["fleet"])

_TIMES = ("started_at", "heartbeat_at", "claimed_at")


@router.get("/api/queues", response_model=models.Queues, responses=errors(503))
async def list_queues(request: Request) -> Response:
    """Queues that have live jobs or workers."""
    found = await api(request).gauges.snapshot()
    queues = [
        {
            "queue": name,
            **{status.lower(): jobs for status, jobs in found.queues[name].items()},
            "oldestQueuedSeconds": found.oldest_queued.get(name, 0.0),
            "workers": found.workers.get(name, 0),
        }
        for name in sorted(found.queues)
    ]
    return answer({"queues": queues})


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
    """Jobs by status, and who is at work."""
    found = await api(request).gauges.snapshot()
    backlogs = [{"tenant": tenant, "queued": jobs} for tenant, jobs in found.backlogs.items()]
    return answer(
        {
            "jobs": {status.lower(): jobs for status, jobs in found.jobs.items()},
            "workers": found.alive,
            "oldestQueuedSeconds": max(found.oldest_queued.values(), default=0.0),
            "oldestRunningSeconds": found.oldest_running,
            "largestBacklogs": backlogs,
            "snapshotAgeSeconds": found.snapshot_age,
        }
    )
