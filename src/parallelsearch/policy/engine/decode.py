"""The device side of the slot engine: each slot's state as tensors, a prefill, and one decode step for all slots.

`_step` holds no Python decision that depends on data, so that on CUDA it is captured once for each (slots, keys read,
kind of draw) as a graph and replayed; elsewhere the same function is called plainly. All state lives in tensors with
fixed addresses and is changed in place; weights must be updated in place too. What moves (cache growth, new stop tables,
new weight addresses) drops the graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from parallelsearch.policy.engine import draw
from parallelsearch.policy.engine.cache import SlotCache, Spans, attention, choose_attention, register_attention
from parallelsearch.policy.engine.draw_kernel import fused_scores


@dataclass(frozen=True, slots=True)
class SlotRow:
    """A request that takes a slot: what it feeds and how it draws."""

    slot: int
    ids: list[int]
    num_cached: int
    max_new_tokens: int
    temperature: float
    top_p: float
    seed: int
    start_state: int


@dataclass(frozen=True, slots=True)
class Window:
    """What some steps gave, on the host: for each slot its new tokens, their log-probabilities, and its code."""

    tokens: list[list[int]]
    logprobs: list[list[float]]
    codes: list[int]


class SlotDecoder:
    """Runs the model over slots. Knows nothing of requests, sessions or threads."""

    def __init__(
        self,
        model: Any,
        endings: draw.Endings,
        *,
        max_slots: int,
        max_window: int,
        dtype: torch.dtype,
        use_graphs: bool | None = None,
    ) -> None:
        register_attention()
        self.model, self.endings, self.dtype = model, endings, dtype
        self.device: torch.device = model.device
        config = model.config.get_text_config()
        self.cache = SlotCache(config, dtype, self.device)
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.attention = choose_attention(
            config.num_attention_heads, config.num_key_value_heads, dim, dtype, self.device
        )
        self._fused_scores = fused_scores(config.vocab_size, self.device)
        self.use_graphs = self.device.type == "cuda" if use_graphs is None else use_graphs

        def column(value: float, dtype: torch.dtype) -> Tensor:
            return torch.full((max_slots,), value, dtype=dtype, device=self.device)

        self.tokens, self.lengths = column(0, torch.long), column(0, torch.long)
        self.counts, self.max_new = column(0, torch.long), column(0, torch.long)
        self.states, self.codes = column(0, torch.long), column(draw.VACANT, torch.long)
        self.temperature, self.top_p = column(0, torch.float32), column(1, torch.float32)
        self.seed_low, self.seed_high = column(0, torch.long), column(0, torch.long)
        self.window_index = torch.zeros(1, dtype=torch.long, device=self.device)
        self.out_tokens = torch.zeros((max_slots, max_window), dtype=torch.long, device=self.device)
        self.out_logprobs = torch.zeros((max_slots, max_window), dtype=torch.float32, device=self.device)
        self._columns = torch.zeros(0, dtype=torch.long, device=self.device)
        self._picked = torch.arange(max_slots, device=self.device)
        # One column: nothing is hidden but what comes later.
        self._no_mask = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=self.device)
        self._graphs: dict[tuple[int, int, bool, bool], torch.cuda.CUDAGraph] = {}
        self._weights: tuple[int, ...] = ()

    # ---- memory ------------------------------------------------------------------------------------------------------

    def reserve(self, slots: int, length: int) -> None:
        try:
            has_moved = self.cache.reserve(slots, length)
        except torch.OutOfMemoryError:
            self._graphs.clear()  # layers that had grown already are back, at other addresses
            raise
        if has_moved:
            self._columns = torch.arange(self.cache.length, device=self.device)
            self._graphs.clear()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()  # the smaller tensors: others may share the device

    def refresh(self) -> None:
        """Before work: new stop tables to the device."""
        if self.endings.refresh():
            self._graphs.clear()

    def check_weights(self) -> None:
        """After a weight update: a graph reads the old addresses, so a swapped tensor drops it."""
        weights = tuple(parameter.data_ptr() for parameter in self.model.parameters())
        if weights != self._weights:
            self._graphs.clear()
            self._weights = weights

    def vacate(self, slots: Iterable[int]) -> None:
        self.codes[list(slots)] = draw.VACANT

    def move(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Running rows change their slots, all at once: no source is a target."""
        source, target = self._to_device(list(sources)), self._to_device(list(targets))
        self.cache.copy_rows(source, target, length)
        for column in self._columns_of_state():
            column[target] = column[source]
        self.codes[source] = draw.VACANT

    def _columns_of_state(self) -> tuple[Tensor, ...]:
        return (
            self.tokens,
            self.lengths,
            self.counts,
            self.max_new,
            self.states,
            self.codes,
            self.temperature,
            self.top_p,
            self.seed_low,
            self.seed_high,
        )

    # ---- the model ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _ready(self) -> Iterator[None]:
        """No gradients, the slot attention, and autocast where the weights are kept in another type."""
        needs_cast = self.model.dtype != self.dtype
        with (
            torch.no_grad(),
            torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext(),
            attention(self.model, self.attention),
            # Inside a graph the cast weights must be computed anew each time, or they would be those of the capture.
            torch.autocast(self.device.type, dtype=self.dtype, enabled=needs_cast, cache_enabled=False),
        ):
            yield

    def _hidden(
        self, ids: Tensor, positions: Tensor, mask: Tensor, cache: SlotCache, spans: Spans | None = None
    ) -> Tensor:
        output = self.model.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            spans=spans,
        )
        hidden: Tensor = output.last_hidden_state
        return hidden

    # ---- prefill -----------------------------------------------------------------------------------------------------

    def prefill(self, rows: Sequence[SlotRow], copies: Sequence[Sequence[SlotRow]]) -> Window:
        """Feed each row's new tokens and draw its first token. `copies[i]` have the same ids as `rows[i]` and an empty
        slot: they get its keys and values, and draw for themselves. The window lists rows, then all copies in order."""
        everyone = [*rows, *(copy for group in copies for copy in group)]
        # Few tensor operations, none of them for each row: every one lets other threads have the interpreter. What goes to
        # the device goes before the model's kernels: behind them it would wait for them, and then the device for the host.
        table = self._to_device([[row.slot, row.num_cached, len(row.ids)] for row in rows])
        slots = self._take_seats(everyone)
        sources = [i for i, group in enumerate(copies) for _ in group]
        moves = self._to_device([[i, rows[i].slot] for i in sources]) if sources else None
        with self._ready():
            logits = self.model.lm_head(self._feed(rows, *table.unbind(dim=1)))
            if moves is not None:
                length = max(len(rows[i].ids) for i in sources)
                self.cache.copy_rows(moves[:, 1], slots[len(rows) :], length)
                logits = torch.cat([logits, logits[moves[:, 0]]])
            return self._first_tokens(everyone, slots, logits)

    def _to_device(self, values: Sequence[Any], dtype: torch.dtype = torch.long) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)

    def _feed(self, rows: Sequence[SlotRow], slots: Tensor, begins: Tensor, ends: Tensor) -> Tensor:
        """The hidden state of each row's last token, once its new tokens are in its slot."""
        if self.packs_rows:
            return self._feed_packed(rows, slots, begins, ends)
        width = max(len(row.ids) - row.num_cached for row in rows)
        is_fresh = all(row.num_cached == 0 for row in rows)
        kv_length = min(round_up(max(len(row.ids) for row in rows), 64), self.cache.length)
        ids = [row.ids[row.num_cached :] + [0] * (width + row.num_cached - len(row.ids)) for row in rows]
        positions = begins[:, None] + torch.arange(width, device=self.device)
        positions = torch.where(positions < ends[:, None], positions, self.cache.bin)
        hidden = self._hidden(
            self._to_device(ids),
            positions.clamp(max=self.cache.length - 1),
            self._no_mask if is_fresh else (self._columns[:kv_length] <= positions[:, :, None])[:, None],
            self.cache.for_prefill(slots, positions, kv_length, is_fresh),
        )
        return hidden[torch.arange(len(rows), device=self.device), ends - begins - 1]

    def _feed_packed(self, rows: Sequence[SlotRow], slots: Tensor, begins: Tensor, ends: Tensor) -> Tensor:
        """The same for new tokens end to end, without padding, fresh rows beside others."""
        ids = [token for row in rows for token in row.ids[row.num_cached :]]
        widths = ends - begins
        bounds = torch.nn.functional.pad(widths.cumsum(0), (1, 0))

        def of_each_token(values: Tensor) -> Tensor:
            return torch.repeat_interleave(values, widths, output_size=len(ids))

        positions = torch.arange(len(ids), device=self.device) + of_each_token(begins - bounds[:-1])
        max_queries = max(len(row.ids) - row.num_cached for row in rows)
        hidden = self._hidden(
            self._to_device(ids)[None],
            positions[None],
            self._no_mask,
            self.cache.for_packed(of_each_token(slots), positions),
            self.cache.spans(slots, ends, bounds.to(torch.int32), max_queries),
        )
        return hidden[0, bounds[1:] - 1]

    def _take_seats(self, rows: Sequence[SlotRow]) -> Tensor:
        """Note on the device how each row draws; their slots."""
        words = [draw.seed_words(row.seed) for row in rows]
        whole = self._to_device(
            [
                [row.slot, *word, row.max_new_tokens, len(row.ids), row.start_state]
                for row, word in zip(rows, words, strict=True)
            ]
        )
        real = self._to_device([[row.temperature, row.top_p] for row in rows], torch.float32)
        slots = whole[:, 0]
        columns = (self.seed_low, self.seed_high, self.max_new, self.lengths, self.states)
        for column, values in zip(columns, whole[:, 1:].unbind(dim=1), strict=True):
            column[slots] = values
        self.temperature[slots], self.top_p[slots] = real.unbind(dim=1)
        self.counts[slots] = 1
        return slots

    def _first_tokens(self, rows: Sequence[SlotRow], slots: Tensor, logits: Tensor) -> Window:
        has_noise, has_cut = any(row.temperature > 0 for row in rows), any(row.top_p < 1 for row in rows)
        keys = draw.row_keys(self.seed_low[slots], self.seed_high[slots], self.lengths[slots])
        tokens, logprobs = self._choose(
            logits, self.temperature[slots], self.top_p[slots] if has_cut else None, keys if has_noise else None
        )
        states, codes = self.endings.advance(self.states[slots], tokens, self.counts[slots], self.max_new[slots])
        self.tokens[slots], self.states[slots], self.codes[slots] = tokens, states, codes
        return Window(tokens[:, None].tolist(), logprobs[:, None].tolist(), codes.tolist())

    def _choose(
        self, logits: Tensor, temperature: Tensor, top_p: Tensor | None, keys: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        logprobs = draw.log_probs(logits, temperature)
        if keys is not None and top_p is None and self._fused_scores is not None:
            scores = self._fused_scores(logprobs, temperature, keys)
        else:
            scores = draw.choice_scores(logprobs, temperature, top_p, keys)
        tokens = scores.argmax(dim=-1)
        return tokens, logprobs.gather(1, tokens[:, None])[:, 0]

    # ---- decode ------------------------------------------------------------------------------------------------------

    @property
    def draws_in_one_kernel(self) -> bool:
        return self._fused_scores is not None

    @property
    def packs_rows(self) -> bool:
        """Flash attention takes rows of any lengths end to end: what joins needs neither padding nor sorting."""
        return self.attention == "flash"

    @property
    def picks_rows(self) -> bool:
        """Flash attention reads each slot where it lies, so a step may be for any slots; else it is for the first ones."""
        return self.attention == "flash"

    def decode(self, slots: Sequence[int], kv_length: int, num_steps: int, has_noise: bool, has_cut: bool) -> Window:
        """Some steps for the given slots, all different; then everything new comes to the host in one go."""
        num_slots = len(slots)
        if self.picks_rows:
            self._picked[:num_slots].copy_(torch.tensor(slots))
        rows = self._rows(num_slots)
        before = self.counts[rows].clone()
        self.window_index.zero_()
        key = self._key(num_slots, kv_length, has_noise, has_cut)
        with self._ready():
            if self.use_graphs:
                graph = self._graphs.get(key) or self._capture(key)
                for _ in range(num_steps):
                    graph.replay()
            else:
                for _ in range(num_steps):
                    self._step(*key)
        new = (self.counts[rows] - before).tolist()
        tokens, logprobs = self.out_tokens[:num_slots].tolist(), self.out_logprobs[:num_slots].tolist()
        return Window(
            [row[:count] for row, count in zip(tokens, new, strict=True)],
            [row[:count] for row, count in zip(logprobs, new, strict=True)],
            self.codes[rows].tolist(),
        )

    def _key(self, num_slots: int, kv_length: int, has_noise: bool, has_cut: bool) -> tuple[int, int, bool, bool]:
        # Rows that are picked are read each to its own length: one graph for all lengths.
        return num_slots, self.cache.length if self.picks_rows else kv_length, has_noise, has_cut

    def is_ready(self, num_slots: int, kv_length: int, has_noise: bool, has_cut: bool) -> bool:
        """There is nothing to record before such a step can be made."""
        return not self.use_graphs or self._key(num_slots, kv_length, has_noise, has_cut) in self._graphs

    def _rows(self, num_slots: int) -> Tensor | slice:
        return self._picked[:num_slots] if self.picks_rows else slice(0, num_slots)

    def _step(self, num_slots: int, kv_length: int, has_noise: bool, has_cut: bool) -> None:
        """One token for every slot that runs. Tensors only: this is what a CUDA graph holds.

        A graph replays the same kernels on the same addresses, so nothing here may branch on a value: slots that have ended
        are computed along with the others, and `runs` keeps what they would change from being kept.
        """
        rows = self._rows(num_slots)
        runs = self.codes[rows] == draw.RUNNING
        # The token drawn last goes to the end of its slot. An idle slot writes into the cache's bin, which nobody reads.
        positions = torch.where(runs, self.lengths[rows], self.cache.bin)
        slots = self._picked[:num_slots] if self.picks_rows else None
        spans, mask = None, self._no_mask
        if slots is not None:
            # Flash attention reads each slot from its start to its own length; of an idle one a single token will do.
            spans = self.cache.spans(slots, torch.where(runs, positions + 1, 1))
        else:
            # The first `kv_length` columns of all slots at once: a row sees those up to the token it feeds.
            mask = (self._columns[:kv_length] <= positions[:, None])[:, None, None]
        hidden = self._hidden(
            self.tokens[rows, None],
            positions.clamp(max=self.cache.length - 1)[:, None],  # the bin is no position
            mask,
            self.cache.for_decode(positions, kv_length, slots),
            spans,
        )
        # The noise of a draw follows from the row's seed and the new token's place alone: not from the slot, not from who
        # else is in the batch, not from the number of steps in a window.
        keys = draw.row_keys(self.seed_low[rows], self.seed_high[rows], positions + 1) if has_noise else None
        tokens, logprobs = self._choose(
            self.model.lm_head(hidden[:, 0]), self.temperature[rows], self.top_p[rows] if has_cut else None, keys
        )
        # Column `window_index` of the window, for every slot: the host takes as many of a row as `counts` has grown by.
        self.out_tokens[:num_slots].index_copy_(1, self.window_index, tokens[:, None])
        self.out_logprobs[:num_slots].index_copy_(1, self.window_index, logprobs[:, None])
        self.counts[rows] += runs
        # Has this token completed a stop string, ended the text, or used up the row's allowance?
        states, codes = self.endings.advance(self.states[rows], tokens, self.counts[rows], self.max_new[rows])
        self.states[rows] = torch.where(runs, states, self.states[rows])
        self.codes[rows] = torch.where(runs, codes, self.codes[rows])
        self.lengths[rows] += runs
        self.tokens[rows] = torch.where(runs, tokens, self.tokens[rows])
        self.window_index += 1

    def _capture(self, key: tuple[int, int, bool, bool]) -> torch.cuda.CUDAGraph:
        """Warm up on a side stream with every row idle, so that nothing changes, then record one step."""
        codes, index = self.codes.clone(), self.window_index.clone()
        self.codes.fill_(draw.VACANT)
        self.window_index.zero_()
        stream = torch.cuda.Stream(device=self.device)  # type: ignore[no-untyped-call]  # torch gives it no types
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            self._step(*key)
            self.window_index.zero_()
            self._step(*key)
            self.window_index.zero_()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        pool = next(iter(self._graphs.values())).pool() if self._graphs else None
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile (a dense search, say): only this thread's calls are recorded.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            self._step(*key)
        self.codes.copy_(codes)
        self.window_index.copy_(index)
        self._graphs[key] = graph
        return graph


def round_up(value: int, step: int) -> int:
    return -(-value // step) * step
