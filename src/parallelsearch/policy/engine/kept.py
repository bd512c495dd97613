"""What a model computed for the fixed beginning of its prompts, kept on disk: the next process reads a file instead.

Only what the package itself wrote into the prompt is kept, never a question. A file that is damaged, or was made by another
release or with other weights, is not taken.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from parallelsearch.files import whole_file

_MAX_FILES = 8
_CHECK_BYTES = 4


class KeptStates:
    """States of one model by the tokens they stand for, in a folder that several processes share."""

    def __init__(self, folder: Path, mark: str) -> None:
        """`mark` tells weights, adapter and library from others."""
        self.folder, self.mark = folder, mark

    def _file(self, ids: Sequence[int]) -> Path:
        name = hashlib.sha256(f"{self.mark} {list(ids)}".encode()).hexdigest()[:16]
        return self.folder / f"start-{name}.bin"

    def load(self, ids: Sequence[int]) -> bytes | None:
        try:
            data = self._file(ids).read_bytes()
        except OSError:
            return None
        check, state = data[:_CHECK_BYTES], data[_CHECK_BYTES:]
        return state if state and check == _check(state) else None

    def save(self, ids: Sequence[int], state: bytes) -> None:
        """Where nothing can be written, nothing is kept."""
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            with whole_file(self._file(ids)) as draft:
                draft.write_bytes(_check(state) + state)
            files = sorted(self.folder.glob("start-*.bin"), key=lambda file: file.stat().st_mtime)
            for file in files[:-_MAX_FILES]:
                file.unlink(missing_ok=True)


def _check(state: bytes) -> bytes:
    return zlib.crc32(state).to_bytes(_CHECK_BYTES, "little")
