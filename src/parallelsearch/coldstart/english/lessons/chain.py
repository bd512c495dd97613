"""The lessons of a single fact and of a chain of two links, and how they are planned.

A single fact is one query, the question itself. A chain's first query is the question too (nothing finds a first link
more often); its second names the *bridge*: what the first search brought to light. Both end with the clause that
holds the answer. What the pages do not show, or show beside the first link only, is dropped.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from parallelsearch.answers import normalise
from parallelsearch.coldstart.english import thoughts
from parallelsearch.coldstart.english.evidence import best_clause, definition, find_phrase, overlap, page_of
from parallelsearch.coldstart.english.questions import (
    asked_words,
    base_title,
    content_words,
    mention_of,
    same_name,
    starting_point,
    words_asked_for,
)
from parallelsearch.coldstart.lesson import ColdStartSettings, Drop, Lesson, Seen, as_query
from parallelsearch.data.alternatives import names_in
from parallelsearch.grammar import render_turn
from parallelsearch.retrieval.base import Hit
from parallelsearch.search import Search
from parallelsearch.trajectory import Question


@dataclass(slots=True)
class ChainLesson(Lesson):
    """Two links: the second query names what the first search brought to light."""

    first_query: str
    bridge: str
    second_query: str
    topic: str
    start: str | None
    linked: int | None = None
    """The number of the passage that names the bridge, once it has been quoted."""

    def turn(self, number: int, shown: Sequence[Seen]) -> str:
        if number == 0:
            return render_turn(thoughts.plan_chain(self.rng, self.start), [self.first_query])
        if number == 1:
            return render_turn(
                f"{self.link(shown)}{thoughts.next_link(self.rng, self.bridge, self.topic)}", [self.second_query]
            )
        # The bridge's own page or another, but not what was quoted on the way: to quote that again is to learn nothing.
        others = [passage for passage in shown if passage.number != self.linked]
        own = [passage for passage in others if same_name(self.bridge, passage.title)]
        words = content_words(self.question.question)
        for pages in (own, others):
            if best_clause(pages, self.question.golden_answers, words, self.max_quote_words) is not None:
                return answer_turn(self, pages, of=self.bridge)
        raise Drop("answer_beside_link" if others != list(shown) else "answer_not_shown")

    def link(self, shown: Sequence[Seen]) -> str:
        """The words that lead from the first passage to the second."""
        words = content_words(self.question.question)
        # A page names itself best, but what leads to it stands on another.
        others = [passage for passage in shown if not same_name(self.bridge, passage.title)]
        found = best_clause(others, [self.bridge], words, self.max_quote_words) or best_clause(
            shown, [self.bridge], words, self.max_quote_words
        )
        if found is not None:
            self.linked = found[0].number
            return f"{thoughts.quote(found[0].title, found[1])} "
        page = page_of(self.bridge, shown)
        told = definition(page, self.max_quote_words) if page is not None else None
        if page is not None and told is not None:
            self.linked = page.number
            return f"{thoughts.quote(page.title, told)} "
        if find_phrase(self.question.question, self.bridge):
            return ""
        raise Drop("bridge_not_shown")


@dataclass(slots=True)
class SingleLesson(Lesson):
    """One fact, one search."""

    query: str

    def turn(self, number: int, shown: Sequence[Seen]) -> str:
        if number == 0:
            return render_turn(thoughts.plan_single(self.rng), [self.query])
        # The answer's letters may stand anywhere: the sentence must share half of the question's words, and two at least.
        words = content_words(self.question.question)
        least = max(2, -(-len(words) // 2))
        if best_clause(shown, self.question.golden_answers, words, self.max_quote_words, least) is None:
            raise Drop("answer_not_shown")
        return answer_turn(self, shown)


def answer_turn(lesson: Lesson, passages: Sequence[Seen], of: str = "") -> str:
    """The last turn: the clause with the answer, then the answer. `of` is what a chain has led to; a model that is not
    reminded of it quotes the first page again."""
    question = lesson.question
    words = content_words(question.question)
    found = best_clause(passages, question.golden_answers, words, lesson.max_quote_words)
    if found is None:
        raise Drop("answer_not_shown")
    passage, quote, answer = found
    asked = asked_words(question.question)
    asked = f"Asked{f' of {of}' if of else ''}: {asked}. " if asked else ""
    thought = f"{asked}{thoughts.quote(passage.title, quote)} {thoughts.gives(lesson.rng, answer)}"
    return render_turn(thought, answer=answer)


# ---- planning -------------------------------------------------------------------------------------------------------


async def plan_chain(
    question: Question, rng: random.Random, search: Search, settings: ColdStartSettings
) -> ChainLesson:
    """The question itself is the first query (nothing finds a first link more often); the bridge is a supporting title
    that the results bring to light, or a name in them whose own page has the answer."""
    titles = question.supporting_titles or ()
    if len(titles) > 1 and all(mention_of(title, question.question) for title in titles):
        raise Drop("names_all_links")
    first = as_query(question.question)
    (found,) = await search.search_many([first])
    if not found.hits:
        raise Drop("nothing_found")
    topic = " ".join(words_asked_for(question.question, settings.max_relation_words))
    bridge = (
        _known_bridge(question, found.hits)
        if question.supporting_titles
        else await _found_bridge(question, found.hits, topic, search)
    )
    return ChainLesson(
        question,
        rng,
        settings.max_quote_words,
        first,
        bridge,
        as_query(f"{bridge} {topic}"),
        topic,
        starting_point(question.question),
    )


def _known_bridge(question: Question, hits: Sequence[Hit]) -> str:
    titles = list(dict.fromkeys(question.supporting_titles or ()))
    found = [title for title in titles if any(hit.title == title for hit in hits)]
    if not found:
        raise Drop("first_link_missed")
    missing = [title for title in titles if title not in found]
    if not missing:  # both at once: the page with the answer is the second link
        answers = question.golden_answers
        missing = [
            hit.title for hit in hits if hit.title in titles and any(find_phrase(hit.text, one) for one in answers)
        ] or titles[-1:]
    # What the question names already is no bridge: to search for it again would be to stay where one is.
    unnamed = [title for title in missing if mention_of(title, question.question) is None]
    if not unnamed:
        raise Drop("answer_beside_link")
    for title in unnamed:
        name = base_title(title)
        if any(find_phrase(f"{hit.title} {hit.text}", name) for hit in hits):
            return name
    raise Drop("no_bridge")


async def _found_bridge(question: Question, hits: Sequence[Hit], topic: str, search: Search) -> str:
    """Without supporting titles: a name that the passages mention beside the question's words, whose page answers."""
    if re.search(r"\b(?:or|both)\b", question.question):
        raise Drop("may_be_a_comparison")
    words = content_words(question.question)
    asked = normalise(question.question)
    names: list[str] = []
    for hit in hits[:2]:
        if mention_of(hit.title, question.question) is None and overlap(hit.text, words) < 4:
            continue
        names += [name for name in names_in(hit.text) if not same_name(name, hit.title)]
    names = [
        name
        for name in dict.fromkeys(names)
        if normalise(name) and f" {normalise(name)} " not in f" {asked} " and not any(c.isdigit() for c in name)
    ][:8]
    if not names:
        raise Drop("no_bridge")
    results = await search.search_many([as_query(f"{name} {topic}") for name in names])
    best: tuple[int, str] | None = None
    for name, result in zip(names, results, strict=True):
        for hit in result.hits:
            if not same_name(name, hit.title):
                continue
            shown = Seen(1, hit.title, hit.text)
            if best_clause([shown], question.golden_answers, words, 30, min_overlap=2) is not None:
                score = overlap(hit.text, words)
                if best is None or score > best[0]:
                    best = (score, name)
    if best is None:
        raise Drop("no_bridge")
    return best[1]
