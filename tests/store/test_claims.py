"""Claims: each job once, in order, never more than asked for, never nothing where something is due."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from psycopg import sql
from tests.store.support import (
    LANE,
    LEASE,
    OTHER_LEASE,
    SETTINGS,
    STORE,
    Rivals,
    Server,
    claim,
    engine,
    image,
    job,
    new_database,
    one,
    put,
)

from jobq.db import Conn
from jobq.model import Claim, ClaimedJob, Lane
from jobq.store import BEGINNING, END_OF_TIME, Call, Share, Span, run_sync
from jobq.store.calls import Row

LOCK = b"FOR NO KEY UPDATE SKIP LOCKED"


def _queue(conn: Conn, count: int, *, tenant: str = "default", priority: int = 0) -> None:
    conn.execute(
        "INSERT INTO jobq.job (kind, tenant, priority, run_at) SELECT 'test', %s, %s, now() - %s * interval '1 ms' + g"
        " * interval '1 ms' FROM generate_series(1, %s) g",
        (tenant, priority, count, count),
    )


# --- each job once --------------------------------------------------------------------------------


def _race(url: str, statement: bytes, claimers: int = 8) -> Counter[int]:
    """How often each job was given to one of eight claimers, ten a claim, until there is none left."""
    barrier = Barrier(claimers)

    def work(number: int) -> list[int]:
        taken: list[int] = []
        with engine(url) as conn:
            barrier.wait()
            while True:
                call: Call[list[ClaimedJob]] = claim(number * 1000 + len(taken), 10)
                jobs = run_sync(conn, Call(call.name, statement, call.params, call.read))
                if not jobs:
                    return taken
                taken += [found.id for found in jobs]

    with ThreadPoolExecutor(claimers) as threads:
        return Counter(id_ for taken in threads.map(work, range(claimers)) for id_ in taken)


def test_eight_claimers_get_each_of_2000_jobs_exactly_once(database_url: str, conn: Conn) -> None:
    _queue(conn, 2000)
    times = _race(database_url, STORE.statements["claim"])
    assert len(times) == 2000
    assert set(times.values()) == {1}
    assert (
        one(conn, "SELECT count(*) FROM jobq.job WHERE status = 'RUNNING' AND attempts = 1")[0]
        == 2000
    )


def test_without_its_lock_the_same_race_hands_jobs_out_twice(database_url: str, conn: Conn) -> None:
    _queue(conn, 2000)
    statement = STORE.statements["claim"]
    assert LOCK in statement
    assert max(_race(database_url, statement.replace(LOCK, b"")).values()) > 1


# --- B81: under each planner setting -----------------------------------------------------------------

PLANNERS: list[dict[str, str]] = [
    {},
    {"enable_hashjoin": "off", "enable_mergejoin": "off", "enable_material": "off"},
    {"enable_nestloop": "on", "enable_hashjoin": "off"},
    {
        "enable_seqscan": "on",
        "enable_bitmapscan": "on",
        "enable_mergejoin": "on",
        "enable_nestloop": "on",
    },
    {"enable_indexscan": "off", "enable_seqscan": "on"},
    {"enable_indexscan": "off", "enable_bitmapscan": "on"},
    {"enable_sort": "off", "enable_memoize": "off"},
    {"plan_cache_mode": "force_generic_plan"},
    {"plan_cache_mode": "force_custom_plan"},
]


@pytest.fixture(scope="module")
def stale_url(server: Server, template: str) -> Iterator[str]:
    """Ten rows that were counted, then thousands more."""
    with new_database(server, template) as url:
        with engine(url) as conn:
            conn.execute("ALTER TABLE jobq.job SET (autovacuum_enabled = false)")
            _queue(conn, 10)
            conn.execute("ANALYZE jobq.job")
            _queue(conn, 10_000)
        yield url


@pytest.mark.case("B81")
@pytest.mark.parametrize("planner", PLANNERS, ids=lambda planner: "-".join(planner) or "ours")
def test_a_claim_of_one_gives_one_while_due_jobs_are_there(
    stale_url: str, planner: dict[str, str]
) -> None:
    barrier = Barrier(8)

    def work(number: int) -> list[int]:
        with engine(stale_url, **planner) as conn:
            barrier.wait()
            taken = [[found.id for found in run_sync(conn, claim(number, 1))] for _ in range(12)]
            assert [len(ids) for ids in taken] == [1] * 12
            return [ids[0] for ids in taken]

    with ThreadPoolExecutor(8) as threads:
        ids = [id_ for taken in threads.map(work, range(8)) for id_ in taken]
    assert len(set(ids)) == 8 * 12


@pytest.mark.case("B81")
@pytest.mark.parametrize("planner", PLANNERS, ids=lambda planner: "-".join(planner) or "ours")
def test_a_claim_comes_in_order_and_takes_the_first(
    stale_url: str, planner: dict[str, str]
) -> None:
    lanes = [Lane("default", "ordered", priority) for priority in (5, 0, -5)]
    with engine(stale_url, **planner) as conn, conn.transaction(force_rollback=True):
        for lane in reversed(lanes):
            _queue(conn, 10, tenant=lane.tenant, priority=lane.priority)
        expected = conn.execute(
            "SELECT id FROM jobq.job WHERE tenant = 'ordered' ORDER BY priority DESC, run_at, id"
        ).fetchall()
        share = Share(15, [Span(lane) for lane in lanes])
        jobs = run_sync(conn, STORE.runs.claim(LEASE, 100, [share], SETTINGS)).jobs
    assert [found.id for found in jobs] == [id_ for (id_,) in expected[:15]]


# --- limits and order -------------------------------------------------------------------------------


def _taken(jobs: list[ClaimedJob]) -> Counter[tuple[str, int]]:
    return Counter((found.tenant, found.priority) for found in jobs)


def _share(most: int, tenant: str, *priorities: int) -> Share:
    return Share(most, [Span(Lane("default", tenant, priority)) for priority in priorities])


def test_the_lanes_of_a_tenant_share_one_limit_higher_priority_first(undone: Conn) -> None:
    for priority in (5, 0, -5):
        _queue(undone, 3, tenant="a", priority=priority)
    jobs = run_sync(undone, STORE.runs.claim(LEASE, 100, [_share(5, "a", 5, 0, -5)], SETTINGS)).jobs
    assert _taken(jobs) == {("a", 5): 3, ("a", 0): 2}


def test_shares_are_served_in_order_until_no_slot_is_free(undone: Conn) -> None:
    for tenant in "abc":
        _queue(undone, 10, tenant=tenant)
    shares = [_share(4, "b", 0), _share(4, "a", 0), _share(4, "c", 0)]
    jobs = run_sync(undone, STORE.runs.claim(LEASE, 7, shares, SETTINGS)).jobs
    assert _taken(jobs) == {("b", 0): 4, ("a", 0): 3}


def test_a_share_that_finds_nothing_leaves_its_slots_to_the_others(undone: Conn) -> None:
    _queue(undone, 10, tenant="b")
    jobs = run_sync(
        undone, STORE.runs.claim(LEASE, 6, [_share(5, "a", 0), _share(5, "b", 0)], SETTINGS)
    ).jobs
    assert _taken(jobs) == {("b", 0): 5}


@pytest.mark.parametrize("free", [0, 1, 3])
def test_never_more_than_the_free_slots(undone: Conn, free: int) -> None:
    _queue(undone, 10)
    assert len(run_sync(undone, claim(LEASE, free, most=50))) == free


def test_jobs_that_a_rival_holds_do_not_count_against_the_limit(rivals: Rivals) -> None:
    first, second = rivals.session(), rivals.session()
    _queue(first, 5)
    with first.transaction():
        held = run_sync(first, claim(LEASE, 3))
        got = run_sync(second, claim(OTHER_LEASE, 3))
    assert len(held) == 3
    assert len(got) == 2


# --- floors -------------------------------------------------------------------------------------------


def test_a_floor_leaves_out_what_lies_before_it_and_nothing_else(undone: Conn) -> None:
    _queue(undone, 3)
    rows = undone.execute("SELECT run_at, id FROM jobq.job ORDER BY run_at, id").fetchall()
    same = put(undone, "QUEUED", run_at=rows[1][0])  # at the floor's very moment, with a higher id
    jobs = run_sync(undone, claim(LEASE, spans=[Span(LANE, *rows[1])]))
    assert [found.id for found in jobs] == [same, rows[2][1]]


def test_a_span_ends_with_its_last_moment(undone: Conn) -> None:
    _queue(undone, 4)
    rows = undone.execute("SELECT run_at, id FROM jobq.job ORDER BY run_at, id").fetchall()
    jobs = run_sync(undone, claim(LEASE, spans=[Span(LANE, rows[1][0], 0, rows[2][0])]))
    assert [found.id for found in jobs] == [rows[1][1], rows[2][1]]


def test_the_widest_span_holds_every_due_time_a_row_can_have(undone: Conn) -> None:
    for at in ("1970-01-01 00:00:01Z", "9998-12-31 23:59:59Z"):
        put(undone, "QUEUED", run_at=at)
    assert len(run_sync(undone, claim(LEASE))) == 1, "the later one is not due"
    assert one(undone, "SELECT min(run_at) FROM jobq.job")[0] > BEGINNING
    assert one(undone, "SELECT max(run_at) FROM jobq.job")[0] < END_OF_TIME


def test_spans_that_overlap_give_a_job_once(undone: Conn) -> None:
    _queue(undone, 3)
    jobs = run_sync(undone, claim(LEASE, spans=[Span(LANE), Span(LANE)]))
    assert len(jobs) == len({found.id for found in jobs}) == 3


# --- what a claim stamps -------------------------------------------------------------------------------


def test_a_claim_stamps_lease_deadline_and_attempt_and_fills_in_the_defaults(undone: Conn) -> None:
    bare = put(undone, "QUEUED", max_attempts=None, timeout=None, progress=sql.SQL("'0.5'"))
    own = put(undone, "QUEUED", max_attempts=2, timeout=30.0, attempts=1)
    found = {each.id: each for each in run_sync(undone, claim(LEASE))}
    assert (found[bare].attempt, found[bare].max_attempts, found[bare].timeout) == (1, 5, 300.0)
    assert (found[own].attempt, found[own].max_attempts, found[own].timeout) == (2, 2, 30.0)
    assert found[own].claim == Claim(own, LEASE)
    assert found[own].waited == pytest.approx(60, abs=5)
    rows = undone.execute(
        "SELECT id, extract(epoch FROM lease_until - now())::float, extract(epoch FROM deadline - now())::float,"
        " worker, progress FROM jobq.job ORDER BY id"
    ).fetchall()
    assert rows == [(bare, 60.0, 310.0, "w1", None), (own, 60.0, 40.0, "w1", None)]


@pytest.mark.case("B94")
def test_a_reclaimed_job_keeps_its_place_before_younger_ones(undone: Conn) -> None:
    _queue(undone, 3, priority=0)
    old = put(
        undone, "RUNNING",
        run_at=sql.SQL("now() - interval '1 hour'"), lease_until=sql.SQL("now() - interval '1 second'"),
    )  # fmt: skip
    before = job(undone, old)["run_at"]
    run_sync(undone, STORE.upkeep.reclaim(BEGINNING, 10, 0))
    assert job(undone, old)["run_at"] == before
    assert [found.id for found in run_sync(undone, claim(LEASE, 1))] == [old]


def test_what_a_claim_took_whose_answer_was_lost_is_found_by_its_lease(undone: Conn) -> None:
    _queue(undone, 5)
    taken = {found.claim for found in run_sync(undone, claim(LEASE, 3))}
    run_sync(undone, claim(OTHER_LEASE, 1))
    assert set(run_sync(undone, STORE.runs.claims_of_lease(LEASE))) == taken


def test_names_that_look_like_null_reach_their_lane(undone: Conn) -> None:
    lane = Lane("NULL", "null", 7)
    id_ = put(undone, "QUEUED", queue=lane.queue, tenant=lane.tenant, priority=lane.priority)
    before = image(undone)
    assert run_sync(undone, claim(LEASE, spans=[Span(Lane("null", "NULL", 7))])) == []
    assert image(undone) == before
    (found,) = run_sync(undone, claim(LEASE, spans=[Span(lane)]))
    assert (found.id, found.lane) == (id_, lane)


def test_a_claim_reads_its_own_columns(undone: Conn) -> None:
    put(
        undone,
        "QUEUED",
        tags=["a"],
        meta=sql.SQL("'{\"x\": 1}'"),
        payload=sql.SQL("'{\"n\": 1.50}'"),
    )
    (found,) = run_sync(undone, claim(LEASE))
    rows: list[Row] = undone.execute("SELECT payload::text FROM jobq.job").fetchall()
    values: Any = (found.tags, found.meta, found.payload)
    assert values == (["a"], {"x": 1}, rows[0][0])
