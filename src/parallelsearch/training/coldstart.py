"""The cold start: trajectories with real search results, written by rule from questions whose answers are known.

Each question becomes a lesson (`lessons.py`), and the lesson is played through the ordinary rollout by `Tutor`, a policy
that writes the lesson's turns and has every segment encoded by the encoder of the policy to be trained. So observations,
limits, token ids and masks are those the policy will meet later. What the grammar, the evidence or the golden answer does
not confirm is dropped, and counted by reason. `sample_right` makes trajectories the other way: by rejection from any
policy. The sequential twin is the same call with `mode="sequential"`.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from parallelsearch import grammar
from parallelsearch.answers import exact_match, normalise
from parallelsearch.errors import PolicyError, UsageError
from parallelsearch.grammar import PromptMode
from parallelsearch.policy.base import Generation, OnText, Policy, Sampling
from parallelsearch.retrieval.base import Hit
from parallelsearch.rollout import Limits, rollout
from parallelsearch.search import Search
from parallelsearch.training import decompose
from parallelsearch.training.comparisons import ComparisonLesson
from parallelsearch.training.evidence import Shown, find_phrase, overlap, without_nation
from parallelsearch.training.lessons import (
    ChainLesson,
    Drop,
    Lesson,
    SingleLesson,
    WrittenLesson,
    best_clause,
)
from parallelsearch.training.mixed import plan_mixed
from parallelsearch.trajectory import Author, Question, Segment, Trajectory

OnProgress = Callable[[int, int], None]
"""Called with how many questions are done, and of how many."""


@dataclass(frozen=True, slots=True)
class ColdStartSettings:
    """How trajectories are built. The limits must be those of the training that follows."""

    mode: PromptMode = "parallel"
    limits: Limits = field(default_factory=lambda: Limits(max_tokens=2560, timeout_s=None))
    seed: int = 0
    max_quote_words: int = 16
    max_relation_words: int = 2
    """Words of the question that are added to a name in a sub-query (docs/coldstart.md has the recall of 0 to 6)."""
    max_tokens: int = 1600
    """Longer trajectories are dropped."""
    max_concurrent: int = 64


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
    gate = asyncio.Semaphore(settings.max_concurrent)
    num_done = 0

    async def one(question: Question) -> Trajectory | None:
        nonlocal num_done
        async with gate:
            try:
                trajectory = await teach(question, search, encoder, settings)
                report.kept[question.kind or "unknown"] += 1
            except Drop as reason:
                report.drop(question, reason)
                trajectory = None
        num_done += 1
        if on_progress is not None:
            on_progress(num_done, len(questions))
        return trajectory

    made = await asyncio.gather(*(one(question) for question in questions))
    return [trajectory for trajectory in made if trajectory is not None], report


async def teach(question: Question, search: Search, encoder: Policy, settings: ColdStartSettings) -> Trajectory:
    """One question played through the rollout. Raises `Drop` with the reason if it cannot be taught."""
    lesson = await plan(question, search, settings)
    tutor = Tutor(encoder, lesson, search)
    trajectory = await rollout(question, tutor, search, settings.limits, mode=settings.mode)
    if tutor.dropped is not None:
        raise tutor.dropped
    check(trajectory, settings)
    return trajectory


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


# ---- planning --------------------------------------------------------------------------------------------------------


async def plan(question: Question, search: Search, settings: ColdStartSettings) -> Lesson:
    """The lesson for a question: from its decomposition if it has one with answers, else by its kind."""
    if not question.golden_answers:
        raise Drop("no_golden_answer")
    rng = random.Random(f"{settings.seed}/{question.id}/{question.question}")
    steps = (question.metadata or {}).get("decomposition")
    if isinstance(steps, list) and steps and all(isinstance(step, dict) and step.get("answer") for step in steps):
        return plan_written(question, rng, settings, steps)
    if question.kind == "parallel":
        return await plan_comparison(question, rng, search, settings)
    if question.kind == "sequential":
        return await plan_chain(question, rng, search, settings)
    if question.kind == "single":
        return SingleLesson(question, rng, settings.max_quote_words, query=as_query(question.question))
    if question.kind == "mixed":
        return plan_mixed(question, rng, settings.max_quote_words, at_once=settings.mode == "parallel")
    raise Drop("kind_needs_decomposition")


def as_query(text: str) -> str:
    """A text as one query: on one line, without the separator, tags or the question mark."""
    plain = grammar.defuse(" ".join(text.replace(grammar.SEPARATOR, " ").split()))
    return plain.rstrip(" ?.!")


async def plan_comparison(
    question: Question, rng: random.Random, search: Search, settings: ColdStartSettings
) -> ComparisonLesson:
    """Names from the supporting titles if they are known, else proposed by the words and confirmed by search."""
    titles = list(dict.fromkeys(question.supporting_titles or ()))
    ask = decompose.aspect_of(question.question)
    proposals: list[tuple[str, ...]] = []
    if len(titles) >= 2:
        mentions = [decompose.mention_of(title, question.question) for title in titles]
        known = [mention for mention in mentions if mention is not None]
        if len(known) == len(titles) and len({normalise(name) for name in known}) == len(known):
            # In the order in which the question names them.
            proposals.append(tuple(sorted(known, key=question.question.find)))
    if not proposals:
        found_names = list(dict.fromkeys(decompose.compared(question.question)))[:6]
        proposals += list(dict.fromkeys(tuple(map(without_nation, names)) for names in found_names))
        proposals += [names for names in found_names if names not in proposals]
    if not proposals:
        raise Drop("no_names_found")
    for names in proposals:
        relation = decompose.relation_words(question.question, names, ask, settings.max_relation_words)
        queries = tuple(as_query(f"{name} {relation}") for name in names)
        if len({grammar.query_key(query) for query in queries}) < len(queries):
            continue
        found = await search.search_many(queries)
        if all(
            any(decompose.same_name(name, hit.title) or hit.title in titles for hit in result.hits)
            for name, result in zip(names, found, strict=True)
        ):
            at_once = settings.mode == "parallel"
            return ComparisonLesson(
                question, rng, settings.max_quote_words, names, queries, ask, relation, at_once=at_once
            )
    raise Drop("names_not_confirmed")


async def plan_chain(
    question: Question, rng: random.Random, search: Search, settings: ColdStartSettings
) -> ChainLesson:
    """The question itself is the first query (nothing finds a first link more often); the bridge is a supporting title
    that the results bring to light, or a name in them whose own page has the answer."""
    titles = question.supporting_titles or ()
    if len(titles) > 1 and all(decompose.mention_of(title, question.question) for title in titles):
        raise Drop("names_all_links")
    first = as_query(question.question)
    (found,) = await search.search_many([first])
    if not found.hits:
        raise Drop("nothing_found")
    topic = " ".join(_asked_words(question.question, settings.max_relation_words))
    bridge = (
        _known_bridge(question, found.hits)
        if question.supporting_titles
        else await _found_bridge(question, found.hits, topic, search)
    )
    return ChainLesson(
        question,
        rng,
        settings.max_quote_words,
        first,
        bridge,
        as_query(f"{bridge} {topic}"),
        topic,
        _starting_point(question.question),
    )


def _starting_point(question: str) -> str | None:
    """The longest name in the question. A single word tells too little: it may be a nationality, or begin the sentence."""
    names = [name for name in decompose.names_in(question) if len(name.split()) > 1 and len(name) <= 60]
    return max(names, key=len, default=None)


def _asked_words(question: str, count: int) -> list[str]:
    """The first content words after the question word: what is asked for."""
    match = re.search(r"\b(?:what|which|who|whose|whom|when|where|how)\b(.*)", question, re.IGNORECASE)
    return decompose.topic_words(match[1] if match else question, [], count)


def _known_bridge(question: Question, hits: Sequence[Hit]) -> str:
    titles = list(dict.fromkeys(question.supporting_titles or ()))
    found = [title for title in titles if any(hit.title == title for hit in hits)]
    if not found:
        raise Drop("first_link_missed")
    missing = [title for title in titles if title not in found]
    if not missing:  # both at once: the page with the answer is the second link
        answers = question.golden_answers
        missing = [
            hit.title for hit in hits if hit.title in titles and any(find_phrase(hit.text, one) for one in answers)
        ] or titles[-1:]
    # What the question names already is no bridge: to search for it again would be to stay where one is.
    unnamed = [title for title in missing if decompose.mention_of(title, question.question) is None]
    if not unnamed:
        raise Drop("answer_beside_link")
    for title in unnamed:
        name = decompose.base_title(title)
        if any(find_phrase(f"{hit.title} {hit.text}", name) for hit in hits):
            return name
    raise Drop("no_bridge")


async def _found_bridge(question: Question, hits: Sequence[Hit], topic: str, search: Search) -> str:
    """Without supporting titles: a name that the passages mention beside the question's words, whose page answers."""
    if re.search(r"\b(?:or|both)\b", question.question):
        raise Drop("may_be_a_comparison")
    words = decompose.content_words(question.question)
    asked = normalise(question.question)
    names: list[str] = []
    for hit in hits[:2]:
        if decompose.mention_of(hit.title, question.question) is None and overlap(hit.text, words) < 4:
            continue
        names += [name for name in decompose.names_in(hit.text) if not decompose.same_name(name, hit.title)]
    names = [
        name
        for name in dict.fromkeys(names)
        if normalise(name) and f" {normalise(name)} " not in f" {asked} " and not any(c.isdigit() for c in name)
    ][:8]
    if not names:
        raise Drop("no_bridge")
    results = await search.search_many([as_query(f"{name} {topic}") for name in names])
    best: tuple[int, str] | None = None
    for name, result in zip(names, results, strict=True):
        for hit in result.hits:
            if not decompose.same_name(name, hit.title):
                continue
            shown = Shown(1, hit.title, hit.text)
            if best_clause([shown], question.golden_answers, words, 30, min_overlap=2) is not None:
                score = overlap(hit.text, words)
                if best is None or score > best[0]:
                    best = (score, name)
    if best is None:
        raise Drop("no_bridge")
    return best[1]


def plan_written(
    question: Question, rng: random.Random, settings: ColdStartSettings, steps: Sequence[dict[str, Any]]
) -> WrittenLesson:
    """Steps `{"question": "... #1 ...", "answer": "..."}` become rounds: all that can be asked now are asked together."""
    answers = [str(step["answer"]) for step in steps]
    try:
        levels = decompose.rounds_of([str(step.get("question", "")) for step in steps])
    except UsageError as error:
        raise Drop("bad_decomposition") from error
    if settings.mode == "sequential":
        levels = [[number] for level in levels for number in level]
    return WrittenLesson(
        question,
        rng,
        settings.max_quote_words,
        tuple(
            tuple(as_query(decompose.fill_references(str(steps[number]["question"]), answers)) for number in level)
            for level in levels
        ),
        tuple(tuple(answers[number] for number in level) for level in levels),
    )


# ---- playing a lesson ------------------------------------------------------------------------------------------------


class Tutor(Policy):
    """Writes the turns of one lesson. Everything is encoded by the encoder of the policy to be trained."""

    name = "tutor"

    def __init__(self, encoder: Policy, lesson: Lesson, search: Search) -> None:
        self.encoder, self.lesson, self.search = encoder, lesson, search
        self.max_context = encoder.max_context
        self.dropped: Drop | None = None

    def prompt(self, text: str, question: str) -> Segment:
        return self.encoder.prompt(text, question)

    def insert(self, text: str, author: Author) -> Segment:
        return self.encoder.insert(text, author)

    def count_tokens(self, text: str) -> int:
        return self.encoder.count_tokens(text)

    def describe(self) -> dict[str, Any]:
        return {"kind": self.name, "lesson": type(self.lesson).__name__}

    @asynccontextmanager
    async def session(self, key: str) -> AsyncIterator[str]:
        yield key

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
            text = self.lesson.turn(number, await self._shown(segments))
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

    async def _shown(self, segments: Sequence[Segment]) -> list[Shown]:
        """The passages as the observations show them. The hits come again, from the search's cache, for their titles."""
        shown: list[Shown] = []
        seen: set[str] = set()
        queries: tuple[str, ...] = ()
        for segment in segments:
            if segment.author == "model":
                queries = grammar.parse_turn(segment.text).queries
            elif segment.author == "search":
                for found in await self.search.search_many(queries):
                    fresh = [hit for hit in found.hits if hit.id not in seen]
                    seen |= {hit.id for hit in fresh}
                    for hit in fresh:
                        shown.append(_as_shown(len(shown) + 1, hit, segment.text))
        return shown


def _as_shown(number: int, hit: Hit, observation: str) -> Shown:
    title = " ".join(hit.title.split())
    mark = f"[{number}] "
    line = next((line for line in observation.split("\n") if line.startswith(mark)), mark)
    body = line[len(mark) :]
    if title and body.startswith(title):
        body = body[len(title) :].removeprefix(": ")
    return Shown(number, title, body.removesuffix(" ..."))


# ---- rejection sampling ----------------------------------------------------------------------------------------------


async def sample_right(
    questions: Sequence[Question],
    policy: Policy,
    search: Search,
    settings: ColdStartSettings | None = None,
    *,
    num_samples: int = 4,
    temperature: float = 1.0,
    keep: int = 1,
) -> tuple[list[Trajectory], ColdStartReport]:
    """The other way to make data: let a policy try `num_samples` times, keep up to `keep` right, well-formed trajectories
    of each question, the shortest first."""
    settings = settings or ColdStartSettings()
    if num_samples < 1 or keep < 1:
        raise UsageError(f"num_samples and keep must be at least 1, not {num_samples} and {keep}")
    report = ColdStartReport(len(questions))
    gate = asyncio.Semaphore(settings.max_concurrent)

    async def attempt(question: Question, sample: int) -> Trajectory | None:
        async with gate:
            sampling = Sampling(temperature, seed=settings.seed + sample)
            trajectory = await rollout(
                replace(question), policy, search, settings.limits, mode=settings.mode, sampling=sampling
            )
        try:
            check(trajectory, settings)
        except Drop as reason:
            report.drop(question, reason)
            return None
        trajectory.sample = sample
        return trajectory

    kept: list[Trajectory] = []
    tries = await asyncio.gather(
        *(asyncio.gather(*(attempt(question, sample) for sample in range(num_samples))) for question in questions)
    )
    for question, tried in zip(questions, tries, strict=True):
        right = sorted((one for one in tried if one is not None), key=lambda one: (one.num_llm_calls, len(one.text)))
        kept += right[:keep]
        report.kept[question.kind or "unknown"] += len(right[:keep])
    return kept, report
