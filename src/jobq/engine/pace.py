"""How many runs of a worker end per second, and how long one takes, lately (pure, no I/O).

An exponential moving average over time: each end adds 1 / `MEMORY`, and what was added fades by e in
`MEMORY` seconds, so that a steady stream reads as its rate. A young average is divided by the share of
`MEMORY` it has seen, or it would read low for the first minutes (the bias correction of Kingma and Ba,
"Adam", 2015, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, expm1

#: Seconds in which an end fades to a third.
MEMORY = 60.0
#: Weight of the newest run in the mean of how long they take.
SMOOTHING = 0.05
#: Seconds that an average is taken to have seen at least: one quick end is no thousand a second.
YOUTH = 1.0


class Pace:
    """Ends per second.

    Args:
        now: seconds of a steady clock, as in every other call.
    """

    def __init__(self, now: float) -> None:
        self._began = now
        self._seen = (0.0, now)
        self._mean: float | None = None

    def ended(self, now: float, seconds: float) -> None:
        """A run ended after some seconds."""
        # Replaced whole: the heartbeat's thread reads it meanwhile.
        self._seen = (self._faded(now) + 1 / MEMORY, now)
        mean = self._mean
        self._mean = seconds if mean is None else mean + SMOOTHING * (seconds - mean)

    def run_seconds(self, ages: Sequence[float]) -> float | None:
        """How long a run takes, on average; None where none ended yet.

        Args:
            ages: seconds for which others run: where these are longer on average, so do runs by now.
        """
        if self._mean is None or not ages:
            return self._mean
        return max(self._mean, sum(ages) / len(ages))

    def per_second(self, now: float) -> float:
        """How many runs ended per second lately."""
        age = max(now - self._began, YOUTH)
        return self._faded(now) / -expm1(-age / MEMORY)

    def _faded(self, now: float) -> float:
        value, at = self._seen
        return value * exp((at - now) / MEMORY)
