"""What workers do besides running jobs: reclaim, promote, discover lanes, say that they live."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from jobq import payload
from jobq.model import JobStatus, Lane
from jobq.sql import Statements
from jobq.store.calls import Call, Row, array

#: Sorts after every name (COLLATE "C" compares bytes).
LAST_NAME = "\U0010ffff"


class LaneHead(NamedTuple):
    """A lane and the first job in it that may be claimed; `due` is false where even that one is early."""

    lane: Lane
    run_at: datetime
    id: int
    due: bool


@dataclass(frozen=True)
class Reclaimed:
    """A job whose lease ended, and what became of it."""

    id: int
    kind: str
    status: JobStatus
    lane: Lane
    run_at: datetime


@dataclass(frozen=True)
class Promoted:
    """A step of the promoter: whether it was elected, how many jobs it moved, and what comes next.

    Besides, whether jobs are held for a kind or key, and the version of the limits.
    """

    elected: bool
    moved: int
    last: datetime | None
    next_in: float | None
    held: bool
    limits: int


@dataclass(frozen=True)
class Review:
    """A look at held jobs: the reason reached (None: all were seen), jobs put back, seconds until a rate has a token."""

    reached: str | None
    moved: int
    next_in: float | None


@dataclass(frozen=True)
class ReapCheck:
    """What the reaper must know before it judges leases.

    Args:
        now: the database clock, seconds since 1970.
        uptime: the server's, in seconds.
        expired: whether a lease ended.
        locked: jobs whose lease ends soon and whose row is locked, so that nobody can extend it.
        beyond: whether a lease ends later than a worker extends it.
    """

    now: float
    uptime: float
    expired: bool
    locked: list[int]
    beyond: bool


class Slot(NamedTuple):
    """A slot of a cap: whose (such as `tenant:acme`), and its number from 0."""

    scope: str
    n: int


#: Comes before every slot.
NO_SLOT = Slot("", -1)


class UpkeepStore:
    """Statements of a worker's own housekeeping."""

    def __init__(self, statements: Statements) -> None:
        self._sql = statements

    def reap_check(self, floor: datetime, lease_seconds: float) -> Call[ReapCheck]:
        """What the reaper must know before it judges leases; those up to `floor` are taken as handled."""
        return Call(
            "reap_check",
            self._sql["reap_check"],
            {"floor": floor, "lease_seconds": lease_seconds},
            lambda rows: ReapCheck(*rows[0]),
        )

    def bound_leases(self, lease_seconds: float) -> Call[list[int]]:
        """Shorten leases that end later than any worker would extend them; returns whose."""
        return Call(
            "bound_leases",
            self._sql["bound_leases"],
            {"lease_seconds": lease_seconds},
            lambda rows: [row[0] for row in rows],
        )

    def reclaim(
        self,
        floor: datetime,
        most: int,
        keep_payload: int,
        only: Sequence[int] | None = None,
        spared: Iterable[int] = (),
    ) -> Call[list[Reclaimed]]:
        """RUNNING with an ended lease -> QUEUED, DEAD or CANCELLED.

        Args:
            floor: leases that ended up to then are taken as handled.
            most: jobs at a time.
            keep_payload: bytes; a cancelled job keeps a payload up to this.
            only: ids to restrict it to.
            spared: ids that it leaves.
        """
        params = {
            "floor": floor,
            "most": most,
            "keep_payload": keep_payload,
            "only": None if only is None else array(only),
            "spared": array(spared),
        }
        return Call(
            "reclaim",
            self._sql["reclaim"],
            params,
            lambda rows: [
                Reclaimed(row[0], row[1], JobStatus(row[2]), Lane(*row[3:6]), row[6])
                for row in rows
            ],
        )

    def expired(self, floor: datetime, most: int) -> Call[list[int]]:
        """Ids of jobs whose lease ended."""
        return Call(
            "expired",
            self._sql["expired"],
            {"floor": floor, "most": most},
            lambda rows: [row[0] for row in rows],
        )

    def promote(self, floor: datetime, most: int) -> Call[Promoted]:
        """SCHEDULED -> QUEUED for up to `most` due jobs, those due before `floor` aside."""
        return Call(
            "promote",
            self._sql["promote"],
            {"floor": floor, "most": most},
            lambda rows: Promoted(*rows[0]),
        )

    def review_held(self, after: str, most: int) -> Call[Review]:
        """Put held jobs back where their limit lets them pass, for up to `most` reasons after one."""
        return Call(
            "review_held",
            self._sql["review_held"],
            {"after": after, "most": most},
            lambda rows: Review(*rows[0]),
        )

    def heal_slots(self, most: int) -> Call[int]:
        """Free up to `most` slots whose run is gone without having freed them; returns how many."""
        return Call(
            "heal_slots", self._sql["heal_slots"], {"most": most}, lambda rows: int(rows[0][0])
        )

    def expire_slots(self, after: Slot, most: int) -> Call[tuple[Slot, int] | None]:
        """Delete slots that nobody will take, among the `most` after one.

        Returns:
            The slot reached, and how many were deleted; None: there are none after it.
        """
        return Call(
            "expire_slots",
            self._sql["expire_slots"],
            {"scope": after.scope, "n": after.n, "most": most},
            lambda rows: (Slot(*rows[0][:2]), int(rows[0][2])) if rows else None,
        )

    def weights(self, after: int) -> Call[tuple[int, list[Row]]]:
        """The version of the limits, and (scope, name, weight, {queue: weight}) of what was set after another one."""

        def read(rows: list[Row]) -> tuple[int, list[Row]]:
            found = [
                (scope, name, weight, _weights(queues))
                for _, scope, name, weight, queues in rows
                if scope is not None
            ]
            return rows[0][0], found

        return Call("weights", self._sql["weights"], {"after": after}, read)

    def discover(self, after: Lane, most: int, last: str = LAST_NAME) -> Call[list[LaneHead]]:
        """Up to `most` lanes that have jobs to claim, in index order after a lane, up to queue `last`."""
        params = {
            "queue": after.queue,
            "tenant": after.tenant,
            "priority": after.priority,
            "most": most,
            "last": last,
        }
        return Call("discover", self._sql["discover"], params, _heads)

    def register_kinds(self, kinds: Sequence[Mapping[str, Any]]) -> Call[None]:
        """Write the defaults of kinds: kind, queue, priority, max_attempts, timeout (seconds), max_per_key.

        What a kind leaves out it does not say.
        """
        columns = ("kind", "queue", "priority", "max_attempts", "timeout", "max_per_key")
        params = {name: array(kind.get(name) for kind in kinds) for name in columns}
        return Call("register_kinds", self._sql["register_kinds"], params, lambda rows: None)

    def beat(self, worker: Mapping[str, Any]) -> Call[None]:
        """Say that a worker lives; `claimed_ago` and `ttl` are seconds."""
        params = {**worker, "kinds": array(worker["kinds"])}
        params["queues"] = None if worker["queues"] is None else array(worker["queues"])
        return Call("beat", self._sql["beat"], params, lambda rows: None)

    def leave(self, id: str) -> Call[None]:
        """Remove a worker's row."""
        return Call("leave", self._sql["leave"], {"id": id}, lambda rows: None)

    def make_partitions(self, days: int) -> Call[int]:
        """Make the archive's partitions up to `days` ahead; returns how many were missing."""
        return Call(
            "make_partitions",
            self._sql["make_partitions"],
            {"days": days},
            lambda rows: int(rows[0][0]),
        )

    def expire_keys(self, life: float, most: int) -> Call[int]:
        """Remove up to `most` idempotency keys older than `life` seconds; returns how many."""
        return Call(
            "expire_keys",
            self._sql["expire_keys"],
            {"life": life, "most": most},
            len,
        )


def _heads(rows: list[Row]) -> list[LaneHead]:
    return [LaneHead(Lane(*row[:3]), *row[3:]) for row in rows]


def _weights(text: str | None) -> dict[str, Any]:
    """Weights by queue; what SQL may hold beyond an object that can be read sets none."""
    try:
        found = payload.decode(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
