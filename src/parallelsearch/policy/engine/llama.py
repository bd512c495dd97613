"""The engine on llama.cpp: rows join and leave at every step, and each rollout keeps its sequence between turns.

A turn feeds only what its sequence does not hold yet. A newcomer takes a free sequence, and the beginning that it shares with
another one is copied, so that the prompt's fixed part is read once. The cache grows, to twice the sequences each time, when
more rollouts are alive than it has; nothing is read again for that. Rollouts that own a sequence go before newcomers; one
that waits for its search loses it only when nothing else can run. `read_ahead` has the fixed part read before there is a
question, or taken from the disk.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from parallelsearch.errors import ParallelSearchError, PolicyError
from parallelsearch.policy.base import Finish
from parallelsearch.policy.engine.base import Engine, Request
from parallelsearch.policy.engine.draw_numpy import draw
from parallelsearch.policy.engine.kept import KeptStates
from parallelsearch.policy.engine.stops import byte_automaton
from parallelsearch.policy.llama_cpp import Context, Model

logger = logging.getLogger(__name__)

_CHUNK = 256
"""Tokens of prompts that one step feeds: rows that write beside them wait for it."""
_MIN_SHARED = 16
"""A shorter common beginning is not worth a copy."""


class ByteStops:
    """Stop strings over the bytes of tokens, a state for each row. A control token is no text: it breaks a match."""

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        self._piece = piece
        self._starts: dict[tuple[str, ...], int] = {}
        self._steps: list[list[int]] = []
        self._accepts: list[bool] = []

    def start(self, stops: tuple[str, ...]) -> int:
        key = tuple(sorted(set(stops)))
        if key not in self._starts:
            steps, accepts = byte_automaton([stop.encode() for stop in key if stop])
            self._starts[key] = offset = len(self._steps)
            self._steps += (steps.astype(int) + offset).tolist()
            self._accepts += accepts.tolist()
        return self._starts[key]

    def step(self, start: int, state: int, token: int) -> int:
        piece = self._piece(token)
        if not piece:
            return start
        for byte in piece:
            state = self._steps[state][byte]
        return state

    def is_complete(self, state: int) -> bool:
        return self._accepts[state]


class Threads:
    """How many threads to use: all of them, but fewer while other programs hold cores. Threads wait for each other after
    every operation, so that one without a core stops the rest. Whether ours get theirs is seen in the time that the
    engine's own thread computes, against that of the clock."""

    WINDOW_S, LONGEST_WAIT_S = 0.25, 30.0
    CROWDED, ALONE = 0.7, 0.85

    def __init__(self, most: int) -> None:
        self.most = self.count = most
        self._clock_s = self._computed_s = 0.0
        self._wait_s, self._retry_at_s = 1.0, 0.0

    def note(self, clock_s: float, computed_s: float, now_s: float) -> bool:
        """A step took so long, of which its thread computed so much. True if the number of threads changes."""
        self._clock_s += clock_s
        self._computed_s += computed_s
        if self._clock_s < self.WINDOW_S:
            return False
        share = self._computed_s / self._clock_s
        self._clock_s = self._computed_s = 0.0
        before = self.count
        if share < self.CROWDED and self.count > 1:
            self.count = max(1, self.count // 2)
            self._retry_at_s = now_s + self._wait_s
            self._wait_s = min(2 * self._wait_s, self.LONGEST_WAIT_S)
        elif share > self.ALONE and self.count == self.most:
            self._wait_s = 1.0
        elif share > self.ALONE and now_s >= self._retry_at_s:
            self.count = min(2 * self.count, self.most)
        return self.count != before


@dataclass(slots=True, eq=False)
class _Slot:
    """A sequence of the cache: the tokens it holds, whose it is, and the turn that runs in it."""

    number: int
    held: list[int] = field(default_factory=list)
    key: str | None = None
    request: Request | None = None
    pending: list[int] = field(default_factory=list)
    """Tokens of the turn that were not fed yet."""
    state: int = 0
    used_at: int = 0


class LlamaEngine(Engine):
    """Sequences of one llama.cpp context."""

    name = "llama.cpp"

    def __init__(
        self,
        model: Model,
        stops: ByteStops,
        max_context: int,
        *,
        num_threads: int,
        max_slots: int = 8,
    ) -> None:
        super().__init__(stops, max_context)
        self.model, self.stops = model, stops
        self.threads, self.max_slots = Threads(num_threads), max_slots
        self._context = Context(model, 1, max_context, num_threads)
        self._slots = [_Slot(0)]
        self._clock = 0
        self._ahead: tuple[list[int], KeptStates] | None = None

    def read_ahead(self, ids: list[int], kept: KeptStates) -> None:
        """Tokens that the prompts to come begin with: they are read at once, in the engine's own thread, while the caller
        goes on; or taken from what another process kept of them. Only before the first turn."""
        with self._wake:
            if self._thread is None and not self._is_closing and len(ids) < self.max_context:
                self._ahead = ids, kept
                self._begin()

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"num_threads": self.threads.most, "max_slots": self.max_slots}

    def close(self) -> None:
        super().close()
        self._context.close()

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        if self._ahead is not None:
            with self._at_work():
                self._read(*self._ahead)
        while self._next():
            with self._at_work():
                while self._running() and not self._is_closing:
                    try:
                        self._step()
                    except Exception as error:
                        self._fail(error)
                    with self._wake:
                        self._admit()
        with self._wake:
            for slot in self._running():
                if slot.request is not None:
                    slot.request.fail(PolicyError("the local engine was closed"))
            self._fail_waiting()

    def _read(self, ids: list[int], kept: KeptStates) -> None:
        slot = self._slots[0]
        try:
            state = kept.load(ids)
            if state is None or not self._context.restore(slot.number, state):
                self._context.clear()
                for start in range(0, len(ids), _CHUNK):
                    if self._is_closing:
                        return
                    self._context.feed([(slot.number, start, ids[start : start + _CHUNK], False)])
                kept.save(ids, bytes(self._context.saved(slot.number)))
                self.stats["prefilled"] += len(ids)
            slot.held = ids[:]
        except PolicyError as error:  # then the first prompt is read whole, and says what is wrong
            logger.debug("the beginning of the prompts was not read ahead: %s", error)
            self._drop_caches()

    def _next(self) -> bool:
        """Wait until there is something to run; False when closing."""
        with self._wake:
            while not self._is_closing:
                self._admit()
                if self._running():
                    return True
                self._rest(None)
            return False

    def _running(self) -> list[_Slot]:
        return [slot for slot in self._slots if slot.request is not None]

    def _fail(self, error: Exception) -> None:
        """A step failed: its turns end, and what the cache holds is no longer known."""
        reason = error if isinstance(error, ParallelSearchError) else PolicyError(f"the local model failed: {error}")
        for slot in self._running():
            if slot.request is not None:
                slot.request.fail(reason)
            slot.request = None
        self._drop_caches()

    # ---- who runs ----------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Give waiting turns their sequences. Called with the lock held."""
        self._drop_cancelled()
        for slot in self._running():
            if slot.request is not None and slot.request.is_cancelled:
                slot.request = None
        owners = {slot.key: slot for slot in self._slots if slot.key is not None}
        left: list[Request] = []
        for request in sorted(self._waiting, key=lambda request: request.key not in owners):
            found = owners.get(request.key) or self._free_slot(request)
            if found is None or found.request is not None:
                left.append(request)
                continue
            found.key = request.key if request.key in self._live else None
            owners[request.key] = found
            self._seat(request, found)
        self._waiting = sorted(left, key=lambda request: request.arrived_s)

    def _free_slot(self, request: Request) -> _Slot | None:
        free = [slot for slot in self._slots if slot.key is None and slot.request is None]
        if not free and len(self._slots) < self.max_slots:
            self._grow()
            free = [slot for slot in self._slots if slot.key is None and slot.request is None]
        if not free and not self._running():
            free = [min(self._slots, key=lambda slot: slot.used_at)]
        # The one whose beginning fits best; of those that fit alike, the one that was not used for longest.
        return max(free, key=lambda slot: (num_common(slot.held, request.ids), -slot.used_at), default=None)

    def _seat(self, request: Request, slot: _Slot) -> None:
        keep = self._reusable(slot, request.ids)
        if not self.model.window and not self.model.is_recurrent:
            best = max(self._slots, key=lambda other: num_common(other.held, request.ids))
            shared = min(num_common(best.held, request.ids), len(request.ids) - 1)
            if best is not slot and shared >= keep + _MIN_SHARED:
                self._context.copy(best.number, slot.number)
                slot.held, keep = best.held[:], shared
        if not self._context.cut(slot.number, keep):
            keep = 0
        self.stats["reused"] += keep
        self.stats["prefilled"] += len(request.ids) - keep
        slot.held = slot.held[:keep]
        slot.pending = request.ids[keep:]
        slot.request, slot.state = request, request.start_state
        self._clock += 1
        slot.used_at = self._clock

    def _reusable(self, slot: _Slot, ids: list[int]) -> int:
        """How many tokens at the beginning need not be fed again. The last one always is: its logits are wanted."""
        keep = min(num_common(slot.held, ids), len(ids) - 1)
        if self.model.is_recurrent and keep < len(slot.held):
            return 0  # a state that has read on cannot go back
        if self.model.window and self._context.first_position(slot.number) > max(0, keep - self.model.window):
            return 0
        return keep

    def _grow(self) -> None:
        count = min(2 * len(self._slots), self.max_slots)
        try:
            larger = Context(self.model, count, self.max_context, self.threads.count)
        except PolicyError as error:
            logger.warning("%s; going on with %d at once", error, len(self._slots))
            self.max_slots = len(self._slots)
            return
        for slot in self._slots:
            if slot.held and not larger.restore(slot.number, self._context.saved(slot.number)):
                if slot.request is not None:
                    slot.pending = slot.held + slot.pending
                slot.held = []
        self._context.close()
        self._context = larger
        self._slots += [_Slot(number) for number in range(len(self._slots), count)]

    def _forget(self, key: str) -> None:
        for slot in self._slots:
            if slot.key == key:
                slot.key = None  # what it holds stays, for a newcomer who begins alike

    def _drop_caches(self) -> None:
        if not self._is_closing:
            self._context.clear()
        for slot in self._slots:
            slot.held = []

    # ---- one step ----------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Feed one token of every row that writes, and a piece of the prompts of the others; draw where a turn goes on."""
        rows = sorted(self._running(), key=lambda slot: len(slot.pending))
        room = _CHUNK + sum(len(slot.pending) == 1 for slot in rows)
        room = min(room, self._context.batch_tokens)
        fed: list[tuple[_Slot, int]] = []
        for slot in rows:
            if (size := min(len(slot.pending), room)) > 0:
                fed.append((slot, size))
                room -= size
        began_s, computed_s = time.perf_counter(), time.thread_time()
        logits = iter(
            self._context.feed(
                [(slot.number, len(slot.held), slot.pending[:size], size == len(slot.pending)) for slot, size in fed]
            )
        )
        now_s = time.perf_counter()
        if self.threads.note(now_s - began_s, time.thread_time() - computed_s, now_s):
            self._context.use_threads(self.threads.count)
        self.stats["steps"] += 1
        for slot, size in fed:
            slot.held += slot.pending[:size]
            slot.pending = slot.pending[size:]
            if not slot.pending:
                self._draw(slot, next(logits))

    def _draw(self, slot: _Slot, logits: Any) -> None:
        request = slot.request
        assert request is not None
        token, logprob = draw(logits, request.sampling, len(slot.held))
        slot.state = self.stops.step(request.start_state, slot.state, token)
        request.add([token], [logprob])
        finish: Finish | None = None
        if self.stops.is_complete(slot.state):
            finish = "stop"
        elif self.model.ends(token):
            finish = "eos"
        elif len(request.token_ids) >= request.max_new_tokens or request.is_caught:
            finish = "length"
        if finish is None:
            slot.pending = [token]
        else:
            slot.request = None
            request.resolve(finish)


def num_common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    for number, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return number
    return min(len(one), len(other))
