"""POST /api/jobs and /api/jobs/batch."""

from __future__ import annotations

import re
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from jobq import fields, logs
from jobq.api import models
from jobq.api.answers import HttpError, answer, invalid
from jobq.api.body import camel, members, read_json
from jobq.api.docs import body, errors
from jobq.api.edge import request_id
from jobq.api.state import Api, api
from jobq.errors import InvalidJob, InvalidPayload
from jobq.handlers import Handler
from jobq.model import Job, NewJob
from jobq.payload import decode

log = logs.get("jobq.api")
router = APIRouter(tags=["jobs"])

#: Jobs in one batch.
MAX_BATCH = 10_000
#: Bad jobs of a batch that are named; there may be thousands.
MAX_NAMED = 20

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
#: Field over HTTP -> option of `fields.new_job`.
_OPTIONS = {
    fields.CAMEL.get(name, name): name
    for name in (
        "queue", "tenant", "priority", "delay", "run_at", "max_attempts", "timeout",
        "idempotency_key", "unique_key", "concurrency_key", "tags",
    )
}  # fmt: skip
_OF_ONE_JOB = ("idempotencyKey", "uniqueKey")


@router.post(
    "/api/jobs",
    status_code=202,
    response_model=models.Enqueued,
    responses={
        200: {"model": models.Enqueued, "description": "A repeated key: the first request's job"},
        **errors(400, 409, 413, 415, 422, 503),
    },
    openapi_extra=body(models.JobRequest),
)
async def enqueue_job(request: Request) -> Response:
    """Enqueue a job."""
    found = api(request)

    def prepare(value: Any) -> NewJob:
        given = _named(members(value), {*_OPTIONS, "kind", "payload"})
        _take_header(request, given)
        return _new_job(found, given, _meta(request))

    new = await read_json(request, found.settings.max_body, prepare)
    (job,) = await found.database.enqueue([new])
    _count(found, [job], [new.kind])
    headers = {"Location": f"/api/jobs/{job.id}"}
    return answer({"id": job.id, "status": job.status}, 202 if job.created else 200, headers)


@router.post(
    "/api/jobs/batch",
    status_code=202,
    response_model=models.EnqueuedJobs,
    responses=errors(400, 409, 413, 415, 422, 503),
    openapi_extra=body(models.JobsRequest, models.PayloadsRequest),
)
async def enqueue_batch(request: Request) -> Response:
    """Enqueue up to 10,000 jobs in one transaction, all or none."""
    found = api(request)
    if "idempotency-key" in request.headers:
        raise invalid(
            {"Idempotency-Key": "is for one job; give each job of a batch an idempotencyKey"}
        )

    def prepare(value: Any) -> list[NewJob]:
        given = members(value)
        requests = _with_payloads(given) if "payloads" in given else _with_jobs(given)
        return _new_jobs(found, requests, _meta(request))

    jobs = await read_json(request, found.settings.max_body, prepare)
    enqueued = await found.database.enqueue(jobs)
    _count(found, enqueued, [job.kind for job in jobs])
    rows = [{"id": job.id, "status": job.status, "created": job.created} for job in enqueued]
    return answer({"jobs": rows}, 202)


def _with_jobs(given: dict[str, Any]) -> list[dict[str, Any]]:
    """The form `{"jobs": [...]}`."""
    jobs = _list(_named(given, {"jobs"}), "jobs")
    wrong = {
        f"jobs[{at}]": "must be an object"
        for at, job in enumerate(jobs)
        if not isinstance(job, dict)
    }
    if wrong:
        raise invalid(dict(list(wrong.items())[:MAX_NAMED]))
    return jobs


def _with_payloads(given: dict[str, Any]) -> list[dict[str, Any]]:
    """The form `{"kind", "payloads": [...]}` with shared options."""
    shared = _named(given, {*_OPTIONS, "kind", "payloads"})
    payloads = _list(shared, "payloads")
    single = {
        name: "is for one job; use the form with jobs" for name in _OF_ONE_JOB if name in shared
    }
    if single:
        raise invalid(single)
    del shared["payloads"]
    return [{**shared, "payload": payload} for payload in payloads]


def _list(given: dict[str, Any], name: str) -> list[Any]:
    found = given.get(name)
    if not isinstance(found, list) or not 1 <= len(found) <= MAX_BATCH:
        raise invalid({name: f"must be a list of 1 to {MAX_BATCH:,}"})
    return found


def _new_jobs(found: Api, requests: list[dict[str, Any]], meta: dict[str, str]) -> list[NewJob]:
    jobs: list[NewJob] = []
    problems: dict[str, str] = {}
    for at, given in enumerate(requests):
        try:
            jobs.append(_new_job(found, _named(given, {*_OPTIONS, "kind", "payload"}), meta))
        except (InvalidJob, HttpError) as error:
            problems |= {f"jobs[{at}].{name}": problem for name, problem in error.fields.items()}
            if len(problems) >= MAX_NAMED:
                break
    if problems:
        raise invalid(problems)
    return jobs


def _new_job(found: Api, given: dict[str, Any], meta: dict[str, str]) -> NewJob:
    """A checked job of members that have the right names."""
    kind = given.get("kind")
    options = {_OPTIONS[name]: value for name, value in given.items() if name in _OPTIONS}
    handler = (
        found.handlers.find(kind) if found.handlers is not None and isinstance(kind, str) else None
    )
    if handler is not None:
        options = {**_defaults(handler), **{k: v for k, v in options.items() if v is not None}}
    job = fields.new_job(
        kind,
        given.get("payload", {}),
        {**options, "meta": meta},
        limit=found.settings.max_payload,
        naming=fields.CAMEL,
    )
    if handler is not None:
        _check_payload(handler, job.payload)
    return job


def _check_payload(handler: Handler, payload: str) -> None:
    try:
        handler.bind(decode(payload))
    except InvalidJob:
        raise
    except Exception as error:
        # A validator of the app's own may raise anything; the input was bad all the same.
        log.warning("a payload could not be checked", kind=handler.kind, exc_info=error)
        reason = f"does not fit the handler ({type(error).__name__})"
        raise InvalidPayload(f"payload {reason}", fields={"payload": reason}) from error


def _defaults(handler: Handler) -> dict[str, Any]:
    """What a kind's decorator says: its row may not be there before the first worker is."""
    names = ("queue", "priority", "max_attempts", "timeout")
    return {name: getattr(handler, name) for name in names}


def _named(given: dict[str, Any], known: set[str]) -> dict[str, Any]:
    """Members by their camelCase names.

    Raises:
        HttpError: 422 that names what is unknown or there twice.
    """
    named: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for name, value in given.items():
        key = camel(name)
        if key not in known:
            problems[name] = f"is no field; those are {', '.join(sorted(known))}"
        elif key in named:
            problems[key] = "was given twice"
        else:
            named[key] = value
    if problems:
        raise invalid(problems)
    return named


def _take_header(request: Request, given: dict[str, Any]) -> None:
    """The key of the header Idempotency-Key, which must not contradict the body's."""
    values = request.headers.getlist("idempotency-key")
    if not values:
        return
    key = values[0]
    if not key.isascii():  # RFC 9110, 5.5: nobody knows what it is encoded in
        raise invalid({"Idempotency-Key": "must be ASCII; other text may stand in the body"})
    if any(value != key for value in values) or given.get("idempotencyKey") not in (None, key):
        raise invalid({"idempotencyKey": "must be the same as in the header Idempotency-Key"})
    given["idempotencyKey"] = key


def _meta(request: Request) -> dict[str, str]:
    """What travels with a job: the request's id, and its trace (W3C Trace Context)."""
    meta = {"request_id": request_id(request.scope)}
    trace = request.headers.get("traceparent", "")
    if _TRACEPARENT.fullmatch(trace):
        meta["traceparent"] = trace
    return meta


def _count(found: Api, jobs: list[Job], kinds: list[str]) -> None:
    for job, kind in zip(jobs, kinds, strict=True):
        if job.created:
            found.metrics.submitted(kind)
