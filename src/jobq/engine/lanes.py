"""The lanes a slot pool knows, and the floors that keep claims fast (pure, no I/O).

A floor is the last (run_at, id) claimed in a lane: the next claim starts there, so that it never
walks over the dead index entries of jobs long claimed (design.md 22). What keeps it correct: every
transition into QUEUED announces its lane with the span of due times; what lies below the floor
becomes a span scanned beside it; announcements that arrive while a claim is in flight are applied
after its answer, against the raised floor; discovery finds whatever a lost hint left behind.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count

from jobq.engine.blocks import AT_POLL, Blocks
from jobq.engine.fair import Clock
from jobq.model import Lane
from jobq.store import Blocked, Claimed, LaneHead, Share, Span
from jobq.wakeup import LanesReady, LimitsChanged, LookEverywhere, SlotsFreed, token

#: Spans beside a floor; more are merged into one.
MOST_SPANS = 4
#: Tenants named in one claim.
MOST_TENANTS = 100
#: A tenant that was at a limit and now starts this many jobs at once is asked for as many as anybody.
MODEST_UP_TO = 64

Position = tuple[datetime, int]
#: What tells that jobs may start: a message heard, or the lanes themselves where this worker queued them.
Hint = LanesReady | LookEverywhere | SlotsFreed | LimitsChanged | tuple[LaneHead, ...]
#: A job that a claim met: whether it runs now or not, the lane was walked up to it.
Met = tuple[Lane, Position]


def _united(spans: list[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """Spans in order, those that overlap as one.

    A claim does not skip rows that it has locked itself: one found in two spans would count twice, and a lane
    that gave fewer jobs than asked for pass for empty.
    """
    united: list[tuple[datetime, datetime]] = []
    for first, last in sorted(spans):
        if united and first <= united[-1][1]:
            united[-1] = (united[-1][0], max(united[-1][1], last))
        else:
            united.append((first, last))
    return united


@dataclass(slots=True)
class LaneState:
    """What is known of one lane."""

    lane: Lane
    floor: Position | None = None
    #: Spans of due times below the floor that may hold jobs, in order.
    below: list[tuple[datetime, datetime]] = field(default_factory=list)
    #: Whether it may hold jobs at all.
    ready: bool = False
    #: When it was last claimed from: lanes of one priority take turns.
    turn: int = 0
    #: Discovery round in which it was last of use.
    seen: int = 0
    #: Jobs of kinds that claims leave out were walked over: a head below the floor may be one of those, which is no news.
    walked: bool = False

    def announce(self, first: datetime, last: datetime) -> None:
        """Jobs due between first and last were queued."""
        self.ready = True
        if self.floor is None or first > self.floor[0]:
            return
        self.below = _united([*self.below, (first, min(last, self.floor[0]))])
        if len(self.below) > MOST_SPANS:
            self.below = [(self.below[0][0], self.below[-1][1])]

    def spans(self, *, use_floor: bool) -> list[Span]:
        """What to claim from, oldest first."""
        if self.floor is None or not use_floor:
            return [Span(self.lane)]
        older = [Span(self.lane, first, 0, last) for first, last in self.below]
        if older and older[-1].until >= self.floor[0]:
            return [*older[:-1], Span(self.lane, older[-1].after_run_at)]
        return [*older, Span(self.lane, *self.floor)]

    def taken(self, last: Position, *, exhausted: bool) -> None:
        """A claim took jobs up to `last`; `exhausted`: and found no further one."""
        if exhausted or self.floor is None or last > self.floor:
            self.below.clear()
        else:
            self.below = [(max(a, last[0]), b) for a, b in self.below if b >= last[0]]
        if self.floor is None or last > self.floor:
            self.floor = last
        if exhausted:
            self.ready = False

    def empty(self) -> None:
        """A claim found nothing."""
        self.below.clear()
        self.ready = False

    def walked_over(self, until: datetime, *, to_the_end: bool) -> None:
        """A claim left kinds out; `to_the_end`: and walked over all that was due by `until`."""
        self.walked = True
        if to_the_end and (self.floor is None or (until, 0) > self.floor):
            self.floor = (until, 0)


class LaneTable:
    """All lanes of one slot pool, by tenant; keeps the pool's clock told who has jobs.

    Args:
        clock: the pool's virtual clock.
        queues: queues the pool serves; None for all.
    """

    def __init__(self, clock: Clock, queues: frozenset[str] | None) -> None:
        self.clock = clock
        self.queues = queues
        self._by_token: dict[str, LaneState] = {}
        self._by_tenant: dict[str, dict[Lane, LaneState]] = {}
        self._deferred: list[Hint] = []
        self.blocks = Blocks()
        #: Queue that is blocked -> tenants who have jobs there and nowhere else.
        self._parked: dict[str, set[str]] = defaultdict(set)
        #: Tenant at a limit of its own -> jobs to ask for at once: claiming many to start few is a waste.
        self._modest: dict[str, int] = {}
        #: Tenants of whom a claim met only jobs that may not start: they sit out until somebody's start. They are charged
        #: nothing for that, so they would be asked first again, as long as they have such jobs, and slots stay empty.
        self._barren: set[str] = set()
        self._in_flight = False
        self._turn = count(1)
        self._strange: set[str] = set()
        #: Set when a hint named a lane that is not known: discovery must look.
        self.must_look = True
        self.use_floors = False

    def serves(self, queue: str) -> bool:
        """Whether this pool runs jobs of a queue."""
        return self.queues is None or queue in self.queues

    def hear(self, message: Hint) -> None:
        """A wake-up hint, or heads of lanes that this worker queued jobs in itself.

        While a claim is in flight it waits for the answer.
        """
        if self._in_flight:
            self._deferred.append(message)
        elif isinstance(message, tuple):
            self.discovered(message, 0)
        elif isinstance(message, LookEverywhere):
            self.must_look = True
        elif isinstance(message, SlotsFreed):
            self._lifted(self.blocks.freed(message.tokens), MOST_TENANTS)
        elif isinstance(message, LimitsChanged):
            self._lifted(self.blocks.changed())
        else:
            for name, (first, last) in message.spans.items():
                self._announce(name, first, last)

    def discovered(self, heads: Iterable[LaneHead], round_: int) -> None:
        """Lanes that discovery found jobs in, each with its first one."""
        for head in heads:
            if not head.due or not self.serves(head.lane.queue):
                continue
            state = self._state(head.lane)
            state.seen = max(state.seen, round_)
            if state.floor is None or state.walked or (head.run_at, head.id) > state.floor:
                state.ready = True
            else:
                state.announce(head.run_at, state.floor[0])
            self._refresh(head.lane.tenant)

    def ask_again(self, now: float, *, polling: bool = False) -> None:
        """Whom a limit kept from starting jobs may try again: where it is time to, or at a poll all but the paused."""
        self._lifted(self.blocks.poll() if polling else self.blocks.due(now))

    def let_rejoin(self) -> bool:
        """Those who sit out take part again, from the present on; whether there are any."""
        barren, self._barren = self._barren, set()
        for tenant in barren:
            self._refresh(tenant)
        return bool(barren)

    def startable(self, plan: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """A plan of the clock without those whose lanes are all blocked by now, and modest where a limit is near."""
        if self.blocks:
            for tenant, _ in plan:
                self._refresh(tenant)
            plan = [item for item in plan if self.clock.tenant(item[0]).ready]
        return [(tenant, min(most, self._modest.get(tenant, most))) for tenant, most in plan]

    def _lifted(self, scopes: Iterable[str], most: int | None = None) -> None:
        for scope in scopes:
            which, _, name = scope.partition(":")
            if which == "tenant":
                self._refresh(name)
            else:
                self._unpark(name, most)

    def _unpark(self, queue: str, most: int | None = None) -> None:
        """Tenants who waited for a queue may claim from it: all, or the first in fair order."""
        parked = self._parked.pop(queue, set())
        if most is not None and len(parked) > most:
            first = heapq.nsmallest(most, parked, key=lambda name: self.clock.tenant(name).finish)
            self._parked[queue] = parked.difference(first)
            parked = set(first)
        for tenant in parked:
            self._refresh(tenant)

    def forget(self, before_round: int) -> None:
        """Drop idle lanes that discovery has not met since a round, and what hints named in vain."""
        self._strange.clear()
        for tenant, lanes in list(self._by_tenant.items()):
            for lane, state in list(lanes.items()):
                if not state.ready and state.seen < before_round:
                    del lanes[lane]
                    self._by_token.pop(token(lane), None)
            if not lanes:
                del self._by_tenant[tenant]
                self._modest.pop(tenant, None)

    def look_from_bottom(self) -> None:
        """Distrust all floors once: hints may have been lost."""
        for lanes in self._by_tenant.values():
            for state in lanes.values():
                state.floor, state.walked = None, False
                state.below.clear()
        self.must_look = True

    def meet_again(self) -> None:
        """No kind is left out any more: what was walked over counts again."""
        for lanes in self._by_tenant.values():
            for state in lanes.values():
                state.walked = False

    def shares(self, plan: Sequence[tuple[str, int]]) -> list[Share]:
        """What to claim for a plan of the clock; a claim is in flight from now on."""
        self._in_flight = True
        return [Share(most, self._spans(tenant)) for tenant, most in plan]

    def answered(
        self, plan: Sequence[tuple[str, int]], claimed: Claimed, free: int, now: float
    ) -> None:
        """The claim's answer: raise floors, note who has no more and who may not. `landed` follows.

        Args:
            plan: what was asked for.
            claimed: what came.
            free: jobs that were asked for at most.
            now: monotonic time.
        """
        by_tenant: dict[str, list[Met]] = {}
        for job in claimed.jobs:
            by_tenant.setdefault(job.tenant, []).append((job.lane, (job.run_at, job.id)))
        for left in claimed.blocked:
            by_tenant.setdefault(left.lane.tenant, []).append((left.lane, (left.run_at, left.id)))
        found = len(claimed.jobs) + len(claimed.blocked)
        last_served = max(
            (i for i, (tenant, _) in enumerate(plan) if tenant in by_tenant), default=-1
        )
        for index, (tenant, most) in enumerate(plan):
            taken = by_tenant.get(tenant, [])
            cut = found >= free and index >= last_served
            if taken or not cut:
                exhausted = len(taken) < most and not cut
                self._settle(tenant, taken, exhausted=exhausted, walked=claimed.walked)
        self._keep_off(claimed.blocked, now)
        if claimed.jobs:
            self.let_rejoin()
        started = Counter(job.tenant for job in claimed.jobs)
        # (A limit of the tenant's own, or of its queue, is what `blocks` is for.)
        met = {left.lane.tenant for left in claimed.blocked if not left.whole_lane}
        self._barren.update(met.difference(started))
        for tenant, _ in plan:
            self._adapt(tenant, started[tenant])
            self._refresh(tenant)
        for queue in list(self._parked):
            if f"queue:{queue}" not in self.blocks:
                self._unpark(queue, MOST_TENANTS)

    def landed(self) -> None:
        """No claim is in flight any more: apply what was heard meanwhile, against the raised floors."""
        self._in_flight = False
        deferred, self._deferred = self._deferred, []
        for message in deferred:
            self.hear(message)

    def __len__(self) -> int:
        return len(self._by_token)

    def _announce(self, name: str, first: datetime, last: datetime) -> None:
        state = self._by_token.get(name)
        if state is None:
            # Where others serve more queues it may be a lane of theirs: look once, not at every hint.
            if self.queues is None:
                self.must_look = True
            elif name not in self._strange:
                self._strange.add(name)
                self.must_look = True
            return
        state.announce(first, last)
        self._refresh(state.lane.tenant)

    def _refresh(self, tenant: str) -> None:
        """Tell the clock whether a tenant has jobs that could start."""
        ready = bool(self._open(tenant))
        self.clock.set_ready(tenant, ready)
        if self.blocks and not ready:
            for state in self._by_tenant.get(tenant, {}).values():
                if state.ready and f"queue:{state.lane.queue}" in self.blocks:
                    self._parked[state.lane.queue].add(tenant)

    def _adapt(self, tenant: str, started: int) -> None:
        """After a limit of the tenant's: ask for twice what started; then for more each time, until that says nothing."""
        if f"tenant:{tenant}" in self.blocks:
            self._modest[tenant] = max(1, 2 * started)
        elif tenant in self._modest:
            self._modest[tenant] *= 2
            if self._modest[tenant] > MODEST_UP_TO:
                del self._modest[tenant]

    def _keep_off(self, blocked: Sequence[Blocked], now: float) -> None:
        """Jobs that stay where they are lie below the floor by now; their tenant or queue is left alone."""
        left: dict[Lane, list[datetime]] = defaultdict(list)
        for job in blocked:
            if not job.held and not job.unknown_kind:
                left[job.lane].append(job.run_at)
        for lane, times in left.items():
            self._state(lane).announce(min(times), max(times))
        for scope, reason, retry_in in {
            (b.scope, b.reason, b.retry_in) for b in blocked if b.whole_lane
        }:
            until = AT_POLL if retry_in is None else now + retry_in
            self.blocks.block(scope, until, paused=reason.endswith("_paused"))

    def _state(self, lane: Lane) -> LaneState:
        lanes = self._by_tenant.setdefault(lane.tenant, {})
        state = lanes.get(lane)
        if state is None:
            state = lanes[lane] = self._by_token[token(lane)] = LaneState(lane)
        return state

    def _spans(self, tenant: str) -> list[Span]:
        return [
            span
            for state in self._in_order(tenant)
            for span in state.spans(use_floor=self.use_floors)
        ]

    def _open(self, tenant: str) -> list[LaneState]:
        """Its lanes that have jobs which nothing known keeps from starting."""
        if tenant in self._barren or f"tenant:{tenant}" in self.blocks:
            return []
        ready = [state for state in self._by_tenant.get(tenant, {}).values() if state.ready]
        if not self.blocks:
            return ready
        return [state for state in ready if f"queue:{state.lane.queue}" not in self.blocks]

    def _in_order(self, tenant: str) -> list[LaneState]:
        return sorted(self._open(tenant), key=lambda state: (-state.lane.priority, state.turn))

    def _settle(
        self, tenant: str, met: list[Met], *, exhausted: bool, walked: datetime | None
    ) -> None:
        order = self._in_order(tenant)
        last: dict[Lane, Position] = {}
        for lane, position in met:
            known = last.get(lane)
            if known is None or position > known:
                last[lane] = position
        served = [index for index, state in enumerate(order) if state.lane in last]
        for index, state in enumerate(order):
            # All lanes before the last one served were walked to their end.
            done = exhausted or (bool(served) and index < served[-1])
            if state.lane in last:
                state.taken(last[state.lane], exhausted=done)
                state.turn = next(self._turn)
            elif done:
                state.empty()
            if walked is not None and (done or state.lane in last):
                state.walked_over(walked, to_the_end=done)
