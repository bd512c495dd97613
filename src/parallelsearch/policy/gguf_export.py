"""A model, its adapter merged, as one GGUF file: what llama.cpp, Ollama and LM Studio load.

The file holds settings, the vocabulary and the tensors, which are converted one at a time. Two layouts are known, those of
Llama (SmolLM2 is one) and of Qwen2. A tokenizer is named by how it cuts text before merging: a name that cuts otherwise
would give other tokens than the model was trained on, so that whatever has no exact counterpart is refused.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallelsearch.errors import ParallelSearchError, PolicyError, UsageError, nearest, require
from parallelsearch.files import whole_file
from parallelsearch.policy.gguf_lora import DIALECT_KEY, interleaved
from parallelsearch.policy.models import ModelSpec, dialect_of, load, quiet_transformers, stored_dtype

SUFFIX = ".gguf"
_MAX_FLOAT16, _MAX_FLOAT32 = 65504.0, 3.4028234663852886e38
# The largest weight each type can hold. q8_0 keeps 127 steps of a float16 for every 32 weights.
_LARGEST = {"f16": _MAX_FLOAT16, "bf16": 3.3895313892515355e38, "f32": _MAX_FLOAT32, "q8_0": 127 * _MAX_FLOAT16}
DTYPES = tuple(_LARGEST)

_LAYOUTS = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2"}

_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# How text is cut, step by step, and llama.cpp's name for it.
_CUTS: dict[tuple[tuple[str, object], ...], str] = {
    (("ByteLevel", True),): "gpt-2",
    (("Digits", True), ("ByteLevel", True)): "smollm",
    (("Split", _QWEN2_WORDS), ("ByteLevel", False)): "qwen2",
}


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """Tokens in order of their ids, each with its type, and how text becomes them."""

    cut: str
    tokens: list[str]
    types: list[int]
    merges: list[str]


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One tensor of the file: its name there, its weights as the model has them, the type it is written in."""

    name: str
    weights: Any
    dtype: str
    num_rotated_heads: int = 0


def write_gguf(spec: ModelSpec, out: Path | str, dtype: str = "f16") -> Path:
    """The model as the file `out`, an adapter merged in float32 before rounding. It appears only when it is whole."""
    target = Path(out)
    if dtype not in DTYPES:
        raise UsageError(f"unknown dtype '{dtype}'; known are {', '.join(DTYPES)}.{nearest(dtype, DTYPES)}")
    if target.suffix != SUFFIX:
        raise UsageError(f"'{target}' does not end in {SUFFIX}")
    if target.exists():
        raise UsageError(f"'{target}' is there already; choose another name or remove it")
    gguf = require("gguf", "local")
    layout = _checked_layout(spec)
    model, tokenizer = load(spec, "cpu", require("torch", "local").float32 if spec.adapter else stored_dtype(spec))
    vocabulary = _vocabulary(spec, tokenizer, model.config.vocab_size)
    tensors = list(_tensors(model, layout, dtype))
    num_bytes = 0
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(target) as draft:
            writer = gguf.GGUFWriter(draft, layout)
            _add_settings(writer, spec, model.config, dtype)
            _add_vocabulary(writer, tokenizer, vocabulary)
            num_bytes = _add_tensor_list(writer, tensors)
            try:
                _write(writer, tensors)
            finally:
                with contextlib.suppress(OSError):  # closing repeats the failed write
                    writer.close()
    except OSError as error:
        raise ParallelSearchError(_why_not_written(target, error, num_bytes)) from error
    return target


def _why_not_written(target: Path, error: OSError, num_bytes: int) -> str:
    try:
        free = f", {shutil.disk_usage(target.parent).free / 1e6:,.0f} MB are free there"
    except OSError:
        free = ""
    return f"could not write '{target}': {error.strerror or error}. The file needs {num_bytes / 1e6:,.1f} MB{free}"


# ---- settings --------------------------------------------------------------------------------------------------------


def _checked_layout(spec: ModelSpec) -> str:
    """llama.cpp's name of the model's layout, if every part of it is one that the file can say."""
    transformers = require("transformers", "local")
    try:
        with quiet_transformers():
            config = transformers.AutoConfig.from_pretrained(str(spec.folder))
    except Exception as error:
        raise PolicyError(f"could not read the settings in '{spec.folder}': {error}") from error
    found = (config.architectures or [type(config).__name__])[0]
    if found not in _LAYOUTS:
        raise UsageError(
            f"'{spec.name}' is a {found}; as GGUF can be written: {', '.join(_LAYOUTS)}. For others use llama.cpp's own "
            "convert_hf_to_gguf.py on a merged folder: parallelsearch export hf:BASE+ADAPTER FOLDER"
        )
    rope = config.rope_parameters["rope_type"]
    odd = [
        *([f"rope type '{rope}'"] if rope != "default" else []),
        *([f"activation '{config.hidden_act}'"] if config.hidden_act != "silu" else []),
        *(name for name in ("attention_bias", "mlp_bias", "use_sliding_window") if getattr(config, name, False)),
    ]
    if odd:
        raise UsageError(
            f"'{spec.name}' is not a plain {found}, and only plain ones are written: it has {', '.join(odd)}"
        )
    return _LAYOUTS[found]


def _head_size(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _add_settings(writer: Any, spec: ModelSpec, config: Any, dtype: str) -> None:
    gguf = require("gguf", "local")
    head_size = _head_size(config)
    writer.add_type("model")
    writer.add_name("-".join(Path(part).name for part in (spec.name, spec.adapter) if part))
    writer.add_file_type(getattr(gguf.LlamaFileType, "ALL_F32" if dtype == "f32" else f"MOSTLY_{dtype.upper()}"))
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    if (dialect := dialect_of(spec)) is not None:
        writer.add_string(DIALECT_KEY, dialect)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(head_size)
    if head_size * config.num_attention_heads != config.hidden_size:
        writer.add_key_length(head_size)
        writer.add_value_length(head_size)


# ---- vocabulary ------------------------------------------------------------------------------------------------------


def _vocabulary(spec: ModelSpec, tokenizer: Any, num_rows: int) -> _Vocabulary:
    """What the tokenizer knows. Rows of the embedding that stand for no token get a name and are marked as unused."""
    token_type = require("gguf", "local").TokenType
    backend = getattr(tokenizer, "backend_tokenizer", None)
    record = json.loads(backend.to_str()) if backend is not None else {}
    cut = _cut(spec, record)
    names: dict[int, tuple[str, int]] = {
        number: (token, token_type.NORMAL) for token, number in record["model"]["vocab"].items()
    }
    for added in record["added_tokens"]:
        kind = token_type.CONTROL if added["special"] else token_type.USER_DEFINED
        names[added["id"]] = (added["content"], kind)
    if max(names) >= num_rows:
        raise UsageError(f"the tokenizer of '{spec.name}' has ids up to {max(names)}, its model only {num_rows} rows")
    rows = [names.get(number, (f"[PAD{number}]", token_type.UNUSED)) for number in range(num_rows)]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in record["model"]["merges"]]
    return _Vocabulary(cut, [name for name, _ in rows], [int(kind) for _, kind in rows], merges)


def _cut(spec: ModelSpec, record: dict[str, Any]) -> str:
    """llama.cpp's name for how this tokenizer cuts text."""
    kind = (record.get("model") or {}).get("type", "none that is known")
    steps = _steps(record.get("pre_tokenizer"), "pretokenizers")
    cut = _CUTS.get(tuple((step["type"], _setting(step)) for step in steps))
    # Normal form C is let through: llama.cpp leaves it out for every Qwen2, and text is rarely in another form.
    normalised = [step["type"] for step in _steps(record.get("normalizer"), "normalizers") if step["type"] != "NFC"]
    if kind == "BPE" and cut is not None and not normalised and not record["model"].get("ignore_merges"):
        return cut
    found = ", ".join([kind, *(step["type"] for step in steps), *normalised])
    raise UsageError(
        f"the tokenizer of '{spec.name}' cannot be written: it has {found}. Known are byte-level BPE as GPT-2, SmolLM2 "
        "and Qwen2 have it"
    )


def _steps(part: dict[str, Any] | None, inner: str) -> list[dict[str, Any]]:
    if part is None:
        return []
    return list(part[inner]) if part["type"] == "Sequence" else [part]


def _setting(step: dict[str, Any]) -> object:
    """What tells one step from another of its type; None for one that changes more than the cuts."""
    if step["type"] == "ByteLevel":
        return None if step["add_prefix_space"] else step["use_regex"]
    if step["type"] == "Digits":
        return step["individual_digits"]
    if step["type"] == "Split" and step["behavior"] == "Isolated" and not step["invert"]:
        return step["pattern"].get("Regex")
    return None


def _add_vocabulary(writer: Any, tokenizer: Any, vocabulary: _Vocabulary) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(vocabulary.cut)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    writer.add_token_merges(vocabulary.merges)
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    writer.add_add_bos_token(bos is not None and tokenizer("a")["input_ids"][0] == bos)
    for add, number in (
        # Readers fail, or take a token of their own, where there is none; that it is not added has been said.
        (writer.add_bos_token_id, eos if bos is None else bos),
        (writer.add_eos_token_id, eos),
        (writer.add_unk_token_id, tokenizer.unk_token_id),
        (writer.add_pad_token_id, tokenizer.pad_token_id),
    ):
        if number is not None:
            add(number)
    writer.add_add_space_prefix(False)
    template = tokenizer.chat_template
    if isinstance(template, dict):  # several by name
        template = template.get("default")
    if template:
        writer.add_chat_template(template)


# ---- tensors ---------------------------------------------------------------------------------------------------------


def _tensors(model: Any, layout: str, dtype: str) -> Iterator[_Tensor]:
    """Every tensor under llama.cpp's name. An output layer that is the embedding itself is not repeated."""
    gguf = require("gguf", "local")
    config = model.config
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == layout)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    is_tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    for own_name, weights in model.state_dict().items():
        if is_tied and own_name == "lm_head.weight":
            continue
        name = names.get_name(own_name, try_suffixes=(".weight", ".bias"))
        if name is None:
            raise PolicyError(f"the model has a tensor '{own_name}', which no {layout} has")
        num_rotated_heads = 0
        if layout == "llama" and own_name.endswith(("q_proj.weight", "k_proj.weight")):
            num_rotated_heads = weights.shape[0] // _head_size(config)
        yield _Tensor(name, weights, _dtype_of(weights, dtype), num_rotated_heads)


def _dtype_of(weights: Any, dtype: str) -> str:
    """Vectors stay as they are: they are small, and llama.cpp adds them in float32. q8_0 needs rows of whole blocks."""
    if weights.dim() == 1:
        return "f32"
    if dtype == "q8_0" and weights.shape[-1] % 32:
        return "f16"
    return dtype


def _ggml_type(dtype: str) -> Any:
    return require("gguf", "local").GGMLQuantizationType[dtype.upper()]


def _add_tensor_list(writer: Any, tensors: list[_Tensor]) -> int:
    """Announce names, shapes and sizes; returns how many bytes the weights take."""
    import numpy as np

    sizes = require("gguf", "local").GGML_QUANT_SIZES
    total = 0
    for tensor in tensors:
        kind = _ggml_type(tensor.dtype)
        weights_per_block, bytes_per_block = sizes[kind]
        num_bytes = tensor.weights.numel() // weights_per_block * bytes_per_block
        writer.add_tensor_info(tensor.name, tensor.weights.shape, np.dtype(np.float32), num_bytes, raw_dtype=kind)
        total += num_bytes
    return total


def _write(writer: Any, tensors: list[_Tensor]) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    # Written here and not by the writer, whose way through numpy does not report a full disk reliably.
    file = writer.fout[0]
    writer.write_padding(file, file.tell())
    for tensor in tensors:
        data = _converted(tensor)
        file.write(data.data)
        writer.write_padding(file, data.nbytes)
    writer.close()


def _converted(tensor: _Tensor) -> Any:
    import numpy as np

    values = tensor.weights.detach().float().numpy()
    largest = float(np.abs(values).max())
    if not largest <= _LARGEST[tensor.dtype]:
        raise UsageError(
            f"the tensor '{tensor.name}' holds {largest:g}, which {tensor.dtype} cannot. If the weights are sound, "
            "choose another type: --dtype bf16"
        )
    if tensor.num_rotated_heads:
        values = interleaved(values, tensor.num_rotated_heads)
    return np.ascontiguousarray(require("gguf.quants", "local").quantize(values, _ggml_type(tensor.dtype)))
