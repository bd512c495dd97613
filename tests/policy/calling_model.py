"""A tiny model that was trained, in seconds, to call the search tool once and then to answer: for servers that are real.

It learns one thing: behind a prompt it writes a call, behind results the answer. The call is several tokens of ordinary text
in Qwen's form, so that a server's own parser has something to read.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import tiny_models
import torch
import trl
from transformers import LlamaConfig, LlamaForCausalLM

from parallelsearch.dialects import open_dialect
from parallelsearch.policy.base import Message
from parallelsearch.policy.local import LocalPolicy
from parallelsearch.trajectory import Segment

QWEN = (Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja").read_text()
CALL = '<tool_call>\n{"name": "search", "arguments": {"queries": ["Monet", "Pissarro"]}}\n</tool_call>'
SAY = "Camille Pissarro"
END = "<|im_end|>"


def train(tokenizer: Any, questions: list[str], steps: int = 120) -> Any:
    """A Llama of two layers that calls for each of these questions, and then says the same."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        eos_token_id=tokenizer.convert_tokens_to_ids(END),
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).float()
    rows = [row for question in questions for row in _rows(model, tokenizer, question)]
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        ids, labels = rows[step % len(rows)]
        loss = model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    return model.eval()


def _rows(model: Any, tokenizer: Any, question: str) -> list[tuple[list[int], list[int]]]:
    """The ids of a whole conversation, with labels on what the model is to write; results are of several lengths."""
    dialect = open_dialect("tools")
    policy = LocalPolicy(model, tokenizer, engine="batch")
    end = tokenizer.convert_tokens_to_ids(END)
    rows = []
    for number in (1, 3, 6):
        prompt = policy.prompt(dialect.prompt(question), question, dialect.tools)
        call = Segment("model", CALL, [*tokenizer.encode(CALL), end])
        found = "\n".join(f"[{n}] Monet: Monet was a painter, born in 1840." for n in range(1, number + 1))
        results = policy.insert_messages([Message("search", f"Results for: Monet\n{found}\n", "a")], [prompt, call])
        answer = Segment("model", SAY, [*tokenizer.encode(SAY), end])
        ids, labels = [], []
        for segment in (prompt, call, *results, answer):
            ids += segment.token_ids or []
            labels += segment.token_ids if segment.author == "model" else [-100] * len(segment.token_ids or ())
        rows.append((ids, labels))
    return rows


def tokenizer() -> Any:
    words = copy.deepcopy(tiny_models.tokenizer())
    words.chat_template = QWEN
    return words
