"""The `gguf:` policy: a model in a GGUF file on llama.cpp, with or without a LoRA adapter. The engine of a laptop: no torch.

Tokens are as exact as those of `hf:`, and so are the rules of what may hold control tokens: the same text side reads a small
tokenizer here, whose vocabulary and chat template come from the file. An adapter is put on the base when it is loaded, in
its own precision; nothing is merged.

Needs the extra `llama`. Weights are mapped into memory, so that several processes share them.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from parallelsearch.dialect import Tool
from parallelsearch.errors import PolicyError, UsageError, nearest, require, stopped
from parallelsearch.options import read_options
from parallelsearch.policy import models
from parallelsearch.policy.encoding import EnginePolicy, Template
from parallelsearch.policy.engine.kept import KeptStates
from parallelsearch.policy.engine.llama import ByteStops, LlamaEngine, num_common
from parallelsearch.policy.gguf_lora import DIALECT_KEY, Base, as_gguf
from parallelsearch.policy.llama_cpp import EXTRA, Model, free_memory, library, num_cores
from parallelsearch.trajectory import Segment

logger = logging.getLogger(__name__)

SUFFIX = ".gguf"
DEFAULT_MAX_CONTEXT = 4096
MIN_AHEAD = 32
"""A shorter beginning is not worth a file."""
_FORM = "gguf:FILE+ADAPTER"
_OPTIONS = {"max_context": int, "max_slots": int, "num_threads": int}
"""Those that an address may have."""
_LAST_SPACE = re.compile(r"(?<=\s)(?=\s\d)")


@dataclass(frozen=True, slots=True)
class GgufSpec:
    """What an address names: the base, as written and as a file, and the adapter: a folder written by peft or a GGUF file."""

    name: str
    file: Path
    adapter: Path | None = None


def parse_gguf(spec: str) -> GgufSpec:
    """`FILE` or `FILE+ADAPTER`, resolved. A file whose own name has a plus sign is still found."""
    base, plus, adapter = spec.rpartition("+")
    if not plus or Path(spec).expanduser().is_file():
        return GgufSpec(spec, _find_file(spec))
    if adapter.endswith(SUFFIX):
        lora = Path(adapter).expanduser()
        if not lora.is_file():
            raise UsageError(f"there is no adapter file '{adapter}'; expected {_FORM}")
        return GgufSpec(base, _find_file(base), lora)
    return GgufSpec(base, _find_file(base), models.find_adapter(adapter, _FORM))


def _find_file(name: str) -> Path:
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if (packaged := models.packaged_gguf(name)) is not None:
        return packaged
    if name in models.PACKAGED:
        raise UsageError(f"the weights of '{name}' are not installed; they come with: {models.WEIGHTS_HINT}")
    if path.is_dir():
        found = sorted(file.name for file in path.glob(f"*{SUFFIX}"))
        raise UsageError(
            f"'{name}' is a folder; name a file in it: gguf:{path / found[0]}"
            if found
            else f"'{name}' is a folder without a {SUFFIX} file. For a transformers model write hf:{name}, or make a file of "
            f"it: parallelsearch export hf:{name} MODEL{SUFFIX}"
        )
    beside = [str(file) for file in sorted(path.parent.glob(f"*{SUFFIX}"))] if path.parent.is_dir() else []
    raise UsageError(
        f"there is no file '{name}'; expected a {SUFFIX} file on this machine, or '{models.SMOLLM2}' for the packaged one."
        f"{nearest(name, [*models.PACKAGED, *beside])}"
    )


class GgufTokenizer:
    """The vocabulary of a GGUF file, with the methods that the text side asks of a tokenizer."""

    def __init__(self, model: Model, cuts_as_gpt2: bool = False) -> None:
        """`cuts_as_gpt2`: of several spaces or line breaks before a digit the last one stands apart. transformers reads the
        packaged base so, though the file names SmolLM's own cut, and the adapter of this package was trained with it."""
        self._model, self._cuts_as_gpt2 = model, cuts_as_gpt2
        self.chat_template = model.chat_template
        self._control = model.control_tokens()
        self.all_special_tokens = list(self._control.values())
        self.piece = lru_cache(maxsize=None)(model.piece)

    def encode(self, text: str, *, add_special_tokens: bool, split_special_tokens: bool) -> list[int]:
        ids: list[int] = []
        for number, part in enumerate(_LAST_SPACE.split(text) if self._cuts_as_gpt2 else [text]):
            ids += self._model.encode(
                part, is_trusted=not split_special_tokens, adds_frame=add_special_tokens and number == 0
            )
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False, **_: Any) -> str:
        """Their text; nothing is tidied."""
        shown = {} if skip_special_tokens else self._control
        pieces = (shown[token].encode() if token in shown else self.piece(token) for token in ids)
        return b"".join(pieces).decode("utf-8", "replace")

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> str:
        options.pop("tokenize", None)
        tokens = {f"{which}_token": self._model.token_text(which) for which in ("bos", "eos")}
        text: str = self._template.render(messages=messages, **({"tools": None} | tokens | options))
        return text

    @cached_property
    def _template(self) -> Any:
        """Compiled as transformers does it: templates are written for that."""
        import json
        from datetime import datetime

        sandbox = require("jinja2.sandbox", EXTRA)

        def refuse(message: str) -> None:
            raise UsageError(message)

        def tojson(value: Any, **options: Any) -> str:  # jinja2's own escapes what HTML would read
            return json.dumps(value, **({"ensure_ascii": False} | options))

        environment = sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = tojson
        environment.globals["raise_exception"] = refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        return environment.from_string(self.chat_template or "")


class GgufPolicy(EnginePolicy):
    """A GGUF file and the llama.cpp engine that runs it."""

    name = "gguf"
    streams = True
    engine: LlamaEngine

    def __init__(
        self,
        spec: GgufSpec,
        *,
        max_context: int | None = None,
        max_slots: int = 8,
        num_threads: int | None = None,
        template: Template = "auto",
    ) -> None:
        """`max_slots` turns run at once, each with a cache of `max_context` tokens, made when it is needed. `num_threads` is
        the number of cores where it is not given."""
        if max_slots < 1 or (num_threads is not None and num_threads < 1):
            raise UsageError("max_slots and num_threads are numbers from 1 on")
        self._spec, self._closing = spec, threading.Lock()
        size, free = spec.file.stat().st_size, free_memory()
        if free is not None and size > free:
            logger.warning(
                "'%s' has %.1f GB, and %.1f GB of memory are free: it will be slow. Take a smaller model, or one with fewer "
                "bits (Q4_K_M)",
                spec.name,
                size / 1e9,
                free / 1e9,
            )
        self._model = Model(spec.file)
        try:
            self._put_adapter()
            is_packaged = spec.file == models.packaged_gguf(models.SMOLLM2)
            super().__init__(GgufTokenizer(self._model, is_packaged), spec.name, template)
            limit = self._model.max_context or DEFAULT_MAX_CONTEXT
            if max_context is not None and not 0 < max_context <= limit:
                raise UsageError(
                    f"max_context is a number up to {limit}, what '{spec.name}' was made for, not {max_context}"
                )
            self.max_context: int = max_context or min(limit, DEFAULT_MAX_CONTEXT)
            self.engine = LlamaEngine(
                self._model,
                ByteStops(self.tokenizer.piece),
                self.max_context,
                num_threads=num_threads or num_cores(),
                max_slots=max_slots,
            )
        except BaseException:
            self._model.close()
            raise
        noted = self._model.adapter_setting(DIALECT_KEY) or self._model.setting(DIALECT_KEY)
        # A file that says nothing of it is somebody else's chat model: it is asked by the calls that its template knows.
        self.dialect = noted or ("tools" if self.takes_tools and spec.adapter is None else None)

    @classmethod
    def from_address(cls, spec: str, **options: Any) -> GgufPolicy:
        """The policy that `gguf:SPEC` names: `FILE` or `FILE+ADAPTER`, and options behind it (`?max_context=8192`), which
        win over `options`."""
        library()  # what is not installed is told before what is not found
        name, _, query = spec.partition("?")
        return cls(parse_gguf(name), **{**options, **read_options(query, _OPTIONS, "gguf:")})

    def _put_adapter(self) -> None:
        adapter = self._spec.adapter
        if adapter is None:
            return
        if adapter.is_file():
            self._put_adapter_file(adapter)
            return
        family = self._model.setting("general.architecture") or "unknown"
        heads = int(self._model.setting(f"{family}.attention.head_count") or 0)
        kv_heads = int(self._model.setting(f"{family}.attention.head_count_kv") or heads)
        with as_gguf(adapter, Base(family, heads, kv_heads)) as file:
            self._put_adapter_file(file)

    def _put_adapter_file(self, file: Path) -> None:
        try:
            self._model.put_adapter(file)
        except PolicyError as error:
            base, adapter = self._spec.name, self._spec.adapter
            trained_on = models.note_of(adapter).get("base") if adapter is not None else None
            raise PolicyError(
                f"the adapter '{adapter}' does not fit '{base}': {stopped(error)} "
                + (f"It was trained on '{trained_on}'. " if trained_on else "")
                + f"Take the base it was trained on, or leave it out: gguf:{base}"
            ) from error

    # ---- the protocol ------------------------------------------------------------------------------------------------

    def prompt(self, text: str, question: str, tools: Sequence[Tool] = ()) -> Segment:
        """As llama.cpp's own server does it: a file that wants a token at the beginning gets it, also where its chat template
        leaves it out."""
        segment = super().prompt(text, question, tools)
        first = self._model.first_token
        if first is not None and segment.token_ids is not None and segment.token_ids[:1] != [first]:
            segment.token_ids.insert(0, first)
        return segment

    def expect(self, prompts: Sequence[str], tools: Sequence[Tool] = ()) -> None:
        if self._model.is_recurrent or self._model.window:
            return  # what they keep cannot be cut back to a common beginning
        first, *others = (self.prompt(text, "", tools).token_ids or [] for text in prompts)
        length = min((num_common(first, other) for other in others), default=0)
        if length >= MIN_AHEAD:
            mark = " ".join(str(value) for key, value in self._marks().items() if key != "model")
            self.engine.read_ahead(first[:length], KeptStates(models.cache_dir(), mark))

    def describe(self) -> dict[str, Any]:
        return {"kind": self.name} | self._marks() | self.engine.describe()

    def _marks(self) -> dict[str, Any]:
        """What tells these weights, on this release of llama.cpp, from others."""
        adapter = self._spec.adapter
        record = {"model": self.label, "weights": models.quick_file_hash(self._spec.file)}
        if adapter is not None:
            mark = models.quick_file_hash(adapter) if adapter.is_file() else models.quick_hash(adapter)
            record |= {"adapter": adapter.name, "adapter_weights": mark}
        return record | {"llama_cpp": library().version}

    async def aclose(self) -> None:
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._closing:  # a second one would free the same memory again
            self.engine.close()
            self._model.close()
