"""A cache on disk that runs and processes share: SQLite in WAL mode, between any backend and its caller.

An answer is found again by the backend's own description, the query and k; a backend that has no more than a name to say is
refused, because another of that name would be given its answers. Only hits are kept: a failure, or an engine
that found nothing this time, is asked again. The cache may fail (disk full, locked, damaged) without a search failing:
it is then as if it were empty, and the log says so. A damaged file is moved aside, never repaired or deleted.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import logging
import math
import os
import sqlite3
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from parallelsearch.errors import UsageError
from parallelsearch.retrieval.base import Hit, KeptHits, PassingHits, Result, Retriever, WrappingRetriever, is_fresh
from parallelsearch.retrieval.replay import hits_to_rows, rows_to_hits

FORMAT_VERSION = 1
_MAX_SKEW_S = 300.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (
    backend TEXT NOT NULL, query TEXT NOT NULL, k INTEGER NOT NULL,
    hits TEXT NOT NULL, stored_s REAL NOT NULL, used_s REAL NOT NULL,
    PRIMARY KEY (backend, query, k)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS answers_by_use ON answers (used_s);
"""
_NAMES = {"kind", "retriever", "code_sha256"}
"""What a backend says of itself that does not say what it searches: what it is called, the class of another framework's
retriever, and its code, which may read a file."""
_SQLITE_HEAD = b"SQLite format 3\x00"
_log = logging.getLogger(__name__)


def _says_nothing(description: Any) -> bool:
    """Of a backend, or of one that it is made of."""
    if not isinstance(description, dict):
        return False
    parts = [*description.get("parts", ()), *([description["inner"]] if "inner" in description else [])]
    return set(description) <= _NAMES or any(map(_says_nothing, parts))


class CachedRetriever(WrappingRetriever):
    """Answers from the file `path` where it can, from `inner` where it must.

    `ttl_s` is how long an answer stays good; `max_entries` how many are kept, those used last.
    """

    def __init__(
        self,
        inner: Retriever,
        path: str | os.PathLike[str],
        *,
        ttl_s: float | None = None,
        max_entries: int | None = None,
        lock_timeout_s: float = 5.0,
    ) -> None:
        if (ttl_s is not None and ttl_s <= 0) or (max_entries is not None and max_entries < 1):
            raise UsageError(f"a cache needs ttl_s > 0 and max_entries >= 1, not {ttl_s} and {max_entries}")
        super().__init__(inner)
        self.path = Path(path)
        self.ttl_s, self.max_entries, self.lock_timeout_s = ttl_s, max_entries, lock_timeout_s
        self.num_found = self.num_faults = 0
        if _says_nothing(inner.describe()):
            raise UsageError(
                f"the answers of '{inner.name}' cannot be kept: another search of that name would be given them. Give it a "
                "describe() that says what it searches, for example {'kind': 'shelf', 'corpus': 'books', 'version': 3}"
            )
        # SQLite blocks, and a connection belongs to one thread.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="search-cache")
        self._connection: sqlite3.Connection | None = None
        self._is_closed = False
        self._num_stored = 0
        self._thread.submit(self._open).result()

    where = Retriever.where  # the file is for the whole backend

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        if is_fresh.get():
            return await self.inner.search_many(queries, k)
        backend = self._backend()
        found = await self._in_thread(partial(self._look_up, backend), list(queries), k)
        results: list[Result | None] = [found.get(query) for query in queries]
        missing = [i for i, result in enumerate(results) if result is None]
        self.num_found += len(queries) - len(missing)
        if missing:
            answers = await self.inner.search_many([queries[i] for i in missing], k)
            new = {
                queries[i]: hits
                for i, hits in zip(missing, answers, strict=True)
                # Where something is missing, it may be back next time.
                if isinstance(hits, list) and hits and not isinstance(hits, PassingHits)
            }
            if (
                new and backend == self._backend()
            ):  # not where an index was opened again meanwhile: whose answers are they?
                await self._in_thread(partial(self._store, backend), new, k)
            for i, answer in zip(missing, answers, strict=True):
                results[i] = answer
        return [result for result in results if result is not None]

    def _backend(self) -> str:
        """What is searched now, as the file knows it."""
        return hashlib.sha256(json.dumps(self.inner.describe(), sort_keys=True, default=str).encode()).hexdigest()

    async def _in_thread(self, work: Any, queries: Any, k: int) -> dict[str, list[Hit]]:
        """Run `work`; when the file lets us down, log it and go on without."""

        def guarded() -> dict[str, list[Hit]]:
            try:
                answer: dict[str, list[Hit]] = work(queries, k)
                return answer
            except sqlite3.Error as error:
                self.num_faults += 1
                _log.warning("the search cache %s failed and was passed over: %s", self.path, error)
                if _is_damage(error):
                    self._reopen()
                return {}

        return await asyncio.get_running_loop().run_in_executor(self._thread, guarded)

    def _look_up(self, backend: str, queries: list[str], k: int) -> dict[str, list[Hit]]:
        connection = self._connected()
        now, found = time.time(), dict[str, list[Hit]]()
        oldest_s = now - self.ttl_s if self.ttl_s is not None else 0.0
        for query in dict.fromkeys(queries):
            row = connection.execute(
                "SELECT hits FROM answers WHERE backend = ? AND query = ? AND k = ? AND stored_s BETWEEN ? AND ?",
                # Stored in what is the future here: by a clock that was ahead. It would outlive its time.
                (
                    backend,
                    _storable(query),
                    k,
                    oldest_s,
                    now + _MAX_SKEW_S if self.ttl_s is not None else math.inf,
                ),
            ).fetchone()
            if row is not None:
                try:
                    found[query] = KeptHits(rows_to_hits(json.loads(row[0])))
                except (ValueError, TypeError):
                    _log.warning("the search cache %s has an unreadable answer; it is asked for again", self.path)
        if found and self.max_entries is not None:
            with connection:
                keys = [(now, backend, _storable(query), k) for query in found]
                connection.executemany("UPDATE answers SET used_s = ? WHERE backend = ? AND query = ? AND k = ?", keys)
        return found

    def _store(self, backend: str, answers: dict[str, list[Hit]], k: int) -> dict[str, list[Hit]]:
        connection, now = self._connected(), time.time()
        rows = [
            (backend, _storable(query), k, json.dumps(hits_to_rows(hits)), now, now) for query, hits in answers.items()
        ]
        with connection:
            connection.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?)", rows)
            self._num_stored += len(rows)
            if self.max_entries is not None and self._num_stored >= max(1, self.max_entries // 20):
                self._num_stored = 0
                self._drop_least_used(connection)
        return {}

    def _drop_least_used(self, connection: sqlite3.Connection) -> None:
        connection.execute(
            "DELETE FROM answers WHERE (backend, query, k) IN (SELECT backend, query, k FROM answers"
            " ORDER BY used_s DESC LIMIT -1 OFFSET ?)",
            (self.max_entries,),
        )

    # ---- the file ----------------------------------------------------------------------------------------------------

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            raise sqlite3.OperationalError("the cache is closed")
        return self._connection

    def _reopen(self) -> None:
        self._close()
        try:
            self._open(is_suspect=True)
        except UsageError as error:
            _log.warning("%s; going on without it", error)

    def _open(self, is_suspect: bool = False) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = open(f"{self.path}.lock", "ab")  # noqa: SIM115 - held by the block below
        except OSError as error:
            raise UsageError(f"cannot keep a search cache in '{self.path}': {error.strerror or error}") from error
        with lock:
            # Opening, and moving a damaged file aside, is one process's work at a time.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_suspect:
                self._check_is_ours()
            try:
                self._connection = self._connect(is_suspect)
            except sqlite3.DatabaseError as error:
                if not _is_damage(error):
                    raise UsageError(f"cannot keep a search cache in '{self.path}': {error}") from error
                moved = self._move_aside()
                _log.warning("the search cache %s is damaged (%s); it was moved to %s", self.path, error, moved)
                self._connection = self._connect()

    def _check_is_ours(self) -> None:
        """Refuse a file that somebody else wrote: it is not ours to move aside, nor to write tables into."""
        try:
            with self.path.open("rb") as file:
                head = file.read(len(_SQLITE_HEAD))
        except FileNotFoundError:
            return
        except OSError as error:
            raise UsageError(f"cannot keep a search cache in '{self.path}': {error.strerror or error}") from error
        if head and (head != _SQLITE_HEAD or not self._tables() <= {"answers"}):
            raise UsageError(f"'{self.path}' is there and is no search cache; it is left as it is. Give another file")

    def _tables(self) -> set[str]:
        """The tables of a SQLite file; none if it is damaged, which opening it will find out."""
        connection = sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro", uri=True, timeout=self.lock_timeout_s)
        try:
            return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        except sqlite3.Error:
            return set()
        finally:
            connection.close()

    def _connect(self, is_suspect: bool = False) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=self.lock_timeout_s)
        try:
            # A write is safe under kill -9; a power cut may lose the last ones, but not damage the file.
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, FORMAT_VERSION):
                raise UsageError(
                    f"the search cache '{self.path}' has version {version}; this program reads {FORMAT_VERSION}."
                    " Give another file"
                )
            # Reads the whole file, so not without a reason.
            if is_suspect and connection.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("database disk image is malformed")
            connection.executescript(_SCHEMA)
            connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
            connection.commit()
        except BaseException:
            connection.close()
            raise
        return connection

    def _move_aside(self) -> Path:
        moved = self.path.with_name(f"{self.path.name}.damaged-{time.time_ns()}")
        for suffix in ("", "-wal", "-shm"):
            part = Path(f"{self.path}{suffix}")
            if part.exists():
                part.rename(f"{moved}{suffix}")
        return moved

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    async def aclose(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
            self._thread.shutdown()
        await self.inner.aclose()


def _is_damage(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    return "malformed" in str(error)


def _storable(query: str) -> str:
    """The query as SQLite can hold it: a lone surrogate has no UTF-8."""
    return query if query.isascii() else query.encode("utf-8", "backslashreplace").decode("utf-8")
