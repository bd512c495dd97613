"""Hits become the text that goes back to the model.

Each sub-query has its heading, passages are numbered across the whole trajectory, and a passage found again is referred
to, not repeated. The token budget is shared fairly: no sub-query's results push another's out, and what one does not
need the others get. The closing tag is never lost. Everything that comes from outside is made harmless first.
`layout="paper"` is the reference implementation's form: no headings, numbering from 1 for each sub-query, repeats kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from parallelsearch import grammar
from parallelsearch.retrieval.base import Hit

Layout = Literal["headed", "paper"]
LAYOUTS: tuple[Layout, ...] = ("headed", "paper")

_CUT = " ..."
_ABOVE = " (shown above)"
_SHOWN = re.compile(rf"^(?:\[\d+\] |(?:{grammar.opening(grammar.INFORMATION)})?Doc \d+\(Title: )")
_MAX_HEADING_CHARS = 200


class QueryResult(Protocol):
    """A query with its hits, or the reason there are none (a string or an exception)."""

    @property
    def text(self) -> str: ...
    @property
    def hits(self) -> list[Hit]: ...
    @property
    def error(self) -> object: ...


class ObservationWriter:
    """Writes the observations of one trajectory; remembers which passages were shown under which number."""

    def __init__(self, count_tokens: Callable[[str], int], layout: Layout = "headed") -> None:
        self.layout = layout
        self._count = count_tokens
        self._numbers: dict[str, int] = {}
        self.passages: list[Hit] = []
        """The passages shown so far; number n is `passages[n - 1]`."""

    def write(self, results: Sequence[QueryResult], max_tokens: int) -> str:
        """The block for one round, tags included, in at most about `max_tokens` tokens."""
        frame = self._frame("")
        room = max(0, max_tokens - self._count(frame))
        if self.layout == "paper":
            return self._frame("".join(self._share([self._paper_items(result) for result in results], room)).strip())
        headings = [self._heading(result) for result in results]
        items = [self._items(result) for result in results]
        room = max(0, room - sum(self._count(heading) for heading in headings))
        bodies = self._share(items, room)
        return self._frame("\n".join(heading + body for heading, body in zip(headings, bodies, strict=True)))

    def _frame(self, content: str) -> str:
        if self.layout == "paper":
            return f"\n\n{grammar.opening(grammar.INFORMATION)}{content}{grammar.closing(grammar.INFORMATION)}\n\n"
        return f"\n{grammar.opening(grammar.INFORMATION)}\n{content}\n{grammar.closing(grammar.INFORMATION)}\n"

    # ---- the headed layout -------------------------------------------------------------------------------------------

    def _heading(self, result: QueryResult) -> str:
        query = _one_line(result.text)
        heading = f"Results for: {query if len(query) <= _MAX_HEADING_CHARS else query[:_MAX_HEADING_CHARS] + _CUT}\n"
        if result.error is not None:
            return heading + "The search failed; nothing was found.\n"
        return heading if result.hits else heading + "Nothing was found.\n"

    def _items(self, result: QueryResult) -> list[tuple[str, str]]:
        """`(head, body)` of each passage; the body may be cut, the head may not."""
        items: list[tuple[str, str]] = []
        for hit in result.hits:
            number = self._numbers.get(hit.id)
            title = _one_line(hit.title)
            if number is not None:
                items.append((f"[{number}] {title}{_ABOVE}\n", ""))
                continue
            self.passages.append(hit)
            self._numbers[hit.id] = number = len(self.passages)
            items.append((f"[{number}] {title}: " if title else f"[{number}] ", _one_line(hit.text)))
        return items

    def _paper_items(self, result: QueryResult) -> list[tuple[str, str]]:
        items: list[tuple[str, str]] = []
        for rank, hit in enumerate(result.hits, start=1):
            if hit.id not in self._numbers:
                self.passages.append(hit)
                self._numbers[hit.id] = len(self.passages)
            items.append((f'Doc {rank}(Title: "{_one_line(hit.title)}") ', _one_line(hit.text)))
        return items

    # ---- sharing the budget ------------------------------------------------------------------------------------------

    def _share(self, groups: list[list[tuple[str, str]]], room: int) -> list[str]:
        """The text of each group, cut so that together they fit: fair between groups, then fair between passages."""
        needs = [[self._count(head + body) + 1 for head, body in group] for group in groups]
        budgets = fair_shares([sum(need) for need in needs], room)
        return [
            "".join(
                self._fit(head, body, share, need)
                for (head, body), share, need in zip(group, fair_shares(need_of, budget), need_of, strict=True)
            )
            for group, need_of, budget in zip(groups, needs, budgets, strict=True)
        ]

    def _fit(self, head: str, body: str, share: int, need: int) -> str:
        if not body:
            return head
        if need <= share:
            return f"{head}{body}\n"
        room = share - self._count(head + _CUT) - 1
        words = body.split(" ")
        keep = max(0, min(len(words), len(words) * room // max(1, need)))
        while keep > 0 and self._count(" ".join(words[:keep])) > room:
            keep = keep * 9 // 10
        return f"{head}{' '.join(words[:keep])}{_CUT}\n" if keep else f"{head.rstrip()}{_CUT}\n"


def count_cut(text: str) -> tuple[int, int]:
    """How many passages an observation shows, whichever layout wrote it, and how many of them it cuts."""
    lines = [line for line in text.split("\n") if _SHOWN.search(line) and not line.endswith(_ABOVE)]
    return len(lines), sum(line.removesuffix(grammar.closing(grammar.INFORMATION)).endswith(_CUT) for line in lines)


def fair_shares(needs: Sequence[int], room: int) -> list[int]:
    """Divide `room` so that nobody gets more than they need, and who needs more gets as much as any other such."""
    shares = [0] * len(needs)
    for done, index in enumerate(sorted(range(len(needs)), key=needs.__getitem__)):
        shares[index] = min(needs[index], max(0, room) // (len(needs) - done))
        room -= shares[index]
    return shares


def _one_line(text: str) -> str:
    return grammar.defuse(" ".join(text.split()))
