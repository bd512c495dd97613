"""Files as they lie there: `files:PATH` searches a folder of documents, or a corpus file, and nobody builds an index first.

There is one, of course: BM25, kept in the user's cache and built again when a file has changed, come or gone, which names,
sizes and times tell. Processes that open the same files at once build once. A document that cannot be read is left out and
named in the log, as `index` does; a bad line of a corpus file is an error, because a file of records is meant to be whole.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallelsearch import __version__
from parallelsearch.errors import IndexDamagedError, ParallelSearchError, UsageError
from parallelsearch.files import write_json
from parallelsearch.places import CACHE_ENV, cache_dir, locked
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.retrieval.corpus import documents_in
from parallelsearch.retrieval.indexing import build_index

SETTLED_S = 1.0
"""A file that was changed less than so long ago may still be written to."""
_NUM_TOLD = 5
_NOTE = "files.json"
"""What the index was made of."""
_log = logging.getLogger(__name__)

OnProgress = Callable[[int, int | None], None]
_File = tuple[str, int, int]
"""Its name below the folder, its size, and when it was changed."""


@dataclass(frozen=True, slots=True)
class LiveFiles:
    """The files at a path and how they are cut and indexed: the words of `index`."""

    path: Path
    stemmer: str = "english"
    title_weight: int = 1
    chunk_words: int | None = None

    @property
    def folder(self) -> Path:
        """Where their index is kept: a place for each path and each way to read it."""
        said = json.dumps([os.path.realpath(self.path), self.stemmer, self.title_weight, self.chunk_words])
        return cache_dir() / "files" / hashlib.sha256(said.encode("utf-8", "surrogateescape")).hexdigest()[:24]

    @property
    def index(self) -> Path:
        return self.folder / "index"

    def stamp(self) -> str:
        """What changes when a file does. Another version of this package may read files otherwise."""
        return _stamp_of(self._files())

    def settled_stamp(self) -> list[str]:
        """The same, for who looks again and again; empty while a file may still be written to."""
        try:
            files = self._files()
        except OSError:
            return []
        age_s = time.time() - max((changed_ns for _, _, changed_ns in files), default=0) / 1e9
        return [] if not files or 0 <= age_s < SETTLED_S else [_stamp_of(files)]

    def _files(self) -> list[_File]:
        if not self.path.is_dir():
            return [_file(self.path, self.path.name)]
        found = []
        for path in documents_in(self.path):
            with suppress(FileNotFoundError):  # gone meanwhile
                found.append(_file(path, str(path.relative_to(self.path))))
        return found

    def refresh(self, on_progress: OnProgress | None = None) -> dict[str, Any] | None:
        """Have the index agree with the files. What was done, as `build_index` says it; None for nothing."""
        if not self.path.exists():
            raise UsageError(f"there is no file or folder '{self.path}' (looked in {Path.cwd()})")
        stamp = self.stamp()
        if self._is_built(stamp):
            return None
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # it holds the texts
            with locked(self.folder / "lock"):
                return None if self._is_built(stamp) else self._build(stamp, on_progress)
        except OSError as error:
            if error.filename is not None and not Path(error.filename).is_relative_to(cache_dir()):
                raise  # a corpus that may not be read
            raise ParallelSearchError(
                f"the index of '{self.path}' cannot be kept in '{self.folder}': {error.strerror or error}. Name another "
                f"place in {CACHE_ENV}, or build an index where you like: parallelsearch index {self.path} --out my-index"
            ) from error

    def _build(self, stamp: str, on_progress: OnProgress | None) -> dict[str, Any]:
        _log.info("the files of '%s' are new or have changed: they are indexed", self.path)
        report = build_index(
            self.path,
            self.index,
            stemmer=None if self.stemmer == "none" else self.stemmer,
            title_weight=self.title_weight,
            chunk_words=self.chunk_words,
            overwrite=True,
            on_progress=on_progress,
        )
        write_json(self.folder / _NOTE, {"path": str(self.path), "stamp": stamp})
        _sweep(self.folder.parent)
        if report["num_skipped"]:
            told = "; ".join(map(str, report["problems"][:_NUM_TOLD]))
            _log.warning("%d of the files of '%s' could not be read: %s", report["num_skipped"], self.path, told)
        return report

    def _is_built(self, stamp: str) -> bool:
        return _read_note(self.folder / _NOTE).get("stamp") == stamp and self.index.is_dir()

    def open(self) -> BM25Retriever:
        self.refresh()
        try:
            return BM25Retriever(self.index)
        except (IndexDamagedError, UsageError):  # of a cache: somebody tidied up in it
            shutil.rmtree(self.index, ignore_errors=True)
            self.refresh()
            return BM25Retriever(self.index)


def _file(path: Path, name: str) -> _File:
    about = path.stat()
    return name, about.st_size, about.st_mtime_ns


def _stamp_of(files: Sequence[_File]) -> str:
    digest = hashlib.sha256(__version__.encode())
    for name, size, changed_ns in files:
        digest.update(f"{name}\0{size}\0{changed_ns}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _sweep(folder: Path) -> None:
    """Remove the indexes of files that are gone: nobody else would."""
    for note in folder.glob(f"*/{_NOTE}"):
        path = _read_note(note).get("path")
        if isinstance(path, str) and not os.path.lexists(path):
            shutil.rmtree(note.parent, ignore_errors=True)


def _read_note(note: Path) -> dict[str, Any]:
    try:
        read = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def live_files(path: str, **options: Any) -> LiveFiles:
    """The files that an address means."""
    return LiveFiles(Path(path).expanduser().absolute(), **options)


def stamps_of(path: str, **options: Any) -> Callable[[], list[str]]:
    """What a server looks at to see whether files have changed."""
    return live_files(path, **options).settled_stamp


def open_files(path: str, **options: Any) -> BM25Retriever:
    return live_files(path, **options).open()
