"""Housekeeping: promotion, discovery of lanes, kinds, workers, and what is counted."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg import sql
from tests.store.support import STORE, Rivals, one, put, until

from jobq.db import Conn
from jobq.model import JobStatus, Lane, NewJob
from jobq.store import BEGINNING, Promoted, run_sync

ALL = Lane("", "", -32768)


def _due(conn: Conn, seconds: float) -> int:
    return put(
        conn,
        "SCHEDULED",
        run_at=sql.SQL("now() + interval '{} seconds'").format(sql.Literal(seconds)),
    )


# --- promotion --------------------------------------------------------------------------------------


def test_due_jobs_are_promoted_oldest_first_and_the_next_one_is_told(undone: Conn) -> None:
    ids = [_due(undone, seconds) for seconds in (-10, -30, -20, 90)]
    step = run_sync(undone, STORE.upkeep.promote(BEGINNING, 2))
    queued = undone.execute(
        "SELECT id, ready_at = run_at FROM jobq.job WHERE status = 'QUEUED' ORDER BY id"
    ).fetchall()
    assert queued == [(ids[1], True), (ids[2], True)]
    assert (step.elected, step.moved) == (True, 2)
    assert step.last == one(undone, "SELECT run_at FROM jobq.job WHERE id = %s", (ids[2],))[0]
    assert step.next_in == pytest.approx(90, abs=5)
    assert run_sync(undone, STORE.upkeep.promote(step.last, 2)).moved == 1


def test_a_floor_passes_over_what_was_due_before(undone: Conn) -> None:
    _due(undone, -30), _due(undone, -10)
    floor = one(undone, "SELECT now() - interval '20 seconds'")[0]
    assert run_sync(undone, STORE.upkeep.promote(floor, 10)).moved == 1
    assert run_sync(undone, STORE.upkeep.promote(BEGINNING, 10)).moved == 1


def test_nothing_scheduled_is_said_as_such(undone: Conn) -> None:
    assert run_sync(undone, STORE.upkeep.promote(BEGINNING, 10)) == Promoted(
        True, 0, None, None, held=False, limits=0
    )


def test_one_promoter_works_at_a_time(rivals: Rivals) -> None:
    first, second = rivals.session(), rivals.session()
    _due(first, -20)
    _due(first, -10)
    with first.transaction():
        assert run_sync(first, STORE.upkeep.promote(BEGINNING, 1)).moved == 1
        other = run_sync(second, STORE.upkeep.promote(BEGINNING, 10))
    assert (other.elected, other.moved) == (False, 0)


# --- discovery --------------------------------------------------------------------------------------


def test_discovery_walks_lanes_in_order_resumes_and_ends_where_it_is_told(undone: Conn) -> None:
    lanes = [
        Lane(queue, tenant, priority)
        for queue in "abc"
        for tenant in ("t", "u")
        for priority in (-5, 5)
    ]
    heads = {}
    for lane in reversed(lanes):
        for minutes in (1, 2):
            heads[lane] = put(
                undone, "QUEUED", queue=lane.queue, tenant=lane.tenant, priority=lane.priority,
                run_at=sql.SQL("now() - interval '{} minutes'").format(sql.Literal(minutes)),
            )  # fmt: skip
    found = run_sync(undone, STORE.upkeep.discover(ALL, 100))
    assert [(head.lane, head.id, head.due) for head in found] == [
        (lane, heads[lane], True) for lane in lanes
    ]
    first = run_sync(undone, STORE.upkeep.discover(ALL, 5))
    rest = run_sync(undone, STORE.upkeep.discover(first[-1].lane, 100))
    assert [head.lane for head in first + rest] == lanes
    of_b = run_sync(undone, STORE.upkeep.discover(Lane("b", "", -32768), 100, "b"))
    assert [head.lane for head in of_b] == lanes[4:8]


@pytest.mark.parametrize(
    ("kind", "columns"),
    [("SCHEDULED", {}), ("RUNNING", {}), ("QUEUED", {"held_by": "kind:x"})],
    ids=["waiting", "running", "held"],
)
def test_lanes_without_a_job_to_claim_are_not_found(
    undone: Conn, kind: str, columns: dict[str, Any]
) -> None:
    put(undone, kind, **columns)
    assert run_sync(undone, STORE.upkeep.discover(ALL, 100)) == []


def test_a_lane_whose_first_job_is_early_says_so(undone: Conn) -> None:
    put(undone, "QUEUED", run_at=sql.SQL("now() + interval '1 minute'"))
    (head,) = run_sync(undone, STORE.upkeep.discover(ALL, 100))
    assert not head.due


# --- leases ------------------------------------------------------------------------------------------


def test_expired_leases_come_oldest_first_above_the_floor(undone: Conn) -> None:
    ids = [
        put(
            undone,
            "RUNNING",
            lease_until=sql.SQL("now() - interval '{} seconds'").format(sql.Literal(seconds)),
        )
        for seconds in (10, 30, 20)
    ]
    put(undone, "RUNNING")
    assert run_sync(undone, STORE.upkeep.expired(BEGINNING, 10)) == [ids[1], ids[2], ids[0]]
    assert run_sync(undone, STORE.upkeep.expired(BEGINNING, 2)) == [ids[1], ids[2]]
    floor = one(undone, "SELECT lease_until FROM jobq.job WHERE id = %s", (ids[1],))[0]
    assert run_sync(undone, STORE.upkeep.expired(floor, 10)) == [ids[2], ids[0]]
    assert [found.id for found in run_sync(undone, STORE.upkeep.reclaim(floor, 1, 0))] == [ids[2]]


@pytest.mark.parametrize("seconds", [-1, 60])
def test_the_reaper_is_told_the_clock_and_whether_a_lease_has_ended(
    undone: Conn, seconds: int
) -> None:
    put(
        undone,
        "RUNNING",
        lease_until=sql.SQL("now() + interval '{} seconds'").format(sql.Literal(seconds)),
    )
    check = run_sync(undone, STORE.upkeep.reap_check(BEGINNING, 60))
    now = one(undone, "SELECT extract(epoch FROM clock_timestamp())::float")[0]
    assert check.now == pytest.approx(now, abs=5)
    assert check.uptime > 0
    assert check.expired == (seconds < 0)


# --- kinds, workers, counts ----------------------------------------------------------------------------


def test_a_kind_s_defaults_reach_jobs_enqueued_in_every_way(undone: Conn) -> None:
    kind = {"kind": "k", "queue": "q", "priority": 7, "max_attempts": 2, "timeout": 1.5}
    run_sync(undone, STORE.upkeep.register_kinds([kind]))
    run_sync(undone, STORE.enqueue.enqueue(NewJob("k")))
    undone.execute("SELECT jobq.enqueue(kind => 'k')")
    run_sync(undone, next(STORE.enqueue.enqueue_many([NewJob("k")])))
    own = NewJob("k", queue="own", priority=-7, max_attempts=9, timeout=9.0)
    run_sync(undone, STORE.enqueue.enqueue(own))
    rows = undone.execute(
        "SELECT queue, priority, max_attempts, timeout FROM jobq.job ORDER BY id"
    ).fetchall()
    assert rows == [("q", 7, 2, 1.5)] * 3 + [("own", -7, 9, 9.0)]


def test_kinds_that_are_already_so_are_not_written_again(conn: Conn) -> None:
    kinds = [
        {"kind": name, "queue": None, "priority": None, "max_attempts": 3, "timeout": None}
        for name in "ab"
    ]
    run_sync(conn, STORE.upkeep.register_kinds(kinds))
    before = conn.execute("SELECT kind, xmin::text FROM jobq.kind ORDER BY kind").fetchall()
    run_sync(conn, STORE.upkeep.register_kinds([kinds[0], {**kinds[1], "max_attempts": 4}]))
    after = conn.execute("SELECT kind, xmin::text FROM jobq.kind ORDER BY kind").fetchall()
    assert after[0] == before[0]
    assert after[1] != before[1]
    run_sync(conn, STORE.upkeep.register_kinds([{**kinds[0], "max_per_key": 2}]))
    assert one(conn, "SELECT max_per_key FROM jobq.kind WHERE kind = 'a'") == (2,)
    run_sync(conn, STORE.upkeep.register_kinds([kinds[0]]))
    assert one(conn, "SELECT max_per_key FROM jobq.kind WHERE kind = 'a'") == (None,)


def test_workers_are_listed_until_they_leave_or_their_beats_stop(conn: Conn) -> None:
    worker = {
        "id": "w1", "host": "h", "pid": 7, "version": "1", "queues": ["a", 'b"'], "kinds": ["k"], "slots": 20,
        "express": 2, "running": 3, "draining": False, "claim_loop_ok": True,
        "finished_per_second": 1.5, "run_seconds": 0.5, "claimed_ago": 0.5, "ttl": 60.0,
    }  # fmt: skip
    run_sync(conn, STORE.upkeep.beat(worker))
    later = {
        "running": 4,
        "draining": True,
        "claim_loop_ok": False,
        "finished_per_second": 2.5,
        "run_seconds": None,
    }
    run_sync(conn, STORE.upkeep.beat({**worker, **later}))
    run_sync(
        conn,
        STORE.upkeep.beat({**worker, "id": "w2", "queues": None, "ttl": 0.0, "claimed_ago": None}),
    )
    (row,) = run_sync(conn, STORE.jobs.list_workers())
    assert (row["id"], row["queues"], row["running"], row["draining"]) == (
        "w1",
        ["a", 'b"'],
        4,
        True,
    )
    assert (row["claim_loop_ok"], row["finished_per_second"]) == (False, 2.5)
    assert row["claimed_at"] < row["heartbeat_at"]
    run_sync(conn, STORE.upkeep.leave("w1"))
    assert run_sync(conn, STORE.jobs.list_workers()) == []


def test_counts_by_queue_status_and_tenant(undone: Conn) -> None:
    for each in JobStatus:
        put(undone, each, queue="q", tenant="a", started_at=sql.SQL("now() - interval '9 seconds'"))
    put(undone, "QUEUED", queue="q", tenant="b"), put(undone, "QUEUED", queue="q", tenant="b")
    put(undone, "QUEUED", queue="q", priority=7, ready_at=sql.SQL("now()"), held_by="key:x")
    rows = {
        (row["queue"], row["status"], row["priority"]): row
        for row in run_sync(undone, STORE.jobs.count_live())
    }
    assert {key: row["jobs"] for key, row in rows.items()} == {
        ("q", "QUEUED", 0): 3, ("q", "QUEUED", 7): 1, ("q", "RUNNING", 0): 1, ("q", "SCHEDULED", 0): 1,
    }  # fmt: skip
    assert rows["q", "QUEUED", 0]["oldest_queued"] == pytest.approx(60, abs=5)
    assert rows["q", "QUEUED", 7]["oldest_queued"] == pytest.approx(0, abs=5)
    assert (
        rows["q", "QUEUED", 7]["held_for_kind"],
        rows["q", "QUEUED", 7]["held_for_key"],
    ) == (0, 1)
    assert rows["q", "RUNNING", 0]["oldest_running"] == pytest.approx(9, abs=5)
    assert run_sync(undone, STORE.jobs.count_finished()) == {"DEAD": 1, "FAILED": 1}
    assert list(run_sync(undone, STORE.jobs.count_backlogs()).items()) == [
        ("b", 2),
        ("a", 1),
        ("default", 1),
    ]


def test_the_age_of_the_oldest_snapshot_is_seen(rivals: Rivals) -> None:
    old, conn = rivals.session(), rivals.session()
    with old.transaction():
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM jobq.job")
        assert until(lambda: run_sync(conn, STORE.jobs.snapshot_age()), "no snapshot is seen") > 0


def test_lists_are_filtered_and_come_newest_first_page_by_page(undone: Conn) -> None:
    for n in range(4):
        for each in JobStatus:
            put(
                undone,
                each,
                kind=f"k{n % 2}",
                queue=f"q{n % 2}",
                tenant=f"t{n % 2}",
                tags=[f"x{n}", "all"],
            )
    ids = [row["id"] for row in run_sync(undone, STORE.jobs.list_jobs(most=500))]
    assert ids == sorted(ids, reverse=True)
    assert len(ids) == 4 * len(JobStatus)
    pages: list[int] = []
    while page := run_sync(
        undone, STORE.jobs.list_jobs(most=5, before=pages[-1] if pages else None)
    ):
        pages += [row["id"] for row in page]
    assert pages == ids
    for filters, count in (
        ({"statuses": ["DEAD"]}, 4), ({"statuses": ["DEAD", "QUEUED"]}, 8), ({"kind": "k1"}, 14), ({"queue": "q0"}, 14),
        ({"tenant": "t1"}, 14), ({"tag": "x3"}, 7), ({"tag": "all", "statuses": ["DONE"], "kind": "k0"}, 2), ({"kind": "no"}, 0),
    ):  # fmt: skip
        assert len(run_sync(undone, STORE.jobs.list_jobs(most=500, **filters))) == count, filters
