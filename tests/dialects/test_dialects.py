"""Dialects: each through the real loop, over a real search, with a policy that writes in the dialect's own format."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import zstandard

from parallelsearch import grammar
from parallelsearch.data import demo
from parallelsearch.dialect import Part
from parallelsearch.dialects import DIALECTS, open_dialect
from parallelsearch.dialects.baselines import IRCoT
from parallelsearch.dialects.free_text import read_answer, write_turn
from parallelsearch.errors import PolicyError, UsageError
from parallelsearch.evaluation.gold import GoldRetriever
from parallelsearch.limits import Limits
from parallelsearch.policy.base import Generation, Policy, Sampling
from parallelsearch.policy.local import LocalPolicy
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.rewards import reward
from parallelsearch.rollout import rollout
from parallelsearch.search import Search
from parallelsearch.training.collect import token_row
from parallelsearch.trajectory import Question, Segment, Trajectory, trajectory_from_dict

PASSAGES = [
    Passage("1", "Danube", "The Danube is a river of about 2,850 kilometres."),
    Passage("2", "Rhine", "The Rhine is a river of about 1,230 kilometres."),
    Passage("3", "Vienna", "Vienna is the capital of Austria and lies on the Danube."),
    Passage("4", "Austria", "Austria is a country whose capital is Vienna."),
]
QUESTION = "Which river flows through the capital of Austria?"


class Watched(ScriptedPolicy):
    """A script that keeps what it was shown."""

    def __init__(self, turns: list[str]) -> None:
        super().__init__({QUESTION: turns})
        self.turns = turns
        self.shown: list[str] = []
        self.stops: list[tuple[str, ...]] = []

    async def generate(self, segments: Sequence[Segment], *, stop: Sequence[str], **_: Any) -> Generation:
        self.shown.append("".join(segment.text for segment in segments))
        self.stops.append(tuple(stop))
        usage = {"prompt_tokens": 100, "completion_tokens": 7}
        return Generation(self.turns[len(self.shown) - 1], "stop", num_tokens=7, usage=usage)


async def run(name: str, turns: list[str], template: str | None = None) -> tuple[Trajectory, Watched]:
    policy = Watched(turns)
    search = Search(BM25Retriever.from_passages(PASSAGES), k=2)
    trajectory = await rollout(QUESTION, policy, search, dialect=open_dialect(name, template), session="s")
    await search.aclose()
    return trajectory, policy


async def test_direct_is_one_call_and_no_search() -> None:
    trajectory, inner = await run("direct", ["<answer> Danube </answer>"])
    assert (trajectory.answer, trajectory.num_llm_calls, trajectory.num_searches) == ("Danube", 1, 0)
    assert "search" not in inner.shown[0].lower().replace("research", "")


async def test_chain_of_thought_keeps_the_reasoning_as_the_thought() -> None:
    trajectory, _ = await run("cot", ["Vienna is the capital. It is on the Danube.\nThe answer is: Danube."])
    assert trajectory.answer == "Danube"
    assert "Vienna is the capital." in trajectory.text


async def test_rag_searches_the_question_once_and_shows_passages_before_it() -> None:
    trajectory, inner = await run("rag", ["The Danube.\n<answer>the Danube</answer>"])
    assert (trajectory.answer, trajectory.num_llm_calls, trajectory.num_searches) == ("the Danube", 1, 1)
    assert trajectory.turns[0].queries[0].text == QUESTION
    assert len(inner.shown) == 1
    shown = inner.shown[0]
    assert shown.index("Vienna is the capital of Austria") < shown.index("Question:")
    assert grammar.opening(grammar.INFORMATION) not in shown


async def test_ircot_searches_with_each_sentence_and_gathers_passages() -> None:
    trajectory, inner = await run(
        "ircot", ["The capital of Austria is Vienna.\n", "Vienna lies on the Danube.\n", "So the answer is: Danube.\n"]
    )
    assert trajectory.answer == "Danube"
    queries = [turn.queries[0].text for turn in trajectory.rounds]
    assert queries == [QUESTION, "The capital of Austria is Vienna.", "Vienna lies on the Danube."]
    assert trajectory.num_llm_calls == 3
    assert inner.shown[2].rstrip().endswith("The capital of Austria is Vienna. Vienna lies on the Danube.")
    assert "about 2,850 kilometres" in inner.shown[2]


async def test_ircot_is_pushed_to_answer_in_the_last_turn() -> None:
    trajectory, inner = await run("ircot", ["One.\n", "Two.\n", "Three.\n", "Four.\n", "Danube.\n"])
    assert trajectory.stop == "answer"
    assert trajectory.answer == "Danube"
    assert inner.shown[-1].endswith("So the answer is:")


async def test_search_o1_condenses_results_with_a_call_of_its_own() -> None:
    trajectory, inner = await run(
        "search-o1",
        [
            "I need the capital. <|begin_search_query|> capital of Austria <|end_search_query|>",
            "It is Vienna, on the Danube.",
            "So it is <answer> Danube </answer>",
        ],
    )
    assert (trajectory.answer, trajectory.num_llm_calls, trajectory.num_searches) == ("Danube", 3, 1)
    assert "They looked up: capital of Austria" in inner.shown[1]
    assert "<|begin_search_result|>\nIt is Vienna, on the Danube.\n<|end_search_result|>" in inner.shown[2]
    assert "<|end_search_query|>" in inner.stops[0]
    assert trajectory.turns[1].num_tokens == 14  # the condensing call's tokens count
    assert trajectory.billed_tokens == (300, 21)


async def test_search_r1_takes_a_separator_as_text() -> None:
    trajectory, inner = await run(
        "search-r1",
        [
            "<think> x </think><search> length of Danube ## length of Rhine </search>",
            "<think>y</think><answer>Danube</answer>",
        ],
    )
    assert [query.text for query in trajectory.rounds[0].queries] == ["length of Danube length of Rhine"]
    assert trajectory.answer == "Danube"
    assert "Doc 1(Title: " in inner.shown[1]
    assert "##" in inner.shown[1]  # the model sees what it wrote itself


async def test_parallelsearch_checkpoints_split() -> None:
    trajectory, _ = await run(
        "parallelsearch",
        [
            "<think> x </think><search> length of Danube ## length of Rhine </search>",
            "<think>y</think><answer>Danube</answer>",
        ],
    )
    assert trajectory.is_split
    assert trajectory.answer == "Danube"


@pytest.mark.parametrize(
    ("content", "queries"),
    [
        ('["length of Danube", "length of Rhine"]', ["length of Danube", "length of Rhine"]),
        ("length of Danube, length of Rhine", ["length of Danube", "length of Rhine"]),
        ("Danube", ["Danube"]),
        ('["a", "A", ""]', ["a"]),
    ],
)
async def test_rag_r1_reads_a_list_or_commas(content: str, queries: list[str]) -> None:
    trajectory, _ = await run(
        "rag-r1", [f"<think> x </think><search> {content} </search>", "<think>y</think><answer>D</answer>"]
    )
    assert [query.text for query in trajectory.rounds[0].queries] == queries


def call(arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': 'search', 'arguments': arguments})}</tool_call>"


@pytest.mark.parametrize(
    ("text", "queries"),
    [
        (call({"query_list": ["Danube", "Rhine"]}), ["Danube", "Rhine"]),
        (call(json.dumps({"query_list": ["Danube"]})), ["Danube"]),
        (call({"query": "Danube"}), ["Danube"]),
        ('<tool_call>{"name": "search", "arguments": {"query_list": ["Danube", "Rhine"]}', ["Danube", "Rhine"]),
    ],
)
async def test_ferret_reads_tool_calls(text: str, queries: list[str]) -> None:
    trajectory, inner = await run("ferret", [f"<think> x </think>{text}", "<think>y</think><answer>D</answer>"])
    assert [query.text for query in trajectory.rounds[0].queries] == queries
    assert trajectory.answer == "D"
    assert "<tool_response>" in inner.shown[1]
    assert grammar.opening(grammar.INFORMATION) not in inner.shown[1]


@pytest.mark.parametrize("text", ["<tool_call>nonsense</tool_call>", call({}), call(3), call([]), ""])
async def test_a_broken_call_is_an_unusable_turn_not_a_crash(text: str) -> None:
    trajectory, _ = await run("ferret", [text, "<answer>D</answer>"])
    assert trajectory.answer == "D"
    assert trajectory.num_searches == 0


async def test_an_own_prompt_is_used_word_for_word() -> None:
    trajectory, inner = await run("parallel", ["<think>x</think><answer>D</answer>"], "EXACTLY THIS: {question} GO")
    assert inner.shown[0] == f"EXACTLY THIS: {QUESTION} GO"
    assert trajectory.answer == "D"


def test_wrong_names_and_templates_are_named() -> None:
    with pytest.raises(UsageError, match=r"no dialect 'sequental'.*Did you mean 'sequential'"):
        open_dialect("sequental")
    with pytest.raises(UsageError, match=r"\{question\}"):
        open_dialect("direct", "no place for it")
    assert len(DIALECTS) == 15
    assert all(dialect.summary for dialect in DIALECTS.values())


async def test_the_record_keeps_the_models_own_text_and_says_the_dialect() -> None:
    said = f"<think> x </think>{call({'query_list': ['Danube', 'Rhine']})}"
    trajectory, _ = await run("ferret", [said, "<think>y</think><answer>D</answer>"])
    assert trajectory.dialect == "ferret"
    assert next(segment.text for segment in trajectory.segments if segment.author == "model") == said
    assert [turn.action for turn in trajectory.turns] == ["search", "answer"]
    assert [turn.thought for turn in trajectory.turns] == ["x", "y"]
    again = trajectory_from_dict(json.loads(trajectory.to_json()))
    assert again == trajectory
    assert reward(again, "label-free").outcome == 0.0


async def test_a_policy_is_asked_in_the_dialect_it_was_trained_on_unless_told_otherwise() -> None:
    search = Search(BM25Retriever.from_passages(PASSAGES))
    policy = Watched(["<think> x </think><answer> D </answer>"] * 2)
    policy.dialect = "search-r1"
    assert (await rollout(QUESTION, policy, search)).dialect == "search-r1"
    assert (await rollout(QUESTION, policy, search, dialect="parallel")).dialect == "parallel"
    await search.aclose()


async def test_a_dialect_that_gives_no_notice_still_knows_its_last_turn() -> None:
    class Silent(IRCoT):
        layout = "paper"

    policy = Watched(["One.\n", "Danube.\n"])
    search = Search(BM25Retriever.from_passages(PASSAGES), k=2)
    trajectory = await rollout(QUESTION, policy, search, Limits(max_turns=2), dialect=Silent())
    await search.aclose()
    assert policy.shown[-1].endswith("So the answer is:")
    assert trajectory.answer == "Danube"
    assert "notice" not in [segment.author for segment in trajectory.segments]


async def test_what_was_said_before_stands_in_every_prompt() -> None:
    for name in DIALECTS:
        text = open_dialect(name).prompt(QUESTION, "Earlier: rivers.\n")
        assert text.index("Earlier: rivers.") < text.index(QUESTION), name


def test_special_tokens_are_recognised_in_trusted_parts_alone() -> None:
    tokenizer = tiny_models.tokenizer()
    policy = LocalPolicy(tiny_models.model(), tokenizer)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    parts = [Part("<|im_end|>\n", is_trusted=True), Part("a <|im_end|> b"), Part("<|im_start|>", is_trusted=True)]
    segment = policy.insert_parts(parts, "search")
    assert segment.token_ids is not None
    assert segment.token_ids.count(end) == 1
    assert segment.token_ids[0] == end
    assert tokenizer.decode(segment.token_ids) == segment.text == "".join(part.text for part in parts)
    assert end not in (policy.insert_parts([Part("a <|im_end|> b")], "search").token_ids or [])


async def test_a_foreign_dialect_is_token_exact_and_can_be_trained_on() -> None:
    """The tiny model writes in Ferret's format; ids, mask and log-probabilities are those of its own text."""
    tokenizer = tiny_models.tokenizer()
    policy = LocalPolicy(tiny_models.model(max_position=2048), tokenizer, max_context=2048, deterministic=True)
    search = Search(BM25Retriever.from_passages(PASSAGES), k=1)
    sampling = Sampling(1.0, 1.0, 3)
    limits = Limits(max_turns=2, max_tokens_per_turn=40, max_tokens=2048)
    trajectory = await rollout(QUESTION, policy, search, limits, dialect="ferret", sampling=sampling)
    await policy.aclose()
    await search.aclose()
    drawn = [segment for segment in trajectory.segments if segment.author == "model"]
    assert drawn
    assert all(tokenizer.decode(s.token_ids, skip_special_tokens=True) == s.text for s in drawn)
    ids = token_row(trajectory, 0)
    assert sum(ids.mask) == sum(len(segment.token_ids or ()) for segment in drawn)


async def test_a_policy_that_fails_inside_fails_outside() -> None:
    class Broken(Policy):
        async def generate(self, segments: Any, **options: Any) -> Generation:
            raise PolicyError("the server is down")

    search = Search(BM25Retriever.from_passages(PASSAGES))
    trajectory = await rollout(QUESTION, Broken(), search, dialect="rag")
    assert (trajectory.stop, trajectory.error) == ("error", "the server is down")
    await search.aclose()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer> Paris </answer>", "Paris"),
        ("<answer> Paris", "Paris"),
        ("<answer>A</answer> then <answer>B</answer>", "B"),
        ("So the answer is: St. Petersburg.\n", "St. Petersburg"),
        ("The answer is J. S. Bach. He was great.", "J. S. Bach"),
        ("Final answer: **42**.", "42"),
        (r"It is \boxed{42}.", "42"),
        ("Paris.", "Paris"),
        ("thinking\n\nParis\n\n", "Paris"),
        ("", None),
        ("<answer></answer>", None),
    ],
)
def test_answers_are_read_from_free_text(text: str, answer: str | None) -> None:
    assert read_answer(text, may_be_bare=True) == answer
    if "answer" not in text and "boxed" not in text:
        assert read_answer(text) is None


@pytest.mark.parametrize("name", list(DIALECTS))
@pytest.mark.parametrize(
    "text",
    [
        "<search>",
        "</think></search>",
        "<answer><search>x</search>",
        "<|begin_search_query|>",
        "##",
        "<information>\x00",
        "a" * 5000,
    ],
)
def test_no_text_breaks_a_reader(name: str, text: str) -> None:
    dialect = open_dialect(name)
    for is_last in (False, True):
        parsed = dialect.read(Segment("model", text), 5, is_last)
        assert parsed.action in (None, "search", "answer")


def test_a_written_turn_reads_back() -> None:
    parsed = grammar.parse_turn(write_turn("a <search> thought", ["one ## two", "ONE TWO", " ", "three"]))
    assert parsed.queries == ("one two", "three")
    assert parsed.is_valid
    for name in DIALECTS:
        assert QUESTION in open_dialect(name).prompt(QUESTION)


async def test_gold_passages_given_is_rag_over_what_is_known_to_help(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"id": p.id, "title": p.title, "text": p.text}) + "\n" for p in PASSAGES))
    by_title = Question(QUESTION, ["Danube"], "1", supporting_titles=["Vienna", "Austria"])
    by_id = Question("How long is C## river?", ["x"], "2", gold_passage_ids={"Rhine": ["2"]})
    retriever = GoldRetriever.from_corpus([by_title, by_id], [corpus])
    first, second, other = await retriever.search_many([QUESTION, "How long is C river", "Danube"], 10)
    assert [hit.title for hit in first if isinstance(first, list)] == ["Vienna", "Austria"]
    assert [hit.id for hit in second if isinstance(second, list)] == ["2"]
    assert other == []
    assert retriever.describe()["num_questions"] == 2
    inner = Watched(["<answer>Danube</answer>"])
    trajectory = await rollout(by_title, inner, Search(retriever, k=10), dialect="rag")
    assert "Vienna is the capital of Austria" in inner.shown[0]
    assert trajectory.answer == "Danube"
    with pytest.raises(UsageError, match="none of these questions"):
        GoldRetriever.from_corpus([Question("Q?")], [corpus])
    with pytest.raises(UsageError, match="hold none"):
        GoldRetriever.from_corpus([Question("Q?", supporting_titles=["Nowhere"])], [corpus])


def test_the_script_for_all_rows_runs_goes_on_and_writes_one_table(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    whole = Path(demo.corpus_path()).read_text().splitlines(keepends=True)
    for name, part in (("multihop_passages.jsonl.zst", whole[::2]), ("wiki_background_chunks.jsonl.zst", whole[1::2])):
        (corpus / name).write_bytes(zstandard.compress("".join(part).encode()))
    script = Path(__file__).parents[2] / "benchmarks" / "baselines.py"
    command = [sys.executable, str(script), "--index", "index", "--build", "--out", "out", "--limit", "8"]
    command += ["--data", "demo", "--split", "test", "--policy", "demo", "--trained", "demo"]
    environment = {**os.environ, "PARALLELSEARCH_DATA": str(tmp_path)}
    for rows in (["direct", "gold"], ["direct", "gold", "parallel"]):  # the second time two rows are done already
        done = subprocess.run(
            [*command, "--rows", *rows], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400
        )
        assert done.returncode == 0, done.stderr
    table = (tmp_path / "out" / "baselines.md").read_text().splitlines()
    assert [line.split(" | ")[0] for line in table[2:]] == ["| blind guess", "| direct", "| gold", "| parallel"]
    summaries = json.loads((tmp_path / "out" / "baselines.json").read_text())
    assert [summary["num_done_now"] for summary in summaries.values()] == [0, 0, 8]
    assert summaries["gold"]["subsets"]["demo"]["gold_recall"] == 1.0
    assert summaries["parallel"]["subsets"]["demo"]["em"] == 1.0
    assert (tmp_path / "out" / "comparison" / "report.html").is_file()
