"""The database goes away and comes back: 503 meanwhile, and the API goes on by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from time import monotonic

import httpx
import psutil  # type: ignore[import-untyped]
import psycopg
import pytest
from tests.api.support import check_error, enqueue, serving
from tests.api.test_gauges import values

from jobq.embedded import EmbeddedServer
from jobq.migrate import migrate

pytestmark = pytest.mark.slow

REQUESTS = [
    ("POST", "/api/jobs", {"kind": "k"}),
    ("POST", "/api/jobs", {"kind": "k", "idempotencyKey": "K"}),
    ("POST", "/api/jobs/batch", {"kind": "k", "payloads": [1]}),
    ("GET", "/api/jobs/1", None),
    ("GET", "/api/jobs", None),
    ("POST", "/api/jobs/1/retry", None),
    ("POST", "/api/jobs/1/cancel", None),
    ("GET", "/api/queues", None),
    ("GET", "/api/workers", None),
    ("GET", "/api/stats", None),
    ("GET", "/readyz", None),
    ("GET", "/health", None),
]


@pytest.fixture
async def api(own_server: EmbeddedServer) -> AsyncIterator[httpx.AsyncClient]:
    """An API on a server of its own."""
    migrate(own_server.url())
    async with serving(own_server.url()) as http:
        yield http


async def ask_all(http: httpx.AsyncClient) -> list[httpx.Response]:
    """Every request that needs the database, at once."""
    requests = (http.request(method, path, json=body) for method, path, body in REQUESTS)
    return list(await asyncio.gather(*requests))


async def until_served(http: httpx.AsyncClient) -> None:
    """Wait until a job is taken again."""
    end = monotonic() + 20
    while (await http.post("/api/jobs", json={"kind": "k"})).status_code != 202:
        assert monotonic() < end, "the API did not recover"


async def test_an_outage_is_told_at_once_and_ends_by_itself(
    api: httpx.AsyncClient, own_server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.gather(*(enqueue(api) for _ in range(20)))  # every connection was in use
    await asyncio.to_thread(own_server.stop)
    start = monotonic()
    for _ in range(3):
        for response in await ask_all(api):
            check_error(response, 503, "database_unavailable")
            assert int(response.headers["retry-after"]) > 0
    assert monotonic() - start < 6
    assert (await api.get("/healthz")).status_code == 200
    scrape = await api.get("/metrics")
    assert scrape.status_code == 200
    assert values(scrape.text, "jobq_database_errors_total")[""] >= 30
    assert values(scrape.text, "jobq_jobs") == {}
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    told = [record for record in warnings if "database unavailable" in record.getMessage()]
    assert len(told) == 1, "an outage is said once"
    await asyncio.to_thread(own_server.start)
    await until_served(api)
    assert (await api.get("/readyz")).status_code == 200


async def test_connections_that_were_cut_are_replaced(
    api: httpx.AsyncClient, own_server: EmbeddedServer
) -> None:
    await asyncio.gather(*(enqueue(api) for _ in range(20)))
    with psycopg.connect(own_server.url(), autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
    for response in await ask_all(api):
        assert response.status_code < 500, response.text


async def test_a_server_that_takes_no_writes_is_told(
    api: httpx.AsyncClient, own_server: EmbeddedServer
) -> None:
    id_ = await enqueue(api)
    with psycopg.connect(own_server.url(), autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        admin.execute("SELECT pg_reload_conf()")
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )

    async def read_only() -> bool:
        response = await api.post("/api/jobs", json={"kind": "k"})
        return response.status_code == 503

    end = monotonic() + 10
    while not await read_only():
        assert monotonic() < end
    response = await api.post("/api/jobs", json={"kind": "k"})
    assert "no writes" in check_error(response, 503, "database_unavailable")["error"]
    check_error(await api.post(f"/api/jobs/{id_}/cancel"), 503, "database_unavailable")
    assert (await api.get(f"/api/jobs/{id_}")).status_code == 200  # reading goes on


async def test_a_server_that_falls_silent_holds_nobody_for_long(
    api: httpx.AsyncClient, own_server: EmbeddedServer
) -> None:
    """Its processes stand still: nothing is refused, nothing answers, and no cancellation is confirmed."""
    await enqueue(api)
    with psycopg.connect(own_server.url()) as session:
        postmaster = psutil.Process(session.info.backend_pid).parent()
    assert postmaster is not None
    processes = [postmaster, *postmaster.children()]
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # a session that has just ended
            process.suspend()
    try:
        start = monotonic()
        look = asyncio.create_task(api.get("/api/jobs/1"))
        check_error(await api.get("/readyz"), 503, "database_unavailable")
        assert monotonic() - start < 4
        check_error(await look, 503, "database_unavailable")
        assert monotonic() - start < 8
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.resume()
    await until_served(api)
