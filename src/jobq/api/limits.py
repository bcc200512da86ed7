"""GET and PUT of what is set for tenants, queues, kinds and concurrency keys, and their lists."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote_to_bytes

from fastapi import APIRouter
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response

from jobq import limits
from jobq.api import limit_models
from jobq.api.answers import answer, invalid
from jobq.api.body import DEFAULT_LIMIT, MAX_LIMIT, members, query, read_json, read_limit
from jobq.api.docs import body, errors, parameters
from jobq.api.state import api

router = APIRouter(tags=["limits"])

#: Bytes of a change: room for the weights of all queues that it may name.
CHANGE_BODY = 256 * 1024

_PAGE = {
    "limit": f"1 to {MAX_LIMIT}; {DEFAULT_LIMIT} where absent.",
    "cursor": "nextCursor of the page before.",
}


class _Text(Convertor[str]):
    """The rest of a path, whatever is in it: names may hold slashes, keys anything, line breaks too."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("text", _Text())


@router.get(
    "/api/tenants",
    response_model=limit_models.Tenants,
    responses=errors(422, 503),
    openapi_extra=parameters(_PAGE),
)
async def list_tenants(request: Request) -> Response:
    """Tenants for which something is set, and those with the ten largest backlogs."""
    counted = await api(request).gauges.latest()
    queued = counted.backlogs if counted is not None else {}
    page = await _list(request, "tenant", "tenants", list(queued))
    for tenant in page["tenants"]:
        tenant["queued"] = queued.get(tenant["tenant"])
    return answer(page)


@router.get(
    "/api/tenants/{tenant:text}",
    response_model=limit_models.TenantLimits,
    responses=errors(422, 503),
)
async def show_tenant(request: Request) -> Response:
    """What is set for a tenant."""
    return await _show(request, "tenant")


@router.put(
    "/api/tenants/{tenant:text}",
    response_model=limit_models.TenantLimits,
    responses=errors(400, 409, 413, 415, 422, 503),
    openapi_extra=body(limit_models.TenantChange),
)
async def set_tenant(request: Request) -> Response:
    """Set a tenant's weight, cap, rate, or pause. What is left out stays, null resets."""
    return await _set(request, "tenant")


@router.get(
    "/api/queues/{queue:text}", response_model=limit_models.QueueLimits, responses=errors(422, 503)
)
async def show_queue(request: Request) -> Response:
    """What is set for a queue."""
    return await _show(request, "queue")


@router.put(
    "/api/queues/{queue:text}",
    response_model=limit_models.QueueLimits,
    responses=errors(400, 409, 413, 415, 422, 503),
    openapi_extra=body(limit_models.QueueChange),
)
async def set_queue(request: Request) -> Response:
    """Set a queue's weight, cap, rate, or pause. What is left out stays, null resets."""
    return await _set(request, "queue")


@router.get(
    "/api/kinds",
    response_model=limit_models.Kinds,
    responses=errors(422, 503),
    openapi_extra=parameters(_PAGE),
)
async def list_kinds(request: Request) -> Response:
    """Kinds that workers know, and those for which something is set."""
    return answer(await _list(request, "kind", "kinds"))


@router.get(
    "/api/kinds/{kind:text}", response_model=limit_models.KindLimits, responses=errors(422, 503)
)
async def show_kind(request: Request) -> Response:
    """What is set for a kind, and what its decorator says."""
    return await _show(request, "kind")


@router.put(
    "/api/kinds/{kind:text}",
    response_model=limit_models.KindLimits,
    responses=errors(400, 409, 413, 415, 422, 503),
    openapi_extra=body(limit_models.KindChange),
)
async def set_kind(request: Request) -> Response:
    """Set a kind's weight, cap, cap of its keys, rate, or pause. What is left out stays, null resets."""
    return await _set(request, "kind")


@router.get(
    "/api/limits",
    response_model=limit_models.Keys,
    responses=errors(422, 503),
    openapi_extra=parameters(_PAGE),
)
async def list_keys(request: Request) -> Response:
    """Concurrency keys for which something is set."""
    return answer(await _list(request, "key", "limits"))


@router.get(
    "/api/limits/{key:text}", response_model=limit_models.KeyLimits, responses=errors(422, 503)
)
async def show_key(request: Request) -> Response:
    """What is set for a concurrency key."""
    return await _show(request, "key")


@router.put(
    "/api/limits/{key:text}",
    response_model=limit_models.KeyLimits,
    responses=errors(400, 409, 413, 415, 422, 503),
    openapi_extra=body(limit_models.KeyChange),
)
async def set_key(request: Request) -> Response:
    """Set a concurrency key's cap or rate. What is left out stays, null resets."""
    return await _set(request, "key")


async def _show(request: Request, scope: str) -> Response:
    found = api(request)
    record = await found.database.ask(found.limiters.find_limiter(scope, _name(request, scope)))
    return answer(limits.view(record))


async def _set(request: Request, scope: str) -> Response:
    found, name = api(request), _name(request, scope)

    def prepare(value: Any) -> dict[str, Any]:
        return limits.check(scope, members(value), naming=limits.CAMEL)

    change = await read_json(request, CHANGE_BODY, prepare, finite=False)
    if change:
        await found.database.ask_bounded(found.limiters.set_limiter(scope, name, change))
    return await _show(request, scope)


async def _list(
    request: Request, scope: str, plural: str, also: list[str] | None = None
) -> dict[str, Any]:
    limit, after = _page(query(request, _PAGE))
    found = api(request)
    call = found.limiters.list_limiters(scope, also=also or [], after=after, most=limit + 1)
    records = await found.database.ask_bounded(call)
    cursor = records[limit - 1]["name"] if len(records) > limit else None
    return {plural: [limits.view(record) for record in records[:limit]], "nextCursor": cursor}


def _name(request: Request, scope: str) -> str:
    """The name in a path; FastAPI's own would have bytes that are no UTF-8 replaced.

    Raises:
        InvalidLimit: nothing can be called so.
        HttpError: 422, it is no UTF-8, or a `?` in it was not encoded.
    """
    query(request, ())
    try:
        unquote_to_bytes(request.scope["raw_path"]).decode()
    except UnicodeDecodeError:
        raise invalid({scope: "must be UTF-8, percent-encoded"}) from None
    return limits.check_name(scope, request.path_params[scope])


def _page(given: dict[str, list[str]]) -> tuple[int, str]:
    """Rows of a page, and the name after which it begins."""
    problems = {name: "was given twice" for name, values in given.items() if len(values) > 1}
    limit, after = DEFAULT_LIMIT, given.get("cursor", [""])[0]
    try:
        limit = read_limit(given["limit"][0]) if "limit" in given else limit
    except ValueError as error:
        problems.setdefault("limit", str(error))
    if "\0" in after:
        problems.setdefault("cursor", "must be the nextCursor of an earlier page")
    if problems:
        raise invalid(problems)
    return limit, after
