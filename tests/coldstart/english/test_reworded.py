"""The newer wordings: every template of every group asks what it should, in English; what is held out is not trained."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import fields, replace
from itertools import product

import pytest
from test_wide_questions import FACTS, PASSAGES, expected

from parallelsearch.answers import exact_match, normalise
from parallelsearch.coldstart.english.from_pages import evaluation, templates, wordings
from parallelsearch.coldstart.english.from_pages.reworded import Asked, filled, group_of, possessive
from parallelsearch.coldstart.english.from_pages.templates import HELD_OUT, TO_MEASURE, TO_TRAIN, TRAINED, Templates
from parallelsearch.coldstart.english.from_pages.told import Thing, Things, read_things, sure_enough
from parallelsearch.coldstart.english.from_pages.wide import make_wide, make_wide_mixed
from parallelsearch.coldstart.english.wide import Form, Step, Wide, wide_of
from parallelsearch.coldstart.rules import load_rules
from parallelsearch.data.made import Material
from parallelsearch.retrieval.base import Passage
from parallelsearch.trajectory import Question

PEOPLE = ("Tobi Kern", "Vera Lind", "Nils Berg", "Rosa Mayr", "Paul Dahl")
FILMS = ("Red Gate", "Dim Hills", "Lost Ferry", "Moss Lane", "Wet Stone")
VILLAGES = ("Belbury", "Corvik", "Dolmen", "Fastnet", "Garsa")


def person(number: int) -> Thing:
    name = PEOPLE[number]
    told = {"born": str(1900 + number), "died": str(1960 + number), "nation": ("Norwegian", "German")[number % 2]}
    return Thing(name, name, "painter", True, {fact: (value, value) for fact, value in told.items()}, (name,))


def film(number: int) -> Thing:
    name = FILMS[number]
    told = {"released": str(1930 + number), "director": PEOPLE[number]}
    return Thing(name, name, "film", False, {fact: (value, value) for fact, value in told.items()}, (name,))


def village(number: int) -> Thing:
    name = VILLAGES[number]
    told = {"population": str(300 + number), "country": ("Norway", "Netherlands")[number % 2]}
    return Thing(name, name, "village", False, {fact: (value, value) for fact, value in told.items()}, (name,))


def asked(form: Form, fact: str | None, width: int, target: str | None = None, num_fitting: int = 1) -> Asked:
    make = {"released": film, "director": film, "population": village, "country": village}.get(fact or "", person)
    things = [make(number) for number in range(width)]
    steps = [
        Step(thing.name, thing.title, fact or "", *thing.told[fact or ""], (number < num_fitting) if target else None)
        for number, thing in enumerate(things)
    ]
    words = {person: ("painters", "painter"), film: ("films", "film"), village: ("villages", "village")}[make]
    return Asked(Wide(form, fact, target, tuple(steps)), things, False, *words)


def asked_of_makers(form: Form, fact: str, width: int, target: str | None = None) -> Asked:
    films, makers = ([make(number) for number in range(width)] for make in (film, person))
    first = [Step(one.name, one.title, "director", *one.told["director"]) for one in films]
    then = [
        Step(one.name, one.title, fact, *one.told[fact], number == 0 if target else None, 2, films[number].name)
        for number, one in enumerate(makers)
    ]
    return Asked(Wide(form, fact, target, (*first, *then)), films, True, "films", "film")


def several(width: int) -> Asked:
    things = [person(0), film(1), village(2), village(3)][:width]
    facts = ("born", "director", "population", "country")
    steps = [Step(one.name, one.title, fact, *one.told[fact]) for one, fact in zip(things, facts, strict=False)]
    return Asked(Wide("several_questions", None, None, tuple(steps)), things, False, "things", "one")


def of_one(is_mixed: bool = False) -> Asked:
    one = person(0)
    steps = [Step(one.name, one.title, fact, *one.told[fact]) for fact in ("born", "nation")]
    if is_mixed:
        work = film(0)
        first = Step(work.name, work.title, "director", *work.told["director"])
        then = [replace(step, round=2, of=work.name) for step in steps]
        return Asked(Wide("facts_of_one", None, None, (first, *then)), [work], True, "films", "film")
    return Asked(Wide("facts_of_one", None, None, tuple(steps)), [one], False, "painters", "painter")


FORMS: dict[str, list[Asked]] = {
    "order": [
        asked(form, fact, width) for form in ("first_of", "last_of") for fact in ("born", "died", "released")
        for width in (2, 3, 5)
    ],
    "adjective": [
        asked(form, fact, width) for form, fact in (("first_of", "born"), ("last_of", "released"), ("most_of", "population"))
        for width in (2, 4)
    ],
    "amount": [asked(form, "population", width) for form in ("most_of", "fewest_of") for width in (2, 4)],
    "how_many": [asked("how_many_of", "nation", 3, "Norwegian"), asked("how_many_of", "died", 2, "before 1950")],
    "which": [asked("which_of", "country", 4, "Netherlands", 2), asked("which_of", "born", 5, "after 1903", 2)],
    "which_one": [asked("which_of", "nation", 2, "Norwegian"), asked("which_of", "released", 3, "before 1931")],
    "all": [asked("all_of", "nation", 3, "Norwegian"), asked("all_of", "died", 4, "before 1950")],
    "both": [asked("all_of", "born", 2, "before 1950"), asked("all_of", "country", 2, "Norway")],
    "none": [asked("none_of", "nation", 3, "Irish"), asked("none_of", "died", 4, "before 1950")],
    "neither": [asked("none_of", "nation", 2, "Irish"), asked("none_of", "released", 2, "after 1950")],
    "each": [asked("each", fact, width) for fact in ("born", "nation", "director", "population") for width in (2, 5)],
    "repeated": [asked("each", fact, width) for fact in ("died", "country", "director") for width in (2, 4)],
    "several": [several(width) for width in (2, 3, 4)],
    "of_one": [of_one()],
    "mixed_of_one": [of_one(is_mixed=True)],
    "mixed_order": [asked_of_makers(form, "born", width) for form in ("first_of", "last_of") for width in (2, 3)],
    "mixed_how_many": [asked_of_makers("how_many_of", "nation", 3, "Norwegian")],
    "mixed_which": [asked_of_makers("which_of", "nation", 2, "Norwegian")],
    "mixed_all": [asked_of_makers("all_of", "nation", width, "Norwegian") for width in (2, 3)],
    "mixed_each": [asked_of_makers("each", "nation", width) for width in (2, 3)],
}  # fmt: skip
OF_MORE = re.compile(
    r"\b(?:oldest|youngest|newest|earliest|latest|the most|the fewest|biggest|largest|smallest|\w+st populous)\b"
)
OF_TWO = re.compile(r"\b(?:older|younger|newer|earlier|later|bigger|larger|smaller|both|neither|two|more \w+|fewer)\b")


@pytest.mark.parametrize("group", FORMS)
@pytest.mark.parametrize("side", [TO_TRAIN, TO_MEASURE], ids=["trained", "held out"])
def test_every_template_asks_what_it_should(side: Templates, group: str) -> None:
    for template, (number, one), seed in product(side.groups[group], enumerate(FORMS[group]), range(6)):
        names = [thing.name for thing in one.things]
        text = filled(template, one, side, random.Random(f"{seed}/{number}"))
        said = f"{template!r} gave {text!r}"
        assert not re.search(r"[{}]|  | [,?.;]|,[,?.:;]|\?\.|\.\.|,$|\(\)|''", text), said
        assert text[0].isupper() or text == text.lower(), said
        places = [text.lower().find(name.lower()) for name in names]
        assert -1 not in places, said
        assert places == sorted(places), f"the answer is in the order of the question: {said}"
        assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n [^aeiou]", text), said
        assert one.wide.target is None or one.wide.target.lower() in text.lower(), said
        if len(names) > 1:
            assert not (OF_MORE if len(names) == 2 else OF_TWO).search(text), said


def test_every_group_can_be_met_and_is_on_both_sides() -> None:
    assert TRAINED.keys() == HELD_OUT.keys() == FORMS.keys()
    for group, some in FORMS.items():
        rng = random.Random(0)
        assert all(any(group_of(one, rng) == group for _ in range(40)) for one in some), group


def test_number_and_case_agree() -> None:
    rng = random.Random(0)

    def said(template: str, one: Asked) -> str:
        return re.sub(r"(?:Hey|Hi).*", "", filled(template, one, TO_TRAIN, rng)).lower()

    pair = asked("all_of", "nation", 2, "Norwegian")
    assert "are both norwegian" in said("I'm trying to find out if {and} {together}", pair)
    dead = asked("all_of", "died", 3, "before 1950")
    assert "all died before 1950" in said("Tell me whether {and} {together}.", dead)
    assert "did they all die before 1950" in said("{bare}: {opens} they all {rest}?", dead)
    assert "in the netherlands" in said(
        "Which ones of {and} {several}?", asked("which_of", "country", 3, "Netherlands")
    )
    assert said("{What} are the {nouns} of {and}?", asked("each", "director", 2)).startswith("who are the directors")
    assert [possessive(name) for name in ("Rosa Mayr", "Hans Riis")] == ["Rosa Mayr's", "Hans Riis'"]


def test_slips_are_never_in_a_name_and_small_letters_spare_the_parts() -> None:
    one = asked("first_of", "born", 3)
    texts = [filled(TRAINED["order"][8], one, TO_TRAIN, random.Random(seed)) for seed in range(400)]
    slips = [text for text in texts if re.search(r"\b(?:tryng|otu|wich|whcih)\b", text, re.IGNORECASE)]
    assert 5 <= len(slips) <= 60
    assert all(name.lower() in text.lower() for text in texts for name in PEOPLE[:3])
    assert 20 <= sum(text == text.lower() for text in texts) <= 110


def test_names_without_a_mark_between_them_keep_their_capitals() -> None:
    one = asked("first_of", "born", 3)
    texts = [filled("Which one of them {did} {first}: {run}", one, TO_TRAIN, random.Random(seed)) for seed in range(60)]
    assert all("Tobi Kern Vera Lind Nils Berg" in text for text in texts)
    other = replace(one, things=[*one.things[:2], replace(one.things[2], name="Nils van Berg")])
    assert ", " in filled("{run}: {who} {did} {first}?", other, TO_TRAIN, random.Random(0))
    lines = [filled("{Who} {did} {first}?{lines}", one, TO_TRAIN, random.Random(seed)) for seed in range(200)]
    plain = [text for text in lines if re.search(r"\n(?:the painter (?:called )?)?Tobi", text)]
    assert len(plain) > 20
    assert any("\n- tobi kern" in text for text in lines)
    assert not any("\ntobi" in text for text in lines)


def test_a_clause_behind_a_name_tells_something_else() -> None:
    one = asked("first_of", "born", 2)
    texts = [filled("Between {and}, {who} {did} {first}?", one, TO_TRAIN, random.Random(seed)) for seed in range(300)]
    clauses = [text for text in texts if "who died in 196" in text]
    assert clauses, "it looks like a chain and is none"
    assert not any(re.search(r"who was born in|who is (?:norwegian|german)", text.lower()) for text in clauses)
    assert any(
        re.search(r"Kern, who died in 1960, (?:and|&) Vera Lind, who died in 1961, who was born", t) for t in texts
    )


# ---- what is held out ------------------------------------------------------------------------------------------------


def older_wordings() -> set[str]:
    found: set[str] = set()
    for value in vars(wordings).values():
        if isinstance(value, tuple) and value and all(isinstance(one, str) for one in value):
            found.update(value)
    for ways in (wordings.EVALUATED, wordings.TRAINED):
        for one in fields(ways):
            value = getattr(ways, one.name)
            found.update(value if isinstance(value, tuple) else ())
    return found


def test_no_held_out_wording_is_trained() -> None:
    """Templates are compared without slots' case and marks: a wording with another comma is the same wording."""

    def key(template: str) -> str:
        return " ".join(re.findall(r"[a-z_]+", template.lower()))

    older = {key(template) for template in older_wordings()}
    assert len(older) > 100
    for group, held in HELD_OUT.items():
        trained = {key(template) for template in TRAINED[group]}
        assert not {key(template) for template in held} & (trained | older), group
        assert 0.1 <= len(held) / (len(held) + len(trained)) <= 0.35, group
    assert not set(TO_TRAIN.bullets) & set(TO_MEASURE.bullets)
    assert not {*TO_TRAIN.before, *TO_TRAIN.after} & {*TO_MEASURE.before, *TO_MEASURE.after}
    assert not set(TO_TRAIN.versus) & set(TO_MEASURE.versus)
    num_held = sum(map(len, HELD_OUT.values()))
    assert num_held / (num_held + sum(map(len, TRAINED.values()))) == pytest.approx(0.2, abs=0.03)


ONLY_HELD_OUT = re.compile(
    r"(?:^|: )Say |\b(?:Am I right|in mind|Keep only|How about|every one of them|line up|go down the list|Fill in|fill in"
    r"|Make me|Please answer|While you are|given this list|Here is my list|Find the \w+ of the|On another note|just like)\b",
    re.IGNORECASE,
)


@pytest.fixture(scope="module")
def things() -> Things:
    return sure_enough(read_things(PASSAGES))


def made(things: Things, ways: wordings.Ways) -> list[Question]:
    parallel = make_wide(
        things, {**dict.fromkeys(range(2, 9), 40), 3: 150}, seed=3, min_of_a_kind=8, ways=ways, max_uses=99
    )
    return [*parallel, *make_wide_mixed(things, {1: 6, 2: 20, 3: 10}, seed=3, min_of_a_kind=3, ways=ways, max_uses=99)]


@pytest.fixture(scope="module")
def to_train(things: Things) -> list[Question]:
    return made(things, replace(wordings.TRAINED, newer_share=1.0))


@pytest.fixture(scope="module")
def to_measure(things: Things) -> list[Question]:
    return made(things, wordings.REWORDED)


def test_answers_and_parts_are_right_whatever_the_words(to_train: list[Question], to_measure: list[Question]) -> None:
    for question in [*to_train, *to_measure]:
        wide = wide_of(question)
        assert wide is not None
        assert exact_match(", ".join(expected(question)), question.golden_answers), question
        assert [(part.names[0], part.round) for part in question.parts] == [(s.name, s.round) for s in wide.steps]
        text = question.question.lower()
        assert all(step.name.lower() in text for step in wide.steps if step.round == 1), question.question
        assert not any(step.name.lower() in text for step in wide.steps if step.round == 2), question.question
    assert len({question.type for question in to_train}) == 11


def test_training_questions_have_none_of_the_held_out_words(
    to_train: list[Question], to_measure: list[Question]
) -> None:
    leaked = [question.question for question in to_train if ONLY_HELD_OUT.search(question.question)]
    assert not leaked
    assert sum(bool(ONLY_HELD_OUT.search(question.question)) for question in to_measure) > 0.5 * len(to_measure)
    rules = load_rules("english")
    wide = {"parallel": dict.fromkeys(range(2, 6), 40), "mixed": {2: 10}}
    texts = [q.question for q in rules.make(PASSAGES, {}, wide=wide, kept_back=rules.kept_back(PASSAGES))]
    assert len(texts) > 150
    assert not any(ONLY_HELD_OUT.search(text) for text in texts)
    older = [text for text in texts if re.match(r"(?:Among|Of|Compare|Look at|Take the) ", text)]
    assert older, "the older wordings are still trained"
    assert sum("\n" in text for text in texts) > 8


def test_training_has_many_shapes(to_train: list[Question]) -> None:
    texts = [question.question for question in to_train]
    shapes = {
        "on lines": r"\n",
        "numbered": r"\n1[.)] ",
        "semicolons": r"; .*; ",
        "slashes": r" / ",
        "without a mark": r"[^?.!]$",
        "versus": r" (?:vs\.?|versus) ",
        "or or": r" or [^,]+ or ",
        "and and": r" and [^,]+ and ",
        "possessive": r"'s,? (?:and|year|birth|nation|\w+)",
        "subordinate": r"(?i)i'm trying to",
        "two questions": r"\? (?:And|Also|What|Who|Same|Where|How|In) ?",
        "described": r"the (?:painter|film|village|genus|footballer|director) (?:called )?[A-Z]",
        "in brackets": r"\((?:painter|film|village|genus|footballer|director)\)",
        "small letters": r"^[^A-Z]+$",
    }
    missing = [name for name, shape in shapes.items() if not any(re.search(shape, text) for text in texts)]
    assert not missing


def test_the_held_out_set_is_made_of_pages_kept_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class World(Material):
        passages, training_texts, training_titles = (
            PASSAGES,
            [f"who was {PASSAGES[0].title.lower()}"],
            {PASSAGES[1].title},
        )

    monkeypatch.setattr(evaluation, "NUM_REWORDED", 4)
    monkeypatch.setattr(evaluation, "NUM_MIXED_REWORDED", {2: 2})
    found = evaluation.wide_reworded(World())
    kept = load_rules("english").kept_back(PASSAGES)
    assert {question.dataset for question in found} == {"wide-reworded"}
    assert Counter(len(q.parts) for q in found if q.kind == "parallel")[8] == 4
    assert {title for question in found for title in question.supporting_titles} <= kept
    assert all(question.parts and question.gold_passage_ids for question in found)
    others = {normalise(question.question) for question in evaluation_set(World(), monkeypatch)}
    assert not {normalise(question.question) for question in found} & others


def evaluation_set(world: object, monkeypatch: pytest.MonkeyPatch) -> list[Question]:
    monkeypatch.setattr(evaluation, "NUM_OF_EACH_WIDTH", 4)
    monkeypatch.setattr(evaluation, "NUM_MIXED_WIDE", {2: 2})
    return evaluation.wide(world)


def test_the_evaluated_wordings_are_the_older_ones_alone(things: Things) -> None:
    assert wordings.EVALUATED.newer is None
    texts = [q.question for q in make_wide(things, {2: 30, 4: 30}, seed=1, min_of_a_kind=8)]
    assert not any("\n" in text or " / " in text or "I'm trying" in text for text in texts)
    assert all(len(set(some)) == len(some) for some in templates.TRAINED.values())


# ---- pages that were misread -----------------------------------------------------------------------------------------


def test_a_crusade_was_not_born() -> None:
    crusade = "The Albigensian Crusade (1209–1229) was a 20-year military campaign. It was initiated by a pope."
    cantonment = "Grand Cantonment (1806–1881) was a military cantonment of the British Raj."
    people = {
        "Otto Wall": "Otto Wall (1806–1881) was a Norwegian campaigner. He wrote letters.",
        "Ole Strand": "Ole Strand (4 May 1806 – 1881) was a campaigner.",
        "James Forgan": "The Very Rev James Forgan (1876–1966) was a minister. He served for long.",
        "Irv Amen": "Irv Amen (1918–2011) was an American painter.",
    }
    texts = {"Albigensian Crusade": crusade, "Grand Cantonment": cantonment, **people}
    found = read_things([*PASSAGES, *(Passage(title, title, text) for title, text in texts.items())])
    told = {thing.title: thing.told for thing in found.all}
    assert all("born" in told[title] for title in texts), "as the evaluation sets have it"
    kept = {thing.title for thing in sure_enough(found).all}
    assert kept & texts.keys() == people.keys()
    assert kept - texts.keys() == FACTS.keys()


def test_comparisons_do_not_ask_for_the_birth_of_a_crusade() -> None:
    campaigns = [
        Passage(
            f"c{number}",
            f"{name} Crusade",
            f"The {name} Crusade ({year}–{year + 20}) was a military campaign. It ended.",
        )
        for number, (name, year) in enumerate(
            zip(("Red", "Blue", "Green", "White", "Black", "Gray") * 9, range(1200, 1260), strict=False)
        )
    ]
    unique = {passage.title: passage for passage in campaigns}
    names = [f"{a}{b}" for a in ("Ar", "Bel", "Cor", "Dun", "Esk") for b in ("dan", "mor", "vin", "lok", "ren", "tas")]
    for number, name in enumerate(names):
        year = 1100 + 7 * number
        unique[f"{name} Campaign"] = Passage(
            f"n{number}",
            f"{name} Campaign",
            f"The {name} Campaign ({year}–{year + 20}) was a military campaign. It ended.",
        )
    asked_for = load_rules("english").make(list(unique.values()), {"parallel": 80})
    assert asked_for
    assert not any("born" in question.question or question.question.startswith("Who") for question in asked_for)


def test_half_a_number_and_a_river_on_a_border_are_left_out() -> None:
    texts = {
        "Batum": "Batum is a city on the coast of Poland. With a population of 154 100, it is a port.",
        "Amur Darya": "Amur Darya is a river in Chile. It was the boundary of two empires.",
        "Plain Darya": "Plain Darya is a river in Chile. It is long.",
    }
    found = read_things([*PASSAGES, *(Passage(title, title, text) for title, text in texts.items())])
    before = {thing.title: set(thing.told) for thing in found.all}
    assert "population" in before["Batum"]
    assert "country" in before["Amur Darya"]
    after = {thing.title: set(thing.told) for thing in sure_enough(found).all}
    assert after["Batum"] == {"country"}
    assert "Amur Darya" not in after
    assert after["Plain Darya"] == {"country"}
