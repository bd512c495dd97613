"""The bill of one question: what its calls read and wrote, as a model's server counts them, and what may still be asked for.

Every call reads all that was said before it, so tokens are counted twice over: those of the conversation once, and those of
the bill with each call. A call that is no turn (one that condenses results, one that brought nothing and is made again) is
billed with the turn after it. What would pass a limit of tokens or money is not called, nor searched for: `ahead` says what
so many more calls may come to, each as long as a turn may be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from parallelsearch.limits import Limits
from parallelsearch.policy.base import Generation, Policy
from parallelsearch.trajectory import Segment, Trajectory, Turn


class Bill:
    """What one rollout has spent. `round_tokens` is what the results of a round may have."""

    def __init__(self, policy: Policy, limits: Limits, trajectory: Trajectory, round_tokens: int) -> None:
        self.policy, self.limits, self.trajectory, self.round_tokens = policy, limits, trajectory, round_tokens
        self.num_said = 0  # tokens of the conversation
        self.num_read = self.num_written = 0  # over all calls
        self.beside: Counter[str] = Counter()  # calls that are no turn, until one is billed that they go with
        self.reading: Callable[[], tuple[int, int] | None] | None = None
        """What the call of a reader that comes on top would read and may write."""
        self._num_written_beside = 0
        self._num_unseen = 0  # what the last turn read beyond the text, by the server's count: tools, a template
        self._last: Counter[str] = Counter()  # of the last turn

    # ---- what was called ---------------------------------------------------------------------------------------------

    def add_turn(self, generation: Generation, record: Turn) -> int:
        """A turn, and what was called beside it. Returns how many tokens it adds to the conversation."""
        self._last = self._count(generation, self.num_said)
        self._num_unseen = max(0, self._last["prompt_tokens"] - self.num_said)
        record.usage = generation.usage
        if self.beside:
            self._last.update(self.beside)
            record.usage = dict(self._last)
        num_tokens = self._written(generation)
        record.num_tokens = num_tokens + self._num_written_beside
        self._num_written_beside = 0
        self.beside.clear()
        return num_tokens - generation.num_thought

    def add_cut_turn(self, text: str, record: Turn) -> None:
        """One that the deadline cut off: a server bills what it read and wrote until then."""
        self.beside.update(self._count(Generation(text, "length"), self.num_said))
        record.usage = dict(self.beside)
        self.beside.clear()

    def add_beside(self, generation: Generation | None, num_read: int) -> None:
        """A call that is no turn; None where it was cut off."""
        if generation is not None:
            self._num_written_beside += generation.num_tokens or self.policy.count_tokens(generation.text)
        self.beside.update(self._count(generation or Generation("", "length"), num_read))

    def may_repeat(self, policy: Policy, segments: Sequence[Segment], generation: Generation) -> bool:
        """A call brought nothing, and the policy would make it once more. It may if that passes no limit; then the first is
        billed beside the turn, whatever becomes of the second."""
        num_read = sum(policy.count_tokens(segment.text) for segment in segments)
        before = self.num_read, self.num_written
        spent = self._count(generation, num_read)
        if policy is self.policy:
            is_payable = self.passed(*self.ahead(1)) is None
        else:
            is_payable = self.has_room(num_read, self.longest_turn(policy))
        if is_payable:
            self.beside.update(spent)
        else:
            self.num_read, self.num_written = before  # it is the turn, then
        return is_payable

    def close(self) -> None:
        """What was called after the last turn is billed with it."""
        if not self.beside:
            return
        last = self.trajectory.turns[-1]
        if last.num_tokens:
            last.num_tokens += self._num_written_beside
            self.beside.update(self._last)
        last.usage = dict(self.beside)

    def _count(self, generation: Generation, num_read: int) -> Counter[str]:
        """What a call costs: what the server counted, and where it did not, what is counted here."""
        counts = {"prompt_tokens": num_read, "completion_tokens": self._written(generation)}
        found = Counter(counts | (generation.usage or {}))
        self.num_read += found["prompt_tokens"]
        self.num_written += found["completion_tokens"]
        return found

    def _written(self, generation: Generation) -> int:
        found = generation.num_tokens
        return self.policy.count_tokens(generation.text) if found is None else found

    # ---- what may be called ------------------------------------------------------------------------------------------

    def longest_turn(self, policy: Policy | None = None) -> int:
        """How many tokens a turn may write, thoughts among them: what a limit of money has to expect of it."""
        return self.limits.max_tokens_per_turn + (policy or self.policy).thinking_room

    def ahead(self, num_calls: int) -> tuple[int, int]:
        """Tokens read and written over all calls after so many more. A reader's call comes on top, unless it would be too
        much by itself: then the policy's own answer is all there is."""
        said, read, written = self.num_said + self._num_unseen, self.num_read, self.num_written
        for _ in range(num_calls):
            read, written = read + said, written + self.longest_turn()
            said += self.limits.max_tokens_per_turn + self.round_tokens
        reading = None if self.reading is None else self.reading()
        if reading is not None and self.has_room(*reading):
            read += reading[0] + (num_calls - 1) * self.round_tokens
            written += reading[1]
        return read, written

    def passed(self, read: int, written: int) -> tuple[str, str] | None:
        """The limit that so many tokens, over all calls of a question, would pass, and what they come to in its measure."""
        limits = self.limits
        if limits.max_billed_tokens is not None and read + written > limits.max_billed_tokens:
            return f"max_billed_tokens={limits.max_billed_tokens}", f"{read + written} tokens"
        if limits.max_cost is None or limits.prices is None:
            return None
        cost = limits.prices.cost(read, written, self.trajectory.num_uncached)
        return (f"max_cost={limits.max_cost:g}", f"{cost:.3g}") if cost > limits.max_cost else None

    def has_room(self, read: int, written: int) -> bool:
        """Whether so much can be read and written on top of what was."""
        return self.passed(self.num_read + read, self.num_written + written) is None

    def has_room_beside(self, num_read: int) -> bool:
        """Whether a call that is no turn may be made: the turn after it reads what it writes."""
        read, written = self.ahead(1)
        longest = self.longest_turn()
        return self.passed(read + num_read + longest, written + longest) is None

    def would_pass(self, what: str, num_calls: int = 1) -> bool:
        """Whether so many more calls would pass what may be billed; the record then says what they would come to. The last of
        them answers."""
        if self.limits.max_billed_tokens is None and self.limits.max_cost is None:
            return False
        passed = self.passed(*self.ahead(num_calls))
        if passed is not None:
            self._say_no_room(what, *passed)
        return passed is not None

    @property
    def pays_searches(self) -> bool:
        """A limit holds for searches: none is sent that may be withdrawn, for it would be paid and stand in no record."""
        limits = self.limits
        return limits.max_cost is not None and limits.prices is not None and limits.prices.search_per_thousand > 0

    def num_payable(self) -> int:
        """How many sub-queries the next turn may ask, so that they and the call that answers after them can be paid. One that
        a cache will answer counts like any other: nobody knows it before."""
        limits, prices = self.limits, self.limits.prices
        if prices is None or limits.max_cost is None or not self.pays_searches:
            return limits.max_subqueries
        calls, num_before = self.ahead(2), self.trajectory.num_uncached
        for number in range(limits.max_subqueries, 0, -1):
            cost = prices.cost(*calls, num_before + number)
            if cost <= limits.max_cost:
                return number
        self._say_no_room("a search", f"max_cost={limits.max_cost:g}", f"{cost:.3g}")
        return 0

    def _say_no_room(self, what: str, limit: str, total: str) -> None:
        self.trajectory.no_room = f"{limit} left no room to go on: {what} could bring it to {total}"
