"""Which questions can be used: each has an answer, a kind and its evidence in the corpus, and stands there once.

The same checks for a file of one's own and for what a teacher or the rules made. What fails is kept with its reason, so that
a person can look at it. Whether a question can be *taught* is found out later, by playing its lesson with real searches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parallelsearch.answers import normalise, substring_match
from parallelsearch.coldstart.written import fill_references, steps_of
from parallelsearch.grounding import is_computed
from parallelsearch.retrieval.base import Passage
from parallelsearch.search import Search
from parallelsearch.trajectory import Kind, Question

MAX_SHARE_OF_A_VERDICT = 0.6
"""Of made questions answered yes or no, at most so many may have one of the two: the other could be guessed."""


@dataclass(slots=True)
class Checked:
    """What is left, and why the rest is not."""

    questions: list[Question] = field(default_factory=list)
    rejected: list[tuple[Question, str]] = field(default_factory=list)

    @property
    def reasons(self) -> dict[str, int]:
        return dict(Counter(reason for _, reason in self.rejected).most_common())

    def describe(self) -> dict[str, Any]:
        kinds = Counter(question.kind or "unknown" for question in self.questions)
        return {"num_usable": len(self.questions), "kinds": dict(kinds.most_common()), "rejected": self.reasons}


class Pages:
    """The texts of a corpus by their titles."""

    def __init__(self, passages: Iterable[Passage], titles: Iterable[str]) -> None:
        wanted = {normalise(title) for title in titles}
        self._texts: dict[str, list[str]] = {}
        for passage in passages:
            key = normalise(passage.title)
            if key in wanted:
                self._texts.setdefault(key, []).append(passage.text)

    def text(self, title: str) -> str | None:
        found = self._texts.get(normalise(title))
        return None if found is None else " ".join([title, *found])


async def check(
    questions: Sequence[Question],
    passages: Sequence[Passage],
    search: Search,
    *,
    forbidden: Mapping[str, str],
    guess_kind: Callable[[str], Kind | None],
    are_made: bool,
) -> Checked:
    """Sort the questions. `forbidden` are normalised texts of evaluation questions; `are_made` ones must also find their own
    pages and be balanced, which is not asked of a person's."""
    pages = Pages(passages, (title for question in questions for title in question.supporting_titles or ()))
    result = Checked()
    seen: set[str] = set()
    for question in questions:
        question.kind = question.kind or guess_kind(question.question)
        reason = _reason(question, pages, seen, forbidden)
        if reason is None and are_made and not await _is_found(question, search):
            reason = "its pages are not found"
        if reason is None:
            result.questions.append(question)
        else:
            result.rejected.append((question, reason))
        seen.add(normalise(question.question))
    if are_made:
        _balance(result)
    return result


def _reason(question: Question, pages: Pages, seen: set[str], forbidden: Mapping[str, str]) -> str | None:
    key = normalise(question.question)
    if key in seen:
        return "asked twice"
    if key in forbidden:
        return "stands in an evaluation set"
    if not any(answer.strip() for answer in question.golden_answers):
        return "no golden answer"
    if question.kind is None:
        return "no kind"
    titles = question.supporting_titles or []
    texts = [pages.text(title) for title in titles]
    if any(text is None for text in texts):
        return "a page is not in the corpus"
    is_drawn = any(is_computed(question.question, answer) for answer in question.golden_answers)
    if titles and not is_drawn and not _is_told(question, " ".join(text for text in texts if text is not None)):
        return "the answer is not in its pages"
    return None


def _is_told(question: Question, pages: str) -> bool:
    """The answer stands in the pages, or the answers of all its steps do, which it is put together from ("1901 and 1888")."""
    if substring_match(pages, question.golden_answers):
        return True
    steps = steps_of(question)
    return steps is not None and all(substring_match(pages, [str(step["answer"])]) for step in steps)


async def _is_found(question: Question, search: Search) -> bool:
    """Every step's query, or every page's title, brings a supporting page among the first hits."""
    titles = {normalise(title) for title in question.supporting_titles or ()}
    steps = (question.metadata or {}).get("decomposition") or []
    answers = [str(step["answer"]) for step in steps]
    queries = [fill_references(str(step["question"]), answers) for step in steps] or list(
        question.supporting_titles or ()
    )
    if not queries or not titles:
        return True
    found = await search.search_many(queries)
    return all(any(normalise(hit.title) in titles for hit in one.hits) for one in found)


def _balance(result: Checked) -> None:
    """Cut the more frequent of yes and no, from the end."""
    by_verdict: dict[str, list[Question]] = {"yes": [], "no": []}
    for question in result.questions:
        said = normalise(question.golden_answers[0])
        if said in by_verdict:
            by_verdict[said].append(question)
    few, many = sorted(by_verdict.values(), key=len)
    most = max(1, round(len(few) * MAX_SHARE_OF_A_VERDICT / (1 - MAX_SHARE_OF_A_VERDICT)))
    cut = {id(question) for question in many[most:]}
    result.rejected += [(question, "too many with this verdict") for question in many[most:]]
    result.questions = [question for question in result.questions if id(question) not in cut]
