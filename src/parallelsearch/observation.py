"""Hits become the text that goes back to the model, and the record of what was shown under which number.

Each sub-query has its heading, passages are numbered across the whole trajectory, and a passage found again is referred
to, not repeated. The token budget is shared fairly: no sub-query's results push another's out, and what one does not
need the others get. In a wide round a sub-query shows only its first hits, and the first of all comes first: it is whole
before the next gets a word. The closing tag is never lost. Everything that comes from outside is made harmless first.
`layout="paper"` is the reference implementation's form: no headings, numbering from 1 for each sub-query, repeats kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from parallelsearch import grammar
from parallelsearch.retrieval.base import Hit
from parallelsearch.trajectory import Shown

Layout = Literal["headed", "paper"]

_CUT = " ..."
_ABOVE = " (shown above)"
_MAX_HEADING_CHARS = 200
_MAX_TITLE_CHARS = 1_000
_MAX_CHARS_PER_TOKEN = 16
"""No more of a passage is looked at than so many characters for each token of the budget: the rest could not be shown."""


class QueryResult(Protocol):
    """A query with its hits, or the reason there are none (a string or an exception)."""

    @property
    def text(self) -> str: ...
    @property
    def hits(self) -> list[Hit]: ...
    @property
    def error(self) -> object: ...


@dataclass(frozen=True, slots=True)
class Observation:
    """The results of one round as text, and which passages of which sub-query it shows."""

    text: str
    shown: list[Shown] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Item:
    """One passage to be written: the body may be cut, the head may not. One that is only referred to is not shown."""

    head: str
    body: str
    shown: Shown | None


class ObservationWriter:
    """Writes the observations of one trajectory; remembers under which numbers passages were shown."""

    special_tokens: frozenset[str] = frozenset()
    """Those of the tokenizer in use: made harmless in what is shown, beside the known ones."""

    def __init__(self, count_tokens: Callable[[str], int], layout: Layout = "headed") -> None:
        self.layout = layout
        self._count = count_tokens
        self._max_chars = 0
        self._numbers: dict[str, int] = {}

    def write(self, results: Sequence[QueryResult], max_tokens: int, num_shown: int | None = None) -> Observation:
        """The block for one round, tags included, in at most about `max_tokens` tokens. `num_shown` is for a wide round: so
        many hits of each sub-query are shown, the first before the next; one that was shown before takes no place. Left
        out, all are shown, and share fairly."""
        room = max(0, max_tokens - self._count(self._frame("")))
        self._max_chars = max(_MAX_TITLE_CHARS, max_tokens * _MAX_CHARS_PER_TOKEN)
        is_paper = self.layout == "paper"
        headings = ["" if is_paper else self._heading(result) for result in results]
        groups = [
            self._paper_items(number, result) if is_paper else self._items(number, result, num_shown)
            for number, result in enumerate(results)
        ]
        room = max(0, room - sum(self._count(heading) for heading in headings if heading))
        bodies, shown = self._share(groups, room, fair_shares if num_shown is None else shares_in_order)
        if is_paper:
            return Observation(self._frame("".join(bodies).strip()), shown)
        blocks = (heading + body for heading, body in zip(headings, bodies, strict=True))
        return Observation(self._frame("\n".join(blocks)), shown)

    def _frame(self, content: str) -> str:
        if self.layout == "paper":
            return f"\n\n{grammar.opening(grammar.INFORMATION)}{content}{grammar.closing(grammar.INFORMATION)}\n\n"
        return f"\n{grammar.opening(grammar.INFORMATION)}\n{content}\n{grammar.closing(grammar.INFORMATION)}\n"

    # ---- the headed layout -------------------------------------------------------------------------------------------

    def _heading(self, result: QueryResult) -> str:
        query = self._line(result.text, _MAX_TITLE_CHARS)
        heading = f"Results for: {query if len(query) <= _MAX_HEADING_CHARS else query[:_MAX_HEADING_CHARS] + _CUT}\n"
        if result.error is not None:
            return heading + "The search failed; nothing was found.\n"
        return heading if result.hits else heading + "Nothing was found.\n"

    def _items(self, query: int, result: QueryResult, num_shown: int | None) -> list[_Item]:
        items: list[_Item] = []
        num_left = len(result.hits) if num_shown is None else num_shown
        for hit in result.hits:
            if num_left == 0:
                break
            number = self._numbers.get(hit.id)
            title = self._line(hit.title, _MAX_TITLE_CHARS)
            if number is not None:
                items.append(_Item(f"[{number}] {title}{_ABOVE}\n", "", None))
                continue
            num_left -= 1
            self._numbers[hit.id] = number = len(self._numbers) + 1
            body, shown = self._body(hit, number, query)
            head = f"[{number}] {title}: " if title else f"[{number}] "
            items.append(_Item(head, body, shown))
        return items

    def _paper_items(self, query: int, result: QueryResult) -> list[_Item]:
        return [
            _Item(f'Doc {rank}(Title: "{self._line(hit.title, _MAX_TITLE_CHARS)}") ', *self._body(hit, rank, query))
            for rank, hit in enumerate(result.hits, start=1)
        ]

    # ---- text from outside -------------------------------------------------------------------------------------------

    def _line(self, text: str, max_chars: int) -> str:
        """Cut first, then cleaned: what nobody will see costs nothing."""
        return one_line(text[:max_chars], self.special_tokens)

    def _body(self, hit: Hit, number: int, query: int) -> tuple[str, Shown]:
        """The passage as far as it can be shown at all."""
        body = self._line(hit.text, self._max_chars)
        is_cut = len(hit.text) > self._max_chars
        return body + _CUT if is_cut else body, Shown(number, hit.id, query, len(body), is_cut)

    # ---- sharing the budget ------------------------------------------------------------------------------------------

    def _share(
        self, groups: list[list[_Item]], room: int, share_out: Callable[[Sequence[int], int], list[int]]
    ) -> tuple[list[str], list[Shown]]:
        """The text of each group, cut so that together they fit: fair between groups, then `share_out` between passages."""
        needs = [[self._count(item.head + item.body) + 1 for item in group] for group in groups]
        budgets = fair_shares([sum(need) for need in needs], room)
        texts: list[str] = []
        shown: list[Shown] = []
        for group, need_of, budget in zip(groups, needs, budgets, strict=True):
            fitted = [
                self._fit(item, share, need)
                for item, share, need in zip(group, share_out(need_of, budget), need_of, strict=True)
            ]
            texts.append("".join(text for text, _ in fitted))
            shown += [one for _, one in fitted if one is not None]
        return texts, shown

    def _fit(self, item: _Item, share: int, need: int) -> tuple[str, Shown | None]:
        """The item in at most `share` tokens, and what of it is shown."""
        head, body, shown = item.head, item.body, item.shown
        if not body:
            return head, shown
        if need <= share:
            return f"{head}{body}\n", shown
        room = share - self._count(head + _CUT) - 1
        words = body.split(" ")
        keep = max(0, min(len(words), len(words) * room // max(1, need)))
        while keep > 0 and self._count(" ".join(words[:keep])) > room:
            keep = keep * 9 // 10
        kept = " ".join(words[:keep])
        if shown is not None:
            shown.num_chars, shown.is_cut = len(kept), True
        return (f"{head}{kept}{_CUT}\n" if keep else f"{head.rstrip()}{_CUT}\n"), shown


def fair_shares(needs: Sequence[int], room: int) -> list[int]:
    """Divide `room` so that nobody gets more than they need, and who needs more gets as much as any other such."""
    shares = [0] * len(needs)
    for done, index in enumerate(sorted(range(len(needs)), key=needs.__getitem__)):
        shares[index] = min(needs[index], max(0, room) // (len(needs) - done))
        room -= shares[index]
    return shares


def shares_in_order(needs: Sequence[int], room: int) -> list[int]:
    """Divide `room` so that each gets what it needs before the next gets anything."""
    shares: list[int] = []
    for need in needs:
        shares.append(min(need, max(0, room)))
        room -= shares[-1]
    return shares


def one_line(text: str, special: frozenset[str] = frozenset()) -> str:
    """A text from outside as it stands in an observation: on one line, and harmless."""
    return grammar.defuse(" ".join(text.split()), special)
