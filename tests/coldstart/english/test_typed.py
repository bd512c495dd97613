"""What people type and question sets lack: yes or no about two named things, and one of a person's two dates."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from painters import PAGES, settings, taught, turns
from small_runs import ROOMY, recipe_in
from test_wide_questions import FACTS, PASSAGES

from parallelsearch.answers import normalise
from parallelsearch.coldstart import run as coldstart_run
from parallelsearch.coldstart.english.from_pages import dates, wordings, yes_or_no
from parallelsearch.coldstart.english.from_pages.dates import MADE_DATE, make_dates
from parallelsearch.coldstart.english.from_pages.told import Thing, Things, read_things, sure_enough
from parallelsearch.coldstart.english.from_pages.wide import make_wide, make_wide_mixed
from parallelsearch.coldstart.english.from_pages.yes_or_no import MADE_YES_NO, MAX_USES, make_yes_or_no
from parallelsearch.coldstart.english.lessons.dates import METADATA as DATES
from parallelsearch.coldstart.english.rules import EnglishRules
from parallelsearch.coldstart.english.wide import FACTS as FACT_WORDS
from parallelsearch.coldstart.english.wide import METADATA as WIDE
from parallelsearch.coldstart.english.wide import Step, Wide, answer_of, wide_of
from parallelsearch.coldstart.recipe import ColdStartRecipe
from parallelsearch.coldstart.rules import load_rules
from parallelsearch.coldstart.tutor import build_coldstart
from parallelsearch.coverage import covered
from parallelsearch.data.made import as_lines
from parallelsearch.data.questions import read_questions
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.search import Search
from parallelsearch.trajectory import Question, QuestionPart, read_trajectories


@pytest.fixture(scope="module")
def things() -> Things:
    return sure_enough(read_things(PASSAGES))


@pytest.fixture(scope="module")
def polar(things: Things) -> list[Question]:
    return make_yes_or_no(things, 120, seed=1)


@pytest.fixture(scope="module")
def when(things: Things) -> list[Question]:
    return make_dates(things.all, 80, seed=1)


# ---- yes or no -------------------------------------------------------------------------------------------------------

_BEFORE = re.compile(r"\b(?:before|earlier|older|smaller|fewer|less)\b")
_AFTER = re.compile(r"\b(?:after|later|younger|newer|larger|bigger|more)\b")


def test_yes_and_no_follow_from_the_words_of_the_question_and_the_pages(polar: list[Question]) -> None:
    assert len(polar) == 120
    for question in polar:
        wide = wide_of(question)
        assert wide is not None
        text = question.question.lower()
        first, second = sorted((step.name for step in wide.steps), key=lambda name: text.index(name.lower()))
        assert (first, second) == tuple(step.name for step in wide.steps)
        one, other = (int(FACTS[name][wide.fact]) for name in (first, second))
        assert one != other
        text = text.replace("less populous", "less").replace("more populous", "more")
        assert bool(_BEFORE.search(text)) != bool(_AFTER.search(text)), text
        is_so = one < other if _BEFORE.search(text) else one > other
        assert question.golden_answers == ["yes" if is_so else "no"], question


def test_yes_and_no_and_the_directions_are_balanced(polar: list[Question]) -> None:
    assert Counter(question.golden_answers[0] for question in polar) == {"yes": 60, "no": 60}
    for target in ("before", "after"):
        answers = Counter(q.golden_answers[0] for q in polar if q.metadata[WIDE]["target"] == target)
        assert min(answers.values()) > 15, (target, answers)
    uses = Counter(title for question in polar for title in question.supporting_titles)
    assert max(uses.values()) <= MAX_USES
    assert {question.dataset for question in polar} == {MADE_YES_NO}
    assert {question.kind for question in polar} == {"parallel"}
    assert {q.metadata[WIDE]["fact"] for q in polar} == {"born", "died", "released", "population", "species"}
    assert sum(question.question.islower() for question in polar) > 10


def test_the_seed_alone_decides_and_forbidden_questions_do_not_come_out(things: Things, polar: list[Question]) -> None:
    assert make_yes_or_no(things, 120, seed=1) == polar
    assert make_yes_or_no(things, 120, seed=2) != polar
    forbidden = {re.sub(r"[^\w ]", "", polar[0].question.lower())}
    assert polar[0].question not in {q.question for q in make_yes_or_no(things, 120, seed=1, forbidden=forbidden)}
    assert make_yes_or_no(Things((), {}), 5) == []


@pytest.mark.parametrize(
    "told", ["It has 4 species native to Norway.", "It has 4 species.", "It has a population of 140-190."]
)
def test_a_number_is_that_of_the_whole_thing(told: str) -> None:
    fact, value = ("population", "140") if "population" in told else ("species", "4")
    some = [
        Thing(name, name, "genus", False, {fact: (value if not n else str(200 + n), value if not n else str(200 + n))}, (name,),
              f"{name} is a genus. {told if not n else 'It is large.'}")
        for n, name in enumerate(f"Genus{letter}a" for letter in "bcdfghklm")
    ]  # fmt: skip
    made = make_yes_or_no(Things(tuple(some), {}), 12, min_of_a_kind=2)
    used = {title for question in made for title in question.supporting_titles}
    assert (some[0].title in used) == (told == "It has 4 species.")


@pytest.mark.parametrize(
    ("told", "known"),
    [
        ("1801 – 1871", {"born", "died"}),
        ("c. 1801 – 1871", {"died"}),
        ('born "circa" 1801; died 1871', {"died"}),
        ("1801 – after 1871?", {"born"}),
        ("1801 – 1871 or later", {"born"}),
    ],
)
def test_people_are_compared_by_dates_that_are_known(told: str, known: set[str]) -> None:
    names = [f"{a}{b}a {a}{b}ska" for a in ("Mo", "Ta", "Re") for b in ("l", "n", "r", "v")]
    pages = [
        Passage(
            f"p{n}", name, f"{name} ({told if not n else f'{1801 + n} – {1871 + n}'}) was a Polish painter. She taught."
        )
        for n, name in enumerate(names)
    ]
    made = make_yes_or_no(read_things(pages), 40)
    assert {q.metadata[WIDE]["fact"] for q in made if pages[0].title in q.supporting_titles} == known


def test_a_name_that_says_what_it_is_is_not_told_it_twice() -> None:
    names = ["Brenn Company", *(f"Brenn{letter}a" for letter in "bcdfghklm")]
    some = [
        Thing(name, name, "company", False, {"founded": (str(1901 + n), str(1901 + n))}, (name,), "")
        for n, name in enumerate(names)
    ]
    things = Things(tuple(some), {})
    made = [one for seed in range(8) for one in make_yes_or_no(things, 20, seed=seed, min_of_a_kind=2)]
    texts = [one.question.lower() for one in made]
    assert any("brenn company" in text for text in texts)
    assert any("the company brenn" in text for text in texts)
    assert not any("the company brenn company" in text for text in texts)


def test_every_group_of_facts_has_many_wordings() -> None:
    for fact, clauses in yes_or_no.CLAUSES.items():
        frames = len(set(clauses.asked)) * len(set(yes_or_no.ASKED)) + len(set(clauses.stated)) * len(
            set(yes_or_no.STATED)
        )
        assert frames >= 12, fact
        assert fact in FACT_WORDS
    for fact in ("born", "died"):
        assert len({*dates.WHEN[fact], *dates.ON_WHAT_DAY[fact], *dates.IN_WHAT_YEAR[fact]}) >= 20


def asked(wide: Wide, text: str) -> Question:
    return Question(
        text,
        answer_of(wide),
        id="y1",
        kind="parallel",
        supporting_titles=[step.title for step in wide.steps],
        parts=[QuestionPart([step.name]) for step in wide.steps],
        metadata={WIDE: wide.to_dict()},
    )


BRENN = Step("Ada Brenn", "Ada Brenn", "born", "1901", "4 May 1901")
DORN = Step("Carl Dorn", "Carl Dorn", "born", "1888", "12 June 1888")


@pytest.mark.parametrize(
    ("target", "steps", "verdict"),
    [
        ("before", (BRENN, DORN), "Ada Brenn: 1901 against 1888: after. Asked for: before. So no."),
        ("after", (BRENN, DORN), "Ada Brenn: 1901 against 1888: after. Asked for: after. So yes."),
        ("before", (DORN, BRENN), "Carl Dorn: 1888 against 1901: before. Asked for: before. So yes."),
    ],
)
async def test_a_lesson_looks_at_both_and_says_yes_or_no(target, steps, verdict, search, encoder) -> None:
    one, other = steps
    question = asked(Wide("compared", "born", target, steps), f"Was {one.name} born {target} {other.name}?")
    trajectory = await taught(question, search, encoder)
    assert [[query.text for query in turn.queries] for turn in trajectory.rounds] == [
        [f"{one.name} born", f"{other.name} born"]
    ]
    last = turns(trajectory)[-1]
    lines = re.sub(r"\[\d\]", "[n]", last.thought or "").splitlines()
    assert lines == [
        f"Asked for: yes or no, {one.name} born {target} {other.name}.",
        f"[n] {one.name}: born {one.words}.",
        f"[n] {other.name}: born {other.words}.",
        verdict,
    ]
    assert f"So {last.answer}." in verdict
    found = covered(trajectory)
    assert found is not None
    assert found.is_whole
    twin = await taught(question, search, encoder, "sequential")
    assert [[query.text for query in turn.queries] for turn in twin.rounds] == [
        [f"{one.name} born"],
        [f"{other.name} born"],
    ]
    assert turns(twin)[-1].thought.splitlines()[-1] == verdict
    assert f"{one.name}: born {one.words}." in turns(twin)[1].thought


async def test_numbers_are_looked_at_digit_by_digit(encoder) -> None:
    pages = {"Askvik": "Askvik is a village. It has a population of 6,871.", "Lund": "Lund has a population of 581."}
    world = Search(
        BM25Retriever.from_passages([Passage(title, title, text) for title, text in {**PAGES, **pages}.items()]), k=3
    )
    steps = tuple(
        Step(name, name, "population", value, value) for name, value in (("Lund", "581"), ("Askvik", "6,871"))
    )
    trajectory = await taught(
        asked(Wide("compared", "population", "more", steps), "is lund larger than askvik"), world, encoder
    )
    lines = (turns(trajectory)[-1].thought or "").splitlines()
    assert lines[0] == "Asked for: yes or no, population of Lund more than of Askvik."
    assert lines[-1] == "Lund: 581 against 6,871, 3 digits against 4: less. Asked for: more. So no."
    assert trajectory.answer == "no"


async def test_without_both_pages_there_is_no_verdict(search, encoder) -> None:
    lost = Step("Zed Quill", "Zed Quill", "born", "1850", "1850")
    question = asked(Wide("compared", "born", "before", (BRENN, lost)), "Was Ada Brenn older than Zed Quill?")
    for mode, max_turns in (("parallel", 4), ("sequential", 1)):
        chosen = settings(mode)
        chosen = settings(mode, limits=type(chosen.limits)(max_turns=max_turns, max_tokens=8000, timeout_s=None))
        _, report = await build_coldstart([question], search, encoder, chosen)
        assert report.reasons["y1"] == "page_not_found"


@pytest.mark.parametrize(
    ("ways", "digest"), [(wordings.EVALUATED, "a13eb1637da5a317"), (wordings.REWORDED, "df543d49cc034c61")]
)
def test_no_draw_of_the_evaluation_sets_has_changed(ways: wordings.Ways, digest: str) -> None:
    """A small stand-in for the published hashes, which need the real corpus: as it was before there was this form."""
    everything = read_things(PASSAGES)
    made = make_wide(everything, dict.fromkeys(range(2, 9), 24), seed=1, min_of_a_kind=8, ways=ways)
    made += make_wide_mixed(everything, {1: 6, 2: 24, 3: 18}, seed=1, min_of_a_kind=3, ways=ways)
    assert "compared" not in {question.type for question in made}
    assert hashlib.sha256(as_lines(made).encode()).hexdigest().startswith(digest)


# ---- dates -----------------------------------------------------------------------------------------------------------


def test_the_answer_is_the_one_of_two_dates_that_is_asked_for(when: list[Question]) -> None:
    assert len(when) == 80
    asked_for: Counter[str] = Counter()
    for question in when:
        (title,) = question.supporting_titles
        text = question.question.lower()
        is_death = re.search(r"\b(?:die|died|death|pass away)\b", text) is not None
        assert is_death != (re.search(r"\b(?:born|birth|birthday)\b", text) is not None), text
        year = FACTS[title]["died" if is_death else "born"]
        date = f"{'3 March' if is_death else '4 May'} {year}"
        assert question.golden_answers == ([year] if "year" in text else [date, year])
        assert "died" in FACTS[title] or not is_death
        asked_for["death" if is_death else "birth, both told" if "died" in FACTS[title] else "birth"] += 1
    assert asked_for["death"] == 40
    assert asked_for["birth, both told"] > asked_for["birth"] > 0
    assert {(question.dataset, question.kind) for question in when} == {(MADE_DATE, "single")}
    assert len({question.supporting_titles[0] for question in when}) == 80


@pytest.mark.parametrize(
    "told", ["c. 1801 – 1871", "1801 – c. 1871", "active 1801 – 1871", "May 19 , 1801 – 1871", "1801 – 1871?"]
)
def test_a_date_that_is_not_quite_known_is_not_asked_for(told: str) -> None:
    def made(dates: str) -> list[Question]:
        page = Passage("p", "Mola Nerska", f"Mola Nerska ({dates}) was a Polish painter. She taught.")
        return make_dates(read_things([page]).all, 1)

    assert made("1801 – 1871")
    assert not made(told)


def test_a_day_is_asked_for_where_the_page_gives_one() -> None:
    pages = [
        Passage(f"p{n}", name, f"{name} ({1800 + n} – {1870 + n}) was a Polish painter. She taught.")
        for n, name in enumerate(f"{a}{b}a {a}{b}ska" for a in ("Mo", "Ta", "Re", "Zu") for b in ("l", "n", "r", "v"))
    ]
    made = make_dates(read_things(pages).all, 16)
    assert len(made) == 16
    assert all(len(question.golden_answers) == 1 for question in made), "the page's words are the year"
    assert not any(re.search(r"what day|which day|on what date", question.question.lower()) for question in made)


DORNS = {"name": "Carl Dorn", "title": "Carl Dorn", "words": {"born": "12 June 1888", "died": "3 March 1950"}}


@pytest.mark.parametrize(
    ("fact", "golden", "thought"),
    [
        (
            "died",
            ["3 March 1950", "1950"],
            "Asked for: when Carl Dorn died. [1] Carl Dorn: born 12 June 1888, died 3 March 1950. Died: 3 March 1950.",
        ),
        (
            "born",
            ["12 June 1888", "1888"],
            "Asked for: when Carl Dorn was born. [1] Carl Dorn: born 12 June 1888, died 3 March 1950. Born: 12 June 1888.",
        ),
        (
            "died",
            ["1950"],
            "Asked for: the year when Carl Dorn died. [1] Carl Dorn: born 12 June 1888, died 3 March 1950. "
            "Died: 3 March 1950.",
        ),
    ],
)
async def test_a_lesson_says_what_each_date_is_before_it_takes_one(fact, golden, thought, search, encoder) -> None:
    question = Question(
        "when did carl dorn die", golden, id="d1", kind="single", supporting_titles=["Carl Dorn"],
        metadata={DATES: {**DORNS, "fact": fact, "is_year": len(golden) == 1}},
    )  # fmt: skip
    for mode in ("parallel", "sequential"):
        trajectory = await taught(question, search, encoder, mode)
        assert [query.text for query in trajectory.queries] == ["when did carl dorn die"]
        last = turns(trajectory)[-1]
        said = re.sub(r"\[\d\]", "[1]", last.thought or "")
        assert said.startswith(thought)
        assert golden[0] in said.removeprefix(thought)
        assert last.answer == golden[0]


async def test_a_date_that_is_not_shown_is_not_taught(search, encoder) -> None:
    def question(**changes: Any) -> Question:
        return Question(
            "When did Carl Dorn die?", ["1950"], id="d1", kind="single",
            metadata={DATES: {**DORNS, "fact": "died", **changes}},
        )  # fmt: skip

    for changes, why in (
        ({"title": "Zed Quill"}, "page_not_found"),
        ({"words": {"born": "1 May 1888", "died": "3 March 1950"}}, "answer_not_shown"),
    ):
        _, report = await build_coldstart([question(**changes)], search, encoder, settings())
        assert report.reasons["d1"] == why


# ---- a run -----------------------------------------------------------------------------------------------------------


async def test_nearly_all_can_be_taught(polar: list[Question], when: list[Question], encoder) -> None:
    world = Search(BM25Retriever.from_passages(PASSAGES), k=3)
    for mode in ("parallel", "sequential"):
        _, report = await build_coldstart([*polar[:40], *when[:40]], world, encoder, settings(mode))
        assert report.to_dict()["num_kept"] >= 72, report.reasons


def test_pages_that_are_kept_back_or_needed_are_not_used() -> None:
    rules = load_rules("english")
    typed = {"parallel": 200, "single": 200}
    every = rules.make(PASSAGES, {}, seed=0, forbidden=(), needed=(), kept_back=(), wide={}, typed=typed)
    assert {question.dataset for question in every} == {MADE_YES_NO, MADE_DATE}
    used = sorted({title for question in every for title in question.supporting_titles})
    kept_back, needed = set(used[::4]), set(used[1::4])
    made = rules.make(PASSAGES, {}, seed=0, forbidden=(), needed=needed, kept_back=kept_back, wide={}, typed=typed)
    assert made
    assert not {title for question in made for title in question.supporting_titles} & (kept_back | needed)
    named = used[2]
    made = rules.make(
        PASSAGES, {}, seed=0, forbidden={f"who was {named.lower()}"}, needed=(), kept_back=(), wide={}, typed=typed
    )
    assert named not in {title for question in made for title in question.supporting_titles}


def recipe_of(folder: Path, pages: Sequence[Passage] = PASSAGES, **changes: Any) -> ColdStartRecipe:
    row = {"id": "t1", "question": "What is Aske known for?", "golden_answers": ["salmon"], "kind": "single",
           "dataset": "hotpotqa"}  # fmt: skip
    lake = Passage("aske", "Aske", "Aske is a lake known for salmon.")
    return recipe_in(folder, [row], [*pages, lake], **ROOMY, **changes)


def test_a_run_teaches_them_and_validates_with_others(folder: Path) -> None:
    recipe = recipe_of(folder, num_typed={"parallel": 6, "single": 4}, num_typed_for_validation=2)
    report = coldstart_run.run_coldstart(recipe)
    assert report["num_made"] == {MADE_YES_NO: 6, MADE_DATE: 4}
    rows = {name: list(read_trajectories(folder / "out" / f"{name}.jsonl")) for name in ("parallel", "sequential")}
    for one in rows.values():
        assert Counter(row.dataset for row in one if row.dataset != "hotpotqa") == {MADE_YES_NO: 6, MADE_DATE: 4}
    for_rl = {question.question for question in read_questions(folder / "out" / "rl_made.jsonl")}
    assert for_rl == {row.question for row in rows["parallel"] if row.dataset != "hotpotqa"}
    validation = list(read_questions(folder / "out" / "validation.jsonl"))
    assert Counter(question.dataset for question in validation) == {MADE_YES_NO: 2, MADE_DATE: 2}
    assert not for_rl & {question.question for question in validation}


def test_a_question_of_the_sources_is_not_made_for_validation(folder: Path) -> None:
    """It would end the run when all is done: the same question in training and in validation."""
    recipe = recipe_of(folder, num_typed={"single": 4}, num_typed_for_validation=2)
    coldstart_run.run_coldstart(recipe)
    first, *_ = read_questions(folder / "out" / "validation.jsonl")
    row = {"question": first.question, "golden_answers": first.golden_answers, "id": "t2", "kind": "single",
           "dataset": "hotpotqa", "supporting_titles": first.supporting_titles}  # fmt: skip
    with (folder / "train.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    report = coldstart_run.run_coldstart(recipe.model_copy(update={"num_trajectories": {"single": 2}}))
    assert report["num_made"] == {MADE_DATE: 4}
    questions = {
        name: list(read_questions(folder / "out" / name)) for name in ("rl_questions.jsonl", "validation.jsonl")
    }
    assert first.question in {question.question for question in questions["rl_questions.jsonl"]}
    assert first.question not in {question.question for question in questions["validation.jsonl"]}
    assert len(questions["validation.jsonl"]) == 2


def test_what_was_made_for_training_is_not_made_again_for_validation(folder: Path) -> None:
    names = [f"{a}{b}a {a}{b}ska" for a in ("Mo", "Ta", "Re", "Zu", "Ki", "Lo") for b in "lnrvd"]
    pages = [
        Passage(
            f"b{n}", name, f"{name} ({n + 1} May 1801 – 1871) was a Polish painter. She was born on {n + 1} May 1801."
        )
        for n, name in enumerate(names)
    ]
    recipe = recipe_of(folder, pages, seed=19, num_made_facts=30, num_typed={"single": 2}, num_typed_for_validation=20)
    coldstart_run.run_coldstart(recipe)
    taught = {normalise(row.question) for row in read_trajectories(folder / "out" / "parallel.jsonl")}
    validation = {normalise(one.question) for one in read_questions(folder / "out" / "validation.jsonl")}
    assert len(taught) > 20
    assert len(validation) > 5
    assert not taught & validation


class OlderRules(EnglishRules):
    """Rules from before there were such questions."""

    def make(  # type: ignore[override]
        self, passages: Sequence[Passage], counts: Mapping[Any, int], *, seed: int, forbidden: Any, needed: Any,
        kept_back: Any, wide: Any,
    ) -> list[Question]:  # fmt: skip
        return super().make(passages, counts, seed=seed, forbidden=forbidden, kept_back=kept_back, wide=wide)


OLDER = OlderRules()


def test_rules_that_do_not_know_them_still_make_the_others(folder: Path) -> None:
    recipe = recipe_of(folder, num_wide={2: 2}, rules=f"{__name__}:OLDER")
    assert coldstart_run.run_coldstart(recipe)["num_made"] == {"made-wide": 2}
