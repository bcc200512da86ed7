"""What the routes share."""

from __future__ import annotations

import re
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from starlette.requests import Request

from jobq.api.answers import HttpError
from jobq.api.beside import WorkerBeside
from jobq.api.collector import DatabaseCollector
from jobq.api.database import Database
from jobq.api.gauges import Gauges
from jobq.config import Settings
from jobq.errors import JobNotFound
from jobq.handlers import Registry
from jobq.metrics import Metrics
from jobq.store import JobStore, LimiterStore, WhyStore

#: The largest id PostgreSQL's bigint holds.
MAX_ID = 2**63 - 1


@dataclass
class Api:
    """One application's settings and connections.

    Attributes:
        handlers: of the app this API was started with; None: any kind is taken.
        beside: the worker whose numbers are shown with ours (`jobq dev`).
        draining: whether the process is about to end; `/readyz` then says so.
    """

    settings: Settings
    handlers: Registry | None
    database: Database
    jobs: JobStore
    why: WhyStore
    limiters: LimiterStore
    metrics: Metrics
    registry: CollectorRegistry
    gauges: Gauges
    collector: DatabaseCollector
    beside: WorkerBeside | None = None
    draining: bool = False


def api(request: Request) -> Api:
    """The application that serves a request."""
    found: Api = request.app.state.api
    return found


def job_id(request: Request) -> int:
    """The id in a request's path.

    Raises:
        HttpError: 422, it is no number.
        JobNotFound: it is one that no job can have.
    """
    text = request.path_params["id"]
    if not re.fullmatch(r"-?[0-9]{1,100}", text):
        raise HttpError(
            422,
            "invalid_field",
            "id must be a whole number",
            fields={"id": "must be a whole number"},
        )
    number = int(text)
    if not 0 < number <= MAX_ID:
        raise missing(text)
    return number


def missing(number: object) -> JobNotFound:
    """No job has this id."""
    return JobNotFound(f"no job has the id {number}")
