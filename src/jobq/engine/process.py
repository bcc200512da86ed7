"""What a process that does nothing but work sets for itself."""

from __future__ import annotations

import gc

#: Objects allocated beyond those freed before the youngest generation is examined. Python's own
#: threshold (700; 2,000 since 3.13) makes a busy worker examine its jobs under way every few
#: milliseconds, which are not garbage: 7 % of its time, measured with py-spy at 200 slots.
YOUNGEST = 10_000


def spare_the_collector() -> None:
    """Let the garbage collector pass over what is loaded now, and look less often at what is young.

    For a worker's own process: it changes the collector of the whole interpreter.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNGEST, *gc.get_threshold()[1:])
