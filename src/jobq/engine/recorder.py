"""Writes outcomes, in batches that form by themselves: while one write is under way, others collect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import psycopg

from jobq import logs
from jobq.db import is_unavailable
from jobq.engine.runner import Run
from jobq.engine.session import RETRY_MOST, Retry, Session
from jobq.engine.trouble import Trouble
from jobq.migrate import PARTITION_DAYS
from jobq.model import Claim, JobStatus, Outcome, Verdict
from jobq.store import RunStore, UpkeepStore

log = logs.get("jobq.worker")

#: Outcomes written by one statement at most.
MOST_PER_WRITE = 1000
#: Seconds between writes of progress.
PROGRESS_PERIOD = 0.5
#: Times a single outcome that PostgreSQL refuses is tried again before it is left to its lease.
MOST_REFUSALS = 5
#: SQLSTATE classes that say "not now": rolled back (40), locked (55), cancelled (57). What they refuse is tried again
#: for as long as its lease holds.
_NOT_NOW = ("40", "55", "57")
#: The lock_timeout of a recorder's session: others are not to notice that a row is locked (budget: 50 ms); outcomes that
#: were found locked have time.
LOCK_WAIT, LATE_LOCK_WAIT = "20ms", "500ms"
#: Seconds for which a recorder looks for locked rows before each write, since the last one was met.
CAREFUL = 5.0
#: Seconds until an outcome is tried again that found its rows locked: the first wait, doubled each time, and the longest.
LATE_FIRST, LATE_MOST = 0.01, 0.5
#: Seconds without any locked row after which their connection is closed.
LATE_IDLE = 60.0

#: What became of a run: success, retry, dead, failed, cancelled, released or lease_lost; with its status
#: and the time it is due again.
Recorded = Callable[[Run, Outcome, str, datetime | None], None]

_OUTCOME_OF = {
    JobStatus.SCHEDULED: "retry",
    JobStatus.DEAD: "dead",
    JobStatus.FAILED: "failed",
    JobStatus.CANCELLED: "cancelled",
    JobStatus.QUEUED: "released",
    JobStatus.DONE: "success",
}


@dataclass(slots=True, eq=False)
class Entry:
    """An outcome to write."""

    run: Run
    outcome: Outcome
    #: An earlier write may have been committed although its answer was lost.
    unsure: bool = False
    refusals: int = 0
    #: Times it was set aside because of a lock.
    set_aside: int = 0
    #: It needs no writing any more, or not now.
    done: bool = False


Write = Callable[[Sequence[Entry]], Awaitable[None]]


@dataclass
class Backoff:
    """How the database draws the wait before the next attempt (seconds)."""

    base: float
    maximum: float


@dataclass
class Recorder:
    """Takes outcomes from the runner and writes them, whatever the database does meanwhile.

    A statement waits for a lock for `LOCK_WAIT` at most. What another transaction has locked goes to `late`, which has
    time; the others are written.

    Args:
        session: the session of its own; outcomes wait for no claim.
        recorded: called once for every outcome that was written or whose lease was lost.
        gave_up: called for one that PostgreSQL refuses for good: its lease is left to end.
        late: writes what this one found locked.
    """

    session: Session
    runs: RunStore
    upkeep: UpkeepStore
    backoff: Backoff
    keep_payload: int
    recorded: Recorded
    gave_up: Callable[[Run], None]
    late: LateRecorder | None = None
    _waiting: list[Entry] = field(default_factory=list)
    _writing: list[Entry] = field(default_factory=list)
    _progress: dict[Claim, str] = field(default_factory=dict)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _idle: asyncio.Event = field(default_factory=asyncio.Event)
    _retry: Retry = field(default_factory=Retry)
    _trouble: Trouble = field(default_factory=lambda: Trouble("recording outcomes"))
    _progress_due: float = 0.0
    _later: int = 0
    _careful_until: float = 0.0

    def put(self, run: Run, outcome: Outcome) -> None:
        """Take an outcome; it is written with the next batch."""
        self._waiting.append(Entry(run, outcome))
        self._idle.clear()
        self._wake.set()

    def put_progress(self, claim: Claim, text: str) -> None:
        """Take a progress report (JSON text); the latest of a run is written, twice a second at most."""
        self._progress[claim] = text
        self._wake.set()

    @property
    def unrecorded(self) -> int:
        """Outcomes that are not yet committed."""
        late = self.late.unrecorded if self.late is not None else 0
        return self._in_hand + late

    @property
    def _in_hand(self) -> int:
        return len(self._waiting) + len(self._writing) + self._later

    async def flush(self) -> None:
        """Wait until every outcome is written."""
        if self._in_hand:
            self._idle.clear()
            await self._idle.wait()
        if self.late is not None:
            await self.late.flush()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._wait()
            self._writing, self._waiting = self._waiting, []
            try:
                await self._write(self._writing)
                await self._write_progress()
                self._retry.reset()
                self._trouble.over()
            except (psycopg.Error, OSError) as error:
                self._trouble.met(error)
                await asyncio.sleep(self._retry.next())
            if not self._in_hand:
                self._idle.set()

    async def _wait(self) -> None:
        """Until there is something to write. Progress alone waits for its period."""
        loop = asyncio.get_running_loop()
        while not self._waiting:
            self._wake.clear()
            pause = None
            if self._progress:
                pause = self._progress_due - loop.time()
                if pause <= 0:
                    return
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                return

    async def _write(self, entries: list[Entry]) -> None:
        """Write all entries; those an outage interrupts go back to the front of the queue."""
        left = list(entries)
        try:
            while left:
                await self._write_batch(self._writer(left[0]), self._next_batch(left))
                left = [entry for entry in left if not entry.done]
        finally:
            self._writing = []
            self._waiting[:0] = [entry for entry in left if not entry.done]

    def _next_batch(self, left: list[Entry]) -> list[Entry]:
        """What goes into one statement: outcomes of one kind. One that was refused is tried again alone."""
        if left[0].refusals:
            return left[:1]
        write = self._writer(left[0])
        same = [entry for entry in left if not entry.refusals and self._writer(entry) == write]
        return same[:MOST_PER_WRITE]

    def _writer(self, entry: Entry) -> Write:
        match entry.outcome.verdict:
            case Verdict.SUCCESS:
                return self._complete
            case Verdict.RELEASE:
                return self._release
            case _:
                return self._fail

    async def _write_batch(self, write: Write, batch: list[Entry]) -> None:
        """Write a batch, without what is locked; what PostgreSQL refuses splits it, so that one bad row stalls no other."""
        batch.sort(key=lambda entry: entry.run.claim)
        try:
            try:
                await self._settle_unsure(batch)
                if self._is_careful():
                    await self._set_locked_aside(batch)
                batch = [entry for entry in batch if not entry.done]
                if batch:
                    await write(batch)
            except psycopg.errors.CheckViolation as error:
                if not await self._made_partition(error):
                    raise
                await write(batch)
        except psycopg.errors.LockNotAvailable:
            await self._waited(write, [entry for entry in batch if not entry.done])
        except (psycopg.Error, OSError) as error:
            if is_unavailable(error):
                for entry in batch:
                    entry.unsure = True
                raise
            await self._split(write, batch, error)

    def _is_careful(self) -> bool:
        return asyncio.get_running_loop().time() < self._careful_until

    def _met_lock(self) -> None:
        self._careful_until = asyncio.get_running_loop().time() + CAREFUL

    async def _waited(self, write: Write, batch: list[Entry]) -> None:
        """A write met a lock: find out whose rows are locked; where all that are not have waited too, a table is."""
        knew = self._is_careful()
        self._met_lock()
        if knew:
            self._set_aside(batch)
        else:
            await self._write_batch(write, batch)

    async def _set_locked_aside(self, batch: list[Entry]) -> None:
        left = {entry.run.claim: entry for entry in batch if not entry.done}
        locked = await self.session.run(self.runs.locked(list(left))) if left else ()
        if locked:
            self._met_lock()
            self._set_aside([left[claim] for claim in sorted(locked)])

    def _set_aside(self, entries: list[Entry]) -> None:
        """Leave these to the recorder that has time for locks."""
        assert self.late is not None
        for entry in entries:
            self.late.take(entry)

    async def _split(
        self,
        write: Write,
        batch: list[Entry],
        error: BaseException,
    ) -> None:
        if len(batch) == 1:
            self._refused(batch[0], error)
            return
        middle = len(batch) // 2
        await self._write_batch(write, batch[:middle])
        await self._write_batch(write, batch[middle:])

    def _refused(self, entry: Entry, error: BaseException) -> None:
        """One outcome is refused: drop what may be at fault, try again a few times, then leave it to its lease."""
        entry.refusals += 1
        state = getattr(error, "sqlstate", None) or ""
        log.warning(
            "an outcome was refused", job_id=entry.run.job.id, kind=entry.run.job.kind, sqlstate=state,
            tries=entry.refusals,
        )  # fmt: skip
        if isinstance(error, psycopg.DataError | psycopg.errors.ProgramLimitExceeded):
            entry.outcome.result = None
            if entry.outcome.error is not None:
                entry.outcome.error = "the error text could not be stored"
        if entry.refusals >= MOST_REFUSALS and not state.startswith(_NOT_NOW):
            log.error(
                "an outcome is left to its lease", job_id=entry.run.job.id, kind=entry.run.job.kind
            )
            entry.done = True
            self.gave_up(entry.run)
            return
        self._put_off(entry, min(0.1 * 2 ** min(entry.refusals, 9), RETRY_MOST))

    def _put_off(self, entry: Entry, delay: float) -> None:
        """Take an outcome up again later: as a new entry, since the write that met this one may still be under way."""
        self._later += 1
        asyncio.get_running_loop().call_later(delay, self._again, replace(entry))
        entry.done = True

    def _again(self, entry: Entry) -> None:
        self._later -= 1
        self._waiting.append(entry)
        self._wake.set()

    async def _settle_unsure(self, batch: list[Entry]) -> None:
        """After a lost answer: what the archive holds under our lease was our own success."""
        unsure = [entry for entry in batch if entry.unsure]
        if not unsure:
            return
        written = await self.session.run(self.runs.recorded([entry.run.claim for entry in unsure]))
        for entry in unsure:
            status = written.get(entry.run.claim)
            entry.unsure = False
            if status is not None:
                self._record(entry, _OUTCOME_OF[status])

    async def _complete(self, batch: Sequence[Entry]) -> None:
        written = await self.session.run(self.runs.complete([entry.outcome for entry in batch]))
        with logs.together():
            for entry in batch:
                self._record(entry, "success" if entry.run.claim in written else "lease_lost")

    async def _fail(self, batch: Sequence[Entry]) -> None:
        call = self.runs.fail(
            [entry.outcome for entry in batch], self.backoff.base, self.backoff.maximum
        )
        written = await self.session.run(call)
        for entry in batch:
            status, due = written.get(entry.run.claim, (None, None))
            outcome = "lease_lost" if status is None else _OUTCOME_OF[status]
            self._record(entry, outcome, due)

    async def _release(self, batch: Sequence[Entry]) -> None:
        call = self.runs.release([entry.run.claim for entry in batch], self.keep_payload)
        written = await self.session.run(call)
        for entry in batch:
            status = written.get(entry.run.claim)
            outcome = "lease_lost" if status is None else _OUTCOME_OF[status]
            self._record(entry, outcome)

    def _record(self, entry: Entry, outcome: str, due: datetime | None = None) -> None:
        entry.done = True
        self.recorded(entry.run, entry.outcome, outcome, due)

    async def _made_partition(self, error: BaseException) -> bool:
        """Whether a missing archive partition was at fault and is there now."""
        if not isinstance(error, psycopg.errors.CheckViolation) or error.diag.constraint_name:
            return False
        return await self.session.run(self.upkeep.make_partitions(PARTITION_DAYS)) > 0

    async def _write_progress(self) -> None:
        now = asyncio.get_running_loop().time()
        if not self._progress or now < self._progress_due:
            return
        self._progress_due = now + PROGRESS_PERIOD
        reports, self._progress = list(self._progress.items()), {}
        try:
            await self.session.run(self.runs.progress(reports))
        except psycopg.Error as error:
            if is_unavailable(error):
                raise
            log.warning("progress could not be written", sqlstate=error.sqlstate)


@dataclass
class LateRecorder(Recorder):
    """Writes outcomes whose rows another transaction has locked, and waits for nobody else.

    Each is tried again after a pause that grows to `LATE_MOST`, in smaller and smaller statements: what
    `locked.sql` does not see, such as a lock on a whole table, keeps ever fewer of the others.
    """

    def take(self, entry: Entry) -> None:
        """Take an outcome that was found locked."""
        self._idle.clear()
        self._set_aside([entry])

    async def _wait(self) -> None:
        while True:
            try:
                async with asyncio.timeout(LATE_IDLE):
                    return await super()._wait()
            except TimeoutError:
                if not self._in_hand:
                    await self.session.close()

    def _is_careful(self) -> bool:
        return True

    def _next_batch(self, left: list[Entry]) -> list[Entry]:
        batch = super()._next_batch(left)
        return batch[: max(MOST_PER_WRITE >> 2 * batch[0].set_aside, 1)]

    def _set_aside(self, entries: list[Entry]) -> None:
        for entry in entries:
            entry.set_aside += 1
            entry.run.locked = True
            self._put_off(entry, min(LATE_FIRST * 2 ** min(entry.set_aside, 9), LATE_MOST))
