"""Rewards: pure functions of a trajectory, each component apart.

A preset is one way to add up outcome, decomposition, search count and format. `paper` is equations 4 to 6 of arXiv
2508.09303, `reference` the values of the released code, `gated`, `coverage` and `label-free` are ours: in each no wrong
answer ever outscores a right one of the same question. `docs/rewards.md` has the tables and the reasons.

What counts: n is the number of rounds that were executed, a question is decomposed if its first executed round asked at
least two distinct sub-queries, and a failure of the search engine never costs the policy.

`module:function` in place of a preset's name is a function of the caller's own, from a trajectory to a `Reward` or a number.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

from parallelsearch.answers import exact_match
from parallelsearch.coverage import covered, numbered_rounds
from parallelsearch.errors import RewardError, UsageError, is_number, nearest
from parallelsearch.gold import Gold, gold_of
from parallelsearch.limits import Limits
from parallelsearch.named import load_named, said, source_sha256
from parallelsearch.trajectory import KINDS, NEEDS, Kind, Trajectory

_LIMITS = Limits()
"""Assumed for a record that does not say what its limits were."""


@dataclass(frozen=True, slots=True)
class Reward:
    """The components, whose sum is the total."""

    outcome: float
    decomposition: float
    search_count: float
    format: float

    @property
    def total(self) -> float:
        return float(sum(getattr(self, name) for name in COMPONENTS))

    def to_dict(self) -> dict[str, float]:
        return {name: round(getattr(self, name), 10) for name in PARTS}


COMPONENTS: tuple[str, ...] = tuple(field.name for field in fields(Reward))
PARTS: tuple[str, ...] = (*COMPONENTS, "total")
"""What a record, a log and a table have of a reward, in this order: a new component is a field of `Reward`."""
BEHAVIOUR = ("is_split", "num_llm_calls", "num_searches", "num_subqueries", "num_failed_queries")
"""What a trainer of others (verl, verifiers) logs of a trajectory beside its reward: what it did."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Lambda and alpha of the paper's equations; the paper gives no alpha and no lambda_f, the released code does."""

    decomposition: float = 0.15
    alpha: float = 3.0
    search_count: float = 0.35
    format: float = 0.1

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not (is_number(value) and value >= 0):
                raise UsageError(f"reward weight '{name}' must be a number, 0 or more, not {value!r}")


@dataclass(frozen=True, slots=True)
class Facts:
    """What the presets look at, read off a trajectory once."""

    kind: Kind | None
    is_right: bool
    is_right_reference: bool
    is_decomposed: bool
    """The first round that was run asked at least two distinct sub-queries."""
    has_separator: bool
    """The first search that was run has the separator in it, whatever stands around it: the released code's test."""
    rounds_split: tuple[bool, ...]
    """Of each round that was run: did it ask several at once?"""
    num_rounds: int
    num_rounds_answered: int
    """Rounds in which the search engine answered at least one sub-query."""
    num_useless: int
    """Sub-queries that were answered and brought no passage that was not there before."""
    is_well_formed: bool
    max_turns: int
    part_rounds: int | None = None
    """How many rounds the question's parts need, where they are labelled."""
    coverage: float | None = None
    """The share of what the question asks for that had a sub-query of its own, counted by its parts, or else by its gold
    pages; sub-queries without such a share in it lower it. None where neither is known."""
    new_gold: tuple[float, ...] | None = None
    """Of each round, the share of the gold pages that it was the first to find; None where none are known."""

    @property
    def num_rounds_needed(self) -> int:
        """Only for presets that need the kind: `reward` refuses a trajectory without one before they are asked."""
        assert self.kind is not None
        return NEEDS[self.kind].num_rounds

    def best(self, term: Callable[[int], float]) -> float:
        """`term` of the number of rounds, where rounds lost to a failing search engine count only if that helps."""
        return max(term(n) for n in range(self.num_rounds_answered, self.num_rounds + 1))


def facts(trajectory: Trajectory) -> Facts:
    rounds = trajectory.rounds
    num_failed = sum(all(query.error is not None for query in turn.queries) for turn in rounds)
    limits = trajectory.limits or {}
    return Facts(
        kind=trajectory.kind,
        is_right=trajectory.is_right,
        is_right_reference=exact_match(trajectory.answer, trajectory.golden_answers, unicode=False),
        is_decomposed=trajectory.is_split,
        has_separator=bool(rounds) and rounds[0].separated,
        rounds_split=tuple(turn.is_split for turn in rounds),
        num_rounds=len(rounds),
        num_rounds_answered=len(rounds) - num_failed,
        num_useless=_num_useless(trajectory),
        is_well_formed=_is_well_formed(trajectory),
        max_turns=int(limits.get("max_turns", _LIMITS.max_turns)),
        part_rounds=max(part.round for part in trajectory.parts) if trajectory.parts else None,
        coverage=_coverage_of(trajectory, gold := gold_of(trajectory)),
        new_gold=_new_gold(trajectory, gold),
    )


def _is_well_formed(trajectory: Trajectory) -> bool:
    """A thought and an executed search, as often as needed, then a thought and an answer; nothing else."""
    turns = [turn for turn in trajectory.turns if turn.was_written]
    return (
        bool(turns)
        and turns[-1].action == "answer"
        and not any(turn.problems for turn in turns)
        and all(turn.action == "search" and turn.queries for turn in turns[:-1])
    )


def _num_useless(trajectory: Trajectory) -> int:
    if not _has_hits(trajectory):
        return 0
    seen: set[str] = set()
    num_useless = 0
    for query in trajectory.queries:
        ids = {hit.id for hit in query.hits}
        num_useless += query.error is None and ids <= seen
        seen |= ids
    return num_useless


def _coverage_of(trajectory: Trajectory, gold: Gold | None) -> float | None:
    """Parts with a query of their own, over the parts, or over the queries where these are more: a part that was dropped or
    asked for twice is not paid for, and neither is a query that asks for nothing."""
    found = covered(trajectory)
    if found is not None:
        num_asked = found.num_covered + found.num_idle
        return found.num_covered / max(len(found.is_covered), num_asked) if num_asked else 0.0
    if gold is None or trajectory.kind is None or not _has_hits(trajectory):
        return None
    # Without labels a part is a gold page, and it is covered by a query that found it: one page for each query.
    in_time = [turn for number, turn in numbered_rounds(trajectory) if number <= NEEDS[trajectory.kind].num_rounds]
    queries = [query for turn in in_time for query in turn.queries if query.error is None]
    num_covered = _num_matched([gold.places(query.hits) for query in queries])
    return num_covered / max(len(gold.wanted), len(queries))


def _num_matched(choices: list[set[int]]) -> int:
    """How many can have one of their choices for themselves, at most (augmenting paths: there are few)."""
    owner: dict[int, int] = {}

    def place(one: int, tried: set[int]) -> bool:
        for choice in choices[one] - tried:
            tried.add(choice)
            if choice not in owner or place(owner[choice], tried):
                owner[choice] = one
                return True
        return False

    return sum(place(one, set()) for one in range(len(choices)))


def _new_gold(trajectory: Trajectory, gold: Gold | None) -> tuple[float, ...] | None:
    if gold is None or not _has_hits(trajectory):
        return None
    had: set[int] = set()
    new: list[float] = []
    for number, turn in numbered_rounds(trajectory):
        places = gold.places(hit for query in turn.queries for hit in query.hits)
        new += [0.0] * (number - len(new))
        new[number - 1] += len(places - had) / len(gold.wanted)
        had |= places
    return tuple(new)


def _has_hits(trajectory: Trajectory) -> bool:
    """Whether the record says what was found. One without hits that nobody searched for, as it may be written by hand, does
    not; where a search answered that there is nothing, nothing was found."""
    is_live = trajectory.search is not None
    return any(query.hits or (is_live and query.error is None) for query in trajectory.queries)


# ---- the presets -----------------------------------------------------------------------------------------------------


def _paper(facts: Facts, weights: Weights) -> Reward:
    return _equations(facts, weights, facts.is_right, facts.is_decomposed, offset=0.0)


def _reference(facts: Facts, weights: Weights) -> Reward:
    return _equations(facts, weights, facts.is_right_reference, facts.has_separator, offset=weights.search_count)


def _equations(facts: Facts, weights: Weights, is_right: bool, is_decomposed: bool, offset: float) -> Reward:
    is_parallel = facts.kind == "parallel"
    decomposition = 0.0
    if is_parallel == is_decomposed:
        decomposition = weights.decomposition * (weights.alpha if is_parallel else 1.0)
    needed = facts.num_rounds_needed

    def search_count(n: int) -> float:
        # A question that one round answers pays for every round more; one that needs several pays only for too few.
        return -weights.search_count * (abs(n - 1) if needed == 1 else max(0, needed - n))

    form = 0.0
    if is_right != facts.is_well_formed:
        form = -weights.format if is_right else weights.format
    return Reward(float(is_right), decomposition, facts.best(search_count) + offset, form)


GATED_SHARE = 0.4
GATED_PARTS = (0.5, 0.3, 0.2)
"""Decomposition, rounds, format: their shares of the 0.4 that shaping may add."""


def _gated(facts: Facts, weights: Weights) -> Reward:
    return _shaped(facts, facts.num_rounds_needed, _decomposition_quality(facts))


def _coverage(facts: Facts, weights: Weights) -> Reward:
    """As `gated`, with the share of the parts that were covered in place of a yes or no, and the parts' own rounds."""
    quality = _decomposition_quality(facts) if facts.coverage is None else facts.coverage
    if facts.kind in ("sequential", "single") and facts.has_separator:
        quality = 0.0  # what a chain asks for second cannot be asked at once with the first, found or not
    return _shaped(facts, facts.part_rounds or facts.num_rounds_needed, quality)


def _shaped(facts: Facts, target: int, quality: float) -> Reward:
    def rounds(n: int) -> float:
        if n == 0:
            return 0.0
        surplus = n - target
        cost = 0.1 if facts.kind == "sequential" and surplus > 0 else 0.5
        return max(0.0, 1.0 - cost * abs(surplus))

    parts = (quality, facts.best(rounds), float(facts.is_well_formed))
    decomposition, search_count, form = (
        GATED_SHARE * share * part for share, part in zip(GATED_PARTS, parts, strict=True)
    )
    return Reward(float(facts.is_right), decomposition, search_count, form)


def _decomposition_quality(facts: Facts) -> float:
    """1 if every round that matters was split as the kind asks. Repeated or empty sub-queries earn nothing."""
    if not facts.num_rounds:
        return 0.0
    if facts.kind == "parallel":
        return float(facts.is_decomposed)
    if facts.kind == "mixed":
        needed = facts.num_rounds_needed
        return sum(facts.rounds_split[:needed]) / needed
    return float(not facts.has_separator)


SPEED_BONUS = 0.3
SPEED_BONUS_WITH_EVIDENCE = 0.1
EVIDENCE_BONUS = 0.3
USELESS_QUERY_COST = 0.02
MAX_USELESS_COST = 0.5


def _label_free(facts: Facts, weights: Weights) -> Reward:
    """Right answers in few rounds; where gold pages are known also for finding them, the later the less, right or wrong:
    outcome alone cannot tell a guess after one search from an answer, and to search once is the nearest way to few rounds."""
    speed_bonus = SPEED_BONUS if facts.new_gold is None else SPEED_BONUS_WITH_EVIDENCE

    def bonus(n: int) -> float:
        if n == 0:
            return 0.0
        return speed_bonus * max(0.0, 1.0 - (n - 1) / max(1, facts.max_turns - 1))

    evidence = sum(share * max(0.0, 1.0 - late / facts.max_turns) for late, share in enumerate(facts.new_gold or ()))
    outcome = float(facts.is_right)
    useless = min(MAX_USELESS_COST, USELESS_QUERY_COST * facts.num_useless)
    return Reward(outcome, EVIDENCE_BONUS * evidence - useless, outcome * facts.best(bonus), 0.0)


_NEEDS_KIND: dict[str, Callable[[Facts, Weights], Reward]] = {
    "paper": _paper,
    "reference": _reference,
    "gated": _gated,
    "coverage": _coverage,
}
_PRESETS: dict[str, Callable[[Facts, Weights], Reward]] = {**_NEEDS_KIND, "label-free": _label_free}
PRESETS: tuple[str, ...] = tuple(_PRESETS)
DEFAULT_PRESET = "gated"
"""In training, in `score` and here: it never pays more for a wrong answer than for a right one."""
WEIGHTED = ("paper", "reference")
"""Those that `Weights` change."""


def is_own(preset: str) -> bool:
    """Whether it names a function of the caller's own."""
    return ":" in preset


def check(preset: str, weights: Weights | None = None) -> None:
    """Refuse a preset that there is not, a function that cannot be called, and weights that neither would look at."""
    if is_own(preset):
        _own(preset)
    else:
        _preset(preset)
    given = [weight.name for weight in fields(Weights) if getattr(weights or Weights(), weight.name) != weight.default]
    if given and preset not in WEIGHTED:
        raise UsageError(
            f"{', '.join(given)}: the preset '{preset}' has no weights; those that have are {' and '.join(WEIGHTED)}: "
            f"name one (--reward {WEIGHTED[0]}, in a recipe reward.preset={WEIGHTED[0]})"
        )


def _preset(preset: str) -> Callable[[Facts, Weights], Reward]:
    function = _PRESETS.get(preset)
    if function is None:
        raise UsageError(
            f"there is no reward preset '{preset}'; choose one of {', '.join(PRESETS)}, or module:function for one of your "
            f"own.{nearest(preset, PRESETS)}"
        )
    return function


def reward(trajectory: Trajectory, preset: str = DEFAULT_PRESET, weights: Weights | None = None) -> Reward:
    """The reward of one trajectory, by a preset or by a function of the caller's own, `module:function`. A preset that needs
    the question's kind says so when there is none."""
    if weights is not None:
        check(preset, weights)
    if is_own(preset):
        return _by_own(trajectory, preset)
    function = _preset(preset)
    if preset in _NEEDS_KIND and trajectory.kind is None:
        raise UsageError(
            f"reward preset '{preset}' needs the question's kind (one of {', '.join(KINDS)}) and "
            f"{trajectory.id or trajectory.question!r} has none; add it, or use the preset 'label-free', which needs none"
        )
    return function(facts(trajectory), weights or Weights())


def describe(preset: str, weights: Weights | None = None) -> dict[str, Any]:
    """What a manifest needs to name this reward; of one of the caller's own also what its source was."""
    named = {"preset": preset, **asdict(weights or Weights())}
    return {**named, "sha256": source_sha256(preset, "reward")} if is_own(preset) else named


# ---- one of the caller's own -----------------------------------------------------------------------------------------

_GIVES = "a reward gives a number, or Reward(outcome, decomposition, search_count, format)"


def _own(preset: str) -> Callable[[Trajectory], object]:
    if preset.startswith("python:"):
        raise UsageError(f"a reward is written without 'python:', so write {preset.removeprefix('python:')}")
    function: Callable[[Trajectory], object] = load_named(preset, "reward")
    if not callable(function):
        raise UsageError(
            f"the reward '{preset}' is {function!r:.80}, and a function of a trajectory is wanted; {_GIVES}"
        )
    if inspect.iscoroutinefunction(function):
        raise UsageError(f"the reward '{preset}' is async; write it with def, without async")
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise UsageError(f"the reward '{preset}' cannot be called with a trajectory alone: {error}") from error
    except ValueError:  # of C, which does not tell
        pass
    return function


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number of 400 digits
        return False


def _by_own(trajectory: Trajectory, preset: str) -> Reward:
    function, whose = _own(preset), f"the trajectory {trajectory.id or trajectory.question!r}"
    try:
        value = function(trajectory)
    except (Exception, SystemExit) as error:
        raise RewardError(f"the reward '{preset}' broke on {whose}: {said(error)}") from error
    found = value if isinstance(value, Reward) else Reward(value, 0.0, 0.0, 0.0)  # type: ignore[arg-type]  # seen next
    for name in COMPONENTS:
        part = getattr(found, name)
        if not ((is_number(part) or isinstance(part, bool)) and _is_finite(part)):
            raise RewardError(
                f"the reward '{preset}' gave {value!r:.80} ({type(value).__name__}) for {whose}; {_GIVES}"
            )
    return Reward(*(float(getattr(found, name)) for name in COMPONENTS))
