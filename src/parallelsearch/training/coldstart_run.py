"""`parallelsearch coldstart RECIPE`: from named question sets to the files that SFT and RL start from.

One folder comes out: `parallel.jsonl` and `sequential.jsonl` (the same questions, trajectories with token ids),
`rl_questions.jsonl`, `rl_recombined.jsonl`, `rl_mixed.jsonl` and `rl_made.jsonl` (questions for RL: real ones, comparisons
recombined from them, and mixed questions, facts, chains and comparisons made from the passages),
`validation.jsonl` and `report.json`; on request also `undecided.jsonl`, a start that splits only every other time.
The validation questions are cut first and are in none of the others. Sources are worked through in order, and each kind
stops when it has enough, so name the surest source first.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import Field

from parallelsearch.addresses import open_search
from parallelsearch.answers import normalise
from parallelsearch.config import Settings, load
from parallelsearch.datasets import held_out, held_out_titles, training_pool
from parallelsearch.errors import PolicyError, UsageError, require
from parallelsearch.policy import models
from parallelsearch.policy.base import Generation, Policy
from parallelsearch.policy.encoding import EncodingPolicy
from parallelsearch.retrieval.store import PASSAGES, PassageStore
from parallelsearch.search import Search
from parallelsearch.training.coldstart import ColdStartReport, ColdStartSettings, build_coldstart
from parallelsearch.training.made_facts import make_all
from parallelsearch.training.mixed_questions import MADE, make_mixed
from parallelsearch.training.pool import KINDS, Pool, check_pool, cut_by_kind, training_questions
from parallelsearch.training.recipe import RolloutSettings, SearchSettings
from parallelsearch.training.recombine import recombine
from parallelsearch.trajectory import Kind, Question, Trajectory, write_trajectories

Say = Callable[[str], None]

# The evidence is there, only no rule could decide it: such a question is still one to learn from by trying.
_LEARNABLE = frozenset(
    {
        "evidence_disagrees",
        "no_date_found",
        "no_number_found",
        "numbers_equal",
        "no_nation_found",
        "no_difference_found",
        "nothing_to_quote",
        "dates_not_told_apart",
        "no_trait",
        "bridge_not_shown",
        "answer_beside_link",
        "too_long",
        "turn_too_long",
    }
)


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
    num_trajectories: dict[Kind, int]
    """How many of each kind, at most."""
    num_recombined: int = Field(default=0, ge=0)
    """How many of the parallel ones may be recombined from others (`recombine.py`)."""
    num_mixed: int = Field(default=0, ge=0)
    """How many trajectories of two parallel rounds are made from the passages of the index (`mixed_questions.py`)."""
    num_mixed_for_rl: int = Field(default=0, ge=0)
    """How many more such questions are kept for RL; those with trajectories are for RL as well."""
    num_made_facts: int = Field(default=0, ge=0)
    """How many trajectories of one fact are made from the passages of the index (`made_facts.py`)."""
    num_made_chains: int = Field(default=0, ge=0)
    """How many of two links, likewise; as many as the passages give may be fewer."""
    num_made_comparisons: int = Field(default=0, ge=0)
    """How many comparisons, likewise (`made_comparisons.py`)."""
    num_undecided: int = Field(default=0, ge=0)
    """How many trajectories `undecided.jsonl` has, which leaves it to RL to find out when to split; 0 writes no such file."""
    max_mixed_tokens: int = Field(default=2560, ge=64)
    """As `max_tokens`, for mixed ones: they have two rounds of results, or four."""
    max_quote_words: int = Field(default=16, ge=4)
    max_relation_words: int = Field(default=2, ge=0)
    max_tokens: int = Field(default=1600, ge=64)
    seed: int = 0
    out: str
    search: SearchSettings = SearchSettings()
    rollout: RolloutSettings = RolloutSettings()

    @property
    def makes_questions(self) -> bool:
        counts = (self.num_mixed, self.num_mixed_for_rl, self.num_made_facts, self.num_made_chains)
        return any((*counts, self.num_made_comparisons))

    def settings(self, mode: str, kind: Kind | None = None) -> ColdStartSettings:
        return ColdStartSettings(
            mode="sequential" if mode == "sequential" else "parallel",
            limits=self.rollout.limits,
            seed=self.seed,
            max_quote_words=self.max_quote_words,
            max_relation_words=self.max_relation_words,
            max_tokens=self.max_mixed_tokens if kind == "mixed" else self.max_tokens,
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
    report: ColdStartReport
    twin_report: ColdStartReport
    search: dict[str, Any]


def run_coldstart(recipe: ColdStartRecipe, say: Say | None = None) -> dict[str, Any]:
    """Build everything and write it; returns the report that is also in `report.json`."""
    built = asyncio.run(build(recipe, say or (lambda _: None)))
    out = Path(recipe.out)
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
    write_questions(out / "validation.jsonl", built.pool.validation)
    summary = {
        "pool": built.pool.describe(),
        "parallel": {**built.report.to_dict(), **measure(built.parallel)},
        "sequential": {**built.twin_report.to_dict(), **measure(built.sequential)},
        "num_recombined": sum("~" in one.id for one in built.parallel),
        "num_mixed": sum(one.kind == "mixed" and one.dataset == MADE for one in built.parallel),
        "num_mixed_for_rl": len(built.mixed),
        "num_made": dict(Counter(one.dataset for one in built.made)),
        "rl_questions": Pool(built.rl_questions).describe()["train"],
        "limits": asdict(recipe.rollout.limits),
        "search": built.search,
    }
    (out / "report.json").write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return summary


def undecided(parallel: Sequence[Trajectory], sequential: Sequence[Trajectory]) -> list[Trajectory]:
    """The parallel trajectories, but every other one that splits has the searches of its twin, one by one, behind the
    parallel prompt. A policy taught with these splits half of the time: what rewards are for shows from there."""
    result: list[Trajectory] = []
    num_split = 0
    for one, twin in zip(parallel, sequential, strict=True):
        num_split += one.is_split
        if one.is_split and num_split % 2 == 0:
            one = replace(twin, segments=[one.segments[0], *twin.segments[1:]])
        result.append(one)
    return result


async def build(recipe: ColdStartRecipe, tell: Say) -> Built:
    """The same without writing."""
    if recipe.makes_questions:
        _passages(recipe.search.address)  # an address without them is refused now, not after minutes of work
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
            kept_back = {normalise(question.question) for question in pool.validation} | held_out().keys()
            wanted = min(missing, recipe.num_recombined)
            fresh = await recombine(taught, search, encoder, recipe.settings("parallel"), wanted, kept_back)
            check_pool(Pool(fresh, pool.validation))
            more, more_report = await build_coldstart(fresh, search, encoder, recipe.settings("parallel"))
            kept += more
            report.add(more_report)
            tell(f"recombined: {len(more)}")
        asked = _questions_of(kept, [*pool.train, *fresh])
        twins, twin_report = await build_coldstart(asked, search, encoder, recipe.settings("sequential"))
        tell(f"sequential twin: {len(twins)} of {len(asked)}")
        mixed = await _mixed(recipe, pool, search, encoder)
        made = await _made(recipe, pool, search, encoder)
        for part, name in ((mixed, "mixed"), (made, "made from passages")):
            kept += part.parallel
            twins += part.sequential
            report.add(part.report)
            twin_report.add(part.twin_report)
            for kind, count in part.wanted.items():
                num_found = sum(question.kind == kind for question in part.questions)
                tell(f"{name}, {kind}: {num_found} of {count}")
    finally:
        await search.aclose()
    both = {one.id for one in twins}
    kept = [one for one in kept if one.id in both]
    random.Random(recipe.seed).shuffle(kept)
    order = {one.id: number for number, one in enumerate(kept)}
    twins.sort(key=lambda one: order[one.id])
    learnable = _learnable(pool.train, kept, report)
    check_pool(Pool(learnable, pool.validation))
    return Built(
        pool, kept, twins, learnable, fresh, mixed.questions, made.questions, report, twin_report, search.describe()
    )


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


async def _made(recipe: ColdStartRecipe, pool: Pool, search: Search, encoder: Policy) -> _Taught:
    wanted: dict[Kind, int] = {
        "single": recipe.num_made_facts,
        "sequential": recipe.num_made_chains,
        "parallel": recipe.num_made_comparisons,
    }
    made = _Taught(wanted={kind: count for kind, count in wanted.items() if count})
    if not made.wanted:
        return made
    kept_back = {normalise(question.question) for question in pool.validation} | held_out().keys()
    needed = held_out_titles().union(*(question.supporting_titles or () for question in pool.validation))
    # More than wanted: many a page is not found by the words of its question.
    drafts = make_all(
        _passages(recipe.search.address),
        2 * recipe.num_made_facts,
        3 * recipe.num_made_chains,
        2 * recipe.num_made_comparisons,
        seed=recipe.seed,
        forbidden=kept_back,
        needed=needed,
    )
    check_pool(Pool(drafts, pool.validation))
    one_way, made.report = await build_coldstart(drafts, search, encoder, recipe.settings("parallel"))
    drafts = _questions_of(one_way, drafts)
    other_way, made.twin_report = await build_coldstart(drafts, search, encoder, recipe.settings("sequential"))
    both = {one.id for one in other_way}
    for kind, count in made.wanted.items():
        made.questions += [question for question in drafts if question.kind == kind and question.id in both][:count]
    chosen = {question.id for question in made.questions}
    made.parallel = [one for one in one_way if one.id in chosen]
    made.sequential = [one for one in other_way if one.id in chosen]
    return made


async def _mixed(recipe: ColdStartRecipe, pool: Pool, search: Search, encoder: Policy) -> _Taught:
    wanted = recipe.num_mixed + recipe.num_mixed_for_rl
    if not wanted:
        return _Taught()
    made = _Taught(wanted={"mixed": wanted})
    kept_back = {normalise(question.question) for question in pool.validation} | held_out().keys()
    passages = _passages(recipe.search.address)
    # Twice as many as wanted: for about every other one a page is not found, or does not fit.
    drafts = make_mixed(passages, 2 * wanted, seed=recipe.seed, forbidden=kept_back)
    check_pool(Pool(drafts, pool.validation))
    one_way, made.report = await build_coldstart(drafts, search, encoder, recipe.settings("parallel", "mixed"))
    drafts = _questions_of(one_way, drafts)
    other_way, made.twin_report = await build_coldstart(drafts, search, encoder, recipe.settings("sequential", "mixed"))
    both = {one.id for one in other_way}
    made.questions = [question for question in drafts if question.id in both][:wanted]
    chosen = {question.id for question in made.questions[: recipe.num_mixed]}
    made.parallel = [one for one in one_way if one.id in chosen]
    made.sequential = [one for one in other_way if one.id in chosen]
    return made


def _passages(address: str) -> PassageStore:
    """The passages of the index at a search address."""
    folder = address.partition(":")[2].strip()
    if not (Path(folder) / PASSAGES).is_file():
        raise UsageError(
            f"num_mixed and num_made_* make questions from the passages of an index on this machine, and '{address}' is "
            "none; set search.address to bm25:FOLDER, or these numbers to 0"
        )
    return PassageStore.open(folder)


async def _questions(recipe: ColdStartRecipe, search: Search, encoder: Policy) -> Pool:
    """All training questions, with the validation questions cut out.

    Validation must look like evaluation: from the source whose gold passages are known to be in the corpus, and for kinds
    which that source lacks, from questions that could be taught, because only those are known to be answerable.
    """
    kinds = [kind for kind in KINDS if recipe.num_trajectories.get(kind)]
    pool = training_questions(recipe.sources, kinds=kinds, datasets=recipe.datasets, seed=recipe.seed)
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
            batch, part = await build_coldstart(
                todo[start : start + 1000], search, encoder, recipe.settings("parallel")
            )
            made += batch
            report.add(part)
            tell(f"{kind}: {len(made)} of {wanted} after {start + 1000} questions")
        kept += made[:wanted]
    return kept, report


def _questions_of(
    trajectories: Iterable[Trajectory], questions: Iterable[Question], kind: Kind | None = None
) -> list[Question]:
    by_id = {question.id: question for question in questions}
    return [by_id[one.id] for one in trajectories if kind is None or one.kind == kind]


def _learnable(questions: Sequence[Question], kept: Sequence[Trajectory], report: ColdStartReport) -> list[Question]:
    """Questions whose evidence is within reach: those taught, and those where only the rule failed."""
    taught = {one.id for one in kept}
    return [q for q in questions if q.id in taught or report.reasons.get(q.id) in _LEARNABLE]


def write_questions(path: Path, questions: Iterable[Question]) -> None:
    """JSON Lines by the questions' contract."""
    with open(path, "w", encoding="utf-8") as file:
        for question in questions:
            record = {
                name: value for name, value in asdict(question).items() if value is not None and name != "metadata"
            }
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


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
