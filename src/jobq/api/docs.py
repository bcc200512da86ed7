"""/openapi.json and /docs: one self-contained page, made here, that works without a network."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from html import escape
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from jobq.api import limit_models, models
from jobq.api.answers import answer

router = APIRouter(include_in_schema=False)

Json = dict[str, Any]

_DESCRIPTIONS = {
    400: "The body is no JSON",
    404: "No such job",
    409: "Wrong status, key conflict, or busy",
    413: "The body or the payload is too large",
    415: "Not application/json",
    422: "A bad or unknown field",
    503: "The database is away; see Retry-After",
}
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24; }
h2 { font-size: 1rem; margin: 0; display: inline; } code, pre, h2 { font-family: ui-monospace, monospace; }
details { border: 1px solid #d0d7de; border-radius: 6px; margin: .5rem 0; padding: .6rem .9rem; }
pre { background: #f6f8fa; padding: .8rem; overflow: auto; border-radius: 6px; font-size: .85rem; }
.method { display: inline-block; min-width: 3.5rem; font-weight: bold; } table { border-collapse: collapse; }
td, th { text-align: left; padding: .2rem .8rem .2rem 0; vertical-align: top; }
@media (prefers-color-scheme: dark) { body { background: #0d1117; color: #e6edf3; }
  pre { background: #161b22; } details { border-color: #30363d; } a { color: #58a6ff; } }
"""


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    """The description of this API (OpenAPI 3.1)."""
    return answer(request.app.openapi())


@router.get("/docs")
async def docs(request: Request) -> Response:
    """The same for people."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
    return HTMLResponse(page(request.app.openapi()), headers={"Content-Security-Policy": policy})


def errors(*statuses: int) -> dict[int | str, Json]:
    """Descriptions of the errors that a route answers with."""
    return {
        status: {"model": models.Error, "description": _DESCRIPTIONS[status]} for status in statuses
    }


def parameters(known: Mapping[str, str]) -> Json:
    """Descriptions of query parameters, by name."""
    return {
        "parameters": [
            {
                "name": name,
                "in": "query",
                "required": False,
                "description": text,
                "schema": {"type": "string"},
            }
            for name, text in known.items()
        ]
    }


def body(*shapes: type[BaseModel], required: bool = True) -> Json:
    """The description of a request body: one of these shapes."""
    choices = [{"$ref": _REFERENCE.format(model=shape.__name__)} for shape in shapes]
    schema = choices[0] if len(choices) == 1 else {"oneOf": choices}
    return {
        "requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}
    }


def with_shapes(describe: Callable[[], Json]) -> Callable[[], Json]:
    """FastAPI's description, completed by what the routes read themselves: bodies and the names in paths."""

    def complete() -> Json:
        description = describe()
        schemas = description["components"]["schemas"]
        for shape in _REQUESTS:
            schema = shape.model_json_schema(ref_template=_REFERENCE)
            schemas.update(schema.pop("$defs", {}))
            schemas[shape.__name__] = schema
        for path, methods in description["paths"].items():
            for name in re.findall(r"{(\w+)}", path):
                for operation in methods.values():
                    operation["parameters"] = [_in_path(name)]
        return description

    return cache(complete)


_REFERENCE = "#/components/schemas/{model}"
_REQUESTS = (
    models.JobRequest, models.JobsRequest, models.PayloadsRequest, models.RetryRequest, limit_models.TenantChange,
    limit_models.QueueChange, limit_models.KindChange, limit_models.KeyChange,
)  # fmt: skip
#: Schemas of what paths name; anything else is the name of a tenant, queue or kind.
_PATH_SCHEMAS: dict[str, Json] = {
    "id": {"type": "integer", "minimum": 1},
    "key": {"type": "string", "minLength": 1, "description": "At most 255 bytes, percent-encoded."},
}
_NAME_SCHEMA: Json = {"type": "string", "pattern": "^[A-Za-z0-9._:/@-]{1,128}$"}


def _in_path(name: str) -> Json:
    schema = _PATH_SCHEMAS.get(name, _NAME_SCHEMA)
    return {"name": name, "in": "path", "required": True, "schema": schema}


def page(description: Json) -> str:
    """The page for an OpenAPI description."""
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8><title>jobq API</title>",
        f"<style>{_STYLE}</style></head><body><h1>jobq API {escape(description['info']['version'])}</h1>",
        f"<p>{escape(description['info']['description'])}</p>",
        '<p>For machines: <a href="/openapi.json">/openapi.json</a></p>',
        *_operations(description),
        "<h1>Shapes</h1>",
        *_shapes(description),
        "</body></html>",
    ]
    return "\n".join(parts)


def _operations(description: Json) -> Iterator[str]:
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            yield (
                f"<details><summary><h2><span class=method>{escape(method.upper())}</span>{escape(path)}</h2> "
                f"{_text(operation.get('description', ''))}</summary>"
            )
            yield from _parameters(operation.get("parameters", []))
            if "requestBody" in operation:
                yield "<h3>Body</h3>" + _schema(operation["requestBody"])
            for status, response in operation["responses"].items():
                yield f"<h3>{escape(status)} {escape(response['description'])}</h3>{_schema(response)}"
            yield "</details>"


def _parameters(found: list[Json]) -> Iterator[str]:
    if found:
        rows = (
            f"<tr><td><code>{escape(item['name'])}</code><td>{escape(item['in'])}"
            f"<td>{_text(item.get('description', ''))}"
            for item in found
        )
        yield f"<h3>Parameters</h3><table>{''.join(rows)}</table>"


def _schema(holder: Json) -> str:
    content = holder.get("content", {}).get("application/json", {}).get("schema")
    if content is None:
        return ""
    name = content.get("$ref", "").rpartition("/")[2]
    if name:
        return f'<p><a href="#{escape(name)}"><code>{escape(name)}</code></a></p>'
    return f"<pre>{escape(json.dumps(content, indent=2))}</pre>"


def _shapes(description: Json) -> Iterator[str]:
    for name, schema in description.get("components", {}).get("schemas", {}).items():
        yield f"<details><summary><h2>{escape(name)}</h2></summary>"
        # Its name is in there, as a link to what is folded unfolds it.
        yield f"<pre id={escape(name)}>{escape(json.dumps(schema, indent=2))}</pre></details>"


def _text(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
