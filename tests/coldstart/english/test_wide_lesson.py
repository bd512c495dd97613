"""Lessons of several parts: what is asked, the lines, the verdict, what is missing, the twin, and one and two rounds."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
from painters import PAGES, settings
from small_runs import recipe_in
from test_wide_questions import PASSAGES as WORLD

from parallelsearch import grammar
from parallelsearch.coldstart.english.lessons.wide import plan_wide
from parallelsearch.coldstart.english.wide import METADATA, Step, Wide, answer_of
from parallelsearch.coldstart.lesson import Drop, Seen
from parallelsearch.coldstart.run import run_coldstart
from parallelsearch.coldstart.tutor import build_coldstart
from parallelsearch.coverage import covered
from parallelsearch.data.questions import read_questions
from parallelsearch.limits import Limits
from parallelsearch.rewards import reward
from parallelsearch.training.metrics import read_metrics
from parallelsearch.training.recipe import parse_recipe
from parallelsearch.training.smoke import make_model, make_tokenizer
from parallelsearch.trajectory import Question, QuestionPart, Trajectory, read_trajectories, write_trajectories

BORN = {"Ada Brenn": "4 May 1901", "Carl Dorn": "12 June 1888", "Vera Lind": "2 April 1933", "Nils Berg": "9 July 1910"}
NATION = {"Ada Brenn": "Norwegian", "Carl Dorn": "German", "Vera Lind": "Swedish", "Nils Berg": "Norwegian"}


def born(name: str, holds: bool | None = None) -> Step:
    return Step(name, name, "born", BORN[name][-4:], BORN[name], holds)


def nation(name: str, target: str = "Norwegian") -> Step:
    return Step(name, name, "nation", NATION[name], NATION[name], NATION[name] == target)


def asked(wide: Wide, text: str = "Tell me about Ada Brenn, Carl Dorn, Vera Lind and Nils Berg.") -> Question:
    items = answer_of(wide)
    answer = items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
    return Question(
        text,
        [answer],
        id="w1",
        kind="mixed" if wide.steps[-1].round == 2 else "parallel",
        supporting_titles=[step.title for step in wide.steps],
        parts=[QuestionPart([step.name], step.round) for step in wide.steps],
        metadata={METADATA: wide.to_dict()},
    )


FIRST = Wide("first_of", "born", None, tuple(map(born, BORN)))
FORMS = [
    (FIRST, "1933 against 1888: after. Earliest so far: 1888, Carl Dorn.", "The earliest is 1888: Carl Dorn."),
    (
        Wide("last_of", "born", None, tuple(map(born, BORN))),
        "1910 against 1933: before. Latest so far: 1933, Vera Lind.",
        "The latest is 1933: Vera Lind.",
    ),
    (
        Wide("how_many_of", "nation", "Norwegian", tuple(map(nation, NATION))),
        "Is that Norwegian? Yes. That makes 2.",
        "So 2.",
    ),
    (
        Wide("which_of", "nation", "Norwegian", tuple(map(nation, NATION))),
        "Is that Norwegian? No. So far: [1].",
        "Yes for Ada Brenn and Nils Berg.",
    ),
    (
        Wide("which_of", "born", "before 1905", tuple(born(name, BORN[name][-4:] < "1905") for name in BORN)),
        "born 2 April 1933. 1933 against 1905: after. No. So far: [1], [",
        "Yes for Ada Brenn and Carl Dorn.",
    ),
    (
        Wide("all_of", "nation", "Norwegian", tuple(map(nation, NATION))),
        "Is that Norwegian? No.",
        "Not Carl Dorn and Vera Lind. So no.",
    ),
    (
        Wide("none_of", "nation", "Irish", tuple(nation(name, "Irish") for name in NATION)),
        "Is that Irish? No.",
        "None of them. So yes.",
    ),
    (
        Wide("each", "born", None, tuple(map(born, BORN))),
        "[1] Ada Brenn: born 4 May 1901.",
        "1901, 1888, 1933 and 1910.",
    ),
    (
        Wide("facts_of_one", None, None, (born("Ada Brenn"), nation("Ada Brenn"))),
        "[1] Ada Brenn, nationality: ",
        "In the order of the question: 1901 and Norwegian.",
    ),
]


async def played(question: Question, search, encoder, mode: str = "parallel", **limits: int) -> Trajectory:
    chosen = Limits(**{"max_observation_tokens": 3000, "max_tokens": 8000, "timeout_s": None, **limits})
    (trajectory,), report = await build_coldstart([question], search, encoder, settings(mode, limits=chosen))
    assert report.to_dict()["num_kept"] == 1
    return trajectory


def thoughts_of(trajectory: Trajectory) -> list[str]:
    turns = [grammar.parse_turn(segment.text) for segment in trajectory.segments if segment.author == "model"]
    assert all(turn.is_valid for turn in turns)
    return [turn.thought or "" for turn in turns]


@pytest.mark.parametrize(("wide", "remark", "verdict"), FORMS, ids=[wide.form for wide, _, _ in FORMS])
async def test_all_parts_are_asked_at_once_read_line_by_line_and_judged(wide, remark, verdict, search, encoder):
    trajectory = await played(asked(wide), search, encoder)
    (round_,) = trajectory.rounds
    assert len(round_.queries) == len(wide.steps)
    last = thoughts_of(trajectory)[-1]
    lines = last.splitlines()
    assert len(lines) == len(wide.steps) + 2  # what is asked for, a line for each part, the verdict
    assert remark in last
    assert re.sub(r"\[\d+\] ", "", lines[-1]).endswith(verdict)
    found = covered(trajectory)
    assert found is not None
    assert found.is_whole
    assert reward(trajectory, "coverage").total == pytest.approx(1.4)


async def test_the_twin_asks_one_by_one_and_ends_with_the_same_lines(search, encoder):
    at_once = await played(asked(FIRST), search, encoder)
    twin = await played(asked(FIRST), search, encoder, "sequential")
    assert [len(turn.queries) for turn in twin.rounds] == [1, 1, 1, 1]
    assert [query.text for query in twin.queries] == [query.text for query in at_once.queries]
    verdicts = [thoughts_of(one)[-1].splitlines()[-1] for one in (at_once, twin)]
    assert verdicts[0] == verdicts[1]
    assert "1901" in thoughts_of(twin)[1]  # what the first page says, before the second is asked for


@pytest.mark.parametrize("max_turns", [1, 2])
async def test_with_fewer_rounds_than_parts_the_twin_begins_with_the_question(max_turns, search, encoder):
    text = "Which painter was born first, Carl Dorn, Ada Brenn or Vera Lind?"
    wide = Wide("first_of", "born", None, (born("Carl Dorn"), born("Ada Brenn"), born("Vera Lind")))
    twin = await played(asked(wide, text), search, encoder, "sequential", max_turns=max_turns)
    assert len(twin.rounds) <= max_turns
    assert twin.queries[0].text == text.rstrip("?")
    assert all(len(turn.queries) == 1 for turn in twin.rounds)


async def test_parts_after_a_first_step_take_two_rounds(search, encoder):
    def made(work: str, maker: str) -> Step:
        return Step(work, work, "director", maker, maker)

    def of(maker: str, year: str, work: str) -> Step:
        return Step(maker, maker, "born", year, year, None, 2, work)

    wide = Wide(
        "first_of",
        "born",
        None,
        (
            made("Blue Gate", "Ira Moss"),
            made("Iron Lake", "Ann Poe"),
            of("Ira Moss", "1950", "Blue Gate"),
            of("Ann Poe", "1941", "Iron Lake"),
        ),
    )
    question = asked(wide, "Which film has the older director, Blue Gate or Iron Lake?")
    trajectory = await played(question, search, encoder)
    assert [len(turn.queries) for turn in trajectory.rounds] == [2, 2]
    assert trajectory.queries[2].text == "Ira Moss director born"
    assert thoughts_of(trajectory)[-1].endswith("Ann Poe directed Iron Lake, so Iron Lake.")
    assert reward(trajectory, "coverage").total == pytest.approx(1.4)
    twin = await played(question, search, encoder, "sequential")
    assert [len(turn.queries) for turn in twin.rounds] == [1, 1, 1, 1]
    with pytest.raises(Drop, match="too_few_rounds"):
        plan_wide(question, wide, settings_rng(), at_once=True, max_rounds=1)


async def test_the_twin_does_not_name_who_it_has_yet_to_find(search, encoder):
    def of(fact: str, value: str) -> Step:
        return Step("Ira Moss", "Ira Moss", fact, value, value, None, 2, "Blue Gate")

    made = Step("Blue Gate", "Blue Gate", "director", "Ira Moss", "Ira Moss")
    wide = Wide("facts_of_one", None, None, (made, of("born", "1950"), of("nation", "Canadian")))
    question = asked(wide, "Give the year of birth and the nationality of the director of the film Blue Gate.")
    twin = await played(question, search, encoder, "sequential")
    first, second, *_ = thoughts_of(twin)
    assert "Ira Moss" not in first
    assert "the year of birth and the nationality" in first
    assert "Ira Moss" in second


def test_numbers_stand_side_by_side_with_their_digits_before_they_are_judged():
    places = [
        Step(name, name, "population", value, value) for name, value in (("A", "581"), ("B", "6,871"), ("C", "101"))
    ]
    wide = Wide("fewest_of", "population", None, tuple(places))
    lesson = plan_wide(asked(wide), wide, random.Random(0), at_once=True, max_rounds=4)
    lesson.asked.append(tuple(places))
    pages = [
        Seen(number, one.name, f"It has a population of {one.value}.") for number, one in enumerate(places, start=1)
    ]
    said = lesson.turn(1, pages)
    assert "581. Smallest so far: 581, A." in said
    assert "6,871 against 581, 4 digits against 3: more. Smallest so far: 581, A." in said
    assert "101 against 581, 3 digits each, 1 5: less. Smallest so far: 101, C." in said


async def test_a_count_is_not_taken_where_a_part_is_missing(search, encoder):
    lost = Step("Zed Quill", "Zed Quill", "nation", "Danish", "Danish", False)
    for form in ("how_many_of", "which_of"):
        question = asked(Wide(form, "nation", "Norwegian", (nation("Ada Brenn"), nation("Carl Dorn"), lost)))
        _, report = await build_coldstart([question], search, encoder, settings())
        assert report.reasons["w1"] == "page_not_found"


@pytest.mark.parametrize(
    ("text", "fact", "words", "line"),
    [
        ("(born 26 September 1994) is an Austrian luger. He won.", "nation", "Austrian", "is an Austrian luger."),
        ("( 1932- 1987) was an Austrian director and screenwriter.", "nation", "Austrian", "was an Austrian director"),
        ("is an Austrian luger. His nationality, he says, is Austrian.", "nation", "Austrian", "is an Austrian luger."),
        ("is a band that was formed in 1994 in the town of Linz.", "formed", "1994", "that was formed in 1994."),
    ],
)
def test_a_line_quotes_what_matters_and_ends_with_it(text, fact, words, line):
    wide = Wide("each", fact, None, (Step("Lor Kol", "Lor Kol", fact, words, words),))
    lesson = plan_wide(asked(wide), wide, settings_rng(), at_once=True, max_rounds=4)
    lesson.turn(0, [])
    read = (grammar.parse_turn(lesson.turn(1, [Seen(1, "Lor Kol", f"Lor Kol {text}")])).thought or "").splitlines()[1]
    assert line in read
    assert "(" not in read
    assert not read.split(" That is")[0].rstrip(".").endswith((" in", " and", " the"))


def test_a_nationality_is_not_read_off_another_part_of_the_page():
    wide = Wide("each", "nation", None, (nation("Ada Brenn"), nation("Carl Dorn")))
    lesson = plan_wide(asked(wide), wide, settings_rng(), at_once=True, max_rounds=4)
    lesson.turn(0, [])
    later = Seen(1, "Ada Brenn", "Brenn was inducted into the Norwegian Hall of Fame. She was proud.")
    again = grammar.parse_turn(lesson.turn(1, [later, Seen(2, "Carl Dorn", PAGES["Carl Dorn"])]))
    assert len(again.queries) == 1
    assert "Ada Brenn" in again.queries[0]


def test_what_is_asked_for_names_the_fact():
    old = Wide("how_many_of", "born", "before 1905", tuple(born(name, int(BORN[name][-4:]) < 1905) for name in BORN))
    actors = Wide("none_of", "is_a", "actor", tuple(Step(n, n, "is_a", "painter", "painter", False) for n in BORN))
    shown = [Seen(number, name, PAGES[name]) for number, name in enumerate(BORN, start=1)]
    for wide, words in (
        (old, "Asked for: how many, born before 1905."),
        (FIRST, "Asked for: the earliest (year of birth)."),
        (FORMS[7][0], "Asked for: each of them (year of birth)."),
        (actors, "Is that an actor? No."),
    ):
        lesson = plan_wide(asked(wide), wide, settings_rng(), at_once=True, max_rounds=4)
        lesson.turn(0, [])
        assert words in lesson.turn(1, shown)


def settings_rng() -> random.Random:
    return random.Random(0)


def test_a_part_that_did_not_come_is_asked_for_again_alone():
    odd = Step("Zed Quill", "Zed Quill", "founded", "1949", "1949")
    prize = Step("Lund Prize", "Lund Prize", "founded", "1949", "1949")
    wide = Wide("each", "founded", None, (odd, prize))
    lesson = plan_wide(asked(wide), wide, settings_rng(), at_once=True, max_rounds=4)
    tutor_sees = [Seen(1, "Lund Prize", PAGES["Lund Prize"])]
    first, again = grammar.parse_turn(lesson.turn(0, [])), grammar.parse_turn(lesson.turn(1, tutor_sees))
    assert first.queries == ("Zed Quill founded", "Lund Prize founded")
    assert again.queries == ("Zed Quill year of founding",)
    assert "1 found" in (again.thought or "")
    came = [*tutor_sees, Seen(2, "Zed Quill", "Zed Quill is a press, founded in 1949.")]
    assert grammar.parse_turn(lesson.turn(2, came)).answer == "1949 and 1949"
    with pytest.raises(Drop, match="page_not_found"):
        lesson.turn(2, tutor_sees)


async def test_one_that_does_not_fit_decides_although_another_is_missing(search, encoder):
    lost = Step("Zed Quill", "Zed Quill", "nation", "Norwegian", "Norwegian", True)
    question = asked(Wide("all_of", "nation", "Norwegian", (nation("Carl Dorn"), lost, nation("Nils Berg"))))
    trajectory = await played(question, search, encoder)
    last = thoughts_of(trajectory)[-1]
    assert "Zed Quill: nothing was found." in last
    assert last.endswith("Not Carl Dorn. So no.")
    assert len(trajectory.rounds) == 1  # nothing would change by asking again
    lost_first = asked(
        Wide("first_of", "born", None, (born("Carl Dorn"), Step("Zed Quill", "Z", "born", "1950", "1950")))
    )
    _, report = await build_coldstart([lost_first], search, encoder, settings())
    assert report.reasons["w1"] == "page_not_found"


def test_a_golden_answer_that_the_parts_do_not_give_is_refused():
    question = asked(FIRST)
    question.golden_answers = ["Nils Berg"]
    with pytest.raises(Drop, match="evidence_disagrees"):
        plan_wide(question, FIRST, settings_rng(), at_once=True, max_rounds=4)


async def test_wide_trajectories_train_a_model(search, encoder, tmp_path):
    """The whole way in small: lessons, both twins, their files, two steps of SFT."""
    pytest.importorskip("torch")
    pytest.importorskip("trl")
    questions = [replace(asked(wide), id=f"w{number}") for number, (wide, _, _) in enumerate(FORMS[-2:])]
    from parallelsearch.training.sft import run_sft

    tokenizer, losses = make_tokenizer(), []
    for mode in ("parallel", "sequential"):
        trajectories, report = await build_coldstart(questions, search, encoder, settings(mode))
        assert report.to_dict()["num_kept"] == 2
        write_trajectories(tmp_path / f"{mode}.jsonl", trajectories)
        train = {"algorithm": "sft", "out": str(tmp_path / mode), "steps": 2, "batch_size": 2, "max_length": 8192}
        recipe = parse_recipe(
            {
                "model": {"name": "smoke"},
                "data": {"train": str(tmp_path / f"{mode}.jsonl")},
                "train": {**train, "micro_batch_tokens": 32768, "lr": 1e-2, "save_every": 100, "eval_every": 0},
            }
        )
        result = run_sft(recipe, model=make_model(tokenizer), tokenizer=tokenizer)
        assert result.num_rows == 2
        losses.append(
            [record["loss"] for record in read_metrics(tmp_path / mode / "metrics.jsonl") if "loss" in record]
        )
    assert all(of_one[-1] < of_one[0] for of_one in losses)


def test_a_run_makes_wide_questions_and_teaches_them_both_ways(folder):
    """From pages to the files that SFT and RL start from; the twin has rounds of its own."""
    row = {"question": "what is a genus of moths", "golden_answers": ["none"], "kind": "single"}
    recipe = recipe_in(
        folder,
        [row],
        WORLD,
        num_wide={3: 2, 5: 2},
        num_wide_mixed={2: 1},
        num_wide_for_validation=1,
        sequential_max_turns=6,
        max_tokens=1600,
        max_mixed_tokens=16000,
        rollout={
            "max_tokens": 16000,
            "max_observation_tokens": 3000,
            "tokens_per_subquery": 600,
            "max_tokens_per_turn": 1500,
        },
    )
    run_coldstart(recipe)
    made, twins = (
        {one.id: one for one in read_trajectories(folder / "out" / f"{mode}.jsonl") if one.parts}
        for mode in ("parallel", "sequential")
    )
    assert made.keys() == twins.keys()
    assert sorted(len(one.parts or ()) for one in made.values()) == [3, 3, 4, 5, 5]
    assert all(found.is_whole for one in made.values() if (found := covered(one)) is not None)
    assert all(len(turn.queries) == 1 for one in twins.values() for turn in one.rounds)
    assert all(len(one.rounds) >= len(one.parts or ()) for one in twins.values())
    validation = read_questions(folder / "out" / "validation.jsonl")
    assert sorted(len(question.parts or ()) for question in validation) == [3, 4, 5], "every width"
    for_rl = {question.id: question for question in read_questions(folder / "out" / "rl_made.jsonl")}
    assert made.keys() <= for_rl.keys()
    assert all(for_rl[one.id].parts == one.parts for one in made.values())
