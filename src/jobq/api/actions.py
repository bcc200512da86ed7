"""POST /api/jobs/{id}/retry and /api/jobs/{id}/cancel."""

from __future__ import annotations

from fastapi import APIRouter
from psycopg import errors as pg
from starlette.requests import Request
from starlette.responses import Response

from jobq.api import models
from jobq.api.answers import RETRY_AFTER, HttpError, answer, invalid
from jobq.api.body import read_options
from jobq.api.docs import body, errors
from jobq.api.shapes import Record
from jobq.api.state import Api, api, job_id, missing
from jobq.errors import WrongStatus
from jobq.model import JobStatus

router = APIRouter(tags=["jobs"])

#: How often a job may change under our hands before the client is asked to try again.
ROUNDS = 5
#: Bytes of a body that can only hold an option.
SMALL_BODY = 64 * 1024

_NOT_ALLOWED = "the job was written with a name or key that no live job may have; enqueue a new one"

_RETRYABLE = {JobStatus.SCHEDULED, JobStatus.DEAD}
_WITH_FORCE = _RETRYABLE | {JobStatus.FAILED, JobStatus.CANCELLED}


@router.post(
    "/api/jobs/{id}/retry",
    response_model=models.Retried,
    responses=errors(404, 409, 422, 503),
    openapi_extra=body(models.RetryRequest, required=False),
)
async def retry(request: Request) -> Response:
    """Queue a job again: DEAD starts over, SCHEDULED runs now, FAILED and CANCELLED with `force`."""
    options = await read_options(request, SMALL_BODY, {"force"})
    force = options.get("force", False)
    if not isinstance(force, bool):
        raise invalid({"force": "must be true or false"})
    number = job_id(request)
    jobs, database = api(request).jobs, api(request).database
    record: Record = {}
    for _ in range(ROUNDS):
        try:
            if await database.ask_bounded(jobs.retry([number], force=force)):
                return answer({"id": number, "status": "QUEUED"})
        except pg.CheckViolation:
            raise WrongStatus(_NOT_ALLOWED) from None
        record = await _look(api(request), number)
        if record["status"] not in (_WITH_FORCE if force else _RETRYABLE):
            raise WrongStatus(_why_no_retry(record["status"]))
    raise _why_no_revival(record)


@router.post(
    "/api/jobs/{id}/cancel",
    response_model=models.Cancelled,
    responses={
        202: {"model": models.Cancelled, "description": "Asked to stop"},
        **errors(404, 409, 422, 503),
    },
)
async def cancel(request: Request) -> Response:
    """Cancel a job that waits, ask one that runs to stop, dismiss one that is DEAD or FAILED."""
    await read_options(request, SMALL_BODY, set())
    number = job_id(request)
    call = api(request).jobs.cancel([number], api(request).settings.keep_payload)
    for _ in range(ROUNDS):
        status = (await api(request).database.ask_bounded(call)).get(number)
        if status is None:
            status = JobStatus((await _look(api(request), number))["status"])
            if status is JobStatus.DONE:
                raise WrongStatus("the job is DONE already")
        if status is JobStatus.CANCELLED:
            return answer({"id": number, "status": status, "cancelRequested": False})
        if status is JobStatus.RUNNING:
            return answer({"id": number, "status": status, "cancelRequested": True}, 202)
    raise _restless()


async def _look(found: Api, number: int) -> Record:
    record = await found.database.ask(found.jobs.find_job(number))
    if record is None:
        raise missing(number)
    return record


def _why_no_retry(status: str) -> str:
    match status:
        case "FAILED" | "CANCELLED":
            return f'the job is {status}; to run it again all the same, send {{"force": true}}'
        case "QUEUED":
            return "the job is QUEUED: it runs as soon as a worker is free"
        case "RUNNING":
            return "the job is RUNNING"
    return f"the job is {status} and cannot be run again; enqueue a new one"


def _why_no_revival(record: Record) -> HttpError:
    """Why a job whose status allows a retry was not revived all the same (see retry.sql)."""
    if record["status"] != JobStatus.SCHEDULED and record["payload"] is None:
        return HttpError(
            409,
            "payload_dropped",
            "the job's payload was dropped when it finished; enqueue a new job",
        )
    if record["status"] != JobStatus.SCHEDULED and record["unique_key"] is not None:
        return HttpError(409, "unique_key_taken", "another live job holds this job's uniqueKey")
    return _restless()


def _restless() -> HttpError:
    return HttpError(409, "busy", "the job keeps changing; try again shortly", headers=RETRY_AFTER)
