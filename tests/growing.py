"""How much longer a call takes for a larger input, on a machine that does other things too."""

from __future__ import annotations

import time
from collections.abc import Callable


def growth(small: Callable[[], object], large: Callable[[], object], limit: float, floor_s: float) -> float:
    """How many times the processor's seconds of `small` the call `large` takes; a `small` below `floor_s` counts as that.

    Other work can only add to a time, so the least of several is the truest. Who is above `limit` is measured again, up
    to eight times, and only the least of all counts: what grows too fast stays above it however often it is measured.
    """
    least = {small: float("inf"), large: float("inf")}
    for _ in range(8):
        for call in (small, large):
            start_s = time.process_time()
            call()
            least[call] = min(least[call], time.process_time() - start_s)
        if least[large] < limit * max(least[small], floor_s):
            break
    return least[large] / max(least[small], floor_s)
