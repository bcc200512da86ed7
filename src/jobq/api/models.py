"""The shapes of requests and answers, as `/openapi.json` and `/docs` describe them.

They document; what is checked is checked by `jobq.fields`, for all ways to enqueue alike.
`tests/api/test_openapi.py` holds the two together.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.alias_generators import to_camel

from jobq import fields

Name = Annotated[str, Field(pattern="^[A-Za-z0-9._:/@-]{1,128}$")]
Key = Annotated[
    str, Field(min_length=1, max_length=fields.MAX_KEY, description="At most 255 bytes.")
]
Status = Literal["SCHEDULED", "QUEUED", "RUNNING", "DONE", "CANCELLED", "DEAD", "FAILED"]


class Shape(BaseModel):
    """Names in camelCase, nothing beside what is told."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


class Options(Shape):
    """What a job may say besides its kind and payload. What it leaves open comes from its kind, then the settings."""

    queue: Name | None = None
    tenant: Name = "default"
    priority: Annotated[int, Field(ge=-fields.MAX_PRIORITY, le=fields.MAX_PRIORITY)] | None = Field(
        default=None, description="Higher first, among the jobs of one tenant."
    )
    delay_seconds: Annotated[float, Field(ge=0, le=fields.LONGEST)] | None = None
    run_at: datetime | None = Field(
        default=None, description="RFC 3339 with a zone; excludes delaySeconds."
    )
    max_attempts: Annotated[int, Field(ge=1, le=fields.MAX_ATTEMPTS)] | None = None
    timeout_seconds: Annotated[float, Field(gt=0, le=fields.LONGEST)] | None = None
    concurrency_key: Key | None = None
    tags: Annotated[
        list[Annotated[str, Field(max_length=fields.MAX_TAG)]], Field(max_length=fields.MAX_TAGS)
    ] = []


class JobRequest(Options):
    """A job to enqueue."""

    kind: Name
    payload: JsonValue = Field(default={}, description="Any JSON value.")
    idempotency_key: Key | None = Field(
        default=None,
        description="The same request again gets the first one's job. Also as header Idempotency-Key.",
    )
    unique_key: Key | None = Field(
        default=None, description="At most one live job of a tenant has it."
    )


class JobsRequest(Shape):
    """Jobs to enqueue in one transaction, all or none."""

    jobs: Annotated[list[JobRequest], Field(min_length=1, max_length=10_000)]


class PayloadsRequest(Options):
    """Jobs of one kind that differ by their payloads only."""

    kind: Name
    payloads: Annotated[list[JsonValue], Field(min_length=1, max_length=10_000)]


class Enqueued(Shape):
    """A job as enqueued; RETIRED where a repeated key outlived its job."""

    id: int
    status: Status | Literal["RETIRED"]


class EnqueuedInBatch(Enqueued):
    """The same in a batch; `created` is false where a key stood for an existing job."""

    created: bool


class EnqueuedJobs(Shape):
    """The jobs of a batch, in the order of the request."""

    jobs: list[EnqueuedInBatch]


class Attempt(Shape):
    """How an attempt ended."""

    attempt: int
    started_at: datetime | None
    ended_at: datetime | None
    worker: str | None
    outcome: str
    error: str


class JobSummary(Shape):
    """A job as lists show it."""

    id: int
    kind: str
    queue: str
    tenant: str
    priority: int
    status: Status
    attempts: int
    max_attempts: int | None = Field(description="null: the setting of the worker that claims it.")
    timeout_seconds: float | None
    created_at: datetime
    run_at: datetime
    ready_at: datetime | None = Field(
        description="When it last became QUEUED; waiting is measured from here."
    )
    started_at: datetime | None
    finished_at: datetime | None
    worker: str | None
    progress: JsonValue
    last_error: str | None
    tags: list[str]
    idempotency_key: str | None
    unique_key: str | None
    concurrency_key: str | None
    cancel_requested: bool
    held_by: str | None = Field(description="Why it may not be claimed, or null.")
    request_id: str | None


class Job(JobSummary):
    """A job with everything."""

    payload: JsonValue
    payload_dropped: bool = Field(
        description="The payload was larger than JOBQ_KEEP_PAYLOAD when it finished."
    )
    result: JsonValue
    errors: list[Attempt] = Field(description="Attempts that ended with an error, the last 20.")


class JobStatusView(Shape):
    """What to poll."""

    id: int
    status: Status
    attempts: int
    max_attempts: int | None
    run_at: datetime
    last_error: str | None


class Why(Shape):
    """Why a job waits, or what became of it."""

    id: int
    status: Status
    reason: Literal[
        "scheduled", "queue_paused", "tenant_paused", "kind_paused", "key_paused", "no_worker", "unknown_kind",
        "queue_cap", "tenant_cap", "kind_cap", "key_cap", "key_turn", "queue_rate", "tenant_rate", "kind_rate",
        "key_rate", "ahead", "next", "running", "finished",
    ]  # fmt: skip
    sentence: str = Field(description="For people; may change.")
    data: dict[str, Any] = Field(
        description="What the sentence says, by reason; `also` names what else holds."
    )


class JobPage(Shape):
    """Jobs, newest first."""

    jobs: list[JobSummary]
    next_cursor: str | None = Field(description="For the next page; null on the last.")


class RetryRequest(Shape):
    """Options of a retry; the body may be left out."""

    force: bool = Field(default=False, description="Also from FAILED and CANCELLED.")


class Retried(Shape):
    """A job that is queued again."""

    id: int
    status: Literal["QUEUED"]


class Cancelled(Shape):
    """A cancelled job, or one that was asked to stop (RUNNING)."""

    id: int
    status: Literal["CANCELLED", "RUNNING"]
    cancel_requested: bool


class Worker(Shape):
    """A worker process that is alive."""

    id: str
    host: str
    pid: int
    version: str
    queues: list[str] | None = Field(description="null: all.")
    kinds: list[str]
    slots: int
    express: int
    running: int
    draining: bool
    started_at: datetime
    heartbeat_at: datetime
    claimed_at: datetime | None = Field(description="When its claim loop last succeeded.")
    claim_loop_ok: bool = Field(description="Whether it moved, at the last heartbeat.")
    finished_per_second: float = Field(description="Runs that ended lately, on average.")


class Workers(Shape):
    """The workers that are alive."""

    workers: list[Worker]


class Paused(Shape):
    """Something that is paused."""

    scope: Literal["tenant", "queue", "kind"]
    name: str


class Stats(Shape):
    """Jobs by status (finished ones: DEAD and FAILED only), who is at work, and what is paused."""

    jobs: dict[str, int]
    workers: int
    oldest_queued_seconds: float
    oldest_running_seconds: float
    largest_backlogs: list[dict[str, Any]]
    paused: list[Paused] = Field(description="The first hundred of each scope.")
    snapshot_age_seconds: float


class Error(Shape):
    """Every error. Sentences may change, codes do not."""

    error: str
    code: str
    request_id: str
    fields: dict[str, str] = Field(default={}, description="Bad field -> what is wrong with it.")
