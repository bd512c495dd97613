"""The stop automaton against a plain byte search, over real tokenizers of three families."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import pytest
import tiny_models
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from parallelsearch.grammar import STOP_STRINGS
from parallelsearch.policy.engine.stops import StopBank, StopTable, build_table, byte_automaton, token_bytes

VOCABULARY: list[bytes | None] = [
    *[bytes([b]) for b in b"</serchanwxy> .\n"],
    *[
        b"</",
        b"search",
        b"answer",
        b">.",
        b">\n\n",
        b"></",
        b"</search",
        b"r></answer>x",
        b"</search></answer>",
        b" </s",
    ],
    *["é".encode()[:1], "é".encode()[1:], "</é".encode()],
    None,
    None,
]


def first_match(ids: list[int], vocabulary: list[bytes | None], stops: list[bytes]) -> int | None:
    """What the automaton must give: search the bytes since the last special token, after each token."""
    text = b""
    for index, token in enumerate(ids):
        piece = vocabulary[token]
        text = b"" if piece is None else text + piece
        if any(stop in text for stop in stops):
            return index
    return None


@lru_cache(maxsize=8)
def table(stops: tuple[str, ...]) -> StopTable:
    return build_table(stops, VOCABULARY)


@settings(max_examples=600, deadline=None)
@given(
    ids=st.lists(st.integers(0, len(VOCABULARY) - 1), max_size=24),
    stops=st.sampled_from([STOP_STRINGS, ("</s", "/search>"), ("ss", "sss"), ("</é>",), ("search", "ar", "arch>.")]),
)
def test_the_automaton_agrees_with_a_byte_search(ids: list[int], stops: tuple[str, ...]) -> None:
    assert table(stops).matches(ids) == first_match(ids, VOCABULARY, [stop.encode() for stop in stops])


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([b"</", b"search", b">"], 2),
        ([b"</", b"search", b">."], 2),
        ([b" </s", b"e", b"a", b"r", b"c", b"h", b">\n\n"], 6),
        ([b"</search", b"></"], 1),
        ([b"</", b"answe", b">"], None),
        ([b"</", None, b"search", b">"], None),
        ([b"</", b"</", b"search", b">"], 3),
        ([b"x</search></answer>y"], 0),
    ],
)
def test_a_tag_may_begin_and_end_inside_a_token(pieces: list[bytes | None], expected: int | None) -> None:
    assert build_table(STOP_STRINGS, pieces).matches(list(range(len(pieces)))) == expected


def test_accepting_states_absorb_and_no_stop_never_fires() -> None:
    steps, accepts = byte_automaton([b"ab", b"b"])
    for state in accepts.nonzero()[0]:
        assert (steps[state] == state).all()
    empty = build_table(("",), VOCABULARY)
    assert empty.delta.shape == (1, len(VOCABULARY))
    assert not empty.accepts.any()


def test_a_bank_keeps_sets_apart() -> None:
    bank = StopBank(VOCABULARY)
    first, second = bank.start(("</search>",)), bank.start(("</answer>",))
    assert (first, bank.version) == (0, 2)
    assert bank.start(("</search>",)) == first
    assert bank.version == 2
    for start, stop in ((first, b"</search>"), (second, b"</answer>")):
        for tag in (b"</search>", b"</answer>"):
            state = start
            for byte in tag:
                state = int(bank.delta[state, VOCABULARY.index(bytes([byte]))])
            assert bool(bank.accepts[state]) == (tag == stop)


# ---- the bytes of real tokenizers ------------------------------------------------------------------------------------


def sentencepiece_like() -> Any:
    """As Llama 2's: spaces are `▁`, unknown characters fall back to byte tokens of the ordinary vocabulary."""
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.train_from_iterator(tiny_models.LINES[:4] * 3, trainers.BpeTrainer(vocab_size=200, show_progress=False))
    learnt = json.loads(learner.to_str())["model"]
    names = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], *learnt["vocab"]]
    raw = Tokenizer(
        models.BPE(
            {name: number for number, name in enumerate(names)},
            [tuple(merge) for merge in learnt["merges"]],
            byte_fallback=True,
            unk_token="<unk>",
        )
    )
    raw.normalizer = normalizers.Replace(" ", "▁")
    raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def word_pieces() -> Any:
    raw = Tokenizer(
        models.WordLevel({"a": 0, "search": 1, "<": 2, "/": 3, ">": 4, "[UNK]": 5, "b": 6}, unk_token="[UNK]")
    )
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="[UNK]")


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=60) | st.sampled_from(tiny_models.LINES))
def test_byte_level_tokens_are_exactly_the_bytes_of_the_text(text: str) -> None:
    tokenizer = tiny_models.tokenizer()
    vocabulary = token_bytes(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
    assert b"".join(vocabulary[i] or b"?" for i in ids) == text.encode()


def test_special_tokens_and_padding_ids_are_no_text() -> None:
    tokenizer = tiny_models.tokenizer()
    vocabulary = token_bytes(tokenizer, len(tokenizer) + 5)
    assert len(vocabulary) == len(tokenizer) + 5
    assert vocabulary[:3] == [None] * 3
    assert vocabulary[-5:] == [None] * 5


def test_tiny_vocabulary_has_tokens_with_text_after_a_tag() -> None:
    """The other tests rely on it: a stop string ends inside a token here."""
    vocabulary = token_bytes(tiny_models.tokenizer())
    assert any(token is not None and b">" in token and not token.endswith(b">") for token in vocabulary)


def test_a_sentencepiece_like_tokenizer_stops_right() -> None:
    tokenizer = sentencepiece_like()
    vocabulary = token_bytes(tokenizer)
    text = "a b é </search> c"
    ids = tokenizer.encode(text, add_special_tokens=False)
    byte_ids = [tokenizer.convert_tokens_to_ids(f"<0x{b:02X}>") for b in "é".encode()]
    assert [vocabulary[i] for i in byte_ids] == [b"\xc3", b"\xa9"]
    assert b"".join(vocabulary[i] or b"" for i in ids) == text.encode()
    match = build_table(STOP_STRINGS, vocabulary).matches(ids)
    assert match is not None
    assert "</search>" in tokenizer.decode(ids[: match + 1], clean_up_tokenization_spaces=False)
    assert "</search>" not in tokenizer.decode(ids[:match], clean_up_tokenization_spaces=False)


def test_any_other_tokenizer_is_asked_token_by_token() -> None:
    tokenizer = word_pieces()
    vocabulary = token_bytes(tokenizer)
    assert vocabulary[:5] == [b"a", b"search", b"<", b"/", b">"]
    assert build_table(("</search>",), vocabulary).matches([6, 2, 3, 1, 4, 0]) == 4
