"""Keys and values of the slot engine, `(slots, length + 1, heads, dim)` a layer, and the attention that reads them.

A token's index in its slot is its rope position: rows are right-padded, without holes, and cropping a row is only a
smaller length. The last column is a bin: padding and idle rows write there, so that every write is unconditional.

Grouped-query attention without repeating keys: on CPU the query heads of one key head are folded into the query length
(measured 9x faster for one-token queries than transformers' `repeat_kv`), on CUDA `enable_gqa=True` is tried against it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

AttentionKind = Literal["folded", "gqa"]

_NAMES: dict[AttentionKind, str] = {"folded": "parallelsearch_folded", "gqa": "parallelsearch_gqa"}


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


def _forward(kind: AttentionKind) -> Any:
    attend = folded_attention if kind == "folded" else gqa_attention

    def forward(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scaling: float | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        if mask is None or mask.shape[-1] != key.shape[2]:
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
    """Folded on CPU; on CUDA whichever form is faster here for one-token queries under a mask."""
    if device.type != "cuda":
        return "folded"
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
        self._positions = torch.zeros(0, dtype=torch.long)
        self._num_rows = self._kv_length = 0
        self._is_fresh = False

    def _empty(self, slots: int, length: int) -> Tensor:
        return torch.zeros((slots, length + 1, *self._shape), dtype=self._dtype, device=self._device)

    @property
    def bin(self) -> int:
        """The column nobody reads."""
        return self.length

    def reserve(self, slots: int, length: int) -> bool:
        """Make room for at least `slots` rows of `length` tokens; True if the tensors moved."""
        if slots <= self.num_slots and length <= self.length:
            return False
        kept_slots, kept_length = self.num_slots, self.length
        self.num_slots, self.length = max(slots, kept_slots), max(length, kept_length)
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                tensors[layer] = self._empty(self.num_slots, self.length)
                tensors[layer][:kept_slots, :kept_length] = old[:, :kept_length]
        return True

    def for_decode(self, positions: Tensor, kv_length: int) -> SlotCache:
        """The next forward pass feeds one token to each of the first slots."""
        self._slots, self._positions, self._kv_length = None, positions, kv_length
        self._num_rows, self._is_fresh = positions.shape[0], False
        return self

    def for_prefill(self, slots: Tensor, positions: Tensor, kv_length: int, is_fresh: bool) -> SlotCache:
        """The next forward pass feeds several tokens to the given slots; fresh slots need nothing read back."""
        self._slots, self._positions, self._kv_length, self._is_fresh = slots, positions, kv_length, is_fresh
        return self

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        keys, values = self.keys[layer], self.values[layer]
        kv = self._kv_length
        if self._slots is None:
            rows = torch.arange(self._num_rows, device=keys.device)
            keys[rows, self._positions] = key[:, :, 0].to(keys.dtype)
            values[rows, self._positions] = value[:, :, 0].to(values.dtype)
            return keys[: self._num_rows, :kv].transpose(1, 2), values[: self._num_rows, :kv].transpose(1, 2)
        slots = self._slots[:, None]
        keys[slots, self._positions] = key.transpose(1, 2).to(keys.dtype)
        values[slots, self._positions] = value.transpose(1, 2).to(values.dtype)
        if self._is_fresh:
            return key, value
        return keys[self._slots, :kv].transpose(1, 2), values[self._slots, :kv].transpose(1, 2)

    def get_seq_length(self, *_: Any) -> int:
        return 0

    def copy_rows(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Keys are stored rotated, so a row may move to another slot, never to another position."""
        source = torch.tensor(list(sources), device=self._device)
        target = torch.tensor(list(targets), device=self._device)
        for tensor in (*self.keys, *self.values):
            tensor[target, :length] = tensor[source, :length]
