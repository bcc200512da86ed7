"""Time buckets: names for hours and days, to be the keys of jobs that are wanted once in each (pure, no I/O)."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

DAY = timedelta(days=1)
_MIDNIGHT = time(0)


def time_bucket(
    every: timedelta | float,
    at: datetime | None = None,
    *,
    zone: str = "UTC",
    start: time = _MIDNIGHT,
) -> str:
    """The name of the stretch of time that an instant lies in, for an idempotency key or a unique key.

    Whoever asks within one stretch gets the same name, and every stretch has its own, also where clocks are put
    forward or back:

    * Stretches shorter than a day are of real time, counted from midnight in UTC, and their names carry the offset:
      an hour that the local clock shows twice has two names.
    * Days are those of the local clock and begin at `start`. A time that comes twice counts the first time; one that
      the clock skips is as much later as it skips (2:30 becomes 3:30), as in java.time. So each local day has one
      name, however long it is. Several days are counted from a Monday: seven of them are a week.

    Args:
        every: how long a stretch is, as a timedelta or in seconds: a part of a day that divides it evenly, or whole days.
        at: an instant with its zone; None: now.
        zone: name of the time zone (IANA), whose days are meant.
        start: local time at which a day begins, without a zone.

    Returns:
        Such as `2025-11-02T01:00-04:00` for an hour, `2025-11-02` for a day.

    Raises:
        ValueError: a length that neither divides a day nor is whole days, an instant without a zone, an unknown zone.
    """
    length = every if isinstance(every, timedelta) else timedelta(seconds=every)
    instant = _instant(at)
    local = _zone(zone)
    if length >= DAY and length % DAY == timedelta(0):
        return _day(instant, length // DAY, local, start).isoformat()
    if length <= timedelta(0) or length > DAY or DAY % length:
        raise ValueError(f"{length} neither divides a day evenly nor is a number of whole days")
    if start != _MIDNIGHT:
        raise ValueError("only days have a start of their own")
    midnight = instant.replace(hour=0, minute=0, second=0, microsecond=0)
    begin = midnight + (instant - midnight) // length * length
    return begin.astimezone(local).isoformat(
        timespec="auto" if length % timedelta(minutes=1) else "minutes"
    )


def _day(instant: datetime, days: int, zone: ZoneInfo, start: time) -> date:
    """The first local date of the days around an instant."""
    today = instant.astimezone(zone).date()
    if instant < datetime.combine(today, start, zone).astimezone(UTC):
        today -= DAY
    return today - (today.toordinal() - 1) % days * DAY  # the first of all dates was a Monday


def _instant(at: datetime | None) -> datetime:
    if at is None:
        return datetime.now(UTC)
    if at.utcoffset() is None:
        raise ValueError("at has no time zone, so it is no instant: add tzinfo")
    return at.astimezone(UTC)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"there is no time zone {name!r}") from None
