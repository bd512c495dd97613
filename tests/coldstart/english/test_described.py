"""Questions about somebody who is described: what is made, that the pages decide, and that it is taught in the right order."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from small_runs import ROOMY, recipe_in

from parallelsearch.answers import exact_match
from parallelsearch.coldstart import run as coldstart_run
from parallelsearch.coldstart.english.from_pages.described import MADE_DESCRIBED, MAX_USES, make_described
from parallelsearch.coldstart.english.from_pages.pages import read_pages
from parallelsearch.coldstart.english.from_pages.roles import KINDS_OF_THINGS, PEOPLE, ROLES
from parallelsearch.coldstart.english.from_pages.told import Things, read_things, sure_enough, with_whole_places
from parallelsearch.coldstart.english.wide import FACTS, wide_of
from parallelsearch.coldstart.lesson import CHANGED, ColdStartSettings
from parallelsearch.coldstart.run import TokenizerEncoder
from parallelsearch.coldstart.tutor import build_coldstart
from parallelsearch.limits import Limits
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.search import Search
from parallelsearch.training.smoke import make_tokenizer
from parallelsearch.trajectory import Kind, Question, Trajectory, read_trajectories

pytest.importorskip("transformers")

_FIRST = ("Ada", "Carl", "Edda", "Gustav", "Ingrid", "Knut", "Mette", "Olav", "Rolf", "Sigrid", "Tora", "Ulf")
_LAST = ("Brenn", "Dorn", "Falk", "Hald", "Juhl", "Lerche", "Nyborg", "Quist", "Sand", "Thorn", "Vik", "Wold")
_TOWNS = ("Askvik", "Borgsund", "Dalholm", "Elvestad", "Fjordnes", "Grenvik")
_HOUSES = ("Ardmoor", "Bellwyn", "Corrigal", "Dunrossa", "Elderby", "Farnholt", "Gilmora", "Harwick")
_NATIONS = ("Danish", "Norwegian", "French")
COUNTS: dict[Kind, int] = {"single": 20, "sequential": 30, "mixed": 20}


def world() -> list[Passage]:
    """Houses and towns of which little is told, novels, and painters with their dates, birthplaces and nations."""
    houses = [
        Passage(f"h{number}", name, f"{name} is a country house near the sea. It has a long garden.")
        for number, name in enumerate([*_HOUSES, *(f"{name}en" for name in _HOUSES)])
    ]
    towns = [
        Passage(f"t{number}", name, f"{name} is a town in Norway. It had a population of {2000 + 37 * number}.")
        for number, name in enumerate(_TOWNS)
    ]
    novels = [
        Passage(
            f"n{number}", f"The {name} Hour", f"The {name} Hour is a novel published in {1920 + number}. It is long."
        )
        for number, name in enumerate(("Amber", "Copper", "Ivory", "Silver", "Velvet", "Willow"))
    ]
    painters = [
        Passage(
            f"p{number}",
            f"{one} {other}",
            f"{one} {other} ({number + 1} May {1901 + number} – {number + 3} June {1970 + number}) was a "
            f"{_NATIONS[number % 3]} painter. {'She' if number % 2 else 'He'} was born in {_TOWNS[number % 6]}.",
        )
        for number, (one, other) in enumerate(
            zip([*_FIRST, *(f"{name}ine" for name in _FIRST)], [*_LAST, *(f"{name}sen" for name in _LAST)], strict=True)
        )
    ]
    return [*houses, *towns, *novels, *painters]


def made(seed: int = 0) -> list[Question]:
    passages = world()
    return make_described(read_things(passages), read_pages(passages, ()), passages, COUNTS, seed=seed)


def chains(passages: list[Passage], *told: tuple[str, dict[str, tuple[str, str]]]) -> list[Question]:
    """Chains from these passages, where pages that begin so tell more than they say."""
    found = read_things(passages)
    more = [
        replace(
            thing, told={**thing.told, **next((facts for start, facts in told if thing.title.startswith(start)), {})}
        )
        for thing in found.all
    ]
    things = with_whole_places(sure_enough(Things(tuple(more), found.makers)))
    return make_described(things, read_pages(passages, ()), passages, {"sequential": 120})


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    return made()


@pytest.fixture(scope="module")
def search() -> Search:
    return Search(BM25Retriever.from_passages(world()), k=3)


@pytest.fixture(scope="module")
def encoder() -> TokenizerEncoder:
    return TokenizerEncoder(make_tokenizer(), max_context=16384)


def settings(mode: str) -> ColdStartSettings:
    limits = Limits(
        max_turns=9, max_observation_tokens=4000, max_tokens_per_turn=2000, max_tokens=16000, timeout_s=None
    )
    return ColdStartSettings(mode="sequential" if mode == "sequential" else "parallel", limits=limits, max_tokens=16000)


def test_every_role_is_a_fact_and_leads_to_what_there_is() -> None:
    assert {role.fact for role in ROLES} <= set(FACTS)
    assert {role.who for role in ROLES} <= {*PEOPLE, *KINDS_OF_THINGS}
    for role in ROLES:
        assert all("{y}" in way for way in role.said), role.fact
        assert all("{x}" in way or "{own}" in way for way in (*role.phrases, *role.asks)), role.fact
        told = [way.format(x="A", it="It", y="B") for way in role.said]
        assert any(re.search(role.told, way) for way in told), f"{role.fact}: a page that tells it is not seen"


def test_who_wrote_what_somebody_wrote_is_not_asked() -> None:
    found = [wide_of(one) for one in chains(world(), ("The ", {"author": ("Zed Quill", "Zed Quill")}))]
    asked = {(wide.steps[0].fact, wide.steps[1].fact) for wide in found if wide is not None}
    assert ("novel", "published") in asked
    assert ("novel", "author") not in asked


@pytest.mark.parametrize("more", [" Owned by Zed Quill, it is closed.", None])
def test_no_page_is_made_to_say_what_another_part_of_it_says_otherwise(more: str | None) -> None:
    told = [replace(page, text=page.text + (more or "")) if page.id[0] == "h" else page for page in world()[1:]]
    later = [] if more else [Passage(f"{page.id}-2", page.title, "Its owner is Zed Quill.") for page in told]
    found = [wide_of(one) for one in chains([*told, *later])]
    asked = {wide.steps[0].fact for wide in found if wide is not None}
    assert "architect" in asked
    assert "owner" not in asked


def test_a_name_that_says_what_it_is_is_not_told_it_twice() -> None:
    pages = [
        replace(page, title=f"{page.title} House", text=page.text.replace(page.title, f"{page.title} House", 1))
        if page.id[0] == "h"
        else page
        for page in world()
    ]
    texts = [one.question for one in chains(pages)]
    assert any(" house" in text.lower() for text in texts)
    assert not any("the house" in text.lower() for text in texts)


def test_a_day_is_asked_for_where_the_page_has_one_and_a_date_where_it_is_known() -> None:
    def asked(died: str) -> set[str]:
        pages = [replace(page, text=re.sub(r"– \d+ June (\d+)\)", rf"– {died})", page.text)) for page in world()]
        found = [wide_of(one) for one in chains(pages)]
        return {wide.steps[1].fact for wide in found if wide is not None}

    assert {"born", "born_on", "died", "died_on"} <= asked(r"3 June \1")
    assert {"born", "born_on", "died"} <= asked(r"June \1")
    assert "died_on" not in asked(r"June \1")
    assert not {"died", "died_on"} & asked(r"c. 3 June \1")


@pytest.mark.parametrize(
    ("place", "is_asked", "is_town"),
    [
        ("Askvik.", True, True),
        ("Askvik and died there.", True, True),
        ("Norway.", True, False),
        ("St. Louis, Missouri.", False, False),
        ("Bosnia and Herzegovina.", False, False),
    ],
)
def test_a_place_of_birth_is_whole_and_only_a_town_is_asked_for_as_one(
    place: str, is_asked: bool, is_town: bool
) -> None:
    pages = [replace(page, text=re.sub(r"born in \w+\.", f"born in {place}", page.text)) for page in world()]
    found = [(wide_of(one), one.question) for one in chains(pages)]
    texts = [text for wide, text in found if wide is not None and wide.steps[1].fact == "birthplace"]
    assert bool(texts) == is_asked
    assert any("town" in text for text in texts) == is_town


def test_the_seed_decides_and_no_page_is_used_too_often(questions: list[Question]) -> None:
    assert [one.question for one in made()] == [one.question for one in questions]
    assert [one.question for one in made(1)] != [one.question for one in questions]
    assert {one.dataset for one in questions} == {MADE_DESCRIBED}
    for kind in COUNTS:
        assert sum(one.kind == kind for one in questions) >= 0.7 * COUNTS[kind]
    uses = [title for one in questions for title in one.supporting_titles or ()]
    assert max(uses.count(title) for title in set(uses)) <= MAX_USES


def test_a_corpus_without_such_pages_gives_none() -> None:
    for pages in ([], world()[:3], [Passage("x", "Bread", "Bread is a food. It is baked.")]):
        assert make_described(read_things(pages), read_pages(pages, ()), pages, COUNTS) == []


def led_to(question: Question) -> list[Passage]:
    """Who or what each changed page names that it did not name before, read without the maker's own record of it."""
    before = {passage.id: passage for passage in world()}
    found = []
    for identifier, text in (question.metadata or {})[CHANGED].items():
        (name,) = [one for one in before.values() if one.title in text and one.title not in before[identifier].text]
        found.append(name)
    return found


def facts_of(page: Passage) -> dict[str, set[str]]:
    """What a page tells, by the words that questions ask for it with."""
    life = re.search(r"\((?P<born>\d+ \w+ (\d{4})) – (?P<died>\d+ \w+ (\d{4}))\)", page.text)
    place = re.search(r"born in (\w+)", page.text)
    return {
        r"born|birth": {life["born"], life[2]} | {place[1]} if life and place else set(),
        r"\bdie|death": {life["died"], life[4]} if life else set(),
        r"come from|is .* from|place": {place[1]} if place else set(),
        r"national": {nation for nation in _NATIONS if nation in page.text},
        r"population|inhabitants|people live": set(re.findall(r"population of (\d+)", page.text)),
        r"country": {"Norway"} if "Norway" in page.text else set(),
        r"publish|come out|came out": set(re.findall(r"published in (\d{4})", page.text)),
    }


def test_a_chain_asks_for_a_fact_of_whoever_the_changed_page_names(questions: list[Question]) -> None:
    chains = [one for one in questions if one.kind == "sequential"]
    for one in chains:
        (page,) = led_to(one)
        assert (one.supporting_titles or [])[1] == page.title
        assert normal(page.title) not in normal(one.question), "the question names what has to be found first"
        told = [found for words, found in facts_of(page).items() if re.search(words, one.question.lower())]
        assert any(set(one.golden_answers) <= found for found in told), (one.question, page)
        text = next(iter((one.metadata or {})[CHANGED].values()))
        assert not any(exact_match(word, one.golden_answers) for word in re.findall(r"[\w,]+", text))
    assert len(chains) >= 20


def normal(text: str) -> str:
    return " ".join(text.lower().split())


@pytest.mark.parametrize("mode", ["parallel", "sequential"])
async def test_what_is_needed_first_is_asked_first(
    mode: str, questions: list[Question], search: Search, encoder: TokenizerEncoder
) -> None:
    kept, report = await build_coldstart(questions, search, encoder, settings(mode))
    assert len(kept) >= 0.9 * len(questions), report.to_dict()["dropped"]
    for one in kept:
        asked = [[query.text for query in turn.queries] for turn in one.rounds]
        num_things = len(one.supporting_titles or ()) // 2
        if one.kind == "single":
            assert [len(queries) for queries in asked] == [1], "one look-up, however much it looks like a chain"
        elif one.kind == "sequential":
            assert [len(queries) for queries in asked] == [1, 1]
        elif mode == "parallel":
            assert [len(queries) for queries in asked] == [num_things, num_things]
        else:
            assert [len(queries) for queries in asked] == [1] * (2 * num_things)
        if one.kind != "single":
            people = (one.supporting_titles or [])[-num_things:]
            first = asked[: 1 if mode == "parallel" else num_things]
            assert not any(name in query for name in people for queries in first for query in queries)


async def taught(question: Question, search: Search, encoder: TokenizerEncoder) -> Trajectory:
    (one,), _ = await build_coldstart([question], search, encoder, settings("parallel"))
    return one


async def test_a_lesson_word_for_word(search: Search, encoder: TokenizerEncoder) -> None:
    text = "Ardmoor is a country house near the sea. It was designed by Mette Nyborg. It has a long garden."
    steps = [
        {"name": "Ardmoor", "title": "Ardmoor", "fact": "architect", "value": "Mette Nyborg", "words": "Mette Nyborg"},
        {"name": "Mette Nyborg", "title": "Mette Nyborg", "fact": "died_on", "value": "9 June 1976",
         "words": "9 June 1976", "round": 2, "of": "Ardmoor"},
    ]  # fmt: skip
    wide = {"form": "each", "fact": "died_on", "target": None, "steps": steps}
    question = Question(
        "When did the architect of Ardmoor die?", ["9 June 1976", "1976"], id="d1", kind="sequential",
        supporting_titles=["Ardmoor", "Mette Nyborg"], metadata={CHANGED: {"h0": text}, "wide": wide},
    )  # fmt: skip
    one = await taught(question, search, encoder)
    thoughts = [turn.text for turn in one.turns]
    assert "the architect of Ardmoor" in thoughts[0]
    assert "date of death" in thoughts[0]
    assert "<search> Ardmoor designed by </search>" in thoughts[0]
    assert "[1] Ardmoor: It was designed by Mette Nyborg." in thoughts[1]
    assert "<search> Mette Nyborg died </search>" in thoughts[1]
    assert thoughts[2] == (
        "<think> Asked for: date of death.\n[2] Mette Nyborg: died 9 June 1976.\nSo 9 June 1976. </think>\n"
        "<answer> 9 June 1976 </answer>"
    )


def test_a_run_teaches_them_and_keeps_them_out_of_rl(folder: Path) -> None:
    question = {"id": "t1", "question": "What does Ardmoor have?", "golden_answers": ["a long garden"], "kind": "single",
                "dataset": "hotpotqa", "supporting_titles": ["Ardmoor"]}  # fmt: skip
    described = {"single": 2, "sequential": 4, "mixed": 2}
    report = coldstart_run.run_coldstart(recipe_in(folder, [question], world(), num_described=described, **ROOMY))
    assert report["num_described"] == 8
    assert report["num_made"] == {}, "in no file for RL"
    for twin in ("parallel", "sequential"):
        rows = [one for one in read_trajectories(folder / "out" / f"{twin}.jsonl") if one.dataset == MADE_DESCRIBED]
        assert sorted(one.kind or "" for one in rows) == ["mixed"] * 2 + ["sequential"] * 4 + ["single"] * 2
