"""Stop strings as an automaton over tokens: `state = delta[state, token]`, one table look-up a step.

An Aho-Corasick automaton over the bytes of the stop strings is stepped through the bytes of every token of the
vocabulary, once, so that a tag may begin and end in the middle of a token. Accepting states absorb. Each turn starts in
the start state, so that a tag in the prompt never fires. A special token is not text: it breaks a match.

The bytes of a token are exact for byte-level vocabularies (GPT-2's alphabet) and for sentencepiece-like ones (`▁` and
`<0x..>`); for any other tokenizer each token is decoded behind an anchor. Numpy only: engines copy the tables to a device.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
_SPACE_MARK = "\u2581"


class Vocabulary(Protocol):
    """The part of a transformers tokenizer that is needed here."""

    added_tokens_decoder: dict[int, Any]
    all_special_ids: list[int]

    def __len__(self) -> int: ...
    def convert_ids_to_tokens(self, ids: list[int]) -> list[str | None]: ...
    def decode(self, token_ids: list[int], **options: Any) -> str: ...


# ---- the bytes of each token -----------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _byte_alphabet() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 characters stand for themselves, the other bytes for characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(rest)}


def _kinds_in(part: object) -> set[str]:
    """Every `type` in a tokenizer's JSON description."""
    if isinstance(part, dict):
        own = {part["type"]} if isinstance(part.get("type"), str) else set()
        return own.union(*(_kinds_in(value) for value in part.values()))
    if isinstance(part, list):
        return set().union(*(_kinds_in(value) for value in part))
    return set()


def _family(tokenizer: Vocabulary, tokens: Sequence[str | None]) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        description = json.loads(backend.to_str())
        kinds = _kinds_in(description.get("decoder")) | _kinds_in(description.get("pre_tokenizer"))
        if "ByteLevel" in kinds:
            return "byte-level"
        if kinds & {"Metaspace", "ByteFallback"}:
            return "sentencepiece"
    if sum(token is not None and token.startswith(_SPACE_MARK) for token in tokens) > len(tokens) // 100:
        return "sentencepiece"
    return "other"


def special_ids(tokenizer: Vocabulary) -> set[int]:
    """Ids that are control, not text: those `decode(skip_special_tokens=True)` leaves out."""
    added = {i for i, token in tokenizer.added_tokens_decoder.items() if getattr(token, "special", True)}
    return added | set(tokenizer.all_special_ids)


def token_bytes(tokenizer: Vocabulary, vocab_size: int | None = None) -> list[bytes | None]:
    """The bytes each token id adds to the text; None for special tokens and for ids no token has."""
    size = len(tokenizer)
    tokens = tokenizer.convert_ids_to_tokens(list(range(size)))
    family = _family(tokenizer, tokens)
    special = special_ids(tokenizer)
    added = set(tokenizer.added_tokens_decoder)
    alphabet = _byte_alphabet()
    anchor = tokens.index("a") if "a" in tokens else None
    anchor_text = "" if anchor is None else _plain_decode(tokenizer, [anchor])
    result: list[bytes | None] = []
    for number, token in enumerate(tokens):
        if token is None or number in special:
            result.append(None)
        elif number in added:
            result.append(token.encode())
        elif family == "byte-level":
            known = all(character in alphabet for character in token)
            result.append(bytes(alphabet[character] for character in token) if known else token.encode())
        elif family == "sentencepiece":
            byte = _BYTE_TOKEN.match(token)
            result.append(bytes([int(byte[1], 16)]) if byte else token.replace(_SPACE_MARK, " ").encode())
        elif anchor is None:
            result.append(_plain_decode(tokenizer, [number]).encode())
        else:
            result.append(_plain_decode(tokenizer, [anchor, number])[len(anchor_text) :].encode())
    width = size if vocab_size is None else vocab_size
    return result[:width] + [None] * (width - size)


def _plain_decode(tokenizer: Vocabulary, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


# ---- the automaton ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StopTable:
    """`delta[state, token]` and which states mean that a stop string is complete. State 0 is the start."""

    delta: npt.NDArray[np.int16]
    accepts: npt.NDArray[np.bool_]

    def matches(self, ids: Sequence[int]) -> int | None:
        """The index of the token that completes a stop string, or None. For tests and for text that is already there."""
        state = 0
        for index, token in enumerate(ids):
            state = int(self.delta[state, token])
            if self.accepts[state]:
                return index
        return None


def byte_automaton(stops: Sequence[bytes]) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.bool_]]:
    """Transitions over bytes, `(states, 256)`, with accepting states absorbing; state 0 is the start."""
    children: list[dict[int, int]] = [{}]
    accepting: set[int] = set()
    for stop in stops:
        node = 0
        for byte in stop:
            if byte not in children[node]:
                children.append({})
                children[node][byte] = len(children) - 1
            node = children[node][byte]
        if node:
            accepting.add(node)
    steps = np.zeros((len(children), 256), dtype=np.int16)
    fallback = [0] * len(children)
    queue = [0]
    for node in queue:
        if node:
            steps[node] = steps[fallback[node]]
            if fallback[node] in accepting:
                accepting.add(node)
        for byte, child in children[node].items():
            fallback[child] = int(steps[fallback[node], byte]) if node else 0
            steps[node, byte] = child
            queue.append(child)
    accepts = np.zeros(len(children), dtype=np.bool_)
    for node in accepting:
        accepts[node] = True
        steps[node] = node
    return steps, accepts


def build_table(stops: Sequence[str], vocabulary: Sequence[bytes | None]) -> StopTable:
    """Fold the byte automaton of `stops` over the vocabulary."""
    steps, accepts = byte_automaton([stop.encode() for stop in stops if stop])
    lengths = np.array([0 if token is None else len(token) for token in vocabulary], dtype=np.int64)
    order = np.argsort(-lengths, kind="stable")
    longest = int(lengths.max(initial=0))
    # Tokens from long to short: those that still have a byte in column j are a prefix of the order.
    alive = [int(np.count_nonzero(lengths > column)) for column in range(longest)]
    grid = np.zeros((len(vocabulary), longest), dtype=np.uint8)
    for row, token in enumerate(order):
        text = vocabulary[int(token)]
        if text:
            grid[row, : len(text)] = np.frombuffer(text, dtype=np.uint8)
    is_special = np.array([vocabulary[int(token)] is None for token in order], dtype=np.bool_)
    delta = np.zeros((len(steps), len(vocabulary)), dtype=np.int16)
    for start in range(len(steps)):
        state = np.full(len(vocabulary), start, dtype=np.int16)
        for column, count in enumerate(alive):
            state[:count] = steps[state[:count], grid[:count, column]]
        if not accepts[start]:
            state[is_special] = 0
        delta[start, order] = state
    return StopTable(delta, accepts)


class StopBank:
    """The tables of every set of stop strings in use, stacked into one, so that rows with different sets share a step.

    `start(stops)` gives the state a turn begins in, adding a table when the set is new; `version` then changes, and an
    engine copies the stacked arrays to its device again.
    """

    def __init__(self, vocabulary: Sequence[bytes | None]) -> None:
        self._vocabulary = vocabulary
        self._starts: dict[tuple[str, ...], int] = {}
        self.delta: npt.NDArray[np.int16] = np.zeros((0, len(vocabulary)), dtype=np.int16)
        self.accepts: npt.NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        self.version = 0

    def start(self, stops: Sequence[str]) -> int:
        key = tuple(sorted(set(stops)))
        if key not in self._starts:
            table = build_table(key, self._vocabulary)
            offset = len(self.accepts)
            self._starts[key] = offset
            self.delta = np.concatenate([self.delta, table.delta + np.int16(offset)])
            self.accepts = np.concatenate([self.accepts, table.accepts])
            self.version += 1
        return self._starts[key]

    def strings(self, start: int) -> tuple[str, ...]:
        """The stop strings that a state given out by `start` stands for."""
        return next(stops for stops, state in self._starts.items() if state == start)
