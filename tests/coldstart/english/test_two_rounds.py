"""Questions of two parallel rounds: made from pages, taught with real searches, kept apart from evaluation questions."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from small_runs import recipe_in

from parallelsearch import grammar
from parallelsearch.answers import normalise
from parallelsearch.coldstart import run as coldstart_run
from parallelsearch.coldstart.english.from_pages.two_rounds import MAX_USES, make_two_rounds
from parallelsearch.coldstart.english.from_pages.works import Person, read_person, read_work, read_works
from parallelsearch.coldstart.english.lessons.two_rounds import METADATA, Bridges
from parallelsearch.coldstart.english.questions import Ask, aspect_of, base_title
from parallelsearch.coldstart.lesson import ColdStartSettings
from parallelsearch.coldstart.recipe import ColdStartRecipe
from parallelsearch.coldstart.run import TokenizerEncoder
from parallelsearch.coldstart.tutor import build_coldstart
from parallelsearch.data.questions import read_questions
from parallelsearch.errors import UsageError
from parallelsearch.limits import Limits
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.search import Search
from parallelsearch.trajectory import Question, Trajectory, read_trajectories

pytest.importorskip("transformers")

DIRECTORS = {
    "Ira Moss": ("born 3 May 1950", "is a Canadian"),
    "Ann Poe": ("4 June 1911 – 2 March 1980", "was an Irish"),
    "Lena Falk": ("9 July 1899 – 8 August 1975", "was a Swedish"),
    "Otto Brandt": ("1 January 1905 – 5 May 1990", "was a German"),
    "Paul Krug": ("12 June 1888 – 3 March 1950", "was a German"),
    "Mia Sund": ("born 2 April 1933", "is a Swedish"),
}
FILMS = {
    "Blue Gate": "Ira Moss",
    "Iron Lake (1941 film)": "Ann Poe",
    "The Quiet Harbour": "Lena Falk",
    "Seven Ladders": "Otto Brandt",
    "Winter Orchard": "Paul Krug",
    "A Paper Crown": "Mia Sund",
}
PAGES = {
    **{name: f"{name} ({dates}) {nation} film director." for name, (dates, nation) in DIRECTORS.items()},
    **{
        title: f"{base_title(title)} is a 1941 drama film directed by {name} and starring Tom Hale."
        for title, name in FILMS.items()
    },
    "Kelp": "Kelp is a large brown seaweed. It grows in cold water along the coast of Norway.",
}
PASSAGES = [Passage(f"p{number}", title, text) for number, (title, text) in enumerate(PAGES.items())]
YEARS = {name: int(dates.split("–")[0].split()[-1]) for name, (dates, _) in DIRECTORS.items()}


@pytest.fixture(scope="module")
def search() -> Search:
    return Search(BM25Retriever.from_passages(PASSAGES), k=3)


def settings(mode: str) -> ColdStartSettings:
    limits = Limits(max_observation_tokens=3000, max_tokens=8000, timeout_s=None)
    return ColdStartSettings("sequential" if mode == "sequential" else "parallel", limits, max_tokens=8000)


def asked(text: str, answer: str, ask: Ask, *, asks_maker: bool = False) -> Question:
    bridges = Bridges("film", ("Blue Gate", "Iron Lake"), ("Ira Moss", "Ann Poe"), ask, asks_maker)
    titles = ["Blue Gate", "Iron Lake (1941 film)", "Ira Moss", "Ann Poe"]
    metadata = {METADATA: bridges.to_dict()}
    return Question(text, [answer], id="m", kind="mixed", supporting_titles=titles, metadata=metadata)


YOUNGER = asked(
    "Of the films Blue Gate and Iron Lake, which one has the younger director?", "Blue Gate", Ask("birth", 1)
)


async def taught(question: Question, search: Search, encoder: TokenizerEncoder, mode: str = "parallel") -> Trajectory:
    made, report = await build_coldstart([question], search, encoder, settings(mode))
    assert report.reasons == {}
    return made[0]


def turns(trajectory: Trajectory) -> list[grammar.ParsedTurn]:
    parsed = [grammar.parse_turn(segment.text) for segment in trajectory.segments if segment.author == "model"]
    assert all(turn.is_valid for turn in parsed)
    return parsed


# ---- the lesson ------------------------------------------------------------------------------------------------------


async def test_two_rounds_find_both_makers_and_then_both_facts(search: Search, encoder: TokenizerEncoder) -> None:
    first, second, last = turns(await taught(YOUNGER, search, encoder))
    assert first.queries == ("Blue Gate film directed by", "Iron Lake film directed by")
    assert second.queries == ("Ira Moss director born", "Ann Poe director born")
    thought = second.thought or ""
    assert "Blue Gate: Blue Gate is a 1941 drama film directed by Ira Moss." in thought
    assert "starring" not in thought
    end = last.thought or ""
    assert "1950 is after 1911. The later is 1950: Ira Moss. Ira Moss directed Blue Gate, so Blue Gate." in end
    assert last.answer == "Blue Gate"


async def test_the_twin_makes_the_same_four_searches_one_after_the_other(
    search: Search, encoder: TokenizerEncoder
) -> None:
    together = turns(await taught(YOUNGER, search, encoder))
    trajectory = await taught(YOUNGER, search, encoder, "sequential")
    one_by_one = turns(trajectory)
    assert [len(turn.queries) for turn in one_by_one] == [1, 1, 1, 1, 0]
    assert [q for turn in one_by_one for q in turn.queries] == [q for turn in together for q in turn.queries]
    assert "directed by Ira Moss" in (one_by_one[1].thought or "")
    assert "directed by Ann Poe" in (one_by_one[2].thought or "")
    assert "3 May 1950" in (one_by_one[3].thought or "")
    assert (one_by_one[-1].answer, trajectory.is_split) == ("Blue Gate", False)


async def test_a_question_for_the_maker_and_one_for_yes_or_no(search: Search, encoder: TokenizerEncoder) -> None:
    who = asked("Who was born first, the director of Blue Gate or that of Iron Lake?", "Ann Poe", Ask("birth", -1),
                asks_maker=True)  # fmt: skip
    assert turns(await taught(who, search, encoder))[-1].answer == "Ann Poe"
    same = asked("Do the directors of Blue Gate and Iron Lake share a nationality?", "no", Ask("nationality", 0, True))
    last = turns(await taught(same, search, encoder))[-1]
    assert "Canadian and Irish are different. So no." in (last.thought or "")


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (asked("Which?", "Iron Lake", Ask("birth", 1)), "evidence_disagrees"),
        (asked("Which?", "Blue Gate", Ask("death", 1)), "fact_not_shown"),  # Ira Moss lives
        (asked("Which?", "yes", Ask("country", 0, True)), "evidence_disagrees"),
        (Question("Which?", ["Blue Gate"], id="m", kind="mixed"), "kind_needs_decomposition"),
    ],
)
async def test_what_the_pages_do_not_show_is_dropped(
    question: Question, expected: str, search: Search, encoder: TokenizerEncoder
) -> None:
    _, report = await build_coldstart([question], search, encoder, settings("parallel"))
    assert report.reasons == {"m": expected}


async def test_a_maker_that_the_page_does_not_name_is_never_believed(search: Search, encoder: TokenizerEncoder) -> None:
    bridges = Bridges("film", ("Blue Gate", "Iron Lake"), ("Mia Sund", "Ann Poe"), Ask("birth", 1))
    question = Question("Which?", ["Blue Gate"], id="m", kind="mixed", metadata={METADATA: bridges.to_dict()},
                        supporting_titles=["Blue Gate", "Iron Lake (1941 film)"])  # fmt: skip
    _, report = await build_coldstart([question], search, encoder, settings("parallel"))
    assert report.reasons == {"m": "bridge_not_shown"}


async def test_only_the_beginning_of_a_biography_is_believed(encoder: TokenizerEncoder) -> None:
    later = Passage(
        "z", "Ira Moss", "Ira Moss director born: his brother was born in 1890, an Irish director, born in Cork."
    )
    search = Search(BM25Retriever.from_passages([later, *PASSAGES]), k=3)
    last = turns(await taught(YOUNGER, search, encoder))[-1]
    assert "Ira Moss was born 1950" in (last.thought or "")


# ---- reading pages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "born", "died", "nation"),
    [
        ("Ann B. Poe (born 4 May 1901) is an Irish film director.", (1901, 5, 4), None, "Irish"),
        ("Ann Poe( 4 May 1901 – 1 June 1970) was a Danish writer.", (1901, 5, 4), (1970, 6, 1), "Danish"),
        ("Ann Poe (1901–1970) was an American-born French writer.", (1901, 0, 0), (1970, 0, 0), None),
        ("Ann Poe (born 1901) is a French writer. She became an American citizen.", (1901, 0, 0), None, None),
    ],
)
def test_a_biography_is_read(
    text: str, born: tuple[int, int, int], died: tuple[int, int, int] | None, nation: str | None
) -> None:
    person = read_person(Passage("p", "Ann Poe", text))
    assert person is not None
    assert (person.born, person.died, person.nation) == (born, died, nation)


@pytest.mark.parametrize(
    ("title", "text"),
    [
        ("Ann Poe", "Ann Poe is an Irish film director, born in 1901."),  # no dates in brackets
        ("Ann Poe", "Ann Poe (born Ann Orr, 4 May 19018 June 1970) was a writer."),  # damaged
        ("Ann Poe", "Ann Poe (founded 1901) is a film company."),
        ("Ann Poe", "She was a Danish writer (born 1901)."),
        ("Ann Poe (director)", "Ann Poe (born 1901) is a film director."),
    ],
)
def test_what_is_no_clear_biography_of_that_name_is_left_out(title: str, text: str) -> None:
    assert read_person(Passage("p", title, text)) is None


PEOPLE = {
    name: Person(name, trade, (1900, 0, 0), None, None)
    for name, trade in {
        "Ann Poe": "film director.", "Ira Moss": "film director.", "Kay Lund": "singer and songwriter.",
        "Per Holm": "novelist.", "Gus Rye": "businessman.", "Kay One": "singer.",
    }.items()
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "noun", "maker"),
    [
        ("X One is a 1991 comedy film directed by Ann Poe and starring Tom Hale.", "film", "Ann Poe"),
        ("X One is a 1991 film. It was written and directed by Ann Poe.", "film", "Ann Poe"),
        (
            "X One is the third studio album by Norwegian country singer Kay Lund, released in 2001.",
            "album",
            "Kay Lund",
        ),
        ('"X One" is a song recorded by English singer-songwriter Kay Lund for her album.', "song", "Kay Lund"),
        ("X One is a 1931 crime novel by the Danish writer Per Holm.", "novel", "Per Holm"),
        ("X One is a Swedish company founded in 1950 by Gus Rye.", "company", "Gus Rye"),
    ],
)
def test_a_page_names_its_maker(text: str, noun: str, maker: str) -> None:
    work = read_work(Passage("p", "X One (1991 film)", text), PEOPLE)
    assert work is not None
    assert (work.noun, work.maker.name, work.name, work.title) == (noun, maker, "X One", "X One (1991 film)")


@pytest.mark.parametrize(
    "text",
    [
        "X One is a 1991 film directed by Ann Poe and Ira Moss.",
        "X One is a 1991 film directed by Ann Poe, Ira Moss and Tom Hale.",
        "X One is a 1991 film directed by the Poe brothers.",
        "X One is a 1991 film directed by Ann Poe Smith.",
        "X One is a 1991 film based on the film of the same name directed by Ann Poe.",
        "X One is the soundtrack of the film directed by Ann Poe.",
        "X One is a 1991 film directed by Kay Lund.",  # a page of that name, of another trade
        "X One is a song written by Kay Lund and recorded by Tom Hale.",
        "Tom Hale played in X One, a film directed by Ann Poe.",
        "X One is a band. The film was directed by Ann Poe.",
        "X One is an album by Kay One.",  # its name tells who made it
    ],
)
def test_a_page_with_another_or_a_second_maker_is_left_out(text: str) -> None:
    assert read_work(Passage("p", "X One", text), PEOPLE) is None


def test_a_name_that_several_pages_share_is_left_out() -> None:
    more = [*PASSAGES, Passage("x", "Blue Gate (song)", "Blue Gate is a song."), Passage("y", "Ann Poe (poet)", "...")]
    assert {work.name for work in read_works(PASSAGES)} - {work.name for work in read_works(more)} == {
        "Blue Gate",
        "Iron Lake",
    }


# ---- questions -------------------------------------------------------------------------------------------------------


def test_questions_have_the_answer_that_the_pages_give_and_ask_what_they_seem_to_ask() -> None:
    questions = make_two_rounds(PASSAGES, 12, seed=3)
    assert len(questions) == 12
    film_of = {base_title(title): name for title, name in FILMS.items()}
    for question in questions:
        bridges = Bridges.of((question.metadata or {})[METADATA])
        assert question.kind == "mixed"
        seems = aspect_of(question.question)
        assert (seems.aspect, seems.direction) == (bridges.ask.aspect, bridges.ask.direction)
        assert ("different" in question.question) == bridges.ask.differs
        assert [film_of[thing] for thing in bridges.things] == list(bridges.makers)
        if bridges.ask.aspect == "birth":
            pick = min if bridges.ask.direction < 0 else max
            maker = pick(bridges.makers, key=YEARS.__getitem__)
            wanted = maker if bridges.asks_maker else bridges.things[bridges.makers.index(maker)]
            assert question.golden_answers == [wanted]
    assert make_two_rounds(PASSAGES, 12, seed=3) == questions
    assert make_two_rounds(PASSAGES, 12, seed=4) != questions


def many_films(count: int) -> list[Passage]:
    """Enough pages to count: every third director lives, nations take turns."""
    nations = ("a German", "a Swedish", "an Irish")
    passages = []
    for number in range(count):
        name, film = f"Ada N{number}", f"Reel {number}"
        dates = f"born {1900 + number}" if number % 3 == 0 else f"{1900 + number} – {1950 + 2 * number % 70}"
        passages.append(Passage(f"a{number}", name, f"{name} ({dates}) was {nations[number % 4 % 3]} film director."))
        passages.append(Passage(f"f{number}", film, f"{film} is a 1950 film directed by {name}."))
    return passages


def test_directions_places_and_verdicts_are_balanced_and_no_thing_is_everywhere() -> None:
    questions = make_two_rounds(many_films(80), 150)
    places: Counter[tuple[str, int, int]] = Counter()
    verdicts: Counter[tuple[str, bool, str]] = Counter()
    uses: Counter[str] = Counter()
    for question in questions:
        bridges = Bridges.of((question.metadata or {})[METADATA])
        uses.update(bridges.things)
        ask, answer = bridges.ask, question.golden_answers[0]
        if ask.is_polar:
            verdicts[ask.aspect, ask.differs, answer] += 1
        else:
            place = (bridges.makers if bridges.asks_maker else bridges.things).index(answer)
            places[ask.aspect, ask.direction, place] += 1
    assert len(questions) == 150
    assert max(uses.values()) <= MAX_USES
    for aspect in ("birth", "death"):
        counts = [places[aspect, direction, place] for direction in (-1, 1) for place in (0, 1)]
        assert max(counts) - min(counts) <= 0.25 * sum(counts)
        assert min(counts) > 5
    for aspect in ("nationality", "country"):
        for differs in (False, True):
            assert abs(verdicts[aspect, differs, "yes"] - verdicts[aspect, differs, "no"]) <= 1
    assert len({question.question.replace(a, "A").replace(b, "B") for question in questions
                for a, b in [(question.metadata or {})[METADATA]["things"]]}) >= 20  # fmt: skip


def test_the_years_of_the_things_do_not_tell_the_answer() -> None:
    """Here an older film nearly always has an older director, as in the world; among the questions it is a coin flip."""
    passages, years, born = [], {}, {}
    for number in range(120):
        name, film = f"Ada Quill{chr(97 + number % 26)}{chr(97 + number // 26)}", f"Lantern {number}x"
        born[film], years[film] = 1800 + number, 1835 + number + (40 if number % 9 == 0 else 0)
        passages += [
            Passage(f"d{number}", name, f"{name} (born 3 May {born[film]}) is a Canadian film director."),
            Passage(f"f{number}", film, f"{film} is a {years[film]} drama film directed by {name}."),
        ]
    told = []
    for question in make_two_rounds(passages, 120):
        one, other = (question.metadata or {})[METADATA]["things"]
        if question.golden_answers[0] not in ("yes", "no") and years[one] != years[other]:
            told.append((years[one] > years[other]) == (born[one] > born[other]))
    assert len(told) > 60
    assert abs(told.count(True) - told.count(False)) <= 1


def test_nothing_that_a_forbidden_question_names_comes_out() -> None:
    forbidden = {normalise("Who directed the film Blue Gate?")}
    assert "Blue Gate" in {work.name for work in read_works(PASSAGES)}
    assert "Blue Gate" not in {work.name for work in read_works(PASSAGES, forbidden)}
    text = make_two_rounds(PASSAGES, 1)[0].question
    assert text not in [question.question for question in make_two_rounds(PASSAGES, 20, forbidden={normalise(text)})]


# ---- a whole run -----------------------------------------------------------------------------------------------------


def recipe_of(folder: Path, **values: Any) -> ColdStartRecipe:
    row = {"question": "what colour of seaweed is kelp", "golden_answers": ["brown"], "kind": "single"}
    (folder / "hotpotqa").mkdir()
    held = {"question": "Who directed Seven Ladders?", "golden_answers": ["Otto Brandt"]}
    (folder / "hotpotqa" / "dev.jsonl").write_text(json.dumps(held) + "\n", encoding="utf-8")
    return recipe_in(folder, [row], PASSAGES, num_mixed=3, num_mixed_for_rl=2, max_mixed_tokens=8000, **values)


def test_a_run_writes_mixed_trajectories_both_ways_and_questions_for_rl(folder: Path) -> None:
    report = coldstart_run.run_coldstart(recipe_of(folder))
    parallel = [one for one in read_trajectories(folder / "out" / "parallel.jsonl") if one.kind == "mixed"]
    sequential = [one for one in read_trajectories(folder / "out" / "sequential.jsonl") if one.kind == "mixed"]
    questions = list(read_questions(folder / "out" / "rl_mixed.jsonl"))
    assert (report["num_mixed"], report["num_mixed_for_rl"], len(parallel), len(questions)) == (3, 5, 3, 5)
    assert [one.question for one in parallel] == [one.question for one in sequential]
    assert {one.question for one in parallel} <= {question.question for question in questions}
    assert all([len(turn.queries) for turn in one.turns] == [2, 2, 0] for one in parallel)
    assert all(one.num_llm_calls == 5 for one in sequential)
    assert not any("Seven Ladders" in question.question for question in questions)


def test_a_search_without_passages_on_this_machine_is_refused_before_any_work(folder: Path) -> None:
    said: list[str] = []
    with pytest.raises(UsageError, match="num_mixed"):
        coldstart_run.run_coldstart(recipe_of(folder, search={"address": "demo"}), said.append)
    assert said == []
