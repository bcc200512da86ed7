"""What a worker's probes say of a worker that is not well."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any, cast

import orjson
import pytest
from prometheus_client import CollectorRegistry

from jobq.engine.probe import Probe
from jobq.engine.trouble import Health
from jobq.engine.worker import Worker


@dataclass
class Stub:
    """A worker in any condition."""

    well: Health = field(default_factory=lambda: Health(True))
    ready: bool = True
    draining: bool = False
    started: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.started.set()

    def health(self) -> Health:
        return self.well


async def ask(worker: Stub, path: str, method: str = "GET") -> tuple[int, Any]:
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await Probe(cast("Worker", worker), CollectorRegistry())(
        {"method": method, "path": path}, None, send
    )
    body = sent[1]["body"]
    return sent[0]["status"], orjson.loads(body) if body else None


async def test_a_claim_loop_that_stands_still_fails_with_the_reason() -> None:
    worker = Stub(well=Health(False, "the claim loop has stood still for 9s"))
    assert await ask(worker, "/healthz") == (
        503, {"status": "failing", "reason": "the claim loop has stood still for 9s"},
    )  # fmt: skip
    assert (await ask(worker, "/healthz", "HEAD")) == (503, None)


@pytest.mark.parametrize(
    ("worker", "status"),
    [(Stub(ready=False), "not ready"), (Stub(ready=False, draining=True), "draining")],
)
async def test_a_worker_that_takes_no_jobs_is_not_ready(worker: Stub, status: str) -> None:
    code, body = await ask(worker, "/readyz")
    assert (code, body["status"]) == (503, status)
    assert (await ask(worker, "/healthz"))[0] == 200


async def test_a_worker_that_has_not_started_is_not_ready() -> None:
    worker = Stub()
    worker.started.clear()
    assert await ask(worker, "/readyz") == (503, {"status": "starting"})
