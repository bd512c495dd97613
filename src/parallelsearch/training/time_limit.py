"""When a run that was given so many seconds should save itself and stop: while there is still time for it.

All processes of a run stop at the same step, as soon as the clock of one says so.
"""

from __future__ import annotations

import time
from typing import Any


class TimeLimit:
    """Remembers the longest step; time is up when less than `spare_steps` of that length is left. No limit: never."""

    def __init__(self, limit_s: float | None, spare_steps: float, started_s: float) -> None:
        self._limit_s, self._spare_steps, self._started_s = limit_s, spare_steps, started_s
        self._longest_step_s = 0.0

    def is_up(self, accelerator: Any, step_s: float) -> bool:
        """Asked by every process after every step, with what it took."""
        self._longest_step_s = max(self._longest_step_s, step_s)
        if self._limit_s is None:
            return False
        left_s = self._limit_s - (time.monotonic() - self._started_s)
        if left_s < self._spare_steps * self._longest_step_s:
            accelerator.set_trigger()
        return bool(accelerator.check_trigger())
