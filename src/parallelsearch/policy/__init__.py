"""Policies: whatever continues a list of segments. `base` is the protocol; the other modules are engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallelsearch.lazy import export

if TYPE_CHECKING:
    from parallelsearch.policy.anthropic import AnthropicPolicy as AnthropicPolicy
    from parallelsearch.policy.base import Generation as Generation
    from parallelsearch.policy.base import Policy as Policy
    from parallelsearch.policy.base import Sampling as Sampling
    from parallelsearch.policy.gguf_export import write_gguf as write_gguf
    from parallelsearch.policy.local import LocalPolicy as LocalPolicy
    from parallelsearch.policy.models import ModelSpec as ModelSpec
    from parallelsearch.policy.models import parse_spec as parse_spec
    from parallelsearch.policy.models import write_merged as write_merged
    from parallelsearch.policy.openai import OpenAIPolicy as OpenAIPolicy
    from parallelsearch.policy.scripted import ScriptedPolicy as ScriptedPolicy

export(
    __name__,
    {
        "anthropic": ("AnthropicPolicy",),
        "base": ("Generation", "Policy", "Sampling"),
        "gguf_export": ("write_gguf",),
        "local": ("LocalPolicy",),
        "models": ("ModelSpec", "parse_spec", "write_merged"),
        "openai": ("OpenAIPolicy",),
        "scripted": ("ScriptedPolicy",),
    },
)
