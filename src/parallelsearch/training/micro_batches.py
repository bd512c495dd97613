"""Cutting a padded batch into pieces of about equal cost: rows of like length together, padding trimmed in each piece.

A trainer pads all rows of a step to the longest. Trajectories differ in length by a factor of ten, so most of that batch is
padding; sorted by length and cut at a number of tokens, hardly any is left. No per-row work is done on tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def pack(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Positions of rows, longest first, in pieces of at most `max_tokens` padded tokens; a single row may have more."""
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    pieces: list[list[int]] = []
    start = 0
    while start < len(order):
        size = max(1, max_tokens // max(1, lengths[order[start]]))
        pieces.append(order[start : start + size])
        start += size
    return pieces


def cut(batch: Mapping[str, Any], rows: Sequence[int], lengths: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """The batch with only `rows`, its prompt columns trimmed on the left and its completion columns on the right.
    `lengths` has the real lengths under `prompt` and `completion`."""
    import torch

    index = torch.tensor(rows, device=batch["completion_ids"].device)
    width_prompt = max(1, max(lengths["prompt"][row] for row in rows))
    width = max(1, max(lengths["completion"][row] for row in rows))

    def piece(name: str, value: Tensor) -> Tensor:
        if value.dim() == 0:
            return value
        chosen = value.index_select(0, index)
        if value.dim() == 1:
            return chosen
        return chosen[:, -width_prompt:] if name.startswith("prompt_") else chosen[:, :width]

    return {name: piece(name, value) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def align(ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Move left padding to the right. Returns the ids, how far each row moved, and each row's length.

    A causal model never looks to the right, so right-padded rows need no attention mask at all, and attention without a
    mask is the fast kernel.
    """
    import torch

    first = attention_mask.argmax(dim=1)
    columns = torch.arange(ids.shape[1], device=ids.device)
    source = (columns[None, :] + first[:, None]) % ids.shape[1]
    return ids.gather(1, source), first, attention_mask.sum(dim=1)


def places_before(first: Tensor, prompt_width: int, width: int) -> Tensor:
    """In aligned rows, where the token before each completion token stands: that is where it is predicted."""
    import torch

    columns = torch.arange(width, device=first.device)
    return prompt_width - first[:, None] - 1 + columns[None, :]
