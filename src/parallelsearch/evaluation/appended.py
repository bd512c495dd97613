"""A file of lines that a run adds to: each by one write, the moment it is there, so that a kill loses what was in flight.

A line that was torn is cut off when the file is opened again; a write that fails (disk full) is undone, so that everything
before it stays readable. Who else may write is the business of whoever holds the folder.
"""

from __future__ import annotations

import os
from pathlib import Path

from parallelsearch.errors import ParallelSearchError


class RunStoppedError(ParallelSearchError):
    """A run could not go on; what was done stays and the same command continues it."""


class AppendedLines:
    """The file, open for adding. `OSError` where it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists():
            _cut_torn_line(path)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, line: str) -> None:
        """One line, written at once. If it cannot be, the file is left as it was and `RunStoppedError` says why."""
        size = self.num_bytes
        try:
            view = memoryview(line.encode("utf-8") + b"\n")
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            os.ftruncate(self._file, size)
            raise RunStoppedError(
                f"cannot write to '{self.path}': {error.strerror or error}. Everything up to here is kept; make room and "
                "give the same command again to go on"
            ) from error

    @property
    def num_bytes(self) -> int:
        return os.fstat(self._file).st_size

    def sync(self) -> None:
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)


def _cut_torn_line(path: Path) -> None:
    with path.open("rb+") as file:
        end = size = file.seek(0, os.SEEK_END)
        while end > 0:  # backwards, a piece at a time, to the last end of a line
            start = max(0, end - 65_536)
            file.seek(start)
            cut = file.read(end - start).rfind(b"\n")
            if cut >= 0:
                end = start + cut + 1
                break
            end = start
        if end < size:
            file.truncate(end)
