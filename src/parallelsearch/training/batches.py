"""Which rows stand together: in a pass of SFT, and in the pieces a padded batch is cut into.

A trainer pads all rows of a step to the longest. Trajectories differ in length by a factor of ten, so most of that batch is
padding; sorted by length and cut at a number of tokens, hardly any is left. No per-row work is done on tensors.

The order of SFT is a function of the seed and the number of the pass, and of nothing else. Neither a restart nor the number
of processes changes which rows a step has. The last step of a pass may have fewer than the others; processes that share it
need equally many, so the pass ends with fillers: rows without a label, which add nothing to the loss.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from parallelsearch.errors import require

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


def pieces_of(batch: Mapping[str, Any], max_tokens: int) -> Iterator[dict[str, Any]]:
    """A batch that is padded on the right, in pieces of at most `max_tokens` padded tokens, each as wide as it has to be."""
    import torch

    lengths = batch["attention_mask"].sum(dim=1).tolist()
    for rows in pack(lengths, max_tokens):
        index = torch.tensor(rows, device=batch["attention_mask"].device)
        width = max(1, lengths[rows[0]])  # the longest comes first
        yield {name: value.index_select(0, index)[:, :width] for name, value in batch.items()}


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


def num_fillers(num_rows: int, round_size: int) -> int:
    """How many fillers bring a pass to whole rounds; a round is one micro-batch in every process."""
    return -num_rows % round_size


class RowOrder:
    """Places in the data set for one pass after another, fillers last. `number_of_pass` is asked when a pass begins: a
    trainer that resumes tells its sampler nothing."""

    def __init__(
        self, lengths: Sequence[int], batch_size: int, round_size: int, seed: int, number_of_pass: Callable[[], int]
    ) -> None:
        self._lengths, self._batch_size, self._seed = lengths, batch_size, seed
        self._num_fillers = num_fillers(len(lengths), round_size)
        self._number_of_pass = number_of_pass

    def __len__(self) -> int:
        return len(self._lengths) + self._num_fillers

    def __iter__(self) -> Iterator[int]:
        torch = require("torch", "train")
        group = require("transformers.trainer_pt_utils", "train").get_length_grouped_indices
        seed = random.Random(f"rows/{self._seed}/{self._number_of_pass()}").getrandbits(63)
        yield from group(self._lengths, self._batch_size, generator=torch.Generator().manual_seed(seed))
        yield from range(len(self._lengths), len(self))
