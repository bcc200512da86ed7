"""The shapes of what is set for tenants, queues, kinds and keys, and of their lists (see `jobq.api.models`)."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from jobq import limits
from jobq.api.models import Name, Shape

Weight = Annotated[float, Field(ge=limits.LEAST_WEIGHT, le=limits.MOST_WEIGHT)]
Cap = Annotated[int, Field(ge=1, le=limits.MOST_RUNNING)]
Jobs = Annotated[int, Field(ge=1, le=limits.MOST_RATE)]


class Rate(Shape):
    """So many jobs may start in a period, over the whole fleet."""

    limit: Jobs
    period_seconds: Annotated[float, Field(ge=limits.LEAST_PERIOD, le=limits.MOST_PERIOD)]
    burst: Jobs | None = Field(
        default=None, description="Jobs that may start at once; 1 where absent."
    )


class KeyChange(Shape):
    """A change for a concurrency key. What is left out stays, null resets."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"maxRunning": 4}]})

    max_running: Cap | None = Field(default=None, description="Jobs that run at once.")
    rate: Rate | None = None


class QueueChange(KeyChange):
    """A change for a queue. What is left out stays, null resets."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"paused": True}]})

    weight: Weight | None = Field(
        default=None, description="A job is charged its run time divided by the weights it has."
    )
    paused: bool | None = Field(default=None, description="Whether none of its jobs may start.")


class KindChange(QueueChange):
    """A change for a kind. What is left out stays, null resets."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"maxPerKey": 2}]})

    max_per_key: Cap | None = Field(
        default=None, description="Cap of its jobs' concurrency keys that have none of their own."
    )


class TenantChange(QueueChange):
    """A change for a tenant. What is left out stays, null resets."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"weight": 3, "maxRunning": 10, "rate": {"limit": 100, "periodSeconds": 60}},
                {"weight": 5, "queue": "mail", "rate": None},
            ]
        }
    )

    queue: Name | None = Field(default=None, description="Beside weight: the weight in this queue.")
    queue_weights: (
        Annotated[dict[Name, Weight | None], Field(max_length=limits.MOST_QUEUES)] | None
    ) = Field(default=None, description="The weight in some queues; null takes one out.")


class _Limits(Shape):
    max_running: int | None = Field(description="null: no cap; of a key: 1, or what the kind says.")
    rate: Rate | None
    slots_held: int = Field(description="Slots of its cap that runs hold now.")


class KeyLimits(_Limits):
    """What is set for a concurrency key."""

    key: str


class _Paused(_Limits):
    weight: float = Field(description="1 where none is set.")
    paused: bool


class QueueLimits(_Paused):
    """What is set for a queue."""

    queue: str


class TenantLimits(_Paused):
    """What is set for a tenant."""

    tenant: str
    queue_weights: dict[str, float]


class KindDefaults(Shape):
    """What a kind's decorator says; null: nothing."""

    queue: str | None
    priority: int | None
    max_attempts: int | None
    timeout_seconds: float | None
    max_per_key: int | None


class KindLimits(_Paused):
    """What is set for a kind."""

    kind: str
    max_per_key: int | None = Field(description="null: what the decorator says, else 1.")
    defaults: KindDefaults | None = Field(description="null: no worker ever knew this kind.")


class Tenant(TenantLimits):
    """A tenant as lists show it."""

    queued: int | None = Field(description="Queued jobs; null: not among the ten that have most.")


class Tenants(Shape):
    """Tenants by name."""

    tenants: list[Tenant]
    next_cursor: str | None = Field(description="For the next page; null on the last.")


class Kinds(Shape):
    """Kinds by name."""

    kinds: list[KindLimits]
    next_cursor: str | None = Field(description="For the next page; null on the last.")


class Keys(Shape):
    """Concurrency keys for which something is set."""

    limits: list[KeyLimits]
    next_cursor: str | None = Field(description="For the next page; null on the last.")


class Queue(QueueLimits):
    """A queue's live jobs, counted at most 5 % of the time, and what is set for it."""

    scheduled: int
    queued: int
    running: int
    oldest_queued_seconds: float
    workers: int


class Queues(Shape):
    """All queues that have jobs or workers, or for which something is set."""

    queues: list[Queue]
