"""One short method per SQL file, same name. See `jobq.store.calls` for how a call is run."""

from jobq.store.calls import Call, array, run, run_sync
from jobq.store.enqueue import KEY_WAIT, Enqueued, EnqueueStore, WinnerGone
from jobq.store.jobs import JobStore
from jobq.store.limiters import LimiterStore
from jobq.store.runs import (
    BEGINNING,
    END_OF_TIME,
    Blocked,
    Claimed,
    ClaimSettings,
    Extension,
    RunStore,
    Share,
    Span,
)
from jobq.store.upkeep import NO_SLOT, LaneHead, Promoted, Reclaimed, Slot, UpkeepStore
from jobq.store.why import Ahead, Facts, Limit, WhyStore

__all__ = [
    "BEGINNING",
    "END_OF_TIME",
    "KEY_WAIT",
    "NO_SLOT",
    "Ahead",
    "Blocked",
    "Call",
    "ClaimSettings",
    "Claimed",
    "EnqueueStore",
    "Enqueued",
    "Extension",
    "Facts",
    "JobStore",
    "LaneHead",
    "Limit",
    "LimiterStore",
    "Promoted",
    "Reclaimed",
    "RunStore",
    "Share",
    "Slot",
    "Span",
    "UpkeepStore",
    "WhyStore",
    "WinnerGone",
    "array",
    "run",
    "run_sync",
]
