"""Names to encoders: a model in this process, or one behind a server, and the one that an index was built with."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from parallelsearch.errors import IndexDamagedError, MissingExtraError, UsageError
from parallelsearch.retrieval.encoder import MAX_TOKENS, Encoder, resolve_encoder
from parallelsearch.retrieval.served_encoder import ServedEncoder, ServedModel, is_served
from parallelsearch.retrieval.text_encoder import KnownEncoder, Prefixes, TextEncoder

# First match wins. Matched against the lower-case last part of the name.
_DIM_BY_NAME = (
    (r"text-embedding-3-large", 3072),
    (r"text-embedding-", 1536),
    (r"nomic-embed|embedding-?gemma", 768),
    (r"qwen3-embedding.*8b", 4096),
    (r"qwen3-embedding.*4b", 2560),
    (r"qwen3-embedding", 1024),
    (r"minilm|small", 384),
    (r"base", 768),
    (r"large|bge-m3", 1024),
)


def open_encoder(
    name: str | TextEncoder, *, device: str | None = None, batch_size: int = 64, max_tokens: int = MAX_TOKENS
) -> TextEncoder:
    """The encoder of a name, `openai:BASE_URL#MODEL` or one of this machine; an encoder is returned as it is."""
    if isinstance(name, TextEncoder):
        return name
    if not is_served(name):
        if "://" in name:
            raise UsageError(f"'{name}' is the address of a server: for its embeddings write openai:BASE_URL#MODEL")
        try:
            return Encoder(name, device=device, batch_size=batch_size, max_tokens=max_tokens)
        except MissingExtraError as error:
            raise MissingExtraError(
                f"{error}, or take the embeddings of a server, without torch: --encoder openai:BASE_URL#MODEL"
            ) from error
    if max_tokens != MAX_TOKENS:
        raise UsageError(
            f"max_tokens ({max_tokens}) is for an encoder of this machine; a served one cuts by characters, as its address "
            "says: ?max_chars=4000 before the '#'"
        )
    return ServedEncoder(name, batch_size=batch_size)


def known_encoder(
    record: dict[str, Any], given: str | TextEncoder | None, device: str | None, owner: str
) -> TextEncoder:
    """The encoder that made the vectors of `owner`, or the one given if it is the same; another is refused."""
    try:
        prefixes = Prefixes(record["query_prefix"], record["passage_prefix"])
        probe = np.asarray(record["probe"], np.float32)
        known = KnownEncoder(owner, str(record["name"]), int(record["dim"]), prefixes, probe)
        max_tokens, max_chars = int(record.get("max_tokens", MAX_TOKENS)), record.get("max_chars")
        if max_chars is None and "max_tokens" not in record:
            raise KeyError("max_tokens")
    except (KeyError, TypeError, ValueError) as error:
        raise IndexDamagedError(f"{owner} does not say what its encoder was ({error}); build it again") from error
    name = given or known.name
    if isinstance(name, str) and is_served(name):
        return ServedEncoder(name, prefixes=prefixes, max_chars=max_chars, known=known)
    encoder = (
        name
        if isinstance(name, TextEncoder)
        else Encoder(name, device=device, max_tokens=max_tokens, prefixes=prefixes)
    )
    known.check(encoder.name, encoder.prefixes, encoder.probe)
    return encoder


def expected_dim(name: str) -> int | None:
    """How long an encoder's vectors will be, without loading it or asking its server: from its configuration or address, or
    from the model's name."""
    if is_served(name):
        served = ServedModel.of(name)
        if "dimensions" in served.options:
            return int(served.options["dimensions"])
        name = served.model
    else:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, UsageError):
            return int(json.loads((Path(resolve_encoder(name)) / "config.json").read_text("utf-8"))["hidden_size"])
    last = name.rstrip("/").rpartition("/")[2].lower()
    return next((dim for pattern, dim in _DIM_BY_NAME if re.search(pattern, last)), None)
