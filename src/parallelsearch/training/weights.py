"""The weights of a run: the policy that is trained, the reference it is held to, and the copy that samples.

Full fine-tuning keeps float32 master weights; LoRA keeps the frozen weights in the run's precision. The reference is the
policy as it was when training began: a cold-started adapter is part of it. On a GPU in bfloat16 the sampler is a separate
copy whose tensors are overwritten in place after each update (addresses stay, so captured graphs stay valid); elsewhere
the trained model samples itself. Where there is room, a LoRA adapter is also trained through that copy (`folded`).
"""

from __future__ import annotations

import copy
import functools
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallelsearch.errors import PolicyError, UsageError, require
from parallelsearch.policy.models import (
    ADAPTER_CONFIG,
    ModelSpec,
    base_hash,
    dialect_of,
    packaged_adapters,
    quiet_transformers,
    resolve,
    write_note,
)
from parallelsearch.training.folded import Folded, can_fold, is_worth_it, pairs_of, write_sums
from parallelsearch.training.recipe import ModelSettings

log = logging.getLogger(__name__)

REFERENCE_ADAPTER = "ref"
"""TRL computes reference log-probabilities under the adapter of this name, if there is one."""
_EMBEDDINGS = frozenset({"embed_tokens", "lm_head"})


@dataclass(slots=True)
class Weights:
    """What `load_weights` gives. `model` may be a PEFT model; `reference` is None where an adapter serves as one."""

    model: Any
    tokenizer: Any
    reference: Any | None
    sampler: Any
    critic: Any | None = None
    """PPO's value function: the same transformer with one output."""
    folded: Folded | None = None
    """The way gradients take where the adapter is trained through the sampler."""
    base: Path | None = None
    """The folder that a saved adapter goes on top of; None where no folder holds these weights: a model in hand, or one into
    which another adapter was merged first."""
    dialect: str | None = None
    """What the weights it starts from were trained on, where they say so."""

    @property
    def samples_itself(self) -> bool:
        return self.sampler is base_of(self.model)


def base_of(model: Any) -> Any:
    """The transformers model, LoRA layers included, without PEFT's wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def uses_bfloat16(settings: ModelSettings, device_type: str) -> bool:
    return settings.precision == "bfloat16" or (settings.precision == "auto" and device_type == "cuda")


def load_weights(
    settings: ModelSettings,
    device: Any,
    *,
    needs_reference: bool,
    needs_critic: bool = False,
    samples_elsewhere: bool = False,
    seed: int = 0,
    model: Any | None = None,
    tokenizer: Any | None = None,
) -> Weights:
    """Load what the recipe names (or take `model` and `tokenizer` as they are) and put LoRA and reference around it.
    `samples_elsewhere`: another process draws, and needs no copy here but the one an adapter is folded into."""
    torch = require("torch", "train")
    transformers = require("transformers", "train")
    if settings.adapter is not None and not Path(settings.adapter).is_dir():
        packaged = packaged_adapters().get(settings.adapter, settings.adapter)  # "parallel": that of the package
        settings = settings.model_copy(update={"adapter": str(packaged)})
    bfloat16 = uses_bfloat16(settings, device.type)
    has_lora = settings.lora_rank > 0 or (settings.adapter is not None and not settings.merge_adapter)
    frozen_dtype = torch.bfloat16 if bfloat16 and has_lora else torch.float32
    base = None
    adapter = None if settings.adapter is None else Path(settings.adapter)
    dialect = None if adapter is None else dialect_of(ModelSpec(settings.name, adapter, adapter))
    if model is None or tokenizer is None:
        found = resolve(settings.name)
        dialect = dialect or dialect_of(ModelSpec(settings.name, found))
        folder = str(found)
        base = found if model is None and not (settings.adapter is not None and settings.merge_adapter) else None
        with quiet_transformers():
            if model is None:
                model = _from_pretrained(transformers.AutoModelForCausalLM, folder, "model", dtype=frozen_dtype)
            if tokenizer is None:
                tokenizer = _from_pretrained(transformers.AutoTokenizer, folder, "tokenizer")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if settings.adapter is not None and settings.merge_adapter:
        model = _with_adapter(model, settings.adapter, trainable=False).merge_and_unload()
        model.requires_grad_(True)  # PEFT leaves the weights it merged into frozen
    model.to(device)
    # Copies are made before anything is wrapped or patched: a trainer replaces `forward` on the instance it gets.
    reference = None
    if needs_reference and not has_lora:
        reference = copy.deepcopy(model).eval().requires_grad_(False)
    folds = has_lora and (is_worth_it(model, device) if settings.fold is None else settings.fold)
    has_copy = folds or (bfloat16 and (has_lora or not samples_elsewhere))
    sampler = _sampling_copy(model, bfloat16) if has_copy else None
    critic = _make_critic(model, settings, seed).to(device) if needs_critic else None
    if has_lora:
        model = _add_lora(model, settings, needs_reference, seed)
        model.to(device)
    folded = None
    if sampler is not None and folds:
        if can_fold(model):
            folded = Folded(model, sampler)
        elif settings.fold is True:
            raise UsageError(
                "model.fold needs plain LoRA: no dropout (lora_dropout), no DoRA, no biases, no other modules"
            )
    if device.type == "cuda":
        # cuDNN's attention makes a plan for every new shape, and every micro-batch has one: flash attention does not.
        torch.backends.cuda.enable_cudnn_sdp(False)
    drawing = sampler if sampler is not None else base_of(model)
    return Weights(model, tokenizer, reference, drawing, critic, folded, base, dialect)


def write_notes(saved: Path, base: Path | None, name: str, dialect: str | None) -> None:
    """Note beside saved weights how they were taught to talk, and beside an adapter which base it was trained on: loaded on
    another, it warns. The hash reads all of the base's weights once and is kept beside them, so the next checkpoint gets it
    for nothing."""
    if base is None or not (saved / ADAPTER_CONFIG).is_file():
        write_note(saved, dialect=dialect)
        return
    try:
        write_note(saved, base_hash=base_hash(base), base=name, dialect=dialect)
    except PolicyError as error:
        log.info("%s has no note of its base: %s", saved, error)


def _sampling_copy(model: Any, bfloat16: bool) -> Any:
    """The weights, rounded to bfloat16 where that is the run's precision. Buffers stay as they are: rotary frequencies
    in bfloat16 would turn far positions wrongly."""
    torch = require("torch", "train")
    copied = copy.deepcopy(model).eval().requires_grad_(False)
    if bfloat16:
        for parameter in copied.parameters():
            parameter.data = parameter.data.to(torch.bfloat16)
    return copied


def _from_pretrained(loader: Any, name: str, what: str, **options: Any) -> Any:
    try:
        return loader.from_pretrained(name, **options)
    except (OSError, ValueError) as error:
        raise UsageError(f"no {what} could be loaded from '{name}': {str(error).splitlines()[0]}") from error


def _with_adapter(model: Any, adapter: str, trainable: bool) -> Any:
    peft = require("peft", "train")
    if not (Path(adapter) / ADAPTER_CONFIG).is_file():
        raise UsageError(
            f"'{adapter}' is not a LoRA adapter: it has no adapter_config.json; set model.adapter to a folder "
            f"written by peft, or to an adapter of the package: {', '.join(packaged_adapters())}"
        )
    try:
        return peft.PeftModel.from_pretrained(model, adapter, is_trainable=trainable)
    except (RuntimeError, ValueError) as error:
        raise UsageError(f"the adapter '{adapter}' does not fit the model: {str(error).splitlines()[0]}") from error


def _add_lora(model: Any, settings: ModelSettings, needs_reference: bool, seed: int) -> Any:
    torch, peft = require("torch", "train"), require("peft", "train")
    if settings.adapter is not None and not settings.merge_adapter:
        wrapped = _with_adapter(model, settings.adapter, trainable=True)
        if needs_reference:  # the cold-started adapter is the reference, not the bare model
            wrapped.add_adapter(REFERENCE_ADAPTER, wrapped.peft_config["default"])
            for name, parameter in wrapped.named_parameters():
                if ".default." in name:
                    twin = wrapped.get_parameter(name.replace(".default.", f".{REFERENCE_ADAPTER}."))
                    twin.data.copy_(parameter.data)
                    twin.requires_grad_(False)
        return _saved_offline(wrapped)
    config = peft.LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha or 2 * settings.lora_rank,
        lora_dropout=settings.lora_dropout,
        target_modules=settings.lora_targets,
        task_type="CAUSAL_LM",
    )
    torch.manual_seed(seed)  # PEFT draws the first matrix at random
    return _saved_offline(peft.get_peft_model(model, config))


def _saved_offline(wrapped: Any) -> Any:
    """At each save PEFT asks the hub whether the base had as many tokens as the model has, to know whether to keep the
    embeddings. Here none are ever added, so it is told, and a machine without a network waits for nobody and warns of
    nothing. An adapter on the embeddings themselves it keeps by itself."""
    targets = wrapped.peft_config["default"].target_modules
    if not isinstance(targets, str) and not set(targets) & _EMBEDDINGS:
        wrapped.save_pretrained = functools.partial(wrapped.save_pretrained, save_embedding_layers=False)
    return wrapped


def _make_critic(model: Any, settings: ModelSettings, seed: int) -> Any:
    """A copy of the transformer with a value head. With LoRA it gets an adapter of its own and stays frozen below it."""
    torch = require("torch", "train")
    backbone = copy.deepcopy(model.base_model)
    if settings.lora_rank > 0 or settings.adapter is not None:
        peft = require("peft", "train")
        rank = settings.lora_rank or 16
        torch.manual_seed(seed)
        config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=settings.lora_targets)
        backbone = peft.get_peft_model(backbone, config)

    class Critic(torch.nn.Module):  # type: ignore[misc, name-defined]  # torch is imported at run time
        """Token ids in, one value a position out. It starts at 0 everywhere."""

        def __init__(self) -> None:
            super().__init__()
            self.backbone = backbone
            width = model.config.get_text_config().hidden_size
            self.head = torch.nn.Linear(width, 1)
            torch.nn.init.zeros_(self.head.weight)
            torch.nn.init.zeros_(self.head.bias)

        def forward(self, ids: Any) -> Any:
            hidden = self.backbone(input_ids=ids, use_cache=False).last_hidden_state
            return self.head(hidden.to(self.head.weight.dtype)).squeeze(-1).float()

    return Critic()


def refresh_sampler(model: Any, sampler: Any) -> None:
    """Bring the sampling copy up to date, in place, with LoRA folded in. Nothing to do where the model samples itself."""
    torch = require("torch", "train")
    source = base_of(model)
    if sampler is source:
        return
    with torch.no_grad():
        if source is model:
            targets = dict(sampler.named_parameters())
            for name, parameter in model.named_parameters():
                targets[name].copy_(parameter)
            return
        write_sums(pairs_of(model, sampler))
