"""The demo's handlers, called as functions, as their handlers may be."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import pytest
from tests.cli.conftest import Start
from tests.cli.support import eventually

from jobq import JobQ, JobStatus, PermanentError, demo
from jobq.errors import InvalidPayload


def test_every_kind_of_the_contract_is_there() -> None:
    assert set(demo.app.handlers) == {
        "email.welcome", "report.build", "word_count", "sleep", "webhook", "flaky", "crash",
    }  # fmt: skip


def test_words_are_counted() -> None:
    assert demo.word_count(text="a  b\nc") == 3


@pytest.mark.parametrize("duration", ["soon", "-1s", -1, float("nan"), "1x", ""])
async def test_a_bad_duration_is_a_permanent_failure(duration: str | float) -> None:
    with pytest.raises(PermanentError):
        await demo.sleep(duration=duration)


async def test_a_sleep_is_cancelled_at_once() -> None:
    task = asyncio.create_task(demo.sleep(duration="1h"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 1.0)


async def test_flaky_fails_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.999999)
    with pytest.raises(RuntimeError):
        await demo.flaky(probability=1)
    monkeypatch.setattr(random, "random", lambda: 0.0)
    await demo.flaky(probability=0)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("word_count", {}),
        ("word_count", {"text": 1}),
        ("flaky", {"probability": 2}),
        ("report.build", {"steps": 0}),
        ("email.welcome", {"from": "a@b.com"}),
        ("sleep", {}),
    ],
)
def test_a_payload_that_does_not_fit_is_refused(kind: str, payload: dict[str, object]) -> None:
    with pytest.raises(InvalidPayload):
        demo.app.handlers[kind].bind(payload)


def test_they_do_in_a_worker_what_they_say(start: Start, database_url: str, tmp_path: Path) -> None:
    environment = {"JOBQ_DATABASE_URL": database_url, "JOBQ_WEBHOOK_ALLOW": "127.0.0.1:9"}
    worker = start("worker", "--app", "jobq.demo:app", environment=environment, cwd=tmp_path)
    worker.line("worker started")
    with JobQ(database_url) as q:
        report = q.enqueue("report.build", {"month": "2026-11", "steps": 1})
        refused = q.enqueue("webhook", {"url": "http://127.0.0.1:10/", "body": {}})
        unreachable = q.enqueue("webhook", {"url": "http://127.0.0.1:9/"}, max_attempts=1)
        bad = q.enqueue("sleep", {"duration": "soon"})
        asleep = q.enqueue("sleep", {"duration": "1h"})
        q.enqueue("email.welcome", {"to": "a@b.com", "name": "Ann"})

        def stands(job: int, status: JobStatus) -> bool:
            return q.get(job).status is status

        worker.line(r'"event":"mail".*"to":"a@b\.com"')
        eventually(lambda: stands(report.id, JobStatus.DONE))
        assert q.get(report.id).result == {"month": "2026-11", "pages": 1}
        eventually(lambda: stands(refused.id, JobStatus.FAILED))
        assert "is no public address" in (q.get(refused.id).last_error or "")
        eventually(lambda: stands(unreachable.id, JobStatus.DEAD))
        eventually(lambda: stands(bad.id, JobStatus.FAILED))
        eventually(lambda: stands(asleep.id, JobStatus.RUNNING))
        cancelled = start("cancel", str(asleep.id), environment=environment, cwd=tmp_path)
        assert cancelled.wait() == 0
        assert cancelled.lines == [f"{asleep.id} RUNNING, asked to stop"]
        eventually(lambda: stands(asleep.id, JobStatus.CANCELLED))
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
