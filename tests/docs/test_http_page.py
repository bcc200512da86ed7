"""docs/http.md says what the API does: every route, field and code is there, and every example runs."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
from starlette.exceptions import HTTPException
from starlette.routing import Route
from tests.api.support import serving

import jobq
from jobq import errors
from jobq.api import answers, limit_models, models
from jobq.api.app import _MODULES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
#: Said under /metrics.
ALIAS = "GET /actuator/prometheus"


def test_every_route_has_its_section() -> None:
    routes = {
        f"{method} {route.path_format}"
        for module in _MODULES
        for route in module.router.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    headings = re.findall(r"^### (\S+ \S+)$", PAGE, re.MULTILINE)
    assert {*headings, ALIAS} == routes
    assert len(headings) == len(set(headings))


def rows(head: str) -> list[list[str]]:
    """The rows of the table below a line that starts so."""
    table = PAGE.partition(f"\n| {head}")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def names(cells: list[str]) -> set[str]:
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def tables_of_fields() -> Iterator[set[str]]:
    for part in PAGE.split("\n| field | |\n| --- | --- |\n")[1:]:
        lines = part.partition("\n\n")[0].splitlines()
        yield names([line.split("|")[1] for line in lines])


def test_every_field_is_told() -> None:
    of_requests, of_jobs, of_limits = tables_of_fields()
    assert of_requests == aliases(models.JobRequest)
    assert of_jobs == aliases(models.Job)
    changed, shown = aliases(limit_models.TenantChange), aliases(limit_models.TenantLimits)
    of_kinds = aliases(limit_models.KindChange) | aliases(limit_models.KindLimits)
    assert of_limits == changed | shown | of_kinds
    assert names([row[0] for row in rows("parameter | |")]) == {
        "status", "kind", "queue", "tenant", "tag", "limit", "cursor",
    }  # fmt: skip


def aliases(shape: type[models.Shape]) -> set[str]:
    return {str(field.alias) for field in shape.model_fields.values()}


def codes() -> set[tuple[int, str]]:
    """Status and code of every error that the API may answer."""
    ours = [getattr(errors, name)("x") for name in jobq.__all__ if hasattr(errors, name)]
    raised = [HTTPException(404), HTTPException(405), *ours]
    refused = filter(None, map(answers.refusal, raised))
    found = {(error.status, error.code) for error in refused}
    for path in (ROOT / "src" / "jobq" / "api").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "HttpError":
                match node.args[:2]:
                    case [ast.Constant(int(status)), ast.Constant(str(code))]:
                        found.add((status, code))
    return found


def test_every_code_is_told() -> None:
    told = {(int(status), code.strip("`")) for status, code, _ in rows("status | code | |")}
    assert told == codes()


def examples() -> list[tuple[str, str]]:
    """Command and answer, in the order of the page."""
    text = PAGE.replace("\\\n", " ")
    found = re.findall(r"^    (curl .*)\n    # (.*)$", text, re.MULTILINE)
    assert len(found) == text.count("curl -s")
    return found


def request(command: str) -> httpx.Request:
    """What curl would send."""
    method, url, headers, body = "GET", "", {}, None
    words = iter(shlex.split(command)[1:])
    for word in words:
        match word:
            case "-s":
                pass
            case "-X":
                method = next(words)
            case "-H":
                name, _, value = next(words).partition(": ")
                headers[name] = value
            case "-d":
                body = next(words)
            case _:
                url = word
    return httpx.Request(method, f"http://{url}", headers=headers, content=body)


async def test_every_example_is_answered_as_told(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute("SELECT setval('jobq.job_id_seq', 1, false)")  # the page names ids
    async with serving(database_url) as http:
        for command, answer in examples():
            sent = request(command)
            response = await http.send(sent)
            status, _, expected = answer.partition(" ")
            assert response.status_code == int(status), (command, response.text)
            pattern = re.escape(expected).replace(r"\.\.\.", ".*")
            assert re.fullmatch(pattern, response.text, re.DOTALL), (command, response.text)
            if sent.content:
                json.loads(sent.content)


def test_every_route_has_an_example() -> None:
    done = {(request(command).method, request(command).url.path) for command, _ in examples()}
    for heading in [*re.findall(r"^### (\S+ \S+)$", PAGE, re.MULTILINE), ALIAS]:
        method, path = heading.split(" ")
        pattern = re.sub(r"\\{\w+\\}", ".+", re.escape(path))
        assert any(m == method and re.fullmatch(pattern, p) for m, p in done), heading
