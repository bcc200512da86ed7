"""GET /metrics (also /actuator/prometheus)."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from jobq.api.state import api
from jobq.metrics import CONTENT_TYPE, render

router = APIRouter(tags=["health"])


@router.get("/metrics")
@router.get("/actuator/prometheus", include_in_schema=False)
async def scrape(request: Request) -> Response:
    """Prometheus: what this process counted, and what the database holds where it can be reached."""
    found = api(request)
    found.collector.snapshot = await found.gauges.latest()
    if found.beside is not None:
        await found.beside.refresh()
    return Response(render(found.registry), headers={"Content-Type": CONTENT_TYPE})
