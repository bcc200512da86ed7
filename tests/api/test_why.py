"""GET /api/jobs/{id}/why, and what GET /api/workers tells: with workers that really run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.api.support import check_error, enqueue
from tests.engine.support import handlers, until, working
from tests.store.support import put

from jobq.api import models
from jobq.db import Conn
from jobq.engine.pool import QueueSpec
from jobq.engine.worker import Worker

Json = dict[str, Any]


async def ask(http: httpx.AsyncClient, id_: int) -> Json:
    """The answer, in the shape that is described."""
    response = await http.get(f"/api/jobs/{id_}/why")
    assert response.status_code == 200, response.text
    models.Why.model_validate_json(response.content)
    found: Json = response.json()
    return found


async def becomes(http: httpx.AsyncClient, id_: int, reason: str) -> Json:
    """Ask until the reason is the one that has to come."""
    found: list[Json] = [{}]

    async with asyncio.timeout(20):
        while found[-1].get("reason") != reason:
            found.append(await ask(http, id_))
    return found[-1]


@pytest.fixture
def door() -> asyncio.Event:
    """Opens for the handlers that wait."""
    return asyncio.Event()


@pytest.fixture
async def worker(database_url: str, door: asyncio.Event) -> AsyncIterator[Worker]:
    """Two slots for queue `default`, none beyond."""

    async def wait() -> None:
        await door.wait()

    async def fail() -> None:
        raise ValueError("no such mailbox")

    kinds = handlers(wait=wait, fail=fail)
    async with working(
        database_url, kinds, queues=[QueueSpec("default")], concurrency=2, backoff_base=600, backoff_max=600
    ) as found:  # fmt: skip
        await until(lambda: found.ready)
        yield found
        door.set()


@pytest.mark.parametrize(
    ("id_", "status", "code"), [("1", 404, "not_found"), ("x", 422, "invalid_field")]
)
async def test_what_is_no_job_has_no_reason(
    http: httpx.AsyncClient, id_: str, status: int, code: str
) -> None:
    check_error(await http.get(f"/api/jobs/{id_}/why"), status, code)


async def test_a_queue_that_nobody_serves(http: httpx.AsyncClient, worker: Worker) -> None:
    id_ = await enqueue(http, kind="wait", queue="mail")
    found = await becomes(http, id_, "no_worker")
    assert (
        found["sentence"]
        == "No live worker serves queue mail; the 1 live worker serves other queues."
    )
    assert found["data"] == {"queue": "mail", "liveWorkers": 1, "also": []}


async def test_a_job_from_busy_slots_to_its_end(
    http: httpx.AsyncClient, worker: Worker, door: asyncio.Event
) -> None:
    first, second, third, fourth = [await enqueue(http, kind="wait") for _ in range(4)]
    running = await becomes(http, second, "running")
    assert running["data"]["worker"] == worker.id
    assert running["data"]["leaseUntil"] > running["data"]["since"]
    await becomes(http, first, "running")
    waiting = await becomes(http, fourth, "ahead")
    assert waiting["data"] | {"runsPerSecond": 0} == {
        "jobs": 1, "atLeast": False, "ownJobs": 1, "otherJobs": 0, "workers": 1, "draining": 0, "stalled": 0, "slots": 2,
        "running": 2, "runsPerSecond": 0, "startsInSeconds": None, "startsAt": None, "also": [],
    }  # fmt: skip
    door.set()
    for id_ in (third, fourth):
        done = await becomes(http, id_, "finished")
        assert (done["status"], done["data"]["attempts"]) == ("DONE", 1)


async def test_an_estimate_once_something_has_finished(
    http: httpx.AsyncClient, worker: Worker, door: asyncio.Event
) -> None:
    door.set()
    for _ in range(5):
        await becomes(http, await enqueue(http, kind="wait"), "finished")
    door.clear()
    for _ in range(2):
        await becomes(http, await enqueue(http, kind="wait"), "running")
    id_ = await enqueue(http, kind="wait")
    async with asyncio.timeout(20):
        while (found := await becomes(http, id_, "ahead"))["data"]["startsInSeconds"] is None:
            continue  # until the next heartbeat
    assert "it starts about" in found["sentence"]


async def test_a_key_that_one_job_holds_and_others_wait_for(
    http: httpx.AsyncClient, worker: Worker, door: asyncio.Event
) -> None:
    first, second, third = [
        await enqueue(http, kind="wait", concurrencyKey="order-7") for _ in range(3)
    ]
    await becomes(http, first, "running")
    found = await becomes(http, second, "key_cap")
    assert found["data"]["heldBy"] == [first]
    found = await becomes(http, third, "key_cap")
    assert found["data"]["also"] == ["key_turn"]
    door.set()
    await becomes(http, third, "finished")


async def test_what_waits_for_its_next_attempt(http: httpx.AsyncClient, worker: Worker) -> None:
    found = await becomes(http, await enqueue(http, kind="fail"), "scheduled")
    assert found["data"]["cause"] == "retry"
    assert found["data"]["lastError"] == "ValueError: no such mailbox"
    later = await becomes(http, await enqueue(http, kind="fail", delaySeconds=60), "scheduled")
    assert later["data"]["cause"] == "delay"


async def test_a_kind_that_nobody_knows(
    http: httpx.AsyncClient, conn: Conn, worker: Worker
) -> None:
    # Behind those that fill the slots: an attempt would come too soon to be asked about.
    ids = [await enqueue(http, kind="wait") for _ in range(2)]
    for id_ in ids:
        await becomes(http, id_, "running")
    id_ = put(conn, "QUEUED", kind="strange", run_at="now")
    assert (await becomes(http, id_, "unknown_kind"))["data"]["workers"] == 1


async def test_what_a_worker_says_of_itself(
    http: httpx.AsyncClient, worker: Worker, door: asyncio.Event
) -> None:
    await becomes(http, await enqueue(http, kind="wait"), "running")

    async def told() -> Json:
        (found,) = (await http.get("/api/workers")).json()["workers"]
        return dict(found)

    async with asyncio.timeout(20):
        while (found := await told())["running"] != 1:
            continue
    assert found["id"] == worker.id
    assert (found["queues"], found["kinds"]) == (["default"], ["fail", "wait"])
    assert (found["slots"], found["express"], found["draining"]) == (2, 0, False)
    assert found["claimLoopOk"] is True
    assert found["claimedAt"] <= found["heartbeatAt"]
    assert found["finishedPerSecond"] == 0
    door.set()
    async with asyncio.timeout(20):
        while (found := await told())["finishedPerSecond"] == 0:
            continue


async def test_a_claim_loop_that_stands_still_shows(
    http: httpx.AsyncClient,
    worker: Worker,
    door: asyncio.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stands = asyncio.Event()

    async def never() -> float:
        stands.set()
        await door.wait()
        return 1.0

    monkeypatch.setattr(worker.dispatcher, "step", never)
    worker.dispatcher.wake()
    await stands.wait()
    id_ = await enqueue(http, kind="wait", tenant="late")
    async with asyncio.timeout(20):
        while (await http.get("/api/workers")).json()["workers"][0]["claimLoopOk"]:
            await asyncio.sleep(0)
    found = await becomes(http, id_, "ahead")
    assert (
        found["sentence"]
        == "It is first, but the claim loop of the only worker of its queue stands still."
    )
