"""Lessons in reading values that were changed: what is made, that it can be taught, and that the pages decide."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from small_runs import ROOMY, recipe_in

from parallelsearch.coldstart import run as coldstart_run
from parallelsearch.coldstart.english import thoughts
from parallelsearch.coldstart.english.evidence import birth_date, birthplace, death_date
from parallelsearch.coldstart.english.from_pages.changed import MADE_CHANGED, MAX_USES, make_changed
from parallelsearch.coldstart.english.from_pages.pages import read_pages
from parallelsearch.coldstart.english.from_pages.told import read_things
from parallelsearch.coldstart.lesson import CHANGED, ColdStartSettings, search_of
from parallelsearch.coldstart.run import TokenizerEncoder
from parallelsearch.coldstart.tutor import build_coldstart
from parallelsearch.coldstart.withheld import WITHHELD
from parallelsearch.limits import Limits
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.retrieval.changed import Changed
from parallelsearch.search import Search
from parallelsearch.training.smoke import make_tokenizer
from parallelsearch.trajectory import Question, read_trajectories

pytest.importorskip("transformers")

_FIRST = ("Ada", "Carl", "Edda", "Gustav", "Ingrid", "Knut", "Mette", "Olav", "Rolf", "Sigrid", "Tora", "Ulf")
_LAST = ("Brenn", "Dorn", "Falk", "Hald", "Juhl", "Lerche", "Nyborg", "Quist", "Sand", "Thorn", "Vik", "Wold")
_RIVERS = ("Aske", "Borg", "Dale", "Elve", "Fjord", "Gren", "Hove", "Isna", "Jova", "Krag", "Lona", "Mera")
_TOWNS = ("Askvik", "Borgsund", "Dalholm", "Elvestad", "Fjordnes", "Grenvik")


def world() -> list[Passage]:
    """Rivers of which nothing is measured, and painters with their dates and birthplaces."""
    rivers = [
        Passage(f"r{number}", name, f"{name} is a river in the north. It is known for its salmon.")
        for number, name in enumerate([*_RIVERS, *(f"{name}na" for name in _RIVERS)])
    ]
    painters = [
        Passage(
            f"p{number}",
            f"{one} {other}",
            f"{one} {other} ({number + 1} May {1901 + number} – {number + 3} June {1970 + number}) was a Danish painter. "
            f"{one} was born in {_TOWNS[number % 6]}, and painted the sea.",
        )
        for number, (one, other) in enumerate(
            zip([*_FIRST, *(f"{name}ine" for name in _FIRST)], [*_LAST, *(f"{name}sen" for name in _LAST)], strict=True)
        )
    ]
    return [*rivers, *painters]


def made(count: int = 60, seed: int = 0) -> list[Question]:
    passages = world()
    people = read_things(passages).all
    return make_changed(people, read_pages(passages, ()), passages, count, seed=seed)


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    return made()


@pytest.fixture(scope="module")
def search() -> Search:
    return Search(BM25Retriever.from_passages(world()), k=2)


@pytest.fixture(scope="module")
def encoder() -> TokenizerEncoder:
    return TokenizerEncoder(make_tokenizer(), max_context=16384)


def settings(mode: str = "parallel") -> ColdStartSettings:
    limits = Limits(
        max_turns=8, max_observation_tokens=4000, max_tokens_per_turn=2000, max_tokens=16000, timeout_s=None
    )
    return ColdStartSettings(mode=mode, limits=limits, max_tokens=16000)


def test_the_seed_decides_and_no_page_is_used_too_often(questions: list[Question]) -> None:
    assert [one.question for one in made()] == [one.question for one in questions]
    assert [one.question for one in made(seed=1)] != [one.question for one in questions]
    uses = [title for one in questions for title in one.supporting_titles or ()]
    assert max(uses.count(title) for title in set(uses)) <= MAX_USES
    assert {one.dataset for one in questions} == {MADE_CHANGED}
    asked = " ".join(one.question.lower() for one in questions)
    for words in ("longer", "the longest", "born first", "same year", "born in the same", "all born in"):
        assert words in asked, words


def test_a_corpus_without_such_pages_gives_none() -> None:
    for pages in ([], world()[:5], [Passage("x", "Bread", "Bread is a food. It is baked.")]):
        assert make_changed(read_things(pages).all, read_pages(pages, ()), pages, 8) == []


def values(question: Question, find: str) -> dict[str, float | str]:
    """What the changed pages say, read without any of the makers' own names for it."""
    texts = (question.metadata or {})[CHANGED]
    found: dict[str, float | str] = {}
    for name, text in zip(question.supporting_titles or (), texts.values(), strict=True):
        if find == "number":
            (number,) = re.findall(r"\b\d[\d,]*\b", text)
            found[name] = float(number.replace(",", ""))
        else:
            date = (birth_date if find == "born" else death_date)(text)
            assert date is not None
            found[name] = "{:04}-{:02}-{:02}".format(*date[0])
    return found


def test_answers_are_what_the_changed_pages_say(questions: list[Question]) -> None:
    num_checked = 0
    for one in questions:
        asked, (golden,) = one.question.lower(), one.golden_answers
        texts = list((one.metadata or {})[CHANGED].values())
        if re.search(r"longe[rs]|shorte[rs]", asked):
            told = values(one, "number")
            pick = max if "long" in asked else min
            assert golden == pick(told, key=lambda name: told[name])
        elif "born in the same" in asked and "year" not in asked:
            assert golden == ("yes" if len({birthplace(text) for text in texts}) == 1 else "no")
        elif re.search(r"(?:both|all) (?:of .* )?born in [a-z]+\?$", asked):
            place = asked.rstrip("?").rpartition(" ")[2]
            assert golden == ("yes" if {(birthplace(text) or "").lower() for text in texts} == {place} else "no")
        else:
            told = values(one, "died" if re.search(r"\b(?:die|died)\b", asked) else "born")
            if "year" in asked:
                same = len({str(date)[:4] for date in told.values()}) == 1
                assert golden == ("yes" if same != ("different" in asked) else "no")
            elif "same da" in asked:
                assert golden == ("yes" if len(set(told.values())) == 1 else "no")
            else:
                pick = min if re.search(r"\bfirst\b|\bearl|\bold", asked) else max
                assert golden == pick(told, key=lambda name: told[name])
        num_checked += 1
    assert num_checked == len(questions) >= 40


@pytest.mark.parametrize("mode", ["parallel", "sequential"])
async def test_lessons_read_the_changed_pages(
    mode: str, questions: list[Question], search: Search, encoder: TokenizerEncoder
) -> None:
    kept, report = await build_coldstart(questions, search, encoder, settings(mode))
    assert len(kept) >= 0.9 * len(questions), report.to_dict()["dropped"]
    by_id = {one.id: one for one in questions}
    for one in kept:
        texts = (by_id[one.id].metadata or {})[CHANGED]
        shown = {hit.id: hit.text for query in one.queries for hit in query.hits}
        assert all(shown[identifier] == text for identifier, text in texts.items() if identifier in shown)
    untouched = {passage.id: passage.text for passage in world()}
    found = await search.search_many([world()[0].title])
    assert all(hit.text == untouched[hit.id] for hit in found[0].hits), "the corpus itself was changed"


async def test_only_the_named_passages_say_something_else(search: Search) -> None:
    changed = Changed(search.retriever, {"r0": "Aske is dry."})
    (hits,) = await changed.search_many(["Aske river salmon"], 3)
    assert not isinstance(hits, Exception)
    assert {hit.id: hit.text for hit in hits}["r0"] == "Aske is dry."
    assert sum(hit.text == "Aske is dry." for hit in hits) == 1
    assert changed.describe()["num_changed"] == 1
    question = made(1)[0]
    assert search_of(replace(question, metadata=None), search) is search
    assert search_of(question, search).k == search.k


@pytest.mark.parametrize(
    ("value", "other", "said"),
    [
        ("354", "346", "354 against 346, 3 digits each, 3 3, 5 4: more."),
        ("777", "1,000", "777 against 1,000, 3 digits against 4: less."),
        ("1,090", "1,230", "1,090 against 1,230, 4 digits each, 1 1, 0 2: less."),
        ("12", "12", "12 against 12, 2 digits each, 1 1, 2 2: the same."),
        ("2.5", "2.17", "2.5 against 2.17, 1 digits each, 2 2, 5 1: more."),
        ("1,801,698", "1801690", "1,801,698 against 1801690, 7 digits each, 1 1, 8 8, 0 0, 1 1, 6 6, 9 9, 8 0: more."),
    ],
)
def test_numbers_are_weighed_digit_by_digit(value: str, other: str, said: str) -> None:
    assert thoughts.weigh(value, other) == said


def test_a_run_teaches_them_and_keeps_them_out_of_rl(folder: Path) -> None:
    question = {"id": "t1", "question": "What is Aske known for?", "golden_answers": ["salmon"], "kind": "single",
                "dataset": "hotpotqa", "supporting_titles": ["Aske"]}  # fmt: skip
    report = coldstart_run.run_coldstart(recipe_in(folder, [question], world(), num_changed=6, num_withheld=4, **ROOMY))
    assert report["num_changed"] == 6
    assert report["num_made"] == {}, "in no file for RL"
    for twin in ("parallel", "sequential"):
        rows = list(read_trajectories(folder / "out" / f"{twin}.jsonl"))
        assert sum(one.dataset == MADE_CHANGED for one in rows) == 6
        assert not any(one.id.endswith(WITHHELD) and one.dataset == MADE_CHANGED for one in rows)
