"""Weights as operators set them: what a job's run time is divided by when its tenant is charged (pure, no I/O)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

#: Bounds of a job's weight, whatever its three factors multiply to: beyond them floats lose the difference.
LEAST, MOST = 1e-4, 1e6


class WeightRow(NamedTuple):
    """What is set for a tenant, queue or kind; None: nothing.

    `queue_weights` are a tenant's, queue by queue. Whatever is no positive number there is ignored.
    """

    scope: str
    name: str
    weight: float | None
    queue_weights: Mapping[str, object] | None = None


class Weights:
    """The weights of a fleet: of tenants, for all queues or one by one, and of queues and kinds."""

    def __init__(self) -> None:
        self._set: dict[str, dict[str, float]] = {"tenant": {}, "queue": {}, "kind": {}}
        self._tenants, self._queues, self._kinds = self._set.values()
        #: Tenant -> queue -> weight.
        self._in_queue: dict[str, dict[str, float]] = {}
        self._any = False

    def learn(self, rows: Iterable[WeightRow]) -> None:
        """Rows that were set since they were last learned; each says all that is set for its name."""
        for row in rows:
            if row.scope in self._set:
                _put(self._set[row.scope], row.name, row.weight)
            if row.scope == "tenant":
                _put(self._in_queue, row.name, _usable(row.queue_weights or {}))
        self._any = any((*self._set.values(), self._in_queue))

    def of(self, tenant: str, queue: str, kind: str) -> float:
        """The weight of a job: its tenant's in that queue, else its tenant's, times its queue's, times its kind's.

        What is not set counts as 1.
        """
        if not self._any:
            return 1.0
        own = self._in_queue.get(tenant, {}).get(queue) or self._tenants.get(tenant, 1.0)
        weight = own * self._queues.get(queue, 1.0) * self._kinds.get(kind, 1.0)
        return min(max(weight, LEAST), MOST)


def _put(where: dict[str, Any], name: str, value: object) -> None:
    if value:
        where[name] = value
    else:
        where.pop(name, None)


def _usable(weights: Mapping[str, object]) -> dict[str, float]:
    """Weights as somebody's SQL may have left them, without what is none."""
    return {
        queue: float(min(weight, MOST))
        for queue, weight in weights.items()
        if isinstance(weight, int | float) and not isinstance(weight, bool) and weight > 0
    }
