"""Context variables: each run begins with none set, and keeps what it sets to itself."""

from __future__ import annotations

from contextvars import ContextVar

import pytest
from tests.engine.support import Jobs, handlers, working

SCOPE: ContextVar[dict[str, str]] = ContextVar("scope")


@pytest.mark.case("N13")
async def test_what_a_job_leaves_in_a_variable_is_not_found_by_the_next(
    database_url: str, jobs: Jobs
) -> None:
    found: list[dict[str, str]] = []

    def tag(tenant: str) -> None:
        scope = SCOPE.get(None)
        if scope is None:
            SCOPE.set(scope := {})
        found.append(dict(scope))
        scope["tenant"] = tenant

    async def coroutine(tenant: str) -> None:
        tag(tenant)

    def thread(tenant: str) -> None:
        tag(tenant)

    shared = {"release": "1"}
    token = SCOPE.set(
        shared
    )  # as an error tracker does when it is imported, before the worker starts
    try:
        kinds = handlers(coroutine=coroutine, thread=thread)
        async with working(database_url, kinds, concurrency=1):
            names = ("acme", "bolt", "coil")
            ids = [jobs.put(kind, {"tenant": n}) for n in names for kind in kinds]
            await jobs.finished(ids)
    finally:
        SCOPE.reset(token)
    assert found == [{}] * 6
    assert shared == {"release": "1"}
