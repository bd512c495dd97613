"""`parallelsearch coldstart RECIPE`: from named question sets to the files that SFT and RL start from.

One folder comes out: `parallel.jsonl` and `sequential.jsonl` (the same questions, trajectories with token ids),
`rl_questions.jsonl`, `rl_recombined.jsonl`, `rl_mixed.jsonl` and `rl_made.jsonl` (questions for RL: real ones,
comparisons recombined from them, and mixed questions, facts, chains and comparisons made from the passages),
`validation.jsonl` and `report.json`; on request also `undecided.jsonl`, a start that splits only every other time, and
`rl_unanswerable.jsonl`, questions that the corpus does not answer.
The validation questions are cut first and are in none of the others. Sources are worked through in order, and each
kind stops when it has enough, so name the surest source first. How questions are taught, made and recombined is the
part of the recipe's `rules`; nothing here knows a language.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import Field

from parallelsearch.addresses import open_search
from parallelsearch.answers import normalise
from parallelsearch.coldstart.lesson import ColdStartSettings
from parallelsearch.coldstart.letters import in_small_letters, with_capitals
from parallelsearch.coldstart.pool import Pool, check_pool, cut_by_kind, training_questions
from parallelsearch.coldstart.rules import RECOMBINED, load_rules
from parallelsearch.coldstart.tutor import ColdStartReport, build_coldstart
from parallelsearch.coldstart.withheld import WITHHELD, unanswerable, withhold
from parallelsearch.config import Settings, load
from parallelsearch.data.leaks import find_leaks, held_out, held_out_texts, held_out_titles
from parallelsearch.data.sets import training_pool
from parallelsearch.errors import PolicyError, UsageError, require
from parallelsearch.files import to_json, write_json, write_lines
from parallelsearch.policy import models
from parallelsearch.policy.base import Generation, Policy
from parallelsearch.policy.encoding import EncodingPolicy
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.store import PASSAGES, PassageStore
from parallelsearch.search import Search
from parallelsearch.training.recipe import RolloutSettings, SearchSettings
from parallelsearch.trajectory import KINDS, Kind, Question, Trajectory, write_trajectories

Say = Callable[[str], None]

_LONG = frozenset({"too_long", "turn_too_long"})
"""Reasons of the tutor that say nothing against a question: it can still be learned from by trying."""
_DRAFTS: dict[Kind, int] = {"single": 2, "sequential": 3, "parallel": 2, "mixed": 2}
"""So many questions are made for each one wanted: for many a page is not found by the words of its question, or does not
fit."""
_VERY_WIDE = 7
"""Questions of so many parts and more are lost most often: of 624 made of eight, 250 could be taught both ways."""


class ColdStartRecipe(Settings):
    """What to build from what. `rollout` must be the same in the recipes that train on the result."""

    model: str
    """Whose tokenizer encodes: a folder, a hub id, or `smollm2-135m`."""
    sources: list[str]
    """Data sets or files with training questions, those with supporting titles first."""
    datasets: list[str] | None = None
    """Use only questions of these data sets."""
    validation_source: str | None = None
    """Where validation is cut from. Kinds it lacks, or all without it, are cut from questions that can be taught."""
    num_validation: dict[Kind, int] = Field(default_factory=dict)
    capital_share: float = Field(default=0.0, ge=0, le=1)
    """This share of the single questions in small letters is written with the capitals that pages give to their words, and a
    question mark: where one source writes all of its questions small, letters tell the kinds apart (`letters.py`)."""
    small_share: float = Field(default=0.0, ge=0, le=1)
    """This share of the questions that need a second round is in small letters, except those of several parts, some of whose
    wordings are."""
    num_trajectories: dict[Kind, int]
    """How many of each kind, at most."""
    num_recombined: int = Field(default=0, ge=0)
    """How many of the parallel ones may be recombined from others."""
    num_mixed: int = Field(default=0, ge=0)
    """How many trajectories of two parallel rounds are made from the passages of the index."""
    num_mixed_for_rl: int = Field(default=0, ge=0)
    """How many more such questions are kept for RL; those with trajectories are for RL as well."""
    num_made_facts: int = Field(default=0, ge=0)
    """How many trajectories of one fact are made from the passages of the index."""
    num_made_chains: int = Field(default=0, ge=0)
    """How many of two links, likewise; as many as the passages give may be fewer."""
    num_made_comparisons: int = Field(default=0, ge=0)
    """How many comparisons, likewise."""
    num_wide: dict[int, int] = Field(default_factory=dict)
    """Of each number of parts, how many trajectories of a question with so many independent parts, likewise."""
    num_wide_mixed: dict[int, int] = Field(default_factory=dict)
    """Of each number of things, how many mixed ones that ask about their makers; with one thing, for several facts of it."""
    num_wide_for_validation: int = Field(default=0, ge=0)
    """Of each width, how many more such questions go to validation."""
    num_changed: int = Field(default=0, ge=0)
    """How many trajectories read numbers and dates that were written into copies of real passages."""
    num_described: dict[Kind, int] = Field(default_factory=dict)
    """Of each kind (single, sequential, mixed), how many ask for somebody by what he is to something ("the architect of A"),
    which was written into a copy of its page likewise."""
    num_typed: dict[Kind, int] = Field(default_factory=dict)
    """Of each kind, how many trajectories of questions in forms that people type and the question sets lack, made from the
    passages as well."""
    num_typed_for_validation: int = Field(default=0, ge=0)
    """Of each kind that has a count there, how many more such questions go to validation."""
    num_withheld: int = Field(default=0, ge=0)
    """How many trajectories are played once more with their evidence withheld, to teach that there may be no answer."""
    num_unanswerable_for_rl: int = Field(default=0, ge=0)
    """How many questions `rl_unanswerable.jsonl` has, which the corpus does not answer: right is to say so; 0 writes no such
    file."""
    num_undecided: int = Field(default=0, ge=0)
    """How many trajectories `undecided.jsonl` has, which leaves it to RL to find out when to split; 0 writes no such file."""
    max_mixed_tokens: int = Field(default=2560, ge=64)
    """As `max_tokens`, for mixed ones: they have two rounds of results, or four."""
    max_quote_words: int = Field(default=16, ge=4)
    max_relation_words: int = Field(default=2, ge=0)
    max_tokens: int = Field(default=1600, ge=64)
    seed: int = 0
    rules: str = "english"
    """Whose rules read, teach and make questions: a language, or `package.module:name` (`rules.py`)."""
    sequential_max_turns: int | None = Field(default=None, ge=1)
    """Rounds of the sequential twin, where they differ from `rollout.max_turns`: one part a round takes as many as there are
    parts, and with fewer the twin is taught to begin with the whole question."""
    guess_kinds: bool = False
    """Give questions that come without a kind the one their words suggest; without it they are left out."""
    out: str
    search: SearchSettings = SearchSettings()
    rollout: RolloutSettings = RolloutSettings()

    @property
    def makes_questions(self) -> bool:
        counts = (self.num_mixed, self.num_mixed_for_rl, self.num_made_facts, self.num_made_chains)
        more = (*self.num_typed.values(), *self.num_described.values(), *self.wide.values())
        return any((*counts, self.num_made_comparisons, self.num_changed, *more))

    @property
    def wide(self) -> dict[Kind, dict[int, int]]:
        """Questions of several parts by kind and width."""
        return {"parallel": self.num_wide, "mixed": self.num_wide_mixed}

    def settings(self, mode: str, kind: Kind | None = None) -> ColdStartSettings:
        limits = self.rollout.limits
        if mode == "sequential" and self.sequential_max_turns is not None:
            limits = replace(limits, max_turns=self.sequential_max_turns)
        return ColdStartSettings(
            mode="sequential" if mode == "sequential" else "parallel",
            limits=limits,
            seed=self.seed,
            max_quote_words=self.max_quote_words,
            max_relation_words=self.max_relation_words,
            max_tokens=self.max_mixed_tokens if kind == "mixed" else self.max_tokens,
            rules=self.rules,
        )


def load_coldstart_recipe(
    path: str | os.PathLike[str], overrides: Sequence[str] | Mapping[str, Any] = ()
) -> ColdStartRecipe:
    return load(path, ColdStartRecipe, overrides)


class TokenizerEncoder(EncodingPolicy):
    """The text side of the local policy without its weights: the same prompt, the same encoding, no generation."""

    def __init__(self, tokenizer: Any, label: str = "tokenizer", max_context: int | None = None) -> None:
        super().__init__(tokenizer, label)
        if max_context is not None:
            self.max_context = max_context

    @classmethod
    def of(cls, model: str) -> TokenizerEncoder:
        transformers = require("transformers", "local")
        folder = models.resolve(model)
        with models.quiet_transformers():
            return cls(transformers.AutoTokenizer.from_pretrained(str(folder)), model)

    async def generate(self, *_: Any, **__: Any) -> Generation:
        raise PolicyError("this policy only encodes; it has no weights to generate with")

    def describe(self) -> dict[str, Any]:
        return {"kind": "tokenizer", "model": self.label}


@dataclass(slots=True)
class Built:
    """Everything a run makes, before it is written."""

    pool: Pool
    parallel: list[Trajectory]
    sequential: list[Trajectory]
    rl_questions: list[Question]
    recombined: list[Question]
    mixed: list[Question]
    made: list[Question]
    unanswerable: list[Question]
    num_changed: int
    num_described: int
    report: ColdStartReport
    twin_report: ColdStartReport
    search: dict[str, Any]


def run_coldstart(recipe: ColdStartRecipe, say: Say | None = None) -> dict[str, Any]:
    """Build everything and write it; returns the report that is also in `report.json`."""
    built = asyncio.run(build(recipe, say or (lambda _: None)))
    out = Path(recipe.out)
    mixed_made = {question.id for question in built.mixed}
    out.mkdir(parents=True, exist_ok=True)
    write_trajectories(out / "parallel.jsonl", built.parallel)
    write_trajectories(out / "sequential.jsonl", built.sequential)
    if recipe.num_undecided:
        half = undecided(built.parallel[: recipe.num_undecided], built.sequential[: recipe.num_undecided])
        write_trajectories(out / "undecided.jsonl", half)
    write_questions(out / "rl_questions.jsonl", built.rl_questions)
    write_questions(out / "rl_recombined.jsonl", built.recombined)
    write_questions(out / "rl_mixed.jsonl", built.mixed)
    write_questions(out / "rl_made.jsonl", built.made)
    if recipe.num_unanswerable_for_rl:
        write_questions(out / "rl_unanswerable.jsonl", built.unanswerable)
    write_questions(out / "validation.jsonl", built.pool.validation)
    summary = {
        "pool": built.pool.describe(),
        "parallel": {**built.report.to_dict(), **measure(built.parallel)},
        "sequential": {**built.twin_report.to_dict(), **measure(built.sequential)},
        "num_recombined": sum(RECOMBINED in one.id for one in built.parallel),
        "num_mixed": sum(one.id in mixed_made for one in built.parallel),
        "num_mixed_for_rl": len(built.mixed),
        "num_changed": built.num_changed,
        "num_described": built.num_described,
        "num_withheld": sum(one.id.endswith(WITHHELD) for one in built.parallel),
        "num_unanswerable_for_rl": len(built.unanswerable),
        "num_made": dict(Counter(one.dataset for one in built.made)),
        "rl_questions": Pool(built.rl_questions).describe()["train"],
        "limits": asdict(recipe.rollout.limits),
        "search": built.search,
    }
    write_json(out / "report.json", summary, indent=1)
    return summary


def undecided(parallel: Sequence[Trajectory], sequential: Sequence[Trajectory]) -> list[Trajectory]:
    """The parallel trajectories, but every other one that splits has the searches of its twin, one by one, behind the
    parallel prompt. A policy taught with these splits half of the time: what rewards are for shows from there."""
    result: list[Trajectory] = []
    num_split = 0
    for one, twin in zip(parallel, sequential, strict=True):
        num_split += one.is_split
        if one.is_split and num_split % 2 == 0:
            one = replace(twin, segments=[one.segments[0], *twin.segments[1:]], dialect=one.dialect)
        result.append(one)
    return result


async def build(recipe: ColdStartRecipe, tell: Say) -> Built:
    """The same without writing."""
    if recipe.makes_questions:
        _passages(recipe.search.address)  # an address without them is refused now, not after minutes of work
    rules = load_rules(recipe.rules)
    encoder = TokenizerEncoder.of(recipe.model)
    search = open_search(
        recipe.search.address,
        k=recipe.search.k,
        timeout_s=recipe.search.timeout_s,
        cache_size=recipe.search.cache_size,
    )
    try:
        pool = await _questions(recipe, search, encoder)
        tell(f"questions: {pool.describe()['train']}, validation {pool.describe()['validation']}")
        kept, report = await _teach_enough(pool.train, search, encoder, recipe, tell)
        fresh: list[Question] = []
        missing = recipe.num_trajectories.get("parallel", 0) - sum(one.kind == "parallel" for one in kept)
        if recipe.num_recombined and missing > 0:
            taught = _questions_of(kept, pool.train, "parallel")
            kept_back = {normalise(question.question) for question in pool.validation} | held_out_texts()
            wanted = min(missing, recipe.num_recombined)
            fresh = await rules.recombine(taught, search, encoder, recipe.settings("parallel"), wanted, kept_back)
            leaked = {
                leak.question.id for leak in find_leaks(fresh)
            }  # the two names of a dev question, put together anew
            fresh = [question for question in fresh if question.id not in leaked]
            check_pool(Pool(fresh, pool.validation))
            more, more_report = await build_coldstart(fresh, search, encoder, recipe.settings("parallel"))
            kept += more
            report.add(more_report)
            tell(f"recombined: {len(more)}")
        asked = _questions_of(kept, [*pool.train, *fresh])
        twins, twin_report = await _twins(asked, search, encoder, recipe)
        tell(f"sequential twin: {len(twins)} of {len(asked)}")
        num_mixed = recipe.num_mixed + recipe.num_mixed_for_rl
        workshop = _Workshop(recipe, pool)
        mixed = await _made(recipe, {"mixed": num_mixed}, workshop, search, encoder, num_taught=recipe.num_mixed)
        plain: dict[Kind, int] = {
            "single": recipe.num_made_facts,
            "sequential": recipe.num_made_chains,
            "parallel": recipe.num_made_comparisons,
        }
        made = await _made(recipe, plain, workshop, search, encoder)
        wide = await _made_wide(recipe, workshop, search, encoder)
        typed = await _made_typed(recipe, workshop, search, encoder)
        changed = await _made_changed(recipe, workshop, search, encoder, {"parallel": recipe.num_changed})
        described = await _made_changed(recipe, workshop, search, encoder, recipe.num_described, described=True)
        parts = (
            (mixed, "mixed"),
            (made, "made from passages"),
            (wide, "of several parts"),
            (typed, "as people type"),
            (changed, "with changed values"),
            (described, "of what is described"),
        )
        for part, name in parts:
            kept += part.parallel
            twins += part.sequential
            report.add(part.report)
            twin_report.add(part.twin_report)
            for kind, count in part.wanted.items():
                num_found = sum(question.kind == kind for question in part.questions)
                tell(f"{name}, {kind}: {num_found} of {count}")
        is_changed = {one.id for one in (*changed.parallel, *described.parallel)}  # their evidence is in no corpus
        as_it_is = [one for one in kept if one.id not in is_changed]
        taught_twice = await _withheld(recipe, as_it_is, twins, search, encoder)
        if recipe.num_withheld:
            tell(f"evidence withheld: {len(taught_twice[0])} of {recipe.num_withheld}")
        both = {one.id for one in twins}
        kept = [one for one in kept if one.id in both]
        learnable = _learnable(pool.train, kept, report, rules.undecided | _LONG)
        within_reach = {question.id for question in learnable}
        others = [question for question in pool.train if question.id not in within_reach]
        unknown = await unanswerable(others, search, recipe.num_unanswerable_for_rl, recipe.seed)
        if recipe.num_unanswerable_for_rl:
            tell(f"not answered by the corpus: {len(unknown)} of {recipe.num_unanswerable_for_rl}")
    finally:
        await search.aclose()
    kept, twins = kept + taught_twice[0], twins + taught_twice[1]
    random.Random(recipe.seed).shuffle(kept)
    order = {one.id: number for number, one in enumerate(kept)}
    twins.sort(key=lambda one: order[one.id])
    check_pool(Pool(learnable, pool.validation))
    made_for_rl = [*made.questions, *wide.questions, *typed.questions]
    return Built(
        pool,
        kept,
        twins,
        learnable,
        fresh,
        mixed.questions,
        made_for_rl,
        unknown,
        len(changed.parallel),
        len(described.parallel),
        report,
        twin_report,
        search.describe(),
    )


async def _withheld(
    recipe: ColdStartRecipe, kept: Sequence[Trajectory], twins: Sequence[Trajectory], search: Search, encoder: Policy
) -> tuple[list[Trajectory], list[Trajectory]]:
    """Trajectories with their evidence withheld, and their twins: as many as wanted, drawn from all kinds."""
    twin_of = {one.id: one for one in twins}
    chosen = [one for one in kept if one.id in twin_of]
    random.Random(f"{recipe.seed}/withheld").shuffle(chosen)
    made: tuple[list[Trajectory], list[Trajectory]] = ([], [])
    for start in range(0, len(chosen), 2 * recipe.num_withheld or 1):
        missing = recipe.num_withheld - len(made[0])
        if missing <= 0:
            break
        batch = chosen[start : start + 2 * recipe.num_withheld]
        one_way = await withhold(batch, search, encoder, recipe.settings("parallel", "mixed"))
        twin_batch = [twin_of[one.id] for one in batch]
        other_way = await withhold(twin_batch, search, encoder, recipe.settings("sequential", "mixed"))
        both = [one.id for one in one_way if one.id in {twin.id for twin in other_way}][:missing]
        made[0].extend(one for one in one_way if one.id in both)
        made[1].extend(one for one in other_way if one.id in both)
    return made


@dataclass(slots=True)
class _Taught:
    """Questions made here that could be taught both ways: for trajectories as many as wanted, and all for RL."""

    parallel: list[Trajectory] = field(default_factory=list)
    sequential: list[Trajectory] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    wanted: dict[Kind, int] = field(default_factory=dict)
    """How many questions of each kind were asked for; the passages may give fewer."""
    report: ColdStartReport = field(default_factory=ColdStartReport)
    twin_report: ColdStartReport = field(default_factory=ColdStartReport)

    async def teach(
        self, drafts: Sequence[Question], recipe: ColdStartRecipe, search: Search, encoder: Policy, longest: Kind | None
    ) -> list[Question]:
        """Play the lessons of these both ways, and return the questions that could be taught so."""
        one_way, other_way = recipe.settings("parallel", longest), recipe.settings("sequential", longest)
        self.parallel, self.report = await build_coldstart(drafts, search, encoder, one_way)
        once = _questions_of(self.parallel, drafts)
        self.sequential, self.twin_report = await build_coldstart(once, search, encoder, other_way)
        both = {one.id for one in self.sequential}
        return [question for question in once if question.id in both]

    def keep(self, questions: Iterable[Question]) -> None:
        """Only the trajectories of these."""
        chosen = {question.id for question in questions}
        self.parallel = [one for one in self.parallel if one.id in chosen]
        self.sequential = [one for one in self.sequential if one.id in chosen]


async def _made(
    recipe: ColdStartRecipe,
    wanted: Mapping[Kind, int],
    workshop: _Workshop,
    search: Search,
    encoder: Policy,
    *,
    num_taught: int | None = None,
) -> _Taught:
    """Questions made from the passages of the index, as many of each kind as wanted, and the trajectories of the first
    `num_taught` of them (of all without it)."""
    made = _Taught(wanted={kind: count for kind, count in wanted.items() if count})
    if not made.wanted:
        return made
    drafts = workshop.drafts({kind: _DRAFTS[kind] * count for kind, count in made.wanted.items()}, {})
    drafts = in_small_letters(drafts, recipe.small_share)
    longest: Kind | None = "mixed" if "mixed" in made.wanted else None
    taught = await made.teach(drafts, recipe, search, encoder, longest)
    for kind, count in made.wanted.items():
        made.questions += [question for question in taught if question.kind == kind][:count]
    made.keep(made.questions[:num_taught])
    return made


async def _made_wide(recipe: ColdStartRecipe, workshop: _Workshop, search: Search, encoder: Policy) -> _Taught:
    """Questions of several parts, as many of each kind and width as wanted; the validation ones go into the pool."""
    made = _Taught(wanted={kind: sum(counts.values()) for kind, counts in recipe.wide.items() if sum(counts.values())})
    if not made.wanted:
        return made
    extra = recipe.num_wide_for_validation
    drafts = workshop.drafts(
        {},
        {
            kind: {width: _num_drafts(kind, width) * (count + extra) for width, count in counts.items() if count}
            for kind, counts in recipe.wide.items()
        },
    )
    taught = await made.teach(drafts, recipe, search, encoder, "mixed")
    for kind, counts in recipe.wide.items():
        for width, count in counts.items():
            fit = [question for question in taught if question.kind == kind and _width(question) == width]
            workshop.pool.validation += fit[:extra] if count else []  # first: every width must be validated
            made.questions += fit[extra : extra + count]
    made.keep(made.questions)
    return made


async def _made_typed(recipe: ColdStartRecipe, workshop: _Workshop, search: Search, encoder: Policy) -> _Taught:
    """Questions in forms that people type, as many of each kind as wanted; the validation ones go into the pool."""
    made = _Taught(wanted={kind: count for kind, count in recipe.num_typed.items() if count})
    if not made.wanted:
        return made
    extra = recipe.num_typed_for_validation
    drafts = workshop.drafts({}, {}, typed={k: _DRAFTS[k] * (count + extra) for k, count in made.wanted.items()})
    taught = await made.teach(drafts, recipe, search, encoder, "mixed")
    for kind, count in made.wanted.items():
        fit = [question for question in taught if question.kind == kind]
        workshop.pool.validation += fit[:extra]
        made.questions += fit[extra : extra + count]
    made.keep(made.questions)
    return made


async def _made_changed(
    recipe: ColdStartRecipe,
    workshop: _Workshop,
    search: Search,
    encoder: Policy,
    wanted: Mapping[Kind, int],
    *,
    described: bool = False,
) -> _Taught:
    """Questions whose lessons read changed passages. They are in no file for RL, which searches the corpus as it is."""
    made = _Taught(wanted={kind: count for kind, count in wanted.items() if count})
    if not made.wanted:
        return made
    counts = {kind: _DRAFTS[kind] * count for kind, count in made.wanted.items()}
    drafts = workshop.drafts(
        {}, {}, **({"num_described": counts} if described else {"num_changed": sum(counts.values())})
    )
    taught = await made.teach(in_small_letters(drafts, recipe.small_share), recipe, search, encoder, "mixed")
    for kind, count in made.wanted.items():
        made.questions += [question for question in taught if question.kind == kind][:count]
    made.keep(made.questions)
    return made


def _num_drafts(kind: Kind, width: int) -> int:
    """So many questions of several parts are made for each one wanted: the widest are too long for the twin more often."""
    return _DRAFTS[kind] + (width >= _VERY_WIDE)


def _width(question: Question) -> int:
    """How many things a question of several parts names: those of its first round."""
    return sum(part.round == 1 for part in question.parts or ())


class _Workshop:
    """What questions are made from, read once for all that a run makes: the passages of the index, the pages that are kept
    back for evaluation, and what evaluation questions say."""

    def __init__(self, recipe: ColdStartRecipe, pool: Pool) -> None:
        self.recipe, self.pool = recipe, pool
        self.rules = load_rules(recipe.rules)

    @cached_property
    def passages(self) -> list[Passage]:
        return list(_passages(self.recipe.search.address))

    @cached_property
    def kept_back(self) -> frozenset[str]:
        return frozenset(self.rules.kept_back(self.passages))

    @cached_property
    def known(self) -> dict[str, str]:
        return held_out()

    @cached_property
    def texts(self) -> set[str]:
        return held_out_texts()

    @cached_property
    def titles(self) -> set[str]:
        return held_out_titles()

    def drafts(self, counts: Mapping[Kind, int], wide: Mapping[Kind, Mapping[int, int]], **more: Any) -> list[Question]:
        """Questions made from the passages of the index, without any page that is kept back for evaluation. `more` are
        numbers that rules from before there were such questions do not know."""
        validation = self.pool.validation
        drafts = self.rules.make(
            self.passages,
            counts,
            seed=self.recipe.seed,
            forbidden={normalise(question.question) for question in validation} | self.texts,
            needed=self.titles.union(*(question.supporting_titles or () for question in validation)),
            kept_back=self.kept_back,
            wide=wide,
            **more,
        )
        refuse_kept_back(drafts, self.kept_back)
        leaked = {leak.question.id for leak in find_leaks(drafts, self.known)}  # the same two pages as a dev question's
        drafts = [question for question in drafts if question.id not in leaked]
        check_pool(Pool(drafts, validation), self.known)
        return drafts


def refuse_kept_back(questions: Sequence[Question], kept_back: Collection[str]) -> None:
    """Raise if a question made for training is about a page that evaluation sets are made from."""
    titles = set(kept_back)
    for question in questions:
        both = titles.intersection(question.supporting_titles or ())
        if both:
            raise UsageError(
                f"'{question.question}' was made for training from '{min(both)}', a page that is kept back for evaluation; "
                "the rules of the recipe must leave out the titles in kept_back"
            )


def _passages(address: str) -> PassageStore:
    """The passages of the index at a search address."""
    folder = address.partition(":")[2].strip()
    if not (Path(folder) / PASSAGES).is_file():
        raise UsageError(
            "num_mixed, num_made_*, num_wide*, num_typed, num_changed and num_described make questions from the passages of "
            f"an index on this machine, and '{address}' is none; set search.address to bm25:FOLDER, or these numbers to 0"
        )
    return PassageStore.open(folder)


async def _questions(recipe: ColdStartRecipe, search: Search, encoder: Policy) -> Pool:
    """All training questions, with the validation questions cut out.

    Validation must look like evaluation: from the source whose gold passages are known to be in the corpus, and for kinds
    which that source lacks, from questions that could be taught, because only those are known to be answerable.
    """
    kinds = [kind for kind in KINDS if recipe.num_trajectories.get(kind)]
    labeller = load_rules(recipe.rules).guess_kind if recipe.guess_kinds else None
    pool = training_questions(
        recipe.sources, kinds=kinds, datasets=recipe.datasets, labeller=labeller, seed=recipe.seed
    )
    known: set[str] = set()
    if recipe.validation_source is not None:
        known = {normalise(question.question) for question in training_pool(recipe.validation_source)}
    for kind, count in recipe.num_validation.items():
        chosen = [q for q in pool.train if normalise(q.question) in known and q.kind == kind]
        if len(chosen) < count:
            candidates = [question for question in pool.train if question.kind == kind]
            _, chosen = cut_by_kind(candidates, {kind: min(len(candidates), 16 * count)}, recipe.seed)
            taught, _ = await build_coldstart(chosen, search, encoder, recipe.settings("parallel"))
            chosen = _questions_of(taught, chosen)
        _, taken = cut_by_kind(chosen, {kind: count}, recipe.seed)
        texts = {normalise(question.question) for question in taken}
        pool.train = [question for question in pool.train if normalise(question.question) not in texts]
        pool.validation += taken
    pool.train, pool.validation = [
        await with_capitals(in_small_letters(part, recipe.small_share), search, recipe.capital_share)
        for part in (pool.train, pool.validation)
    ]
    check_pool(pool)
    return pool


async def _teach_enough(
    questions: Sequence[Question], search: Search, encoder: Policy, recipe: ColdStartRecipe, tell: Say
) -> tuple[list[Trajectory], ColdStartReport]:
    """Work through the questions of each kind in order until there are as many trajectories as wanted."""
    kept: list[Trajectory] = []
    report = ColdStartReport()
    for kind, wanted in recipe.num_trajectories.items():
        todo = [question for question in questions if question.kind == kind]
        made: list[Trajectory] = []
        for start in range(0, len(todo), 1000):
            if len(made) >= wanted:
                break
            settings = recipe.settings("parallel", kind)
            batch, part = await build_coldstart(todo[start : start + 1000], search, encoder, settings)
            made += batch
            report.add(part)
            tell(f"{kind}: {len(made)} of {wanted} after {start + 1000} questions")
        kept += made[:wanted]
    return kept, report


async def _twins(
    questions: Sequence[Question], search: Search, encoder: Policy, recipe: ColdStartRecipe
) -> tuple[list[Trajectory], ColdStartReport]:
    """The sequential twins of what was taught at once, each kind within its own limit of tokens."""
    twins: list[Trajectory] = []
    report = ColdStartReport()
    for kind in recipe.num_trajectories:
        same = [question for question in questions if question.kind == kind]
        made, part = await build_coldstart(same, search, encoder, recipe.settings("sequential", kind))
        twins += made
        report.add(part)
    return twins, report


def _questions_of(
    trajectories: Iterable[Trajectory], questions: Iterable[Question], kind: Kind | None = None
) -> list[Question]:
    by_id = {question.id: question for question in questions}
    return [by_id[one.id] for one in trajectories if kind is None or one.kind == kind]


def _learnable(
    questions: Sequence[Question], kept: Sequence[Trajectory], report: ColdStartReport, reasons: Collection[str]
) -> list[Question]:
    """Questions whose evidence is within reach: those taught, and those where only the rule failed."""
    taught = {one.id for one in kept}
    return [q for q in questions if q.id in taught or report.reasons.get(q.id) in reasons]


def write_questions(path: Path, questions: Iterable[Question], *, with_metadata: bool = False) -> None:
    """JSON Lines by the questions' contract, whole or not at all; `with_metadata` adds what a question carries beside it."""
    records = ({**asdict(one), **((one.metadata or {}) if with_metadata else {})} for one in questions)
    known = ({key: value for key, value in one.items() if value is not None and key != "metadata"} for one in records)
    write_lines(path, map(to_json, known))


def measure(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Lengths, calls and splits of a set of trajectories, and how often a supporting page was found."""
    if not trajectories:
        raise UsageError("no trajectory could be built; report what was dropped with build_coldstart")
    lengths = sorted(len(one.prompt_ids()) + len(one.response_ids()) for one in trajectories)
    trained = sorted(sum(one.loss_mask()) for one in trajectories)
    by_kind: dict[str, list[Trajectory]] = {}
    for one in trajectories:
        by_kind.setdefault(one.kind or "unknown", []).append(one)
    gold = [_recall(one) for one in trajectories if one.supporting_titles]
    return {
        "num_trajectories": len(trajectories),
        "tokens": {"p50": _at(lengths, 0.5), "p95": _at(lengths, 0.95), "max": lengths[-1], "sum": sum(lengths)},
        "model_tokens": {"p50": _at(trained, 0.5), "p95": _at(trained, 0.95), "sum": sum(trained)},
        "num_llm_calls": {
            kind: sum(one.num_llm_calls for one in group) / len(group) for kind, group in by_kind.items()
        },
        "split_ratio": {kind: sum(one.is_split for one in group) / len(group) for kind, group in by_kind.items()},
        "supporting_title_recall": sum(gold) / len(gold) if gold else None,
    }


def _at(values: Sequence[int], share: float) -> int:
    return values[min(len(values) - 1, int(len(values) * share))]


def _recall(trajectory: Trajectory) -> float:
    titles = set(trajectory.supporting_titles or ())
    found = {hit.title for turn in trajectory.turns for query in turn.queries for hit in query.hits}
    return len(titles & found) / len(titles)
