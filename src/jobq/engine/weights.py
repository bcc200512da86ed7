"""Weights as operators set them: what a job's run time is divided by when its tenant is charged (pure, no I/O)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class WeightRow(NamedTuple):
    """What is set for a tenant, queue or kind; None: nothing."""

    scope: str
    name: str
    weight: float | None
    queue_weights: Mapping[str, float] | None = None


class Weights:
    """The weights of a fleet: of tenants, for all queues or one by one, and of queues and kinds."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], float] = {}

    def learn(self, rows: Iterable[WeightRow]) -> None:
        """Rows that were set since they were last learned."""
        for row in rows:
            self._set((row.scope, row.name), row.weight)
            if row.scope == "tenant":
                for key in [
                    key for key in self._of if key[0] == "in" and key[1].startswith(f"{row.name} ")
                ]:
                    del self._of[key]
                for queue, weight in (row.queue_weights or {}).items():
                    self._set(("in", f"{row.name} {queue}"), weight)

    def of(self, tenant: str, queue: str, kind: str) -> float:
        """The weight of a job: its tenant's in that queue, else its tenant's, times its queue's, times its kind's."""
        of = self._of
        if not of:
            return 1.0
        own = of.get(("in", f"{tenant} {queue}")) or of.get(("tenant", tenant), 1.0)
        return own * of.get(("queue", queue), 1.0) * of.get(("kind", kind), 1.0)

    def _set(self, key: tuple[str, str], weight: float | None) -> None:
        if weight is None:
            self._of.pop(key, None)
        else:
            self._of[key] = weight
