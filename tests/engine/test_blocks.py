"""Who is left alone while a limit blocks them, and when they may try again; without I/O."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from jobq.engine.fair import Clock
from jobq.engine.lanes import MODEST_UP_TO, MOST_TENANTS, LaneTable
from jobq.model import Claim, ClaimedJob, Lane
from jobq.store import Blocked, Claimed, LaneHead
from jobq.wakeup import LanesReady, LimitsChanged, SlotsFreed, scope_token, token

START = datetime(2026, 1, 1, tzinfo=UTC)
ACME, OTHER = Lane("default", "acme", 0), Lane("default", "other", 0)
JOB = ClaimedJob(Claim(1, 1), "k", "default", "acme", 0, "{}", 1, 5, 60.0, START, 0.0, [], {})


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def table(*lanes: Lane) -> LaneTable:
    made = LaneTable(Clock(), None)
    made.use_floors = True
    made.discovered([LaneHead(lane, START, 1, True) for lane in lanes], 1)
    return made


def job(number: int, lane: Lane) -> ClaimedJob:
    return replace(
        JOB,
        claim=Claim(number, 1),
        queue=lane.queue,
        tenant=lane.tenant,
        run_at=at(number),
        priority=lane.priority,
    )


def left(
    number: int, lane: Lane, reason: str, scope: str, retry_in: float | None = None
) -> Blocked:
    return Blocked(number, lane, at(number), reason, scope, False, retry_in)


def held(number: int, lane: Lane) -> Blocked:
    return Blocked(number, lane, at(number), "kind_cap", "kind:k", True, None)


def plan(made: LaneTable, free: int = 10) -> dict[str, int]:
    return dict(made.startable(made.clock.plan(free, MOST_TENANTS)))


def answer(made: LaneTable, jobs: list[ClaimedJob], blocked: list[Blocked], now: float = 0) -> None:
    """A claim that asked for just these jobs, and its answer."""
    met = Counter([*(job.tenant for job in jobs), *(left.lane.tenant for left in blocked)])
    asked = made.startable(list(met.items()))
    made.shares(asked)
    made.answered(asked, Claimed(jobs, blocked), met.total(), now)
    made.landed()


def freed(*scopes: str) -> SlotsFreed:
    return SlotsFreed(frozenset(map(scope_token, scopes)))


def test_a_tenant_at_its_cap_is_left_alone_until_a_slot_is_freed_and_others_go_on() -> None:
    made = table(ACME, OTHER)
    answer(made, [job(1, ACME)], [left(2, ACME, "tenant_cap", "tenant:acme")])
    assert plan(made) == {"other": 10}
    made.hear(freed("tenant:somebody", "queue:default"))
    assert plan(made) == {"other": 10}
    made.hear(freed("tenant:acme"))
    assert set(plan(made)) == {"acme", "other"}


def test_what_was_left_lies_below_the_floor_and_is_claimed_from_again() -> None:
    made = table(ACME)
    answer(made, [job(5, ACME)], [left(2, ACME, "tenant_cap", "tenant:acme")])
    made.hear(freed("tenant:acme"))
    (share,) = made.shares(made.startable(made.clock.plan(10, MOST_TENANTS)))
    assert [span.after_run_at for span in share.spans] == [at(2), at(5)]
    assert share.spans[0].until == at(2)


def test_jobs_that_arrive_do_not_wake_a_blocked_tenant() -> None:
    made = table(ACME)
    answer(made, [], [left(2, ACME, "tenant_cap", "tenant:acme")])
    made.hear(LanesReady({token(ACME): (at(9), at(9))}))
    made.discovered([LaneHead(ACME, at(2), 2, True)], 2)
    assert not made.clock.anyone_ready


def test_a_lost_hint_costs_a_poll_at_most() -> None:
    made = table(ACME)
    answer(made, [], [left(2, ACME, "tenant_cap", "tenant:acme")])
    made.ask_again(1e9)
    assert plan(made) == {}
    made.ask_again(0, polling=True)
    assert set(plan(made)) == {"acme"}


def test_tenants_of_whom_nothing_may_start_sit_out_until_somebody_starts() -> None:
    third = Lane("default", "third", 0)
    made = table(ACME, OTHER, third)
    clock = made.clock
    clock.end(clock.start("third", 10.0), 10.0)
    for lane in (ACME, OTHER):
        assert next(iter(plan(made, free=1))) != "third", "the others are owed more"
        answer(made, [], [held(1, lane)])
    assert plan(made, free=1) == {"third": 1}
    answer(made, [job(3, third)], [])
    assert set(plan(made)) >= {"acme", "other"}


def test_who_sat_out_comes_back_at_the_present_and_sets_no_newcomer_back_in_time() -> None:
    made = table(ACME, OTHER)
    clock = made.clock
    for _ in range(100):
        clock.end(clock.start("other", 1.0), 1.0)
    answer(made, [], [held(1, ACME)])
    assert clock.now == 99.0, "the start tag last served"
    assert made.let_rejoin()
    assert clock.tenant("acme").finish == 99.0


def test_where_all_sit_out_they_are_asked_again() -> None:
    made = table(ACME, OTHER)
    answer(made, [], [held(1, ACME), held(2, OTHER)])
    assert not made.clock.anyone_ready
    assert made.let_rejoin()
    assert set(plan(made)) == {"acme", "other"}
    assert not made.let_rejoin()


def test_a_rate_sleeps_until_its_next_token() -> None:
    made = table(ACME)
    answer(made, [], [left(2, ACME, "tenant_rate", "tenant:acme", retry_in=0.5)], now=100.0)
    assert made.blocks.next_at == 100.5
    made.ask_again(100.4)
    assert plan(made) == {}
    made.ask_again(100.5)
    assert set(plan(made)) == {"acme"}


def test_a_pause_lasts_until_limits_change_whatever_else_is_heard() -> None:
    made = table(ACME)
    answer(made, [], [left(2, ACME, "tenant_paused", "tenant:acme")])
    made.ask_again(1e9, polling=True)
    made.hear(freed("tenant:acme"))
    assert plan(made) == {}
    made.hear(LimitsChanged())
    assert set(plan(made)) == {"acme"}


def test_limits_that_change_while_a_claim_is_in_flight_are_asked_again_after_its_answer() -> None:
    made = table(ACME)
    asked = made.startable(made.clock.plan(10, MOST_TENANTS))
    made.shares(asked)
    made.hear(LimitsChanged())
    made.answered(asked, Claimed([], [left(2, ACME, "tenant_paused", "tenant:acme")]), 10, 0.0)
    made.landed()
    assert set(plan(made)) == {"acme"}


def test_a_blocked_queue_keeps_nobody_from_other_queues() -> None:
    mail, others = Lane("mail", "acme", 0), Lane("mail", "other", 0)
    made = table(mail, ACME, others)
    asked = [("acme", 1), ("other", 1)]
    made.shares(asked)
    blocked = [left(2, mail, "queue_cap", "queue:mail"), left(3, others, "queue_cap", "queue:mail")]
    made.answered(asked, Claimed([], blocked), 2, 0.0)
    made.landed()
    assert set(plan(made)) == {"acme"}
    (share,) = made.shares([("acme", 5)])
    assert {span.lane.queue for span in share.spans} == {"default"}
    made.landed()
    made.hear(freed("queue:mail"))
    assert set(plan(made)) == {"acme", "other"}


def test_of_many_who_wait_for_a_queue_the_first_in_fair_order_try_first_and_all_in_the_end() -> (
    None
):
    lanes = [Lane("mail", f"t{number}", 0) for number in range(3 * MOST_TENANTS)]
    made = table(*lanes)
    for number, lane in enumerate(reversed(lanes)):
        made.clock.tenant(lane.tenant).finish = float(number)
    made.blocks.block("queue:mail", float("inf"))
    assert plan(made, free=1000) == {}
    while made.clock.anyone_ready:
        plan(made, free=1000)
    made.hear(freed("queue:mail"))
    ready = set(plan(made, free=1000))
    assert ready == {lane.tenant for lane in lanes[-MOST_TENANTS:]}
    made.blocks.block("queue:mail", float("inf"))
    made.ask_again(0, polling=True)
    assert all(made.clock.tenant(lane.tenant).ready for lane in lanes)


def test_a_tenant_at_its_limit_is_asked_for_few_jobs_and_for_more_while_they_start() -> None:
    made = table(ACME)
    answer(made, [job(1, ACME)], [left(2, ACME, "tenant_cap", "tenant:acme")])
    made.hear(freed("tenant:acme"))
    asked: list[int] = []
    number = 3
    while not asked or asked[-1] < 1000:
        most = plan(made, free=1000)["acme"]
        asked.append(most)
        made.shares([("acme", most)])
        jobs = [job(number + i, ACME) for i in range(most)]
        made.answered([("acme", most)], Claimed(jobs, []), 1000, 0.0)
        made.landed()
        number += most
    assert asked == [2, 4, 8, 16, 32, 64, 1000]
    assert MODEST_UP_TO == 64
