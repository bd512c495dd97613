"""The evaluation sets that are made from pages: what `data/made.py` calls by name when such a set is asked for.

Every set is a function of the corpus and of the training questions on the machine: its pages are kept back from training
(`unseen.py`), no training question names them, and none is answered from them. The counts and the seeds here and the hash in
`data/sources.py` are the set: change one and it is another set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from parallelsearch.answers import normalise
from parallelsearch.coldstart.english.evidence import dates_in
from parallelsearch.coldstart.english.from_pages.told import Things, read_things, sure_enough
from parallelsearch.coldstart.english.from_pages.two_rounds import ask_two_rounds
from parallelsearch.coldstart.english.from_pages.unseen import kept_back
from parallelsearch.coldstart.english.from_pages.wide import WIDTHS, make_wide, make_wide_mixed
from parallelsearch.coldstart.english.from_pages.wordings import REWORDED
from parallelsearch.coldstart.english.from_pages.works import MAX_OPENING_CHARS, Work, names_in_texts, read_works
from parallelsearch.coldstart.english.questions import base_title
from parallelsearch.data.made import Material
from parallelsearch.retrieval.base import Passage
from parallelsearch.trajectory import Question

NUM_OF_EACH_WIDTH = 100
NUM_MIXED_WIDE = {1: 20, 2: 40, 3: 30}
"""Mixed questions of the wide set by number of works: one work and two facts of its maker are three parts, two works four,
three six."""
NUM_REWORDED = 50
NUM_MIXED_REWORDED = {1: 15, 2: 20, 3: 15}
"""The same of the set in held-out wordings."""
MAX_WORKS_OF_ONE = 7
"""Of one maker so many works at most are in the balanced set."""
NUM_BALANCED = 600
SEED = 20261116
REWORDED_SEED = 20261117


def wide(material: Material) -> list[Question]:
    """100 parallel questions of each number of parts from 2 to 8, and mixed ones of 3, 4 and 6."""
    things = material.worked_out(_things_kept_back)
    found = make_wide(things, dict.fromkeys(WIDTHS, NUM_OF_EACH_WIDTH), seed=SEED)
    return _labelled("wide", [*found, *make_wide_mixed(things, NUM_MIXED_WIDE, seed=SEED)])


def wide_reworded(material: Material) -> list[Question]:
    """50 parallel questions of each number of parts and mixed ones, all in wordings that no training question has."""
    things = sure_enough(material.worked_out(_things_kept_back))
    found = make_wide(things, dict.fromkeys(WIDTHS, NUM_REWORDED), seed=REWORDED_SEED, ways=REWORDED)
    mixed = make_wide_mixed(things, NUM_MIXED_REWORDED, seed=REWORDED_SEED, ways=REWORDED)
    return _labelled("wide-reworded", [*found, *mixed])


def _things_kept_back(material: Material) -> Things:
    works, unseen = material.worked_out(_works)
    seen = {passage.title for passage in material.passages} - unseen
    return read_things(material.passages, material.training_texts, seen | material.training_titles, works)


def _works(material: Material) -> tuple[list[Work], frozenset[str]]:
    """All works, and the titles that are kept back from training."""
    works = read_works(material.passages)
    return works, kept_back(material.passages, works)


def mixed_balanced(material: Material) -> list[Question]:
    """Two works, their makers, a fact about both; the years of the works are worth a coin."""
    works, unseen = material.worked_out(_works)
    taken = {normalise(title) for title in material.training_titles}
    taken |= names_in_texts(material.training_texts, {normalise(work.name) for work in works})
    num_by: Counter[str] = Counter()
    chosen: list[Work] = []
    for work in works:
        names = {normalise(work.name), normalise(work.title), normalise(work.maker.name)}
        if {work.title, work.maker.name} <= unseen and not names & taken and num_by[work.maker.name] < MAX_WORKS_OF_ONE:
            num_by[work.maker.name] += 1
            chosen.append(work)
    ids: dict[str, str] = {}
    for passage in material.passages:
        ids.setdefault(passage.title, passage.id)
    return _labelled("mixed-balanced", ask_two_rounds(chosen, ids, NUM_BALANCED, seed=SEED))


def _labelled(name: str, questions: Sequence[Question]) -> list[Question]:
    return [replace(question, dataset=name) for question in questions]


# ---- 2WikiMultiHopQA's mixed questions, by the shortcut ---------------------------------------------------------------

_EARLIER = ("first", "earlier", "older")
_LATER = ("later", "last", "younger")


def shortcut_agrees(material: Material) -> list[Question]:
    """Mixed dev questions in which the work of the earlier year has the maker who was born or died earlier."""
    return _by_shortcut(material, lambda is_right: is_right is True)


def shortcut_differs(material: Material) -> list[Question]:
    """Those in which it has not: who compares the years of the works is wrong."""
    return _by_shortcut(material, lambda is_right: is_right is False)


def _by_shortcut(material: Material, is_wanted: Callable[[bool | None], bool]) -> list[Question]:
    mixed = [q for q in material.gold_questions if q.dataset == "2wikimultihopqa" and q.kind == "mixed"]
    wanted = {title for question in mixed for title in question.supporting_titles or ()}
    pages: dict[str, Passage] = {}
    for passage in material.passages:
        if passage.title in wanted:
            pages.setdefault(passage.title, passage)
    return [question for question in mixed if is_wanted(shortcut_is_right(question, pages))]


def shortcut_is_right(question: Question, pages: dict[str, Passage]) -> bool | None:
    """Whether the years of the two works lead to the golden answer; None where they lead nowhere (yes and no, no year)."""
    words = normalise(question.question).split()
    is_early, is_late = (any(word in words for word in some) for some in (_EARLIER, _LATER))
    named = [
        title
        for title in question.supporting_titles or ()
        if f" {normalise(base_title(title))} " in f" {normalise(question.question)} "
    ]
    if is_early == is_late or len(named) != 2 or any(title not in pages for title in named):
        return None
    years = [next((date[0] for date, _, _ in dates_in(pages[title].text[:MAX_OPENING_CHARS])), None) for title in named]
    if years[0] is None or years[1] is None or years[0] == years[1]:
        return None
    suggested = named[0] if (years[0] < years[1]) == is_early else named[1]
    answers = {normalise(answer) for answer in question.golden_answers}
    fits = [bool({normalise(title), normalise(base_title(title))} & answers) for title in named]
    if sum(fits) != 1:  # the answer is a maker, or yes or no
        return None
    return fits[named.index(suggested)]
