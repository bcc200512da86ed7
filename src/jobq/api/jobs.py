"""GET /api/jobs, /api/jobs/{id}, /api/jobs/{id}/status and /api/jobs/{id}/why."""

from __future__ import annotations

import re
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from jobq import fields, why
from jobq.api import models
from jobq.api.answers import answer, invalid
from jobq.api.body import DEFAULT_LIMIT, MAX_LIMIT, query, read_limit
from jobq.api.docs import errors, parameters
from jobq.api.shapes import Record, job_view, status_view, summary
from jobq.api.state import MAX_ID, api, job_id, missing
from jobq.errors import InvalidJob
from jobq.model import JobStatus

router = APIRouter(tags=["jobs"])

_FILTERS = {
    "status": "In any case; may be repeated.",
    "kind": "",
    "queue": "",
    "tenant": "",
    "tag": "",
    "limit": f"1 to {MAX_LIMIT}; {DEFAULT_LIMIT} where absent.",
    "cursor": "nextCursor of the page before.",
}


@router.get("/api/jobs/{id}", response_model=models.Job, responses=errors(404, 422, 503))
async def show_job(request: Request) -> Response:
    """Everything about a job."""
    return answer(job_view(await find(request)))


@router.get(
    "/api/jobs/{id}/status", response_model=models.JobStatusView, responses=errors(404, 422, 503)
)
async def show_status(request: Request) -> Response:
    """Status, attempts, next run and last error."""
    return answer(status_view(await find(request)))


@router.get("/api/jobs/{id}/why", response_model=models.Why, responses=errors(404, 422, 503))
async def show_why(request: Request) -> Response:
    """Why a job waits, or what became of it: one sentence, and the data behind it."""
    number, ask, store = job_id(request), api(request).database.ask_bounded, api(request).why
    facts = await ask(store.why(number))
    if facts is None:
        raise missing(number)
    ahead = await ask(store.ahead(facts)) if facts.status is JobStatus.QUEUED else None
    return answer(why.view(facts, why.explain(facts, ahead)))


@router.get(
    "/api/jobs",
    response_model=models.JobPage,
    responses=errors(422, 503),
    openapi_extra=parameters(_FILTERS),
)
async def list_jobs(request: Request) -> Response:
    """Jobs, newest first, without payload, result and errors."""
    wanted = _wanted(query(request, _FILTERS))
    limit = wanted.pop("limit")
    found = await api(request).database.ask_bounded(
        api(request).jobs.list_jobs(most=limit + 1, **wanted)
    )
    page = found[:limit]
    cursor = str(page[-1]["id"]) if len(found) > limit else None
    return answer({"jobs": [summary(record) for record in page], "nextCursor": cursor})


async def find(request: Request) -> Record:
    """The job that a path names.

    Raises:
        JobNotFound: there is none.
    """
    number = job_id(request)
    record = await api(request).database.ask(api(request).jobs.find_job(number))
    if record is None:
        raise missing(number)
    return record


def _wanted(given: dict[str, list[str]]) -> dict[str, Any]:
    """Arguments of `JobStore.list_jobs`."""
    problems: dict[str, str] = {}
    wanted: dict[str, Any] = {"limit": DEFAULT_LIMIT}
    for name, values in given.items():
        try:
            if name == "status":
                wanted["statuses"] = [_status(value) for value in values]
            elif len(values) > 1:
                problems[name] = "was given twice"
            else:
                wanted[_ARGUMENTS.get(name, name)] = _READERS[name](values[0])
        except InvalidJob as error:
            problems.update(error.fields)
        except ValueError as error:
            problems[name] = str(error)
    if problems:
        raise invalid(problems)
    return wanted


def _status(text: str) -> str:
    try:
        return JobStatus(text.upper()).value
    except ValueError:
        raise ValueError(f"must be one of {', '.join(JobStatus)}") from None


def _cursor(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,19}", text) or not 1 <= int(text) <= MAX_ID:
        raise ValueError("must be the nextCursor of an earlier page")
    return int(text)


def _name(field: str) -> Any:
    return lambda text: fields.check({field: text})[field]


def _tag(text: str) -> str:
    try:
        return str(fields.check({"tags": [text]})["tags"][0])
    except InvalidJob:
        raise ValueError(f"must be text of 1 to {fields.MAX_TAG} characters") from None


_ARGUMENTS = {"cursor": "before"}
_READERS = {
    "kind": _name("kind"),
    "queue": _name("queue"),
    "tenant": _name("tenant"),
    "tag": _tag,
    "limit": read_limit,
    "cursor": _cursor,
}
