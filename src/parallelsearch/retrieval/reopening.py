"""An index that is opened again when it was built again, for servers: they run for longer than an index stays as it is.

A thread looks once a second whether there is something new, which costs nothing that a query would notice. The new index
is opened beside the old one, which answers until then and is closed after its last call. One that cannot be opened is tried
again when it changes, and after a while: the reason may be elsewhere, as a full disk is.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from parallelsearch.retrieval.base import Result, Retriever, WrappingRetriever
from parallelsearch.retrieval.hybrid import PART_FOLDERS
from parallelsearch.retrieval.store import MANIFEST

CHECK_S = 1.0
RETRY_S, MAX_RETRY_S = 60.0, 3_600.0
"""Until an index is tried again that could not be opened: at first, and later, when it may be for good."""
_SHARE = 0.02
"""Of its time, at most, that looking may take, and trying again."""
_log = logging.getLogger(__name__)

_Stamps = Sequence[object]


class ReopeningRetriever(WrappingRetriever):
    """The index that `open_index` opens from `folder`, opened again when it changes; `on_change` is called when the new one
    answers. `stamps` says what is new of it, where that is not its manifest; nothing, as long as it is not whole."""

    def __init__(
        self,
        open_index: Callable[[], Retriever],
        folder: str | Path,
        on_change: Callable[[], None],
        stamps: Callable[[], _Stamps] | None = None,
    ) -> None:
        self._open_index, self._folder, self._on_change = open_index, Path(folder).absolute(), on_change
        self._stamps = stamps or self._stamps_of_manifests
        held = [self._folder / MANIFEST, *(self._folder / part / MANIFEST for part in PART_FOLDERS)]
        self._manifests = [path for path in held if path.exists()]
        self._seen = self._stamps()  # before it is opened: what changes meanwhile is seen
        super().__init__(open_index())
        self._lock = threading.Lock()
        self._num_calls: Counter[Retriever] = Counter()
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="search-reopening", daemon=True).start()

    where = Retriever.where  # an index is narrowed when it is opened

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        with self._lock:
            inner = self.inner
            self._num_calls[inner] += 1
        try:
            return await inner.search_many(queries, k)
        finally:
            with self._lock:
                self._num_calls[inner] -= 1
                if not self._num_calls[inner]:
                    del self._num_calls[inner]  # else it would hold every index that was ever searched
                is_last = inner is not self.inner and not self._num_calls[inner]
            if is_last:
                await inner.aclose()

    def _watch(self) -> None:
        pause_s, again_s, wait_s = CHECK_S, math.inf, RETRY_S
        while not self._closed.wait(pause_s):
            start_s = time.monotonic()
            stamps = self._stamps()
            pause_s = max(CHECK_S, (time.monotonic() - start_s) / _SHARE)  # of a large folder it takes a while
            has_changed = stamps != self._seen
            if stamps and (has_changed or start_s >= again_s):  # none: a build is between its two renames
                self._seen = stamps
                is_open = self._reopen(is_first_try=has_changed)
                wait_s = RETRY_S if has_changed else min(2 * wait_s, MAX_RETRY_S)
                wait_s = max(wait_s, (time.monotonic() - start_s) / _SHARE)
                again_s = math.inf if is_open else time.monotonic() + wait_s

    def _reopen(self, is_first_try: bool) -> bool:
        try:
            fresh = self._open_index()
        except Exception as error:  # whatever is wrong with it, the old one still answers
            level = logging.WARNING if is_first_try else logging.DEBUG
            _log.log(
                level, "'%s' has changed and cannot be opened; the index before it answers on: %s", self._folder, error
            )
            return False
        with self._lock:
            old, self.inner = self.inner, fresh
            is_unused = not self._num_calls[old]
        self._on_change()
        _log.info("'%s' was built again: the new index answers", self._folder)
        if is_unused:
            asyncio.run(old.aclose())
        if self._closed.is_set():
            asyncio.run(fresh.aclose())
        return True

    def _stamps_of_manifests(self) -> _Stamps:
        """What is new of each manifest and its files when an index is; of a hybrid one there are two. Of the files, too: one
        that is copied into the folder file by file is whole after the last of them."""
        try:
            found = [path.stat() for path in self._manifests]
        except OSError:
            return []
        for path in itertools.chain.from_iterable(map(_files_of, self._manifests)):
            with contextlib.suppress(OSError):  # one that is not there yet
                found.append(path.stat())
        return [(one.st_mtime_ns, one.st_ino) for one in found]

    async def aclose(self) -> None:
        self._closed.set()
        await self.inner.aclose()


def _files_of(manifest: Path) -> list[Path]:
    try:
        return [manifest.parent / name for name in json.loads(manifest.read_text(encoding="utf-8"))["files"]]
    except (OSError, ValueError, KeyError, TypeError):  # opening it says what is wrong with it
        return []
