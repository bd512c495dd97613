"""A real byte-level BPE tokenizer trained on a few lines, and tiny random models, for the tests of the local engines."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

torch.set_num_threads(1)  # tiny tensors: a second thread only waits

LINES = [
    "<think> I need two facts. </think>\n<search> capital of France ## capital of Peru </search>\n\n",
    "<information>\n1. Paris (Title: France) Paris is the capital.\n</information>",
    "<think> Now I know it. </think> <answer> Paris and Lima </answer>.",
    "He said </search>. Then </answer>, and </search>\n again </answer>\n\n",
    "café naïve 東京 日本語 😀 😃 привет, 1984 and 2001",
]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@lru_cache(maxsize=4)
def tokenizer(with_template: bool = True) -> Any:
    raw = Tokenizer(models.BPE())
    # Without GPT-2's regular expression merges cross tags, so that a stop string ends in the middle of a token.
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator([*LINES, ">. >.\n >\n\n >, </s"] * 3, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>", clean_up_tokenization_spaces=False
    )
    if with_template:
        fast.chat_template = CHATML
    return fast


def model(kind: str = "llama", seed: int = 0, max_position: int = 512) -> Any:
    torch.manual_seed(seed)
    vocab = len(tokenizer()) + 5  # padded, as Qwen's is
    common: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": 96,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": max_position,
        "initializer_range": 0.15,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
    }
    if kind == "llama":
        built: Any = LlamaForCausalLM(LlamaConfig(**common))
    elif kind == "qwen2":
        built = Qwen2ForCausalLM(Qwen2Config(**common))
    elif kind == "qwen3":
        built = Qwen3ForCausalLM(Qwen3Config(**common))
    else:
        built = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=vocab,
                n_embd=64,
                n_layer=2,
                n_head=4,
                n_positions=max_position,
                bos_token_id=None,
                eos_token_id=2,
            )
        )
    return built.eval()


def fresh_logprobs(net: Any, ids: list[int], start: int, temperature: float = 1.0) -> list[float]:
    """Log-probabilities of `ids[start:]` in one plain forward pass."""
    with torch.no_grad():
        logits = net(torch.tensor([ids])).logits[0, start - 1 : -1].float() / temperature
    chosen = torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[start:])[:, None])[:, 0]
    return [float(value) for value in chosen]
