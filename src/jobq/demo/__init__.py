"""Handlers to try jobq with: what `jobq dev` runs (contract.md, "A session with the demo")."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from functools import cache
from typing import Annotated, Any

from pydantic import Field

from jobq import config
from jobq.client import JobQ
from jobq.context import Context
from jobq.demo.guard import Allowed, post
from jobq.errors import PermanentError

app = JobQ()

#: Seconds of one step of a report.
STEP = 0.6


@app.job("email.welcome")
async def welcome(ctx: Context, to: str, name: str = "") -> None:
    """Write a mail to the log."""
    greeting = f"Hello {name}," if name else "Hello,"
    ctx.log.info("mail", to=to, subject="Welcome", body=f"{greeting} good to have you here.")


@app.job("report.build")
async def build_report(
    ctx: Context, month: str = "", steps: Annotated[int, Field(ge=1, le=1000)] = 5
) -> dict[str, Any]:
    """Take seconds, and report progress after each step."""
    for step in range(steps):
        ctx.progress(step / steps, f"step {step + 1} of {steps}")
        await asyncio.sleep(STEP)
    ctx.progress(1.0, "done")
    return {"month": month or None, "pages": steps}


@app.job("word_count")
def word_count(text: str) -> int:
    """Count words, in a thread."""
    return len(text.split())


@app.job("sleep")
async def sleep(duration: str | float) -> None:
    """Sleep for a duration such as 2s; a cancelled one ends at once."""
    try:
        seconds = config.parse_duration(duration)
    except ValueError as error:
        raise PermanentError(str(error)) from None
    await asyncio.sleep(seconds)


@app.job("webhook")
async def webhook(url: str, body: Any = None) -> dict[str, Any]:
    """POST a body as JSON to a public address (see `jobq.demo.guard`)."""
    return await post(url, body, allowed=_allowed())


@app.job("flaky")
async def flaky(probability: Annotated[float, Field(ge=0, le=1)] = 0.5) -> None:
    """Fail with the given probability."""
    if random.random() < probability:
        raise RuntimeError(f"flaky failed, as it does with probability {probability:g}")


@app.job("crash")
async def crash() -> None:
    """Kill this worker process, as the system does where memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


@cache
def _allowed() -> Allowed:
    return Allowed.parse(config.load().webhook_allow)
