"""Lessons for questions whose steps people wrote down without answers (StrategyQA): when to split, and into what.

"Would a dog respond to a bell before a grey seal?" does not say its parts; the written steps do. The lesson asks all of them
at once, quotes for each the words of a supporting page that come nearest, and says the golden yes or no. A rule cannot check
that verdict, so a question is only taught if each step has a supporting page of its own among the results, and the words
quoted say more of the step than the page's name. Steps that need an earlier answer are not taught: the answer is not written
down. Nor is a question of one step: its verdict follows from what nobody looked up.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from parallelsearch.answers import normalise
from parallelsearch.coldstart.english import thoughts
from parallelsearch.coldstart.english.evidence import clause_about, overlap
from parallelsearch.coldstart.english.questions import content_words
from parallelsearch.coldstart.lesson import Drop, Lesson, Seen, as_query
from parallelsearch.data.long_answers import looked_up
from parallelsearch.grammar import render_turn
from parallelsearch.trajectory import Question

MIN_SHARED_WORDS = 2
"""So many words of a step its page must have, or the page is about something else."""


@dataclass(slots=True)
class ImplicitLesson(Lesson):
    """One round of written steps, or one step a round, then the verdict."""

    queries: tuple[str, ...]
    at_once: bool

    def turn(self, number: int, shown: Sequence[Seen]) -> str:
        rounds = [self.queries] if self.at_once else [(query,) for query in self.queries]
        if number < len(rounds):
            return render_turn(self._plan(number), rounds[number])
        lines = " ".join(self._readings(shown))
        return render_turn(f"{lines} {thoughts.gives(self.rng, self.answer)}", answer=self.answer)

    def _plan(self, number: int) -> str:
        if self.at_once:
            is_pair = len(self.queries) == 2
            others, every = ("Neither needs the other", "both") if is_pair else ("None needs another", "all")
            return f"{_COUNTS[len(self.queries)]} facts decide this. {others}, so I ask for {every} at once."
        if number == 0:
            return f"{_COUNTS[len(self.queries)]} facts decide this. I look them up one after the other."
        return "Now the next one."

    def _readings(self, shown: Sequence[Seen]) -> list[str]:
        """For each step the nearest words of a supporting page that no other step has taken."""
        titles = {normalise(title) for title in self.question.supporting_titles or ()}
        free = [page for page in shown if normalise(page.title) in titles]
        lines: list[str] = []
        for query in self.queries:
            words = content_words(query)
            found = [
                (page, told)
                for page in free
                if (told := clause_about(page, words, self.max_quote_words)) is not None
                and overlap(told[0].words, [word for word in words if word not in content_words(page.title)])
            ]
            best = max(found, key=lambda pair: pair[1][1], default=None)
            if best is None or best[1][1] < MIN_SHARED_WORDS:
                raise Drop("page_not_found")
            free = [page for page in free if page.title != best[0].title]
            lines.append(thoughts.quote(best[0].title, best[1][0]))
        return lines


_COUNTS = {2: "Two", 3: "Three", 4: "Four", 5: "Five"}


def plan_implicit(
    question: Question, steps: Sequence[str], rng: random.Random, max_quote_words: int, at_once: bool
) -> ImplicitLesson:
    """The lesson for written steps without answers. Raises `Drop` where a step waits for another."""
    asked = looked_up(steps)
    if any("#" in step for step in asked):
        raise Drop("step_needs_answer")
    if len(asked) not in _COUNTS:
        raise Drop("one_step" if len(asked) < 2 else "too_many_steps")
    return ImplicitLesson(question, rng, max_quote_words, tuple(map(as_query, asked)), at_once)
