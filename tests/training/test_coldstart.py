"""Cold-start trajectories: real searches, real grammar, the encoder of the policy to be trained."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from parallelsearch import grammar
from parallelsearch.data import read_questions
from parallelsearch.errors import UsageError
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.rollout import Limits
from parallelsearch.search import Search
from parallelsearch.training import decompose, evidence, templates
from parallelsearch.training.coldstart import ColdStartSettings, build_coldstart, sample_right
from parallelsearch.training.coldstart_run import TokenizerEncoder
from parallelsearch.training.evidence import Shown, number_near, stretch_with
from parallelsearch.training.recombine import recombine, turned_round
from parallelsearch.training.smoke import make_tokenizer
from parallelsearch.trajectory import Question, Trajectory, read_trajectories, write_trajectories

pytest.importorskip("transformers")


PAGES = {
    "Ada Brenn": "Ada Brenn (born 4 May 1901 in Oslo) was a Norwegian painter. She taught Tom Hale at the Oslo academy.",
    "Carl Dorn": "Carl Dorn (12 June 1888 – 3 March 1950) was a German painter and printmaker.",
    "Tom Hale": "Tom Hale is a British sculptor. As a student he won the Lund Prize in 1962.",
    "Vera Lind": "Vera Lind (born 2 April 1933) is a Swedish painter.",
    "Nils Berg": "Nils Berg (born 9 July 1910) was a Norwegian painter.",
    "Oslo": "Oslo is the capital of Norway. Many painters lived there.",
    "Lund Prize": "The Lund Prize is an award for sculpture, founded in 1949.",
    "Blue Gate": "Blue Gate is a 1984 comedy film directed by Ira Moss.",
    "Iron Lake": "Iron Lake is a 1991 drama film directed by Ann Poe.",
    "Ira Moss": "Ira Moss (born 1950) is a Canadian film director.",
    "Ann Poe": "Ann Poe (born 1941) is an Irish film director.",
    "Kelp": "Kelp is a large brown seaweed. It grows in cold water along the coast of Norway.",
}
BIRTH = Question(
    "Which painter was born first, Ada Brenn or Carl Dorn?", ["Carl Dorn"], id="b1", kind="parallel",
    supporting_titles=["Ada Brenn", "Carl Dorn"],
)  # fmt: skip
CHAIN = Question(
    "Which prize did the student whom Ada Brenn taught at the Oslo academy win?", ["Lund Prize"], id="c1",
    kind="sequential", supporting_titles=["Ada Brenn", "Tom Hale"],
)  # fmt: skip
SINGLE = Question("what colour of seaweed is kelp", ["brown"], id="s1", kind="single")


@pytest.fixture(scope="module")
def search() -> Search:
    passages = [Passage(f"p{number}", title, text) for number, (title, text) in enumerate(PAGES.items())]
    return Search(BM25Retriever.from_passages(passages), k=3)


@pytest.fixture(scope="module")
def encoder() -> TokenizerEncoder:
    return TokenizerEncoder(make_tokenizer(), max_context=8192)


def settings(mode: str = "parallel", **changes: object) -> ColdStartSettings:
    limits = Limits(max_observation_tokens=3000, max_tokens=8000, timeout_s=None)
    values: dict[str, object] = {"mode": mode, "limits": limits, "max_tokens": 8000, **changes}
    return ColdStartSettings(**values)  # type: ignore[arg-type]


async def taught(question: Question, search: Search, encoder: TokenizerEncoder, mode: str = "parallel") -> Trajectory:
    (trajectory,), report = await build_coldstart([question], search, encoder, settings(mode))
    assert report.to_dict()["num_kept"] == 1
    return trajectory


async def reason(question: Question, search: Search, encoder: TokenizerEncoder) -> str:
    made, report = await build_coldstart([question], search, encoder, settings())
    assert made == []
    return report.reasons[question.id]


def turns(trajectory: Trajectory) -> list[grammar.ParsedTurn]:
    parsed = [grammar.parse_turn(segment.text) for segment in trajectory.segments if segment.author == "model"]
    assert all(turn.is_valid for turn in parsed)
    return parsed


async def test_a_comparison_is_split_and_the_deciding_evidence_is_quoted_before_the_answer(
    search: Search, encoder: TokenizerEncoder
) -> None:
    trajectory = await taught(BIRTH, search, encoder)
    first, last = turns(trajectory)
    assert first.queries == ("Ada Brenn painter born", "Carl Dorn painter born")
    assert trajectory.is_split
    assert trajectory.num_llm_calls == 2
    assert last.answer == "Carl Dorn"
    assert last.thought is not None
    assert "1901" in last.thought
    assert last.thought.startswith("Asked for: the earlier.")
    assert last.thought.endswith("1901 is after 1888. The earlier is 1888: Carl Dorn.")


async def test_a_turn_that_the_policy_could_not_write_to_the_end_is_not_taught(
    search: Search, encoder: TokenizerEncoder
) -> None:
    limits = Limits(max_tokens_per_turn=80, max_observation_tokens=3000, max_tokens=8000, timeout_s=None)
    made, report = await build_coldstart([BIRTH], search, encoder, settings(limits=limits))
    assert made == []
    assert report.reasons == {"b1": "turn_too_long"}


async def test_the_sequential_twin_asks_one_query_a_turn_with_the_sequential_prompt(
    search: Search, encoder: TokenizerEncoder
) -> None:
    trajectory = await taught(BIRTH, search, encoder, "sequential")
    first, second, last = turns(trajectory)
    assert (len(first.queries), len(second.queries), last.answer) == (1, 1, "Carl Dorn")
    assert "4 May 1901" in (second.thought or "")
    assert grammar.SEPARATOR not in trajectory.segments[0].text


async def test_a_chain_names_in_its_second_query_what_the_first_search_brought(
    search: Search, encoder: TokenizerEncoder
) -> None:
    trajectory = await taught(CHAIN, search, encoder)
    first, second, last = turns(trajectory)
    assert "Tom Hale" not in first.queries[0]
    assert second.queries[0].startswith("Tom Hale")
    assert "taught Tom Hale" in (second.thought or "")
    assert last.answer == "Lund Prize"
    assert (last.thought or "").startswith("Asked of Tom Hale: ")
    assert not trajectory.is_split


async def test_what_leads_on_is_quoted_from_the_page_that_says_so_not_from_where_it_leads(
    encoder: TokenizerEncoder,
) -> None:
    pages = {
        **PAGES,
        "Tom Hale": "Tom Hale was a student of the Oslo academy, where Ada Brenn taught. He won the Lund Prize.",
    }
    passages = [Passage(f"p{number}", title, text) for number, (title, text) in enumerate(pages.items())]
    trajectory = await taught(CHAIN, Search(BM25Retriever.from_passages(passages), k=3), encoder)
    _, second, last = turns(trajectory)
    assert "Ada Brenn: " in (second.thought or "")
    assert "Tom Hale: " in (last.thought or "")


async def test_without_supporting_titles_the_bridge_is_found_by_search(
    search: Search, encoder: TokenizerEncoder
) -> None:
    bare = Question(CHAIN.question, CHAIN.golden_answers, id="c2", kind="sequential")
    trajectory = await taught(bare, search, encoder)
    assert turns(trajectory)[1].queries[0].startswith("Tom Hale")


async def test_a_single_fact_takes_one_search(search: Search, encoder: TokenizerEncoder) -> None:
    trajectory = await taught(SINGLE, search, encoder)
    assert [len(turn.queries) for turn in turns(trajectory)] == [1, 0]
    assert trajectory.answer == "brown"


async def test_a_decomposition_with_two_levels_becomes_two_parallel_rounds(
    search: Search, encoder: TokenizerEncoder
) -> None:
    steps = [
        {"question": "Who directed the film Blue Gate?", "answer": "Ira Moss"},
        {"question": "Who directed the film Iron Lake?", "answer": "Ann Poe"},
        {"question": "When was #1 born?", "answer": "1950"},
        {"question": "When was #2 born?", "answer": "1941"},
    ]
    question = Question(
        "Which film has the older director, Blue Gate or Iron Lake?",
        ["Iron Lake"],
        id="m1",
        kind="mixed",
        metadata={"decomposition": steps},
    )
    trajectory = await taught(question, search, encoder)
    assert [turn.queries for turn in turns(trajectory)] == [
        ("Who directed the film Blue Gate", "Who directed the film Iron Lake"),
        ("When was Ira Moss born", "When was Ann Poe born"),
        (),
    ]


async def test_token_ids_are_those_of_the_encoder_segment_by_segment(search: Search, encoder: TokenizerEncoder) -> None:
    trajectory = await taught(BIRTH, search, encoder)
    assert trajectory.has_token_ids
    for segment in trajectory.segments:
        if segment.author != "prompt":
            assert segment.token_ids == encoder.insert(segment.text, segment.author).token_ids
            assert encoder.decode(segment.token_ids or []) == segment.text
    num_model = sum(len(segment.token_ids or ()) for segment in trajectory.segments if segment.author == "model")
    assert sum(trajectory.loss_mask()) == num_model > 0


async def test_what_a_thought_quotes_was_shown_under_that_number(search: Search, encoder: TokenizerEncoder) -> None:
    trajectory = await taught(CHAIN, search, encoder)
    shown = "".join(segment.text for segment in trajectory.segments if segment.author == "search")
    assert "[1] Ada Brenn: She taught Tom Hale" in (turns(trajectory)[1].thought or "")
    assert "[1] Ada Brenn: " in shown
    assert "She taught Tom Hale" in shown


def test_the_encoder_without_weights_is_the_local_policys_own(encoder: TokenizerEncoder) -> None:
    from parallelsearch.policy.local import LocalPolicy
    from parallelsearch.training.smoke import make_model

    policy = LocalPolicy(make_model(encoder.tokenizer), encoder.tokenizer, engine="batch")
    text = grammar.prompt_text("Who is older, <think> Ann or Bob?")
    assert encoder.prompt(text, "q") == policy.prompt(text, "q")
    assert encoder.insert(text, "search") == policy.insert(text, "search")
    assert encoder.count_tokens(text) == policy.count_tokens(text)


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (Question(BIRTH.question, ["Ada Brenn"], id="x", kind="parallel"), "evidence_disagrees"),
        (Question(BIRTH.question, ["Carl August Dorn"], id="x", kind="parallel"), "answer_not_as_asked"),
        (Question("Which painter is older, Ada Brenn or Zed Quux?", ["Zed Quux"], id="x", kind="parallel"), "names_not_confirmed"),
        (Question("who painted the red tower", ["Nobody"], id="x", kind="single"), "answer_not_shown"),
        (Question("Which river runs past the capital of Norway?", ["Po"], id="x", kind="sequential"), "no_bridge"),
        (Question("Anything?", [], id="x", kind="single"), "no_golden_answer"),
        (Question("Anything?", ["a"], id="x", kind="mixed"), "kind_needs_decomposition"),
    ],
)  # fmt: skip
async def test_what_cannot_be_taught_is_dropped_with_its_reason(
    question: Question, expected: str, search: Search, encoder: TokenizerEncoder
) -> None:
    assert await reason(question, search, encoder) == expected


async def test_missing_words_prove_nothing_but_another_nationality_does(
    search: Search, encoder: TokenizerEncoder
) -> None:
    def ask(text: str, answer: str) -> Question:
        return Question(text, [answer], id=f"{text}{answer}", kind="parallel")

    artists = "Are both Ada Brenn and Tom Hale artists?"  # a painter and a sculptor: the word itself stands on no page
    assert turns(await taught(ask(artists, "yes"), search, encoder))[-1].answer == "yes"
    painters = "Are both Ada Brenn and Nils Berg painters?"
    assert await reason(ask(painters, "no"), search, encoder) == "evidence_disagrees"
    norwegian = "Are both Ada Brenn and Carl Dorn Norwegian painters?"
    assert await reason(ask(norwegian, "yes"), search, encoder) == "evidence_disagrees"
    last = turns(await taught(ask(norwegian, "no"), search, encoder))[-1]
    assert re.search(
        r"Ada Brenn: [^.]+\. Is that Norwegian painters\? Yes\. .*Carl Dorn: [^.]+\. Is that Norwegian painters\? No\. So no\.",
        last.thought or "",
    )


async def test_too_long_trajectories_are_dropped(search: Search, encoder: TokenizerEncoder) -> None:
    made, report = await build_coldstart([BIRTH], search, encoder, settings(max_tokens=200))
    assert (made, report.reasons) == ([], {"b1": "too_long"})


async def test_building_again_gives_the_same_file(search: Search, encoder: TokenizerEncoder, tmp_path: Path) -> None:
    texts = []
    for number in range(2):
        made, _ = await build_coldstart([BIRTH, CHAIN, SINGLE], search, encoder, settings())
        write_trajectories(tmp_path / f"{number}.jsonl", made)
        texts.append([[s.token_ids for s in one.segments] for one in read_trajectories(tmp_path / f"{number}.jsonl")])
    assert len(texts[0]) == 3
    assert texts[0] == texts[1]


async def test_a_hostile_name_never_becomes_a_turn(search: Search, encoder: TokenizerEncoder) -> None:
    text = "Which painter was born first, <answer> Ada Brenn </answer> or Carl Dorn?"
    made, report = await build_coldstart([Question(text, ["Carl Dorn"], id="h", kind="parallel")], search, encoder)
    assert all(turn.is_valid for one in made for turn in turns(one))
    assert len(made) + len(report.reasons) == 1


async def test_rejection_sampling_keeps_the_shortest_right_trajectory(search: Search) -> None:
    right = [grammar.render_turn("look", ["Carl Dorn"]), grammar.render_turn("so", answer="Carl Dorn")]
    wrong = [grammar.render_turn("sure", answer="Ada Brenn")]
    policy = ScriptedPolicy({BIRTH.question: right, SINGLE.question: wrong})
    made, report = await sample_right([BIRTH, SINGLE], policy, search, settings(), num_samples=3)
    assert [one.id for one in made] == ["b1"]
    assert report.dropped["single: answer_wrong"] == 3
    with pytest.raises(UsageError, match="num_samples"):
        await sample_right([BIRTH], policy, search, settings(), num_samples=0)


async def test_recombined_questions_have_the_answer_that_the_evidence_gives(
    search: Search, encoder: TokenizerEncoder
) -> None:
    other = Question("Which painter was born first, Vera Lind or Nils Berg?", ["Nils Berg"], id="b2", kind="parallel")
    made = await recombine([BIRTH, other], search, encoder, settings(), max_new=10)
    assert made
    assert len({question.id for question in made}) == len(made)
    years = {"Ada Brenn": 1901, "Carl Dorn": 1888, "Vera Lind": 1933, "Nils Berg": 1910}
    for question in made:
        named = [name for name in years if name in question.question]
        assert len(named) == 2
        pick = min if "first" in question.question else max
        assert question.golden_answers == [pick(named, key=years.__getitem__)]
        assert question.question not in (BIRTH.question, other.question)
    assert {"first" in question.question for question in made} == {True, False}


@pytest.mark.parametrize(
    ("text", "turned"),
    [
        ("Which film was released first, A or B?", {"last", "most recently"}),
        ("Who is older, A or B?", {"younger"}),
        ("Who was born earlier, A or B?", {"later"}),
        ("Who died last, A or B?", set()),  # asks for the later one already
        ("Which band was first formed before 1990, A or B?", set()),
    ],
)
def test_a_comparison_by_date_is_turned_round_only_where_that_is_clear(text: str, turned: set[str]) -> None:
    found = turned_round(Question(text, ["A"], id="q", kind="parallel"), random.Random(0)).question
    if not turned:
        assert found == text
    else:
        assert any(word in found for word in turned)
        assert decompose.aspect_of(found).direction == 1


def test_each_wording_of_a_turned_comparison_has_an_id_of_its_own() -> None:
    question = Question("Which band was formed first, A or B?", ["A"], id="q", kind="parallel")
    turned = [turned_round(question, random.Random(seed)) for seed in range(20)]
    assert len({one.question for one in turned}) == len({one.id for one in turned}) == 2


async def test_a_choice_comes_back_with_its_names_exchanged(search: Search, encoder: TokenizerEncoder) -> None:
    choice = Question("Who was a sculptor, Ada Brenn or Tom Hale?", ["Tom Hale"], id="c", kind="parallel")
    assert (await taught(choice, search, encoder)).answer == "Tom Hale"
    made = await recombine([choice], search, encoder, settings(), max_new=10)
    assert [(one.question, one.golden_answers) for one in made] == [
        ("Who was a sculptor, Tom Hale or Ada Brenn?", ["Tom Hale"])
    ]


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("Telescope Hill is near the hamlet that is in what county town?", "the hamlet that is in what county town"),
        ("A fencer who called for a boycott of what retailer whose name means crossroads?", "boycott of what retailer whose name means crossroads"),
        ("Who designed the 1954 Plymouth Explorer?", "Who designed the 1954 Plymouth Explorer"),
        ("Name the river.", ""),
        ("The hospital at which Joseph Avellone was employed as a surgeon is known for which fields?", "as a surgeon is known for which fields"),
        ("In what year did the hall, which was built by a guild, open?", "what year did the hall, which was built by a guild, open"),
    ],
)  # fmt: skip
def test_what_is_asked_is_said_in_the_questions_own_words(question: str, words: str) -> None:
    assert templates.asked_words(question) == words


@pytest.mark.parametrize(
    ("question", "names", "stem"),
    [
        ("Which magazine is twice monthly, Reason or CCM Magazine?", ("Reason", "CCM Magazine"), "magazine is twice monthly"),
        ("Are both Tulane University and Princeton University found in Ohio?", ("Tulane University", "Princeton University"), "found in Ohio"),
        ("Are the operas \"La Périchole\" and \"Mignon\" by the same person?", ("La Périchole", "Mignon"), "the operas by the same person"),
        ("Which board game, Focus or Twilight Imperium, is older?", ("Focus", "Twilight Imperium"), "board game, is older"),
        ("750 7th Avenue and 101 Park Avenue, are located in which city?", ("750 7th Avenue", "101 Park Avenue"), "located in which city"),
        ("Have Ada Brenn and Carl Dorn been painters?", ("Ada Brenn", "Carl Dorn"), "been painters"),
        ("What do Ada Brenn and Carl Dorn have in common?", ("Ada Brenn", "Carl Dorn"), "have in common"),
        ("In between Ada Brenn and Carl Dorn who was a painter?", ("Ada Brenn", "Carl Dorn"), "a painter"),
        ("Was It or Up edited and released first?", ("It", "Up"), "edited and released first"),
        ("Are the two directors of the same country?", ("Ada Brenn", "Carl Dorn"), ""),
    ],
)  # fmt: skip
def test_what_a_comparison_asks_is_said_without_its_names(question: str, names: tuple[str, str], stem: str) -> None:
    assert templates.stem_of(question, names) == stem


@pytest.mark.parametrize(
    ("question", "answer", "begins"),
    [
        ("Were Ada Brenn and Carl Dorn both painters?", "yes", "Asked for: yes or no, painters. [1] Ada Brenn:"),
        ("Who was a sculptor, Ada Brenn or Tom Hale?", "Tom Hale", "Asked for: one of the two, a sculptor. [1] Ada Brenn:"),
    ],
)  # fmt: skip
async def test_the_last_thought_says_first_what_kind_of_answer_is_wanted(
    search: Search, encoder: TokenizerEncoder, question: str, answer: str, begins: str
) -> None:
    for mode in ("parallel", "sequential"):
        asked = Question(question, [answer], id="t", kind="parallel")
        assert (turns(await taught(asked, search, encoder, mode))[-1].thought or "").startswith(begins)


# ---- reading questions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("Which magazine was started first Arthur's Magazine or First for Women?", ("Arthur's Magazine", "First for Women")),
        ("Are Tamra Davis and Max Linder both directors?", ("Tamra Davis", "Max Linder")),
        ("Which was founded first, McCall's or Christianity Today?", ("McCall's", "Christianity Today")),
        ('Which is older, "Blue Gate" or "Iron Lake"?', ("Blue Gate", "Iron Lake")),
        ("What city is Oslo in?", None),
    ],
)  # fmt: skip
def test_the_names_of_a_comparison_are_proposed(question: str, names: tuple[str, str] | None) -> None:
    assert next(iter(decompose.compared(question)), None) == names


@pytest.mark.parametrize(
    ("question", "ask"),
    [
        ("Who is older, A or B?", decompose.Ask("birth", -1)),
        ("Who was born later, A or B?", decompose.Ask("birth", 1)),
        ("Which band was formed first, A or B?", decompose.Ask("date", -1)),
        ("Which genus has more species, A or B?", decompose.Ask("count", 1)),
        ("Are A and B from the same country?", decompose.Ask("country", 0, True)),
        ("Do A and B have different nationalities?", decompose.Ask("nationality", 0, True, True)),
        ("Are both A and B novelists?", decompose.Ask("trait", 0, True)),
        ("Are A and B in the same family?", decompose.Ask("same", 0, True)),
        ("Which writer was a pilot, A or B?", decompose.Ask("trait")),
        ("What do A and B have in common?", decompose.Ask("common")),
    ],
)
def test_what_a_comparison_asks(question: str, ask: decompose.Ask) -> None:
    assert decompose.aspect_of(question) == ask


def test_a_mention_is_the_questions_own_spelling() -> None:
    assert decompose.mention_of("Kane (Dutch band)", "Is Kane older?") == "Kane"
    assert decompose.mention_of("The Wombats", "Are both Sleep Room and The Wombats bands?") == "The Wombats"
    assert decompose.mention_of("Sarah Caudwell", "Is Sarah Caudwell a writer?") == "Sarah Caudwell"
    assert decompose.mention_of("Oslo", "Is Bergen larger?") is None


def test_steps_are_ordered_into_rounds_by_what_they_refer_to() -> None:
    assert decompose.rounds_of(["a", "b", "c of #1", "d of #2 and #3", "e"]) == [[0, 1, 4], [2], [3]]
    assert decompose.rounds_of([]) == []
    with pytest.raises(UsageError, match="refers to #2"):
        decompose.rounds_of(["a of #2", "b"])


# ---- evidence --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("Ann (born 4 May 1901) is", (1901, 5, 4)),
        ("Ann (4 May 1901 – 1 June 1970) was", (1901, 5, 4)),
        ("Ann was born on May 4, 1901, in Rome.", (1901, 5, 4)),
        ("Ann (1901–1970) was", (1901, 0, 0)),
        ("Ann lives in room 1901 of a hotel.", None),
    ],
)
def test_dates_of_birth(text: str, date: evidence.Date | None) -> None:
    found = evidence.birth_date(text)
    assert (found[0] if found else None) == date


def test_dates_are_compared_as_far_as_they_are_known() -> None:
    assert evidence.later_of((1901, 5, 4), (1901, 6, 1)) == -1
    assert evidence.later_of((1902, 0, 0), (1901, 6, 1)) == 1
    assert evidence.later_of((1901, 0, 0), (1901, 6, 1)) == 0


def test_the_date_of_an_event_is_the_one_beside_its_verb() -> None:
    text = "Chic is a magazine. Its owner was born in 1950. It was first published in November 1976 and closed in 1999."
    found = evidence.event_date(text, ["published"])
    assert found is not None
    assert found[0] == (1976, 11, 0)


def test_a_clause_keeps_the_phrase_and_stays_short() -> None:
    page = Shown(
        3, "Tom", "Tom is old. " + "Very " * 40 + "often he met, in the town of Lund, his friend Ida Kay and others."
    )
    found = evidence.clause_with(page, "Ida Kay", ["friend"], 12)
    assert found is not None
    assert "Ida Kay" in found[0].words
    assert len(found[0].words.split()) <= 12
    assert evidence.clause_with(page, "Ida K", ["friend"], 12) is None


def test_nations_and_numbers() -> None:
    page = Shown(
        1, "Ann", "Ann (UK: , US: ) is a Norwegian writer. She wrote 1,200 poems and won three prizes in 1950."
    )
    assert (evidence.nationality(page) or ("",))[0] == "Norwegian"
    assert (evidence.country(page) or ("",))[0] == "Norway"
    assert (evidence.number_near(page, ["poems"], 10) or (0,))[0] == 1200
    assert (evidence.number_near(page, ["prizes"], 10) or (0,))[0] == 3


# ---- a whole run -----------------------------------------------------------------------------------------------------


def test_a_run_writes_data_that_never_touches_validation_or_dev(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from parallelsearch.retrieval.bm25 import build_bm25
    from parallelsearch.training import coldstart_run

    passages = [Passage(f"p{number}", title, text) for number, (title, text) in enumerate(PAGES.items())]
    build_bm25(passages, tmp_path / "index")
    painters = ["Ada Brenn", "Carl Dorn", "Vera Lind", "Nils Berg"]
    pairs = [(a, b) for a in painters for b in painters if a < b]
    years = {"Ada Brenn": 1901, "Carl Dorn": 1888, "Vera Lind": 1933, "Nils Berg": 1910}
    rows = [
        {"question": f"Which painter was born first, {a} or {b}?", "golden_answers": [min(a, b, key=years.__getitem__)],
         "kind": "parallel"} for a, b in pairs
    ] + [{"question": SINGLE.question, "golden_answers": ["brown"], "kind": "single"}]  # fmt: skip
    (tmp_path / "hotpotqa").mkdir()
    (tmp_path / "hotpotqa" / "dev.jsonl").write_text(json.dumps(rows[0]) + "\n", encoding="utf-8")
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    monkeypatch.setenv("PARALLELSEARCH_DATA", str(tmp_path))
    tokenizer = make_tokenizer()
    monkeypatch.setattr(coldstart_run.TokenizerEncoder, "of", classmethod(lambda cls, model: cls(tokenizer, model)))
    recipe = coldstart_run.ColdStartRecipe.model_validate(
        {
            "model": "smoke",
            "sources": [str(tmp_path / "train.jsonl")],
            "num_validation": {"parallel": 2},
            "num_trajectories": {"parallel": 6, "single": 1},
            "num_recombined": 2,
            "num_undecided": 6,
            "max_tokens": 8000,
            "out": str(tmp_path / "out"),
            "search": {"address": f"bm25:{tmp_path / 'index'}"},
            "rollout": {"max_tokens": 8000, "max_observation_tokens": 3000},
        }
    )
    report = coldstart_run.run_coldstart(recipe)
    parallel = list(read_trajectories(tmp_path / "out" / "parallel.jsonl"))
    sequential = list(read_trajectories(tmp_path / "out" / "sequential.jsonl"))
    out = tmp_path / "out"
    validation = [question.question for question in read_questions(out / "validation.jsonl")]
    learnable = [question.question for question in read_questions(out / "rl_questions.jsonl")]
    assert len(validation) == 2
    for questions in (validation, learnable, [one.question for one in parallel]):
        assert rows[0]["question"] not in questions
    assert not set(validation) & ({one.question for one in parallel} | set(learnable))
    assert [one.question for one in parallel] == [one.question for one in sequential]
    assert report["parallel"]["split_ratio"]["parallel"] == 1.0
    assert report["sequential"]["split_ratio"]["parallel"] == 0.0
    undecided = list(read_trajectories(out / "undecided.jsonl"))
    assert [one.question for one in undecided] == [one.question for one in parallel[:6]]
    splits = [one.is_split for one in undecided if one.kind == "parallel"]
    assert splits == [True, False, True, False, True, False][: len(splits)]
    assert len(splits) >= 2
    for one, both_ways, twin in zip(undecided, parallel, sequential, strict=False):
        assert one.prompt_ids() == both_ways.prompt_ids()
        if one.kind == "parallel" and not one.is_split:
            assert one.response_ids() == twin.response_ids()
            assert one.prompt_ids() != twin.prompt_ids()


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("a Canadian alternative rock group, formed in 1999", ["canadian"], "Canadian"),
        ("is 2.5 mi north east of Burnley, 1 mi south west of Nelson", ["north", "burnley"], "north east of Burnley"),
        ("a river of the north and, after many miles of plain, the east", ["river", "east"], "river"),
        ("It was described by Francis Walker in 1855.", ["described", "walker", "1855"], "described by Francis Walker in 1855"),
        ("a town in Norway", ["sweden"], ""),
    ],
)  # fmt: skip
def test_the_words_that_tell_are_a_short_stretch_of_the_quote(text: str, words: list[str], expected: str) -> None:
    assert stretch_with(text, words, 6) == expected


@pytest.mark.parametrize(
    ("text", "word", "expected"),
    [
        ("At the census, its population was 160, in 30 families.", "families", 30),
        ("Ann Lund (born February 12, 1938) is an author of 26 novels.", "novels", 26),
        ("Ann Lund (born 12 February 1938) is an author.", "author", None),
        ("It has 1,250 students in 1990 and four schools.", "students", 1250),
        ("A 60-story tower of 1976.", "stories", 60),
        ("It was founded in 1976 by students.", "students", None),
    ],
)
def test_the_number_of_something_is_the_nearest_one_and_no_date(text: str, word: str, expected: float | None) -> None:
    found = number_near(Shown(1, "A page", text), [word], 16)
    assert (found[0] if found else None) == expected


async def test_a_choice_is_made_by_the_words_that_only_one_page_has(search: Search, encoder: TokenizerEncoder) -> None:
    choice = Question("Who was a sculptor, Ada Brenn or Tom Hale?", ["Tom Hale"], id="c", kind="parallel")
    thought = grammar.parse_turn((await taught(choice, search, encoder)).segments[-1].text).thought or ""
    assert thought.index("Ada Brenn:") < thought.index("Tom Hale:") < thought.index("sculptor is said of")
    assert thought.endswith("sculptor is said of Tom Hale. So Tom Hale.")
    assert "Is that" not in thought
    other = Question("Who was a painter, Ada Brenn or Tom Hale?", ["Tom Hale"], id="c", kind="parallel")
    assert await reason(other, search, encoder) == "evidence_disagrees"


async def test_more_of_something_without_numbers_is_decided_by_words_if_there_are_two(
    encoder: TokenizerEncoder,
) -> None:
    pages = [
        Passage("g", "Mount Gral", "Mount Gral is the third highest mountain of the world."),
        Passage("h", "Mount Hemm", "Mount Hemm is a mountain in the north."),
    ]
    over = Search(BM25Retriever.from_passages(pages), k=2)

    def ask(text: str, answer: str) -> Question:
        return Question(text, [answer], id=text, kind="parallel")

    peak = ask("Which peak is the third highest in the world, Mount Gral or Mount Hemm?", "Mount Gral")
    assert "is said of Mount Gral. So Mount Gral." in (await taught(peak, over, encoder)).segments[-1].text
    one_word = ask("Which mountain has more snow in the north, Mount Gral or Mount Hemm?", "Mount Hemm")
    assert await reason(one_word, over, encoder) == "no_number_found"


async def test_a_chain_whose_answer_stands_beside_the_link_alone_is_dropped(encoder: TokenizerEncoder) -> None:
    """A policy that is taught to quote the linking sentence twice does so whatever is asked."""
    pages = [
        Passage("1", "Old Mill", "Old Mill is a mill in Velden. It was built by Rosa Lind for a Danish brewer."),
        Passage("2", "Rosa Lind", "Rosa Lind was an architect. She drew many mills."),
        Passage("3", "Kelp", "Kelp is a large brown seaweed."),
    ]
    question = Question(
        "What was the nationality of the brewer that the architect of Old Mill built it for?",
        ["Danish"],
        id="b",
        kind="sequential",
        supporting_titles=["Old Mill", "Rosa Lind"],
    )
    assert await reason(question, Search(BM25Retriever.from_passages(pages), k=3), encoder) == "answer_beside_link"
    pages[1] = Passage("2", "Rosa Lind", "Rosa Lind was an architect. She drew a mill for a Danish brewer.")
    last = turns(await taught(question, Search(BM25Retriever.from_passages(pages), k=3), encoder))[-1]
    assert "Rosa Lind: She drew a mill for a Danish brewer" in (last.thought or "")
