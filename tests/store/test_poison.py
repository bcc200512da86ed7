"""Rows that plain SQL can make and no program of ours would: each can be claimed and ends, and fails no batch."""

from __future__ import annotations

import pytest
from psycopg import errors, sql
from tests.store.support import (
    KEEP_PAYLOAD,
    LANE,
    LEASE,
    STORE,
    Rivals,
    claim,
    complete,
    fail,
    job,
    put,
    status,
)

from jobq.db import Conn, is_unavailable
from jobq.model import Claim, JobStatus, Outcome, Verdict
from jobq.store import BEGINNING, Span, run_sync

INT_MAX = 2**31 - 1
#: Columns as SQL, by what is odd about them.
ODD: dict[str, dict[str, str]] = {
    "payload null": {"payload": "'null'"},
    "payload text": {"payload": "'\"text\"'"},
    "payload array": {"payload": "'[1, 2]'"},
    "payload number": {"payload": "'5'"},
    "payload of 5001 digits": {"payload": "'{\"n\": 1e5000}'"},
    "payload nested deeply": {"payload": "(repeat('[', 5000) || repeat(']', 5000))::jsonb"},
    "attempts at the end of int4": {"attempts": str(INT_MAX)},
    "attempts used up": {"attempts": "5"},
    "attempts overdrawn": {"attempts": "77"},
    "negative attempts": {"attempts": "-5"},
    "no max_attempts": {"max_attempts": "NULL"},
    "max_attempts 0": {"max_attempts": "0"},
    "huge max_attempts": {"max_attempts": str(INT_MAX), "attempts": "1700000"},
    "tags with a NULL": {"tags": "ARRAY[NULL, 'a']"},
    "tags of two dimensions": {"tags": "ARRAY[['a', 'b'], ['c', NULL]]"},
    "meta an array": {"meta": "'[1]'"},
    "meta a number": {"meta": "'1e5000'"},
    "meta that Python does not read": {"meta": "'{\"n\": 1e5000}'"},
    "meta nested deeply": {"meta": "(repeat('[', 5000) || repeat(']', 5000))::jsonb"},
    "shortest timeout": {"timeout": "5e-324"},
    "longest timeout": {"timeout": "315360000"},
    "history an object": {"history": "'{\"a\": 1}'"},
    "history a number": {"history": "'5'"},
    "history null": {"history": "'null'"},
    "history of anything": {"history": "'[1, null, [{}], {\"a\": 1}]'"},
    "progress of anything": {"progress": "'[1e5000]'"},
    "result of anything": {"result": "'1e5000'"},
    "an error of 1 MB": {"last_error": "repeat('e', 1000000)"},
    "a worker of 1 MB": {"worker": "repeat('w', 1000000)"},
    "an empty error": {"last_error": "''"},
    "a cancel request before its start": {"cancel_requested_at": "now()"},
    "keys without their rows": {"unique_key": "'u'", "idempotency_key": "'i'"},
}
GOOD = 3


def _columns(name: str) -> dict[str, sql.SQL]:
    return {column: sql.SQL(text) for column, text in ODD[name].items()}


def _claimed(conn: Conn) -> dict[int, str]:
    """All odd rows and some good ones, claimed in one batch: id -> what is odd."""
    names = {put(conn, "QUEUED", **_columns(name)): name for name in ODD}
    names |= {put(conn, "QUEUED"): f"good {n}" for n in range(GOOD)}
    found = run_sync(conn, claim(LEASE, spans=[Span(LANE)]))
    assert {each.id for each in found} == set(names)
    assert all(isinstance(each.meta, dict) for each in found)
    return names


@pytest.mark.case("B16")
@pytest.mark.case("B17")
def test_odd_rows_are_claimed_with_the_others_and_complete(undone: Conn) -> None:
    names = _claimed(undone)
    claims = {Claim(id_, LEASE) for id_ in names}
    assert set(run_sync(undone, STORE.runs.extend(sorted(claims), 600))) == claims
    assert (
        run_sync(undone, STORE.runs.progress([(each, "0.5") for each in sorted(claims)])) == claims
    )
    assert run_sync(undone, complete(*sorted(claims))) == claims
    assert {status(undone, id_) for id_ in names} == {"DONE"}


@pytest.mark.case("B17")
@pytest.mark.case("B30")
@pytest.mark.case("B74")
@pytest.mark.parametrize("verdict", [Verdict.RETRY, Verdict.PERMANENT, Verdict.STOPPED])
def test_odd_rows_fail_with_the_others(undone: Conn, verdict: Verdict) -> None:
    names = _claimed(undone)
    outcomes = [Outcome(Claim(id_, LEASE), verdict, error="no luck") for id_ in names]
    fates = run_sync(undone, STORE.runs.fail(outcomes, base=1e9, maximum=1e300))
    assert {each.id for each in fates} == set(names)
    for id_, name in names.items():
        row = job(undone, id_)
        assert row["attempts"] <= INT_MAX, name
        assert row["history"][-1]["error"] == "no luck", name
        assert all(isinstance(entry, dict) for entry in row["history"]), name
        if verdict is Verdict.RETRY:
            ends = ("used up", "overdrawn", "end of int4", "max_attempts 0")
            expected = (
                "DEAD" if name.endswith(ends) else "CANCELLED" if "cancel" in name else "SCHEDULED"
            )
            assert row["status"] == expected, name


@pytest.mark.case("B17")
def test_odd_rows_are_released_with_the_others(undone: Conn) -> None:
    names = _claimed(undone)
    fates = run_sync(undone, STORE.runs.release([Claim(id_, LEASE) for id_ in names], KEEP_PAYLOAD))
    assert {names[each.id] for each, fate in fates.items() if fate is JobStatus.CANCELLED} == {
        "a cancel request before its start"
    }
    assert {each.id for each in fates} == set(names)


@pytest.mark.case("B30")
def test_odd_rows_are_reclaimed_with_the_others_and_none_stays_invisible(undone: Conn) -> None:
    names = _claimed(undone)
    undone.execute("UPDATE jobq.job SET lease_until = now() - interval '1 second'")
    found = run_sync(undone, STORE.upkeep.reclaim(BEGINNING, 1000, KEEP_PAYLOAD))
    assert {each.id for each in found} == set(names)
    rows = undone.execute(
        "SELECT id FROM jobq.job WHERE status <> 'QUEUED' OR attempts >= max_attempts"
    ).fetchall()
    assert rows == []


def test_odd_rows_can_be_looked_at_and_cancelled(undone: Conn) -> None:
    ids = [put(undone, "QUEUED", **_columns(name)) for name in ODD]
    for id_ in ids:
        assert run_sync(undone, STORE.jobs.find_job(id_)) is not None
    assert len(run_sync(undone, STORE.jobs.list_jobs(most=500))) == len(ids)
    assert set(run_sync(undone, STORE.jobs.cancel(ids, KEEP_PAYLOAD))) == set(ids)
    assert len(run_sync(undone, STORE.jobs.list_jobs(most=500, statuses=["CANCELLED"]))) == len(ids)


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        ("QUEUED", {"run_at": "'infinity'"}),
        ("QUEUED", {"run_at": "'-infinity'"}),
        ("QUEUED", {"run_at": "'9999-06-01Z'"}),
        ("QUEUED", {"ready_at": "'infinity'"}),
        ("QUEUED", {"started_at": "'-infinity'"}),
        ("QUEUED", {"cancel_requested_at": "'0044-03-15 BC'"}),
        ("QUEUED", {"deadline": "'infinity'"}),
        ("RUNNING", {"lease_until": "'1969-07-20Z'"}),
        ("RUNNING", {"lease_until": "'infinity'"}),
        ("QUEUED", {"priority": "101"}),
        ("QUEUED", {"priority": "-32768"}),
        ("QUEUED", {"held_by": "''"}),
        ("QUEUED", {"held_by": "repeat('h', 301)"}),
        *[
            ("QUEUED", {name: text})
            for name in ("kind", "queue", "tenant")
            for text in ("''", "repeat('x', 129)", "E'a\\nb'", "'a b'", "'größe'", "'x\"y'")
        ],
        *[
            ("QUEUED", {name: text})
            for name in ("concurrency_key", "idempotency_key", "unique_key")
            for text in ("''", "repeat('x', 256)")
        ],
        ("QUEUED", {"created_at": "'-infinity'"}),
        ("QUEUED", {"timeout": "0"}),
        ("QUEUED", {"timeout": "'NaN'"}),
        ("QUEUED", {"timeout": "'Infinity'"}),
        ("QUEUED", {"payload": "NULL"}),
        ("QUEUED", {"status": "'queued'"}),
        ("QUEUED", {"lease": "5"}),
        ("QUEUED", {"lease_until": "now()"}),
        ("RUNNING", {"lease": "NULL"}),
        ("RUNNING", {"lease_until": "NULL"}),
    ],
    ids=str,
)
def test_what_could_never_be_claimed_or_read_back_is_refused(
    undone: Conn, kind: str, columns: dict[str, str]
) -> None:
    with pytest.raises(errors.IntegrityError), undone.transaction():
        put(undone, kind, **{name: sql.SQL(text) for name, text in columns.items()})


# --- a row that cannot be changed -----------------------------------------------------------------

_TRAP = """
CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '23514'; END $$;
CREATE TRIGGER refuse BEFORE UPDATE OR DELETE ON jobq.job
FOR EACH ROW WHEN (OLD.tags = ARRAY['bad']) EXECUTE FUNCTION public.refuse();
"""


def _hundred(conn: Conn) -> tuple[int, list[int]]:
    expired = {"lease_until": sql.SQL("now() - interval '1 second'")}
    bad = put(conn, "RUNNING", tags=["bad"], **expired)
    return bad, [put(conn, "RUNNING", **expired) for _ in range(99)]


@pytest.mark.case("B13")
def test_one_row_that_cannot_change_does_not_keep_the_reaper_from_the_others(conn: Conn) -> None:
    bad, good = _hundred(conn)
    conn.execute(_TRAP)
    with pytest.raises(errors.CheckViolation) as refused:
        run_sync(conn, STORE.upkeep.reclaim(BEGINNING, 1000, KEEP_PAYLOAD))
    assert not is_unavailable(refused.value), "the reaper must split the batch, not wait"
    ids = run_sync(conn, STORE.upkeep.expired(BEGINNING, 1000))
    assert set(ids) == {bad, *good}
    found = run_sync(conn, STORE.upkeep.reclaim(BEGINNING, 1000, KEEP_PAYLOAD, only=good))
    assert {each.id for each in found} == set(good)
    assert run_sync(conn, STORE.upkeep.expired(BEGINNING, 1000)) == [bad]


@pytest.mark.case("B08")
@pytest.mark.parametrize("operation", ["complete", "fail"])
def test_one_outcome_that_cannot_be_written_leaves_the_batch_to_be_split(
    conn: Conn, operation: str
) -> None:
    bad, good = _hundred(conn)
    conn.execute(_TRAP)
    make = complete if operation == "complete" else fail
    before = job(conn, bad)
    with pytest.raises(errors.CheckViolation):
        run_sync(conn, make(*(Claim(id_, LEASE) for id_ in [bad, *good])))
    assert {status(conn, id_) for id_ in good} == {"RUNNING"}, "all or nothing"
    for id_ in good:
        assert run_sync(conn, make(Claim(id_, LEASE)))
    assert job(conn, bad) == before


def test_a_locked_row_is_passed_over_by_the_reaper(rivals: Rivals) -> None:
    first, second = rivals.session(), rivals.session()
    bad, good = _hundred(first)
    with first.transaction():
        first.execute("SELECT FROM jobq.job WHERE id = %s FOR UPDATE", (bad,))
        found = run_sync(second, STORE.upkeep.reclaim(BEGINNING, 1000, KEEP_PAYLOAD))
    assert {each.id for each in found} == set(good)
