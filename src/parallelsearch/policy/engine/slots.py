"""The default engine for decoder-only models with plain full attention: rows join and leave at every step.

Each rollout has a slot of the key-value cache. Between turns the slot stays parked, so that the next turn feeds only what
is new; it is freed when the session ends. This module decides who runs; `slot_decode` runs them.

Rules met in measurements: joins are grouped (a prefill costs several steps) and counted on rows that can join, not on
rows that wait; rollouts that own a slot go before newcomers; a newcomer takes a parked slot only when nothing else can
run. A step is for the rows that run; where the attention cannot pick them, it is for the first slots, and the top row moves
down when many of them idle. Rollouts with the same prompt are prefilled once and copied.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from parallelsearch.errors import PolicyError
from parallelsearch.policy.engine import draw
from parallelsearch.policy.engine.base import Request
from parallelsearch.policy.engine.decode import SlotDecoder, SlotRow, Window, round_up
from parallelsearch.policy.engine.model import ModelEngine, as_policy_error
from parallelsearch.policy.engine.stops import StopBank

FULL_ATTENTION_MODELS = frozenset({"llama", "qwen2", "qwen3", "mistral"})
_STATEFUL_ROPE = frozenset({"dynamic", "longrope"})


def why_not(model: Any) -> str | None:
    """Why this model cannot run in slots, or None if it can."""
    config = model.config
    kind = getattr(config, "model_type", "unknown")
    if kind not in FULL_ATTENTION_MODELS:
        return f"model type '{kind}' is not one of {', '.join(sorted(FULL_ATTENTION_MODELS))}"
    layers = getattr(config, "layer_types", None) or ["full_attention"]
    if any(layer != "full_attention" for layer in layers):
        return "it has layers without full attention"
    if kind == "mistral" and getattr(config, "sliding_window", None):
        return "it has a sliding attention window"
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in _STATEFUL_ROPE:
        return f"its rope type '{rope.get('rope_type')}' depends on the length of the batch"
    if not hasattr(model, "lm_head") or not hasattr(model, "model"):
        return "it has no separate 'model' and 'lm_head'"
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return "its layers are on several devices"
    return None


class SlotEngine(ModelEngine):
    """Iteration-level scheduling with key-value reuse across turns."""

    name = "slot"

    def __init__(
        self,
        model: Any,
        bank: StopBank,
        eos_ids: Iterable[int],
        max_context: int,
        *,
        deterministic: bool = False,
        dtype: torch.dtype | None = None,
        max_slots: int | None = None,
        join_fraction: float = 0.1,
        join_wait_s: float = 0.15,
        settle_s: float = 0.01,
        evict_wait_s: float = 0.25,
        prefill_tokens: int | None = None,
        window: int | None = None,
        use_graphs: bool | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        super().__init__(model, bank, eos_ids, max_context, deterministic=deterministic, dtype=dtype)
        reason = why_not(model)
        if reason is not None:
            raise PolicyError(f"the slot engine cannot run this model: {reason}")
        self.device: torch.device = model.device
        is_cuda = self.device.type == "cuda"
        self.max_slots = max_slots or (512 if is_cuda else 64)
        self.join_fraction, self.join_wait_s = join_fraction, join_wait_s
        self.settle_s, self.evict_wait_s = settle_s, evict_wait_s
        self.prefill_tokens = prefill_tokens or (65536 if is_cuda else 4096)
        self.window = window or (8 if is_cuda else 1)
        self.kv_bucket = 256 if is_cuda else 64
        endings = draw.Endings(bank, self.eos_ids, model.config.get_text_config().vocab_size, self.device)
        self.decoder = SlotDecoder(
            model,
            endings,
            max_slots=self.max_slots,
            max_window=self.window,
            dtype=self.dtype,
            use_graphs=use_graphs,
        )
        self._slot_length = round_up(max_context, self.kv_bucket)
        budget = memory_bytes or _memory_budget(self.device)
        # On CUDA a slot has its full length from the start, since graphs hold the cache's address; elsewhere rows grow.
        if is_cuda:
            fits = budget // (self.decoder.cache.bytes_per_token * (self._slot_length + 1))
            self.max_slots = max(1, min(self.max_slots, fits))
        self._budget = budget
        self._has_full_length = is_cuda
        self._free: list[int] = []
        self._num_slots = 0
        self._running: dict[int, Request] = {}
        self._parked: OrderedDict[str, tuple[int, list[int]]] = OrderedDict()
        self._round: list[Request] = []
        self._released: list[str] = []

    def describe(self) -> dict[str, Any]:
        record = {"attention": self.decoder.attention, "cuda_graphs": self.decoder.use_graphs}
        if self.decoder.draws_in_one_kernel:
            record["fused_draw"] = True
        return super().describe() | record

    # ---- sessions, called with the lock held -------------------------------------------------------------------------

    def _forget(self, key: str) -> None:
        # The thread may be moving slots right now: it frees this one itself, at the top of its loop.
        self._released.append(key)

    def _drop_caches(self) -> None:
        for slot, _ in self._parked.values():
            self._free.append(slot)
        self._parked.clear()
        self.decoder.check_weights()

    # ---- who runs ----------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._wake:
                joiners = self._next_joiners()
            if joiners is None:
                return
            try:
                with self._at_work():
                    self._enter_eval()
                    self.decoder.refresh()
                    if joiners:
                        self._prefill(joiners)
                    if self._running:
                        self._decode()
            except Exception as error:
                self._fail(joiners, error)

    def _next_joiners(self) -> list[tuple[Request, int, int]] | None:
        """Requests that join now, each with its slot and how many tokens are cached there; empty: only go on decoding.
        Waits while there is nothing to do. None: the engine closes."""
        while True:
            self._tidy()
            if self._is_closing:
                for request in [*self._running.values(), *self._round]:
                    request.fail(PolicyError("the local engine was closed"))
                self._fail_waiting()
                return None
            joiners, delay_s = self._choose(time.monotonic())
            if joiners or self._running:
                return joiners
            self._rest(delay_s)

    def _tidy(self) -> None:
        """Free the slots of ended sessions and of cancelled requests."""
        self._drop_cancelled()
        self._round = [request for request in self._round if not request.is_cancelled]
        cancelled = [slot for slot, request in self._running.items() if request.is_cancelled]
        for slot in cancelled:
            del self._running[slot]
        if cancelled:
            self.decoder.vacate(cancelled)
            self._free += cancelled
        if self.deterministic and (self._round or self._running):
            return  # when exactly a session ends is a matter of timing: it must not decide who joins in this round
        for key in self._released:
            if key in self._parked and key not in self._live:
                self._free.append(self._parked.pop(key)[0])
        self._released.clear()

    def _choose(self, now: float) -> tuple[list[tuple[Request, int, int]], float | None]:
        """Who joins, or how long to wait (None: until something happens)."""
        if self.deterministic:
            if not self._round and not self._running and self._waiting and self._everyone_waits():
                self._round, self._waiting = sorted(self._waiting, key=lambda request: request.key), []
            queue = self._round
        else:
            queue = self._waiting
        if not queue:
            return [], None
        owners = [request for request in queue if request.key in self._parked]
        newcomers = [request for request in queue if request.key not in self._parked]
        oldest = min(request.arrived_s for request in queue)
        num_running = len(self._running)
        if not num_running and not self.deterministic and not self._everyone_waits() and now < oldest + self.settle_s:
            return [], oldest + self.settle_s - now
        room = self._room(newcomers)
        if not owners and not room and not num_running:
            grace_s = 0.0 if self.deterministic else oldest + self.evict_wait_s - now
            if grace_s > 0 and not self._everyone_waits():
                return [], grace_s
            room = self._evict(len(newcomers))
        num_admissible = len(owners) + min(len(newcomers), room)
        is_few = num_admissible < self.join_fraction * (num_running + num_admissible)
        has_waited = not self.deterministic and now >= oldest + self.join_wait_s
        if not num_admissible or (num_running and is_few and not has_waited):
            return [], None
        joiners = [(request, *self._own_slot(request)) for request in owners]
        joiners += [(request, self._new_slot(), 0) for request in newcomers[:room]]
        joined = {id(request) for request, _, _ in joiners}
        queue[:] = [request for request in queue if id(request) not in joined]
        return joiners, None

    def _room(self, newcomers: Sequence[Request]) -> int:
        """How many newcomers find a slot without taking anybody's. The memory budget is for slots not yet made: rows
        that grow later keep theirs."""
        limit = self.max_slots
        if newcomers and self._has_full_length:
            limit = self._make_slots(self._num_slots + len(newcomers) - len(self._free))
        elif newcomers:
            longest = max(len(request.ids) + request.max_new_tokens for request in newcomers)
            length = max(self.decoder.cache.length, round_up(longest, self.kv_bucket)) + 1
            limit = min(limit, max(1, self._budget // (self.decoder.cache.bytes_per_token * length)))
        return len(self._free) + max(0, limit - self._num_slots)

    def _make_slots(self, num_wanted: int) -> int:
        """How many slots there are, once those are made that are wanted: at once for every rollout under way, because the
        graphs are recorded anew. Others may share the device: without memory for more, the rollouts take turns."""
        cache = self.decoder.cache
        while cache.num_slots < min(num_wanted, self.max_slots):
            size = min(self.max_slots, _size_of_graph(max(num_wanted, len(self._live), 2 * cache.num_slots)))
            try:
                self.decoder.reserve(size, self._slot_length)
            except torch.OutOfMemoryError:
                self.max_slots = max(1, cache.num_slots, size // 2)
                if size == 1:
                    break  # the forward pass will say so
        return max(1, cache.num_slots)

    def _new_slot(self) -> int:
        if self._free:
            slot = min(self._free)
            self._free.remove(slot)
            return slot
        self._num_slots += 1
        return self._num_slots - 1

    def _own_slot(self, request: Request) -> tuple[int, int]:
        """The parked slot, and how much of it holds: the common prefix, less the last token, which is fed again."""
        slot, cached = self._parked.pop(request.key)
        return slot, min(_common_prefix(cached, request.ids), len(request.ids) - 1)

    def _evict(self, num_wanted: int) -> int:
        """Give up the longest parked slots, at most half of them: their rollouts are all in search."""
        for _ in range(min(num_wanted, max(1, len(self._parked) // 2), len(self._parked))):
            _, (slot, _) = self._parked.popitem(last=False)
            self._free.append(slot)
            self.stats["evicted"] += 1
        return len(self._free)

    # ---- prefill -----------------------------------------------------------------------------------------------------

    def _prefill(self, joiners: list[tuple[Request, int, int]]) -> None:
        self._reserve([slot for _, slot, _ in joiners], max(len(r.ids) + r.max_new_tokens for r, _, _ in joiners))
        rows = {slot: _row(request, slot, num_cached) for request, slot, num_cached in joiners}
        requests = {slot: request for request, slot, _ in joiners}
        leaders: dict[tuple[int, ...], SlotRow] = {}
        copies: dict[int, list[SlotRow]] = {}
        for row in rows.values():
            prompt = tuple(row.ids)
            if row.num_cached == 0 and prompt in leaders:
                copies[leaders[prompt].slot].append(row)
                continue
            copies[row.slot] = []
            if row.num_cached == 0:
                leaders[prompt] = row
        fed = sorted(
            (rows[slot] for slot in copies),
            key=lambda row: (row.num_cached > 0, len(row.ids) - row.num_cached, row.slot),
        )
        for part in _parts(fed, self.prefill_tokens, self.decoder.packs_rows):
            with self._timed("prefill"):
                window = self.decoder.prefill(part, [copies[row.slot] for row in part])
            self.stats["prefill_calls"] += 1
            self.stats["prefill_tokens"] += sum(len(row.ids) - row.num_cached for row in part)
            self.stats["reused_tokens"] += sum(row.num_cached for row in part)
            self.stats["copied_rows"] += sum(len(copies[row.slot]) for row in part)
            slots = [row.slot for row in part] + [copy.slot for row in part for copy in copies[row.slot]]
            for slot in slots:
                self._running[slot] = requests[slot]
            self._take_in(slots, window)

    def _reserve(self, slots: Sequence[int], length: int) -> None:
        cache = self.decoder.cache
        num_slots = max(max(slots) + 1, cache.num_slots)
        if self._has_full_length:
            self.decoder.reserve(num_slots, self._slot_length)
            return
        if num_slots > cache.num_slots:
            num_slots = min(self.max_slots, max(num_slots, 2 * cache.num_slots))
        if length > cache.length:
            length = min(self._slot_length, round_up(max(length, cache.length * 3 // 2), self.kv_bucket))
        self.decoder.reserve(num_slots, max(length, cache.length))

    # ---- decode ------------------------------------------------------------------------------------------------------

    def _decode(self) -> None:
        slots = self._slots_of_step()
        running = self._running.values()
        num_steps = self.window
        longest = max(len(request.ids) + len(request.token_ids) for request in running) + num_steps
        kv_length = min(round_up(longest, self.kv_bucket), self.decoder.cache.length)
        has_noise = any(request.sampling.temperature > 0 for request in running)
        has_cut = has_noise and any(request.sampling.top_p < 1 for request in running)
        # Recording a graph happens once for each size, and would look like slow decoding.
        name = "decode" if self.decoder.is_ready(len(slots), kv_length, has_noise, has_cut) else "record"
        with self._timed(name):
            window = self.decoder.decode(slots, kv_length, num_steps, has_noise, has_cut)
        self.stats["steps"] += num_steps
        self.stats["row_steps"] += num_steps * len(slots)
        self.stats["useful"] += sum(map(len, window.tokens))
        self._take_in(slots, window)

    def _slots_of_step(self) -> Sequence[int]:
        """The slots that run, and as many others as make up one of the sizes there is a graph for."""
        if not self.decoder.picks_rows:
            self._compact()
            return range(self._size_of_step(max(self._running) + 1))
        slots = sorted(self._running)
        num_slots = self.decoder.cache.num_slots
        others = (slot for slot in range(num_slots) if slot not in self._running)
        return slots + list(itertools.islice(others, self._size_of_step(len(slots)) - len(slots)))

    def _size_of_step(self, num_rows: int) -> int:
        return min(self.decoder.cache.num_slots, _size_of_graph(num_rows)) if self.decoder.use_graphs else num_rows

    def _take_in(self, slots: Sequence[int], window: Window) -> None:
        """Hand new tokens to their requests; rows that ended leave their slot."""
        for index, slot in enumerate(slots):
            request = self._running.get(slot)
            if request is None:
                continue
            request.add(window.tokens[index], window.logprobs[index])
            code = window.codes[index]
            finish = draw.FINISH[code] if code < len(draw.FINISH) else None
            if finish is None and request.is_caught:
                self.decoder.vacate([slot])
                finish = "length"
            if finish is not None:
                self._leave(slot, request)
                request.resolve(finish)

    def _leave(self, slot: int, request: Request) -> None:
        """Park the slot for the rollout's next turn; the last token's keys are not in it yet."""
        with self._wake:
            del self._running[slot]
            if request.key in self._live:
                if request.key in self._parked:
                    self._free.append(self._parked.pop(request.key)[0])
                self._parked[request.key] = (slot, request.ids + request.token_ids[:-1])
            else:
                self._free.append(slot)

    def _compact(self) -> None:
        """Move the top rows into free slots below while more than 15 % of the rows in a step idle."""
        free = sorted(self._free)
        tops = sorted(self._running, reverse=True)
        num_moves = 0
        for target, top in zip(free, tops, strict=False):
            if target >= top or top + 1 <= 1.15 * len(tops):
                break
            num_moves += 1
        if not num_moves:
            return
        sources, targets = tops[:num_moves], free[:num_moves]
        moved = [self._running.pop(slot) for slot in sources]
        longest = max(len(request.ids) + len(request.token_ids) for request in moved)
        self.decoder.move(sources, targets, longest)
        self._running.update(zip(targets, moved, strict=True))
        self._free = free[num_moves:] + sources
        self.stats["moves"] += num_moves

    def _fail(self, joiners: list[tuple[Request, int, int]], error: Exception) -> None:
        """A forward pass failed: everyone in it hears so, all slots are emptied, and the engine goes on."""
        with self._wake:
            for request in {id(r): r for r in [*self._running.values(), *(r for r, _, _ in joiners)]}.values():
                request.fail(as_policy_error(error))
            self._running.clear()
            self._parked.clear()
            self._free = list(range(self._num_slots))
            self.decoder.vacate(self._free)


def _row(request: Request, slot: int, num_cached: int) -> SlotRow:
    return SlotRow(
        slot=slot,
        ids=request.ids,
        num_cached=num_cached,
        max_new_tokens=request.max_new_tokens,
        temperature=request.sampling.temperature,
        top_p=request.sampling.top_p,
        seed=request.sampling.seed,
        start_state=request.start_state,
    )


def _parts(rows: Sequence[SlotRow], max_tokens: int, is_packed: bool) -> list[list[SlotRow]]:
    """Cut rows, sorted by new tokens, into forward passes. Those that are padded to one width have at most about 25 % of
    padding, and fresh rows by themselves."""
    parts: list[list[SlotRow]] = []
    real = 0
    for row in rows:
        width = len(row.ids) - row.num_cached
        if parts:
            part = parts[-1]
            padded = real + width if is_packed else width * (len(part) + 1)
            is_alike = is_packed or (part[0].num_cached > 0) == (row.num_cached > 0)
            if is_alike and padded <= max_tokens and padded <= 1.25 * (real + width) + 32:
                part.append(row)
                real += width
                continue
        parts.append([row])
        real = width
    return parts


def _size_of_graph(num_rows: int) -> int:
    """The next of the sizes that graphs are recorded for."""
    return max(8, 1 << (num_rows - 1).bit_length()) if num_rows <= 128 else round_up(num_rows, 128)


def _common_prefix(cached: list[int], ids: list[int]) -> int:
    if ids[: len(cached)] == cached:
        return len(cached)
    return next((i for i, (a, b) in enumerate(zip(cached, ids, strict=False)) if a != b), min(len(cached), len(ids)))


def _memory_budget(device: torch.device) -> int:
    """How much the cache may take: six tenths of what is free on the device, or a quarter of the machine's memory."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * 0.6)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
