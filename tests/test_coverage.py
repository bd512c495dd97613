"""Parts covered: what counts as a query of a part's own, for any names, any order and any number of parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallelsearch.coverage import covered, named_in, numbered_rounds, words_of
from parallelsearch.trajectory import Query, QuestionPart, Trajectory, Turn, trajectory_from_dict

LETTERS = "bcdfghjklm"
NAMES = st.lists(st.text(LETTERS, min_size=2, max_size=6), min_size=2, max_size=8, unique=True)


def asked(*rounds, parts=(), error=None):
    turns = [
        Turn(queries=[Query(text, error=error if number == 0 else None) for text in texts])
        for number, texts in enumerate(rounds)
    ]
    return Trajectory("?", turns=turns, parts=list(parts))


def parts(*names, round=1):
    return [QuestionPart([name], round) for name in names]


@given(NAMES, st.randoms())
def test_a_query_for_each_covers_all_in_any_order(names, random):
    queries = [f"birth year of {name.title()}" for name in names]
    random.shuffle(queries)
    found = covered(asked(queries, parts=parts(*names)))
    assert found.is_whole
    assert found.share == 1.0
    assert found.num_idle == 0


@given(NAMES)
def test_one_query_with_all_names_covers_none(names):
    found = covered(asked([" and ".join(names)], parts=parts(*names)))
    assert found.num_covered == 0
    assert found.num_idle == 1


@given(NAMES)
def test_one_after_another_covers_the_first_only(names):
    found = covered(asked(*([name] for name in names), parts=parts(*names)))
    assert found.is_covered == (True, *[False] * (len(names) - 1))


@given(NAMES, st.data())
def test_the_share_is_that_of_the_parts_that_were_asked_for(names, data):
    chosen = data.draw(st.lists(st.sampled_from(names), unique=True))
    idle = data.draw(st.integers(0, 3))
    found = covered(asked([*chosen, *(f"something else {n}" for n in range(idle))], parts=parts(*names)))
    assert found.num_covered == len(chosen)
    assert found.num_idle == idle
    assert [name for name, is_covered in zip(names, found.is_covered, strict=True) if is_covered] == [
        n for n in names if n in chosen
    ]


@given(NAMES)
def test_more_queries_never_cover_less(names):
    trajectory = asked(names, parts=parts(*names))
    more = asked([*names, " ".join(names), names[0]], parts=parts(*names))
    assert covered(trajectory).is_covered == covered(more).is_covered
    assert covered(more).num_idle == 2


def test_a_query_that_names_two_covers_neither():
    found = covered(asked(["height of K2 and of Everest", "height of Lhotse"], parts=parts("K2", "Everest", "Lhotse")))
    assert found.is_covered == (False, False, True)
    assert found.num_idle == 1


def test_a_part_of_the_second_round_is_asked_for_there():
    mixed = [*parts("Forbidden Ground", "Free Guy"), *parts("Pál Gábor", "Shawn Levy", round=2)]
    films = ["director of Forbidden Ground", "director of Free Guy"]
    people = ["birth date of Pal Gabor", "Shawn Levy, director of Free Guy, birth date"]
    assert covered(asked(films, people, parts=mixed)).is_whole
    assert covered(asked(films, parts=mixed)).share == 0.5
    assert covered(asked(people, films, parts=mixed)).num_covered == 0
    assert covered(asked(films[:1], films[1:], people, parts=mixed)).is_covered == (True, False, False, False)


def test_a_round_that_failed_is_not_held_against_the_policy():
    both = parts("Ada", "Grace")
    again = asked(["Ada"], ["Ada", "Grace"], parts=both, error="timed out")
    assert [number for number, _ in numbered_rounds(again)] == [1, 1]
    assert covered(again).is_whole
    assert covered(asked(["Ada"], ["Ada", "Grace"], parts=both)).is_covered == (True, False)


def test_two_facts_of_one_thing_need_two_queries_with_other_words():
    twice = parts("Marie Curie", "Marie Curie")
    assert covered(asked(["Marie Curie born", "Marie Curie prizes"], parts=twice)).is_whole
    assert covered(asked(["Marie Curie born"], parts=twice)).share == 0.5
    assert covered(asked(["Marie Curie born", "born Marie Curie?"], parts=twice)).share == 0.5


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("population of New York", [0]),
        ("population of York", [1]),
        ("is York older than New York", [0, 1]),
        ("YORK's population", [1]),
        ("Yorkshire", []),
        ("New Yorkers", []),
    ],
)
def test_a_name_inside_another_is_not_named_there(query, expected):
    assert named_in(query, parts("New York", "York")) == expected


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("Beyonce's albums", "Beyoncé"),
        ("the Beatles’ first record", "The Beatles"),
        ("“Blue” (album), year", "Blue"),
        ("O’Neill plays", "O'Neill"),
        ("ＡＢＢＡ members", "ABBA"),
    ],
)
def test_names_are_found_as_they_are_written(query, name):
    assert named_in(query, parts(name)) == [0]


def test_any_name_of_a_part_will_do():
    part = QuestionPart(["Elizabeth Taylor (novelist)", "Elizabeth Taylor"])
    assert covered(asked(["Elizabeth Taylor birth"], parts=[part])).is_whole


def test_nothing_is_said_about_a_question_without_parts():
    assert covered(Trajectory("?")) is None
    assert covered(asked(["a"], parts=[])) is None
    assert covered(asked(["a"]), parts("a")).is_whole


def test_no_search_covers_nothing():
    found = covered(Trajectory("?", parts=parts("a", "b")))
    assert found.share == 0.0
    assert found.num_idle == 0


@given(st.text())
def test_words_are_the_same_when_they_are_read_again(text):
    assert words_of(" ".join(words_of(text))) == words_of(text)


def test_a_record_that_was_read_back_is_covered_alike():
    trajectory = asked(["Ada", "Grace"], parts=parts("Ada", "Grace"))
    assert covered(trajectory_from_dict(trajectory.to_dict())) == covered(trajectory)
