"""/openapi.json and /docs: true, complete, and made here."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, ValidationError
from tests.api.support import enqueue

from jobq import fields, limits
from jobq.api import limit_models, models
from jobq.api.enqueue import MAX_BATCH

#: Of contract.md, "HTTP", as far as this version goes.
PATHS = {
    "/api/jobs": {"get", "post"},
    "/api/jobs/batch": {"post"},
    "/api/jobs/{id}": {"get"},
    "/api/jobs/{id}/status": {"get"},
    "/api/jobs/{id}/why": {"get"},
    "/api/jobs/{id}/retry": {"post"},
    "/api/jobs/{id}/cancel": {"post"},
    "/api/tenants": {"get"},
    "/api/tenants/{tenant}": {"get", "put"},
    "/api/queues": {"get"},
    "/api/queues/{queue}": {"get", "put"},
    "/api/kinds": {"get"},
    "/api/kinds/{kind}": {"get", "put"},
    "/api/limits": {"get"},
    "/api/limits/{key}": {"get", "put"},
    "/api/workers": {"get"},
    "/api/stats": {"get"},
    "/healthz": {"get"},
    "/readyz": {"get"},
    "/health": {"get"},
    "/metrics": {"get"},
}


async def test_every_path_is_described(http: httpx.AsyncClient) -> None:
    description = (await http.get("/openapi.json")).json()
    assert {path: set(methods) for path, methods in description["paths"].items()} == PATHS


async def test_every_reference_leads_somewhere(http: httpx.AsyncClient) -> None:
    text = (await http.get("/openapi.json")).text
    names = set(re.findall(r'"#/components/schemas/(\w+)"', text))
    assert names <= set((await http.get("/openapi.json")).json()["components"]["schemas"])
    assert {"JobRequest", "JobsRequest", "PayloadsRequest", "RetryRequest", "Job", "Error"} <= names


async def test_errors_have_our_shape_only(http: httpx.AsyncClient) -> None:
    description = (await http.get("/openapi.json")).json()
    assert "HTTPValidationError" not in description["components"]["schemas"]


async def test_the_page_needs_nothing_from_elsewhere(http: httpx.AsyncClient) -> None:
    response = await http.get("/docs")
    assert response.headers["content-type"].startswith("text/html")
    assert "<script" not in response.text
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", response.text)
    assert not re.search(r"url\(|@import", response.text)
    for path in PATHS:
        assert path in response.text


def test_the_fields_of_a_job_are_those_that_are_checked() -> None:
    described = {
        models.JobRequest.model_fields[name].alias for name in models.JobRequest.model_fields
    }
    checked = {fields.CAMEL.get(name, name) for name in fields._CHECKS if name != "meta"}
    assert described == checked | {"payload"}


@pytest.mark.parametrize(
    "body",
    [
        {}, {"kind": ""}, {"kind": "k" * 129}, {"kind": "k", "priority": 101}, {"kind": "k", "priority": 1.5},
        {"kind": "k", "maxAttempts": 0}, {"kind": "k", "maxAttempts": 101}, {"kind": "k", "timeoutSeconds": 0},
        {"kind": "k", "delaySeconds": -1}, {"kind": "k", "tags": ["x" * 65]}, {"kind": "k", "tags": ["x"] * 17},
        {"kind": "k", "idempotencyKey": ""}, {"kind": "k", "idempotencyKey": "x" * 256}, {"kind": "k", "unknown": 1},
    ],
)  # fmt: skip
async def test_what_the_description_forbids_is_refused(
    http: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    assert not fits(models.JobRequest, body)
    assert (await http.post("/api/jobs", json=body)).status_code == 422


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "k" * 128}, {"kind": "k", "priority": 100}, {"kind": "k", "priority": -100}, {"kind": "k", "maxAttempts": 100},
        {"kind": "k", "timeoutSeconds": 0.001}, {"kind": "k", "delaySeconds": 0}, {"kind": "k", "tags": ["x" * 64] * 16},
        {"kind": "k", "idempotencyKey": "x" * 255}, {"kind": "k", "payload": None}, {"kind": "k", "runAt": "2040-01-01T00:00:00Z"},
    ],
)  # fmt: skip
async def test_what_the_description_allows_is_taken(
    http: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    assert fits(models.JobRequest, body)
    assert (await http.post("/api/jobs", json=body)).status_code == 202


async def test_answers_have_the_shapes_described(http: httpx.AsyncClient) -> None:
    id_ = await enqueue(http, queue="q")
    retry, rate = {"force": True}, {"limit": 5, "periodSeconds": 60}
    await http.post(f"/api/jobs/{id_}/cancel")
    for shape, method, path, body in (
        (models.Enqueued, "POST", "/api/jobs", {"kind": "k"}),
        (models.EnqueuedJobs, "POST", "/api/jobs/batch", {"kind": "k", "payloads": [1]}),
        (models.Job, "GET", f"/api/jobs/{id_}", None),
        (models.JobPage, "GET", "/api/jobs", None),
        (models.Retried, "POST", f"/api/jobs/{id_}/retry", retry),
        (models.Cancelled, "POST", f"/api/jobs/{id_}/cancel", None),
        (limit_models.Queues, "GET", "/api/queues", None),
        (limit_models.TenantLimits, "PUT", "/api/tenants/t", {"weight": 2, "paused": True}),
        (limit_models.QueueLimits, "PUT", "/api/queues/q", {"rate": rate, "maxRunning": 3}),
        (limit_models.KindLimits, "PUT", "/api/kinds/k", {"maxPerKey": 2}),
        (limit_models.KeyLimits, "PUT", "/api/limits/a%20b", {"maxRunning": 2}),
        (limit_models.Tenants, "GET", "/api/tenants", None),
        (limit_models.Kinds, "GET", "/api/kinds", None),
        (limit_models.Keys, "GET", "/api/limits", None),
        (models.Workers, "GET", "/api/workers", None),
        (models.Stats, "GET", "/api/stats", None),
        (models.Error, "GET", "/api/jobs/0", None),
    ):
        response = await http.request(method, path, json=body)
        shape.model_validate_json(response.content)


def test_the_fields_of_a_change_are_those_that_are_checked() -> None:
    shapes: dict[str, type[BaseModel]] = {
        "tenant": limit_models.TenantChange, "queue": limit_models.QueueChange, "kind": limit_models.KindChange,
        "key": limit_models.KeyChange,
    }  # fmt: skip
    for scope, shape in shapes.items():
        described = {field.alias for field in shape.model_fields.values()}
        assert described == {limits.CAMEL.get(name, name) for name in limits.FIELDS[scope]}


async def test_names_in_paths_are_described(http: httpx.AsyncClient) -> None:
    paths = (await http.get("/openapi.json")).json()["paths"]
    for path, methods in paths.items():
        for operation in methods.values():
            described = [p["name"] for p in operation.get("parameters", []) if p["in"] == "path"]
            assert described == re.findall(r"{(\w+)}", path)


@pytest.mark.parametrize("scope", sorted(limits.FIELDS))
def test_changes_have_examples_that_are_taken(scope: str) -> None:
    shape: type[BaseModel] = getattr(limit_models, f"{scope.capitalize()}Change")
    examples = shape.model_json_schema()["examples"]
    assert examples
    for example in examples:
        assert limits.check(scope, example)


async def test_the_page_unfolds_what_its_links_lead_to(http: httpx.AsyncClient) -> None:
    page = (await http.get("/docs")).text
    assert set(re.findall(r'href="#(\w+)"', page)) <= set(re.findall(r"<pre id=(\w+)>", page))
    assert "<code>force</code>" in page


def test_a_batch_is_as_large_as_described() -> None:
    schema = models.JobsRequest.model_json_schema()
    assert schema["properties"]["jobs"]["maxItems"] == MAX_BATCH


def fits(shape: type[BaseModel], body: dict[str, Any]) -> bool:
    try:
        shape.model_validate(body, strict=False)
    except ValidationError:
        return False
    return True
