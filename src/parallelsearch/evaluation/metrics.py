"""What a run is measured by: one compact row a question, and the sums over rows.

`row_of` reads a trajectory once and keeps numbers only, so that a run of fifty thousand questions is summed up without
holding its trajectories. `summarise` turns rows into the metrics of a subset, with intervals. No row is ever
dropped: a failure is a wrong answer that is also counted as a failure. `error_class` has the rule of each error class,
`docs/evaluation.md` the definitions in words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

import numpy as np

from parallelsearch.answers import f1, normalise, string_accuracy, substring_match
from parallelsearch.coverage import covered
from parallelsearch.data.parts import PartsFrom, depths, graph_in, parts_of
from parallelsearch.errors import DataError, UsageError
from parallelsearch.evaluation.chance import chance_em
from parallelsearch.evaluation.evidence import at_hand
from parallelsearch.evaluation.statistics import Ratio, intervals, mean_of
from parallelsearch.gold import GoldBy, gold_of
from parallelsearch.limits import Prices
from parallelsearch.trajectory import NEEDS, Kind, Question, Trajectory

ERROR_CLASSES = (
    "failed",
    "no_answer",
    "should_have_split",
    "should_not_have_split",
    "not_retrieved",
    "aggregated_wrong",
    "misread",
    "undetermined",
)


@dataclass(slots=True)
class Row:
    """One question of a run, in numbers. Times are seconds; None means it is not known for this question."""

    id: str
    dataset: str | None
    kind: Kind | None
    type: str | None
    trap: str | None
    em: bool
    f1: float
    sub_em: bool
    num_llm_calls: int
    num_searches: int
    num_subqueries: int
    is_split: bool
    """The first round asked several distinct sub-queries at once."""
    is_split_anywhere: bool
    """Some round did (the released code counts this)."""
    should_split: bool | None
    num_rounds_needed: int | None
    gold_recall: float | None
    has_all_gold: bool | None
    num_output_tokens: int
    num_input_tokens: int
    """Summed over the calls: each call reads everything before it again."""
    response_tokens: int
    """Everything after the prompt, retrieved text included."""
    num_truncated: int
    num_invalid: int
    num_failed_queries: int
    num_dropped_queries: int
    num_uncached: int
    stop: str | None
    error: str | None
    error_class: str | None
    elapsed_s: float
    generate_s: float
    wait_s: float
    """Of the critical path: how long the model stood still for searches."""
    search_s: float
    """All searches, one after another: what the same queries would have taken in sequence."""
    chance: float
    cost: float | None = None
    num_shown: int = 0
    """Passages the model was shown."""
    num_cut: int = 0
    """Of them, those that did not fit into the tokens of their round whole."""
    gold_by: GoldBy | None = None
    """What the gold was counted by."""
    num_parts: int | None = None
    parts_from: PartsFrom | None = None
    parts_covered: float | None = None
    """The share of the parts that stand alone in a query of their own, in the round that could first ask for them."""
    has_first_parts: bool | None = None
    """Every part that the first round could ask for has a query of its own there."""
    string_accuracy: float | None = None
    """Of an answer that is a list or a dictionary (`answer_raw`): the share of its strings that the answer has."""
    num_partial_queries: int = 0
    """Queries that a part of the search did not answer."""
    reader_failed: bool | None = None
    """Another model should have read and gave no answer, so that the policy's own stands; None where none was asked."""
    reader_error: str | None = None
    reader_refused: bool = False
    """It was not asked, for its call would have passed what a question may cost. The policy's own answer stands here, too."""
    search_error: str | None = None
    """Of the last query that failed."""
    judged: bool | None = None
    """A judge says that the answer is right; a missing one is wrong without being asked. None where there is no verdict."""
    judge_error: str | None = None
    """Why there is none, where the judge was asked."""

    @property
    def is_judged_answer(self) -> bool:
        """There is an answer and a verdict on it, so that the two ways to score can be set against each other."""
        return self.judged is not None and self.error_class not in ("failed", "no_answer")

    @property
    def has_golden_word(self) -> bool:
        """The answer shares a word with a golden one, or holds one."""
        return self.f1 > 0 or self.sub_em

    @property
    def found_nothing(self) -> bool:
        """Every query failed: the row tells nothing about the policy."""
        return 0 < self.num_subqueries <= self.num_failed_queries

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


_ROW_FIELDS = tuple(field.name for field in fields(Row))
_NEEDED = {field.name for field in fields(Row) if field.default is MISSING}


def row_from_dict(record: Any, path: str, line: int) -> Row:
    if not isinstance(record, dict) or _NEEDED - record.keys():
        missing = ", ".join(sorted(_NEEDED - set(record if isinstance(record, dict) else ())))
        raise DataError(path, line, f"is not a row of this release (it lacks {missing}); delete the file to rebuild it")
    return Row(**{name: record[name] for name in _ROW_FIELDS if name in record})


# ---- one trajectory --------------------------------------------------------------------------------------------------


def row_of(trajectory: Trajectory, question: Question | None = None, prices: Prices | None = None) -> Row:
    """Measure one trajectory. `question` adds what the trajectory does not carry: the dependency graph and the trap."""
    extra = (question.metadata if question is not None else None) or {}
    golden, answer = trajectory.golden_answers, trajectory.answer
    should_split, num_rounds = expected_plan(trajectory.kind, extra.get("graph"))
    gold = gold_of(trajectory)
    recall = None if gold is None else gold.recall(at_hand(trajectory))
    known = parts_of(trajectory, extra.get("graph"))
    coverage = None if known is None else covered(trajectory, known[0])
    num_input, num_output = trajectory.billed_tokens
    reading = trajectory.reading
    row = Row(
        id=trajectory.id,
        dataset=trajectory.dataset,
        kind=trajectory.kind,
        type=trajectory.type,
        trap=extra.get("trap"),
        em=trajectory.is_right,
        f1=f1(answer, golden) if trajectory.stop != "error" else 0.0,
        sub_em=trajectory.stop != "error" and substring_match(answer, golden),
        num_llm_calls=trajectory.num_llm_calls,
        num_searches=trajectory.num_searches,
        num_subqueries=trajectory.num_subqueries,
        is_split=trajectory.is_split,
        is_split_anywhere=any(turn.is_split for turn in trajectory.rounds),
        should_split=should_split,
        num_rounds_needed=num_rounds,
        gold_recall=recall,
        has_all_gold=None if recall is None else recall == 1.0,
        num_output_tokens=num_output,
        num_input_tokens=num_input,
        response_tokens=sum(s.num_tokens for s in trajectory.segments if s.author != "prompt"),
        num_truncated=trajectory.num_truncated,
        num_invalid=len(trajectory.invalid_turns),
        num_failed_queries=trajectory.num_failed_queries,
        num_partial_queries=trajectory.num_partial_queries,
        num_dropped_queries=sum(len(turn.dropped_queries) for turn in trajectory.turns),
        num_uncached=trajectory.num_uncached,
        stop=trajectory.stop,
        error=trajectory.error,
        error_class=None,
        elapsed_s=trajectory.elapsed_s or 0.0,
        generate_s=sum(turn.generate_s for turn in trajectory.turns),
        wait_s=_wait_s(trajectory),
        search_s=sum(query.end_s - query.start_s for query in trajectory.queries),
        chance=chance_em(trajectory.question, golden),
        num_shown=trajectory.num_passages_shown,
        num_cut=trajectory.num_passages_cut,
        gold_by=None if gold is None else gold.by,
        reader_failed=None if reading is None or reading.is_refused else reading.is_failed,
        reader_error=None if reading is None else reading.error,
        reader_refused=reading is not None and reading.is_refused,
        search_error=next((query.error for query in reversed(trajectory.queries) if query.error is not None), None),
    )
    if known is not None and coverage is not None:
        parts, row.parts_from = known
        row.num_parts, row.parts_covered = len(parts), coverage.share
        pairs = zip(parts, coverage.is_covered, strict=True)
        row.has_first_parts = all(is_covered for part, is_covered in pairs if part.round == 1)
    if extra.get("answer_raw") is not None:
        row.string_accuracy = string_accuracy(None if trajectory.stop == "error" else answer, extra["answer_raw"])
    row.error_class = None if row.em else error_class(trajectory, row)
    if prices is not None:
        row.cost = trajectory.cost(prices)
    return row


def expected_plan(kind: Kind | None, graph: Any = None) -> tuple[bool | None, int | None]:
    """Whether the first round should ask several things at once, and how many rounds it takes.

    A written dependency graph decides where there is one: its roots are the first round, its depth the rounds. Otherwise
    the kind does, with the rounds that the rewards aim at.
    """
    steps = graph_in(graph)
    if steps is not None:
        depth = depths(steps)
        return sum(level == 1 for level in depth.values()) >= 2, max(depth.values())
    if kind is None:
        return None, None
    return NEEDS[kind].should_split, NEEDS[kind].num_rounds


def _wait_s(trajectory: Trajectory) -> float:
    """For each round, from the end of the turn's text to the last of its searches."""
    return sum(
        max(0.0, max(query.end_s for query in turn.queries) - turn.start_s - turn.generate_s)
        for turn in trajectory.rounds
    )


def error_class(trajectory: Trajectory, row: Row) -> str:
    """Why a wrong row is wrong: the first rule that holds.

    failed: the policy could not go on. no_answer: there is none, or an empty one. Then, if the evidence was not all
    found: should_have_split / should_not_have_split where the first round was planned against the label, else
    not_retrieved (also when nothing was searched). If it was all found: aggregated_wrong where the question had to be
    split and was (the paper's Table 8), else misread. Evidence is the gold where it is known, else the golden
    answer's text in what was retrieved; a yes or no has no such text, so such a row without titles is undetermined.
    """
    if trajectory.stop == "error":
        return "failed"
    if not normalise(trajectory.answer or ""):
        return "no_answer"
    if row.num_searches == 0:
        return "not_retrieved"
    has_evidence = row.has_all_gold if row.has_all_gold is not None else _shows_answer(trajectory)
    if has_evidence is None:
        return "undetermined"
    if not has_evidence:
        if row.should_split is not None and row.should_split != row.is_split:
            return "should_have_split" if row.should_split else "should_not_have_split"
        return "not_retrieved"
    return "aggregated_wrong" if row.should_split and row.is_split else "misread"


def _shows_answer(trajectory: Trajectory) -> bool | None:
    golden = {normalise(answer) for answer in trajectory.golden_answers} - {""}
    if not golden or golden & {"yes", "no"}:
        return None
    hits = {hit.id: hit for query in trajectory.queries for hit in query.hits}
    texts = [f" {normalise(f'{hit.title} {hit.text}')} " for hit in hits.values()]
    return any(f" {answer} " in text for answer in golden for text in texts)


# ---- sums over rows --------------------------------------------------------------------------------------------------


def ratios_of(rows: Sequence[Row]) -> dict[str, Ratio]:
    """Every metric that is a ratio of sums, and so gets an interval."""

    def share(top: Iterable[bool], bottom: Iterable[bool]) -> Ratio:
        return Ratio(np.array(list(top), dtype=np.float64), np.array(list(bottom), dtype=np.float64), is_share=True)

    def mean(name: str) -> Ratio:
        return mean_of([getattr(row, name) for row in rows])

    labelled = [row.should_split is not None for row in rows]
    return {
        "em": mean("em"),
        "f1": mean("f1"),
        "sub_em": mean("sub_em"),
        "string_loose": mean("string_accuracy"),
        "string_strict": share(
            (row.string_accuracy == 1.0 for row in rows), (row.string_accuracy is not None for row in rows)
        ),
        "num_llm_calls": mean("num_llm_calls"),
        "num_searches": mean("num_searches"),
        "num_subqueries": mean("num_subqueries"),
        "split_ratio": mean("is_split"),
        "split_anywhere_ratio": mean("is_split_anywhere"),
        # A decision needs a search: a question that was answered without one counts as decided wrongly.
        "decomposition_accuracy": share((decided_right(row) for row in rows), labelled),
        "decomposition_precision": share(
            (bool(row.should_split) and row.is_split for row in rows),
            (row.should_split is not None and row.is_split for row in rows),
        ),
        "decomposition_recall": share(
            (bool(row.should_split) and row.is_split for row in rows), (bool(row.should_split) for row in rows)
        ),
        "rounds_accuracy": share(
            (row.num_rounds_needed == row.num_searches for row in rows),
            (row.num_rounds_needed is not None for row in rows),
        ),
        "gold_recall": mean("gold_recall"),
        "all_gold_ratio": mean("has_all_gold"),
        "grounded_em": share(
            (row.em and bool(row.has_all_gold) for row in rows), (row.has_all_gold is not None for row in rows)
        ),
        "em_given_gold": share(
            (row.em and bool(row.has_all_gold) for row in rows), (bool(row.has_all_gold) for row in rows)
        ),
        # What reading adds to a guess: 0 for a coin, 1 where every question with its evidence at hand is right.
        "reading": Ratio(
            np.array([row.em - row.chance if row.has_all_gold else 0.0 for row in rows], dtype=np.float64),
            np.array([1.0 - row.chance if row.has_all_gold else 0.0 for row in rows], dtype=np.float64),
        ),
        "parts_covered": mean("parts_covered"),
        "cut_ratio": Ratio(
            np.array([row.num_cut for row in rows], dtype=np.float64),
            np.array([row.num_shown for row in rows], dtype=np.float64),
        ),
        "elapsed_s": mean("elapsed_s"),
        "response_tokens": mean("response_tokens"),
        "num_output_tokens": mean("num_output_tokens"),
        "num_input_tokens": mean("num_input_tokens"),
        "cost": mean("cost"),
        **_judged_ratios(rows),
    }


def _judged_ratios(rows: Sequence[Row]) -> dict[str, Ratio]:
    """What a judge says, where one was asked, and how far it agrees with exact match: it should call right what is a golden
    answer to the letter, and little of what has no word in common with one."""
    if all(row.judged is None for row in rows):
        return {}

    def judged_among(is_among: Callable[[Row], bool]) -> Ratio:
        return mean_of([bool(row.judged) if row.is_judged_answer and is_among(row) else None for row in rows])

    return {
        "judged": mean_of([row.judged for row in rows]),
        "judged_given_em": judged_among(lambda row: row.em),
        "judged_given_no_em": judged_among(lambda row: not row.em),
        "judged_given_no_word": judged_among(lambda row: not row.em and not row.has_golden_word),
    }


def _judge_counts(rows: Sequence[Row]) -> dict[str, Any]:
    """The counts behind the ratios, and what has no verdict."""
    errors = [row.judge_error for row in rows if row.judge_error is not None]
    ratios = _judged_ratios(rows)
    if not errors and not ratios:
        return {}
    return {
        "n_judged": sum(row.judged is not None for row in rows),
        "judge_failures": len(errors),
        **({"last_judge_error": errors[-1]} if errors else {}),
        **{f"n_{name}": int(ratio.bottom.sum()) for name, ratio in ratios.items() if name != "judged"},
    }


def decided_right(row: Row) -> bool:
    """Searched, split where it should be and not elsewhere; and where it should be, no part of the first round dropped."""
    if row.num_searches == 0 or row.should_split is None or row.is_split != row.should_split:
        return False
    return not row.should_split or row.has_first_parts is not False


def summarise(rows: Sequence[Row], *, num_resamples: int = 1000, seed: int = 0) -> dict[str, Any]:
    """The metrics of these rows, with `ci95` for each that has an interval. Unknown ones are None."""
    if not rows:
        raise UsageError("there are no rows to sum up")
    ratios = ratios_of(rows)
    around = intervals(ratios, num_resamples=num_resamples, seed=seed)
    elapsed = np.array([row.elapsed_s for row in rows])
    num_rounds = sum(row.num_searches for row in rows)
    read = [row.reader_failed for row in rows if row.reader_failed is not None]
    num_partial = sum(row.num_partial_queries for row in rows)
    num_refused = sum(row.reader_refused for row in rows)
    return {
        "n": len(rows),
        **{name: ratio.value for name, ratio in ratios.items()},
        "failures": sum(row.stop == "error" for row in rows),
        **({"reader_failures": sum(read)} if read else {}),
        **({"num_partial_queries": num_partial} if num_partial else {}),
        **({"reader_refused": num_refused} if num_refused else {}),
        "num_truncated": sum(row.num_truncated for row in rows),
        "num_invalid": sum(row.num_invalid for row in rows),
        "num_failed_queries": sum(row.num_failed_queries for row in rows),
        "num_dropped_queries": sum(row.num_dropped_queries for row in rows),
        "n_labelled": sum(row.should_split is not None for row in rows),
        "n_gold": sum(row.gold_recall is not None for row in rows),
        "n_gold_by_passage": sum(row.gold_by == "passage" for row in rows),
        "n_parts": sum(row.parts_covered is not None for row in rows),
        "parts_from": dict(Counter(row.parts_from for row in rows if row.parts_from).most_common()),
        "elapsed_p50_s": float(np.quantile(elapsed, 0.5)),
        "elapsed_p95_s": float(np.quantile(elapsed, 0.95)),
        "generate_s": sum(row.generate_s for row in rows) / len(rows),
        "wait_s": sum(row.wait_s for row in rows) / len(rows),
        "search_s": sum(row.search_s for row in rows) / len(rows),
        "subqueries_per_round": sum(row.num_subqueries for row in rows) / num_rounds if num_rounds else None,
        "chance_em": sum(row.chance for row in rows) / len(rows),
        "decomposition_by_kind": _by_kind(rows),
        "errors": _errors(rows),
        "stops": dict(Counter(row.stop or "unknown" for row in rows).most_common()),
        "turns": {str(turns): count for turns, count in sorted(Counter(r.num_llm_calls for r in rows).items())},
        **_judge_counts(rows),
        "ci95": {name: list(interval) for name, interval in around.items() if interval is not None},
    }


def _by_kind(rows: Sequence[Row]) -> dict[str, dict[str, float | int]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.kind is not None and row.should_split is not None:
            groups.setdefault(row.kind, []).append(row)
    return {
        kind: {
            "n": len(group),
            "accuracy": sum(map(decided_right, group)) / len(group),
            "split_ratio": sum(row.is_split for row in group) / len(group),
            "num_searches": sum(row.num_searches for row in group) / len(group),
        }
        for kind, group in sorted(groups.items())
    }


def _errors(rows: Sequence[Row]) -> dict[str, int]:
    counts = Counter(row.error_class for row in rows if row.error_class is not None)
    return {name: counts[name] for name in ERROR_CLASSES if counts[name]}


def subsets_of(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows by data set, by kind within it, by trap; and all of them where there are several data sets."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.dataset or "questions", []).append(row)
    result: dict[str, list[Row]] = {"all": list(rows)} if len(groups) > 1 else {}
    for name in sorted(groups):
        group = groups[name]
        result[name] = group
        kinds = {row.kind for row in group}
        for kind, needs in NEEDS.items():
            if kind in kinds and len(kinds) > 1:
                result[f"{name}-{needs.ending}"] = [row for row in group if row.kind == kind]
        for trap in sorted({row.trap for row in group if row.trap}):
            result[f"{name}-{trap}"] = [row for row in group if row.trap == trap]
    return result
