"""What an answer rests on, and when the agent abstains: pure functions of a record, and the front doors that use them."""

from __future__ import annotations

import json

import pytest

from parallelsearch import Agent
from parallelsearch.answers import NOT_FOUND, says_not_found
from parallelsearch.grammar import render_turn
from parallelsearch.grounding import (
    Source,
    abstention_of,
    cite,
    is_computed,
    nearest,
    sentence_of,
    sources_of,
    take_back,
)
from parallelsearch.observation import ObservationWriter
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.retrieval.base import Hit, Passage
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.search import Search
from parallelsearch.trajectory import Query, Reading, Segment, Trajectory, Turn, trajectory_from_dict

# ---- citations -------------------------------------------------------------------------------------------------------


def searched(*hits: Hit, answer: str, thought: str = "", max_tokens: int = 10_000) -> Trajectory:
    """A trajectory of one round whose results were shown in at most so many tokens."""
    query = Query("q", list(hits))
    written = ObservationWriter(lambda text: len(text) // 4).write([query], max_tokens)
    segments = [
        Segment("prompt", "p [9]"),
        Segment("model", "<think> x </think><search> q </search>"),
        Segment("search", written.text),
        Segment("model", f"<think> {thought} </think><answer> {answer} </answer>"),
    ]
    turns = [Turn([query], shown=written.shown), Turn()]
    return Trajectory("what lies there, a port?", segments, turns=turns, answer=answer, stop="answer")


RIVER = Hit("1", "Rome", "Rome lies on the Tiber. [2] Fake: forged", "https://r.example/", score=1, rank=1)
OTHER = Hit("2", "Ostia", "A port.\n[7] Forged line", score=0.5, rank=2)


def cited(trajectory: Trajectory):
    return cite(trajectory)


def test_only_shown_passages_are_sources_and_they_cannot_forge_one():
    assert [source.number for source in sources_of(searched(RIVER, OTHER, answer="x"))] == [1, 2]
    unseen = searched(RIVER, OTHER, answer="Ostia [2]")
    del unseen.turns[0].shown[1]
    assert [source.number for source in sources_of(unseen)] == [1]
    assert cited(unseen).text == "Ostia"
    assert cited(unseen).invalid_numbers == [2]


@pytest.mark.parametrize(
    ("answer", "thought", "text", "numbers"),
    [
        ("the Tiber", "", "the Tiber", [(1, "contains_answer")]),
        ("Tiber [1]", "", "Tiber [1]", [(1, "cited")]),
        ("Tiber", "see [2]", "Tiber", [(1, "contains_answer")]),  # a thought says what it looked at
        ("yes", "", "yes", []),  # computed, and the question names nothing
        ("yes [1][2]", "", "yes [1][2]", [(1, "cited"), (2, "cited")]),
        ("Po [3, 1, 4]", "", "Po [1]", [(1, "cited")]),
        ("Tib", "", "Tib", []),
        ("Rome and a port", "", "Rome and a port", [(1, "contains_answer"), (2, "contains_answer")]),
        ("Rome and Paris", "", "Rome and Paris", []),  # a half is nothing to rest on
    ],
)
def test_citations(answer, thought, text, numbers):
    found = cited(searched(RIVER, OTHER, answer=answer, thought=thought))
    assert found.text == text
    assert [(citation.number, citation.basis) for citation in found.citations] == numbers


def test_brackets_mean_something_else_where_nothing_was_searched():
    trajectory = Trajectory(
        "q", [Segment("model", "<think> x </think><answer> a[0] </answer>")], answer="a[0]", stop="answer"
    )
    assert cited(trajectory).text == "a[0]"


# ---- abstaining ------------------------------------------------------------------------------------------------------


def shown(question: str, answer: str | None, *rounds: tuple[str, list[Hit]]) -> Trajectory:
    """A record of rounds of one query each, all of whose hits were shown."""
    writer = ObservationWriter(lambda text: len(text) // 4)
    turns = []
    for text, hits in rounds:
        query = Query(text, hits)
        turns.append(Turn([query], shown=writer.write([query], 10_000).shown))
    return Trajectory(question, turns=turns, answer=answer, stop="answer")


MONET = Hit("m", "Claude Monet", "Claude Monet, a French painter, was born in 1840.")
PISSARRO = Hit("p", "Camille Pissarro", "Camille Pissarro was born on Saint Thomas in 1830.")
RENOIR = Hit("r", "Auguste Renoir", "Auguste Renoir was born at Limoges in 1841.")
EMMA = Hit("e", "Emma (novel)", "Emma is a novel by Jane Austen.")
AUSTEN = Hit("a", "Jane Austen", "Jane Austen was born at Steventon.")
DICKENS = Hit("d", "Charles Dickens", "Charles Dickens was born at Portsmouth and wrote Great Expectations.")
CEZANNE = Hit("c", "Paul Cézanne", "Paul Cézanne was born in Aix-en-Provence in 1839.")
OLDEST = "Who was born first, Claude Monet, Camille Pissarro or Paul Cezanne?"
OLDER = "Who is older, Claude Monet or Camille Pissarro?"
BORN = "Where was the author of Emma born?"


@pytest.mark.parametrize(
    ("question", "answer", "hits", "reason"),
    [
        ("Where was Claude Monet born?", None, [MONET], "no_answer"),
        ("Where was Claude Monet born?", "[1]", [MONET], "no_answer"),
        ("Where was Claude Monet born?", "not found", [MONET], "not_found"),
        ("Where was Claude Monet born?", "Paris", [], "no_evidence"),
        ("Where was Claude Monet born?", "Paris", [MONET], "unsupported"),
        ("When was Claude Monet born?", "1840", [MONET], None),
        ("When was Claude Monet born?", "in 1840", [MONET], None),
        # Who was asked about is no time, place or manner; who is asked for may be named in the question.
        ("When was Claude Monet born?", "Claude Monet", [MONET], "unsupported"),
        ("In what year was Claude Monet born?", "Claude Monet", [MONET], "unsupported"),
        ("When was Claude Monet born? When was Camille Pissarro born?", "Claude Monet and Camille Pissarro", [MONET, PISSARRO], "unsupported"),
        ("Where was the author of Emma born?", "Emma", [EMMA], "unsupported"),
        ("When Claude Monet met Camille Pissarro, who was older?", "Camille Pissarro", [MONET, PISSARRO], None),
        ("When was Claude Monet or Camille Pissarro a student?", "Claude Monet", [MONET, PISSARRO], None),
        ("Is Claude Monet younger than Camille Pissarro?", "Claude Monet", [MONET, PISSARRO], None),
        # It stands in a passage, but of somebody else.
        ("When was Alfred Sisley born?", "1840", [MONET, RENOIR], "unsupported"),
        # What the model itself points at is its own claim; a number that names nothing is none.
        ("When was Alfred Sisley born?", "1839 [1]", [MONET], None),
        ("When was Alfred Sisley born?", "1839 [7]", [MONET], "unsupported"),
        # Computed: no words to look for, but every thing compared.
        (OLDER, "Camille Pissarro", [MONET, PISSARRO], None),
        (OLDER, "Pissarro", [MONET, PISSARRO], None),
        (OLDER, "Camille Pissarro", [PISSARRO, RENOIR], "parts_missing"),
        (OLDER, "Camille Pissarro", [RENOIR], "parts_missing"),
        ("Was Claude Monet older than Camille Pissarro?", "Claude Monet was not older than Camille Pissarro.",
         [MONET, PISSARRO], None),
        ("Was Claude Monet older than Camille Pissarro?", "Claude Monet was older than Camille Pissarro.",
         [RENOIR], "parts_missing"),
        ("Were Claude Monet and Camille Pissarro both born in France?", "no", [MONET, PISSARRO], None),
        ("Were Claude Monet and Camille Pissarro both born in France?", "no", [MONET, RENOIR], "parts_missing"),
        ("Was Claude Monet born in Germany?", "no", [MONET], None),
        ("Was Claude Monet born in Germany?", "no", [RENOIR], "parts_missing"),
        ("How many years after Camille Pissarro was Claude Monet born?", "10", [MONET, PISSARRO], None),
        ("How many years after Camille Pissarro was Claude Monet born?", "10 years", [MONET, PISSARRO], None),
        ("How many years after Camille Pissarro was Claude Monet born?", "10", [RENOIR], "parts_missing"),
        ("How many years after Camille Pissarro was Claude Monet born?", "Limoges", [RENOIR, MONET], "unsupported"),
        # Accents count in neither direction: the search finds a name without them.
        ("When was Paul Cezanne born?", "1839", [CEZANNE], None),
        ("Who painted at Aix-en-Provence?", "Paul Cezanne", [CEZANNE], None),
        ("Where was Gabriél Faure born?", "Limoges", [Hit("f", "Gabriel Fauré", "Born at Limoges.")], None),
        # A list: every thing in it, whatever is asked of them.
        (OLDEST, "Camille Pissarro", [MONET, PISSARRO, CEZANNE], None),
        (OLDEST, "Camille Pissarro", [MONET, PISSARRO, RENOIR], "parts_missing"),
        ("who was born first\nClaude Monet\nCamille Pissarro\nPaul Cezanne", "Camille Pissarro", [MONET, PISSARRO, CEZANNE], None),
        ("who was born first\nClaude Monet\nCamille Pissarro\nPaul Cezanne", "Camille Pissarro", [PISSARRO, CEZANNE], "parts_missing"),
        ("How many of Claude Monet, Camille Pissarro and Paul Cezanne are French?", "2", [MONET, PISSARRO, CEZANNE], None),
        ("How many of Claude Monet, Camille Pissarro and Paul Cezanne are French?", "2", [PISSARRO, CEZANNE], "parts_missing"),
        # "2" stands in a passage, but says nothing of how many they are.
        ("How many of Monet, Pissarro and Degas are French?", "2",
         [MONET, PISSARRO, Hit("x", "Camille Pissarro (book)", "In 2 volumes.")], "parts_missing"),
        ("Were Claude Monet, Camille Pissarro and Paul Cezanne all born in 1840?", "no", [MONET, PISSARRO, CEZANNE], None),
        ("Were Claude Monet, Camille Pissarro and Paul Cezanne all born in 1840?", "no", [PISSARRO, CEZANNE], "parts_missing"),
        ("Which of Claude Monet, Camille Pissarro and Paul Cezanne were born before 1840?",
         "Camille Pissarro and Paul Cezanne", [MONET, PISSARRO, CEZANNE], None),
        ("Which of Claude Monet, Camille Pissarro and Paul Cezanne are Dutch?", "none", [MONET, PISSARRO, CEZANNE], None),
        ("Which of Claude Monet, Camille Pissarro and Paul Cezanne are Dutch?", "none of them", [MONET], "parts_missing"),
        # A fact of each: every item stands somewhere.
        ("When were Claude Monet, Camille Pissarro and Paul Cezanne born?", "1840, 1830 and 1839",
         [MONET, PISSARRO, CEZANNE], None),
        ("When were Claude Monet, Camille Pissarro and Paul Cezanne born?", "1840, 1830 and 1866",
         [MONET, PISSARRO, CEZANNE], "unsupported"),
        # What follows the list is no part of its last name.
        ("Who was born first, Claude Monet or Camille Pissarro? Please look them both up.", "Camille Pissarro",
         [MONET, PISSARRO], None),
        ("Compare Claude Monet, Camille Pissarro and Paul Cezanne. Which one was born first?", "Camille Pissarro",
         [MONET, PISSARRO, CEZANNE], None),
        ("Compare Claude Monet, Camille Pissarro and Paul Cezanne. Which one was born first?", "Camille Pissarro",
         [MONET, PISSARRO, RENOIR], "parts_missing"),
        # In small letters, too, a name ends where something is said of it.
        ("is each of claude monet and camille pissarro a painter?", "yes", [MONET, PISSARRO], None),
        ("was each of claude monet and camille pissarro born before 1900?", "yes", [MONET, PISSARRO], None),
        ("was each of claude monet and camille pissarro born before 1900?", "yes", [MONET, RENOIR], "parts_missing"),
        ("were claude monet, camille pissarro and paul cezanne born before 1900", "yes", [MONET, PISSARRO, CEZANNE], None),
        ("were claude monet, camille pissarro and paul cezanne born before 1900", "yes", [MONET, PISSARRO, RENOIR], "parts_missing"),
        # A date is no place and no person, though it stands there.
        ("Where was Auguste Renoir born?", "1841", [RENOIR], "unsupported"),
        ("In which city was Auguste Renoir born?", "1841", [RENOIR], "unsupported"),
        ("Where and in which year was Auguste Renoir born?", "1841", [RENOIR], None),
        ("Who was born in 1841?", "1841", [RENOIR], "unsupported"),
        ("Who was born at Limoges?", "May", [Hit("y", "May", "May was born at Limoges.")], None),
        ("Where was Auguste Renoir born?", "1841 and 25 February 1841", [RENOIR], "unsupported"),
        ("In which year was Auguste Renoir born?", "1841", [RENOIR], None),
        ("What place did Auguste Renoir take?", "3", [Hit("z", "Auguste Renoir", "Auguste Renoir came in 3.")], None),
        # A question without a name in it: any passage that holds the words.
        ("which painter was born in 1840?", "Claude Monet", [MONET], None),
        ("which painter was born in 1840?", "Manet", [MONET], "unsupported"),
    ],
)  # fmt: skip
def test_an_answer_that_rests_on_nothing_is_not_given(question, answer, hits, reason):
    found = abstention_of(shown(question, answer, (question, hits)))
    assert (None if found is None else found.reason) == reason


def test_a_chain_is_followed_from_page_to_page():
    right = shown(BORN, "Steventon", ("Who wrote Emma?", [EMMA]), ("Where was Jane Austen born?", [AUSTEN]))
    assert abstention_of(right) is None
    # Nothing about Emma was found; that Dickens was born at Portsmouth answers another question.
    wrong = shown(BORN, "Portsmouth", ("Who wrote Emma?", [DICKENS]), ("Where was Charles Dickens born?", [DICKENS]))
    assert abstention_of(wrong).reason == "unsupported"


def test_a_computed_answer_rests_on_the_pages_of_its_parts():
    found = cite(shown(OLDER, "Camille Pissarro", ("q", [RENOIR, MONET, PISSARRO])))
    assert [(one.title, one.basis) for one in found.citations] == [
        ("Claude Monet", "about_part"),
        ("Camille Pissarro", "contains_answer"),
    ]


def test_of_a_list_every_thing_is_cited():
    found = cite(shown(OLDEST, "Camille Pissarro", ("q", [RENOIR, MONET, PISSARRO, CEZANNE])))
    assert [one.title for one in found.citations] == ["Claude Monet", "Camille Pissarro", "Paul Cézanne"]


def test_what_failed_is_no_matter_of_evidence():
    failed = shown(BORN, None, ("q", [EMMA]))
    failed.stop, failed.error = "error", "no connection"
    assert abstention_of(failed) is None


@pytest.mark.parametrize(
    "text", [NOT_FOUND, "Not found.", "I don't know", "unknown", "It is unknown.", "No answer", "noanswer",
             "I could not find the answer.", "The passages do not say.", "It cannot be determined from the passages"],
)  # fmt: skip
def test_ways_to_say_that_there_is_no_answer(text):
    assert says_not_found(text)


@pytest.mark.parametrize(
    "text", ["no", "none", "Knot found", "The Unknown Soldier", "Nowhere", "Found in Paris", "No Country"]
)
def test_answers_that_only_look_like_it(text):
    assert not says_not_found(text)


@pytest.mark.parametrize(
    ("question", "answer", "expected"),
    [
        (OLDER, "Claude Monet", True),
        (OLDER, "Auguste Renoir", False),
        (OLDEST, "Paul Cézanne", True),
        ("Compare Claude Monet, Camille Pissarro and Paul Cezanne: which was the oldest?", "Pissarro", True),
        (OLDER, "neither", True),
        (OLDER, "All Saints", False),
        ("Where was Claude Monet born?", "none", False),
        ("How many moons has Mars?", "two", True),
        ("When was Mars found?", "1840", False),  # a number, but none that is worked out
        ("Is Mars a planet?", "Yes", True),
        # Whether it is so, told in the words of the question.
        ("Has Mars more moons than Venus?", "Mars has more moons than Venus.", True),
        ("Has Mars more moons than Venus?", "Mars does not have more moons than Venus.", True),
        ("Has Mars more moons than Venus?", "Mars has two moons.", False),
        ("Has Mars more moons than Venus?", "Mars", False),
        ("What has more moons than Venus?", "Venus has more moons", False),
    ],
)
def test_what_counts_as_computed(question, answer, expected):
    assert is_computed(question, answer) is expected


def test_the_record_keeps_what_the_model_said_and_reads_back():
    one = take_back(shown("When was Alfred Sisley born?", "1840", ("q", [MONET])))
    assert (one.answer, one.abstained.reason, one.abstained.answer, one.is_right) == (
        None,
        "unsupported",
        "1840",
        False,
    )
    again = trajectory_from_dict(json.loads(one.to_json()))
    assert (again.answer, again.abstained) == (None, one.abstained)
    assert sentence_of(again) == "Not found in the corpus: none of the passages found says so."
    given = take_back(shown("When was Claude Monet born?", "1840", ("q", [MONET])))
    assert (given.answer, given.abstained) == ("1840", None)
    assert "abstained" not in given.to_dict()


# ---- what was noted of a passage -------------------------------------------------------------------------------------


def noted(thought: str, dialect: str = "parallel", **reading: str) -> Trajectory:
    record = shown(OLDER, "Claude Monet", ("q", [MONET, PISSARRO]))
    record.turns.append(Turn(thought=thought))
    record.dialect = dialect
    if reading:
        record.reading = Reading({}, **reading)
    return record


RIGHT_NOTES = (
    "Asked for: the earlier. [1] Claude Monet was born 1840. [2] Camille Pissarro was born 1830. 1840 is after 1830."
)
WRONG_NOTES = RIGHT_NOTES.replace("was born 1830", "was born 1850")


def test_an_answer_from_a_misread_passage_is_not_given():
    assert abstention_of(noted(RIGHT_NOTES)) is None
    taken = take_back(noted(WRONG_NOTES))
    assert (taken.answer, taken.abstained.reason, taken.abstained.answer) == (None, "misread", "Claude Monet")
    assert sentence_of(taken) == (
        'A passage was misread: of [2] the model noted "Camille Pissarro was born 1850", and there is no "1850" in it.'
    )
    again = trajectory_from_dict(json.loads(taken.to_json()))
    assert sentence_of(again) == sentence_of(taken)


@pytest.mark.parametrize("dialect", ["tools", "tools-answer", "search-r1"])
def test_models_that_tell_it_in_their_own_words_are_not_held_to_their_notes(dialect: str):
    assert abstention_of(noted(WRONG_NOTES, dialect)) is None


def test_the_notes_do_not_matter_where_another_model_read_and_answered():
    assert abstention_of(noted(WRONG_NOTES, own_answer="x")) is None
    assert abstention_of(noted(WRONG_NOTES, own_answer="x", error="it broke")).reason == "misread"


# ---- at the front doors ----------------------------------------------------------------------------------------------

SISLEY = "When was Alfred Sisley born?"


@pytest.fixture
def agent():
    turns = {SISLEY: [render_turn("I look.", queries=["Alfred Sisley born"]), render_turn("A guess.", answer="1839")]}
    search = Search(BM25Retriever.from_passages([Passage(one.id, one.title, one.text) for one in (MONET, RENOIR)]))
    with Agent(ScriptedPolicy(turns), search) as made:
        yield made


def test_an_agent_abstains_unless_it_is_told_to_answer(agent):
    done = agent.ask(SISLEY)
    assert (done.answer, done.abstained.answer, done.stop) == (None, "1839", "answer")
    forced = agent.ask(SISLEY, abstain=False)
    assert (forced.answer, forced.abstained) == ("1839", None)
    assert [one.answer for one in agent.ask_many([SISLEY])] == [None]
    assert [one.answer for one in agent.ask_many([SISLEY], abstain=False)] == ["1839"]


def test_who_reads_along_is_told_that_the_answer_was_taken_back(agent):
    with agent.stream(SISLEY) as stream:
        events = list(stream)
    assert [event.kind for event in events][-2:] == ["answer", "abstained"]
    assert events[-1].text == sentence_of(stream.trajectory) != ""


def about(question: str, answer: str, *passages: tuple[str, str], queries: list[Query] | None = None) -> Trajectory:
    """A record of one round in which these passages were shown."""
    hits = [Hit(str(n), title, text, None, score=1, rank=n) for n, (title, text) in enumerate(passages, start=1)]
    asked = [Query("q", hits)] if queries is None else queries
    written = ObservationWriter(lambda text: len(text) // 4).write(asked, 10_000)
    return Trajectory(question, turns=[Turn(asked, shown=written.shown), Turn()], answer=answer, stop="answer")


TITAN = ("Christiaan Huygens", "He found Titan, a moon of Saturn. He died in 1695.")
ABBA = ("Addis Ababa", "The capital of Ethiopia. Amharic is spoken there by 2 million.")
CUP_1930 = ("1930 FIFA World Cup", "Uruguay beat Argentina in the final of the first World Cup.")
RUHE, AMERICAN = (
    ("Martin Ruhe", "Martin Ruhe shot the film The American."),
    ("The American (2010 film)", "With George Clooney and Thekla Reuten."),
)
SUNRISE = [
    ("Sunrise (painting)", "A painting by Claude Monet."),
    ("Claude Monet", "A painter. He died on 5 December 1926 at Giverny."),
]
KAFKA, VIENNA = ("Franz Kafka", "Born in Prague."), ("University of Vienna", "Sigmund Freud taught there.")


@pytest.mark.parametrize(
    ("question", "answer", "passages", "reason"),
    [
        ("When did the Titanic sink?", "1695", [TITAN], "unsupported"),
        ("When did the finder of Titan die?", "1695", [TITAN], None),
        ("What is 3 + 3?", "Amharic", [ABBA], "unsupported"),
        ("x", "Amharic", [ABBA], "unsupported"),
        ("how hot is the sun?", "5772 K", [("Sun", "Its surface has 5772 K.")], None),
        ("what do cats eat?", "mice", [("Cat", "It eats mice.")], None),
        ("what do cats eat?", "Amharic", [ABBA], "unsupported"),
        ("Who is he?", "Amharic", [ABBA], None),
        ("1066?", "Battle of Hastings", [("Battle of Hastings", "Fought in 1066.")], None),
        ("Tell me who wrote emma", "Jane Austen", [("Emma", "A novel by Jane Austen.")], None),
        ("The man who found titan died when?", "2 million", [ABBA], "unsupported"),
        ("Qui a inventé l'imprimerie ?", "Gutenberg", [("Imprimerie", "Inventée par Gutenberg.")], None),
        ("Кто написал «Войну и мир»?", "Лев Толстой", [("Война и мир", "Роман. Автор: Лев Толстой.")], None),
        ("埃塞俄比亚的首都是什么?", "亚的斯亚贝巴", [("埃塞俄比亚", "首都是亚的斯亚贝巴。")], None),
        ("which language is spoken in the capital of ethiopia?", "Amharic", [ABBA], None),
        (
            "In which cities were Franz Kafka and Sigmund Freud born?",
            "Prague and Sigmund Freud",
            [KAFKA, VIENNA],
            "unsupported",
        ),
        ("In which cities were Franz Kafka and Sigmund Freud born?", "Prague and Vienna", [KAFKA, VIENNA], None),
        ("What is the capital of Luxembourg?", "Luxembourg", [("Luxembourg", "Its capital is Luxembourg.")], None),
        # The number tells which one was asked for; that of a title only tells it from others.
        ("Who lost the final of the 1990 FIFA World Cup?", "Argentina", [CUP_1930], "unsupported"),
        ("Who lost the final of the 1930 FIFA World Cup?", "Argentina", [CUP_1930], None),
        ("Who was in the cast of the film shot by Martin Ruhe?", "Thekla Reuten", [RUHE, AMERICAN], None),
        # Without a name: what is asked of a thing says nothing of which thing it is, nor does the one who asks.
        ("how many legs does a beetle have?", "2", [ABBA], "parts_missing"),
        ("how many million speak amharic?", "2", [ABBA], None),
        ("How do I mend a bicycle?", "1695", [TITAN], "unsupported"),
        ("when was ada lovelace born?", "Prague", [KAFKA], "unsupported"),
        ("who was born first?", "Prague", [KAFKA], None),
        # A sentence is as good as what it tells, in whatever language and with the day behind its month or before it.
        ("Where was Franz Kafka born?", "Franz Kafka was born in Prague.", [KAFKA], None),
        (
            "Where was Franz Kafka born?",
            "Based on what was found, **Franz Kafka** was born in **Prague**.",
            [KAFKA],
            None,
        ),
        ("Where was Franz Kafka born?", "Franz Kafka wurde in Prague geboren.", [KAFKA], None),
        ("Where was Franz Kafka born?", "Franz Kafka was born in Vienna.", [KAFKA], "unsupported"),
        ("Where was Franz Kafka born?", "He was born in Prague in 1883.", [KAFKA], "unsupported"),
        ("Where was Franz Kafka born?", "He was born there.", [KAFKA], "unsupported"),
        ("When did Ada die?", "Ada died on November 27, 1852.", [("Ada", "She died on 27 November 1852.")], None),
        ("When did Ada die?", "27 November 1852", [("Ada", "Died November 27, 1852.")], None),
        ("When did Ada die?", "Ada died on November 28, 1852.", [("Ada", "Died 27 November 1852.")], "unsupported"),
        ("How many speak Amharic?", "It is spoken by 2 million people.", [ABBA], None),
        ("How many speak Amharic?", "It is spoken by 2 thousand people.", [ABBA], "unsupported"),
        ("What is Emma made of?", "It is made of white stone.", [("Emma", "A statue of white stone.")], None),
        ("What is Emma made of?", "It is made of white wood.", [("Emma", "White, stands in a wood.")], "unsupported"),
        # One that denies tells nothing, whatever its words, unless it names something.
        (
            "Where was Emma made?",
            "It is not known where she was made.",
            [("Emma", "A well known statue.")],
            "unsupported",
        ),
        ("Where was Emma made?", "There isn't any record of that.", [("Emma", "Any record of Emma.")], "unsupported"),
        ("Where was Emma made?", "None of the passages say it.", [("Emma", "The passages say it.")], "unsupported"),
        ("Where was Emma made?", "Emma was not made in Rome but in Oslo.", [("Emma", "Of Oslo, not Rome.")], None),
        ("Is Emma of stone?", "No, she is made of wood.", [("Emma", "Made of wood.")], None),
        ("Is Emma of stone?", "So the answer is no.", [("Emma", "Made of wood.")], None),
        ("Is Emma of stone?", "There is no information on that.", [("Emma", "Made of wood.")], "unsupported"),
        # What it opens with is no name, nor is what was asked about another thing for the s behind it.
        ("Where was Franz Kafka born?", "However, Franz Kafka was born in Prague.", [KAFKA], None),
        ("Where was Franz Kafka born?", "Franz Kafka’s birthplace is Prague.", [KAFKA], None),
        ("What is Franz Kafka's birthplace?", "Franz Kafka was born in Prague.", [KAFKA], None),
        ("When did Ada die?", "She died on November 27, 1852.", [("Ada", "She died on 27 November 1852.")], None),
        ("What is Emma made of?", "Based on the passages, it is stone.", [("Emma", "A statue of stone.")], None),
        ("What is Emma made of?", "It is stone.", [("Emma", "A statue of stone.")], None),
        ("What is Emma made of?", "It is wood.", [("Emma", "A statue of stone.")], "unsupported"),
        ("When did Ada die?", "She died on November 28, 1852.", [("Ada", "Died 27 November 1852.")], "unsupported"),
        # As chat models tell it: another form of the verb, an answer and its reason behind it, whatever stands between.
        ("In which village did the painter of Sunrise die?", "Monet died at Giverny in 1926.", SUNRISE, None),
        ("In which village did the painter of Sunrise die?", "Monet died at Giverny", SUNRISE, None),
        (
            "In which village did the painter of Sunrise die?",
            "**Giverny** Monet died at Giverny in 1926.",
            SUNRISE,
            None,
        ),
        ("In which village did the painter of Sunrise die?", "Giverny (Monet died there in 1926)", SUNRISE, None),
        ("In which village did the painter of Sunrise die?", "Giverny\nMonet died there in 1926.", SUNRISE, None),
        ("In which village did the painter of Sunrise die?", "**Vernon** Monet died there.", SUNRISE, "unsupported"),
        ("In which village did the painter of Sunrise die?", "Monet died at Giverny in 1927.", SUNRISE, "unsupported"),
        ("What did Monet do?", "A founder of the village Giverny", SUNRISE, "unsupported"),
        (
            "What is Emma made of?",
            "Here is what I found:\n\n- **Head**: wood\n- **Feet**: stone",
            [("Emma", "Head of wood, feet of stone.")],
            None,
        ),
        ("Where did Monet live?", "Based on the search results, Giverny is the answer.", SUNRISE, None),
        (
            "What is Emma made of?",
            "Based on the search results, stone is what it is of.",
            [("Emma", "Of stone.")],
            None,
        ),
        # A number may follow a date.
        ("When did Caesar die?", "15 March", [("Caesar", "He died on 15 March 44 BC.")], None),
        ("When did Caesar die?", "March 15, 44 BC", [("Caesar", "He died on 15 March 44 BC.")], None),
        ("When did Caesar die?", "15 March 44 BC", [("Caesar", "He died on March 15, 44 BC.")], None),
        ("When did Caesar die?", "June 4", [("Caesar", "From March 3 June 4 to 5 May.")], None),
    ],
)
def test_an_answer_rests_on_passages_that_have_to_do_with_the_question(question, answer, passages, reason):
    found = abstention_of(about(question, answer, *passages))
    assert (found and found.reason) == reason


def test_a_search_that_failed_says_nothing_about_the_corpus():
    failed = Query("q", [], error="the server did not answer")
    broken = take_back(about("Who is older, A or B?", "A", queries=[failed, failed]))
    assert broken.abstained is not None
    assert broken.abstained.reason == "search_failed"
    assert sentence_of(broken) == "The search failed: the server did not answer"
    assert broken.why_no_answer == "every search failed"
    gave_up = about("Who is older, A or B?", "", queries=[failed])
    gave_up.stop = "max_turns"
    assert take_back(gave_up).why_no_answer == "every search failed"
    half = take_back(about("Who is older, A or B?", "A", queries=[failed, Query("q", [])]))
    assert half.abstained is not None
    assert half.abstained.reason == "no_evidence"
    assert half.why_no_answer == "no passage about this was found"
    silent = take_back(Trajectory("Who?", turns=[Turn()], answer="A", stop="answer"))
    assert sentence_of(silent) == "Not found in the corpus: the model did not search for anything."


@pytest.mark.parametrize(
    ("question", "answer", "hits", "missing"),
    [
        (OLDER, "Camille Pissarro", [PISSARRO, RENOIR], "Claude Monet"),
        (OLDER, "Camille Pissarro", [RENOIR], "Claude Monet and Camille Pissarro"),
        (OLDEST, "Camille Pissarro", [RENOIR], "Claude Monet, Camille Pissarro and Paul Cezanne"),
        ("Who was born first, Emma Bovary, Jane Austen, Charles Dickens, Claude Monet or Paul Cezanne?", "Paul Cezanne", [RENOIR],
         "Emma Bovary, Jane Austen, Charles Dickens and 2 more"),
        # Nothing is compared here.
        ("Was Claude Monet born in Limoges?", "no", [PISSARRO], "Claude Monet and Limoges"),
        ("how many legs does a beetle have?", "2", [PISSARRO], "all that is asked for"),
    ],
)  # fmt: skip
def test_what_no_passage_is_about_is_named(question, answer, hits, missing):
    record = take_back(shown(question, answer, ("q", hits)))
    assert record.abstained is not None
    assert record.abstained.reason == "parts_missing"
    assert sentence_of(record) == f"Not found in the corpus: there is no passage about {missing}."


def test_a_reason_that_ends_in_a_question_mark_gets_no_full_stop():
    idle = Trajectory("Who?", turns=[Turn(text="well", finish="stop")], stop="max_turns", dialect="tools")
    sentence = sentence_of(take_back(idle))
    assert sentence.endswith("does the model follow this dialect (tools)?"), sentence


def test_what_came_nearest_is_shown_of_each_part():
    def source(number: int, *queries: str) -> Source:
        return Source(number, str(number), "", "", None, list(queries))

    four = [source(1, "a"), source(2, "a", "b"), source(3, "a"), source(4, "c"), source(5, "d"), source(6, "d")]
    assert [one.number for one in nearest(four)] == [1, 2, 4, 5]
    assert [one.number for one in nearest(four[:3])] == [1, 2, 3]
    assert [one.number for one in nearest(source(number, "a") for number in range(1, 9))] == [1, 2, 3]
    assert len(nearest(source(number, f"{number}") for number in range(20))) == 8
