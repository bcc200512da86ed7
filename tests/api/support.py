"""What the API's tests share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from starlette.types import ASGIApp, Message
from tests.store.support import one

from jobq import config
from jobq.api import create_app
from jobq.db import Conn
from jobq.handlers import Registry

JSON = {"Content-Type": "application/json"}

Answer = dict[str, Any]


@asynccontextmanager
async def lifespan(app: ASGIApp) -> AsyncIterator[None]:
    """Start an ASGI application and stop it again, as a server does."""
    to_app: asyncio.Queue[Message] = asyncio.Queue()
    from_app: asyncio.Queue[Message] = asyncio.Queue()
    work = app({"type": "lifespan", "asgi": {}}, to_app.get, from_app.put)
    task = asyncio.ensure_future(work)
    await to_app.put({"type": "lifespan.startup"})
    assert (await from_app.get())["type"] == "lifespan.startup.complete"
    try:
        yield
    finally:
        await to_app.put({"type": "lifespan.shutdown"})
        assert (await from_app.get())["type"] == "lifespan.shutdown.complete"
        await task


@asynccontextmanager
async def serving(
    database_url: str, handlers: Registry | None = None, *, insecure: bool = False, **settings: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of an application of its own."""
    loaded = config.load(database_url=database_url, **settings)
    app = create_app(loaded, handlers=handlers, insecure=insecure)
    async with lifespan(app), client(app) as http:
        yield http


def client(app: ASGIApp) -> httpx.AsyncClient:
    """An HTTP client of an application."""
    transport = httpx.ASGITransport(app)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60)


async def enqueue(http: httpx.AsyncClient, **body: Any) -> int:
    """Enqueue a job and return its id."""
    response = await http.post("/api/jobs", json={"kind": "test", **body})
    assert response.status_code == 202, response.text
    return int(response.json()["id"])


def count(conn: Conn) -> int:
    """Jobs in the database, live and finished."""
    return int(one(conn, "SELECT count(*) FROM jobq.jobs")[0])


def check_error(response: httpx.Response, status: int, code: str, *fields: str) -> Answer:
    """That an answer is an error of ours, with nothing of the machinery in it; its body."""
    assert response.status_code == status, response.text
    body: Answer = response.json()
    assert body.keys() <= {"error", "code", "requestId", "fields"}
    assert body["code"] == code, body
    assert body["requestId"] == response.headers["x-request-id"]
    if status in (429, 503):
        assert int(response.headers["retry-after"]) > 0
    assert set(fields) <= set(body.get("fields", {})), body
    for word in ("Traceback", "SELECT ", "psycopg", "detail", "jsonb", "unnest"):
        assert word not in response.text
    return body
