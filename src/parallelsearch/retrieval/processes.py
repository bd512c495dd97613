"""Any backend in processes of its own, so that searching uses more than one core and leaves the caller's to the caller.

A worker process opens the backend itself (index files are memory-mapped, so all workers share one copy) and answers one
batch at a time over a pipe. A worker that dies or hangs is replaced, and the batch it had is a transient failure, which
the search layer asks again. When the parent is gone, however it ended, its workers end.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import pickle
import queue
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from parallelsearch.errors import (
    IndexDamagedError,
    MissingExtraError,
    ParallelSearchError,
    SearchError,
    SearchTimeoutError,
    TransientSearchError,
    UsageError,
)
from parallelsearch.retrieval.base import BlockingRetriever, DegradedHits, Hit, Result, Retriever

# A batch goes to one worker; small ones spread over all of them and are answered sooner.
MAX_BATCH = 32
START_TIMEOUT_S = 300.0  # a large encoder may have to be loaded
_OPENING_ERRORS = {kind.__name__: kind for kind in (UsageError, MissingExtraError, IndexDamagedError)}
_SEARCH_ERRORS = {kind.__name__: kind for kind in (SearchError, SearchTimeoutError)}


class ProcessRetriever(BlockingRetriever):
    """The backend that `open_backend` opens, in `num_processes` processes. `open_backend` travels to them: a function of a
    module, or a `functools.partial` of one."""

    def __init__(self, open_backend: Callable[[], Retriever], num_processes: int, *, timeout_s: float = 60.0) -> None:
        """`timeout_s`: a worker that takes longer over one batch is replaced."""
        if num_processes < 1:
            raise UsageError(f"the number of search processes is at least 1, not {num_processes}")
        self._open_backend, self._timeout_s = open_backend, timeout_s
        self._is_closed = False
        workers = [_Worker(open_backend) for _ in range(num_processes)]
        try:
            first, *_ = [worker.wait_until_ready() for worker in workers]
        except BaseException:
            for worker in workers:
                worker.stop()
            raise
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in workers:
            self._idle.put(worker)
        self.num_processes = num_processes
        self.name, self._description = first["name"], first["description"]
        # Twice as many calls as workers: a worker finds its next batch waiting when it has answered one.
        super().__init__(2 * num_processes)
        self.max_batch = min(MAX_BATCH, first["max_batch"])

    def describe(self) -> dict[str, Any]:
        return dict(self._description)

    def search_blocking(self, queries: Sequence[str], k: int) -> list[Result]:
        worker = self._idle.get()
        try:
            if not worker.is_alive:
                worker = self._replaced(worker)
            return worker.search(queries, k, self._timeout_s)
        except (EOFError, OSError) as error:
            what = "took too long" if isinstance(error, TimeoutError) else "ended"
            worker.stop()
            raise TransientSearchError(f"a process of {self.name} {what} and is started again") from None
        finally:
            if self._is_closed:
                worker.stop()
            self._idle.put(worker)

    def _replaced(self, worker: _Worker) -> _Worker:
        if self._is_closed:
            raise SearchError(f"{self.name} is closed")
        worker.stop()
        fresh = _Worker(self._open_backend)
        fresh.wait_until_ready()
        return fresh

    async def aclose(self) -> None:
        self._is_closed = True
        await super().aclose()
        await asyncio.get_running_loop().run_in_executor(None, self._stop_idle)

    def _stop_idle(self) -> None:
        """Those at work end with their batch. All stay in the queue: a call that waits for one must not wait for ever."""
        idle: list[_Worker] = []
        with contextlib.suppress(queue.Empty):
            while True:
                idle.append(self._idle.get_nowait())
        for worker in idle:
            worker.stop()
            self._idle.put(worker)


class _Worker:
    """One process, seen from its parent."""

    def __init__(self, open_backend: Callable[[], Retriever]) -> None:
        # spawn: a fork would copy threads' locks and a CUDA context in whatever state they are.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, open_backend), daemon=True)
        self._process.start()
        theirs.close()  # so that the pipe ends when the process does

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive() and not self._pipe.closed

    def wait_until_ready(self) -> dict[str, Any]:
        """Name, description and largest batch of the backend, or the error with which it did not open."""
        try:
            answer: dict[str, Any] = self._receive(START_TIMEOUT_S)
        except (EOFError, OSError) as error:
            self.stop()
            raise ParallelSearchError(
                f"a search process ended while it started ({error or 'no reason given'})"
            ) from None
        if "error" in answer:
            self.stop()
            kind, message = answer["error"]
            raise _OPENING_ERRORS.get(kind, ParallelSearchError)(message)
        return answer

    def search(self, queries: Sequence[str], k: int, timeout_s: float) -> list[Result]:
        self._pipe.send_bytes(pickle.dumps((list(queries), k)))
        answer: list[tuple[Any, ...]] | str = self._receive(timeout_s)
        if isinstance(answer, str):
            raise SearchError(answer)
        return [_unpacked(*packed) for packed in answer]

    def _receive(self, timeout_s: float) -> Any:
        if not self._pipe.poll(timeout_s):
            raise TimeoutError
        return pickle.loads(self._pipe.recv_bytes())

    def stop(self) -> None:
        self._pipe.close()  # a worker that waits for its next batch ends by itself
        self._process.join(0.5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


# ---- in the worker ---------------------------------------------------------------------------------------------------


def _work(pipe: Connection, open_backend: Callable[[], Retriever]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends the pipe
    try:
        backend = open_backend()
    except ParallelSearchError as error:
        pipe.send_bytes(pickle.dumps({"error": (type(error).__name__, str(error))}))
        return
    about = {"name": backend.name, "description": backend.describe(), "max_batch": backend.max_batch}
    pipe.send_bytes(pickle.dumps(about))
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt), asyncio.Runner() as runner:
        while True:
            queries, k = pickle.loads(pipe.recv_bytes())
            pipe.send_bytes(pickle.dumps(runner.run(_answer(backend, queries, k))))


async def _answer(backend: Retriever, queries: list[str], k: int) -> list[tuple[Any, ...]] | str:
    """Packed results, or why the whole call failed."""
    try:
        if isinstance(backend, BlockingRetriever):
            return [
                _packed(result) for result in backend.search_blocking(queries, k)
            ]  # this process has nothing else to do
        return [_packed(result) for result in await backend.search_many(queries, k)]
    except SearchError as error:
        return [_packed(error)] * len(queries)
    except Exception as error:
        return f"{backend.name} failed: {type(error).__name__}: {error}"


def _packed(result: Result) -> tuple[Any, ...]:
    """As plain tuples: pickling dataclasses with slots takes longer than a keyword search."""
    if isinstance(result, SearchError):
        retry_after_s = result.retry_after_s if isinstance(result, TransientSearchError) else None
        return None, type(result).__name__, str(result), retry_after_s
    hits = [(hit.id, hit.title, hit.text, hit.url, hit.date, hit.score, hit.rank, hit.metadata) for hit in result]
    return (hits, result.failures) if isinstance(result, DegradedHits) else (hits,)


def _unpacked(hits: list[tuple[Any, ...]] | None, *more: Any) -> Result:
    if hits is None:
        kind, message, retry_after_s = more
        if kind == TransientSearchError.__name__:
            return TransientSearchError(message, retry_after_s)
        return _SEARCH_ERRORS.get(kind, SearchError)(message)
    found = [Hit(*fields, metadata=metadata) for *fields, metadata in hits]
    return DegradedHits(found, more[0]) if more else found
