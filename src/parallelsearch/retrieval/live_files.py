"""Files as they lie there: `files:PATH` searches a folder of documents, or a corpus file, and nobody builds an index first.

There is one, of course: BM25, kept in the user's cache and built again when a file has changed, come or gone, which names,
sizes and times tell. Each state of the files has a folder of its own, so that who opens an index never has half of the next
one. Processes that open the same files at once build once. A document that cannot be read is left out and named in the log,
as `index` does; a bad line of a corpus file is an error, because a file of records is meant to be whole.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from parallelsearch import __version__
from parallelsearch.errors import DataError, IndexDamagedError, ParallelSearchError, UsageError
from parallelsearch.files import write_whole
from parallelsearch.places import CACHE_ENV, cache_dir, locked
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.retrieval.corpus import documents_in
from parallelsearch.retrieval.indexing import build_index
from parallelsearch.retrieval.office import READERS
from parallelsearch.retrieval.store import open_manifest, partial_folder

SETTLED_S = 1.0
"""A file that was changed less than so long ago may still be written to."""
_NUM_TOLD = 5
_NOTE, _LOCK = "files.json", "lock"
"""Beside the index: of which files it is, and who may build it."""
_log = logging.getLogger(__name__)

OnProgress = Callable[[int, int | None], None]
_File = tuple[str, int, int, int]
"""Its name below the folder, its size, and its two times of change: a copy or an archive sets the first to what it was
elsewhere, and the second is the kernel's own, which also moves when it may be read again."""


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
        said = json.dumps([self._place, self.stemmer, self.title_weight, self.chunk_words])
        return cache_dir() / "files" / hashlib.sha256(said.encode("utf-8", "surrogateescape")).hexdigest()[:24]

    @property
    def _place(self) -> str:
        """Where the path leads, now: a link may lead elsewhere tomorrow, and what it led to be removed."""
        return os.path.realpath(self.path)

    def stamp(self) -> str:
        """What changes when a file does, or the code that reads it."""
        return _stamp_of(self._files())

    def settled_stamp(self) -> list[str]:
        """The same, for who looks again and again; empty while a file may still be written to. That all files are gone is a
        state as another: it cannot be opened, which is then said."""
        try:
            files = self._files()
        except OSError:
            files = []
        now = time.time()
        is_busy = any(0 <= now - at_ns / 1e9 < SETTLED_S for _, _, *times in files for at_ns in times)
        return [] if is_busy else [_stamp_of(files)]

    def _files(self) -> list[_File]:
        if not self.path.is_dir():
            return [_file(self.path, self.path.name)]
        root, found = str(self.path), []
        for path in documents_in(self.path):
            with suppress(OSError):  # gone meanwhile, or behind a link that may not be followed
                found.append(_file(path, str(path).removeprefix(root)))
        return found

    def refresh(self, on_progress: OnProgress | None = None) -> dict[str, Any] | None:
        """Have the index agree with the files. What was done, as `build_index` says it; None for nothing."""
        return self._ensured(on_progress)[1]

    def _ensured(self, on_progress: OnProgress | None = None) -> tuple[Path, dict[str, Any] | None]:
        """The index of the files as they are now, and what was done for it."""
        index = self._index()
        if _is_whole(index):
            return index, None
        with self._alone():
            index = self._index()  # of what is there now, after a wait
            return index, None if _is_whole(index) else self._build(index, on_progress)

    def _index(self) -> Path:
        try:
            return self.folder / self.stamp()[:24]
        except (FileNotFoundError, NotADirectoryError):
            raise UsageError(f"there is no file or folder '{self.path}' (looked in {Path.cwd()})") from None
        except OSError as error:
            raise UsageError(f"cannot read '{self.path}': {error.strerror or error}") from error

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else changes the folder meanwhile."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # it holds the texts
            with locked(self.folder / _LOCK):
                yield
        except (OSError, ParallelSearchError) as error:
            if (refused := _refused(error)) is None:
                raise
            build = shlex.join(["parallelsearch", "index", str(self.path), "--out", "my-index"])
            raise ParallelSearchError(
                f"the index of '{self.path}' cannot be kept in '{self.folder}': {refused.strerror or refused}. Name another "
                f"place in {CACHE_ENV}, or build an index where you like: {build}"
            ) from error

    def _build(self, index: Path, on_progress: OnProgress | None) -> dict[str, Any]:
        _log.info("the files of '%s' are new or have changed: they are indexed", self.path)
        # The path as it is, also one that is not UTF-8; first, so that what a killed build leaves goes with its files, too.
        write_whole(self.folder / _NOTE, json.dumps({"path": self._place}))
        for beside in (index, partial_folder(index)):  # damaged, or of a build that was killed
            _remove(beside)
        report = build_index(
            self.path,
            index,
            stemmer=None if self.stemmer == "none" else self.stemmer,
            title_weight=self.title_weight,
            chunk_words=self.chunk_words,
            on_progress=on_progress,
        )
        for path in self.folder.iterdir():
            if path.name not in (index.name, _NOTE, _LOCK):
                _remove(path)
        _sweep(self.folder.parent)
        return report

    def open(self) -> BM25Retriever:
        index, report = self._ensured()
        if report is not None and report["num_skipped"]:
            told = "; ".join(map(str, report["problems"][:_NUM_TOLD]))
            _log.warning("%d of the files of '%s' could not be read: %s", report["num_skipped"], self.path, told)
        with suppress(IndexDamagedError):  # somebody tidied up, or built that of files which have changed since
            return BM25Retriever(index)
        with self._alone():
            index = self._index()
            with suppress(IndexDamagedError):
                return BM25Retriever(index)
            self._build(index, None)
            return BM25Retriever(index)


def _file(path: Path, name: str) -> _File:
    about = path.stat()
    return name, about.st_size, about.st_mtime_ns, about.st_ctime_ns


def _stamp_of(files: Sequence[_File]) -> str:
    readers = [name for name in READERS if find_spec(name) is not None]  # files of others are read once they are there
    digest = hashlib.sha256(f"{_code_of_readers()}\0{readers}\n".encode())
    for name, *numbers in files:
        digest.update("\0".join([name, *map(str, numbers), "\n"]).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


@functools.cache
def _code_of_readers(package: Path = Path(__file__).parents[1]) -> str:
    """Of this family and what it reads files with. Between two releases a version says nothing of what has changed."""
    modules = [*sorted((package / "retrieval").glob("*.py")), package / "files.py", package / "untrusted.py"]
    digest = hashlib.sha256(__version__.encode())
    for module in modules:
        with suppress(OSError):  # of a package without its sources
            digest.update(module.read_bytes())
    return digest.hexdigest()


def _is_whole(index: Path) -> bool:
    try:
        open_manifest(index)
    except (OSError, ParallelSearchError):
        return False
    return True


def _refused(error: Exception) -> OSError | None:
    """What the system said where the cache took nothing: a builder tells it in words of its own. Of a file outside it is not
    the cache's."""
    cause = error if isinstance(error, OSError) else error.__cause__
    if not isinstance(cause, OSError) or isinstance(error, DataError):
        return None
    is_here = cause.filename is None or Path(cause.filename).is_relative_to(cache_dir())
    return cause if is_here else None


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


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
    return LiveFiles(Path(path).absolute(), **options)


def stamps_of(path: str, **options: Any) -> Callable[[], list[str]]:
    """What a server looks at to see whether files have changed."""
    return live_files(path, **options).settled_stamp


def open_files(path: str, **options: Any) -> BM25Retriever:
    return live_files(path, **options).open()
