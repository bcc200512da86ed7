"""GET /healthz, /readyz and /health."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from jobq.api.answers import answer, leaving
from jobq.api.state import api

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> Response:
    """The process serves."""
    return answer({"status": "ok"})


@router.get("/readyz")
@router.get("/health")
async def readyz(request: Request) -> Response:
    """The database can be reached, and the process is not about to end."""
    if api(request).draining:
        raise leaving()
    await api(request).database.ping()
    return answer({"status": "ok"})
