"""What `auto` is: the trained policy on the engine that this machine has, or the replay where there is none.

On a CPU llama.cpp comes first, since it writes several times as many tokens a second as torch there; on a GPU, torch.
It only looks at what is installed; nothing is downloaded for it. PARALLELSEARCH_POLICY names another address for it to take.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from parallelsearch.errors import install_command
from parallelsearch.policy import models

EXTRA = "llama"
TRAINED = f"{models.SMOLLM2}+parallel"
VARIABLE = "PARALLELSEARCH_POLICY"
REPLAY = "demo"
LLAMA = "xllamacpp", "jinja2"
TORCH = "torch", "transformers", "peft", "gguf"


@dataclass(frozen=True, slots=True)
class Choice:
    """The address that `auto` stands for here, why, and what to type for another."""

    address: str
    reason: str
    instead: str

    def __str__(self) -> str:
        return f"policy: {self.address} ({self.reason}); {self.instead}"


def choose() -> Choice:
    """The policy for who names none."""
    if named := os.environ.get(VARIABLE):
        return Choice(named, f"{VARIABLE} says so", "for another: --policy ADDRESS")
    has_weights = _has_weights()
    has_llama = _has(*LLAMA)
    has_torch = _has(*TORCH)
    replay = f"for the written replay: --policy {REPLAY}"
    if has_weights and has_torch and _has_gpu():
        return Choice(f"hf:{TRAINED}", "trained, on the GPU", replay)
    if has_weights and has_llama:
        return Choice(f"gguf:{TRAINED}", "trained, on llama.cpp", replay)
    if has_weights and has_torch:
        return Choice(
            f"hf:{TRAINED}",
            "trained, on torch",
            f"several times as fast: {install_command(EXTRA)}; {replay}",
        )
    steps = [] if has_llama or has_torch else [install_command(EXTRA)]
    steps += [] if has_weights else [models.WEIGHTS_HINT]
    missing = "no engine" if has_weights else "no weights" if has_llama or has_torch else "no engine and no weights"
    return Choice(REPLAY, f"replays written turns: {missing} here", f"for a trained model: {' && '.join(steps)}")


def is_model() -> bool:
    """Whether `auto` is a model here, and not the replay. It asks no GPU, so that it takes no time."""
    if named := os.environ.get(VARIABLE):
        return named != REPLAY
    return _has_weights() and (_has(*LLAMA) or _has(*TORCH))


def _has(*modules: str) -> bool:
    return all(importlib.util.find_spec(module) is not None for module in modules)


def _has_weights() -> bool:
    return models.packaged_gguf(models.SMOLLM2) is not None


def _has_gpu() -> bool:
    """torch is asked only where a driver is: to import it takes seconds."""
    if not any(Path(path).exists() for path in ("/dev/nvidia0", "/dev/kfd", "/dev/dxg")):
        return False
    import torch

    return torch.cuda.is_available()
