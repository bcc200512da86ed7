"""Claims jobs for free slots and starts them: nothing that was claimed ever waits in memory."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psycopg

from jobq import logs
from jobq.db import is_unavailable
from jobq.engine.discovery import Discovery
from jobq.engine.lanes import MOST_TENANTS, Hint
from jobq.engine.pool import SlotPool
from jobq.engine.session import Retry, Session
from jobq.engine.strangers import Strangers
from jobq.engine.trouble import Trouble
from jobq.model import ClaimedJob
from jobq.store import Blocked, Claimed, ClaimSettings, RunStore

log = logs.get("jobq.worker")

#: Seconds between polls right after activity; doubled while nothing comes, up to the poll interval.
FIRST_POLL = 0.05
#: Seconds after which a claim whose answer was lost is looked for again.
LOOK_AGAIN = 5.0


@dataclass
class Dispatcher:
    """The claim loop of a worker.

    Args:
        session: the session of its own.
        settings: what every claim stamps.
        poll_interval: seconds, the upper bound of a missed wake-up.
        keep_payload: bytes (JOBQ_KEEP_PAYLOAD), for jobs that are cancelled instead of released.
        start: starts a claimed job in its pool.
        may_claim: whether outcomes are recorded fast enough to take on more.
        claimed: called with the seconds each claim took.
        blocked: called with the jobs that may not start: a limit keeps them, or their kind is unknown here.
    """

    session: Session
    runs: RunStore
    discovery: Discovery
    pools: list[SlotPool]
    settings: ClaimSettings
    poll_interval: float
    keep_payload: int
    start: Callable[[ClaimedJob, SlotPool], None]
    may_claim: Callable[[], bool]
    claimed: Callable[[float], None]
    blocked: Callable[[Sequence[Blocked]], None]
    #: When the loop last did what it should (monotonic): claimed, found nothing, or had no free slot.
    succeeded_at: float = field(default_factory=time.monotonic)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _poll: float = FIRST_POLL
    _poll_at: float = 0.0
    #: When to claim again after one that got nowhere (monotonic): a rival had slots or tokens in hands.
    _again_at: float = float("inf")
    #: Whether the last attempt found the database away, or had to wait for it: it claims nothing for now.
    outage: bool = False
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)
    #: Leases of claims whose answer was lost or too late -> when to look (again) what they took (monotonic).
    _lost: dict[int, list[float]] = field(default_factory=dict)
    _retry: Retry = field(default_factory=Retry)
    _strangers: Strangers = field(default_factory=Strangers)
    _trouble: Trouble = field(default_factory=lambda: Trouble("claiming"))

    def wake(self) -> None:
        """A slot is free, or something was queued."""
        self._wake.set()

    def hear(self, message: Hint) -> None:
        """A wake-up hint arrived."""
        for pool in self.pools:
            pool.table.hear(message)
        self._wake.set()

    def listening(self, up: bool) -> None:
        """Whether hints arrive: without them there are no floors (design.md 22)."""
        for pool in self.pools:
            pool.table.use_floors = up
            if up:
                pool.table.look_from_bottom()
        self._wake.set()

    async def run(self) -> None:
        """Claim until stopped."""
        while not self._stopped.is_set():
            self._wake.clear()
            try:
                pause = await self.step()
                self._retry.reset()
                self._trouble.over()
                self.succeeded_at, self.outage = time.monotonic(), False
            except (psycopg.Error, OSError) as error:
                self.outage = self._trouble.met(error)
                await _wait(self._stopped, self._retry.next())
            else:
                if pause > 0:
                    await _wait(self._wake, pause)
                else:
                    # What was just started runs first, and may have freed its slot: one claim for many, not many for one.
                    await asyncio.sleep(0)

    def stop(self) -> None:
        """Claim no more; a claim under way is released when its answer comes."""
        self._stopped.set()
        self._wake.set()

    async def step(self) -> float:
        """Look for lanes where it is time to, and claim once for each pool; returns seconds to pause."""
        await self.release_lost()
        now = time.monotonic()
        if now >= self._poll_at:
            self.discovery.poll()
            self._poll_at = now + self._poll
            self._poll = min(self._poll * 2, self.poll_interval)
            for pool in self.pools:
                pool.table.ask_again(now, polling=True)
            if self._strangers.forget(now):
                for pool in self.pools:
                    pool.table.meet_again()
        if not self.may_claim():
            return FIRST_POLL
        if not any(pool.free_express for pool in self.pools):
            return self.poll_interval
        await self.discovery.step()
        again, self._again_at = False, float("inf")
        for pool in self.pools:
            again |= await self._claim(pool)
        if again:
            return 0.0
        due = min(pool.table.blocks.next_at for pool in self.pools)
        wait = min(self._poll_at, self.discovery.next_at, self._again_at, due) - time.monotonic()
        return max(wait, 0.001)

    async def _claim(self, pool: SlotPool) -> bool:
        """Claim for one pool and start what came; whether it is worth trying again at once."""
        pool.table.ask_again(time.monotonic())
        free, planned = pool.plan(MOST_TENANTS)
        if not planned and pool.table.let_rejoin():
            free, planned = pool.plan(MOST_TENANTS)
        plan = pool.table.startable(planned)
        if not plan or self._stopped.is_set():
            await asyncio.sleep(0)
            return len(plan) < len(planned)
        lease = secrets.randbits(63)
        began = time.monotonic()
        try:
            call = self.runs.claim(
                lease, free, pool.table.shares(plan), self.settings, self._strangers.left_out
            )
            claimed = await self.session.run(call)
            pool.table.answered(plan, claimed, free, time.monotonic())
        except (psycopg.Error, OSError) as error:
            if is_unavailable(error):
                self._lost[lease] = [began, began + LOOK_AGAIN]
            raise
        except asyncio.CancelledError:
            self._lost[lease] = [began]
            raise
        finally:
            pool.table.landed()
        self.claimed(time.monotonic() - began)
        if self._stopped.is_set():
            self._lost[lease] = [began]
            await self.release_lost(now=True)
            return False
        for job in claimed.jobs:
            self.start(job, pool)
        if claimed.jobs:
            self._poll = FIRST_POLL
            self._poll_at = min(self._poll_at, time.monotonic() + self._poll)
        if claimed.blocked:
            self.blocked(claimed.blocked)
            self._strangers.met(claimed.blocked, time.monotonic())
            if _got_nowhere(claimed):
                pauses = (b.retry_in for b in claimed.blocked if b.retry_in is not None)
                self._again_at = time.monotonic() + min(pauses, default=FIRST_POLL)
            elif not pool.clock.anyone_ready and pool.table.let_rejoin():
                return pool.free_express > 0
        return pool.clock.anyone_ready and pool.free_express > 0

    async def release_lost(self, *, now: bool = False) -> None:
        """After a claim whose answer was lost, or came too late: what it took is given back by its lease.

        Looked for twice, since the server may commit after it lost us; `now` does not wait for that.
        """
        for lease, times in list(self._lost.items()):
            if now or time.monotonic() >= times[0]:
                if not await self._release(lease):
                    times[0] = time.monotonic() + LOOK_AGAIN
                elif len(times) > 1:
                    times.pop(0)
                else:
                    del self._lost[lease]

    async def _release(self, lease: int) -> bool:
        """Release what runs under a lease, unless PostgreSQL refuses it: claims must go on meanwhile."""
        try:
            if claims := await self.session.run(self.runs.claims_of_lease(lease)):
                await self.session.run(self.runs.release(claims, self.keep_payload))
        except psycopg.Error as error:
            if is_unavailable(error):
                raise
            log.warning("what a lost claim took cannot be released yet", sqlstate=error.sqlstate)
            return False
        return True


def _got_nowhere(claimed: Claimed) -> bool:
    """Whether the same claim would meet the same jobs again: none started, left the index, or is left alone from now on."""
    return not claimed.jobs and not any(
        job.held or job.whole_lane or job.unknown_kind for job in claimed.blocked
    )


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
