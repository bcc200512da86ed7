"""What operators set for tenants, queues, kinds and concurrency keys (`jobq.limits` checks and shows it)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jobq.sql import Statements
from jobq.store.calls import Call, Row, array

_SETTABLE = (
    "weight", "queue_weights", "max_running", "max_per_key", "rate_limit", "rate_period", "rate_burst", "paused",
)  # fmt: skip
_COLUMNS = (
    "scope", "name", *_SETTABLE, "slots_held", "registered", "kind_queue", "kind_priority", "kind_max_attempts",
    "kind_timeout", "kind_max_per_key",
)  # fmt: skip

Record = dict[str, Any]


class LimiterStore:
    """Statements about limits. A scope is `tenant`, `queue`, `kind` or `key`."""

    def __init__(self, statements: Statements) -> None:
        self._sql = statements

    def set_limiter(self, scope: str, name: str, change: Mapping[str, Any]) -> Call[None]:
        """Set some columns of a limiter and tell the workers; the others stay.

        Args:
            scope, name: whose limits.
            change: columns of `limiter` (`jobq.limits.check`); None: not set. `queue_weights` is merged by
                queue, where None takes one out; the three columns of a rate come together.
        """
        weights = change.get("queue_weights")
        params = {
            **{column: change.get(column) for column in _SETTABLE},
            "queue_weights": None if weights is None else json.dumps(weights),
            "scope": scope,
            "name": name,
            "fields": array(change),
        }
        return Call("set_limiter", self._sql["set_limiter"], params, lambda rows: None)

    def find_limiter(self, scope: str, name: str) -> Call[Record]:
        """What is set, what holds slots, and a kind's defaults; also where nothing was ever set."""
        return Call(
            "find_limiter",
            self._sql["find_limiter"],
            {"scope": scope, "name": name},
            lambda rows: _records(rows)[0],
        )

    def list_limiters(
        self, scope: str, *, also: Sequence[str] = (), after: str = "", most: int | None = None
    ) -> Call[list[Record]]:
        """The same for all of a scope for which something is set, by name; of kinds also those workers know.

        Args:
            scope: of which.
            also: names to list whatever is set for them.
            after: names after this one.
            most: so many; None: all.
        """
        params = {"scope": scope, "also": array(also), "after": after, "most": most}
        return Call("list_limiters", self._sql["list_limiters"], params, _records)

    def list_paused(self, most: int = 100) -> Call[dict[str, tuple[int, list[str]]]]:
        """Scope -> how many of it are paused, and the first `most` of their names."""
        return Call(
            "list_paused",
            self._sql["list_paused"],
            {"most": most},
            lambda rows: {scope: (count, names) for scope, count, names in rows},
        )


def _records(rows: list[Row]) -> list[Record]:
    return [dict(zip(_COLUMNS, row, strict=True)) for row in rows]
