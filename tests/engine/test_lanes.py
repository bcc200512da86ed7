"""Floors and spans of lanes, without I/O: what a claim scans after what it has heard and taken."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jobq.engine.fair import Clock
from jobq.engine.lanes import LaneTable
from jobq.model import Claim, ClaimedJob, Lane
from jobq.store import Claimed, LaneHead, Span
from jobq.wakeup import LanesReady, LookEverywhere, token

LANE = Lane("default", "acme", 0)
START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def job(number: int, lane: Lane = LANE) -> ClaimedJob:
    """A claimed job due `number` seconds after the start."""
    return ClaimedJob(
        Claim(number, 1),
        "k",
        lane.queue,
        lane.tenant,
        lane.priority,
        "{}",
        1,
        5,
        60.0,
        at(number),
        0.0,
        [],
        {},
    )


def table(*lanes: Lane) -> LaneTable:
    made = LaneTable(Clock(), None)
    made.use_floors = True
    made.discovered([LaneHead(lane, START, 1, True) for lane in lanes or (LANE,)], 1)
    return made


def claim(
    made: LaneTable, jobs: list[ClaimedJob], most: int = 10, tenant: str = "acme"
) -> list[Span]:
    """A claim that found these jobs; returns what it scanned."""
    plan = [(tenant, most)]
    shares = made.shares(plan)
    made.answered(plan, Claimed(jobs, []), most, 0.0)
    made.landed()
    return list(shares[0].spans)


def test_a_claim_starts_where_the_last_one_ended() -> None:
    made = table()
    claim(made, [job(1), job(2), job(3)], most=3)
    assert claim(made, []) == [Span(LANE, at(3), 3)]


def test_without_hints_there_are_no_floors() -> None:
    made = table()
    claim(made, [job(1)], most=1)
    made.use_floors = False
    assert claim(made, []) == [Span(LANE)]


def test_an_announcement_above_the_floor_changes_nothing_but_wakes_the_lane() -> None:
    made = table()
    claim(made, [job(5)])
    assert not made.clock.anyone_ready, "it asked for ten and got one"
    made.hear(LanesReady({token(LANE): (at(6), at(7))}))
    assert made.clock.anyone_ready
    assert claim(made, []) == [Span(LANE, at(5), 5)]


def test_an_announcement_below_the_floor_is_a_span_beside_it_and_the_floor_stays() -> None:
    made = table()
    claim(made, [job(5)])
    made.hear(LanesReady({token(LANE): (at(2), at(9))}))
    assert claim(made, [job(2), job(3)]) == [Span(LANE, at(2))], "it reaches the floor: one span"
    made.hear(LanesReady({token(LANE): (at(8), at(8))}))
    assert claim(made, []) == [Span(LANE, at(5), 5)], "the span was walked to its end"


def test_a_span_that_the_limit_cut_short_is_walked_on_from_there() -> None:
    made = table()
    claim(made, [job(9)])
    made.hear(LanesReady({token(LANE): (at(1), at(6))}))
    claim(made, [job(1), job(2)], most=2)
    assert claim(made, []) == [Span(LANE, at(2), 0, at(6)), Span(LANE, at(9), 9)]


def test_an_announcement_during_a_claim_is_applied_after_its_answer_against_the_raised_floor() -> (
    None
):
    made = table()
    claim(made, [job(1)])
    made.hear(LanesReady({token(LANE): (at(2), at(2))}))
    plan = [("acme", 10)]
    made.shares(plan)
    # Due at 3, above the floor when it is heard, below it when the answer is in.
    made.hear(LanesReady({token(LANE): (at(3), at(3))}))
    made.answered(plan, Claimed([job(2), job(4)], []), 10, 0.0)
    made.landed()
    assert made.clock.anyone_ready
    assert claim(made, [job(3)]) == [Span(LANE, at(3), 0, at(3)), Span(LANE, at(4), 4)]


def test_an_answer_that_is_lost_leaves_the_floor_and_what_was_heard() -> None:
    made = table()
    claim(made, [job(1)])
    made.hear(LanesReady({token(LANE): (at(2), at(2))}))
    made.shares([("acme", 10)])
    made.hear(LanesReady({token(LANE): (at(0), at(0))}))
    made.landed()
    assert claim(made, []) == [Span(LANE, at(0), 0, at(0)), Span(LANE, at(1), 1)]


def test_discovery_finds_what_a_lost_hint_left_below_the_floor() -> None:
    made = table()
    claim(made, [job(9)])
    made.discovered([LaneHead(LANE, at(4), 4, True)], 2)
    assert claim(made, [job(4)]) == [Span(LANE, at(4))]


def test_a_lane_whose_first_job_is_not_due_is_not_ready() -> None:
    made = LaneTable(Clock(), None)
    made.discovered([LaneHead(LANE, at(4), 4, False)], 1)
    assert not made.clock.anyone_ready


def test_spans_that_overlap_become_one() -> None:
    """A row found in two spans of a claim counts twice, and the lane would pass for empty."""
    made = table()
    claim(made, [job(100)])
    for first, last in ((10, 30), (50, 60), (20, 40), (60, 70)):
        made.hear(LanesReady({token(LANE): (at(first), at(last))}))
    assert claim(made, []) == [
        Span(LANE, at(10), 0, at(40)),
        Span(LANE, at(50), 0, at(70)),
        Span(LANE, at(100), 100),
    ]


def test_many_spans_are_merged_into_one_that_covers_them() -> None:
    made = table()
    claim(made, [job(100)])
    for second in (50, 10, 30, 20, 40):
        made.hear(LanesReady({token(LANE): (at(second), at(second + 1))}))
    assert claim(made, []) == [Span(LANE, at(10), 0, at(51)), Span(LANE, at(100), 100)]


def test_lanes_of_a_tenant_go_by_priority_and_those_of_one_priority_take_turns() -> None:
    low, high, other = Lane("a", "acme", -1), Lane("a", "acme", 5), Lane("b", "acme", -1)
    made = table(low, high, other)
    assert [span.lane for span in claim(made, [job(1, high), job(2, low)], most=2)] == [
        high,
        low,
        other,
    ]
    assert [span.lane for span in claim(made, [])] == [other, low], (
        "the high one was walked to its end"
    )


def test_a_claim_that_filled_every_slot_says_nothing_of_tenants_behind_it() -> None:
    first, second, third = (Lane("q", name, 0) for name in ("a", "b", "c"))
    made = table(first, second, third)
    plan = [("a", 2), ("b", 2), ("c", 2)]
    made.shares(plan)
    made.answered(plan, Claimed([job(1, first), job(2, second), job(3, second)], []), 3, 0.0)
    made.landed()
    ready = {name for name in "abc" if made.clock.tenant(name).ready}
    assert ready == {"b", "c"}, "a gave less than asked for, b was cut, c was not reached"


@pytest.mark.parametrize("queues", [None, frozenset({"mail"})], ids=["all", "some"])
def test_an_unknown_lane_or_a_hint_without_lanes_makes_discovery_look(
    queues: frozenset[str] | None,
) -> None:
    made = LaneTable(Clock(), queues)
    for first in (True, False):
        made.must_look = False
        made.hear(LanesReady({token(Lane("new", "lane", 0)): (at(1), at(1))}))
        assert made.must_look is (first or queues is None), (
            "where others serve more queues it may be a lane of theirs: looked for once"
        )
    made.hear(LookEverywhere())
    assert made.must_look


def test_idle_lanes_are_forgotten_and_live_ones_are_not() -> None:
    idle, live = Lane("q", "idle", 0), Lane("q", "live", 0)
    made = table(idle, live)
    claim(made, [], tenant="idle")
    made.forget(before_round=2)
    assert len(made) == 1
    made.discovered([LaneHead(idle, at(1), 1, True)], 3)
    assert claim(made, [], tenant="idle") == [Span(idle)]


def test_a_pool_keeps_to_its_queues() -> None:
    made = LaneTable(Clock(), frozenset({"mail"}))
    made.discovered(
        [
            LaneHead(Lane("mail", "a", 0), START, 1, True),
            LaneHead(Lane("other", "b", 0), START, 2, True),
        ],
        1,
    )
    assert len(made) == 1
