"""In which order SFT goes through its rows: a function of the seed and the number of the pass, and of nothing else.

Rows of like length stand together, so that little is padded. Neither a restart nor the number of processes changes which rows
a step has. The last step of a pass may have fewer than the others; processes that share it need equally many, so the pass
ends with fillers: rows without a label, which add nothing to the loss.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from parallelsearch.errors import require


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
