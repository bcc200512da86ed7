"""The SQL of jobq: one statement per file, named by its verb; the schema name is rendered once.

Each file is a template of `psycopg.sql`: `{schema}` is the quoted schema, `{sequence}` its job id
sequence, `{channel}` the LISTEN/NOTIFY channel, `{moved}` the columns that go unchanged from `job`
to `job_archive`. Values are always parameters.
"""

from __future__ import annotations

import hashlib
from functools import cached_property, lru_cache
from importlib import resources
from typing import LiteralString

from psycopg import sql

#: Columns that a finished job takes along unchanged. The one list for complete, fail, release,
#: reclaim and cancel.
MOVED = (
    "kind", "queue", "tenant", "priority", "attempts", "max_attempts", "timeout", "created_at", "run_at",
    "ready_at", "started_at", "worker", "cancel_requested_at", "concurrency_key", "idempotency_key",
    "unique_key", "tags", "meta", "progress",
)  # fmt: skip


def channel(schema: str) -> str:
    """The LISTEN/NOTIFY channel of a schema: short and plain whatever the schema is called."""
    return "jobq_" + hashlib.md5(schema.encode(), usedforsecurity=False).hexdigest()[:16]


@lru_cache
def read(path: str) -> LiteralString:
    """The text of a file below `jobq/sql`, for example `claim.sql` or `migrations/0001_initial.sql`."""
    # The files are part of the package: as trusted as a literal in the code.
    return resources.files(__name__).joinpath(path).read_text("utf-8")


def migrations() -> list[tuple[int, str]]:
    """All migrations as (version, file name), in order."""
    folder = resources.files(__name__).joinpath("migrations")
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [(int(name.split("_")[0]), name) for name in names]


class Statements:
    """All statements for one schema. `statements["claim"]` is `claim.sql`, rendered.

    Args:
        schema: name of the schema, unquoted; any identifier PostgreSQL takes.
    """

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self.channel = channel(schema)
        self._rendered: dict[str, bytes] = {}

    def __getitem__(self, name: str) -> bytes:
        if name not in self._rendered:
            # With parameters a % stands for itself when doubled; a schema may be called "50%".
            names = {key: sql.SQL(value.replace("%", "%%")) for key, value in self._names.items()}
            self._rendered[name] = sql.SQL(read(f"{name}.sql")).format(**names).as_bytes()
        return self._rendered[name]

    def render(self, path: str) -> bytes:
        """A file without parameters, the names of this schema filled in, as bytes ready to send."""
        names = {key: sql.SQL(value) for key, value in self._names.items()}
        return sql.SQL(read(path)).format(**names).as_bytes()

    @cached_property
    def _names(self) -> dict[str, LiteralString]:
        names = {
            "schema": sql.Identifier(self.schema),
            "schema_text": sql.Literal(self.schema),
            "sequence": sql.Literal(sql.Identifier(self.schema, "job_id_seq").as_string()),
            "channel": sql.Literal(self.channel),
            "moved": sql.SQL(", ").join(map(sql.Identifier, MOVED)),
        }
        # Quoted by psycopg, which is as good as a literal in the code.
        return {key: value.as_string() for key, value in names.items()}
