"""The bound of start-time fair queuing, for any arrivals, weights, durations and estimates; and that it bites."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample
from tests.engine.slots import (
    Banking,
    Burst,
    Fair,
    Fifo,
    Reserving,
    Scheduler,
    Slots,
    Turns,
    widest_gaps,
)

#: Floating point.
TINY = 1e-6

seconds = st.floats(0.01, 10.0)
weights = st.sampled_from([0.25, 0.5, 1.0, 3.0, 10.0])
times = st.floats(0.0, 60.0)


@st.composite
def bursts(draw: st.DrawFn, *, exact: bool) -> list[Burst]:
    """What three tenants queue, each burst with a weight of its own; `exact`: jobs take what is expected."""
    return [
        Burst(
            draw(times), draw(st.sampled_from("abc")), draw(st.integers(1, 30)), took := draw(seconds),
            took if exact else draw(seconds), draw(weights),
        )
        for _ in range(draw(st.integers(2, 12)))
    ]  # fmt: skip


def largest(work: list[Burst]) -> dict[str, float]:
    """Tenant -> what one of its jobs may be charged at most, in seconds by weight."""
    found: dict[str, float] = defaultdict(float)
    for burst in work:
        cost = max(burst.seconds, burst.estimate) / burst.weight
        found[burst.tenant] = max(found[burst.tenant], cost)
    return found


def breaks_the_theorem(scheduler: Scheduler, count: int, work: list[Burst]) -> bool:
    """Whether two tenants that wait ever differ by more than theorem 1 of SFQ allows.

    Goyal, Vin and Cheng 1996: in any interval in which flows f and m are backlogged, |W_f/r_f - W_m/r_m| is at most
    l_f/r_f + l_m/r_m, with l the largest packet and r the weight. The proof needs only that the next packet is the one
    with the smallest start tag, not that there is one server; so it holds for any number of slots where a job's work counts
    when it starts, each slot is asked for apart, and estimates are right. A weight per packet (section 2.3 there)
    makes l/r the largest cost divided by its own weight.
    """
    most = largest(work)
    gaps = widest_gaps(Slots(scheduler, count, one_by_one=True).run(work))
    return any(gap > most[f] + most[m] + TINY for (f, m), gap in gaps.items())


def breaks_the_wide_bound(scheduler: Scheduler, count: int, work: list[Burst]) -> bool:
    """The same where slots are filled several at a time, and estimates are corrected when jobs end.

    Let n be the slots and c the largest charge there is: of a job's estimate and its cost, the larger, by weight. Look at
    the last plan that named f. Where it named m as well, for j jobs before f's last one, f's tag was at most j*c above m's,
    since what a plan foresees is an average of charges. Since then f's tag has risen by what the plan started and by
    corrections of its other jobs, at most c for each of f's running jobs; m's has fallen, if at all, by at most c for each
    of its running jobs that the plan did not start. At most n jobs run, so f's tag is at most n*c above m's, and the other
    way round. Who comes back does so at a tag that others wait at or were served at, to which the same applies.

    So in an interval the difference of tags changes by at most 2*n*c. Work differs from tags by the corrections that are
    still to come at its end (n jobs), and by those of jobs that were started before it began (n jobs): 4*n*c in all.
    """
    gaps = widest_gaps(Slots(scheduler, count).run(work))
    return max(gaps.values(), default=0.0) > 4 * count * max(largest(work).values()) + TINY


def wastes_slots(scheduler: Scheduler, count: int, work: list[Burst]) -> bool:
    """Whether a slot stayed idle although a job waited, or a job was never started."""
    slots = Slots(scheduler, count)
    moments = slots.run(work)
    return slots.wasted > 0 or bool(moments[-1].waiting)


Flaw = Callable[[Scheduler, int, list[Burst]], bool]


@settings(derandomize=True, max_examples=150)
@given(bursts(exact=True), st.integers(1, 5))
def test_tenants_that_wait_differ_by_no_more_than_theorem_1(work: list[Burst], count: int) -> None:
    assert not breaks_the_theorem(Fair(), count, work)


@settings(derandomize=True, max_examples=150)
@given(bursts(exact=False), st.integers(1, 5))
def test_wrong_estimates_widen_the_bound_by_the_slots_and_no_more(
    work: list[Burst], count: int
) -> None:
    assert not breaks_the_wide_bound(Fair(), count, work)


@settings(derandomize=True, max_examples=100)
@given(bursts(exact=False), st.integers(1, 5))
def test_no_slot_is_idle_while_a_job_could_start(work: list[Burst], count: int) -> None:
    assert not wastes_slots(Fair(), count, work)


@pytest.mark.parametrize(
    ("scheduler", "flaw"),
    [
        (Fifo, breaks_the_theorem), (Fifo, breaks_the_wide_bound),
        (Turns, breaks_the_theorem), (Turns, breaks_the_wide_bound),
        (Banking, breaks_the_theorem), (Banking, breaks_the_wide_bound),
        (Reserving, wastes_slots),
    ],
)  # fmt: skip
def test_schedulers_that_are_not_fair_are_caught(
    scheduler: Callable[[], Scheduler], flaw: Flaw
) -> None:
    exact = flaw is breaks_the_theorem
    assert _caught(scheduler, flaw, exact=exact), "no counterexample: the property proves nothing"


@pytest.mark.parametrize("flaw", [breaks_the_theorem, breaks_the_wide_bound, wastes_slots])
def test_the_same_search_finds_nothing_against_the_clock(flaw: Flaw) -> None:
    assert not _caught(Fair, flaw, exact=flaw is breaks_the_theorem, examples=300)


def _caught(
    scheduler: Callable[[], Scheduler], flaw: Flaw, *, exact: bool, examples: int = 3000
) -> bool:
    search = settings(
        derandomize=True, max_examples=examples, database=None, phases=[Phase.generate]
    )
    try:
        find(
            st.tuples(st.integers(1, 5), bursts(exact=exact)),
            lambda case: flaw(scheduler(), *case),
            settings=search,
        )
    except NoSuchExample:
        return False
    return True


@pytest.mark.parametrize("count", [1, 3, 8])
def test_errors_of_estimates_do_not_add_up(count: int) -> None:
    """Of one tenant's jobs all take 0.5 s, of the other's half take 1 s and half next to nothing: 0.5 s is expected."""
    dice = random.Random(count)
    work = [Burst(0.0, "even", 1, 0.5, 0.5) for _ in range(2000)]
    work += [Burst(0.0, "uneven", 1, dice.choice([0.01, 0.99]), 0.5) for _ in range(2000)]
    assert not breaks_the_wide_bound(Fair(), count, work)
