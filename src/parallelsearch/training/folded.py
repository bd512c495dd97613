"""Training a LoRA adapter through weights it is folded into.

PEFT computes the adapter beside every layer: three times the kernels, and casts between precisions around each of them. A
small model on a fast GPU spends most of a step on that. Here forward and backward run on a plain bfloat16 copy with
W + sBA in place of W, the very copy that samples, and the gradient of each folded matrix is brought back by the chain rule:
with G for W + sBA, it is s G A^T for B and s B^T G for A. The adapter itself stays in float32 with PEFT, optimiser and
checkpoints. The price is memory for one gradient of all folded matrices.
"""

from __future__ import annotations

from typing import Any

from parallelsearch.errors import UsageError, require

ADAPTER = "default"
MEMORY_SHARE = 0.1
"""Folding is the default where the copy's gradients take at most this share of the device's memory."""


def pairs_of(model: Any, copy: Any) -> list[tuple[Any, Any]]:
    """Each LoRA layer of a PEFT model, and the weight of its counterpart in a plain copy."""
    return [
        (module, copy.get_submodule(name).weight)
        for name, module in model.get_base_model().named_modules()
        if hasattr(module, "get_delta_weight") and hasattr(module, "base_layer")
    ]


def write_sums(pairs: list[tuple[Any, Any]]) -> None:
    """W + sBA into the copy, in place."""
    torch = require("torch", "train")
    with torch.no_grad():
        for module, weight in pairs:
            weight.copy_(module.base_layer.weight.float() + module.get_delta_weight(ADAPTER).float())


class Folded:
    """A PEFT model with one LoRA adapter, and the plain copy that holds the sum."""

    def __init__(self, model: Any, copy: Any) -> None:
        self.copy = copy
        self._pairs = pairs_of(model, copy)
        copy.requires_grad_(False)
        for _, weight in self._pairs:
            weight.requires_grad_(True)

    def compile(self, backend: str = "inductor") -> None:
        """Let torch fuse what a layer does between its matrices. All layers share one compiled program, for any shape."""
        layers = getattr(self.copy.base_model, "layers", None)
        if layers is None:
            raise UsageError(f"model.compile finds no layers in a {type(self.copy).__name__}; leave it out")
        for layer in layers:
            layer.compile(dynamic=True, backend=backend)

    def refresh(self) -> None:
        """The copy has the adapter's newest weights, and is ready for a training step."""
        write_sums(self._pairs)
        self.copy.train()

    def collect(self) -> None:
        """Add the gradients of the copy to those of the adapter, and clear them."""
        torch = require("torch", "train")
        with torch.no_grad():
            for module, weight in self._pairs:
                if weight.grad is None:
                    continue
                first, second = module.lora_A[ADAPTER].weight, module.lora_B[ADAPTER].weight
                grad = weight.grad.to(first.dtype).mul_(module.scaling[ADAPTER])
                _add(second, grad @ first.T)
                _add(first, second.T @ grad)
                weight.grad = None

    def average(self, accelerator: Any) -> None:
        """Several processes: give each the mean of all gradients. DDP does not: it never sees this backward pass."""
        if accelerator.num_processes == 1:
            return
        torch = require("torch", "train")
        matrices = [part[ADAPTER].weight for module, _ in self._pairs for part in (module.lora_A, module.lora_B)]
        grads = [torch.zeros_like(matrix) if matrix.grad is None else matrix.grad for matrix in matrices]
        mean = accelerator.reduce(torch.cat([grad.flatten() for grad in grads]), reduction="mean")
        for matrix, part in zip(matrices, mean.split([matrix.numel() for matrix in matrices]), strict=True):
            matrix.grad = part.view_as(matrix)


def _add(parameter: Any, grad: Any) -> None:
    parameter.grad = grad if parameter.grad is None else parameter.grad.add_(grad)


def can_fold(model: Any) -> bool:
    """Plain LoRA on linear layers, without dropout: only then is folding the same computation."""
    if not hasattr(model, "peft_config"):
        return False
    config = model.peft_config[ADAPTER]
    return not (config.lora_dropout or config.use_dora or config.modules_to_save or config.bias != "none")


def is_worth_it(model: Any, device: Any) -> bool:
    """On a GPU with memory to spare for the copy's gradients (two bytes a weight)."""
    torch = require("torch", "train")
    if device.type != "cuda":
        return False
    num_weights = sum(parameter.numel() for parameter in model.parameters())
    return bool(2 * num_weights <= MEMORY_SHARE * torch.cuda.get_device_properties(device).total_memory)
