"""What the engines on torch share: the model, what it computes in, and what a failed forward pass means."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from parallelsearch.errors import ParallelSearchError, PolicyError
from parallelsearch.policy.engine.base import Engine
from parallelsearch.policy.engine.stops import StopBank


class ModelEngine(Engine):
    """An engine that runs a transformers model."""

    def __init__(
        self,
        model: Any,
        bank: StopBank,
        eos_ids: Iterable[int],
        max_context: int,
        *,
        deterministic: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        """`dtype` is what the model computes in, where that differs from how its weights are kept."""
        super().__init__(bank, max_context, deterministic=deterministic)
        self.model = model
        self.dtype: torch.dtype = dtype or model.dtype
        self.bank = bank
        self.eos_ids = sorted(set(eos_ids))

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"compute_dtype": str(self.dtype).removeprefix("torch.")}

    def _enter_eval(self) -> None:
        """Dropout off. The trainer that owns the model turns it on again before its next step."""
        if self.model.training:
            self.model.eval()


def as_policy_error(error: Exception) -> ParallelSearchError:
    """What a failed forward pass means to the person who started it."""
    if isinstance(error, ParallelSearchError):
        return error
    # The driver says it in an error of another class than torch's allocator, with a page on how to debug kernels.
    if isinstance(error, torch.OutOfMemoryError) or "CUDA error: out of memory" in str(error):
        said = str(error).partition("\n")[0]
        return PolicyError(
            "out of memory while generating; lower the number of concurrent rollouts or max_context, or see who else has "
            f"the memory of the device: {said}"
        )
    return PolicyError(f"the local model failed: {type(error).__name__}: {error}")
