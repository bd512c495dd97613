"""A command at a terminal: a real one for the command, with a kernel that echoes, edits lines and turns Ctrl-C into SIGINT."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

CTRL_C, CTRL_D, UP = "\x03", "\x04", "\x1b[A"
PASTE = "\x1b[200~%s\x1b[201~"
"""What a terminal sends that marks what is pasted."""
_CODES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[()][A-Z0-9]|[=>78])|\r")


class Terminal:
    """`parallelsearch` with these arguments. `output` is all it has written, without colours and movements. `stdout` sends
    its standard output elsewhere."""

    def __init__(
        self,
        *arguments: str,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        columns: int = 100,
        stdout=None,
    ) -> None:
        self._end, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))

        def take_terminal() -> None:
            fcntl.ioctl(inner, termios.TIOCSCTTY, 0)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background inherit deafness

        self.process = subprocess.Popen(
            [sys.executable, "-m", "parallelsearch", *arguments],
            stdin=inner,
            stdout=inner if stdout is None else stdout,
            stderr=inner,
            cwd=cwd,
            env={
                **{k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")},
                "TERM": "xterm",
                **(env or {}),
            },
            start_new_session=True,
            preexec_fn=take_terminal,
        )
        os.close(inner)
        self.raw, self._seen = b"", 0

    @property
    def output(self) -> str:
        return _CODES.sub("", self.raw.decode("utf-8", "replace"))

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def until(self, words: str, timeout_s: float = 60) -> str:
        """Wait until these words stand in what came since the last time; that, with them."""
        until_s = time.monotonic() + timeout_s
        while (at := self.output.find(words, self._seen)) < 0:
            if not self._read(until_s - time.monotonic()):
                raise AssertionError(f"{words!r} did not come:\n{self.output[self._seen :]}")
        begun, self._seen = self._seen, at + len(words)
        return self.output[begun : self._seen]

    def silence(self, seconds: float) -> str:
        """What comes in so many seconds, with what was not read yet."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self._read(until_s - time.monotonic())
        begun, self._seen = self._seen, len(self.output)
        return self.output[begun:]

    def end(self, timeout_s: float = 60) -> int:
        """Wait for the end of the command; its exit status. The rest of its output is in `output`."""
        until_s = time.monotonic() + timeout_s
        while self._read(until_s - time.monotonic()):
            pass
        return self.process.wait(max(1.0, until_s - time.monotonic()))

    def _read(self, seconds: float) -> bool:
        if seconds <= 0 or not select.select([self._end], [], [], seconds)[0]:
            return False
        try:
            piece = os.read(self._end, 65536)
        except OSError:  # the last one who had it open is gone
            return False
        self.raw += piece
        return bool(piece)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
        os.close(self._end)
