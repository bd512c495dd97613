"""What `teach` can be told, each setting with its default, and which of them a run that goes on may not change."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from parallelsearch.config import Settings
from parallelsearch.limits import Limits, Prices
from parallelsearch.rollouts import MAX_CONCURRENT

MAY_CHANGE = frozenset(
    {
        "max_teacher_tokens",
        "prices",
        "gguf",
        "out",
        "corpus",
        "questions",
        "concurrency",
        "micro_batch_tokens",
        "num_asked_at_once",
    }
)
"""Settings that decide nothing that was already made: money, where things lie, what the machine can take, what is written at
the end. That corpus and questions are the same is known by what is in them, not by their names."""
READ_LATE = {"base": "sft", "epochs": "sft", "lr": "sft", "batch_size": "sft", "lora_rank": "sft", "grpo_steps": "grpo"}
"""The stage that first reads a setting, where others come before it: until it is done, the setting may change. Of `base` the
model is read earlier, for its tokens: `run.py` sees to that."""


class TeachSettings(Settings):
    """One run of `teach`."""

    corpus: str
    out: str
    base: str = "smollm2-135m+parallel"
    """What is trained: a model, or a model and the adapter to go on from."""
    questions: str | None = None
    """A file of questions of one's own; without it they are made, by the teacher or by the rules."""
    teacher: str | None = None
    """The policy address of the model that writes questions."""
    rules: str = "english"
    num_questions: int = Field(default=400, ge=4)
    """How many are wanted for training; of a file of one's own at most so many are used."""
    num_held_out: int = Field(default=60, ge=2)
    """How many more are kept back for the evaluation before and after."""
    min_trajectories: int = Field(default=40, ge=1)
    """With fewer to learn from the run stops before it trains."""
    num_samples: int = Field(default=0, ge=0)
    """How often the teacher may try each question that no lesson could be written for; right tries are learned from."""
    k: int = Field(default=3, ge=1)
    max_turns: int = Field(default=4, ge=1)
    max_length: int = Field(default=2560, ge=64)
    """Tokens of a trajectory."""
    epochs: float = Field(default=2.0, gt=0)
    lr: float = Field(default=5e-4, gt=0)
    batch_size: int = Field(default=16, ge=1)
    micro_batch_tokens: int = Field(default=2560, ge=64)
    """Tokens in one forward and backward pass: 2,560 of the 135M model take 5 GB. At least one trajectory is taken."""
    lora_rank: int = Field(default=16, ge=1)
    """Of a new adapter; one to go on from keeps its own."""
    grpo_steps: int = Field(default=0, ge=0)
    """Steps of GRPO after SFT; 0 leaves it out."""
    max_teacher_tokens: int | None = Field(default=None, gt=0)
    """The teacher is not asked beyond so many tokens, read and written."""
    prices: tuple[float, float] | None = None
    """What a million tokens read and a million written by the teacher cost."""
    concurrency: int = Field(default=8, ge=1)
    """How many requests the teacher gets at once."""
    num_asked_at_once: int = Field(default=MAX_CONCURRENT, ge=1)
    """How many held-out questions are under way at once; a GPU takes more."""
    gguf: bool = False
    seed: int = 0

    @property
    def limits(self) -> Limits:
        return Limits(max_turns=self.max_turns, max_tokens=max(self.max_length, 64), timeout_s=None)

    @property
    def price_list(self) -> Prices | None:
        return None if self.prices is None else Prices(*self.prices)

    @property
    def source(self) -> str:
        """Where the questions come from, in a word."""
        return "file" if self.questions is not None else "teacher" if self.teacher is not None else "rules"

    def frozen(self) -> dict[str, Any]:
        """What a run that goes on must share with its beginning, each until the stage that reads it has begun."""
        kept = {name: value for name, value in self.model_dump(mode="json").items() if name not in MAY_CHANGE}
        return {**kept, "source": self.source}
