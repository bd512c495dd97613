"""Record a run's searches to one file and replay them offline, bit for bit.

The file is JSON Lines: a first line that names the backend, then one line for each answered query, failures included.
A line is written in one piece before the answer is handed on, so a killed run leaves at most one torn line, which the
next run seals off and a replay skips with a warning. A replay keeps only positions in memory and has no state: a query
gets the first good answer that was recorded (else its last failure), today, tomorrow and after a resume.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import itertools
import json
import logging
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from parallelsearch.errors import DataError, SearchError, SearchTimeoutError, TransientSearchError, UsageError
from parallelsearch.retrieval.base import BlockingRetriever, DegradedHits, Hit, Result, Retriever, WrappingRetriever
from parallelsearch.retrieval.metadata import bounded

FORMAT_VERSION = 1
_HEADER_LINES = 100
"""The backend is named in one of these: in the first, unless runs were killed while they wrote it."""
_ERROR_TYPES: dict[str, type[SearchError]] = {
    error.__name__: error for error in (SearchError, SearchTimeoutError, TransientSearchError)
}
_log = logging.getLogger(__name__)


# ---- results as JSON -------------------------------------------------------------------------------------------------


def hits_to_rows(hits: Sequence[Hit]) -> list[list[Any]]:
    """Hits as plain lists: floats keep every bit in JSON, as Python writes them. Metadata stands last, where there is any."""
    return [
        [hit.id, hit.title, hit.text, hit.url, hit.date, hit.score, hit.rank]
        + ([] if hit.metadata is None else [bounded(hit.metadata)])
        for hit in hits
    ]


def rows_to_hits(rows: Sequence[Sequence[Any]]) -> list[Hit]:
    return [Hit(*row) if len(row) < 8 else Hit(*row[:7], metadata=row[7]) for row in rows]


def _line_of(query: str, k: int, result: Result) -> bytes:
    record: dict[str, Any] = {"query": query, "k": k}
    if isinstance(result, list):
        record["hits"] = hits_to_rows(result)
        if isinstance(result, DegradedHits):
            record["missing"] = result.failures
    else:
        name = next(name for name in reversed(_ERROR_TYPES) if isinstance(result, _ERROR_TYPES[name]))
        record["error"] = {"type": name, "message": str(result)}
    return json.dumps(record, separators=(",", ":")).encode("ascii") + b"\n"


def _result_of(record: dict[str, Any]) -> Result:
    if "hits" in record:
        hits = rows_to_hits(record["hits"])
        return DegradedHits(hits, [str(one) for one in record["missing"]]) if "missing" in record else hits
    error_type, message = _ERROR_TYPES.get(record["error"]["type"], SearchError), record["error"]["message"]
    if issubclass(error_type, TransientSearchError):
        return TransientSearchError(message, 0.0)  # repeated as it was, but nobody has to wait for a recording
    return error_type(message)


# ---- recording -------------------------------------------------------------------------------------------------------


class RecordingRetriever(WrappingRetriever):
    """Passes queries on to `inner` and appends every answer to `file`. Several processes may share one file.

    What was written survives the death of the process. Against a power cut the file is also forced to disk, every
    `sync_every_s` seconds (0: after every call) and at the end. Where it cannot be written (disk full) the search fails; if
    it need not be whole, because people wait for answers, the log says so once, and the searches go on without it.
    """

    def __init__(
        self,
        inner: Retriever,
        file: str | os.PathLike[str],
        *,
        sync_every_s: float = 5.0,
        must_be_whole: bool = True,
    ) -> None:
        super().__init__(inner)
        self.path, self.sync_every_s = Path(file), sync_every_s
        self.must_be_whole = must_be_whole
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UsageError(f"cannot record to '{self.path}': {error.strerror or error}") from error
        # Lines go through one thread, in order; the event loop never waits for the disk.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="record")
        self._synced_s = time.monotonic()
        self._is_closed = self._has_ended = False
        header = {"recording": FORMAT_VERSION, "backend": inner.describe()}
        self._header = json.dumps(header, sort_keys=True).encode("ascii") + b"\n"
        try:
            self._check_is_ours(header["backend"])
            self._write(b"")
        except UsageError:
            os.close(self._fd)
            raise

    where = Retriever.where  # a recording is of the whole backend

    def _check_is_ours(self, backend: Any) -> None:
        """Refuse a file that is no recording, and one of another search: a replay could not tell their answers apart."""
        fcntl.flock(self._fd, fcntl.LOCK_SH)
        try:
            with self.path.open("rb") as file:
                head = file.read(len(self._header))
                file.seek(0)
                lines = itertools.islice(file, _HEADER_LINES)
                found = next((one for line in lines if (one := _header_in(line, self.path)) is not None), None)
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        if found is not None and found != json.loads(json.dumps(backend)):
            other = found.get("kind", "another search")
            raise UsageError(
                f"'{self.path}' is a recording of another search ({other}, by what it says of itself); give another file"
            )
        if found is None and not self._header.startswith(head):  # somebody may have died while writing that very line
            raise UsageError(f"'{self.path}' is there and is no recording; it is left as it is. Give another file")

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        try:
            results = await self.inner.search_many(queries, k)
        except SearchError as error:
            await self._record(b"".join(_line_of(query, k, error) for query in queries))
            raise
        await self._record(b"".join(_line_of(q, k, result) for q, result in zip(queries, results, strict=False)))
        return results

    async def _record(self, lines: bytes) -> None:
        if self._has_ended:
            return
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer, self._write, lines)
        except UsageError as error:
            if self.must_be_whole:
                raise
            if not self._has_ended:
                self._has_ended = True
                _log.error("%s; nothing more is recorded, the searches go on without it", error)

    def _write(self, lines: bytes) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                size = os.fstat(self._fd).st_size
                if size == 0:
                    lines = self._header + lines
                elif os.pread(self._fd, 1, size - 1) != b"\n":
                    # Somebody died in the middle of a line: seal it off. It may have been the first line.
                    lines = b"\n" + self._header + lines
                while lines:
                    lines = lines[os.write(self._fd, lines) :]
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
            if time.monotonic() - self._synced_s >= self.sync_every_s:
                os.fsync(self._fd)
                self._synced_s = time.monotonic()
        except OSError as error:
            # A recording with holes is worth little, so this is not passed over in silence.
            raise UsageError(f"cannot record to '{self.path}': {error.strerror or error}") from error

    async def aclose(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            try:
                await asyncio.get_running_loop().run_in_executor(self._writer, os.fsync, self._fd)
            except OSError as error:  # a disk that is full or gone may say so only now
                _log.error("cannot record to '%s': %s; its end may be missing", self.path, error.strerror or error)
            finally:
                self._writer.shutdown()
                os.close(self._fd)
        await self.inner.aclose()


# ---- replaying -------------------------------------------------------------------------------------------------------


class ReplayRetriever(BlockingRetriever):
    """Answers from a recording, and only from it."""

    name = "replay"
    max_batch = 256

    def __init__(self, file: str | os.PathLike[str]) -> None:
        self.path = Path(file)
        self._positions: dict[str, list[tuple[int, int, int, bool]]] = {}
        self._backend: dict[str, Any] | None = None
        try:
            self._file = self.path.open("rb")
        except OSError as error:
            raise UsageError(f"cannot replay '{self.path}': {error.strerror or error}") from error
        try:
            self._digest = self._read_positions()
        except BaseException:
            self._file.close()
            raise
        super().__init__()

    def _read_positions(self) -> str:
        digest, start = hashlib.sha256(), 0
        bad: list[int] = []
        for number, line in enumerate(self._file, start=1):
            digest.update(line)
            try:
                record: Any = json.loads(line) if line.strip() else {}
                if record.get("recording") is not None:
                    self._backend = _checked_header(record, self.path)
                elif "query" in record:
                    _result_of(record)  # whatever cannot be read is found now, not in the middle of a run
                    place = (int(record["k"]), start, len(line), "hits" in record)
                    self._positions.setdefault(record["query"], []).append(place)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                bad.append(number)
            start += len(line)
        if self._backend is None:
            raise DataError(str(self.path), None, "is not a recording: no line names the backend it was made with")
        if bad:
            lines = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
            _log.warning("%s: %d torn or damaged lines were skipped (line %s)", self.path, len(bad), lines)
        return digest.hexdigest()

    def __len__(self) -> int:
        """How many distinct queries were recorded."""
        return len(self._positions)

    def search_blocking(self, queries: Sequence[str], k: int) -> list[Result]:
        return [self._answer(query, k) for query in queries]

    def _answer(self, query: str, k: int) -> Result:
        places = self._positions.get(query)
        if places is None:
            return SearchError(f"the recording {self.path.name} has no query {query[:200]!r}")
        good = [place for place in places if place[3]]
        for place in sorted((p for p in good if p[0] >= k), key=lambda p: p[0]):
            result = self._read(place)
            if isinstance(result, DegradedHits):
                return DegradedHits(result[:k], result.failures)
            return result[:k] if isinstance(result, list) else result
        for place in good:  # fewer were asked for, but there were no more
            result = self._read(place)
            if isinstance(result, list) and len(result) < place[0]:
                return result
        if good:
            most = max(place[0] for place in good)
            return SearchError(f"the recording {self.path.name} has only {most} hits, not {k}, for {query[:200]!r}")
        return self._read(places[-1])

    def _read(self, place: tuple[int, int, int, bool]) -> Result:
        _, start, length, _ = place
        return _result_of(json.loads(os.pread(self._file.fileno(), length, start)))

    def describe(self) -> dict[str, Any]:
        return {"kind": self.name, "file": self.path.name, "sha256": self._digest, "backend": self._backend}

    async def aclose(self) -> None:
        await super().aclose()
        self._file.close()


def _header_in(line: bytes, path: Path) -> dict[str, Any] | None:
    """The backend that a line names, if it is the first of a recording, or one that seals a torn line off."""
    try:
        record: Any = json.loads(line)
        return _checked_header(record, path) if isinstance(record, dict) and "recording" in record else None
    except (ValueError, KeyError, RecursionError):
        return None


def _checked_header(record: Any, path: Path) -> dict[str, Any]:
    version = record["recording"]
    if version != FORMAT_VERSION:
        raise UsageError(f"'{path}' is a recording of version {version}; this program reads version {FORMAT_VERSION}")
    backend: dict[str, Any] = record["backend"]
    return backend
