"""llama.cpp in this process: its C functions, called in the library that `xllamacpp` brings as a wheel.

The package's own Python door is a server: one thread a request, JSON for each token, an HTTP port that stays open, and no
tokenizer. The functions of llama.h lie in the same file, and they are what an engine needs: ids in, logits out, a cache
whose end can be cut off. `Model` has weights and vocabulary, `Context` a cache for several sequences.

Structures of settings change with the releases, and llama.cpp hands them over by value. Here they are blocks larger than
any release's, filled by llama.cpp's own defaults; only the first four numbers of a context are set, which have stood there
since 2024, and llama.cpp is asked afterwards whether it took them. What has no such question is left at its default.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import re
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parallelsearch.errors import MissingExtraError, PolicyError, require

PACKAGE, EXTRA = "xllamacpp", "llama"
BATCH_TOKENS = 512
"""How many tokens one call may feed."""

_ERROR_LEVEL = 4
_CUT_OFF = re.compile(r"not within the file bounds|failed to read|unexpectedly reached end of file")
_CONTROL = 1 | 8
"""Attributes of a token that is no text: unknown, control."""


class _Settings(ctypes.Structure):
    """A structure of settings, of whatever length it has inside."""

    _fields_ = [("words", ctypes.c_uint32 * 256)]


class _Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.c_void_p),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.c_void_p),
        ("n_seq_id", ctypes.c_void_p),
        ("seq_id", ctypes.c_void_p),
        ("logits", ctypes.c_void_p),
    ]


_P, _I, _U, _N, _B, _S = (
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_uint32,
    ctypes.c_size_t,
    ctypes.c_bool,
    ctypes.c_char_p,
)
# What is called, as llama.h declares it: the result, then the arguments.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "llama_backend_init": (None,),
    "llama_log_set": (None, _P, _P),
    "llama_model_default_params": (_Settings,),
    "llama_context_default_params": (_Settings,),
    "llama_model_load_from_file": (_P, _S, _Settings),
    "llama_model_free": (None, _P),
    "llama_model_get_vocab": (_P, _P),
    "llama_model_n_ctx_train": (_I, _P),
    "llama_model_n_swa": (_I, _P),
    "llama_model_is_recurrent": (_B, _P),
    "llama_model_is_hybrid": (_B, _P),
    "llama_model_has_encoder": (_B, _P),
    "llama_model_chat_template": (_S, _P, _S),
    "llama_model_meta_val_str": (_I, _P, _S, _P, _N),
    "llama_adapter_lora_init": (_P, _P, _S),
    "llama_adapter_meta_val_str": (_I, _P, _S, _P, _N),
    "llama_set_adapters_lora": (_I, _P, _P, _N, _P),
    "llama_init_from_model": (_P, _P, _Settings),
    "llama_free": (None, _P),
    "llama_n_ctx_seq": (_U, _P),
    "llama_n_batch": (_U, _P),
    "llama_n_ubatch": (_U, _P),
    "llama_n_seq_max": (_U, _P),
    "llama_set_n_threads": (None, _P, _I, _I),
    "llama_get_memory": (_P, _P),
    "llama_memory_clear": (None, _P, _B),
    "llama_memory_seq_rm": (_B, _P, _I, _I, _I),
    "llama_memory_seq_cp": (None, _P, _I, _I, _I, _I),
    "llama_memory_seq_pos_min": (_I, _P, _I),
    "llama_state_seq_get_size": (_N, _P, _I),
    "llama_state_seq_get_data": (_N, _P, _P, _N, _I),
    "llama_state_seq_set_data": (_N, _P, _P, _N, _I),
    "llama_decode": (_I, _P, _Batch),
    "llama_get_logits_ith": (_P, _P, _I),
    "llama_tokenize": (_I, _P, _S, _I, _P, _I, _B, _B),
    "llama_token_to_piece": (_I, _P, _I, _P, _I, _I, _B),
    "llama_vocab_n_tokens": (_I, _P),
    "llama_vocab_get_attr": (_I, _P, _I),
    "llama_vocab_get_text": (_S, _P, _I),
    "llama_vocab_is_eog": (_B, _P, _I),
    "llama_vocab_bos": (_I, _P),
    "llama_vocab_eos": (_I, _P),
    "llama_vocab_get_add_bos": (_B, _P),
}


class Library:
    """The functions, and what llama.cpp said last when something went wrong."""

    def __init__(self, path: Path, version: str) -> None:
        self.version = version
        try:
            with _short_waits():
                loaded = ctypes.CDLL(str(path))
        except OSError as error:
            hint = " On Debian and Ubuntu: apt install libgomp1." if "libgomp" in str(error) else ""
            raise MissingExtraError(f"'{PACKAGE}' {version} is installed but does not load: {error}.{hint}") from error
        self.call: Any = loaded
        try:
            for name, (result, *arguments) in _FUNCTIONS.items():
                function = getattr(loaded, name)
                function.restype, function.argtypes = result, arguments
        except AttributeError as error:
            raise MissingExtraError(
                f"'{PACKAGE}' {version} does not offer llama.cpp's functions ({error}); take the release that was tried: "
                f"pip install -c constraints.txt {PACKAGE}"
            ) from error
        self._heard = threading.local()
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
        self._listener = kind(self._listen)  # kept: the library holds no reference
        loaded.llama_log_set(ctypes.cast(self._listener, ctypes.c_void_p), None)
        loaded.llama_backend_init()

    def _listen(self, level: int, text: bytes | None, _: object) -> None:
        if level >= _ERROR_LEVEL and text:
            self.complaints.append(text.decode("utf-8", "replace").strip())

    @property
    def complaints(self) -> deque[str]:
        """The last errors that llama.cpp reported in this thread; whoever calls clears them before."""
        if not hasattr(self._heard, "said"):
            self._heard.said = deque(maxlen=4)
        said: deque[str] = self._heard.said
        return said

    def reason(self) -> str:
        return "; ".join(self.complaints) or "it gives no reason"


@contextlib.contextmanager
def _short_waits() -> Iterator[None]:
    """llama.cpp's threads meet after every operation, and wait for each other by turning on the spot for milliseconds. Where
    another program has one of the cores, that is 14 times as slow as to sit down soon (measured at a load of 10 on two
    cores). The waiting is set by the environment when the library is loaded; what the user has set there stays."""
    known = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    if any(name in os.environ for name in known):
        yield
        return
    os.environ["GOMP_SPINCOUNT"] = "1000"
    try:
        yield
    finally:
        del os.environ["GOMP_SPINCOUNT"]


@lru_cache(maxsize=1)
def library() -> Library:
    """llama.cpp, or what to install."""
    found = importlib.util.find_spec(PACKAGE)
    files = [
        file
        for folder in (found.submodule_search_locations or [] if found else [])
        for file in sorted(Path(folder).glob(f"{PACKAGE}*.so"))
    ]
    if not files:
        require(PACKAGE, EXTRA)
        raise MissingExtraError(
            f"'{PACKAGE}' is installed, but its library is not where it was in the release that was tried"
        )
    from importlib.metadata import version

    return Library(files[0], version(PACKAGE))


class Model:
    """Weights, mapped into memory, and the vocabulary that lies beside them."""

    def __init__(self, path: Path) -> None:
        _check_is_gguf(path)
        self._library = library()
        self._call = self._library.call
        self._library.complaints.clear()
        self.pointer = self._call.llama_model_load_from_file(os.fsencode(path), self._call.llama_model_default_params())
        if not self.pointer:
            reason = self._library.reason()
            hint = " The file is not whole: download it again." if _CUT_OFF.search(reason) else ""
            raise PolicyError(f"llama.cpp cannot load '{path}': {reason}.{hint}")
        if (what := self._not_a_writer()) is not None:
            self.close()
            raise PolicyError(
                f"'{path}' {what}: it does not write text from left to right. Take a chat model; for search by vectors: "
                "parallelsearch index --help"
            )
        self.num_tokens = int(self._call.llama_vocab_n_tokens(self._vocabulary))
        self.max_context = int(self._call.llama_model_n_ctx_train(self.pointer))
        self.window = int(self._call.llama_model_n_swa(self.pointer))
        """How far a layer with a sliding window sees back; 0 where there is none."""
        self.is_recurrent = bool(
            self._call.llama_model_is_recurrent(self.pointer) or self._call.llama_model_is_hybrid(self.pointer)
        )
        self.first_token = (
            int(self._call.llama_vocab_bos(self._vocabulary))
            if self._call.llama_vocab_get_add_bos(self._vocabulary)
            else None
        )
        """What the vocabulary wants at the beginning of every text, if anything."""
        self.token_bytes = self._token_bytes()
        self._adapter: Any = None

    def _token_bytes(self) -> int:
        """What a token takes in the cache, where the file tells it: keys and values of two bytes a number."""
        family = self.setting("general.architecture")

        def number(key: str) -> int:
            said = self.setting(f"{family}.{key}") or ""
            return int(said) if said.isdecimal() else 0

        heads = number("attention.head_count")
        size = number("attention.key_length") or number("embedding_length") // max(1, heads)
        return 0 if self.is_recurrent else 4 * number("block_count") * number("attention.head_count_kv") * size

    def _not_a_writer(self) -> str | None:
        """What the model is, if it is none that goes on with a text: llama.cpp loads those too."""
        family = self.setting("general.architecture")
        if self._call.llama_model_has_encoder(self.pointer) or self.setting(f"{family}.attention.causal") == "false":
            return f"has an encoder ({family})"
        return f"makes vectors ({family})" if self.setting(f"{family}.pooling_type") not in (None, "0") else None

    @property
    def _vocabulary(self) -> Any:
        if not self.pointer:  # llama.cpp would read what is no longer there
            raise PolicyError("the model is closed")
        return self._call.llama_model_get_vocab(self.pointer)

    def put_adapter(self, path: Path) -> None:
        """A LoRA adapter for every context made from here on."""
        _check_is_gguf(path)
        self._library.complaints.clear()
        self._adapter = self._call.llama_adapter_lora_init(self.pointer, os.fsencode(path))
        if not self._adapter:
            raise PolicyError(self._library.reason())

    @property
    def adapter(self) -> Any:
        return self._adapter

    def setting(self, key: str) -> str | None:
        """What the file says under this key; for an adapter's own file see `adapter_setting`."""
        return self._text(self._call.llama_model_meta_val_str, self.pointer, key)

    def adapter_setting(self, key: str) -> str | None:
        return self._text(self._call.llama_adapter_meta_val_str, self._adapter, key) if self._adapter else None

    def _text(self, ask: Any, of: Any, key: str) -> str | None:
        buffer = ctypes.create_string_buffer(4096)
        length = ask(of, key.encode(), buffer, len(buffer))
        return None if length < 0 else buffer.value.decode("utf-8", "replace")

    # ---- the vocabulary ----------------------------------------------------------------------------------------------

    @property
    def chat_template(self) -> str | None:
        found = self._call.llama_model_chat_template(self.pointer, None)
        return found.decode("utf-8") if found else None

    def control_tokens(self) -> dict[int, str]:
        """Every token that is no text, by its id."""
        attribute, text, vocabulary = self._call.llama_vocab_get_attr, self._call.llama_vocab_get_text, self._vocabulary
        return {
            token: text(vocabulary, token).decode("utf-8", "replace")
            for token in range(self.num_tokens)
            if attribute(vocabulary, token) & _CONTROL
        }

    def token_text(self, which: str) -> str:
        """The token that begins (`bos`) or ends (`eos`) a text, or nothing."""
        vocabulary = self._vocabulary
        token = getattr(self._call, f"llama_vocab_{which}")(vocabulary)
        return self._call.llama_vocab_get_text(vocabulary, token).decode("utf-8") if token >= 0 else ""

    def ends(self, token: int) -> bool:
        """Whether this token ends a turn."""
        return bool(self._call.llama_vocab_is_eog(self._vocabulary, token))

    def encode(self, text: str, *, is_trusted: bool, adds_frame: bool = False) -> list[int]:
        """Ids of the text. Control tokens are read as such only in trusted text; `adds_frame` puts what the vocabulary wants
        at the beginning."""
        data = text.encode("utf-8", "replace")
        room = len(data) + 8  # no token is shorter than a byte
        ids = (ctypes.c_int32 * room)()
        count = self._call.llama_tokenize(self._vocabulary, data, len(data), ids, room, adds_frame, is_trusted)
        if count < 0:
            raise PolicyError(f"llama.cpp could not encode a text of {len(data)} bytes")
        return ids[:count]

    def piece(self, token: int) -> bytes:
        """The bytes a token adds to the text; none for a control token."""
        if not 0 <= token < self.num_tokens:
            raise PolicyError(f"there is no token {token}: the vocabulary has {self.num_tokens}")
        size = 64
        while True:  # a buffer of its own: engine and event loop ask at the same time
            buffer = ctypes.create_string_buffer(size)
            length = self._call.llama_token_to_piece(self._vocabulary, token, buffer, size, 0, False)
            if length >= 0:
                return buffer.raw[:length]
            size = -length

    def close(self) -> None:
        """Free the weights, and the adapter with them. No context may be open."""
        if self.pointer:
            self._call.llama_model_free(self.pointer)
            self.pointer = None


class Context:
    """A cache for several sequences of a model, and one call at a time that feeds them."""

    def __init__(self, model: Model, num_sequences: int, max_context: int, num_threads: int) -> None:
        self._library = library()
        self._call: Any = self._library.call
        self._num_tokens = model.num_tokens
        needed, free = num_sequences * max_context * model.token_bytes, free_memory()
        if free is not None and needed > free:  # the system would end the process, without a word
            raise PolicyError(
                f"{num_sequences} x {max_context} tokens take {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB of memory are "
                "free. Lower max_context or max_slots"
            )
        settings = self._call.llama_context_default_params()
        num_cells = num_sequences * max_context
        self.batch_tokens = min(BATCH_TOKENS, num_cells)
        wanted = (num_cells, self.batch_tokens, self.batch_tokens, num_sequences)
        settings.words[0:4] = wanted
        self._library.complaints.clear()
        self._pointer = self._call.llama_init_from_model(model.pointer, settings)
        if not self._pointer:
            raise PolicyError(
                f"llama.cpp made no room for {num_sequences} x {max_context} tokens: {self._library.reason()}. "
                "Lower max_context or max_slots"
            )
        found = tuple(
            int(getattr(self._call, f"llama_n_{name}")(self._pointer)) for name in ("batch", "ubatch", "seq_max")
        )
        if found != wanted[1:] or int(self._call.llama_n_ctx_seq(self._pointer)) < max_context:
            raise PolicyError(
                f"'{PACKAGE}' {self._library.version} has its settings in an order that is not known here; take the release "
                f"that was tried: pip install -c constraints.txt {PACKAGE}"
            )
        self.use_threads(num_threads)
        if model.adapter:
            adapters, scales = (ctypes.c_void_p * 1)(model.adapter), (ctypes.c_float * 1)(1.0)
            if self._call.llama_set_adapters_lora(self._pointer, adapters, 1, scales):
                raise PolicyError("llama.cpp refused the adapter")
        self._memory = self._call.llama_get_memory(self._pointer)
        self._tokens, self._positions, self._sequences = (np.zeros(BATCH_TOKENS, np.int32) for _ in range(3))
        self._wants = np.zeros(BATCH_TOKENS, np.int8)
        self._ones = np.ones(BATCH_TOKENS, np.int32)
        # Each token has a list of sequences; here it is the one number beside it.
        self._lists = self._sequences.ctypes.data + 4 * np.arange(BATCH_TOKENS, dtype=np.uintp)

    def use_threads(self, count: int) -> None:
        self._call.llama_set_n_threads(self._pointer, count, count)

    def feed(self, rows: Sequence[tuple[int, int, Sequence[int], bool]]) -> list[npt.NDArray[np.float32]]:
        """Put tokens behind sequences: `(sequence, position, tokens, wants_logits)` each, `batch_tokens` in all at most. The
        logits behind the last token of each row that wants them, in order; valid until the next call."""
        count, wanted = 0, []
        self._wants[:] = 0
        for sequence, position, tokens, wants_logits in rows:
            end = count + len(tokens)
            self._tokens[count:end] = tokens
            self._positions[count:end] = np.arange(position, position + len(tokens))
            self._sequences[count:end] = sequence
            count = end
            if wants_logits:
                self._wants[count - 1] = 1
                wanted.append(count - 1)
        arrays = (self._positions, self._ones, self._lists, self._wants)
        batch = _Batch(count, self._tokens.ctypes.data, None, *(array.ctypes.data for array in arrays))
        self._library.complaints.clear()
        if status := self._call.llama_decode(self._pointer, batch):
            raise PolicyError(f"llama.cpp failed (status {status}): {self._library.reason()}")
        return [self._logits(number) for number in wanted]

    def _logits(self, number: int) -> npt.NDArray[np.float32]:
        address = self._call.llama_get_logits_ith(self._pointer, number)
        if not address:
            raise PolicyError("llama.cpp gave no logits")
        return np.ctypeslib.as_array((ctypes.c_float * self._num_tokens).from_address(address))

    def cut(self, sequence: int, length: int) -> bool:
        """Keep the first `length` tokens of a sequence. False where this kind of cache cannot; then nothing is kept."""
        if self._call.llama_memory_seq_rm(self._memory, sequence, length, -1):
            return True
        self._call.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        return False

    def first_position(self, sequence: int) -> int:
        """The position of the oldest token that is still kept; below 0 for none."""
        return int(self._call.llama_memory_seq_pos_min(self._memory, sequence))

    def copy(self, source: int, target: int) -> None:
        """All of a sequence in the place of another."""
        self._call.llama_memory_seq_rm(self._memory, target, -1, -1)
        self._call.llama_memory_seq_cp(self._memory, source, target, -1, -1)

    def clear(self) -> None:
        self._call.llama_memory_clear(self._memory, True)

    def saved(self, sequence: int) -> Any:
        """A sequence as bytes that another context of the same model takes."""
        data = ctypes.create_string_buffer(self._call.llama_state_seq_get_size(self._pointer, sequence))
        self._call.llama_state_seq_get_data(self._pointer, data, len(data), sequence)
        return data

    def restore(self, sequence: int, data: Any) -> bool:
        """Take what `saved` gave; False if it does not fit."""
        return bool(self._call.llama_state_seq_set_data(self._pointer, data, len(data), sequence))

    def close(self) -> None:
        if self._pointer:
            self._call.llama_free(self._pointer)
            self._pointer = None


def _check_is_gguf(path: Path) -> None:
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise PolicyError(f"cannot read '{path}': {error.strerror or error}") from error
    if start != b"GGUF":
        raise PolicyError(f"'{path}' is no GGUF file: it begins with {start!r}")


def free_memory() -> int | None:
    """Bytes that programs may still take; None where the system does not say."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])
    return None


def num_cores() -> int:
    """The cores this process may use. llama.cpp gains nothing from a second thread on one, and loses from more threads than
    a container is given."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = len({_siblings(number) for number in usable})
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    return max(1, cores)


def _siblings(number: int) -> str:
    try:
        return Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(number)
