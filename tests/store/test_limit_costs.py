"""What limits cost: inner statements touch as many rows as they are about, whatever the statistics say, and floods that are held nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from tests.store.limited import held, limit, queued, serve, start, take
from tests.store.plans import Plan, explain_prepared, warm
from tests.store.support import STORE, Server, claim, client, engine, new_database, one

from jobq.db import Conn
from jobq.model import Lane
from jobq.store import Call, run_sync

#: 10,000 limiters of each scope, as many keys with a slot each, 100,000 jobs held for one kind, and as many for one key.
FILL = """
INSERT INTO jobq.limiter (scope, name, max_running, version)
SELECT scope, 'n' || g, 5, 1 FROM generate_series(1, 10000) g, unnest(ARRAY['tenant', 'queue', 'kind', 'key']) scope;
INSERT INTO jobq.cap_slot (scope, n) SELECT 'key:n' || g, 0 FROM generate_series(1, 10000) g;
INSERT INTO jobq.rate_bucket (scope, tokens) SELECT 'kind:n' || g, 1 FROM generate_series(1, 10000) g;
INSERT INTO jobq.job (kind, held_by, tenant, queue, concurrency_key, run_at)
SELECT 'flood', CASE g % 2 WHEN 0 THEN 'kind:flood' ELSE 'key:flood' END, 't' || g % 7, 'mail',
       CASE g % 2 WHEN 1 THEN 'flood' END, now() - interval '1 hour' + g * interval '1 us'
FROM generate_series(1, 200000) g;
"""
#: Pages that one call of a function may read: descents of some indexes for each of some 20 rows.
FEW = 300


@dataclass
class Sessions:
    """A worker's session that was there before the tables were filled, and a caller's that was not."""

    worker: Conn
    caller: Conn


@pytest.fixture(scope="module", params=["analysed empty", "analysed full"])
def sessions(request: pytest.FixtureRequest, server: Server, template: str) -> Iterator[Sessions]:
    with new_database(server, template) as url, engine(url) as worker, client(url) as caller:
        serve(worker)
        worker.execute("ANALYZE")
        with worker.transaction(force_rollback=True):
            _use_all(worker)
        worker.execute(FILL)
        if request.param == "analysed full":
            worker.execute("ANALYZE")
        yield Sessions(worker, caller)


def _use_all(conn: Conn) -> None:
    """Run what is to be measured on empty tables, often enough for its plans to stay."""
    for _ in range(8):
        limit(conn, "kind", max_running=1, rate=(1000, 1.0, 100))
        queued(conn, 3)
        for job in start(conn):
            run_sync(conn, STORE.runs.release([job.claim], 0))
        conn.execute("SELECT jobq.review_held('', 10)")
        conn.execute("DELETE FROM jobq.job")


CALLS = {
    "readmit of a kind": "SELECT jobq.readmit('kind:flood', 1, 't3')",
    "readmit of a key": "SELECT jobq.readmit('key:flood', 1, '')",
    "review of one reason": "SELECT jobq.review_held('', 1)",
    "an ask for a key": "SELECT jobq.ask_limit('key', 'key:n77', NULL, 1)",
    "an ask for a kind": "SELECT jobq.ask_limit('kind', 'kind:n77', l, 5) FROM jobq.limiter l WHERE scope = 'kind' AND name = 'n77'",
    "the limits of a job": "SELECT l.* FROM jobq.job j, LATERAL jobq.limits_of(j) l WHERE j.id = (SELECT min(id) FROM jobq.job)",
    "a look at the key's order, first": "SELECT jobq.others_first('flood', 3, 100::smallint, now(), 1)",
    "a look at the key's order, last": "SELECT jobq.others_first('flood', 3, (-100)::smallint, now(), 1)",
    "whether a job could start": "SELECT jobq.startable('mail', 'n5', 'n6')",
    "new slots": "SELECT jobq.make_slots(ARRAY['key:new', 'kind:n78'], ARRAY[1, 5])",
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("session", ["worker", "caller"])
def test_the_inner_statements_touch_few_pages(sessions: Sessions, session: str, name: str) -> None:
    conn = getattr(sessions, session)
    with _undone(conn):
        conn.execute(CALLS[name].encode())  # the first time also reads the catalogs
    with _undone(conn):
        assert _pages(conn, CALLS[name].encode()) <= FEW


@pytest.mark.parametrize("session", ["worker", "caller"])
def test_a_completion_frees_one_slot_among_many_and_touches_few_pages(
    sessions: Sessions, session: str
) -> None:
    conn = getattr(sessions, session)
    with _undone(conn):
        conn.execute("UPDATE jobq.cap_slot SET lease = 1, job_id = 1 + substr(scope, 6)::integer")
        free = "SELECT jobq.free_slots(ARRAY[{}]::bigint[], ARRAY[1]::bigint[], ARRAY['t'])"
        conn.execute(free.format(70).encode())
        assert _pages(conn, free.format(80).encode()) <= FEW
        assert one(conn, "SELECT count(*) FROM jobq.cap_slot WHERE lease IS NULL") == (2,)


def _pages(conn: Conn, statement: bytes, params: Any = None) -> int:
    plan = one(conn, b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + statement, params)[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@contextmanager
def _undone(conn: Conn) -> Iterator[None]:
    with conn.transaction(force_rollback=True):
        yield


def test_a_claim_that_meets_the_first_of_a_long_line_touches_few_pages(
    sessions: Sessions,
) -> None:
    conn = sessions.worker
    with _undone(conn):
        conn.execute("SELECT jobq.readmit('key:flood', 3, '')")
        call = take(*(Lane("mail", f"t{n}", 0) for n in range(7)))
        assert _pages(conn, call.statement, call.params) <= 5 * FEW


# --- floods ---------------------------------------------------------------------------------------

CALM = "INSERT INTO jobq.job (kind, run_at) SELECT 'k', now() - interval '1 minute' FROM generate_series(1, 10)"
FLOOD = """
INSERT INTO jobq.job (kind, concurrency_key, held_by, run_at)
SELECT 'flood', %(key)s, CASE WHEN g > 20000 THEN %(which)s || ':flood' END, now() - interval '1 day' + g * interval '1 us'
FROM generate_series(1, 100000) g
"""
#: Pages that a claim of ten jobs may cost more beside a flood that is held: the entries of the 20,000 that claims have met
#: stay in the index until VACUUM, and some rows are looked at once more. Not held, the flood is 100,000 rows to walk over.
MORE_PAGES = 1000


@pytest.mark.parametrize("which", ["kind", "key"])
def test_a_flood_that_is_held_costs_the_other_jobs_of_its_lane_nothing(
    conn: Conn, which: str
) -> None:
    """Of 100,000 jobs at the lane's head a fifth is met by claims, which hold it; the others were held before."""
    serve(conn)
    limit(conn, which, "flood", max_running=1)
    call = claim(77, 10)
    warm(conn, call)
    conn.execute(CALM)
    calm = _cheapest(conn, call)
    conn.execute("DELETE FROM jobq.job")
    conn.execute(FLOOD, {"which": which, "key": "flood" if which == "key" else None})
    while len(held(conn)) < 99_999:
        run_sync(conn, claim(78, 2000))
    conn.execute(CALM)
    crowded = _cheapest(conn, call)
    assert crowded.buffers <= calm.buffers + MORE_PAGES, f"{calm}\n{crowded}"


def _cheapest(conn: Conn, call: Call[Any]) -> Plan:
    return min((explain_prepared(conn, call) for _ in range(7)), key=lambda plan: plan.buffers)
