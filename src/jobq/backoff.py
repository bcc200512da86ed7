"""How long until the next attempt. The draw itself happens in `fail.sql`, by the database clock."""

from __future__ import annotations

import math
from datetime import timedelta

#: Longest delay that a handler or a caller may ask for, in seconds (ten years).
MAX_DELAY = 10 * 365 * 86400.0
#: 2**30 seconds is 34 years: larger exponents change nothing and would overflow an interval.
MAX_EXPONENT = 30


def ceiling(attempt: int, base: float, maximum: float) -> float:
    """Upper end of the uniform draw before the next attempt, in seconds.

    "Full jitter" (Brooker, Exponential Backoff and Jitter, AWS 2015): the delay is uniform in
    (0, min(maximum, base * 2**(attempt-1))].

    Args:
        attempt: number of the attempt that failed, counted from 1.
        base: seconds, the ceiling after the first attempt.
        maximum: seconds, the ceiling of all.
    """
    exponent = min(max(attempt - 1, 0), MAX_EXPONENT)
    return float(min(maximum, base * 2.0**exponent))


def longest_life(max_attempts: int, base: float, maximum: float) -> float:
    """Seconds that the waits of a job add up to at most when every attempt fails at once."""
    return sum(ceiling(attempt, base, maximum) for attempt in range(1, max_attempts))


def seconds(value: object) -> float | None:
    """A delay as seconds in [0, MAX_DELAY], or None where it is no delay at all.

    Args:
        value: a number of seconds or a `timedelta`; NaN, an infinity, text and negative values
            count as no delay, so that the caller falls back to the backoff and says so.
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    if not math.isfinite(number) or number < 0:
        return None
    return min(number, MAX_DELAY)
