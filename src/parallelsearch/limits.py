"""Where a rollout ends, each limit with its one default, how wide rounds share their room, and what a question costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from parallelsearch import grammar
from parallelsearch.errors import UsageError, check_whole, is_number

MIN_TURN_TOKENS = 32
"""A turn with less room than this is not started."""
WRITTEN_TOKENS = 1_500
"""What a turn may have where a text with its sources is wanted, and `max_tokens_per_turn` is left at its default."""
NARROW = 3
"""A round of at most so many sub-queries has `max_observation_tokens` and shows all hits; a wider one has
`tokens_per_subquery` for each and shows `WIDE_SHARE` of the hits."""
WIDE_SHARE = 2 / 3
"""Two of three. One of three would lose a tenth of the gold pages for nothing: docs/grammar.md has what was measured."""


LOOP_LENGTH, LOOP_TIMES, LONGEST_LOOP = 64, 3, 160
"""The end of a turn is a loop if it is one piece of at most `LONGEST_LOOP` tokens, `LOOP_TIMES` or more often, and
`LOOP_LENGTH` or more in all."""


def goes_in_circles(turn: Sequence[int] | str, longest: int = LONGEST_LOOP) -> bool:
    """Whether a turn, by its tokens or letters, ends in the same piece again and again. A small model gets caught like that
    ("Ra, Ra, Ra, ..."), and then nothing new comes: an engine ends it there, where it would end at its limit."""
    if len(turn) < LOOP_LENGTH:
        return False
    # Engines ask this of hundreds of turns at once: where the last token stood before is looked up, not tried.
    back = turn[: -max(LOOP_LENGTH, LOOP_TIMES * longest) - 1 : -1]
    size, most = 0, min(longest, len(back) // LOOP_TIMES)
    while (size := _next(back, size + 1, most)) > 0:
        span = max(LOOP_LENGTH, LOOP_TIMES * size)
        if back[size : size + 8] == back[:8] and back[size:span] == back[: span - size]:
            return True
    return False


def _next(back: Sequence[object], start: int, last: int) -> int:
    """Where from `start` to `last` the first one stands again; 0 if nowhere."""
    try:
        return back.index(back[0], start, last + 1)
    except ValueError:
        return 0


@dataclass(frozen=True, slots=True)
class Prices:
    """What a run costs, in any one currency: a million tokens read, a million written, a thousand queries sent."""

    input_per_million: float = 0.0
    output_per_million: float = 0.0
    search_per_thousand: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not (is_number(value) and value >= 0):
                raise UsageError(f"the price {name} must be a number, 0 or more, not {value!r}")

    def cost(self, num_read: int, num_written: int, num_queries: int) -> float:
        tokens = num_read * self.input_per_million + num_written * self.output_per_million
        return tokens / 1e6 + num_queries * self.search_per_thousand / 1e3


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a rollout ends. Tokens count prompt, turns and results together; None means no limit.

    The results of a round have `max_observation_tokens`, and those of a wide one `tokens_per_subquery` for each that it asks,
    where that is more; 0 gives every round the same room and shows all hits, however many sub-queries share it.
    `max_billed_tokens` counts as a server's bill does: every call reads all that was said before it. `max_cost` is the same
    in money, by `prices`. What would pass them is not called, nor searched for; the last call that fits must answer.
    For a reader (`answer_with`) what its call will cost is kept.
    """

    max_turns: int = 4
    max_tokens_per_turn: int = 500
    max_observation_tokens: int = 1000
    tokens_per_subquery: int = 200
    max_tokens: int = 6000
    max_subqueries: int = grammar.MAX_SUBQUERIES
    timeout_s: float | None = 600.0
    max_billed_tokens: int | None = None
    max_cost: float | None = None
    prices: Prices | None = None

    def __post_init__(self) -> None:
        if self.max_cost is not None and self.prices is None:
            raise UsageError("max_cost needs prices: what a million tokens read and a million written cost")
        for name in ("timeout_s", "max_cost"):
            limit = getattr(self, name)
            if limit is not None and not (is_number(limit) and limit > 0):  # not: NaN is neither
                raise UsageError(f"{name} must be a number above 0, not {limit!r}")
        for name in ("max_turns", "max_observation_tokens", "max_tokens", "max_subqueries"):
            check_whole(f"{name} must be", getattr(self, name))
        check_whole("tokens_per_subquery must be", self.tokens_per_subquery, 0)
        check_whole("max_tokens_per_turn must be", self.max_tokens_per_turn, MIN_TURN_TOKENS)
        if self.max_billed_tokens is not None:
            check_whole("max_billed_tokens must be", self.max_billed_tokens)

    def for_text(self) -> Limits:
        """The same where a text is written for an answer: it has more room, unless somebody set a turn's limit."""
        is_default = self.max_tokens_per_turn == Limits.__dataclass_fields__["max_tokens_per_turn"].default
        return replace(self, max_tokens_per_turn=WRITTEN_TOKENS) if is_default else self

    def observation_tokens(self, num_subqueries: int) -> int:
        """The most that the results of a round may have. The room that is left in the context may be less."""
        if num_subqueries <= NARROW:
            return self.max_observation_tokens
        return max(self.max_observation_tokens, num_subqueries * self.tokens_per_subquery)

    def num_shown(self, num_subqueries: int, k: int) -> int | None:
        """How many of the `k` hits of a sub-query a wide round shows; None for a round that shows all."""
        if num_subqueries <= NARROW or not self.tokens_per_subquery:
            return None
        return max(1, round(k * WIDE_SHARE))
