"""Rules by name: the language that comes with the package, one of one's own, and what is said of a wrong name."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from painters import settings, turns
from small_runs import recipe_in

from parallelsearch.coldstart.lesson import Drop, Lesson, Seen
from parallelsearch.coldstart.rules import Rules, load_rules
from parallelsearch.coldstart.run import TokenizerEncoder, run_coldstart
from parallelsearch.coldstart.tutor import build_coldstart
from parallelsearch.coldstart.written import Wording
from parallelsearch.errors import UsageError
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.search import Search
from parallelsearch.trajectory import Kind, Question

pytest.importorskip("transformers")


class GermanWording:
    """Enough German for a written decomposition."""

    def plan_round(self, rng: random.Random, queries: Sequence[str], number: int, num_rounds: int) -> str:
        return f"Runde {number + 1} von {num_rounds}: {len(queries)} Fragen."

    def finding(self, query: str, answer: str, shown: Sequence[Seen], max_words: int) -> str | None:
        return next((f"[{one.number}] {one.title}: {answer}." for one in shown if answer in one.text), None)

    def conclusion(self, rng: random.Random, answer: str) -> str:
        return f"Also {answer}."


class GermanRules:
    """Rules that teach written decompositions, guess every question to be single, and make nothing."""

    wording: Wording = GermanWording()
    undecided = frozenset({"keine_regel"})

    async def plan(self, *_: object) -> Lesson:
        raise Drop("keine_regel")

    def guess_kind(self, question: str) -> Kind | None:
        return "mixed" if "Film" in question else "single"

    def make(self, *_: object, **__: object) -> list[Question]:
        return []

    def kept_back(self, _: object) -> frozenset[str]:
        return frozenset()

    async def recombine(self, *_: object) -> list[Question]:
        return []


GERMAN: Rules = GermanRules()
NAME = f"{__name__}:GERMAN"
PAGES = {
    "Blaues Tor": "Blaues Tor ist ein Film von Ira Moss.",
    "Eisensee": "Eisensee ist ein Film von Ann Poe.",
    "Ira Moss": "Ira Moss wurde 1950 geboren.",
    "Ann Poe": "Ann Poe wurde 1941 geboren.",
}
STEPS = [
    {"question": "Wer drehte Blaues Tor?", "answer": "Ira Moss"},
    {"question": "Wer drehte Eisensee?", "answer": "Ann Poe"},
    {"question": "Wann wurde #1 geboren?", "answer": "1950"},
    {"question": "Wann wurde #2 geboren?", "answer": "1941"},
]
TEXT = "Welcher Film hat den älteren Regisseur, Blaues Tor oder Eisensee?"


def passages() -> list[Passage]:
    return [Passage(title, title, text) for title, text in PAGES.items()]


async def test_a_decomposition_is_taught_in_the_words_of_its_rules(encoder: TokenizerEncoder) -> None:
    search = Search(BM25Retriever.from_passages(passages()), k=2)
    question = Question(TEXT, ["Eisensee"], id="g", kind="mixed", metadata={"decomposition": STEPS})
    (made,), _ = await build_coldstart([question], search, encoder, settings(rules=NAME))
    assert [turn.queries for turn in turns(made)] == [
        ("Wer drehte Blaues Tor", "Wer drehte Eisensee"),
        ("Wann wurde Ira Moss geboren", "Wann wurde Ann Poe geboren"),
        (),
    ]
    last = turns(made)[-1].thought or ""
    assert "Ira Moss: 1950. " in last
    assert last.endswith("Ann Poe: 1941. Also Eisensee.")
    other = Question("Wer?", ["Ann Poe"], id="o", kind="single")
    assert (await build_coldstart([other], search, encoder, settings(rules=NAME)))[1].reasons == {"o": "keine_regel"}


def test_a_run_takes_its_rules_by_name_and_guesses_kinds_when_told_to(folder: Path) -> None:
    rows = [
        {"question": TEXT, "golden_answers": ["Eisensee"], "decomposition": STEPS},
        {"question": "Wann wurde Ann Poe geboren?", "golden_answers": ["1941"]},
    ]
    values = {"num_trajectories": {"mixed": 1, "single": 1}, "num_made_facts": 1, "rules": NAME}
    recipe = recipe_in(folder, rows, passages(), **values)
    with pytest.raises(UsageError, match="nothing is left"):
        run_coldstart(recipe)
    report = run_coldstart(recipe.model_copy(update={"guess_kinds": True}))
    assert report["parallel"]["kept"] == {"mixed": 1}
    assert report["parallel"]["dropped"] == {"single: keine_regel": 1}
    assert report["rl_questions"] == {
        "mixed": 1,
        "single": 1,
    }  # what no rule could decide is still learned from by trying


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("klingon", "no rules 'klingon'; write one of english, or package.module:name"),
        ("no_such_package.rules:RULES", "there is no module 'no_such_package' for the rules"),
        ("parallelsearch.answers:RULES", r"'parallelsearch.answers' \(.*answers.py\) has no 'RULES'"),
        (
            "parallelsearch.answers:normalise",
            "it lacks guess_kind, kept_back, make, plan, recombine, undecided, wording",
        ),
    ],
)
def test_wrong_names_say_what_to_type(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_rules(name)


def test_no_language_is_imported_before_it_is_asked_for() -> None:
    code = (
        "import sys, parallelsearch.coldstart.run, parallelsearch.coldstart.sampling\n"
        "print([name for name in sys.modules if name.startswith('parallelsearch.coldstart.english')])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=400)
    assert result.stdout.strip() == "[]", result.stderr
