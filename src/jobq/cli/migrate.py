"""`jobq migrate`."""

from __future__ import annotations

from typing import Annotated

import typer
from psycopg import errors as pg

from jobq import config
from jobq import migrate as migrations
from jobq.cli.show import Json, ago, print_json, print_table, utc
from jobq.errors import SchemaError


def migrate(
    *,
    status: Annotated[
        bool, typer.Option("--status", help="Show which migrations are applied; change nothing.")
    ] = False,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the SQL of all migrations; needs no database.")
    ] = False,
    grant: Annotated[
        str | None,
        typer.Option(metavar="ROLE", help="Let a role enqueue and work without owning anything."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Bring the schema up to date. Safe to run at any time, by any number of processes at once."""
    if sum([status, sql, grant is not None]) > 1:
        raise typer.BadParameter("--status, --sql and --grant exclude one another")
    settings = config.load()
    if sql:
        typer.echo(migrations.script(settings.schema_), nl=False)
        return
    url, schema = settings.require_database(), settings.schema_
    if status:
        _show(migrations.status(url, schema), as_json)
        return
    applied = migrations.migrate(url, schema)
    if grant is not None:
        _grant(url, grant, schema)
    if as_json:
        print_json({"schema": schema, "applied": applied, "grantedTo": grant})
        return
    done = ", ".join(f"{version:04}" for version in applied)
    typer.echo(f"schema {schema}: " + (f"applied {done}" if applied else "nothing to do"))
    if grant is not None:
        typer.echo(f"schema {schema}: role {grant} may enqueue and work")


def _show(found: list[migrations.Migration], as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "migrations": [
                    {"version": m.version, "name": m.name, "appliedAt": utc(m.applied_at)}
                    for m in found
                ]
            }
        )
        return
    rows = [
        [m.version, m.name, f"applied {ago(m.applied_at)}" if m.applied_at else "pending"]
        for m in found
    ]
    print_table(["VERSION#", "MIGRATION", "STATE"], rows)


def _grant(url: str, role: str, schema: str) -> None:
    try:
        migrations.grant(url, role, schema)
    except pg.UndefinedObject:
        raise SchemaError(f"there is no role {role}: CREATE ROLE it first") from None
