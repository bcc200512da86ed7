"""The lists of `jobq tenants`, `jobq kinds` and `jobq limits`, and the groups of commands they stand in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from jobq import limits
from jobq.cli.database import Database, connected
from jobq.cli.limits import (
    Key,
    Kind,
    Queue,
    Tenant,
    describe,
    pause,
    set_key,
    set_kind,
    set_queue,
    set_tenant,
    show,
)
from jobq.cli.show import Json, print_json, print_table
from jobq.cli.views import queues
from jobq.config import format_duration

Limit = Annotated[int, typer.Option(min=1, max=500, metavar="N", help="Rows at most, up to 500.")]
After = Annotated[str, typer.Option(metavar="NAME", help="Those after this one.")]
Row = dict[str, Any]

#: What there is none of where a list is empty.
_NONE = {
    "tenants": "tenants with limits or QUEUED jobs",
    "kinds": "kinds that have limits or that workers know",
    "limits": "concurrency keys with limits",
}


def list_tenants(*, limit: Limit = 50, after: After = "", as_json: Json = False) -> None:
    """List tenants with limits, and the ten with most QUEUED jobs."""
    with connected() as database:
        queued = database.ask(database.jobs.count_backlogs())
        page, cursor = _page(database, "tenant", limit, after, list(queued))
    for tenant in page:
        tenant["queued"] = queued.get(tenant["tenant"])
    rows = [[row["tenant"], row["queued"], row["slotsHeld"] or "", describe(row)] for row in page]
    _print(
        "tenants",
        page,
        cursor,
        ["TENANT", "QUEUED#", "SLOTS HELD#", "LIMITS"],
        rows,
        after=after,
        as_json=as_json,
    )


def list_kinds(*, limit: Limit = 50, after: After = "", as_json: Json = False) -> None:
    """List kinds that workers know, and those for which something is set."""
    with connected() as database:
        page, cursor = _page(database, "kind", limit, after)
    rows = [[row["kind"], *_defaults(row), row["slotsHeld"] or "", describe(row)] for row in page]
    headers = ["KIND", "QUEUE", "PRIORITY#", "TRIES#", "TIMEOUT#", "SLOTS HELD#", "LIMITS"]
    _print("kinds", page, cursor, headers, rows, after=after, as_json=as_json)


def list_keys(*, limit: Limit = 50, after: After = "", as_json: Json = False) -> None:
    """List concurrency keys for which something is set."""
    with connected() as database:
        page, cursor = _page(database, "key", limit, after)
    rows = [[row["key"], row["slotsHeld"], describe(row)] for row in page]
    _print(
        "limits", page, cursor, ["KEY", "SLOTS HELD#", "LIMITS"], rows, after=after, as_json=as_json
    )


def _page(
    database: Database, scope: str, limit: int, after: str, also: list[str] | None = None
) -> tuple[list[Row], str | None]:
    """A page of a list, and the name after which the next one begins."""
    call = database.limiters.list_limiters(scope, also=also or [], after=after, most=limit + 1)
    records = database.ask(call)
    cursor = records[limit - 1]["name"] if len(records) > limit else None
    return [limits.view(record) for record in records[:limit]], cursor


def _print(
    plural: str,
    page: list[Row],
    cursor: str | None,
    headers: list[str],
    rows: list[list[Any]],
    *,
    after: str,
    as_json: bool,
) -> None:
    if as_json:
        print_json({plural: page, "nextCursor": cursor})
        return
    if rows:
        print_table(headers, rows)
    else:
        typer.echo(f"no {'more ' if after else ''}{_NONE[plural]}", err=True)
    if cursor is not None:
        typer.echo(f"there are more: --after {cursor!r}", err=True)


def _defaults(kind: Row) -> list[Any]:
    found = kind["defaults"] or {}
    timeout = found.get("timeoutSeconds")
    return [
        found.get("queue"), found.get("priority"), found.get("maxAttempts"),
        None if timeout is None else format_duration(timeout),
    ]  # fmt: skip


def _show_tenant(name: Tenant, *, as_json: Json = False) -> None:
    """Show what is set for a tenant."""
    show("tenant", name, as_json=as_json)


def _show_queue(name: Queue, *, as_json: Json = False) -> None:
    """Show what is set for a queue."""
    show("queue", name, as_json=as_json)


def _show_kind(name: Kind, *, as_json: Json = False) -> None:
    """Show what is set for a kind."""
    show("kind", name, as_json=as_json)


def _show_key(key: Key, *, as_json: Json = False) -> None:
    """Show what is set for a concurrency key."""
    show("key", key, as_json=as_json)


def _pauses(scope: str, argument: Any) -> list[tuple[str, Callable[..., None], str]]:
    """The commands `pause` and `resume` of a scope."""

    def pause_(name: str, as_json: bool = False) -> None:
        pause(scope, name, paused=True, as_json=as_json)

    def resume(name: str, as_json: bool = False) -> None:
        pause(scope, name, paused=False, as_json=as_json)

    for command in (pause_, resume):
        command.__annotations__ = {"name": argument, "as_json": Json}
    return [
        ("pause", pause_, f"Let no further job of a {scope} start; those that run finish."),
        ("resume", resume, f"Let the jobs of a {scope} start again."),
    ]


def _group(
    what: str,
    listing: Callable[..., None],
    commands: list[tuple[str, Callable[..., None], str | None]],
) -> typer.Typer:
    """A group that lists where no command is named, as `jobq queues` always did."""
    group = typer.Typer(
        invoke_without_command=True,
        rich_markup_mode=None,
        help=f"Show {what}, and set their limits. Without a command: list.",
    )

    @group.callback()
    def root(context: typer.Context, as_json: Json = False) -> None:
        if context.invoked_subcommand is None:
            listing(as_json=as_json)
        elif as_json:
            raise typer.BadParameter("--json goes after the command")

    for name, command, help_ in [("list", listing, None), *commands]:
        group.command(name, help=help_)(command)
    return group


#: Groups by name.
GROUPS = {
    "tenants": _group(
        "tenants",
        list_tenants,
        [("show", _show_tenant, None), ("set", set_tenant, None), *_pauses("tenant", Tenant)],
    ),
    "queues": _group(
        "queues",
        queues,
        [("show", _show_queue, None), ("set", set_queue, None), *_pauses("queue", Queue)],
    ),
    "kinds": _group(
        "kinds",
        list_kinds,
        [("show", _show_kind, None), ("set", set_kind, None), *_pauses("kind", Kind)],
    ),
    "limits": _group(
        "concurrency keys", list_keys, [("show", _show_key, None), ("set", set_key, None)]
    ),
}
