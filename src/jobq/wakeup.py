"""Wake-up messages: what travels on the LISTEN/NOTIFY channel. A hint only; a lost one strands no job.

A message is a letter and words: `q token:first:last ...` lanes that have jobs, with the span of
their due times in microseconds since 1970; `q *` look everywhere; `c id ...` runs to cancel (`c *`
ask the database); `d micros` a job waits until then; `f token ...` slots of caps are free; `l` limits were changed. Lanes travel as tokens, so that tenants' names
stay private and a message never grows with them. `{schema}.announce` in SQL writes the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from jobq.model import Lane

#: NOTIFY takes payloads shorter than 8,000 bytes (PostgreSQL manual, NOTIFY).
MAX_MESSAGE = 7_900
#: More lanes than this in one announcement are no hint any more: look everywhere.
MAX_LANES = 600

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class LanesReady:
    """Lanes with jobs: token -> first and last due time."""

    spans: dict[str, tuple[datetime, datetime]]


@dataclass(frozen=True, slots=True)
class LookEverywhere:
    """More lanes than a message holds have jobs."""


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Runs whose cancellation was asked for; `None`: too many to name."""

    ids: frozenset[int] | None


@dataclass(frozen=True, slots=True)
class DueAt:
    """A job waits until then."""

    at: datetime


@dataclass(frozen=True, slots=True)
class SlotsFreed:
    """Slots of caps are free: tokens of their scopes (`scope_token`)."""

    tokens: frozenset[str]


@dataclass(frozen=True, slots=True)
class LimitsChanged:
    """Weights, caps, rates or pauses were changed."""


Message = LanesReady | LookEverywhere | CancelRequested | DueAt | SlotsFreed | LimitsChanged


@lru_cache(maxsize=100_000)
def token(lane: Lane) -> str:
    """16 hex digits that stand for a lane; `{schema}.lane_token` computes the same.

    A newline parts the fields; one within a field is escaped, so that no two lanes share a text.
    """
    text = f"{_escaped(lane.queue)}\n{_escaped(lane.tenant)}\n{lane.priority}"
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:16]


@lru_cache(maxsize=100_000)
def scope_token(scope: str) -> str:
    """16 hex digits that stand for whose cap it is (`tenant:acme`); `{schema}.free_slots` computes the same."""
    return hashlib.md5(scope.encode(), usedforsecurity=False).hexdigest()[:16]


def ready(jobs: Iterable[tuple[Lane, datetime]]) -> list[str]:
    """Messages that announce jobs by lane and due time; several where one would be too long."""
    spans: dict[str, tuple[datetime, datetime]] = {}
    for lane, run_at in jobs:
        name = token(lane)
        first, last = spans.get(name, (run_at, run_at))
        spans[name] = (min(first, run_at), max(last, run_at))
    if len(spans) > MAX_LANES:
        return ["q *"]
    words = [f"{name}:{micros(first)}:{micros(last)}" for name, (first, last) in spans.items()]
    return list(_pack("q", words))


def due(at: datetime) -> str:
    """The message that a job waits until then."""
    return f"d {micros(at)}"


def parse(text: str) -> Message | None:
    """What a message says; None for one of another version."""
    letter, _, rest = text.partition(" ")
    try:
        match letter:
            case "q" if rest == "*":
                return LookEverywhere()
            case "q":
                return LanesReady(dict(map(_span, rest.split())))
            case "c":
                ids = None if rest == "*" else frozenset(map(int, rest.split()))
                return CancelRequested(ids)
            case "d":
                return DueAt(from_micros(int(rest)))
            case "f":
                return SlotsFreed(frozenset(rest.split()))
            case "l":
                return LimitsChanged()
    except (ValueError, OverflowError):
        return None
    return None


def micros(at: datetime) -> int:
    """Microseconds since 1970, exactly."""
    return (at - _EPOCH) // _MICROSECOND


def from_micros(value: int) -> datetime:
    """The time of `micros`, in UTC."""
    return _EPOCH + value * _MICROSECOND


def _escaped(name: str) -> str:
    return name.replace("\\", "\\\\").replace("\n", "\\n")


def _span(word: str) -> tuple[str, tuple[datetime, datetime]]:
    name, first, last = word.split(":")
    return name, (from_micros(int(first)), from_micros(int(last)))


def _pack(letter: str, words: list[str]) -> Iterator[str]:
    message = letter
    for word in words:
        if len(message) + 1 + len(word) > MAX_MESSAGE:
            yield message
            message = letter
        message += " " + word
    if message != letter:
        yield message
