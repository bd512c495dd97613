"""A run in miniature: a model of 50,000 weights and questions with a planted behaviour, for smoke runs and tests.

The tokenizer has whole turns as tokens, and the fresh model a leaning towards them, so it speaks the grammar from the start
and throws a coin over the rest: whether to split, how often to search, what to answer. What there is to learn is planted in
the questions: one kind is to be split and answered "yes", the other is a chain and answered "no". A training run that works
finds that out; one that does not, does not. Nothing else is special: rollout, search, rewards and updates are the real ones.
"""

from __future__ import annotations

import random
from typing import Any

from parallelsearch import grammar
from parallelsearch.errors import UsageError, require
from parallelsearch.trajectory import Kind, Question

NAME = "smoke"
"""In a recipe: the name of this model, and of these questions."""
_NAMES = (
    "ash",
    "birch",
    "cedar",
    "elm",
    "fir",
    "hazel",
    "larch",
    "lime",
    "maple",
    "oak",
    "pine",
    "rowan",
    "willow",
    "yew",
)
TURNS = (
    grammar.render_turn("look", queries=("tree", "leaf")),
    grammar.render_turn("look", queries=("tree",)),
    grammar.render_turn("done", answer="yes"),
    grammar.render_turn("done", answer="no"),
)
"""Turns that are one token each."""


def questions(count: int, seed: int = 0) -> list[Question]:
    """Half parallel, half sequential, all different."""
    triples = [(a, b, c) for a in _NAMES for b in _NAMES for c in _NAMES if len({a, b, c}) == 3]
    if count > len(triples):
        raise UsageError(f"there are {len(triples)} smoke questions, not {count}")
    made: list[Question] = []
    for number, (a, b, c) in enumerate(random.Random(f"smoke/{seed}").sample(triples, count)):
        kind: Kind = "parallel" if number % 2 == 0 else "sequential"
        text = f"Do {a} and {b} and {c} all grow?" if kind == "parallel" else f"Where does {a} lead from {b} to {c}?"
        answer = "yes" if kind == "parallel" else "no"
        made.append(Question(text, [answer], id=f"smoke-{seed}-{number}", dataset=NAME, kind=kind))
    return made


def make_tokenizer() -> Any:
    """Byte-level BPE trained on a few questions, with the turns and the fixed part of the prompt as ordinary tokens."""
    transformers = require("transformers", "train")
    require("tokenizers", "train")
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=["<|end|>", "<|pad|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    raw.train_from_iterator([question.question for question in questions(64)], trainer)
    asked = "Question:"
    fixed = grammar.prompt_text("x").partition(asked)[0] + asked
    raw.add_tokens([AddedToken(text, normalized=False) for text in (*TURNS, fixed)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|end|>", pad_token="<|pad|>", clean_up_tokenization_spaces=False
    )


def make_model(tokenizer: Any, seed: int = 0, leaning: float = 2.0) -> Any:
    """A Llama of two layers with random weights, but for one direction of the hidden state that every token has and that
    speaks for the turns. `leaning` is how loudly; 0 gives a model that writes noise."""
    torch = require("torch", "train")
    transformers = require("transformers", "train")
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(config).float()
    with torch.no_grad():
        embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
        embedding.normal_(0.0, 0.3)
        embedding[:, 0] = 1.0
        head.normal_(0.0, 0.05)
        head[[tokenizer.convert_tokens_to_ids(turn) for turn in TURNS], 0] = leaning
    return model
