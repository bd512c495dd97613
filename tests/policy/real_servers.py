"""Model servers of others, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from free_ports import free_port


@contextmanager
def served(command: Sequence[str], port: int) -> Iterator[str]:
    """The base URL of the server that this command starts, once it answers."""
    # One thread: on two busy cores two of them wait for each other (92 s instead of 8 s at a load of 9).
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

        def told() -> str:
            log.seek(0)
            return log.read()[-2000:]

        try:
            for _ in range(600):
                assert process.poll() is None, f"the server ended:\n{told()}"
                try:
                    if httpx.get(f"http://127.0.0.1:{port}/health", timeout=400).is_success:
                        break
                except httpx.HTTPError:
                    pass
                time.sleep(0.5)
            else:
                pytest.fail(f"the server did not come up:\n{told()}")
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.kill()
            process.wait()


@contextmanager
def transformers_serve(folder: str | Path) -> Iterator[str]:
    port = free_port()
    command = [str(Path(sys.executable).with_name("transformers")), "serve", str(folder)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32"]
    with served(command, port) as url:
        yield url
