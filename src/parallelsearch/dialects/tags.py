"""The package's own dialects: thoughts, searches and answers in tags, several sub-queries in one search or one at a time."""

from __future__ import annotations

from collections.abc import Callable

from parallelsearch import grammar
from parallelsearch.dialect import Dialect, OnQuery, PartsReader, TurnReader
from parallelsearch.dialects.free_text import read_answer
from parallelsearch.grammar import ParsedTurn, StreamParser, TurnParts
from parallelsearch.observation import Layout, ObservationWriter
from parallelsearch.trajectory import Segment

MAX_UNTAGGED_WORDS = 16
"""A longer line is no answer but a piece of reasoning."""


class Parallel(Dialect):
    """The prompt says that independent parts go into one search."""

    name = "parallel"
    summary = "the package's prompt, sub-queries allowed"
    stop: tuple[str, ...] = grammar.STOP_STRINGS
    layout: Layout = "headed"

    def own_prompt(self, question: str, context: str = "") -> str:
        return grammar.prompt_text(question, "parallel", context)

    def read(self, segment: Segment, max_subqueries: int, is_last: bool = False) -> ParsedTurn:
        return grammar.parse_turn(segment.text, max_subqueries)

    def reader(self, on_query: OnQuery, max_subqueries: int) -> TurnReader | None:
        return StreamParser(on_query, max_subqueries)

    def parts(self) -> PartsReader:
        return TurnParts()

    def untagged_answer(self, text: str) -> str | None:
        """An answer block that was never closed, "the answer is ...", or else a last line short enough to be an answer."""
        said = grammar.partial_answer(text)
        if said is None:
            outside = grammar.outside_tags(text)
            said = read_answer(outside, may_be_bare=True) if outside else read_answer(text)
        return said if said is not None and len(said.split()) <= MAX_UNTAGGED_WORDS else None

    def writer(self, count_tokens: Callable[[str], int]) -> ObservationWriter:
        return ObservationWriter(count_tokens, self.layout)

    def notice_last_turn(self) -> str | None:
        return None if self.layout == "paper" else super().notice_last_turn()


class Sequential(Parallel):
    """The prompt does not speak of sub-queries."""

    name = "sequential"
    summary = "the package's prompt without the sentence about sub-queries"
    may_split = False

    def own_prompt(self, question: str, context: str = "") -> str:
        return grammar.prompt_text(question, "sequential", context)


class Translated(Parallel):
    """A format that is put into the package's tags before it is read. The record keeps the model's own text; nothing can be
    dispatched while it is still being written."""

    def read(self, segment: Segment, max_subqueries: int, is_last: bool = False) -> ParsedTurn:
        return grammar.parse_turn(self.translate(segment.text, is_last), max_subqueries)

    def reader(self, on_query: OnQuery, max_subqueries: int) -> TurnReader | None:
        return None

    def translate(self, text: str, is_last: bool) -> str:
        """The turn in the package's grammar."""
        return text
