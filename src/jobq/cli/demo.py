"""`jobq demo`: a session with a running API, each request as the curl line it stands for."""

from __future__ import annotations

import json
import secrets
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import httpx
import typer

from jobq import config
from jobq.cli.group import fail

#: Seconds that a job may take to get where it is expected.
PATIENCE = 30.0
#: Seconds between two looks.
PAUSE = 0.1

Answer = dict[str, Any]


def demo(
    *,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where the API of jobq dev is. [JOBQ_HTTP_ADDR]"),
    ] = None,
) -> None:
    """Show a session with a running jobq dev.

    Ends with 1 where something does not go as promised.
    """
    url = url or f"http://{config.load().http_addr}"
    with httpx.Client(base_url=url, timeout=10.0, trust_env=False) as client:
        try:
            _run(Session(url.rstrip("/"), client))
        except httpx.TransportError as error:
            fail(
                f"no API answers at {url} ({error}): start one with make dev, or name it with --url"
            )
        except Surprise as surprise:
            fail(f"not as promised: {surprise}")


class Surprise(Exception):
    """Something did not go as the contract promises."""


@dataclass
class Session:
    """Requests that are shown as they are made.

    Args:
        url: of the API.
        client: sends them.
    """

    url: str
    client: httpx.Client

    def say(self, text: str) -> None:
        """Explain what comes next."""
        typer.echo(f"\n# {text}")

    def get(self, path: str) -> httpx.Response:
        """GET, shown with its answer."""
        typer.echo(f"$ curl -s {shlex.quote(self.url + path)}")
        return self.client.get(path)

    def post(self, path: str, body: object, expected: int) -> Answer:
        """POST, shown with its answer, which has to have a status."""
        command = f"$ curl -s -X POST {self.url}{path}"
        if body is not None:
            command += " -H 'Content-Type: application/json' \\\n    -d " + shlex.quote(
                json.dumps(body)
            )
        typer.echo(command)
        response = self.client.post(path, json=body) if body is not None else self.client.post(path)
        typer.echo(f"{response.status_code} {response.text.strip()}")
        check(response.status_code == expected, f"{expected} was expected")
        return dict(response.json())

    def enqueue(self, kind: str, payload: object, expected: int = 202, **options: object) -> Answer:
        """Enqueue a job."""
        return self.post("/api/jobs", {"kind": kind, "payload": payload, **options}, expected)

    def job(self, number: int, arrived: Callable[[Answer], bool]) -> Answer:
        """Look at a job until it is where it is expected; the last look is shown."""
        path, deadline = f"/api/jobs/{number}", time.monotonic() + PATIENCE
        job: Answer = {}
        while time.monotonic() < deadline:
            job = dict(self.client.get(path).json())
            if arrived(job):
                break
            time.sleep(PAUSE)
        shown = {
            name: job.get(name)
            for name in ("id", "kind", "status", "attempts", "result", "lastError")
        }
        typer.echo(
            f"$ curl -s {self.url}{path}\n{json.dumps({k: v for k, v in shown.items() if v is not None})}"
        )
        check(arrived(job), f"job {number} is {job.get('status')} after {PATIENCE:g}s")
        return job


def check(held: bool, otherwise: str) -> None:
    """Go on only where a promise held.

    Raises:
        Surprise: it did not.
    """
    if not held:
        raise Surprise(otherwise)


def _run(session: Session) -> None:
    _keys(session)
    _results(session)
    _delay(session)
    _dead_letters(session)
    _metrics(session)
    typer.echo("\nAll as promised.")


def _keys(session: Session) -> None:
    session.say("A job, once; the same request again gives the same job.")
    key = f"welcome-{secrets.token_hex(3)}"
    first = session.enqueue("email.welcome", {"to": "a@b.com"}, idempotencyKey=key)
    again = session.enqueue("email.welcome", {"to": "a@b.com"}, 200, idempotencyKey=key)
    check(first["id"] == again["id"], "the same job was expected")
    done = session.job(first["id"], lambda job: job["status"] == "DONE")
    check(done["attempts"] == 1, "one attempt was expected")


def _results(session: Session) -> None:
    session.say("What a handler returns is kept.")
    text = "a queue is a promise to do it later"
    counted = session.enqueue("word_count", {"text": text})
    done = session.job(counted["id"], lambda job: job["status"] == "DONE")
    check(done["result"] == len(text.split()), "the number of words was expected")


def _delay(session: Session) -> None:
    session.say("A job for later, cancelled before it runs.")
    report = session.enqueue("report.build", {}, delaySeconds=300)
    check(report["status"] == "SCHEDULED", "SCHEDULED was expected")
    cancelled = session.post(f"/api/jobs/{report['id']}/cancel", None, 200)
    check(cancelled["status"] == "CANCELLED", "CANCELLED was expected")


def _dead_letters(session: Session) -> None:
    session.say("One that always fails ends DEAD after its attempts, and is retried by hand.")
    flaky = session.enqueue("flaky", {"probability": 1}, maxAttempts=2)
    dead = session.job(flaky["id"], lambda job: job["status"] == "DEAD")
    check(dead["attempts"] == 2, "two attempts were expected")
    listed = session.get("/api/jobs?status=DEAD").json()["jobs"]
    typer.echo(
        f"{len(listed)} jobs, the newest: "
        + json.dumps({"id": listed[0]["id"], "status": listed[0]["status"]})
    )
    check(flaky["id"] in {job["id"] for job in listed}, "the dead job was expected in the list")
    retried = session.post(f"/api/jobs/{flaky['id']}/retry", None, 200)
    check(retried["status"] == "QUEUED", "QUEUED was expected")
    session.job(flaky["id"], lambda job: job["status"] == "DEAD" and len(job["errors"]) >= 4)


def _metrics(session: Session) -> None:
    session.say("What Prometheus sees.")
    lines = session.get("/metrics").text.splitlines()
    for start in (
        'jobq_jobs{status="',
        'jobq_processed_total{kind="email.welcome",outcome="success"',
    ):
        found = [line for line in lines if line.startswith(start)]
        check(bool(found), f"a line {start}... was expected")
        typer.echo("\n".join(found))
