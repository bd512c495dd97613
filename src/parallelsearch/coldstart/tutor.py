"""The tutor: lessons played through the ordinary rollout, and nothing kept that is not confirmed.

Each question becomes a lesson, by its written decomposition or by the rules of its language (`rules.py`), and
`Tutor`, a policy that writes the lesson's turns, has every segment encoded by the encoder of the policy to be
trained. So observations, limits, token ids and masks are those the policy will meet later. What the grammar, the
evidence or the golden answer does not confirm is dropped, and counted by reason. The sequential twin is the same call
with `mode="sequential"`. Nothing here reads a question or a page.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from parallelsearch.answers import exact_match
from parallelsearch.coldstart.lesson import ColdStartSettings, Drop, Lesson, Seen, search_of
from parallelsearch.coldstart.rules import load_rules
from parallelsearch.coldstart.written import plan_written, steps_of
from parallelsearch.errors import PolicyError, UsageError
from parallelsearch.observation import one_line
from parallelsearch.policy.base import Generation, OnText, Policy, Sampling
from parallelsearch.retrieval.base import Hit
from parallelsearch.rollout import Event, rollout
from parallelsearch.rollouts import in_order
from parallelsearch.search import Search
from parallelsearch.trajectory import Author, Question, Segment, Trajectory

OnProgress = Callable[[int, int], None]
"""Called with how many questions are done, and of how many."""


@dataclass(slots=True)
class ColdStartReport:
    """What became of the questions."""

    num_questions: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)
    """Why a question was dropped, by its id."""

    def drop(self, question: Question, reason: Drop) -> None:
        self.dropped[f"{question.kind or 'unknown'}: {reason}"] += 1
        self.reasons[question.id] = str(reason)

    def add(self, other: ColdStartReport) -> None:
        self.num_questions += other.num_questions
        self.kept.update(other.kept)
        self.dropped.update(other.dropped)
        self.reasons.update(other.reasons)

    def to_dict(self) -> dict[str, Any]:
        return {
            "num_questions": self.num_questions,
            "num_kept": sum(self.kept.values()),
            "kept": dict(self.kept.most_common()),
            "dropped": dict(self.dropped.most_common()),
        }


async def build_coldstart(
    questions: Sequence[Question],
    search: Search,
    encoder: Policy,
    settings: ColdStartSettings | None = None,
    on_progress: OnProgress | None = None,
) -> tuple[list[Trajectory], ColdStartReport]:
    """Trajectories for all questions that can be taught, in the order of the questions, and what became of the rest.

    `encoder` is the policy that will be trained (or any with its tokenizer): its `prompt` and `insert` make the token ids.
    """
    settings = settings or ColdStartSettings()
    report = ColdStartReport(len(questions))
    num_done = 0

    async def one(_: int, question: Question) -> Trajectory | None:
        nonlocal num_done
        trajectory: Trajectory | None = None
        try:
            trajectory = await teach(question, search, encoder, settings)
            report.kept[question.kind or "unknown"] += 1
        except Drop as reason:
            report.drop(question, reason)
        num_done += 1
        if on_progress is not None:
            on_progress(num_done, len(questions))
        return trajectory

    made = await in_order(one, questions, settings.max_concurrent)
    return [trajectory for trajectory in made if trajectory is not None], report


async def teach(question: Question, search: Search, encoder: Policy, settings: ColdStartSettings) -> Trajectory:
    """One question played through the rollout. Raises `Drop` with the reason if it cannot be taught."""
    search = search_of(question, search)
    return await play(question, await plan(question, search, settings), search, encoder, settings)


async def play(
    question: Question, lesson: Lesson, search: Search, encoder: Policy, settings: ColdStartSettings
) -> Trajectory:
    """A lesson played through the rollout and checked."""
    tutor = Tutor(encoder, lesson)
    trajectory = await rollout(question, tutor, search, settings.limits, dialect=settings.mode, on_event=tutor.watch)
    if tutor.dropped is not None:
        raise tutor.dropped
    check(trajectory, settings)
    return trajectory


async def plan(question: Question, search: Search, settings: ColdStartSettings) -> Lesson:
    """The lesson for a question: from its decomposition if it has one with answers, else by the rules."""
    if not question.golden_answers:
        raise Drop("no_golden_answer")
    rules = load_rules(settings.rules)
    rng = random.Random(f"{settings.seed}/{question.id}/{question.question}")
    steps = steps_of(question)
    if steps is not None:
        return plan_written(question, steps, rng, settings, rules.wording)
    return await rules.plan(question, rng, search, settings)


def check(trajectory: Trajectory, settings: ColdStartSettings) -> None:
    """Nothing leaves that the grammar or the golden answers do not confirm."""
    if trajectory.stop != "answer":
        raise Drop(f"stopped_{trajectory.stop}")
    if any(turn.problems for turn in trajectory.turns):
        raise Drop("grammar")
    if any(query.error for turn in trajectory.turns for query in turn.queries):
        raise Drop("search_failed")
    if not exact_match(trajectory.answer, trajectory.golden_answers):
        raise Drop("answer_wrong")
    if trajectory.has_token_ids and len(trajectory.prompt_ids()) + len(trajectory.response_ids()) > settings.max_tokens:
        raise Drop("too_long")


# ---- playing a lesson ------------------------------------------------------------------------------------------------


class Tutor(Policy):
    """Writes the turns of one lesson from what the rollout tells it was shown (`watch`). Everything is encoded by the encoder
    of the policy to be trained."""

    name = "tutor"

    def __init__(self, encoder: Policy, lesson: Lesson) -> None:
        self.encoder, self.lesson = encoder, lesson
        self.max_context = encoder.max_context
        self.dropped: Drop | None = None
        self._hits: dict[str, Hit] = {}
        self._seen: list[Seen] = []

    def watch(self, event: Event) -> None:
        """Keep what the searches found, and in which form and under which number the model was shown it."""
        if event.kind == "result" and event.query is not None:
            self._hits.update((hit.id, hit) for hit in event.query.hits)
        for shown in event.shown:
            hit = self._hits[shown.id]
            text = one_line(hit.text)[: shown.num_chars]
            self._seen.append(Seen(shown.number, " ".join(hit.title.split()), text))

    def prompt(self, text: str, question: str) -> Segment:
        return self.encoder.prompt(text, question)

    def insert(self, text: str, author: Author) -> Segment:
        return self.encoder.insert(text, author)

    def count_tokens(self, text: str) -> int:
        return self.encoder.count_tokens(text)

    def describe(self) -> dict[str, Any]:
        return {"kind": self.name, "lesson": type(self.lesson).__name__}

    async def generate(
        self,
        segments: Sequence[Segment],
        *,
        stop: Sequence[str],
        max_tokens: int,
        sampling: Sampling,
        session: str,
        on_text: OnText | None = None,
    ) -> Generation:
        number = sum(segment.author == "model" for segment in segments)
        try:
            text = self.lesson.turn(number, self._seen)
        except Drop as reason:
            self.dropped = reason
            raise PolicyError(str(reason)) from reason
        except UsageError as error:  # a name with a tag or a separator in it cannot be written as a turn
            self.dropped = Drop("cannot_be_written")
            raise PolicyError(str(error)) from error
        num_tokens = self.encoder.count_tokens(text)
        if num_tokens > max_tokens:  # it would be cut when the policy writes it
            self.dropped = Drop("turn_too_long")
            raise PolicyError(f"a turn of {num_tokens} tokens, and {max_tokens} are allowed")
        segment = self.encoder.insert(text, "model")
        return Generation(text, "stop", segment.token_ids, num_tokens=num_tokens)
