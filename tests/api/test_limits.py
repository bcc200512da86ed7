"""GET and PUT of limits: what is set is shown everywhere, and what is wrong is named."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from tests.api.support import JSON, check_error, enqueue
from tests.api.test_gauges import add_worker, values
from tests.store.support import LEASE, STORE, one, put

from jobq.db import Conn
from jobq.store import run_sync

TENANT = {
    "tenant": "acme", "weight": 1.0, "queueWeights": {}, "maxRunning": None, "rate": None, "paused": False,
    "slotsHeld": 0,
}  # fmt: skip
SCOPES = {"tenant": "tenants", "queue": "queues", "kind": "kinds", "key": "limits"}


async def put_limits(http: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    response = await http.put(f"/api/{path}", json=body)
    assert response.status_code == 200, response.text
    assert response.json() == (await http.get(f"/api/{path}")).json()
    return dict(response.json())


# --- set and show ---------------------------------------------------------------------------------


async def test_a_field_left_out_stays_and_null_resets(http: httpx.AsyncClient) -> None:
    assert (await http.get("/api/tenants/acme")).json() == TENANT
    rate = {"limit": 100, "periodSeconds": 60, "burst": 5}
    shown = await put_limits(http, "tenants/acme", weight=3, maxRunning=10, rate=rate, paused=True)
    expected = {**TENANT, "weight": 3.0, "maxRunning": 10, "rate": rate, "paused": True}
    assert shown == expected
    assert await put_limits(http, "tenants/acme", maxRunning=None) == {
        **expected,
        "maxRunning": None,
    }
    assert await put_limits(http, "tenants/acme", weight=None, rate=None, paused=None) == TENANT


async def test_an_empty_change_shows_and_changes_nothing(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    for plural in SCOPES.values():
        await put_limits(http, f"{plural}/x")
    assert one(
        conn, "SELECT (SELECT count(*) FROM jobq.limiter), version FROM jobq.limiter_version"
    ) == (0, 0)


async def test_snake_case_is_taken_as_well(http: httpx.AsyncClient) -> None:
    rate = {"limit": 1, "period_seconds": 0.5}
    shown = await put_limits(http, "kinds/k", max_running=2, max_per_key=3, rate=rate)
    assert (shown["maxRunning"], shown["maxPerKey"]) == (2, 3)
    assert shown["rate"] == {"limit": 1, "periodSeconds": 0.5, "burst": 1}
    response = await http.put("/api/kinds/k", json={"max_running": 2, "maxRunning": 3})
    check_error(response, 422, "invalid_field", "maxRunning")


async def test_a_weight_may_hold_in_one_queue_only(http: httpx.AsyncClient) -> None:
    shown = await put_limits(http, "tenants/acme", weight=5, queue="mail")
    assert (shown["weight"], shown["queueWeights"]) == (1.0, {"mail": 5.0})
    shown = await put_limits(http, "tenants/acme", queueWeights={"slow": 0.5})
    assert shown["queueWeights"] == {"mail": 5.0, "slow": 0.5}
    shown = await put_limits(http, "tenants/acme", weight=None, queue="mail")
    assert shown["queueWeights"] == {"slow": 0.5}


@pytest.mark.parametrize("scope", ["tenant", "queue", "kind"])
async def test_names_may_hold_whatever_names_may_hold(http: httpx.AsyncClient, scope: str) -> None:
    for name in ("a/b//c", "x" * 128, "me@x.y:1_-", ".well", "a/"):
        shown = await put_limits(http, f"{SCOPES[scope]}/{quote(name)}", weight=2)
        assert shown[scope] == name


@pytest.mark.parametrize(
    "key",
    [
        "a b",
        "a/b",
        "/",
        "ключ",
        "x" * 255,
        "50%",
        "a?b=c&d#e",
        "line\nbreak\n",
        "%2F",
        '"\\',
        "\ufffd",
        "😀",
        "+",
        "{key}",
    ],
)
async def test_keys_may_be_any_text(http: httpx.AsyncClient, key: str) -> None:
    shown = await put_limits(http, f"limits/{quote(key, safe='')}", maxRunning=4)
    assert shown == {"key": key, "maxRunning": 4, "rate": None, "slotsHeld": 0}
    listed = (await http.get("/api/limits")).json()
    assert listed == {"limits": [shown], "nextCursor": None}


async def test_slots_that_runs_hold_are_shown(http: httpx.AsyncClient, conn: Conn) -> None:
    running = put(conn, "RUNNING", tenant="acme")
    conn.execute(
        "INSERT INTO jobq.cap_slot (scope, n, lease, job_id) VALUES ('tenant:acme', 0, %s, %s)",
        (LEASE, running),
    )
    assert (await http.get("/api/tenants/acme")).json()["slotsHeld"] == 1


async def test_workers_are_told_of_a_change(http: httpx.AsyncClient, conn: Conn) -> None:
    conn.execute(f"LISTEN {STORE.statements.channel}")
    await put_limits(http, "queues/mail", paused=True)
    assert [notify.payload for notify in conn.notifies(timeout=10, stop_after=1)] == ["l"]


# --- what is wrong --------------------------------------------------------------------------------


ALL = ("tenant", "queue", "kind", "key")
WITH_WEIGHT = ("tenant", "queue", "kind")


@pytest.mark.parametrize(
    ("scopes", "body", "field", "sentence"),
    [
        (WITH_WEIGHT, '{"weight": 0}', "weight", "a number from 0.0001 to 1,000,000; to stop it, set paused to true"),
        (WITH_WEIGHT, '{"weight": -1}', "weight", "must be a number from 0.0001"),
        (WITH_WEIGHT, '{"weight": NaN}', "weight", "must be a number from 0.0001"),
        (WITH_WEIGHT, '{"weight": Infinity}', "weight", "must be a number from 0.0001"),
        (WITH_WEIGHT, '{"weight": -Infinity}', "weight", "must be a number from 0.0001"),
        (WITH_WEIGHT, '{"weight": 1e400}', "weight", "must be a number from 0.0001"),
        (WITH_WEIGHT, '{"weight": 1000001}', "weight", "to 1,000,000"),
        (WITH_WEIGHT, '{"weight": %s}' % ("9" * 4000), "weight", "to 1,000,000"),
        (WITH_WEIGHT, '{"weight": 1e-300}', "weight", "from 0.0001"),
        (WITH_WEIGHT, '{"weight": "3"}', "weight", "must be a number"),
        (WITH_WEIGHT, '{"weight": true}', "weight", "must be a number"),
        (WITH_WEIGHT, '{"weight": [3]}', "weight", "must be a number"),
        (WITH_WEIGHT, '{"maxRunning": 0}', "maxRunning", "from 1 to 10,000; to stop it, set paused to true"),
        (("key",), '{"maxRunning": 0}', "maxRunning", "from 1 to 10,000"),
        (ALL, '{"maxRunning": -1}', "maxRunning", "must be a whole number from 1 to 10,000"),
        (ALL, '{"maxRunning": 10001}', "maxRunning", "must be a whole number"),
        (ALL, '{"maxRunning": 1.5}', "maxRunning", "must be a whole number"),
        (ALL, '{"maxRunning": NaN}', "maxRunning", "must be a whole number"),
        (ALL, '{"maxRunning": "5"}', "maxRunning", "must be a whole number"),
        (ALL, '{"maxRunning": false}', "maxRunning", "must be a whole number"),
        (ALL, '{"max_running": {}}', "maxRunning", "must be a whole number"),
        (("kind",), '{"maxPerKey": 0}', "maxPerKey", "must be a whole number from 1 to 10,000"),
        (("tenant", "queue", "key"), '{"maxPerKey": 3}', "maxPerKey", "is no setting of a"),
        (("key",), '{"weight": 3}', "weight", "is no setting of a concurrency key; those are maxRunning, rate"),
        (("key",), '{"paused": true}', "paused", "is no setting of a concurrency key"),
        (("queue", "kind", "key"), '{"queueWeights": {}}', "queueWeights", "is no setting of a"),
        (("queue", "kind", "key"), '{"weight": 3, "queue": "q"}', "queue", "is no setting of a"),
        (ALL, '{"nothing": 1}', "nothing", "is no setting of a"),
        (ALL, '{"slotsHeld": 1}', "slotsHeld", "is no setting of a"),
        (ALL, '{"": 1}', "", "is no setting of a"),
        (ALL, '{"rate": 5}', "rate", 'must be an object such as {"limit": 100'),
        (ALL, '{"rate": []}', "rate", "must be an object"),
        (ALL, '{"rate": {}}', "rate.limit", "must be a whole number from 1"),
        (ALL, '{"rate": {"limit": 5}}', "rate.periodSeconds", "must be a number from 0.001"),
        (ALL, '{"rate": {"limit": 5, "periodSeconds": null}}', "rate.periodSeconds", "must be a number"),
        (ALL, '{"rate": {"periodSeconds": 5}}', "rate.limit", "must be a whole number"),
        (ALL, '{"rate": {"limit": 0, "periodSeconds": 5}}', "rate.limit", "must be a whole number"),
        (ALL, '{"rate": {"limit": 1.5, "periodSeconds": 5}}', "rate.limit", "must be a whole number"),
        (ALL, '{"rate": {"limit": 1e9, "periodSeconds": 5}}', "rate.limit", "must be a whole number"),
        (ALL, '{"rate": {"limit": 1, "periodSeconds": 0}}', "rate.periodSeconds", "must be a number"),
        (ALL, '{"rate": {"limit": 1, "periodSeconds": -5}}', "rate.periodSeconds", "must be a number"),
        (ALL, '{"rate": {"limit": 1, "periodSeconds": NaN}}', "rate.periodSeconds", "must be a number"),
        (ALL, '{"rate": {"limit": 1, "periodSeconds": Infinity}}', "rate.periodSeconds", "must be a number"),
        (ALL, '{"rate": {"limit": 1, "periodSeconds": "1m"}}', "rate.periodSeconds", "must be a number"),
        (ALL, '{"rate": {"limit": 1, "periodSeconds": 1, "burst": 0}}', "rate.burst", "must be a whole number"),
        (ALL, '{"rate": {"limit": 1, "periodSeconds": 1, "burst": true}}', "rate.burst", "must be a whole number"),
        (ALL, '{"rate": {"limit": 1, "periodSeconds": 1, "per": 1}}', "rate.per", "those are limit, periodSeconds, burst"),
        (ALL, '{"rate": {"limit": 1, "periodSeconds": 1, "period_seconds": 1}}', "rate.periodSeconds", "was given twice"),
        (WITH_WEIGHT, '{"paused": 1}', "paused", "must be true or false"),
        (WITH_WEIGHT, '{"paused": "true"}', "paused", "must be true or false"),
        (WITH_WEIGHT, '{"paused": {}}', "paused", "must be true or false"),
        (("tenant",), '{"queue": "q"}', "queue", "says where weight holds: give both"),
        (("tenant",), '{"queue": null, "weight": 3}', "queue", "must be 1 to 128 characters"),
        (("tenant",), '{"queue": "a b", "weight": 3}', "queue", "must be 1 to 128 characters"),
        (("tenant",), '{"queue": 7, "weight": 3}', "queue", "must be 1 to 128 characters"),
        (("tenant",), '{"queue": "q", "weight": 0}', "weight", "must be a number"),
        (("tenant",), '{"queue": "q", "weight": 1, "queueWeights": {}}', "queue", "together with queueWeights"),
        (("tenant",), '{"queueWeights": []}', "queueWeights", 'such as {"mail": 3}'),
        (("tenant",), '{"queueWeights": 3}', "queueWeights", "must be an object"),
        (("tenant",), '{"queueWeights": {"a b": 3}}', "queueWeights.a b", "must be 1 to 128 characters"),
        (("tenant",), '{"queueWeights": {"a\\u0000": 3}}', "queueWeights.a\ufffd", "must be 1 to 128 characters"),
        (("tenant",), '{"queueWeights": {"q": 0}}', "queueWeights.q", "must be a number"),
        (("tenant",), '{"queueWeights": {"q": NaN}}', "queueWeights.q", "must be a number"),
        (("tenant",), '{"queueWeights": {"q": "3"}}', "queueWeights.q", "must be a number"),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_named_and_nothing_changes(
    *,
    http: httpx.AsyncClient,
    conn: Conn,
    scopes: tuple[str, ...],
    body: str,
    field: str,
    sentence: str,
) -> None:
    for scope in scopes:
        path = f"/api/{SCOPES[scope]}/x"
        response = await http.put(path, content=body.encode(), headers=JSON)
        found = check_error(response, 422, "invalid_field", field)
        assert sentence in found["fields"][field]
        assert field.replace("\ufffd", "") in found["error"]
    assert one(conn, "SELECT count(*) FROM jobq.limiter") == (0,)


async def test_all_that_is_wrong_is_named_at_once(http: httpx.AsyncClient) -> None:
    body = {"weight": 0, "maxRunning": 0, "rate": {"limit": 5}, "paused": 1, "x": 1}
    response = await http.put("/api/tenants/acme", json=body)
    check_error(
        response, 422, "invalid_field", "weight", "maxRunning", "rate.periodSeconds", "paused", "x"
    )


async def test_more_queues_than_a_change_may_name_are_refused(http: httpx.AsyncClient) -> None:
    weights = {f"q{at}": 1 for at in range(1001)}
    response = await http.put("/api/tenants/acme", json={"queueWeights": weights})
    assert "1,000 queues" in check_error(response, 422, "invalid_field", "queueWeights")["error"]
    weights.popitem()
    assert (await put_limits(http, "tenants/acme", queueWeights=weights))["queueWeights"] == weights


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ("", 400, "bad_json"), ("{", 400, "bad_json"), ('{"weight":1,"weight":2}', 400, "bad_json"),
        ("[]", 422, "invalid_field"), ("null", 422, "invalid_field"), ("3", 422, "invalid_field"),
        (json.dumps({"x": "y" * 300_000}), 413, "body_too_large"),
    ],
)  # fmt: skip
async def test_a_body_that_is_no_object_is_refused(
    http: httpx.AsyncClient, body: str, status: int, code: str
) -> None:
    for plural in SCOPES.values():
        response = await http.put(f"/api/{plural}/x", content=body.encode(), headers=JSON)
        check_error(response, status, code)


@pytest.mark.parametrize(
    "name", ["", "a%20b", "x" * 129, "%00", "caf%C3%A9", "a%0A", "a%0Ab", "%FF", "a%3Fb"]
)
@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_names_that_nothing_can_have_are_refused(
    http: httpx.AsyncClient, name: str, method: str
) -> None:
    for scope in WITH_WEIGHT:
        response = await http.request(method, f"/api/{SCOPES[scope]}/{name}", json={"weight": 2})
        check_error(response, 422, "invalid_field", scope)


@pytest.mark.parametrize("key", ["", "x" * 256, "%00", "%FF", "%ED%A0%80", "%D0%BA" * 128])
@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_keys_that_no_job_can_have_are_refused(
    http: httpx.AsyncClient, key: str, method: str
) -> None:
    response = await http.request(method, f"/api/limits/{key}", json={"maxRunning": 2})
    check_error(response, 422, "invalid_field", "key")


@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_a_key_with_a_question_mark_that_is_not_encoded_is_no_other_key(
    http: httpx.AsyncClient, method: str
) -> None:
    response = await http.request(method, "/api/limits/a?b", json={"maxRunning": 2})
    check_error(response, 422, "invalid_field", "b")


@pytest.mark.parametrize("plural", SCOPES.values())
async def test_other_methods_are_refused_and_the_right_ones_named(
    http: httpx.AsyncClient, plural: str
) -> None:
    response = await http.delete(f"/api/{plural}/x/y")
    check_error(response, 405, "method_not_allowed")
    assert response.headers["allow"] == "GET, HEAD, PUT"


@pytest.mark.parametrize("plural", ["tenants", "kinds", "limits"])
@pytest.mark.parametrize(
    ("query", "field"),
    [("limit=0", "limit"), ("limit=501", "limit"), ("limit=x", "limit"), ("limit=1&limit=2", "limit"),
     ("cursor=%00", "cursor"), ("page=2", "page")],
)  # fmt: skip
async def test_lists_refuse_what_they_do_not_know(
    http: httpx.AsyncClient, plural: str, query: str, field: str
) -> None:
    check_error(await http.get(f"/api/{plural}?{query}"), 422, "invalid_field", field)


# --- lists, and where pauses show -----------------------------------------------------------------


async def pages(
    http: httpx.AsyncClient, path: str, plural: str, limit: int
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        response = await http.get(path, params={"limit": limit, "cursor": cursor})
        page = response.json()
        assert len(page[plural]) <= limit
        found += page[plural]
        cursor = page["nextCursor"]
    return found


async def test_tenants_are_those_with_settings_and_those_with_large_backlogs(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    for at in range(12):
        for _ in range(at + 1):
            put(conn, "QUEUED", tenant=f"t{at:02}")
    put(conn, "RUNNING", tenant="runs")
    await put_limits(http, "tenants/acme", weight=2)
    await put_limits(http, "tenants/t05", paused=True)
    for limit in (1, 4):
        found = await pages(http, "/api/tenants", "tenants", limit)
        names = [tenant["tenant"] for tenant in found]
        assert names == ["acme", *(f"t{at:02}" for at in range(2, 12))]
    whole = await pages(http, "/api/tenants", "tenants", 500)
    by_name = {tenant["tenant"]: tenant for tenant in whole}
    assert by_name["acme"] == {**TENANT, "weight": 2.0, "queued": None}
    assert (by_name["t05"]["queued"], by_name["t05"]["paused"]) == (6, True)


async def test_kinds_are_those_that_workers_know_and_those_with_settings(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    kind = {"kind": "b", "queue": "q", "priority": None, "max_attempts": 3, "timeout": 1.5}
    run_sync(conn, STORE.upkeep.register_kinds([{**kind, "max_per_key": 2}]))
    await put_limits(http, "kinds/a", maxPerKey=5)
    await put_limits(http, "kinds/c", paused=True)
    found = await pages(http, "/api/kinds", "kinds", 2)
    assert [(each["kind"], each["maxPerKey"], each["paused"]) for each in found] == [
        ("a", 5, False), ("b", None, False), ("c", None, True),
    ]  # fmt: skip
    assert [each["defaults"] for each in found] == [
        None, {"queue": "q", "priority": None, "maxAttempts": 3, "timeoutSeconds": 1.5, "maxPerKey": 2}, None,
    ]  # fmt: skip


async def test_keys_are_listed_page_by_page(http: httpx.AsyncClient) -> None:
    for key in ("b b", "a", "ю"):
        await put_limits(http, f"limits/{quote(key)}", maxRunning=2)
    found = await pages(http, "/api/limits", "limits", 1)
    assert [each["key"] for each in found] == ["a", "b b", "ю"]


async def test_queues_show_what_is_set_for_them_also_where_they_have_no_jobs(
    http: httpx.AsyncClient, conn: Conn
) -> None:
    await enqueue(http, queue="mail")
    add_worker(conn, "w", ["mail"])
    await put_limits(http, "queues/mail", weight=2, maxRunning=5)
    await put_limits(http, "queues/empty", paused=True)
    queues = {each["queue"]: each for each in (await http.get("/api/queues")).json()["queues"]}
    assert list(queues) == ["default", "empty", "mail"]
    mail = queues["mail"]
    assert (mail["queued"], mail["workers"], mail["weight"], mail["maxRunning"]) == (1, 1, 2.0, 5)
    empty = queues["empty"]
    assert (empty["queued"], empty["running"], empty["workers"], empty["paused"]) == (0, 0, 0, True)
    assert queues["default"]["paused"] is False


async def test_what_is_paused_shows_in_the_stats_and_as_a_gauge(http: httpx.AsyncClient) -> None:
    assert (await http.get("/api/stats")).json()["paused"] == []
    await put_limits(http, "tenants/a", paused=True)
    await put_limits(http, "tenants/b", paused=True)
    await put_limits(http, "kinds/k", paused=True)
    await put_limits(http, "kinds/k2", maxRunning=1)
    expected = [("kind", "k"), ("tenant", "a"), ("tenant", "b")]
    paused = (await http.get("/api/stats")).json()["paused"]
    assert [(each["scope"], each["name"]) for each in paused] == expected
    await put_limits(http, "tenants/a", paused=False)
    paused = (await http.get("/api/stats")).json()["paused"]
    assert [(each["scope"], each["name"]) for each in paused] == [expected[0], expected[2]]


async def test_the_gauge_counts_without_names(http: httpx.AsyncClient) -> None:
    await put_limits(http, "tenants/secret-name", paused=True)
    await put_limits(http, "queues/q", paused=True)
    text = (await http.get("/metrics")).text
    assert values(text, "jobq_paused") == {
        'scope="tenant"': 1, 'scope="queue"': 1, 'scope="kind"': 0,
    }  # fmt: skip
    assert "secret-name" not in text
