"""Methods: each through the real loop, over a real search, with a policy that writes in the method's own format."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import zstandard

from parallelsearch import demo, grammar
from parallelsearch.baseline_formats import METHODS, Ferret, RagR1, SearchO1, SearchR1, open_method, wrap_policy
from parallelsearch.baselines import MethodPolicy, read_answer, write_turn
from parallelsearch.errors import PolicyError, UsageError
from parallelsearch.gold import GoldRetriever
from parallelsearch.policy.base import Generation, OnText, Policy, Sampling
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.rollout import Limits, rollout
from parallelsearch.search import Search
from parallelsearch.trajectory import Question, Segment, Trajectory

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

    async def generate(
        self,
        segments: Sequence[Segment],
        *,
        stop: Sequence[str],
        max_tokens: int,
        sampling: Sampling,
        session: str,
        on_text: OnText | None = None,
    ) -> Generation:
        self.shown.append("".join(segment.text for segment in segments))
        self.stops.append(tuple(stop))
        return Generation(self.turns[len(self.shown) - 1], "stop", num_tokens=7)


async def run(name: str, turns: list[str], template: str | None = None) -> tuple[Trajectory, Watched]:
    inner = Watched(turns)
    method = open_method(name, template)
    policy = wrap_policy(inner, method)
    limits = Limits(max_turns=method.max_turns or 4)
    search = Search(BM25Retriever.from_passages(PASSAGES), k=2)
    trajectory = await rollout(
        QUESTION, policy, search, limits, mode=method.mode, layout=method.layout or "headed", session="s"
    )
    if isinstance(policy, MethodPolicy):
        policy.correct(trajectory, "s")
    await search.aclose()
    return trajectory, inner


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
    with pytest.raises(UsageError, match=r"no method 'sequental'.*Did you mean 'sequential'"):
        open_method("sequental")
    with pytest.raises(UsageError, match=r"\{question\}"):
        open_method("direct", "no place for it")
    assert len(METHODS) == 11
    assert all(method.summary for method in METHODS.values())


def test_the_packages_own_methods_need_no_wrapper() -> None:
    policy = ScriptedPolicy({"q": ["x"]})
    assert wrap_policy(policy, open_method("parallel")) is policy
    assert wrap_policy(policy, open_method("sequential")) is policy
    wrapped = wrap_policy(policy, open_method("rag"))
    assert wrapped.describe()["method"] == "rag"
    assert not wrapped.streams
    assert wrap_policy(policy, open_method("parallelsearch")).streams


async def test_a_policy_that_fails_inside_fails_outside() -> None:
    class Broken(Policy):
        async def generate(self, segments: Any, **options: Any) -> Generation:
            raise PolicyError("the server is down")

    search = Search(BM25Retriever.from_passages(PASSAGES))
    policy = wrap_policy(Broken(), open_method("rag"))
    trajectory = await rollout(QUESTION, policy, search, Limits(max_turns=1))
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


@pytest.mark.parametrize("name", list(METHODS))
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
    method = open_method(name)
    for is_last in (False, True):
        parsed = grammar.parse_turn(method.read(text, is_last))
        assert parsed.action in (None, "search", "answer")


def test_a_written_turn_reads_back() -> None:
    parsed = grammar.parse_turn(write_turn("a <search> thought", ["one ## two", "ONE TWO", " ", "three"]))
    assert parsed.queries == ("one two", "three")
    assert parsed.is_valid
    for method in (Ferret(), RagR1(), SearchO1(), SearchR1()):
        assert QUESTION in method.prompt(QUESTION)


async def test_gold_passages_given_is_rag_over_what_is_known_to_help(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"id": p.id, "title": p.title, "text": p.text}) + "\n" for p in PASSAGES))
    by_title = Question(QUESTION, ["Danube"], "1", supporting_titles=["Vienna", "Austria"])
    by_id = Question("How long is C## river?", ["x"], "2", metadata={"gold_passage_ids": {"Rhine": ["2"]}})
    retriever = GoldRetriever.from_corpus([by_title, by_id], [corpus])
    first, second, other = await retriever.search_many([QUESTION, "How long is C river", "Danube"], 10)
    assert [hit.title for hit in first if isinstance(first, list)] == ["Vienna", "Austria"]
    assert [hit.id for hit in second if isinstance(second, list)] == ["2"]
    assert other == []
    assert retriever.describe()["num_questions"] == 2
    inner = Watched(["<answer>Danube</answer>"])
    trajectory = await rollout(
        by_title, wrap_policy(inner, open_method("rag")), Search(retriever, k=10), Limits(max_turns=1)
    )
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
    script = Path(__file__).parents[1] / "benchmarks" / "baselines.py"
    command = [sys.executable, str(script), "--index", "index", "--build", "--out", "out", "--limit", "8"]
    command += ["--data", "demo", "--split", "test", "--policy", "demo", "--trained", "demo"]
    environment = {**os.environ, "PARALLELSEARCH_DATA": str(tmp_path)}
    for rows in (["direct", "gold"], ["direct", "gold", "parallel"]):  # the second time two rows are done already
        done = subprocess.run(
            [*command, "--rows", *rows], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
    table = (tmp_path / "out" / "baselines.md").read_text().splitlines()
    assert [line.split(" | ")[0] for line in table[2:]] == ["| blind guess", "| direct", "| gold", "| parallel"]
    summaries = json.loads((tmp_path / "out" / "baselines.json").read_text())
    assert [summary["num_done_now"] for summary in summaries.values()] == [0, 0, 8]
    assert summaries["gold"]["subsets"]["demo"]["gold_recall"] == 1.0
    assert summaries["parallel"]["subsets"]["demo"]["em"] == 1.0
    assert (tmp_path / "out" / "comparison" / "report.html").is_file()
