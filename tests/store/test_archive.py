"""Finished jobs: partitions made ahead without stalling anybody, what a finished row keeps, how it is found."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from psycopg import errors, sql
from tests.store.support import (
    KEEP_PAYLOAD,
    LEASE,
    STORE,
    Rivals,
    complete,
    engine,
    fail,
    job,
    one,
    put,
    status,
)

from jobq.db import Conn, is_unavailable
from jobq.model import Claim, JobStatus, Outcome, Verdict
from jobq.store import BEGINNING, Call, run_sync

CLASSES = ("done", "dead")


def _partitions(conn: Conn) -> dict[str, list[tuple[datetime, datetime]]]:
    """The bounds of each class's partitions, in order."""
    rows = conn.execute(
        "SELECT parent.relname, leaf.relname, pg_get_expr(leaf.relpartbound, leaf.oid) FROM pg_inherits"
        " JOIN pg_class parent ON parent.oid = inhparent JOIN pg_class leaf ON leaf.oid = inhrelid"
        " WHERE parent.relname IN ('job_archive_done', 'job_archive_dead') AND leaf.relkind = 'r' ORDER BY 2"
    ).fetchall()
    found: dict[str, list[tuple[datetime, datetime]]] = {each: [] for each in CLASSES}
    for parent, leaf, bounds in rows:
        first, last = (datetime.fromisoformat(text) for text in bounds.split("'")[1::2])
        assert leaf == f"{parent}_{first.astimezone(UTC):%Y%m%d}"
        found[parent.removeprefix("job_archive_")].append((first, last))
    return found


def _days(conn: Conn, first: int, last: int) -> list[tuple[datetime, datetime]]:
    now: datetime = one(conn, "SELECT now()")[0]
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    day = timedelta(days=1)
    return [(midnight + n * day, midnight + (n + 1) * day) for n in range(first, last + 1)]


def _forget(conn: Conn, first: int, last: int) -> None:
    """Drop the partitions of some days, counted from today."""
    for begin, _ in _days(conn, first, last):
        for class_ in CLASSES:
            name = sql.Identifier("jobq", f"job_archive_{class_}_{begin:%Y%m%d}")
            conn.execute(sql.SQL("DROP TABLE {}").format(name))


# --- partitions ---------------------------------------------------------------------------------------


def test_partitions_are_made_14_days_ahead_by_utc_day(undone: Conn) -> None:
    assert _partitions(undone) == dict.fromkeys(CLASSES, _days(undone, -1, 14))


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Beirut", "Pacific/Kiritimati"])
def test_days_are_utc_days_whatever_the_session_s_zone(shared_url: str, zone: str) -> None:
    with engine(shared_url, timezone=zone) as conn, conn.transaction(force_rollback=True):
        assert run_sync(conn, STORE.upkeep.make_partitions(14)) == 0
        assert run_sync(conn, STORE.upkeep.make_partitions(20)) == 2 * (20 - 14)
        conn.execute("SET LOCAL timezone = 'UTC'")
        assert _partitions(conn) == dict.fromkeys(CLASSES, _days(conn, -1, 20))


def test_a_class_that_is_none_is_refused(undone: Conn) -> None:
    with pytest.raises(errors.RaiseException):
        undone.execute("SELECT jobq.make_partition('other', current_date)")


def _make(conn: Conn, day: date) -> bool:
    return bool(one(conn, "SELECT jobq.make_partition('done', %s)", (day,))[0])


def test_a_reader_of_the_whole_archive_holds_up_neither_partitions_nor_completions(
    rivals: Rivals,
) -> None:
    reader, maker, worker = rivals.session(), rivals.session(), rivals.session()
    id_ = put(worker, "RUNNING")
    with reader.transaction():
        reader.execute("SELECT count(*) FROM jobq.jobs")
        made = rivals.start(lambda: _make(maker, date(2100, 1, 1)))
        assert not rivals.waits(maker, made)
        done = rivals.start(lambda: run_sync(worker, complete(Claim(id_, LEASE))))
        assert not rivals.waits(worker, done)
    assert made.result()
    assert done.result() == {Claim(id_, LEASE)}


def test_partition_and_completion_do_not_wait_for_each_other(rivals: Rivals) -> None:
    maker, worker, late = rivals.session(), rivals.session(), rivals.session()
    first, second = put(worker, "RUNNING"), put(worker, "RUNNING")
    with worker.transaction():
        run_sync(worker, complete(Claim(first, LEASE)))
        with maker.transaction():
            made = rivals.start(lambda: _make(maker, date(2100, 1, 1)))
            assert not rivals.waits(maker, made)
            assert made.result()
            done = rivals.start(lambda: run_sync(late, complete(Claim(second, LEASE))))
            assert not rivals.waits(late, done)
    assert done.result() == {Claim(second, LEASE)}


def test_two_makers_of_one_partition_make_it_once(rivals: Rivals) -> None:
    first, second = rivals.session(), rivals.session()
    with first.transaction():
        assert _make(first, date(2100, 1, 1))
        future = rivals.start(lambda: _make(second, date(2100, 1, 1)))
        assert rivals.waits(second, future)
    assert future.result() is False


@pytest.mark.parametrize("operation", ["complete", "fail", "cancel", "dismiss"])
def test_an_end_that_finds_no_partition_says_so_and_works_when_it_is_made(
    conn: Conn, operation: str
) -> None:
    id_ = (
        put(conn, "DEAD", finished_at=sql.SQL("now() - interval '1 day'"))
        if operation == "dismiss"
        else put(conn, "RUNNING")
    )
    calls: dict[str, Call[Any]] = {
        "complete": complete(Claim(id_, LEASE)),
        "fail": fail(Claim(id_, LEASE), verdict=Verdict.PERMANENT),
        "cancel": fail(Claim(id_, LEASE), verdict=Verdict.STOPPED),
        "dismiss": STORE.jobs.cancel([id_], KEEP_PAYLOAD),
    }
    _forget(conn, 0, 1)
    before = job(conn, id_)
    with pytest.raises(errors.CheckViolation) as missing:
        run_sync(conn, calls[operation])
    assert missing.value.sqlstate == "23514"
    assert missing.value.diag.constraint_name is None, (
        "tells it from a constraint that a row violates"
    )
    assert not is_unavailable(missing.value)
    assert job(conn, id_) == before
    assert run_sync(conn, STORE.upkeep.make_partitions(14)) == 4
    assert run_sync(conn, calls[operation])
    assert status(conn, id_) in ("DONE", "FAILED", "CANCELLED")


# --- what a finished row keeps --------------------------------------------------------------------------

SMALL, LARGE = '"' + "x" * (KEEP_PAYLOAD - 2) + '"', '"' + "x" * (KEEP_PAYLOAD - 1) + '"'


def _kept(
    conn: Conn, payload: str, end: Callable[[int], Call[Any]], **columns: Any
) -> tuple[str, bool]:
    id_ = put(conn, "RUNNING", payload=sql.Literal(payload), **columns)
    run_sync(conn, end(id_))
    row = job(conn, id_)
    return row["status"], row["payload"] is not None


@pytest.mark.parametrize("payload", [SMALL, LARGE], ids=["at the limit", "over the limit"])
def test_done_and_cancelled_jobs_drop_payloads_over_the_limit_dead_and_failed_keep_all(
    undone: Conn, payload: str
) -> None:
    fits = payload == SMALL
    asked = {"cancel_requested_at": sql.SQL("now()")}
    expired = {"lease_until": sql.SQL("now() - interval '1 second'")}

    def outcome(id_: int, verdict: Verdict) -> Outcome:
        return Outcome(Claim(id_, LEASE), verdict, error="e", keep_payload=fits)

    def failed(verdict: Verdict) -> Callable[[int], Call[Any]]:
        return lambda id_: STORE.runs.fail([outcome(id_, verdict)], 1.0, 1.0)

    def reclaim(_: int) -> Call[Any]:
        return STORE.upkeep.reclaim(BEGINNING, 10, KEEP_PAYLOAD)

    def done(id_: int) -> Call[Any]:
        return STORE.runs.complete([outcome(id_, Verdict.SUCCESS)])

    def release(id_: int) -> Call[Any]:
        return STORE.runs.release([Claim(id_, LEASE)], KEEP_PAYLOAD)

    assert _kept(undone, payload, done) == ("DONE", fits)
    assert _kept(undone, payload, failed(Verdict.STOPPED)) == ("CANCELLED", fits)
    assert _kept(undone, payload, release, **asked) == ("CANCELLED", fits)
    assert _kept(undone, payload, reclaim, **asked, **expired) == ("CANCELLED", fits)
    assert _kept(undone, payload, failed(Verdict.PERMANENT)) == ("FAILED", True)
    assert _kept(undone, payload, failed(Verdict.RETRY), attempts=5) == ("DEAD", True)
    assert _kept(undone, payload, reclaim, attempts=5, **expired) == ("DEAD", True)
    waiting, dead = (
        put(undone, "QUEUED", payload=sql.Literal(payload)),
        put(undone, "DEAD", payload=sql.Literal(payload)),
    )
    run_sync(undone, STORE.jobs.cancel([waiting, dead], KEEP_PAYLOAD))
    assert (job(undone, waiting)["payload"] is not None) == fits
    assert (job(undone, dead)["payload"] is not None) == fits


def test_a_job_whose_payload_was_dropped_cannot_be_retried(undone: Conn) -> None:
    id_ = put(undone, "CANCELLED", payload=None)
    assert not run_sync(undone, STORE.jobs.retry([id_], force=True))


def test_history_has_an_entry_per_attempt_and_keeps_the_last_20(undone: Conn) -> None:
    id_ = put(undone, "RUNNING", attempts=0, max_attempts=100)
    for attempt in range(1, 26):
        undone.execute(
            "UPDATE jobq.job SET status = 'RUNNING', lease = %s, lease_until = now(), worker = 'w', started_at = now(),"
            " attempts = %s",
            (LEASE, attempt),
        )
        run_sync(undone, fail(Claim(id_, LEASE)))
    history = job(undone, id_)["history"]
    assert [entry["attempt"] for entry in history] == list(range(6, 26))
    assert set(history[-1]) == {"attempt", "startedAt", "endedAt", "worker", "outcome", "error"}
    assert (history[-1]["worker"], history[-1]["outcome"], history[-1]["error"]) == (
        "w",
        "retry",
        "no luck",
    )
    assert datetime.fromisoformat(history[-1]["startedAt"]) <= datetime.fromisoformat(
        history[-1]["endedAt"]
    )


@pytest.mark.parametrize(
    ("outcome", "end"),
    [
        ("retry", lambda id_: fail(Claim(id_, LEASE))),
        ("failed", lambda id_: fail(Claim(id_, LEASE), verdict=Verdict.PERMANENT)),
        ("cancelled", lambda id_: fail(Claim(id_, LEASE), verdict=Verdict.STOPPED)),
        ("released", lambda id_: STORE.runs.release([Claim(id_, LEASE)], KEEP_PAYLOAD)),
        ("lease_lost", lambda id_: STORE.upkeep.reclaim(BEGINNING, 10, KEEP_PAYLOAD)),
    ],
)
def test_the_history_tells_how_each_attempt_ended(
    undone: Conn, outcome: str, end: Callable[[int], Call[Any]]
) -> None:
    id_ = put(undone, "RUNNING", lease_until=sql.SQL("now() - interval '1 second'"))
    run_sync(undone, end(id_))
    (entry,) = job(undone, id_)["history"]
    assert (entry["attempt"], entry["outcome"], entry["worker"]) == (1, outcome, "w1")


@pytest.mark.case("B98")
def test_a_retry_by_hand_keeps_the_history_and_starts_over(undone: Conn) -> None:
    id_ = put(undone, "RUNNING", attempts=3, max_attempts=3)
    run_sync(undone, fail(Claim(id_, LEASE)))
    assert status(undone, id_) == "DEAD"
    assert run_sync(undone, STORE.jobs.retry([id_]))
    row = job(undone, id_)
    assert (row["status"], row["attempts"], row["max_attempts"]) == ("QUEUED", 0, 3)
    assert [entry["attempt"] for entry in row["history"]] == [3]
    assert one(undone, "SELECT run_at >= now() AND ready_at >= now() FROM jobq.job")[0]


# --- how jobs are found ---------------------------------------------------------------------------------


def test_the_view_shows_all_jobs_live_and_finished(undone: Conn) -> None:
    ids = {put(undone, each): str(each) for each in JobStatus}
    assert dict(undone.execute("SELECT id, status FROM jobq.jobs").fetchall()) == ids
    finished = undone.execute(
        "SELECT status FROM jobq.jobs WHERE finished_at IS NOT NULL"
    ).fetchall()
    assert {each for (each,) in finished} == {"DONE", "CANCELLED", "DEAD", "FAILED"}
    for id_, each in ids.items():
        found = run_sync(undone, STORE.jobs.find_job(id_))
        assert found is not None
        assert found["status"] == each
    listed = run_sync(undone, STORE.jobs.list_jobs(most=3, before=max(ids)))
    assert [row["id"] for row in listed] == sorted(ids)[-4:-1][::-1]


def test_a_job_on_its_way_to_the_archive_is_never_missing(rivals: Rivals) -> None:
    worker, reader = rivals.session(), rivals.session()
    ids = [put(worker, "RUNNING") for _ in range(100)]

    def finish() -> None:
        for id_ in ids:
            run_sync(worker, complete(Claim(id_, LEASE)))
            assert run_sync(worker, STORE.jobs.find_job(id_))

    future = rivals.start(finish)
    while not future.done():
        rows = reader.execute("SELECT id FROM jobq.jobs ORDER BY id").fetchall()
        assert [id_ for (id_,) in rows] == ids
    future.result()


def test_a_batch_of_retries_does_what_single_ones_would(undone: Conn) -> None:
    """Of jobs with one unique key the first gets it; those that may not be retried stay as they are."""
    scheduled = put(undone, "SCHEDULED")
    dead = [put(undone, "DEAD") for _ in range(3)]
    rivals = [put(undone, "DEAD", unique_key="u") for _ in range(2)]
    failed, running = put(undone, "FAILED"), put(undone, "RUNNING")
    ids = [scheduled, *dead, *rivals, failed, running, 10**12]
    done = run_sync(undone, STORE.jobs.retry([*ids, *ids]))
    assert sorted(done) == sorted([scheduled, *dead, rivals[0]])
    assert {status(undone, id_) for id_ in done} == {"QUEUED"}
    assert [status(undone, id_) for id_ in (rivals[1], failed, running)] == [
        "DEAD",
        "FAILED",
        "RUNNING",
    ]
    assert run_sync(undone, STORE.jobs.retry(ids, force=True)) == [failed]
