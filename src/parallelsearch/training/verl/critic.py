"""Lets verl load PPO's critic without flash-attn. verl imports this in all its
processes (VERL_USE_EXTERNAL_MODULES).

verl 0.9.1 asks for FlashAttention by name when it loads a critic, whatever the recipe says of attention; without that package
the load fails, and the message then asks for TRL, with which verl fails elsewhere. Its loader is replaced by one that leaves
the choice to the configuration. Everything else about the critic is verl's own.
"""

from __future__ import annotations

from typing import Any

import verl.utils.model


def load_critic(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
    """The model with one value a token instead of words, in the attention that `model_config` names."""
    from transformers import AutoModelForTokenClassification

    return AutoModelForTokenClassification.from_pretrained(
        local_path, dtype=torch_dtype, config=model_config, trust_remote_code=trust_remote_code
    )


verl.utils.model.load_valuehead_model = load_critic
