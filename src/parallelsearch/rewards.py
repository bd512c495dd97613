"""Rewards: pure functions of a trajectory, each component apart.

A preset is one way to add up outcome, decomposition, search count and format. `paper` is equations 4 to 6 of arXiv
2508.09303, `reference` the values of the released code, `gated` and `label-free` are ours: in both no wrong answer ever
outscores a right one of the same question. `docs/rewards.md` has the tables and the reasons.

What counts: n is the number of rounds that were executed, a question is decomposed if its first executed round asked at
least two distinct sub-queries, and a failure of the search engine never costs the policy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from parallelsearch import grammar
from parallelsearch.answers import exact_match
from parallelsearch.errors import UsageError, nearest
from parallelsearch.grammar import ParsedTurn
from parallelsearch.trajectory import Trajectory

MAX_TURNS = 4
"""Assumed for a record that does not say what its limit was."""


@dataclass(frozen=True, slots=True)
class Reward:
    """The components, whose sum is the total."""

    outcome: float
    decomposition: float
    search_count: float
    format: float

    @property
    def total(self) -> float:
        return self.outcome + self.decomposition + self.search_count + self.format

    def to_dict(self) -> dict[str, float]:
        return {**{name: round(value, 10) for name, value in asdict(self).items()}, "total": round(self.total, 10)}


@dataclass(frozen=True, slots=True)
class Weights:
    """Lambda and alpha of the paper's equations; the paper gives no alpha and no lambda_f, the released code does."""

    decomposition: float = 0.15
    alpha: float = 3.0
    search_count: float = 0.35
    format: float = 0.1

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value >= 0:
                raise UsageError(f"reward weight '{name}' must be 0 or more, not {value}")


@dataclass(frozen=True, slots=True)
class Facts:
    """What the presets look at, read off a trajectory once."""

    kind: str | None
    is_right: bool
    is_right_reference: bool
    rounds: tuple[ParsedTurn, ...]
    """The executed searches as the model wrote them."""
    num_rounds: int
    num_rounds_answered: int
    """Rounds in which the search engine answered at least one sub-query."""
    num_useless: int
    """Sub-queries that were answered and brought no passage that was not there before."""
    is_well_formed: bool
    max_turns: int

    @property
    def is_decomposed(self) -> bool:
        return bool(self.rounds) and len(self.rounds[0].queries) >= 2

    def best(self, term: Callable[[int], float]) -> float:
        """`term` of the number of rounds, where rounds lost to a failing search engine count only if that helps."""
        return max(term(n) for n in range(self.num_rounds_answered, self.num_rounds + 1))


def facts(trajectory: Trajectory) -> Facts:
    turns: list[tuple[ParsedTurn, bool]] = []
    segments = trajectory.segments
    for number, segment in enumerate(segments):
        if segment.author == "model":
            is_executed = number + 1 < len(segments) and segments[number + 1].author == "search"
            turns.append((grammar.parse_turn(segment.text), is_executed))
    rounds = tuple(turn for turn, is_executed in turns if is_executed and turn.action == "search")
    recorded = trajectory.rounds
    num_failed = sum(all(query.error is not None for query in turn.queries) for turn in recorded)
    limits = trajectory.limits or {}
    return Facts(
        kind=trajectory.kind,
        is_right=exact_match(trajectory.answer, trajectory.golden_answers),
        is_right_reference=exact_match(trajectory.answer, trajectory.golden_answers, unicode=False),
        rounds=rounds,
        num_rounds=len(rounds),
        num_rounds_answered=max(0, len(rounds) - num_failed),
        num_useless=_num_useless(trajectory),
        is_well_formed=_is_well_formed(turns),
        max_turns=int(limits.get("max_turns", MAX_TURNS)),
    )


def _is_well_formed(turns: list[tuple[ParsedTurn, bool]]) -> bool:
    """A thought and an executed search, as often as needed, then a thought and an answer; nothing else."""
    *searches, last = turns or [(grammar.parse_turn(""), False)]
    return (
        last[0].action == "answer"
        and all(turn.is_valid for turn, _ in turns)
        and all(turn.action == "search" and is_executed for turn, is_executed in searches)
    )


def _num_useless(trajectory: Trajectory) -> int:
    queries = [query for turn in trajectory.rounds for query in turn.queries]
    if not any(query.hits for query in queries):
        return 0  # a record without hits does not say what was found
    seen: set[str] = set()
    num_useless = 0
    for query in queries:
        ids = {hit.id for hit in query.hits}
        num_useless += query.error is None and ids <= seen
        seen |= ids
    return num_useless


# ---- the presets -----------------------------------------------------------------------------------------------------


def _paper(facts: Facts, weights: Weights) -> Reward:
    return _equations(facts, weights, facts.is_right, facts.is_decomposed, offset=0.0)


def _reference(facts: Facts, weights: Weights) -> Reward:
    has_separator = bool(facts.rounds) and facts.rounds[0].separated
    return _equations(facts, weights, facts.is_right_reference, has_separator, offset=weights.search_count)


def _equations(facts: Facts, weights: Weights, is_right: bool, is_decomposed: bool, offset: float) -> Reward:
    is_parallel = facts.kind == "parallel"
    decomposition = 0.0
    if is_parallel == is_decomposed:
        decomposition = weights.decomposition * (weights.alpha if is_parallel else 1.0)
    has_one_round = facts.kind in ("parallel", "single")

    def search_count(n: int) -> float:
        return -weights.search_count * (abs(n - 1) if has_one_round else abs(min(n, 2) - 2))

    form = 0.0
    if is_right != facts.is_well_formed:
        form = -weights.format if is_right else weights.format
    return Reward(float(is_right), decomposition, facts.best(search_count) + offset, form)


GATED_SHARE = 0.4
GATED_PARTS = (0.5, 0.3, 0.2)
"""Decomposition, rounds, format: their shares of the 0.4 that shaping may add."""


def _gated(facts: Facts, weights: Weights) -> Reward:
    target = 1 if facts.kind in ("parallel", "single") else 2

    def rounds(n: int) -> float:
        if n == 0:
            return 0.0
        surplus = n - target
        cost = 0.1 if facts.kind == "sequential" and surplus > 0 else 0.5
        return max(0.0, 1.0 - cost * abs(surplus))

    parts = (_decomposition_quality(facts), facts.best(rounds), float(facts.is_well_formed))
    decomposition, search_count, form = (
        GATED_SHARE * share * part for share, part in zip(GATED_PARTS, parts, strict=True)
    )
    return Reward(float(facts.is_right), decomposition, search_count, form)


def _decomposition_quality(facts: Facts) -> float:
    """1 if every round that matters was split as the kind asks. Repeated or empty sub-queries earn nothing."""
    if not facts.rounds:
        return 0.0
    if facts.kind == "parallel":
        return float(facts.is_decomposed)
    if facts.kind == "mixed":
        return sum(len(turn.queries) >= 2 for turn in facts.rounds[:2]) / 2
    return float(not facts.rounds[0].separated)


SPEED_BONUS = 0.3
USELESS_QUERY_COST = 0.02
MAX_USELESS_COST = 0.5


def _label_free(facts: Facts, weights: Weights) -> Reward:
    def bonus(n: int) -> float:
        if n == 0:
            return 0.0
        return SPEED_BONUS * max(0.0, 1.0 - (n - 1) / max(1, facts.max_turns - 1))

    outcome = float(facts.is_right)
    useless = min(MAX_USELESS_COST, USELESS_QUERY_COST * facts.num_useless)
    return Reward(outcome, -useless, outcome * facts.best(bonus), 0.0)


_NEEDS_KIND: dict[str, Callable[[Facts, Weights], Reward]] = {
    "paper": _paper,
    "reference": _reference,
    "gated": _gated,
}
_PRESETS: dict[str, Callable[[Facts, Weights], Reward]] = {**_NEEDS_KIND, "label-free": _label_free}
PRESETS: tuple[str, ...] = tuple(_PRESETS)


def reward(trajectory: Trajectory, preset: str = "paper", weights: Weights | None = None) -> Reward:
    """The reward of one trajectory. A preset that needs the question's kind says so when there is none."""
    function = _PRESETS.get(preset)
    if function is None:
        raise UsageError(
            f"there is no reward preset '{preset}'; choose one of {', '.join(PRESETS)}.{nearest(preset, PRESETS)}"
        )
    if preset in _NEEDS_KIND and trajectory.kind is None:
        raise UsageError(
            f"reward preset '{preset}' needs the question's kind (parallel, sequential, single or mixed) and "
            f"{trajectory.id or trajectory.question!r} has none; add it, or use the preset 'label-free', which needs none"
        )
    return function(facts(trajectory), weights or Weights())


def describe(preset: str, weights: Weights | None = None) -> dict[str, Any]:
    """What a manifest needs to name this reward."""
    return {"preset": preset, **asdict(weights or Weights())}
