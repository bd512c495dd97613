"""What every local engine is: requests of many concurrent rollouts come in, one worker thread runs the model.

An engine knows which rollouts are alive (`open_session`, `close_session`), so that it can wait until all of them want a
turn before it starts a batch. It belongs to no event loop: each request carries its own, and results travel back with
`call_soon_threadsafe`. A cancelled request is dropped at the next step and never disturbs the others.

With `deterministic=True` a batch forms only when every live rollout waits, rows ordered by session key, so that the same
rollouts give the same batches again. Every live rollout must then sooner or later ask for a turn or end.

Nothing here knows what the model runs on: `model.py` has what engines on torch share, `llama.py` the one on llama.cpp.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from parallelsearch.errors import PolicyError
from parallelsearch.limits import LOOP_LENGTH, goes_in_circles
from parallelsearch.policy.base import Finish, Sampling

OnTokens = Callable[[list[int]], None]

SWITCH_S = 1e-4
"""Every tensor operation lets go of the interpreter, and gets it back from a busy event loop only when this time is over.
With Python's own 5 ms, 600 operations of a prefill beside a busy loop take 3.6 s instead of 0.1."""

LOOP_CHECK = 16
"""So many tokens apart a turn is looked at: does it go in circles?"""

_switching = threading.Lock()
_num_quick = 0
_usual_switch_s = 0.0


@contextmanager
def _quick_switching() -> Iterator[None]:
    """`SWITCH_S` for the whole process, while an engine works; the last one to rest puts back what was there before."""
    global _num_quick, _usual_switch_s
    with _switching:
        if _num_quick == 0:
            _usual_switch_s = sys.getswitchinterval()
            sys.setswitchinterval(min(_usual_switch_s, SWITCH_S))
        _num_quick += 1
    try:
        yield
    finally:
        with _switching:
            _num_quick -= 1
            if _num_quick == 0:
                sys.setswitchinterval(_usual_switch_s)


@dataclass(frozen=True, slots=True)
class Output:
    """One turn: ids as they were drawn, the one that completes a stop string included, and their log-probabilities."""

    token_ids: list[int]
    logprobs: list[float]
    finish: Finish


@dataclass(slots=True, eq=False)
class Request:
    """One turn that is asked for. `token_ids` and `logprobs` fill up while it runs."""

    ids: list[int]
    max_new_tokens: int
    sampling: Sampling
    start_state: int
    key: str
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Output]
    on_tokens: OnTokens | None = None
    arrived_s: float = field(default_factory=time.monotonic)
    is_cancelled: bool = False
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    num_looked_at: int = 0

    @property
    def is_caught(self) -> bool:
        """Whether it goes in circles: it then ends as it would at its limit."""
        if len(self.token_ids) < max(LOOP_LENGTH, self.num_looked_at + LOOP_CHECK):
            return False
        self.num_looked_at = len(self.token_ids)
        return goes_in_circles(self.token_ids)

    def add(self, tokens: list[int], logprobs: list[float]) -> None:
        self.token_ids += tokens
        self.logprobs += logprobs
        self.stream(tokens)

    def stream(self, tokens: list[int]) -> None:
        if self.on_tokens is not None and tokens and not self.is_cancelled:
            _post(self.loop, self.on_tokens, tokens)

    def resolve(self, finish: Finish) -> None:
        _post(self.loop, _set_result, self.future, Output(self.token_ids, self.logprobs, finish))

    def fail(self, error: Exception) -> None:
        _post(self.loop, _set_exception, self.future, error)


def _post(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *values: object) -> None:
    try:
        loop.call_soon_threadsafe(call, *values)
    except RuntimeError:
        return  # the loop is closed: whoever waited there is gone


def _set_result(future: asyncio.Future[Output], output: Output) -> None:
    if not future.done():
        future.set_result(output)


def _set_exception(future: asyncio.Future[Output], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


class Stops(Protocol):
    """Knows the state in which a turn with these stop strings begins."""

    def start(self, stops: tuple[str, ...]) -> int: ...


class Engine(ABC):
    """The queue, the live rollouts and the worker thread; a subclass says what the thread does."""

    name = "engine"

    def __init__(self, stops: Stops, max_context: int, *, deterministic: bool = False) -> None:
        self.max_context = max_context
        self.deterministic = deterministic
        self._stops = stops
        self.stats: Counter[str] = Counter()
        self.seconds: dict[str, float] = {}
        """Wall-clock seconds the worker thread spent on parts of its work, by name; whoever reads them may clear them."""
        self.on_busy: Callable[[bool], None] | None = None
        """Called in the worker thread: with True before the model runs, with False after."""
        self._wake = threading.Condition()
        self._waiting: list[Request] = []
        self._live: Counter[str] = Counter()
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._is_idle = True
        self._num_open = 0

    # ---- called in the event loop ------------------------------------------------------------------------------------

    def open_session(self, key: str) -> None:
        """A rollout begins: batches wait for it from now on."""
        with self._wake:
            self._live[key] += 1

    def close_session(self, key: str) -> None:
        """A rollout has ended, well or not: nobody waits for it, and what the engine kept for it is freed."""
        with self._wake:
            self._live[key] -= 1
            if self._live[key] <= 0:
                del self._live[key]
                self._forget(key)
            self._wake.notify_all()

    async def generate(
        self,
        ids: list[int],
        *,
        stop: Iterable[str],
        max_new_tokens: int,
        sampling: Sampling,
        key: str,
        on_tokens: OnTokens | None = None,
    ) -> Output:
        """One turn after `ids`. Raises `PolicyError` when there is no room for a single token."""
        room = self.max_context - len(ids)
        if not ids or room < 1 or max_new_tokens < 1:
            raise PolicyError(
                f"no room to generate: {len(ids)} tokens so far, a context of {self.max_context}, "
                f"{max_new_tokens} new tokens asked for"
            )
        loop = asyncio.get_running_loop()
        request = Request(
            ids=ids,
            max_new_tokens=min(max_new_tokens, room),
            sampling=sampling,
            start_state=0,
            key=key,
            loop=loop,
            future=loop.create_future(),
            on_tokens=on_tokens,
        )
        # Every coroutine that can run gets to open its session or reach its own `generate` before this one counts.
        for _ in range(3):
            await asyncio.sleep(0)
        with self._wake:
            if self._is_closing:
                raise PolicyError("the local engine is closed")
            request.start_state = self._stops.start(tuple(stop))
            request.arrived_s = time.monotonic()
            self._waiting.append(request)
            self._num_open += 1
            self._begin()
            self._wake.notify_all()
        try:
            return await request.future
        except asyncio.CancelledError:
            with self._wake:
                request.is_cancelled = True
                self._wake.notify_all()
            raise
        finally:
            with self._wake:
                self._num_open -= 1

    def reset(self) -> None:
        """Forget everything computed with the old weights. Call it after every weight update, between turns."""
        with self._wake:
            if self._num_open:
                raise PolicyError("reset() was called while turns are being generated; wait for the rollouts first")
            # The last results are out before the thread has tidied up behind them.
            if not self._wake.wait_for(lambda: self._thread is None or self._is_idle, timeout=60):
                raise PolicyError("reset(): the engine did not come to rest within 60 s")
            self._drop_caches()

    def close(self) -> None:
        """Stop the thread; requests that wait get an error."""
        with self._wake:
            self._is_closing = True
            self._wake.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _begin(self) -> None:
        """Start the thread if it does not run yet. Called with the lock held."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"parallelsearch-{self.name}", daemon=True)
            self._thread.start()

    def describe(self) -> dict[str, Any]:
        return {"engine": self.name, "deterministic": self.deterministic, "max_context": self.max_context}

    # ---- for subclasses ----------------------------------------------------------------------------------------------

    @abstractmethod
    def _work(self) -> None:
        """The thread: take requests, run the model, deliver; return when closing."""

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Around what the thread does with the model."""
        told = self.on_busy
        with _quick_switching():
            if told is not None:
                told(True)
            try:
                yield
            finally:
                if told is not None:
                    told(False)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began_s

    def _rest(self, delay_s: float | None) -> None:
        """The thread has nothing to do: wait for news, or for the delay to pass. Called with the lock held."""
        self._is_idle = True
        self._wake.notify_all()
        self._wake.wait(delay_s)
        self._is_idle = False

    def _forget(self, key: str) -> None:  # noqa: B027 - only an engine that keeps something needs it
        """Free what is kept for a rollout. Called with the lock held."""

    def _drop_caches(self) -> None:  # noqa: B027 - only an engine that keeps something needs it
        """Free what was computed with the old weights. Called with the lock held."""

    def _everyone_waits(self) -> bool:
        """No live rollout is elsewhere. Called with the lock held."""
        waiting = {request.key for request in self._waiting}
        return all(key in waiting for key in self._live)

    def _drop_cancelled(self) -> None:
        self._waiting = [request for request in self._waiting if not request.is_cancelled]

    def _fail_waiting(self) -> None:
        for request in self._waiting:
            request.fail(PolicyError("the local engine was closed"))
        self._waiting.clear()
