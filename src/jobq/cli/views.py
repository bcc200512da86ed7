"""`jobq queues` and `jobq workers`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import typer

from jobq import limits
from jobq.cli.database import connected
from jobq.cli.limits import describe
from jobq.cli.show import Json, ago, print_json, print_table, utc
from jobq.config import format_duration
from jobq.store.jobs import Record

#: Counts of a queue without jobs and workers.
_NOTHING = {
    "queue": "", "scheduled": 0, "queued": 0, "running": 0, "oldestQueuedSeconds": 0.0, "workers": 0,
}  # fmt: skip
#: Queues, and kinds, of a worker that a table names.
NAMED = 4


def queues(as_json: Json = False) -> None:
    """Show queues that have live jobs, workers of their own, or limits."""
    with connected() as database:
        live = database.ask(database.jobs.count_live())
        workers = database.ask(database.jobs.list_workers())
        found = _queues(live, workers)
        also = [queue["queue"] for queue in found]
        records = database.ask(database.limiters.list_limiters("queue", also=also))
    counts = {queue["queue"]: queue for queue in found}
    found = [{**counts.get(record["name"], _NOTHING), **limits.view(record)} for record in records]
    if as_json:
        print_json({"queues": found})
        return
    rows = [
        [
            queue["queue"], queue["scheduled"], queue["queued"], queue["running"],
            format_duration(round(queue["oldestQueuedSeconds"], 1)), queue["workers"],
            describe(queue),
        ]
        for queue in found
    ]  # fmt: skip
    print_table(
        ["QUEUE", "SCHEDULED#", "QUEUED#", "RUNNING#", "WAITS#", "WORKERS#", "LIMITS"], rows
    )


def workers(as_json: Json = False) -> None:
    """Show workers that are alive."""
    with connected() as database:
        found = database.ask(database.jobs.list_workers())
    if as_json:
        print_json({"workers": [_worker(worker) for worker in found]})
    elif not found:
        typer.echo("no worker is alive", err=True)
    else:
        rows = [
            [
                worker["id"], f"{worker['running']}/{worker['slots']}+{worker['express']}",
                f"{worker['finished_per_second']:.3g}", _state(worker), _some(worker["queues"], "all"),
                _some(worker["kinds"], "none"), ago(worker["heartbeat_at"]), ago(worker["started_at"]),
            ]
            for worker in found
        ]  # fmt: skip
        print_table(
            ["WORKER", "BUSY/SLOTS#", "ENDED/S#", "STATE", "QUEUES", "KINDS", "HEARTBEAT", "STARTED"], rows
        )  # fmt: skip


def _state(worker: Record) -> str:
    """What a worker is up to, as it said at its last heartbeat."""
    if worker["draining"]:
        return "draining"
    return (
        "working"
        if worker["claim_loop_ok"]
        else f"stands still, last claim {ago(worker['claimed_at'])}"
    )


def _some(names: list[str] | None, none: str) -> str:
    """A few names, and how many more there are."""
    if not names:
        return none
    more = f" + {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(map(str, names[:NAMED])) + more


def _queues(live: list[Record], workers: list[Record]) -> list[dict[str, Any]]:
    serving = [worker["queues"] for worker in workers]
    names = {row["queue"] for row in live} | {"default"}
    names |= {name for queues in serving if queues is not None for name in queues}

    def values(queue: str, status: str, column: str) -> list[Any]:
        """A column for each of the queue's priorities."""
        rows = [row for row in live if (row["queue"], row["status"]) == (queue, status)]
        return [row[column] or 0 for row in rows]

    return [
        {
            "queue": name,
            **{s.lower(): sum(values(name, s, "jobs")) for s in ("SCHEDULED", "QUEUED", "RUNNING")},
            "oldestQueuedSeconds": max([0.0, *values(name, "QUEUED", "oldest_queued")]),
            "workers": sum(queues is None or name in queues for queues in serving),
        }
        for name in sorted(names)
    ]


def _worker(worker: Record) -> dict[str, Any]:
    """A worker as GET /api/workers shows it."""
    return {
        _camel(name): utc(value) if isinstance(value, datetime) else value
        for name, value in worker.items()
    }


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))
