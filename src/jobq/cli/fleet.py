"""`jobq worker --processes n`: several worker processes under one supervisor."""

from __future__ import annotations

import asyncio

from jobq import logs, migrate
from jobq.cli.child import Child, ChildFailed
from jobq.cli.group import fail
from jobq.cli.signals import MARGIN
from jobq.cli.supervisor import Supervisor
from jobq.config import Settings, parse_address

log = logs.get("jobq.supervisor")


def supervise_workers(settings: Settings, processes: int) -> int:
    """Keep worker processes running until a signal; returns the exit code.

    0 when every process ended with 0, 128 + n after a second signal, otherwise 1.

    Raises:
        DatabaseUnavailable, SchemaError: no worker could start with this database.
    """
    migrate.ensure(settings.require_database(), settings.schema_, auto=settings.auto_migrate)
    return asyncio.run(_supervise(settings, processes))


async def _supervise(settings: Settings, processes: int) -> int:
    children = [
        Child(f"worker {n + 1}", ["worker"], environment(settings, n)) for n in range(processes)
    ]
    supervisor = Supervisor(children, settings.shutdown_timeout + 2 * MARGIN)
    supervisor.install()
    first, *others = children
    try:
        await supervisor.start([first])  # what is wrong with all of them is said once
        if not supervisor.stopping:
            await supervisor.start(others)
    except ChildFailed as error:
        await supervisor.stop(together=True)
        fail(str(error))
    log.info("all worker processes run", processes=processes)
    await supervisor.wait()
    await supervisor.stop(together=True)
    if supervisor.hurried is not None:
        return 128 + supervisor.hurried
    return 0 if all(child.exit_code == 0 for child in children) else 1


def environment(settings: Settings, process: int) -> dict[str, str]:
    """What tells a worker process its settings; those of the environment it inherits.

    Args:
        process: from 0; each answers probes on a port of its own.
    """
    variables = {"JOBQ_APP": settings.app or "", "JOBQ_CONCURRENCY": str(settings.concurrency)}
    if settings.queues:
        variables["JOBQ_QUEUES"] = settings.queues
    if settings.worker_http_addr:
        host, port = parse_address(settings.worker_http_addr)
        host = f"[{host}]" if ":" in host else host
        variables["JOBQ_WORKER_HTTP_ADDR"] = f"{host}:{port + process if port else 0}"
    return variables
