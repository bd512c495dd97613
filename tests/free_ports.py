"""Ports for servers that must be told theirs before they start.

A port that the system gives for 0 and that is closed again may be the local end of anybody's connection a moment later:
all connections take theirs from the same range. These lie below that range, and no two workers of a test run share one.
"""

from __future__ import annotations

import itertools
import os
import socket

_FIRST, _PER_WORKER = 15_000, 1_000
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 16
# Two test runs of one machine begin at different places.
_numbers = itertools.count(os.getpid() * 37)


def free_port() -> int:
    """A port that nobody listens on, and that this process has not given out before."""
    for number in itertools.islice(_numbers, _PER_WORKER):
        port = _FIRST + _WORKER * _PER_WORKER + number % _PER_WORKER
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")
