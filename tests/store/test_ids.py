"""Ids are bigint everywhere: past 2^31, where one int4 would do harm, and past 2^53, where a double would."""

from __future__ import annotations

import pytest
from psycopg import sql
from tests.store.support import (
    KEEP_PAYLOAD,
    LANE,
    LEASE,
    OTHER_LEASE,
    STORE,
    Rivals,
    claim,
    complete,
    converse,
    fail,
    one,
)

from jobq import wakeup
from jobq.db import Conn
from jobq.model import JobStatus, NewJob
from jobq.store import BEGINNING, run_sync

STARTS = [1, 3_000_000_000, 9_007_199_254_740_993]


def _start_at(conn: Conn, start: int) -> None:
    statement = sql.SQL("ALTER SEQUENCE jobq.job_id_seq RESTART WITH {}")
    conn.execute(statement.format(sql.Literal(start)))


@pytest.mark.case("B09")
@pytest.mark.parametrize("start", STARTS)
def test_every_operation_takes_ids_of_any_size(conn: Conn, start: int) -> None:
    _start_at(conn, start)
    single = run_sync(conn, STORE.enqueue.enqueue(NewJob("test"))).job.id
    batch = converse(
        conn, STORE.enqueue.enqueue_many([NewJob("test", unique_key=f"u{n}") for n in range(6)])
    )
    plain = one(conn, "SELECT jobq.enqueue(kind => 'test', idempotency_key => 'k')")[0]
    ids = [single, *(each.job.id for each in batch), plain]
    assert ids == list(range(start, start + 8))

    claims = [found.claim for found in run_sync(conn, claim(LEASE))]
    assert [each.id for each in claims] == ids
    assert set(run_sync(conn, STORE.runs.extend(claims, 60))) == set(claims)
    assert run_sync(conn, STORE.runs.progress([(claims[0], "0.5")])) == {claims[0]}
    assert run_sync(conn, complete(claims[0])) == {claims[0]}
    assert run_sync(conn, STORE.runs.recorded(claims)) == {claims[0]: JobStatus.DONE}
    assert run_sync(conn, fail(claims[1], delay=0.0))[claims[1]][0] is JobStatus.SCHEDULED
    assert run_sync(conn, STORE.runs.release(claims[2:4], KEEP_PAYLOAD)) == dict.fromkeys(
        claims[2:4], JobStatus.QUEUED
    )
    conn.execute("UPDATE jobq.job SET lease_until = now(), attempts = 5 WHERE id = %s", (ids[4],))
    assert run_sync(conn, STORE.upkeep.expired(BEGINNING, 10)) == [ids[4]]
    assert [
        each.id for each in run_sync(conn, STORE.upkeep.reclaim(BEGINNING, 10, 0, only=[ids[4]]))
    ] == [ids[4]]
    assert run_sync(conn, STORE.jobs.retry([ids[4]]))
    assert run_sync(conn, STORE.upkeep.promote(BEGINNING, 10)).moved == 1
    assert run_sync(conn, STORE.jobs.cancel([ids[2], ids[5]], KEEP_PAYLOAD)) == {
        ids[2]: JobStatus.CANCELLED, ids[5]: JobStatus.RUNNING,
    }  # fmt: skip
    assert run_sync(conn, STORE.runs.claims_of_lease(LEASE)) == claims[5:]
    heads = run_sync(conn, STORE.upkeep.discover(LANE._replace(queue=""), 10))
    assert [head.id for head in heads] == [ids[3]]
    assert [
        row["id"] for row in run_sync(conn, STORE.jobs.list_jobs(most=2, before=ids[7]))
    ] == ids[6:4:-1]
    again = converse(conn, STORE.enqueue.enqueue_many([NewJob("test", idempotency_key="k")]))
    assert [each.job.id for each in again] == [ids[7]]
    assert {found.id for found in run_sync(conn, claim(OTHER_LEASE))} == {ids[1], ids[3], ids[4]}


@pytest.mark.parametrize("start", STARTS[1:])
def test_a_cancel_request_names_ids_of_any_size(rivals: Rivals, start: int) -> None:
    listener, caller = rivals.session(), rivals.session()
    _start_at(caller, start)
    listener.execute(sql.SQL("LISTEN {}").format(sql.Identifier(STORE.statements.channel)))
    run_sync(caller, STORE.enqueue.enqueue(NewJob("test")))
    run_sync(caller, claim(LEASE))
    run_sync(caller, STORE.jobs.cancel([start], KEEP_PAYLOAD))
    (notify,) = listener.notifies(timeout=10, stop_after=1)
    assert wakeup.parse(notify.payload) == wakeup.CancelRequested(frozenset({start}))


@pytest.mark.case("B10")
def test_no_sequence_is_narrower_than_bigint(undone: Conn) -> None:
    rows = undone.execute(
        "SELECT sequencename, data_type::text, max_value FROM pg_sequences WHERE schemaname = 'jobq'"
    ).fetchall()
    assert rows == [("job_id_seq", "bigint", 2**63 - 1)]
    narrow = undone.execute(
        "SELECT table_name, column_name FROM information_schema.columns"
        " WHERE table_schema = 'jobq' AND column_name ~ '(^|_)(id|lease)$' AND data_type <> 'bigint'"
    ).fetchall()
    assert narrow == [("worker", "id")], "a worker's id is text"


@pytest.mark.case("B10")
def test_ten_thousand_repeats_of_one_key_leave_one_job(conn: Conn) -> None:
    batch = [NewJob("test", idempotency_key="k")] * 1000
    found = {
        each.job.id for _ in range(10) for each in converse(conn, STORE.enqueue.enqueue_many(batch))
    }
    assert len(found) == 1
    assert (
        one(conn, "SELECT count(*) FROM jobq.key")[0]
        == one(conn, "SELECT count(*) FROM jobq.job")[0]
        == 1
    )
