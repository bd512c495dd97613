"""Keys and values of the slot engine, `(slots, length + 1, heads, dim)` a layer, and the attention that reads them.

A token's index in its slot is its rope position: rows are right-padded, without holes, and cropping a row is only a
smaller length. The last column is a bin: padding and idle rows write there, so that every write is unconditional.

Grouped-query attention without repeating keys: on CPU the query heads of one key head are folded into the query length
(measured 9x faster for one-token queries than transformers' `repeat_kv`). On CUDA flash attention reads each slot where it
lies, up to its own length, without mask, copy or padding, and what joins is fed end to end, as one long row; where it does
not run, `enable_gqa=True` is tried against folding.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

AttentionKind = Literal["folded", "gqa", "flash"]

_NAMES: dict[AttentionKind, str] = {
    "folded": "parallelsearch_folded",
    "gqa": "parallelsearch_gqa",
    "flash": "parallelsearch_flash",
}


@dataclass(frozen=True, slots=True)
class Spans:
    """Where the keys of each row lie in the cache laid flat, for flash attention; both int32."""

    starts: Tensor
    """The first column of each row's slot, and one number more."""
    lengths: Tensor
    """How many columns of it count."""
    max_length: int
    queries: Tensor | None = None
    """Where each row's queries begin, and their number, if all stand end to end in one row; else each row has one query."""
    max_queries: int = 1


# ---- attention -------------------------------------------------------------------------------------------------------


def folded_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None) -> Tensor:
    """`(B, H, Q, D)` against `(B, Hkv, T, D)`: the query heads of a key head become further queries of that head."""
    rows, heads, length, dim = query.shape
    groups = heads // key.shape[1]
    folded = query.reshape(rows, key.shape[1], groups * length, dim)
    if length > 1 and groups > 1:
        mask = mask.repeat(1, 1, groups, 1)
    return scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scale).reshape(query.shape)


def gqa_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None) -> Tensor:
    """The same through SDPA's own grouping."""
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=True)


def flash_attention(query: Tensor, keys: Tensor, values: Tensor, spans: Spans, scale: float | None) -> Tensor:
    """`(B, H, Q, D)` against whole caches `(slots, columns, Hkv, D)`. Queries that stand end to end are causal and the last
    ones of their rows; of a single one the heads of a key head become its queries, so that the keys are read once."""
    rows, heads, _, dim = query.shape
    kv_heads = keys.shape[2]
    groups = heads // kv_heads
    if spans.queries is None:
        flat = query.reshape(rows, kv_heads, groups, dim).transpose(1, 2).reshape(rows * groups, kv_heads, dim)
        starts = torch.arange(rows + 1, dtype=torch.int32, device=query.device) * groups
        max_queries = groups
    else:
        flat, starts, max_queries = query[0].transpose(0, 1), spans.queries, spans.max_queries
    output: Tensor = torch.ops.aten._flash_attention_forward(
        flat,
        keys.flatten(0, 1),
        values.flatten(0, 1),
        starts,
        spans.starts,
        max_queries,
        spans.max_length,
        0.0,
        spans.queries is not None,
        False,
        scale=scale,
        seqused_k=spans.lengths,
    )[0]
    if spans.queries is None:
        return output.reshape(rows, groups, kv_heads, dim).transpose(1, 2).reshape(rows, heads, 1, dim)
    return output.transpose(0, 1)[None]


def _forward(kind: AttentionKind) -> Any:
    attend = gqa_attention if kind == "gqa" else folded_attention

    def forward(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scaling: float | None = None,
        spans: Spans | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        if spans is not None:
            output = flash_attention(query, key, value, spans, scaling)
        elif mask is None or mask.shape[-1] != key.shape[2]:
            # A mask of one column stands for "nothing in the slot yet": causal among the new tokens.
            output = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
        else:
            output = attend(query, key, value, mask, scaling)
        return output.transpose(1, 2).contiguous(), None

    return forward


def register_attention() -> None:
    """Make both forms known to transformers. A name without a mask function would silently lose padding masks."""
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    from transformers.modeling_utils import AttentionInterface

    for kind, name in _NAMES.items():
        AttentionInterface.register(name, _forward(kind))
        AttentionMaskInterface.register(name, sdpa_mask)


@contextmanager
def attention(model: Any, kind: AttentionKind) -> Iterator[None]:
    """Use `kind` for the calls inside. The model may be the trainer's: it gets its own attention back."""
    config = model.config
    saved = config._attn_implementation
    config._attn_implementation = _NAMES[kind]
    try:
        yield
    finally:
        config._attn_implementation = saved


def choose_attention(heads: int, kv_heads: int, dim: int, dtype: torch.dtype, device: torch.device) -> AttentionKind:
    """Folded on CPU. On CUDA flash attention if it gives here what the folded form gives, else the faster of the others
    for one-token queries under a mask."""
    if device.type != "cuda":
        return "folded"
    if flash_agrees(heads, kv_heads, dim, dtype, device):
        return "flash"
    rows, length = 64, 512
    query = torch.zeros((rows, heads, 1, dim), dtype=dtype, device=device)
    key = torch.zeros((rows, length, kv_heads, dim), dtype=dtype, device=device).transpose(1, 2)
    mask = torch.ones((rows, 1, 1, length), dtype=torch.bool, device=device)

    def seconds(attend: Any) -> float:
        best = float("inf")
        for _ in range(5):
            torch.cuda.synchronize(device)
            start = time.perf_counter()
            for _ in range(10):
                attend(query, key, key, mask, None)
            torch.cuda.synchronize(device)
            best = min(best, time.perf_counter() - start)
        return best

    return "gqa" if seconds(gqa_attention) <= seconds(folded_attention) else "folded"


def flash_agrees(heads: int, kv_heads: int, dim: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether this torch's flash attention runs on slots of different lengths and agrees with attention under a mask."""
    if dtype not in (torch.bfloat16, torch.float16):
        return False
    generator = torch.Generator(device=device).manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    columns, lengths = 80, torch.tensor([80, 17, 64], device=device)
    slots = torch.tensor([2, 0, 1], device=device)
    keys, values = noise(3, columns, kv_heads, dim), noise(3, columns, kv_heads, dim)
    starts = (torch.cat([slots, slots[:1]]) * columns).to(torch.int32)
    for counts in ([1, 1, 1], [9, 17, 2]):
        is_packed = counts[0] > 1
        begins = torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32, device=device)
        spans = Spans(starts, lengths.to(torch.int32), columns, begins if is_packed else None, max(counts))
        queries = [noise(1, heads, count, dim) for count in counts]
        expected = []
        for slot, length, query in zip(slots.tolist(), lengths.tolist(), queries, strict=True):
            ends = torch.arange(length - query.shape[2], length, device=device)
            mask = (torch.arange(columns, device=device) <= ends[:, None])[None, None]
            row = slice(slot, slot + 1)
            expected.append(folded_attention(query, keys[row].transpose(1, 2), values[row].transpose(1, 2), mask, None))
        along = 2 if is_packed else 0
        try:
            found = flash_attention(torch.cat(queries, along), keys, values, spans, None)
        except (RuntimeError, AttributeError, TypeError):
            return False  # not built for this device, or not in this torch
        if not torch.allclose(found.float(), torch.cat(expected, along).float(), atol=2e-2):
            return False
    return True


# ---- the cache -------------------------------------------------------------------------------------------------------


class SlotCache:
    """Stands in for a transformers cache: the model calls `update` once a layer. Grows on demand."""

    def __init__(self, config: Any, dtype: torch.dtype, device: torch.device) -> None:
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._shape = (int(config.num_key_value_heads), int(dim))
        self._dtype, self._device = dtype, device
        self.num_slots = self.length = 0
        self.keys = [self._empty(0, 0) for _ in range(config.num_hidden_layers)]
        self.values = [self._empty(0, 0) for _ in range(config.num_hidden_layers)]
        self.bytes_per_token = 2 * len(self.keys) * self._shape[0] * self._shape[1] * dtype.itemsize
        self._slots: Tensor | None = None
        self._positions = self._rows = torch.zeros(0, dtype=torch.long)
        self._num_rows = self._kv_length = 0
        self._is_fresh = self._is_whole = False

    def _empty(self, slots: int, length: int) -> Tensor:
        return torch.zeros((slots, length + 1, *self._shape), dtype=self._dtype, device=self._device)

    @property
    def bin(self) -> int:
        """The column nobody reads."""
        return self.length

    def reserve(self, slots: int, length: int) -> bool:
        """Make room for at least `slots` rows of `length` tokens; True if the tensors moved. Without memory for it
        everything stays as it was."""
        if slots <= self.num_slots and length <= self.length:
            return False
        before = self.num_slots, self.length
        try:
            self._resize(max(slots, before[0]), max(length, before[1]))
        except torch.OutOfMemoryError:
            self._resize(*before)
            raise
        return True

    def _resize(self, slots: int, length: int) -> None:
        """Layer by layer: there is never more than one of them twice."""
        kept_slots, kept_length = min(slots, self.num_slots), min(length, self.length)
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                if old.shape[:2] != (slots, length + 1):
                    tensors[layer] = self._empty(slots, length)
                    tensors[layer][:kept_slots, :kept_length] = old[:kept_slots, :kept_length]
        self.num_slots, self.length = slots, length

    def for_decode(self, positions: Tensor, kv_length: int, slots: Tensor | None = None) -> SlotCache:
        """The next forward pass feeds one token to each of `slots`, and gets the whole cache to read from; without them,
        to each of the first slots, and gets the rows and columns that count."""
        self._slots, self._positions, self._kv_length = None, positions, kv_length
        self._num_rows, self._is_fresh, self._is_whole = positions.shape[0], False, slots is not None
        self._rows = torch.arange(self._num_rows, device=self._device) if slots is None else slots
        return self

    def for_prefill(self, slots: Tensor, positions: Tensor, kv_length: int, is_fresh: bool) -> SlotCache:
        """The next forward pass feeds several tokens to the given slots; fresh slots need nothing read back."""
        self._slots, self._positions, self._kv_length, self._is_fresh = slots, positions, kv_length, is_fresh
        self._is_whole = False
        return self

    def for_packed(self, slots: Tensor, positions: Tensor) -> SlotCache:
        """The next forward pass feeds one row of tokens, each to a slot and a column of its own, and gets the whole cache."""
        self._slots, self._positions, self._is_fresh, self._is_whole = slots, positions, False, True
        return self

    def spans(self, slots: Tensor, lengths: Tensor, queries: Tensor | None = None, max_queries: int = 1) -> Spans:
        """The first columns of the given slots, so many of each."""
        starts = slots * (self.length + 1)
        starts = torch.cat([starts, starts[-1:]]).to(torch.int32)
        return Spans(starts, lengths.to(torch.int32), self.length + 1, queries, max_queries)

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        keys, values = self.keys[layer], self.values[layer]
        kv = self._kv_length
        if self._slots is None:
            keys[self._rows, self._positions] = key[:, :, 0].to(keys.dtype)
            values[self._rows, self._positions] = value[:, :, 0].to(values.dtype)
            if self._is_whole:
                return keys, values
            return keys[: self._num_rows, :kv].transpose(1, 2), values[: self._num_rows, :kv].transpose(1, 2)
        if self._is_whole:
            keys[self._slots, self._positions] = key[0].transpose(0, 1).to(keys.dtype)
            values[self._slots, self._positions] = value[0].transpose(0, 1).to(values.dtype)
            return keys, values
        slots = self._slots[:, None]
        keys[slots, self._positions] = key.transpose(1, 2).to(keys.dtype)
        values[slots, self._positions] = value.transpose(1, 2).to(values.dtype)
        if self._is_fresh:
            return key, value
        return keys[self._slots, :kv].transpose(1, 2), values[self._slots, :kv].transpose(1, 2)

    def get_seq_length(self, *_: Any) -> int:
        return 0

    def copy_rows(self, sources: Tensor, targets: Tensor, length: int) -> None:
        """Keys are stored rotated, so a row may move to another slot, never to another position."""
        for tensor in (*self.keys, *self.values):
            tensor[targets, :length] = tensor[sources, :length]
