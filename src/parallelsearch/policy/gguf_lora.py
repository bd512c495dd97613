"""A LoRA adapter as peft writes it, made into the GGUF file that llama.cpp puts on a base: numpy, no torch.

Each pair of matrices keeps its numbers, in float32, under llama.cpp's name for the layer. Two things change: rows of the
queries and keys of a Llama are put in the order in which llama.cpp turns them (the rows of B, since B A has them), and the
scaling of peft becomes the `alpha` that llama.cpp divides by the rank. The file is made at first use and kept beside the
converted models, under a name that says what is in it: wherever the same adapter is installed, there is one file of it.
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parallelsearch.errors import PolicyError, UsageError
from parallelsearch.files import whole_file
from parallelsearch.policy.models import ADAPTER_CONFIG, cache_dir, note_of, read_record, read_tensors

_FORMAT = 1
"""Of the files made here; a change makes them all anew."""
_ALIGNMENT = 32
_STRING, _FLOAT32, _UINT32 = 8, 6, 4
_LAYERS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TENSOR = re.compile(r"base_model\.model\.(?:model\.)?layers\.(\d+)\.(\w+\.\w+)\.lora_([AB])\.(?:default\.)?weight\Z")
_TURNED = {"llama": ("attn_q", "attn_k"), "qwen2": (), "qwen3": ()}
"""The architectures whose layers are called so, and which of their rows llama.cpp keeps in another order."""
DIALECT_KEY = "parallelsearch.dialect"
Matrix = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Base:
    """What the adapter goes on, as its GGUF file says it."""

    architecture: str
    num_heads: int
    num_kv_heads: int


@contextmanager
def as_gguf(folder: Path, base: Base) -> Iterator[Path]:
    """The adapter of a folder as a GGUF file for this base. It stays in the cache; where nothing can be written there, it is
    there only while the block runs."""
    identity = hashlib.sha256(f"{_FORMAT} {base} {note_of(folder).get('dialect')} ".encode())
    for file in (folder / ADAPTER_CONFIG, _weights_file(folder)):
        identity.update(file.read_bytes())
    target = cache_dir() / f"lora-{folder.name}-{identity.hexdigest()[:12]}.gguf"
    if not target.is_file():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(target) as draft:
                write_lora(folder, base, draft)
        except OSError:
            with tempfile.TemporaryDirectory() as spare:
                write_lora(folder, base, Path(spare) / target.name)
                yield Path(spare) / target.name
            return
    yield target


def write_lora(folder: Path, base: Base, target: Path) -> None:
    """Write the adapter to the file `target`."""
    if base.architecture not in _TURNED:
        raise UsageError(
            f"adapters for a '{base.architecture}' cannot be converted here, only for {', '.join(_TURNED)}. Convert it with "
            "llama.cpp's convert_lora_to_gguf.py and write gguf:FILE+LORA.gguf"
        )
    config = read_record(folder / ADAPTER_CONFIG)
    _check(folder, config)
    alpha = float(config["lora_alpha"])
    tensors = sorted(_converted(folder, config, base, alpha))
    settings: list[tuple[str, int, Any]] = [
        ("general.type", _STRING, "adapter"),
        ("general.architecture", _STRING, base.architecture),
        ("general.name", _STRING, folder.name),
        ("general.alignment", _UINT32, _ALIGNMENT),
        ("adapter.type", _STRING, "lora"),
        ("adapter.lora.alpha", _FLOAT32, alpha),
    ]
    if dialect := note_of(folder).get("dialect"):
        settings.append((DIALECT_KEY, _STRING, dialect))
    with target.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(settings)))
        for key, kind, value in settings:
            file.write(_text(key) + struct.pack("<I", kind))
            file.write(_text(value) if kind == _STRING else struct.pack("<f" if kind == _FLOAT32 else "<I", value))
        offset = 0
        for name, matrix in tensors:
            rows, columns = matrix.shape
            file.write(_text(name) + struct.pack("<IQQIQ", 2, columns, rows, 0, offset))  # the type 0 is float32
            offset += _padded(matrix.nbytes)
        file.write(bytes(_padded(file.tell()) - file.tell()))
        for _, matrix in tensors:
            file.write(matrix.tobytes())
            file.write(bytes(_padded(matrix.nbytes) - matrix.nbytes))


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _weights_file(folder: Path) -> Path:
    file = folder / "adapter_model.safetensors"
    if not file.is_file():
        raise UsageError(f"the adapter folder '{folder}' has no {file.name}")
    return file


def _check(folder: Path, config: dict[str, Any]) -> None:
    odd = [
        *([] if config.get("peft_type", "LORA") == "LORA" else [f"the type {config['peft_type']}"]),
        *([] if config.get("bias", "none") == "none" else ["trained biases"]),
        *(name for name in ("use_dora", "lora_bias", "modules_to_save", "fan_in_fan_out") if config.get(name)),
    ]
    if odd or "lora_alpha" not in config or "r" not in config:
        found = ", ".join(odd) or f"no rank or alpha in {ADAPTER_CONFIG}"
        raise UsageError(
            f"the adapter '{folder}' is not plain LoRA: it has {found}. Merge it instead: parallelsearch export "
            f"hf:BASE+{folder} MODEL.gguf"
        )


def _converted(folder: Path, config: dict[str, Any], base: Base, alpha: float) -> Iterator[tuple[str, Matrix]]:
    for own_name, matrix in read_tensors(_weights_file(folder)):
        found = _TENSOR.fullmatch(own_name)
        if found is None or found[2] not in _LAYERS:
            raise UsageError(
                f"the adapter '{folder}' changes '{own_name}', which has no counterpart here; merge it instead: "
                f"parallelsearch export hf:BASE+{folder} MODEL.gguf"
            )
        layer = _LAYERS[found[2]]
        if found[3] == "B":
            rank = matrix.shape[1]
            matrix = matrix * np.float32(_scaling(config, own_name, rank) * rank / alpha)
            if layer in _TURNED[base.architecture]:
                matrix = interleaved(matrix, base.num_heads if layer == "attn_q" else base.num_kv_heads)
        yield f"blk.{found[1]}.{layer}.weight.lora_{found[3].lower()}", np.ascontiguousarray(matrix, dtype=np.float32)


def _scaling(config: dict[str, Any], name: str, rank: int) -> float:
    """peft's factor before B A. Patterns give single layers another alpha; their rank is that of the matrix."""
    module = name.partition(".lora_")[0]
    alpha = next(
        (value for key, value in (config.get("alpha_pattern") or {}).items() if re.match(rf"(.*\.)?({key})$", module)),
        config["lora_alpha"],
    )
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def interleaved(rows: Any, num_heads: int) -> Any:
    """Rotary positions turn pairs of rows. transformers pairs row i of a head with row i + half, llama.cpp with the next."""
    if num_heads < 1 or rows.shape[0] % (2 * num_heads):
        raise PolicyError(f"the adapter was made for another base: {rows.shape[0]} rows are not {num_heads} heads")
    halves = rows.reshape(num_heads, 2, -1, rows.shape[-1])
    return halves.swapaxes(1, 2).reshape(rows.shape)
