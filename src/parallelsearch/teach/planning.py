"""What a run of `teach` will take, before anything is asked or trained: questions, the teacher's tokens and their price,
minutes.

The figures are estimates and say so. Tokens follow from the corpus: how long its passages are. Minutes are a rough guide:
on a GPU they follow from runs on one H200, on a CPU the rate of training is a guess that no run has tested yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from parallelsearch.retrieval.base import Passage
from parallelsearch.teach.making import MAX_WORDS
from parallelsearch.teach.settings import TeachSettings

TOKENS_PER_WORD = 1.4
USABLE_SHARE = 0.5
"""Of a teacher's questions, so many pass the checks; a better teacher wastes less."""
PASSAGES_PER_BUNDLE = 2.0
PROMPT_TOKENS, REPLY_TOKENS, CHECK_TOKENS = 260, 160, 12
"""Words around the passages, a question with its steps, and the short answer of the second request."""
TOKENS_PER_TRAJECTORY = 1200
TRAINED_TOKENS_PER_S = {"cpu": 120.0, "cuda": 70_000.0}
"""SFT of the 135M model, LoRA, forward and backward, padding included."""
ASKED_PER_S = {"cpu": 0.07, "cuda": 50.0}
"""Questions a second in the evaluation, `hf:` with the 135M model."""

WAYS_OUT = {
    "file": (
        "give more questions, be content with fewer (--num-held-out, --min-trajectories), or let them be made: leave "
        "--questions out"
    ),
    "teacher": "give the teacher more tokens, another teacher, or a larger corpus",
    "rules": (
        "the rules read English prose about named things, a page each; for another corpus name a model that writes the "
        "questions (--teacher openai:URL#MODEL) or give your own (--questions FILE)"
    ),
}
"""What to do where there are too few questions, by where they come from."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is planned, in numbers; `lines` says it to a person."""

    num_passages: int
    source: str
    num_questions: int
    num_held_out: int
    num_teacher_calls: int
    num_teacher_tokens_read: int
    num_teacher_tokens_written: int
    cost: float | None
    num_trained_tokens: int
    minutes: float
    device: str
    num_at_hand: int | None = None
    """Questions that there are before any is checked, where that is known."""
    num_needed: int = 0
    num_learned: int = 0
    """Of the questions to learn from as many as there can be, or all where there are so few that it would stop."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        made = {"file": "from your file", "teacher": "written by the teacher", "rules": "made by rule"}[self.source]
        lines = [
            f"{self.num_passages:,} passages",
            f"{self.num_questions} questions to learn from and {self.num_held_out} to measure with, {made}",
        ]
        if self.num_teacher_calls:
            price = "; give --prices to see what they cost" if self.cost is None else f", which cost {self.cost:.2f}"
            lines.append(
                f"about {self.num_teacher_calls:,} requests to the teacher: {self.num_teacher_tokens_read:,} tokens read, "
                f"{self.num_teacher_tokens_written:,} written{price}"
            )
        if_enough = ""
        if self.num_at_hand is not None and self.num_at_hand < self.num_questions + self.num_held_out:
            lines.append(f"there are only {self.num_at_hand} questions, ")
            if self.num_at_hand < self.num_needed:
                lines[-1] += f"and {self.num_needed} must pass the checks, so it would stop; {WAYS_OUT[self.source]}"
                if_enough = "with enough of them "
            else:
                lines[-1] += f"so {self.num_learned} at most to learn from"
        lines.append(
            f"{if_enough}about {self.num_trained_tokens:,} tokens of training and two evaluations: {self.minutes:.0f} "
            f"minutes on this machine ({'a GPU' if self.device == 'cuda' else 'no GPU'})"
        )
        return lines


def plan(settings: TeachSettings, passages: Sequence[Passage], device: str, num_at_hand: int | None = None) -> Plan:
    """Estimate a run over these passages; `device` is cpu or cuda. `num_at_hand`: the questions there are, if known."""
    wanted = settings.num_questions + settings.num_held_out
    calls = read = written = 0
    if settings.source == "teacher":
        sample = passages[:: max(1, len(passages) // 500)]
        words = sum(min(MAX_WORDS, len(passage.text.split())) for passage in sample) / max(1, len(sample))
        shown = PASSAGES_PER_BUNDLE * words * TOKENS_PER_WORD
        tries = wanted / USABLE_SHARE
        calls = round(2 * tries)
        read = round(tries * (2 * shown + PROMPT_TOKENS + 80))
        written = round(tries * (REPLY_TOKENS + CHECK_TOKENS))
    needed = settings.min_trajectories + settings.num_held_out
    learned = settings.num_questions
    if num_at_hand is not None and num_at_hand >= needed:
        learned = min(learned, num_at_hand - settings.num_held_out)
    trained = round(learned * TOKENS_PER_TRAJECTORY * settings.epochs)
    minutes = trained / TRAINED_TOKENS_PER_S[device] / 60 + 2 * settings.num_held_out / ASKED_PER_S[device] / 60
    prices = settings.price_list
    return Plan(
        num_passages=len(passages),
        source=settings.source,
        num_questions=settings.num_questions,
        num_held_out=settings.num_held_out,
        num_teacher_calls=calls,
        num_teacher_tokens_read=read,
        num_teacher_tokens_written=written,
        cost=None if prices is None else prices.cost(read, written, 0),
        num_trained_tokens=trained,
        minutes=minutes,
        device=device,
        num_at_hand=num_at_hand,
        num_needed=needed,
        num_learned=learned,
    )
