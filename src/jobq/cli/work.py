"""One worker process, from its settings to its exit code."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import psycopg
import uvloop
from prometheus_client import CollectorRegistry

from jobq import db, logs, migrate
from jobq.cli.lifeline import PROBE_VARIABLE, Lifeline, inherited
from jobq.cli.signals import StopSignals, leave
from jobq.config import Settings
from jobq.engine.pool import QueueSpec
from jobq.engine.probe import Probe, bind, serve
from jobq.engine.process import spare_the_collector
from jobq.engine.worker import Worker
from jobq.errors import SchemaError
from jobq.handlers import Handler
from jobq.metrics import Metrics

log = logs.get("jobq.worker")

T = TypeVar("T")


def work(
    settings: Settings,
    handlers: Mapping[str, Handler],
    queues: Sequence[QueueSpec] | None,
    signals: StopSignals,
) -> None:
    """Work until a signal, or the end of the supervisor, and end the process.

    Raises:
        SystemExit: 0 when every outcome was recorded, otherwise 1.
        DatabaseUnavailable, SchemaError: the database cannot be worked with.
    """
    signals.budget = settings.shutdown_timeout
    lifeline = Lifeline.from_environment()
    if lifeline is not None:
        lifeline.watch(signals.ask)
    migrate.ensure(settings.require_database(), settings.schema_, auto=settings.auto_migrate)
    spare_the_collector()
    loop = uvloop.new_event_loop()
    recorded = _run(loop, _work(settings, handlers, queues, signals, lifeline))
    signals.exit_code = 0 if recorded else 1
    _end_tasks(loop)
    loop.close()
    leave(signals.exit_code)


async def _work(
    settings: Settings,
    handlers: Mapping[str, Handler],
    queues: Sequence[QueueSpec] | None,
    signals: StopSignals,
    lifeline: Lifeline | None,
) -> bool:
    registry = CollectorRegistry()
    metrics = Metrics(registry, kinds=handlers)
    worker = Worker(settings, handlers, queues=queues, metrics=metrics)
    loop = asyncio.get_running_loop()
    signals.on_stop(lambda: loop.call_soon_threadsafe(worker.stop))
    async with AsyncExitStack() as stack:
        listener = inherited(PROBE_VARIABLE)
        if listener is None and settings.worker_http_addr is not None:
            listener = bind(settings.worker_http_addr)
        if listener is not None:
            await stack.enter_async_context(serve(Probe(worker, registry), listener))
        announcing = asyncio.create_task(_announce(worker, lifeline))
        try:
            recorded = await worker.run()
        except (psycopg.Error, OSError) as error:
            raise _as_sentence(error) from error
        finally:
            announcing.cancel()
        return recorded and not worker.broken


async def _announce(worker: Worker, lifeline: Lifeline | None) -> None:
    await worker.started.wait()
    if lifeline is not None:
        lifeline.ready()


def _run(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run to the end, and not less far because of a SystemExit.

    One that a task or callback of a handler's own raises comes out of the event loop itself (asyncio
    hands SystemExit and KeyboardInterrupt on, docs of `Task`). It is no order to this process.
    """
    task = loop.create_task(work, name="jobq worker")
    while not task.done():
        try:
            loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt) as error:
            if not task.done():
                log.warning(
                    "a handler's own task raised an exit; the worker goes on", error=repr(error)
                )
    return task.result()


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Give tasks that handlers left behind a moment to notice that they are cancelled."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        _run(loop, asyncio.wait(tasks, timeout=0.5))


def _as_sentence(error: Exception) -> Exception:
    if db.is_unavailable(error):
        return db.unavailable(error)
    return SchemaError(f"the worker cannot start: {str(error).partition(chr(10))[0]}")
