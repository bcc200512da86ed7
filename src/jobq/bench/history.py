"""Checks limits against what the database has recorded of each run, by its own clock."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jobq.bench.enqueuers import read
from jobq.bench.server import Database

#: What a job may be limited by, in the order of the columns of runs.sql.
SCOPES = ("tenant", "queue", "kind", "key")


class Run(NamedTuple):
    """One attempt, from its claim to the end of its lease: microseconds since 1970."""

    began: int
    ended: int


def runs_by_scope(database: Database) -> dict[str, list[Run]]:
    """All runs of a database, by each scope (`tenant:acme`) they belong to."""
    found: dict[str, list[Run]] = defaultdict(list)
    for *names, began, ended in database.conn.execute(read("runs.sql")):
        for scope, name in zip(SCOPES, names, strict=True):
            if name is not None:
                found[f"{scope}:{name}"].append(Run(began, ended))
    return found


def above(runs: Sequence[Run], cap: int) -> int:
    """Runs that began while `cap` others were under way. One that ends at the moment another begins is over."""
    ends = [(run.ended, -1) for run in runs]
    begins = [(run.began, 1) for run in runs]
    running = violations = 0
    for _, step in sorted(ends + begins):
        running += step
        violations += step > 0 and running > cap
    return violations


def violations(runs: Mapping[str, Sequence[Run]], caps: Mapping[str, int]) -> int:
    """The same for all caps, by scope."""
    return sum(above(runs.get(scope, ()), cap) for scope, cap in caps.items())


def most_within(begins: Sequence[int], period: int) -> int:
    """The most that began within any stretch of a period, both in the same unit; its end belongs to the next."""
    ordered = sorted(begins)
    return max(
        (bisect_left(ordered, began + period) - index for index, began in enumerate(ordered)),
        default=0,
    )
