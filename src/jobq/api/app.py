"""Puts the application together."""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from jobq import __version__
from jobq.api import actions, docs, enqueue, fleet, health, jobs, limits, scrape
from jobq.api.answers import HttpError, refusal, render
from jobq.api.collector import DatabaseCollector
from jobq.api.database import Database
from jobq.api.edge import LOOPBACK_NAMES, Edge, request_id
from jobq.api.gauges import Gauges, count
from jobq.api.state import Api
from jobq.config import Settings, parse_address
from jobq.errors import ConfigurationError, JobQError
from jobq.handlers import Registry
from jobq.metrics import Metrics
from jobq.sql import Statements
from jobq.store import EnqueueStore, JobStore, LimiterStore, WhyStore

_MODULES = (enqueue, jobs, actions, fleet, limits, health, scrape, docs)
_DESCRIPTION = "A multi-tenant, fair job queue on PostgreSQL."


def create_app(
    settings: Settings, *, handlers: Registry | None = None, insecure: bool = False
) -> ASGIApp:
    """The API as an ASGI application, whose lifespan opens and closes its connections.

    Args:
        settings: the database is not needed to start: without it the API answers 503.
        handlers: those of the app; unknown kinds and payloads that don't fit are then refused. With
            None any kind is taken.
        insecure: allow an address other than loopback, and requests for any host name.

    Raises:
        ConfigurationError: no database is set, or the address is reachable from outside.
    """
    app, _ = build(settings, handlers=handlers, insecure=insecure)
    return app


def build(settings: Settings, *, handlers: Registry | None, insecure: bool) -> tuple[ASGIApp, Api]:
    """The application, and what its routes share (see `create_app`)."""
    host, _ = parse_address(settings.http_addr)
    if not insecure and not is_loopback(host):
        raise ConfigurationError(
            f"JOBQ_HTTP_ADDR: {settings.http_addr} can be reached from outside, and this API asks nobody "
            "for a key: use a loopback address, or --insecure where something in front protects it"
        )
    app = FastAPI(
        title="jobq", version=__version__, description=_DESCRIPTION, lifespan=_lifespan,
        openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False,
    )  # fmt: skip
    app.state.api = api = assemble(settings, handlers)
    app.openapi = docs.with_shapes(app.openapi)  # type: ignore[method-assign]
    for module in _MODULES:
        app.include_router(module.router)
    for error in (HTTPException, RequestValidationError, HttpError, JobQError, Exception):
        app.add_exception_handler(error, _answer_error)
    return Edge(app, hosts=None if insecure else LOOPBACK_NAMES | {host.lower()}), api


def assemble(settings: Settings, handlers: Registry | None) -> Api:
    """What the routes share, nothing connected yet."""
    registry = CollectorRegistry()
    metrics = Metrics(registry, worker=False, kinds=handlers or ())
    statements = Statements(settings.schema_)
    enqueuing = EnqueueStore(
        statements, max_attempts=settings.max_attempts, timeout=settings.job_timeout
    )
    database = Database(settings.require_database(), enqueuing, metrics)
    store, limiters = JobStore(statements), LimiterStore(statements)
    collector = DatabaseCollector()
    registry.register(collector)
    return Api(
        settings=settings,
        handlers=handlers,
        database=database,
        jobs=store,
        why=WhyStore(statements),
        limiters=limiters,
        metrics=metrics,
        registry=registry,
        gauges=Gauges(lambda: count(database, store, limiters)),
        collector=collector,
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    found: Api = app.state.api
    try:
        yield
    finally:
        await found.gauges.close()
        await found.database.close()


async def _answer_error(request: Request, error: Exception) -> Response:
    """An error in our shape; one that is none of the client's is raised again, for the edge to log."""
    known = refusal(error)
    if known is None:
        raise error
    if known.status == 405:
        known.headers["Allow"] = ", ".join(sorted(_allowed(request.url.path)))
    return render(known, request_id(request.scope))


def _allowed(path: str) -> set[str]:
    """Methods that a path takes, by all of its routes (RFC 9110, 10.2.1)."""
    routes = (route for module in _MODULES for route in module.router.routes)
    found: set[str] = set()
    for route in routes:
        if isinstance(route, Route) and route.path_regex.match(path):
            found |= route.methods or set()
    return found | {"HEAD"} if "GET" in found else found
