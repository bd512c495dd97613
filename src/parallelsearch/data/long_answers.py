"""Questions that come with more than an answer, read as their authors mean them: written decompositions, links, lists.

FanOutQA comes with a decomposition written by people: each step has its page and says which steps it needs. That graph gives
the question's parts, the round each can first be asked in, and its kind. Its answers are strings, numbers, lists or
dictionaries; `answer_raw` keeps them, and `answers.string_accuracy` scores them. FRAMES names its pages by links, which
become titles. Few of either can be answered from the corpus: `in_corpus` has those. StrategyQA and part of MuSiQue's train
questions were decomposed by people, too: the steps say what a question's parts are and in which round each can be asked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote

from parallelsearch.data.alternatives import names_in
from parallelsearch.data.made import Material
from parallelsearch.data.parts import titles_names
from parallelsearch.trajectory import Kind, Question, QuestionPart


def label(question: Question) -> None:
    """Give a question what its file says in its own way: titles, parts, the dependency graph, the kind."""
    extra = question.metadata or {}
    if question.dataset == "frames" and isinstance(links := extra.get("wiki_links"), list):
        question.supporting_titles = list(dict.fromkeys(map(_title_of, links)))
    if isinstance(written := extra.get("question_decomposition"), list) and written:
        asked = [_plain(step["question"]) for step in written]
        answered = [{"question": text, "answer": step["answer"]} for text, step in zip(asked, written, strict=True)]
        question.metadata = {**extra, "decomposition": answered}
        question.kind = _kind(_depths_of_steps(asked))
        return
    steps: Any = extra.get("decomposition")
    if question.dataset == "strategyqa" and isinstance(steps, list) and steps:
        _label_implicit(question, steps)
        return
    if question.dataset != "fanoutqa" or not isinstance(steps, list) or not steps:
        return
    graph = _graph(steps)
    question.metadata = {**extra, "graph": graph}
    depth = _depths(graph)
    question.parts = [
        QuestionPart(_names(node["title"], node["query"]), depth[node["id"]]) for node in graph if node["title"]
    ]
    question.kind = _kind(list(depth.values()))


_REFERENCE = re.compile(r"#(\d+)")
_OPERATION = re.compile(
    r"(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should|if|of|what is #|which)\b", re.IGNORECASE
)


def _plain(step: str) -> str:
    """ "#1 >> spouse" is "#1 spouse"."""
    return " ".join(step.replace(">>", " ").split())


def _depths_of_steps(steps: Sequence[str]) -> list[int]:
    """The round of each step: one more than the latest that it refers to."""
    depths: list[int] = []
    for step in steps:
        needs = [int(number) - 1 for number in _REFERENCE.findall(step)]
        depths.append(1 + max((depths[need] for need in needs if 0 <= need < len(depths)), default=0))
    return depths


def looked_up(steps: Sequence[str]) -> list[str]:
    """The steps that need a search: the last ones that only set answers side by side ("Is #2 greater than #1?") need none."""
    kept = list(steps)
    while len(kept) > 1 and _REFERENCE.search(kept[-1]) and _OPERATION.match(kept[-1].strip()):
        kept.pop()
    return kept


def _label_implicit(question: Question, steps: Sequence[str]) -> None:
    """StrategyQA: yes or no, by steps that the question does not say."""
    asked = looked_up(steps)
    depths = _depths_of_steps(asked)
    question.kind = _kind(depths)
    names = [names_in(f"- {step}") for step in asked]
    counts = Counter(name for some in names for name in some)
    own = [[name for name in some if counts[name] == 1] for some in names]
    if len(asked) > 1 and all(own):
        question.parts = [QuestionPart(some, depth) for some, depth in zip(own, depths, strict=True)]


def _title_of(link: str) -> str:
    return unquote(link.rpartition("/wiki/")[2].partition("#")[0]).replace("_", " ")


def _leaves(steps: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Steps that look something up, with the ids they need. A step that is itself decomposed is what its own last steps are,
    and what comes after it waits for all of them."""
    inner: dict[str, list[str]] = {}
    for step in steps:
        needs = [one for other in step.get("depends_on") or () for one in inner.get(other, [other])]
        own = step.get("decomposition") or ()
        if not own:
            yield step, needs
            continue
        found = list(_leaves(own))
        inner[step["id"]] = [leaf["id"] for leaf, _ in found]
        for leaf, before in found:
            yield leaf, list(dict.fromkeys([*needs, *before]))


def _graph(steps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The dependency graph as everywhere here: numbers for ids, what is needed first."""
    leaves = list(_leaves(steps))
    known = {leaf["id"] for leaf, _ in leaves}
    waiting = [(leaf, [need for need in needs if need in known]) for leaf, needs in leaves]
    numbers: dict[str, int] = {}
    graph: list[dict[str, Any]] = []
    while waiting:
        ready = [(leaf, needs) for leaf, needs in waiting if all(need in numbers for need in needs)]
        for leaf, needs in ready or waiting:  # steps that wait for each other are asked as if they did not
            numbers[leaf["id"]] = len(graph) + 1
            evidence = leaf.get("evidence") or {}
            graph.append(
                {
                    "id": numbers[leaf["id"]],
                    "query": leaf["question"],
                    "needs": [numbers[need] for need in needs if need in numbers and need != leaf["id"]]
                    if ready
                    else [],
                    "title": evidence.get("title"),
                }
            )
        waiting = [(leaf, needs) for leaf, needs in waiting if leaf["id"] not in numbers]
    return graph


def _depths(graph: Sequence[dict[str, Any]]) -> dict[int, int]:
    depth: dict[int, int] = {}
    for node in graph:
        depth[node["id"]] = 1 + max((depth[need] for need in node["needs"]), default=0)
    return depth


def _names(title: str, query: str) -> list[str]:
    """What a query may call a part: its page's title, and a name in the step's question that the title has, too."""
    names = titles_names(title)
    words = set(title.lower().split())
    return list(dict.fromkeys([*names, *(name for name in names_in(query) if set(name.lower().split()) & words)]))


def _kind(depths: Sequence[int]) -> Kind:
    widths = [depths.count(round_) for round_ in range(1, max(depths) + 1)]
    if len(widths) == 1:
        return "parallel" if widths[0] > 1 else "single"
    return "mixed" if max(widths) > 1 else "sequential"


# ---- those that the corpus can answer --------------------------------------------------------------------------------


def fanoutqa_in_corpus(material: Material) -> list[Question]:
    return in_corpus(material, "fanoutqa/dev")


def frames_in_corpus(material: Material) -> list[Question]:
    return in_corpus(material, "frames/test")


def in_corpus(material: Material, stem: str) -> list[Question]:
    """The questions all of whose pages have a passage in the corpus, by title."""
    titles = {passage.title.casefold() for passage in material.passages}
    questions = material.questions_of(stem)
    for question in questions:
        label(question)
    return [
        question
        for question in questions
        if question.supporting_titles and all(title.casefold() in titles for title in question.supporting_titles)
    ]
