"""The virtual clock: equal shares by worker time, nothing banked, quiet tenants first (bounds: test_fair_bounds.py)."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobq.engine.fair import MIN_COST, MOST_STRETCHES, Charge, Clock, CostEstimates


def serve(clock: Clock, durations: dict[str, float], slots: int, until: float) -> dict[str, float]:
    """Run backlogged tenants on some slots; returns the worker seconds each got of jobs that ended."""
    service: dict[str, float] = dict.fromkeys(durations, 0.0)
    estimates = CostEstimates()
    for name in durations:
        clock.set_ready(name, True)
    now, ticket = 0.0, 0
    running: list[tuple[float, int, str, Charge]] = []
    while now < until:
        for name, amount in clock.plan(slots - len(running), 100):
            for _ in range(amount):
                charge = clock.start(name, estimates.of(name))
                ticket += 1
                heapq.heappush(running, (now + durations[name], ticket, name, charge))
        now, _, name, charge = heapq.heappop(running)
        clock.end(charge, durations[name])
        estimates.learn(name, durations[name])
        service[name] += durations[name]
    return service


def test_two_backlogged_tenants_take_turns() -> None:
    clock = Clock()
    for name in "ab":
        clock.set_ready(name, True)
    order = []
    for _ in range(6):
        ((name, _),) = clock.plan(1, 100)
        clock.start(name, MIN_COST)
        order.append(name)
    assert order in (list("ababab"), list("bababa"))


def test_a_plan_gives_every_tenant_its_share_of_the_free_slots() -> None:
    clock = Clock()
    for name in "abcd":
        clock.set_ready(name, True)
    assert dict(clock.plan(8, 100)) == dict.fromkeys("abcd", 2)
    clock.set_ready("b", False)
    clock.set_ready("c", False)
    clock.set_ready("d", False)
    assert clock.plan(8, 100) == [("a", 8)]


def test_an_idle_tenant_banks_nothing() -> None:
    clock = Clock()
    clock.set_ready("busy", True)
    for _ in range(1000):
        clock.end(clock.start("busy", 1.0), 1.0)
    clock.set_ready("idle", True)
    assert dict(clock.plan(10, 100)) in ({"idle": 5, "busy": 5}, {"idle": 6, "busy": 4})


def test_a_tenant_with_long_jobs_gets_the_same_worker_time_as_one_with_short_ones() -> None:
    service = serve(Clock(), {"long": 1.0, "short": 0.05}, slots=4, until=400)
    assert abs(service["long"] - service["short"]) <= 0.05 * service["short"] + 8


def test_weights_may_differ_from_job_to_job() -> None:
    clock = Clock()
    for name in "ab":
        clock.set_ready(name, True)
    clock.start("a", 6.0, weight=3.0)
    clock.start("b", 1.0)
    clock.start("a", 1.0, weight=0.5)
    assert (clock.tenant("a").finish, clock.tenant("b").finish) == (4.0, 1.0)


def test_a_job_is_corrected_by_the_weight_it_was_started_with() -> None:
    clock = Clock()
    clock.set_ready("a", True)
    first, second = clock.start("a", 1.0, weight=4.0), clock.start("a", 1.0, weight=0.5)
    clock.end(first, 9.0)
    assert clock.tenant("a").finish == pytest.approx(9 / 4 + 1 / 0.5)
    clock.end(second, 0.25)
    assert clock.tenant("a").finish == pytest.approx(9 / 4 + 0.25 / 0.5)


def turns(clock: Clock, jobs: int, cost: float = 1.0) -> list[str]:
    """Whose jobs start in a single slot, one after the other; each takes its estimate."""
    order = []
    for _ in range(jobs):
        ((name, _),) = clock.plan(1, 100)
        clock.end(clock.start(name, cost), cost)
        order.append(name)
    return order


def test_a_tenant_gets_back_what_was_estimated_too_high() -> None:
    """Also when others were charged as much in the meantime, so that the virtual time has passed its finish tag."""
    clock = Clock()
    for name in "ab":
        clock.set_ready(name, True)
    charges = [(clock.start("a", 10.0), clock.start("b", 10.0)) for _ in range(4)]
    for of_a, _ in charges:
        clock.end(of_a, MIN_COST)
    assert turns(clock, 40) == ["a"] * 40, "b was charged 40 s, and a nothing"


def test_the_order_of_starts_within_a_claim_makes_no_difference() -> None:
    clock = Clock()
    for name in "ab":
        clock.set_ready(name, True)
    for name in "aaaabbbb":
        clock.start(name, 10.0 if name == "a" else 1.0)
    assert turns(clock, 36) == ["b"] * 36, "a was charged 40 s, b 4"


def test_a_job_started_out_of_turn_by_an_express_slot_does_not_set_back_newcomers() -> None:
    clock = Clock()
    for name in ("flood", "owing"):
        clock.set_ready(name, True)
    clock.end(clock.start("owing", MIN_COST), 1000.0)
    clock.start("flood", 1.0)
    assert clock.plan_express(1) == [("owing", 1)]
    clock.start("owing", 1.0)
    clock.set_ready("new", True)
    assert turns(clock, 4).count("new") == 2, "it comes at the present, not at the tag of who owes"


def test_a_tenant_whose_queue_drains_while_its_jobs_run_still_owes_them() -> None:
    clock = Clock()
    for name in "ab":
        clock.set_ready(name, True)
    long = clock.start("a", MIN_COST)
    clock.set_ready("a", False)
    assert turns(clock, 3) == ["b"] * 3
    clock.set_ready("a", True)
    clock.end(long, 100.0)
    assert turns(clock, 96) == ["b"] * 96


def test_what_others_had_while_a_long_job_ran_on_is_not_owed_twice() -> None:
    clock = Clock()
    for name in "ab":
        clock.set_ready(name, True)
    long = clock.start("a", MIN_COST)
    clock.set_ready("a", False)
    assert turns(clock, 60) == ["b"] * 60
    clock.set_ready("a", True)
    clock.end(long, 100.0)
    assert turns(clock, 45).count("b") in (42, 43), "60 of 100 s lie behind; then they take turns"


def test_an_estimate_that_was_too_high_is_no_credit_for_an_absence() -> None:
    clock = Clock()
    for name in "ab":
        clock.set_ready(name, True)
    short = clock.start("a", 50.0)
    clock.set_ready("a", False)
    turns(clock, 40)
    clock.set_ready("a", True)
    clock.end(short, MIN_COST)
    assert 4 <= turns(clock, 10).count("a") <= 6


def test_what_a_tenant_took_while_nobody_else_wanted_it_is_not_owed() -> None:
    """At the end of a busy period the virtual time becomes the largest finish tag (SFQ, section 2.1)."""
    clock = Clock()
    clock.set_ready("night", True)
    charge = clock.start("night", MIN_COST)
    clock.set_ready("night", False)
    clock.end(charge, 3600.0)
    for name in ("night", "day"):
        clock.set_ready(name, True)
    assert turns(clock, 10).count("day") == 5


@settings(derandomize=True)
@given(
    st.lists(
        st.tuples(st.sampled_from(["come back", "start", "end"]), st.integers(0, 9)), max_size=60
    )
)
def test_forgetting_what_is_over_changes_no_finish_tag(steps: list[tuple[str, int]]) -> None:
    """Against a tenant that keeps every stretch: each time the larger of finish tag and virtual time, plus charges."""
    clock, kept = Clock(), [[0.0, 0.0]]
    tenant = clock.tenant("a")
    running: list[tuple[Charge, list[float]]] = []
    for step, number in steps:
        if step == "come back" and len(tenant.stretches) < MOST_STRETCHES:
            tenant.come_back(float(number))
            kept.append([float(number), 0.0])
        elif step == "start":
            kept[-1][1] += 2.0
            running.append((clock.start("a", 2.0), kept[-1]))
        elif step == "end" and running:
            charge, stretch = running.pop(number % len(running))
            stretch[1] += number + 1.0 - 2.0
            clock.end(charge, number + 1.0)
        tag = 0.0
        for begin, charged in kept:
            tag = max(tag, begin) + charged
        assert tenant.finish == pytest.approx(tag)
        assert len(tenant.stretches) <= len(running) + 1


def test_express_slots_are_for_tenants_with_nothing_running() -> None:
    clock = Clock()
    for name in ("busy", "quiet"):
        clock.set_ready(name, True)
    busy = clock.start("busy", MIN_COST)
    assert clock.plan_express(3) == [("quiet", 1)]
    clock.start("quiet", MIN_COST)
    assert clock.plan_express(3) == []
    clock.end(busy, 5.0)
    assert clock.plan_express(3) == [("busy", 1)]


def test_a_clock_with_nobody_ready_plans_nothing() -> None:
    clock = Clock()
    assert not clock.anyone_ready
    clock.set_ready("a", True)
    assert clock.anyone_ready
    clock.set_ready("a", False)
    assert not clock.anyone_ready
    assert clock.plan(5, 100) == []


def test_idle_tenants_are_forgotten_and_looking_for_them_costs_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("jobq.engine.fair.FORGET_ABOVE", 100)
    looks = 0
    forget = Clock._forget

    def count(self: Clock) -> None:
        nonlocal looks
        looks += 1
        forget(self)

    monkeypatch.setattr(Clock, "_forget", count)
    clock = Clock()
    for number in range(2_000):
        clock.set_ready(f"busy {number}", True)
    assert looks <= 6, "doubled each time: not at every new tenant above the limit"
    for number in range(4_000):
        clock.set_ready(f"idle {number}", False)
    assert len(clock._tenants) < 5_000


def test_estimates_of_made_up_kinds_do_not_pile_up() -> None:
    estimates = CostEstimates()
    for number in range(25_000):
        estimates.learn(f"kind {number}", 1.0)
    assert len(estimates._seconds) <= 10_001


def test_the_heap_stays_small_whatever_starts_and_ends() -> None:
    clock = Clock()
    for name in "abc":
        clock.set_ready(name, True)
    for step in range(20_000):
        clock.end(clock.start("abc"[step % 3], 1.0), 0.5)
    assert len(clock._heap) < 2000
