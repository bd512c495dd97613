"""Processes that write until they are killed with SIGKILL, and what they said they had written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def run_and_kill(code: str, target: Path, names: tuple[str, ...], enough_bytes: int = 4_000) -> list[str]:
    """Start one process for each name, kill all in the middle of their work, return the whole lines they printed."""
    outputs = [target.with_name(f"{target.name}.{name}.out") for name in names]
    writers = []
    for name, output in zip(names, outputs, strict=True):
        with output.open("wb") as stdout:
            writers.append(subprocess.Popen([sys.executable, "-c", code, target, name], stdout=stdout))
    deadline_s = time.monotonic() + 300
    while any(output.stat().st_size < enough_bytes for output in outputs) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    for writer in writers:
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
    return [line for output in outputs for line in output.read_text().split("\n")[:-1]]
