"""`parallelsearch coldstart RECIPE`: from named question sets to the files that SFT and RL start from.

One folder comes out: `parallel.jsonl` and `sequential.jsonl` (the same questions, trajectories with token ids),
`rl_questions.jsonl`, `rl_recombined.jsonl`, `rl_mixed.jsonl` and `rl_made.jsonl` (questions for RL: real ones,
comparisons recombined from them, and mixed questions, facts, chains and comparisons made from the passages),
`validation.jsonl` and `report.json`; on request also `undecided.jsonl`, a start that splits only every other time, and
`rl_unanswerable.jsonl`, questions that the corpus does not answer.
The validation questions are cut first and are in none of the others. Sources are worked through in order, and each
kind stops when it has enough, so name the surest source first. `recipe.py` has what a recipe may say, `making.py` the
questions that are made. How questions are taught, made and recombined is the part of the recipe's `rules`; nothing here
knows a language.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from parallelsearch.addresses import open_search
from parallelsearch.answers import normalise
from parallelsearch.coldstart.letters import in_small_letters, with_capitals
from parallelsearch.coldstart.making import Workshop, passages_of, questions_of
from parallelsearch.coldstart.pool import Pool, check_pool, cut_by_kind, training_questions
from parallelsearch.coldstart.recipe import ColdStartRecipe
from parallelsearch.coldstart.rules import RECOMBINED, load_rules
from parallelsearch.coldstart.tutor import ColdStartReport, build_coldstart
from parallelsearch.coldstart.withheld import WITHHELD, unanswerable, withhold
from parallelsearch.data.leaks import find_leaks, held_out_texts
from parallelsearch.data.sets import training_pool
from parallelsearch.errors import PolicyError, UsageError, require
from parallelsearch.files import to_json, write_json, write_lines
from parallelsearch.policy import models
from parallelsearch.policy.base import Generation, Policy
from parallelsearch.policy.encoding import EncodingPolicy
from parallelsearch.search import Search
from parallelsearch.trajectory import KINDS, Question, Trajectory, write_trajectories

Say = Callable[[str], None]

_LONG = frozenset({"too_long", "turn_too_long"})
"""Reasons of the tutor that say nothing against a question: it can still be learned from by trying."""


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
        passages_of(recipe.search.address)  # an address without them is refused now, not after minutes of work
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
            taught = questions_of(kept, pool.train, "parallel")
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
        asked = questions_of(kept, [*pool.train, *fresh])
        twins, twin_report = await _twins(asked, search, encoder, recipe)
        tell(f"sequential twin: {len(twins)} of {len(asked)}")
        workshop = Workshop(recipe, pool, search, encoder)
        mixed = await workshop.mixed()
        made = await workshop.plain()
        wide = await workshop.wide()
        typed = await workshop.typed()
        changed = await workshop.changed()
        described = await workshop.described()
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


async def _questions(recipe: ColdStartRecipe, search: Search, encoder: Policy) -> Pool:
    """All training questions, with the validation questions cut out.

    Validation must look like evaluation: from the source whose gold passages are known to be in the corpus, and for kinds
    which that source lacks, from questions that could be taught, because only those are known to be answerable.
    """
    kinds = [kind for kind in KINDS if recipe.num_trajectories.get(kind)]
    labeller = load_rules(recipe.rules).guess_kind if recipe.guess_kinds else None
    pool = training_questions(recipe.sources, kinds=kinds, datasets=recipe.datasets, labeller=labeller)
    known: set[str] = set()
    if recipe.validation_source is not None:
        known = {normalise(question.question) for question in training_pool(recipe.validation_source)}
    for kind, count in recipe.num_validation.items():
        chosen = [q for q in pool.train if normalise(q.question) in known and q.kind == kind]
        if len(chosen) < count:
            candidates = [question for question in pool.train if question.kind == kind]
            _, chosen = cut_by_kind(candidates, {kind: min(len(candidates), 16 * count)}, recipe.seed)
            taught, _ = await build_coldstart(chosen, search, encoder, recipe.settings("parallel"))
            chosen = questions_of(taught, chosen)
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
