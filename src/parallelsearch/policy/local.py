"""The `hf:` policy: a transformers model in this process, with or without a LoRA adapter, on CPU or one GPU.

Token in, token out: ids are kept as they were drawn, the whole last token of a stop string included; the text of a turn is
their decoding without special tokens; what the environment inserts is encoded once, by itself, with special tokens not
recognised in it. The work is done by an engine: slots where the model allows it, plain batches elsewhere.

Needs the extra `local`. A trainer passes its own model and tokenizer and calls `reset()` after each weight update.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, Literal

from parallelsearch.errors import UsageError, nearest, require
from parallelsearch.grammar import STOP_STRINGS
from parallelsearch.policy import models
from parallelsearch.policy.encoding import EnginePolicy, Template
from parallelsearch.policy.engine.stops import StopBank, token_bytes

if TYPE_CHECKING:
    from parallelsearch.policy.engine.model import ModelEngine

EngineName = Literal["auto", "slot", "batch"]
DEFAULT_MAX_CONTEXT = 4096


class LocalPolicy(EnginePolicy):
    """A model in memory and the engine that runs it."""

    name = "hf"
    streams = True

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        engine: EngineName = "auto",
        deterministic: bool = False,
        max_context: int | None = None,
        dtype: Any = None,
        template: Template = "auto",
        label: str = "in-memory",
        details: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """`dtype` is what the model computes in, where that differs from how its weights are kept. `template`: `chat` wraps
        the prompt in the tokenizer's chat template, `base` sends it as it is, `auto` takes what there is. `options` go to
        the engine (`max_slots`, `max_batch`, `timeout_s`, ...)."""
        require("torch", "local")
        require("transformers", "local")
        # A peft wrapper keeps the adapter inside the layers of the model it wraps.
        self.model = model.get_base_model() if hasattr(model, "get_base_model") else model
        super().__init__(tokenizer, label, template)
        self._details = details or {}
        config = self.model.config.get_text_config()
        limit = int(getattr(config, "max_position_embeddings", None) or DEFAULT_MAX_CONTEXT)
        if max_context is not None and max_context > limit:
            raise UsageError(f"max_context={max_context} is more than the {limit} tokens '{label}' was made for")
        self.max_context: int = max_context or min(limit, DEFAULT_MAX_CONTEXT)
        self.eos_ids = end_ids(self.model, tokenizer)
        bank = StopBank(token_bytes(tokenizer, config.vocab_size))
        bank.start(STOP_STRINGS)
        self.engine, self._fallback_reason = _make_engine(
            self.model, bank, self.eos_ids, self.max_context, engine, deterministic, dtype, options
        )

    @classmethod
    def from_address(
        cls, spec: str, *, device: str | None = None, dtype: str | None = None, **options: Any
    ) -> LocalPolicy:
        """The policy that `hf:SPEC` names: `BASE` or `BASE+ADAPTER`. Float32 on CPU, bfloat16 on CUDA, unless told."""
        torch = require("torch", "local")
        require("transformers", "local")
        found = models.parse_spec(spec)
        where = device or ("cuda" if torch.cuda.is_available() else "cpu")
        if where.startswith("cuda") and not torch.cuda.is_available():
            raise UsageError(f"device '{where}' was asked for, but torch sees no CUDA device here; use device 'cpu'")
        kind = _dtype(torch, dtype or ("bfloat16" if where.startswith("cuda") else "float32"))
        model, tokenizer = models.load(found, where, kind)
        details: dict[str, Any] = {"weights": models.quick_hash(found.folder)}
        if found.adapter is not None:
            details |= {"adapter": found.adapter.name, "adapter_weights": models.quick_hash(found.adapter)}
        policy = cls(model, tokenizer, label=found.name, details=details, **options)
        policy.dialect = models.dialect_of(found)
        return policy

    # ---- the protocol ------------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        record = {"kind": self.name, "model": self.label, **self._details}
        record |= {"dtype": str(self.model.dtype).removeprefix("torch."), "device": str(self.model.device)}
        record |= self.engine.describe()
        if self._fallback_reason is not None:
            record["engine_reason"] = self._fallback_reason
        return record

    async def aclose(self) -> None:
        await asyncio.to_thread(self.engine.close)


def end_ids(model: Any, tokenizer: Any) -> list[int]:
    """Ids that end a turn: those of the generation config, the tokenizer's, and the end mark its chat template writes."""
    found: set[int] = set()
    for source in (getattr(model, "generation_config", None), model.config, tokenizer):
        value = getattr(source, "eos_token_id", None)
        found |= set(value) if isinstance(value, (list, tuple)) else {value} if value is not None else set()
    vocabulary = tokenizer.get_vocab()
    if models.END_OF_TURN in vocabulary and models.END_OF_TURN in (getattr(tokenizer, "chat_template", None) or ""):
        found.add(vocabulary[models.END_OF_TURN])
    return sorted(int(i) for i in found)


def _make_engine(
    model: Any,
    bank: StopBank,
    eos_ids: list[int],
    max_context: int,
    wanted: EngineName,
    deterministic: bool,
    dtype: Any,
    options: dict[str, Any],
) -> tuple[ModelEngine, str | None]:
    """The engine, and why it is not the slot engine where that was hoped for."""
    from parallelsearch.policy.engine.batch import BatchEngine
    from parallelsearch.policy.engine.slots import SlotEngine, why_not

    if wanted not in ("auto", "slot", "batch"):
        raise UsageError(f"unknown engine '{wanted}'; there are auto, slot and batch")
    reason = why_not(model)
    if wanted == "slot" and reason is not None:
        raise UsageError(f"the slot engine cannot run this model: {reason}; use engine 'batch'")
    kind: type[ModelEngine] = BatchEngine if wanted == "batch" or reason is not None else SlotEngine
    own, both = _option_names(kind), _option_names(BatchEngine) | _option_names(SlotEngine)
    for name in options:
        if name not in (both if wanted == "auto" else own):
            raise UsageError(f"the {kind.name} engine has no option '{name}'.{nearest(name, own)}")
    # Where the choice was left open, options of the engine that was not taken do not matter.
    taken = {name: value for name, value in options.items() if name in own}
    engine = kind(model, bank, eos_ids, max_context, deterministic=deterministic, dtype=dtype, **taken)
    return engine, reason if wanted == "auto" else None


def _option_names(engine: type[ModelEngine]) -> set[str]:
    fixed = {"self", "model", "bank", "eos_ids", "max_context", "deterministic", "dtype"}
    return set(inspect.signature(engine.__init__).parameters) - fixed


def _dtype(torch: Any, name: str) -> Any:
    known = ("float32", "bfloat16", "float16")
    if name not in known:
        raise UsageError(f"unknown dtype '{name}'; there are {', '.join(known)}")
    return getattr(torch, name)
