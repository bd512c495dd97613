"""How much memory a case took at its highest, however much was taken before."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_MEBIBYTES = 250
"""For one case, fault server and test tools included: the largest answers are 64 MiB, and are held about three times."""


def _status(name: str) -> float:
    """A figure of this process, in MiB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


@contextmanager
def bounded_memory(max_mebibytes: float = MAX_MEBIBYTES) -> Iterator[None]:
    gc.collect(1)  # the young ones: a full collection takes longer than a case
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the highest mark begins anew
    before = _status("VmRSS")
    yield
    grown = _status("VmHWM") - before
    assert grown < max_mebibytes, f"{grown:.0f} MiB for one case"
