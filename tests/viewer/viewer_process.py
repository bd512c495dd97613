"""The viewer in a process of its own, as the command line runs it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

CODE = """
import json, sys
from parallelsearch.server.limits import ServerSettings
from parallelsearch.viewer.app import run_viewer
run_viewer(json.loads(sys.argv[1]), ServerSettings(port=0))
"""


@contextlib.contextmanager
def viewer(*runs: Path, token: str = "") -> Iterator[str]:
    """Yields the address; ends the process and checks that it ended well."""
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, json.dumps([str(run) for run in runs])],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PARALLELSEARCH_TOKEN": token},
    )
    assert process.stderr is not None
    said = process.stderr.readline()
    try:
        yield json.loads(said)["url"].rstrip("/")
    finally:
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        process.stderr.close()
        assert process.wait(timeout=400) == 0, said + rest
    assert "Traceback" not in rest
