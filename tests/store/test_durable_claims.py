"""How a claim commits: at once where a crash of the server must not forget it, else asynchronously."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from tests.store.support import LANE, LEASE, SETTINGS, STORE, client, engine, put

from jobq.db import Conn
from jobq.embedded import EmbeddedServer
from jobq.migrate import migrate
from jobq.model import Lane
from jobq.store import Share, Span, run_sync


def committed(conn: Conn, durable: Sequence[str] = ()) -> str:
    """Claim one job and say how its transaction would commit."""
    settings = dataclasses.replace(SETTINGS, durable=durable)
    found = run_sync(conn, STORE.runs.claim(LEASE, 1, [Share(1, [Span(LANE)])], settings))
    assert len(found.jobs) == 1
    row = conn.execute("SHOW synchronous_commit").fetchone()
    assert row is not None
    return str(row[0])


@pytest.mark.parametrize("own", ["on", "remote_apply"])
def test_a_plain_job_is_claimed_asynchronously(undone: Conn, own: str) -> None:
    undone.execute(f"SET LOCAL synchronous_commit = {own}")
    put(undone, "QUEUED")
    assert committed(undone, ["another"]) == "off"


@pytest.mark.parametrize("own", ["on", "remote_apply"])
def test_a_claim_that_takes_a_slot_commits_as_the_session_is_set(undone: Conn, own: str) -> None:
    undone.execute(f"SET LOCAL synchronous_commit = {own}")
    put(undone, "QUEUED", concurrency_key="only")
    assert committed(undone) == own


@pytest.mark.parametrize("scope", ["tenant", "queue", "kind"])
def test_so_does_one_under_a_limit(undone: Conn, scope: str) -> None:
    name = {"tenant": LANE.tenant, "queue": LANE.queue, "kind": "test"}[scope]
    run_sync(undone, STORE.limiters.set_limiter(scope, name, {"max_running": 3}))
    put(undone, "QUEUED", kind="test")
    assert committed(undone) == "on"


def test_so_does_one_of_a_kind_that_asks_for_it(undone: Conn) -> None:
    put(undone, "QUEUED", kind="pay")
    assert committed(undone, ["pay"]) == "on"


def test_a_crash_of_the_server_forgets_no_claim_that_is_to_be_durable(
    own_server: EmbeddedServer,
) -> None:
    """Forced: nothing else flushes the log between the claims and the crash. The plain one is forgotten, the keyed one is not."""
    migrate(own_server.url())
    with client(own_server.url()) as conn:
        conn.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
        conn.execute("SELECT pg_reload_conf()")
        for tenant, key in (("keyed", "only"), ("plain", None)):
            put(conn, "QUEUED", tenant=tenant, concurrency_key=key)
    with engine(own_server.url()) as conn:
        for tenant in ("keyed", "plain"):
            share = Share(1, [Span(Lane("default", tenant, 0))])
            assert len(run_sync(conn, STORE.runs.claim(LEASE, 1, [share], SETTINGS)).jobs) == 1
        own_server.kill()
    own_server.start()
    with client(own_server.url()) as conn:
        found: dict[str, str] = dict(
            conn.execute("SELECT tenant, status FROM jobq.jobs").fetchall()
        )
    assert found == {"keyed": "RUNNING", "plain": "QUEUED"}
