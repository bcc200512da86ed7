"""The virtual clock: equal shares by worker time, nothing banked, quiet tenants first."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobq.engine.fair import MIN_COST, Charge, Clock, CostEstimates


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


@given(st.lists(st.floats(0.01, 5.0), min_size=2, max_size=6), st.integers(1, 8))
def test_backlogged_tenants_differ_by_no_more_than_the_bound_of_start_time_fair_queuing(
    durations: list[float], slots: int
) -> None:
    """|W_f - W_g| <= l_f + l_g for one server (SFQ, theorem 1); each slot may have one job of each under way."""
    named = {f"t{index}": duration for index, duration in enumerate(durations)}
    longest = max(durations)
    service = serve(Clock(), named, slots, until=60 * longest)
    for a, of_a in named.items():
        for b, of_b in named.items():
            assert abs(service[a] - service[b]) <= (slots + 1) * (of_a + of_b) + 2 * longest
