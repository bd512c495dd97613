"""Questions of several parts: their answers follow from the pages, recomputed here from the world the pages are written from."""

from __future__ import annotations

from collections import Counter

import painters
import pytest

from parallelsearch.answers import exact_match
from parallelsearch.coldstart.english.from_pages import evaluation, wordings
from parallelsearch.coldstart.english.from_pages.told import Things, may_be, read_things, sure_enough
from parallelsearch.coldstart.english.from_pages.wide import make_wide, make_wide_mixed, widths_of
from parallelsearch.coldstart.english.wide import wide_of
from parallelsearch.coldstart.making import refuse_kept_back
from parallelsearch.coldstart.rules import load_rules
from parallelsearch.data.long_answers import label
from parallelsearch.data.made import Material
from parallelsearch.errors import UsageError
from parallelsearch.retrieval.base import Passage
from parallelsearch.trajectory import Question

_SYLLABLES = (
    "ba",
    "ke",
    "di",
    "fo",
    "gu",
    "ha",
    "je",
    "li",
    "mo",
    "nu",
    "pa",
    "re",
    "si",
    "to",
    "vu",
    "wa",
    "ze",
    "yo",
)
_NATIONS = ("Norwegian", "German", "Italian", "Japanese", "Mexican", "Canadian")
_COUNTRIES = ("Norway", "Poland", "Chile", "Kenya")


def _name(number: int, ending: str) -> str:
    a, b, c = number % 18, number // 18 % 18, (7 * number + 3) % 18
    return f"{_SYLLABLES[c]}{_SYLLABLES[a]}{_SYLLABLES[b]}{ending}".capitalize()


def _world() -> tuple[list[Passage], dict[str, dict[str, str]]]:
    """Pages of people, films, villages and genera, and what each says."""
    texts: dict[str, str] = {}
    facts: dict[str, dict[str, str]] = {}
    for number in range(180):
        name = f"{_name(number, 'n')} {_name(number, 'son')}"
        nation, born = _NATIONS[number % 6], 1810 + 7 * number % 130
        trade = ("painter", "film director", "footballer")[number % 3]
        died = f" – 3 March {born + 60}" if number % 2 else ""
        dates = f"4 May {born}{died}" if died else f"born 4 May {born}"
        texts[name] = f"{name} ({dates}) {'was' if died else 'is'} a {nation} {trade}. Prizes came late."
        facts[name] = {"born": str(born), "nation": nation, "is_a": trade.split()[-1]}
        if died:
            facts[name]["died"] = str(born + 60)
    directors = [name for name, told in facts.items() if told["is_a"] == "director"]
    for number, director in enumerate(directors):
        title, year = f"{_name(number, 'dor')} {_name(number, 'gate')}", 1920 + 37 * number % 90
        texts[title] = f"{title} is a {year} drama film directed by {director}."
        facts[title] = {"released": str(year), "director": director}
    for number in range(72):
        village, country = _name(number, "ville"), _COUNTRIES[number % 4]
        people = 120 + 37 * number
        texts[village] = f"{village} is a village in the hills of {country}. It has a population of {people}."
        facts[village] = {"country": country, "population": str(people)}
        genus, family = _name(number, "ella"), ("Noctuidae", "Miridae", "Fagaceae")[number % 3]
        texts[genus] = f"{genus} is a genus of moths in the family {family}. It has {number + 3} known species."
        facts[genus] = {"species": str(number + 3), "family": family}
    passages = [Passage(f"p{number}", title, text) for number, (title, text) in enumerate(texts.items())]
    return passages, facts


PASSAGES, FACTS = _world()


@pytest.fixture(scope="module")
def things() -> Things:
    return read_things(PASSAGES)


@pytest.fixture(scope="module")
def parallel(things: Things) -> list[Question]:
    return make_wide(things, dict.fromkeys(range(2, 9), 24), seed=1, min_of_a_kind=8)


@pytest.fixture(scope="module")
def mixed(things: Things) -> list[Question]:
    return make_wide_mixed(things, {1: 6, 2: 24, 3: 18}, seed=1, min_of_a_kind=3)


def test_pages_are_read_as_they_were_written(things: Things) -> None:
    found = {thing.title: {fact: value for fact, (value, _) in thing.told.items()} for thing in things.all}
    wrong = {title: (found.get(title), told) for title, told in FACTS.items() if found.get(title) != told}
    assert not wrong
    assert all(words in thing.text for thing in things.all for _, words in thing.told.values())


def expected(question: Question) -> list[str]:
    """The answer by the world, without the package's own rule."""
    wide = wide_of(question)
    assert wide is not None
    last = max(step.round for step in wide.steps)
    rows = [(step.of or step.name, FACTS[step.title][step.fact]) for step in wide.steps if step.round == last]
    if wide.form in ("first_of", "fewest_of"):
        return [min(rows, key=lambda row: int(row[1]))[0]]
    if wide.form in ("last_of", "most_of"):
        return [max(rows, key=lambda row: int(row[1]))[0]]
    if wide.target is None:
        return [value for _, value in rows]
    word, _, year = wide.target.partition(" ")
    by_year = {"before": lambda value: int(value) < int(year), "after": lambda value: int(value) > int(year)}
    fits = [name for name, value in rows if by_year.get(word, lambda value: value == wide.target)(value)]
    if wide.form == "how_many_of":
        return [str(len(fits))]
    if wide.form == "which_of":
        return fits
    return ["yes" if len(fits) == (len(rows) if wide.form == "all_of" else 0) else "no"]


def test_answers_follow_from_the_pages(parallel: list[Question], mixed: list[Question]) -> None:
    assert len(parallel) == 7 * 24
    assert len(mixed) == 48
    for question in [*parallel, *mixed]:
        items = expected(question)
        assert exact_match(", ".join(items), question.golden_answers), question
        if len(items) > 1:
            assert question.metadata["answer_raw"] == items
            assert question.golden_answers[0] == f"{', '.join(items[:-1])} and {items[-1]}"


def test_every_part_is_labelled(parallel: list[Question], mixed: list[Question]) -> None:
    ids = {passage.title: passage.id for passage in PASSAGES}
    for question in [*parallel, *mixed]:
        wide = wide_of(question)
        assert [(part.names[0], part.round) for part in question.parts] == [(s.name, s.round) for s in wide.steps]
        assert question.gold_passage_ids == {title: [ids[title]] for title in question.supporting_titles}
        assert {step.title for step in wide.steps} == set(question.supporting_titles)
        shown = question.question.lower()
        assert all(step.name.lower() in shown for step in wide.steps if step.round == 1)
        assert not any(step.name.lower() in shown for step in wide.steps if step.round == 2)
    assert Counter(len(question.parts) for question in parallel) == dict.fromkeys(range(2, 9), 24)
    assert all(len(q.parts) in widths_of(q.type) and q.kind == "parallel" for q in parallel)
    assert {len(question.parts) for question in mixed} == {3, 4, 6}
    assert {question.kind for question in mixed} == {"mixed"}
    assert len({question.type for question in parallel}) == 11


def test_answers_are_balanced(parallel: list[Question], mixed: list[Question]) -> None:
    polar = Counter(q.golden_answers[0] for q in parallel if q.type in ("all_of", "none_of"))
    assert abs(polar["yes"] - polar["no"]) <= 0.2 * polar.total()
    places: Counter[float] = Counter()
    for question in parallel:
        if question.type in ("first_of", "last_of", "most_of", "fewest_of"):
            names = [part.names[0] for part in question.parts]
            places[names.index(question.golden_answers[0]) < len(names) / 2] += 1
    assert abs(places[True] - places[False]) <= 0.25 * places.total()
    counts = Counter(q.golden_answers[0] for q in parallel if q.type == "how_many_of")
    assert max(counts.values()) <= 0.4 * counts.total()
    pairs = [q for q in mixed if q.type in ("first_of", "last_of") and len(q.parts) == 4]
    agree = 0
    for question in pairs:
        pick = min if question.type == "first_of" else max
        agree += (
            pick((q.names[0] for q in question.parts[:2]), key=lambda n: FACTS[n]["released"])
            == question.golden_answers[0]
        )
    assert abs(2 * agree - len(pairs)) <= 2, "the years of the films must be worth a coin"


def test_works_come_again_where_they_are_few(things: Things) -> None:
    few = make_wide_mixed(things, {1: 200, 2: 200, 3: 30}, seed=1, min_of_a_kind=3)
    more = make_wide_mixed(things, {1: 200, 2: 200, 3: 30}, seed=1, min_of_a_kind=3, max_uses=40)
    of_three = [sum(len(question.parts) == 6 for question in made) for made in (few, more)]
    assert of_three[0] < of_three[1] == 30
    uses = Counter(title for question in few for title in question.supporting_titles if title.endswith("gate"))
    assert max(uses.values()) <= 4


def test_the_seed_alone_decides(things: Things, parallel: list[Question]) -> None:
    again = make_wide(things, {2: 24}, seed=1, min_of_a_kind=8)
    assert [q.question for q in again] == [q.question for q in parallel[:24]]
    other = make_wide(things, {2: 24}, seed=2, min_of_a_kind=8)
    assert [q.question for q in other] != [q.question for q in again]


def test_forbidden_questions_do_not_come_out_nor_what_they_name() -> None:
    named = PASSAGES[0].title
    left = read_things(PASSAGES, forbidden=[f"where was {named.lower()} born"], needed=[PASSAGES[1].title])
    assert {PASSAGES[0].title, PASSAGES[1].title} & {thing.title for thing in left.all} == set()
    assert len(left.all) >= len(FACTS) - 4, "nothing else goes, but for the film of a director who is not to be used"


def test_every_form_has_many_wordings() -> None:
    forms = (
        wordings.FIRST, wordings.LAST, wordings.MOST, wordings.FEWEST, wordings.HOW_MANY, wordings.WHICH, wordings.ALL,
        wordings.BOTH, wordings.NONE, wordings.NEITHER, wordings.EACH_YEAR, wordings.EACH, wordings.OF_ONE,
        wordings.CRAFT_FIRST, wordings.CRAFT_LAST, wordings.CRAFT_HOW_MANY, wordings.CRAFT_WHICH, wordings.CRAFT_ALL,
        wordings.CRAFT_EACH,
    )  # fmt: skip
    assert all(len(set(form)) >= 6 for form in forms)


def test_questions_to_train_on_have_more_wordings_than_those_to_measure_with(things: Things) -> None:
    kinds = {"most_of", "fewest_of"}
    made = make_wide(things, {2: 60, 5: 60}, seed=1, min_of_a_kind=8, ways=wordings.TRAINED)
    of_two = [q.question.lower() for q in made if q.type in kinds and len(q.parts) == 2]
    assert of_two
    assert not any(word in text for text in of_two for word in ("largest", "smallest", "the most", "the fewest"))
    texts = [question.question.lower() for question in made]
    assert any(" vs " in text for text in texts)
    assert not any("these ones" in text for text in texts), "a genus has a plural"
    assert wordings.said_of("country", "Netherlands", with_article=True).one == "is in the Netherlands"
    assert wordings.said_of("country", "Netherlands").one == "is in Netherlands", "the evaluation sets stay as they are"


def test_what_happened_to_someone_is_no_person() -> None:
    text = "Simon Dale (17 June 1919 – 11 September 1987) was an English architect. He was killed at home."
    found = read_things([*PASSAGES, Passage("m", "Murder of Simon Dale", text)])
    assert "Murder of Simon Dale" in {thing.title for thing in found.all}
    assert {thing.title for thing in sure_enough(found).all} == {thing.title for thing in found.all} - {
        "Murder of Simon Dale"
    }


def test_a_nationality_is_the_persons_own() -> None:
    texts = {
        "Ola Nord": "Ola Nord (born 1 May 1990) is a Croatian footballer. He lives there.",
        "Ana Vuk": "Ana Vuk (born 2 May 1991) is a Montenegrin footballer who plays for Croatian club Sloga.",
        "Eve Lang": "Eve Lang (born 3 May 1970) is a painter of English landscapes.",
    }
    found = read_things([*PASSAGES, *(Passage(title, title, text) for title, text in texts.items())])
    assert all("nation" in thing.told for thing in found.all if thing.title in texts), "as the evaluation sets have it"
    told = {thing.title: set(thing.told) for thing in sure_enough(found).all}
    assert "nation" in told["Ola Nord"]
    assert "born" in told["Ana Vuk"]
    assert not any("nation" in told[name] for name in ("Ana Vuk", "Eve Lang"))


def test_a_list_of_things_is_none_of_them() -> None:
    text = "Zembla is a village in the hills of Norway. It has a population of 812."
    world = [*PASSAGES, Passage("z", "List of companies of Zembla", text)]
    made = load_rules("english").make(world, {"single": 400, "parallel": 400}, wide={"parallel": {2: 60}})
    assert made
    assert not any("List of" in title for question in made for title in question.supporting_titles)


def test_people_write_in_many_ways(parallel: list[Question]) -> None:
    texts = [question.question for question in parallel]
    assert 5 <= sum(text == text.lower() for text in texts) <= 50
    assert sum(text.startswith(("Please", "Could you", "I'd", "Can you", "Hello")) for text in texts) >= 4
    assert sum("the painter " in text or "the film " in text or "the footballer " in text for text in texts) >= 4


def test_an_occupation_of_the_same_sort_is_never_a_sure_no(things: Things) -> None:
    painter = next(thing for thing in things.all if thing.head == "painter")
    assert may_be(painter, "sculptor")
    assert not may_be(painter, "footballer")


# ---- steps that people wrote down ------------------------------------------------------------------------------------


def test_written_steps_say_when_and_how_to_split() -> None:
    steps = ["How loud is Ada Brenn?", "How loud is Carl Dorn?", "Is #2 greater than #1?"]
    question = Question("Is Carl Dorn louder?", ["yes"], dataset="strategyqa", metadata={"decomposition": steps})
    label(question)
    assert question.kind == "parallel"
    assert [part.names for part in question.parts] == [["Ada Brenn"], ["Carl Dorn"]]
    chain = ["What is Scampi made of?", "What have #1 been found to contain?", "Are #2 free from plastic?"]
    other = Question("Is scampi free of plastic?", ["no"], dataset="strategyqa", metadata={"decomposition": chain})
    label(other)
    assert other.kind == "sequential"


async def test_written_steps_are_asked_at_once_and_their_pages_quoted(search, encoder) -> None:
    steps = ["In which year was the painter Ada Brenn born?", "In which year was the painter Carl Dorn born?"]
    question = Question(
        "Could Carl Dorn have taught Ada Brenn?", ["yes"], "i1", "strategyqa", kind="parallel",
        supporting_titles=["Ada Brenn", "Carl Dorn"], metadata={"decomposition": [*steps, "Is #2 before #1?"]},
    )  # fmt: skip
    first, last = painters.turns(await painters.taught(question, search, encoder))
    assert list(first.queries) == [step.rstrip("?") for step in steps]
    assert "Ada Brenn" in (last.thought or "")
    assert "Carl Dorn" in (last.thought or "")
    assert last.answer == "yes"
    one, two, end = painters.turns(await painters.taught(question, search, encoder, "sequential"))
    assert (len(one.queries), len(two.queries), end.answer) == (1, 1, "yes")
    question.supporting_titles = ["Ada Brenn", "Somewhere"]
    assert await painters.reason(question, search, encoder) == "page_not_found"


async def test_written_steps_are_not_taught_where_the_pages_do_not_tell(search, encoder) -> None:
    steps = ["How fast does Ada Brenn run?", "How fast does Carl Dorn run?"]
    question = Question(
        "Could Carl Dorn outrun Ada Brenn?", ["no"], "i2", "strategyqa", kind="parallel",
        supporting_titles=["Ada Brenn", "Carl Dorn"], metadata={"decomposition": [*steps, "Is #2 more than #1?"]},
    )  # fmt: skip
    assert await painters.reason(question, search, encoder) == "page_not_found", "the names alone say nothing"
    question.metadata = {"decomposition": ["In which year was the painter Ada Brenn born?", "Is #1 before 1920?"]}
    assert await painters.reason(question, search, encoder) == "one_step"


# ---- pages kept back for evaluation ----------------------------------------------------------------------------------


def test_training_questions_are_made_without_the_pages_kept_back() -> None:
    rules = load_rules("english")
    kept = rules.kept_back(PASSAGES)
    assert 0.15 <= len(kept) / len(PASSAGES) <= 0.35
    films = {title: told["director"] for title, told in FACTS.items() if "director" in told}
    assert all((film in kept) == (director in kept) for film, director in films.items()), "a work goes with its maker"
    made = rules.make(
        PASSAGES, {"mixed": 8}, seed=0, forbidden=(), needed=(), kept_back=kept,
        wide={"parallel": {2: 8, 5: 8}, "mixed": {2: 4}},
    )  # fmt: skip
    assert Counter(question.kind for question in made) == {"parallel": 16, "mixed": 12}
    refuse_kept_back(made, kept)
    assert {title for question in made for title in question.supporting_titles} & kept == set()
    with pytest.raises(UsageError, match="kept back for evaluation"):
        refuse_kept_back([*made, Question("x", supporting_titles=[min(kept)])], kept)


def test_evaluation_questions_are_made_of_the_pages_kept_back_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class World(Material):
        passages, training_texts, training_titles = (
            PASSAGES,
            [f"who was {PASSAGES[0].title.lower()}"],
            {PASSAGES[1].title},
        )

    monkeypatch.setattr(evaluation, "NUM_OF_EACH_WIDTH", 2)
    monkeypatch.setattr(evaluation, "NUM_MIXED_WIDE", {})
    monkeypatch.setattr(evaluation, "NUM_BALANCED", 10)
    kept = load_rules("english").kept_back(PASSAGES)
    for make in (evaluation.wide, evaluation.mixed_balanced):
        found = make(World())
        assert found
        assert {title for question in found for title in question.supporting_titles} <= kept
        assert all(question.parts and question.gold_passage_ids for question in found)
