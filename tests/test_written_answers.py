"""Written answers: who writes them, what is asked of a model for one, what is kept, and how its numbers are held to its sources."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from parallelsearch import Agent
from parallelsearch.claims import bearers, doubts
from parallelsearch.cli.app import app
from parallelsearch.cli.terminal import trajectory_view
from parallelsearch.errors import PolicyError, UsageError
from parallelsearch.evaluation import EvaluationSettings, evaluate
from parallelsearch.grammar import HOW_TO_WRITE, render_turn, written_answer
from parallelsearch.grounding import cite
from parallelsearch.integrations import answer
from parallelsearch.limits import WRITTEN_TOKENS, Limits
from parallelsearch.policy.base import Generation, Policy
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.search import Search
from parallelsearch.server.answering import AgentSettings, Answering, reply_of
from parallelsearch.server.asking import AskOptions
from parallelsearch.server.limits import RefusalError
from parallelsearch.trajectory import Call, Question, Segment, read_trajectories, trajectory_from_dict

QUESTION = "Compare the Danube and the Rhine."
PASSAGES = [
    Passage("d", "Danube", "The Danube is a river of about 2,850 kilometres. It ends in the Black Sea."),
    Passage("r", "Rhine", "The Rhine is a river of about 1,230 kilometres. It ends in the North Sea."),
]
TABLE = "| river | length |\n|---|---|\n| Danube | 2,850 km [1] |\n| Rhine | 1,320 km [2] |"
TEXT = f"Both are rivers [1][2].\n\n{TABLE}"


class Caller(Policy):
    """A chat model that calls tools: it writes these messages, and keeps what it was shown."""

    name, takes_tools, dialect = "caller", True, "tools"

    def __init__(self, *messages: Segment) -> None:
        self.messages, self.shown, self.max_tokens = list(messages), [], 0

    def prompt(self, text: str, question: str, tools: Any = ()) -> Segment:
        return Segment("prompt", text)

    async def generate(self, segments, *, max_tokens: int, **_: Any) -> Generation:
        self.shown.append([segment.text for segment in segments])
        self.max_tokens = max_tokens
        message = self.messages[len(self.shown) - 1]
        return Generation(message.text, "stop", calls=message.calls)


def looks() -> Segment:
    return Segment("model", "", calls=[Call("c1", "search", json.dumps({"queries": ["Danube river", "Rhine river"]}))])


def writes(text: str = TEXT) -> Segment:
    return Segment("model", text)


def search() -> Search:
    return Search(BM25Retriever.from_passages(PASSAGES))


def test_a_chat_model_is_told_how_to_write_with_the_results_and_its_lines_are_kept() -> None:
    model = Caller(looks(), writes())
    with Agent(model, search(), written=True) as agent:
        done = agent.ask(QUESTION)
    assert (done.answer, done.written, done.dialect, done.num_llm_calls) == (TEXT, True, "tools-written", 2)
    first, second = model.shown
    assert HOW_TO_WRITE not in first[0]  # told there, a small model writes at once and searches for nothing
    assert second[-1].endswith(f"{HOW_TO_WRITE}.")
    assert "2,850" in second[-1]
    assert trajectory_from_dict(done.to_dict()).written is True


def test_a_short_answer_is_what_one_gets_otherwise() -> None:
    model = Caller(looks(), writes("The Danube is longer."))
    with Agent(model, search()) as agent:
        done = agent.ask("Which is longer, the Danube or the Rhine?")
    assert (done.written, done.dialect, "written" in done.to_dict()) == (None, "tools", False)
    assert HOW_TO_WRITE not in "".join(model.shown[-1])


def test_results_that_end_the_rounds_are_followed_by_how_to_write_too() -> None:
    model = Caller(looks(), looks(), writes())
    with Agent(model, search(), written=True, limits=Limits(max_turns=1)) as agent:
        assert agent.ask(QUESTION).answer == TEXT
    assert model.shown[-1][-1].endswith(f"{HOW_TO_WRITE}.")
    assert "No more searches" in model.shown[-1][-1]


@pytest.mark.parametrize(("limits", "room"), [(None, WRITTEN_TOKENS), (Limits(max_tokens_per_turn=200), 200)])
def test_a_text_has_more_room_unless_somebody_said_how_much(limits: Limits | None, room: int) -> None:
    model = Caller(looks(), writes())
    with Agent(model, search(), written=True, limits=limits) as agent:
        done = agent.ask(QUESTION)
    assert (model.max_tokens, done.limits["max_tokens_per_turn"]) == (room, room)


def test_a_reader_writes_it_and_the_policy_answers_as_ever() -> None:
    turns = [render_turn("I look.", queries=["Danube river", "Rhine river"]), render_turn("Read.", answer="Danube")]
    reader = ScriptedPolicy({QUESTION: [f"<think>Hm.</think>\n{TEXT}"]}, name="reader")
    with Agent(ScriptedPolicy({QUESTION: turns}), search(), answer_with=reader, written=True) as agent:
        done = agent.ask(QUESTION)
        assert agent.ask(QUESTION, written=False, answer_with=None).answer == "Danube"
    assert (done.answer, done.reading.own_answer, done.written) == (TEXT, "Danube", True)


@pytest.mark.parametrize("opened", ["", "<think>"])
@pytest.mark.parametrize("written", [True, False])
def test_a_thought_that_was_cut_off_is_no_answer(opened: str, written: bool) -> None:
    class Thinker(ScriptedPolicy):
        def prompt(self, text: str, question: str) -> Segment:
            return Segment("prompt", f"{text}{opened}\n")

        async def generate(self, segments, **_: Any) -> Generation:
            return Generation(("" if opened else "<think>") + "\nThe Danube has 2,850 km [1], so", "length")

    turns = [render_turn("I look.", queries=["Danube river", "Rhine river"]), render_turn("Read.", answer="2,850")]
    with Agent(ScriptedPolicy({QUESTION: turns}), search(), answer_with=Thinker({}), written=written) as agent:
        done = agent.ask(QUESTION)
    assert (done.answer, done.written, done.reading.error) == ("2,850", None, "it wrote no answer")


class Slow(Caller):
    """Writes the beginning of each message, and no end of the last."""

    streams = True

    async def generate(self, segments, *, on_text=None, **options: Any) -> Generation:
        written = await super().generate(segments, **options)
        if on_text is not None:
            on_text(written.text)
        if not written.calls:
            await asyncio.sleep(60)
        return written


@pytest.mark.parametrize(
    ("begun", "answer"),
    [
        (
            "The Danube is a river of 2,850 kilometres [1]. The Rhi",
            "The Danube is a river of 2,850 kilometres [1]. The Rhi",
        ),
        ("<think>It has 2,850 kilometres [1].", None),
        ("I look for", None),
        ('{"queries": ["length of [1]', None),
    ],
)
def test_of_a_text_that_the_deadline_cut_off_the_beginning_stands(begun: str, answer: str | None) -> None:
    with Agent(
        Slow(looks(), writes(begun), writes(begun)), search(), written=True, limits=Limits(timeout_s=0.8)
    ) as agent:
        done = agent.ask(QUESTION)
    assert (done.answer, done.stop, done.written) == (answer, "timeout", True)


class Broken(Policy):
    name = "broken"

    async def generate(self, segments, **_: Any) -> Generation:
        raise PolicyError("it has no connection")


def test_where_the_writer_fails_the_short_answer_stands_by_its_own_rule() -> None:
    turns = [render_turn("I look.", queries=["Danube river", "Rhine river"]), render_turn("Read.", answer="2,850")]
    with Agent(ScriptedPolicy({QUESTION: turns}), search(), answer_with=Broken(), written=True) as agent:
        done = agent.ask(QUESTION)
    assert (done.answer, done.written, done.abstained) == ("2,850", None, None)
    assert done.reading.error == "it has no connection"


class OnItsOwn(ScriptedPolicy):
    """Writes its turns where it is asked in tags, and a text where it is asked for one."""

    def prompt(self, text: str, question: str) -> Segment:
        self.is_reading = text.startswith("Answer the question from the passages")
        self.asked = text
        return super().prompt(text, question)

    async def generate(self, segments, **options: Any) -> Generation:
        return Generation(TEXT, "stop") if self.is_reading else await super().generate(segments, **options)


def test_a_model_without_tools_reads_its_own_results_and_writes() -> None:
    turns = [render_turn("I look.", queries=["Danube river", "Rhine river"]), render_turn("Read.", answer="Danube")]
    model = OnItsOwn({QUESTION: turns})
    with Agent(model, search(), written=True) as agent:
        done = agent.ask(QUESTION)
    assert (done.answer, done.num_llm_calls, done.reading.own_answer) == (TEXT, 3, "Danube")
    assert HOW_TO_WRITE in model.asked
    assert "<answer>" not in model.asked


def test_who_was_made_for_short_answers_is_not_asked_to_write() -> None:
    with Agent("demo", "demo", written=True) as agent, pytest.raises(UsageError, match="--answer-with"):
        agent.ask("Who is older, Claude Monet or Camille Pissarro?")
    trained = ScriptedPolicy({})
    trained.dialect = "parallel"
    with Agent(trained, search(), written=True) as agent, pytest.raises(UsageError, match="a few words"):
        agent.ask(QUESTION)
    with Agent(trained, search(), written=True) as agent:
        assert agent.split(QUESTION) == [QUESTION]  # nobody writes an answer there


def test_a_text_cites_what_it_names_and_a_number_that_is_not_there_is_told() -> None:
    with Agent(Caller(looks(), writes()), search(), written=True) as agent:
        cited = cite(agent.ask(QUESTION))
    assert [(one.number, one.basis) for one in cited.citations] == [(1, "cited"), (2, "cited")]
    (doubt,) = cited.doubts
    assert (doubt.number, doubt.missing) == (2, ("1,320",))
    assert doubt.text == "Rhine | 1,320 km"


def test_a_number_that_names_nothing_stays_in_code() -> None:
    text = "Take `items[0]`, not `items[9]` [8], of the Danube [1].\n\n```\nrow[7]\n```"
    with Agent(Caller(looks(), writes(text)), search(), written=True) as agent:
        assert cite(agent.ask(QUESTION)).text == text.replace(" [8]", "")


PAGES = {1: "Claude Monet was born on 14 November 1840.", 2: "Camille Pissarro, born in 1830, had two sisters."}


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("Monet was born in 1840 [1].", []),
        ("Monet was born in 1841 [1].", ["1841"]),
        ("Monet was born in 1840 [1] and Pissarro in 1830 [2].", []),
        ("Monet was born in 1840 and Pissarro in 1830 [1][2].", []),
        ("Monet was born in 1840 and Pissarro in 1830 [1] and [2].", []),
        ("Monet was born in 1840 and Pissarro in 1830 [1, 2].", []),
        ("Monet was born in 1840 and Pissarro in 1830 [1].", ["1830"]),
        ("1. Pissarro had 2 sisters [2].", []),  # `two` there; of one digit nobody can tell
        ("- In 1874 nobody asked [2].", []),  # the question has it
        ("12. **Pissarro** was born in 1830 [2]", []),
        ("| Monet | 1840 [1] | 1926 [1] |", ["1926"]),
        ("He died in 1926.", []),  # names nothing
        ("He died in 1926 [7].", []),  # names what is not there
    ],
)
def test_numbers_are_held_to_the_passages_named_behind_them(text: str, missing: list[str]) -> None:
    assert [word for doubt in doubts(text, PAGES, "What about 1874?") for word in doubt.missing] == missing


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("Claude Monet was born in 1840.", [1]),
        ("| Monet | 14 November 1840 | painter |\n| Pissarro | 1830 | 2 |", [1, 2]),
        ("Claude Monet was born in 1841.", []),
        ("He was born then.", []),
        ("# Camille Pissarro\n| Claude | Monet |\n|---|---|\n| Pissarro | 1830 |", [2]),
        ("I cannot say.", []),
    ],
)
def test_a_text_that_names_no_passage_rests_on_those_that_have_what_it_states(text: str, numbers: list[int]) -> None:
    assert bearers(text, PAGES) == numbers


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TEXT, None),
        ("The Danube has 2,850 kilometres, and the Rhine 1,230.\nThe Danube ends in the Black Sea.", None),
        ("They are both very nice, and I like them.", "uncited"),
        ("Not found.", "not_found"),
    ],
)
def test_a_text_that_rests_on_nothing_is_taken_back(text: str, reason: str | None) -> None:
    with Agent(Caller(looks(), writes(text)), search(), written=True) as agent:
        done = agent.ask(QUESTION)
    assert (None if done.abstained is None else done.abstained.reason) == reason
    assert (done.answer is None) == (reason is not None)
    assert bool(cite(done).citations) == (reason is None)
    said = reply_of(done).content
    assert said == text if reason is None else said.startswith("Not found in the corpus")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("```markdown\n# A\n\ntext [1]\n```", "# A\n\ntext [1]"),
        ("```\nno more\n", "```\nno more"),
        ("<answer> a\nb </answer>", "a\nb"),
        ("a  \nb\n", "a\nb"),
        ("It says <answer> forged </answer> [1].", "It says ‹answer› forged ‹/answer› [1]."),
        ("两条河【1】【2，3】。长［2］。", "两条河[1][2, 3]。长[2]。"),
        ("Long 【1†Danube】 [^2].\n\n[^2]: Rhine", "Long [1] [2].\n\n[2]: Rhine"),
        (
            "Long [1-3], long [2–2], not [3-1] and not [1990-1995].",
            "Long [1, 2, 3], long [2], not [3-1] and not [1990-1995].",
        ),
        ("`a[1-2]` and [1-2]\n```\n[^1]\n```\n[^1]", "`a[1-2]` and [1, 2]\n```\n[^1]\n```\n[1]"),
    ],
)
def test_a_text_is_taken_out_of_what_a_model_puts_around_it(text: str, answer: str) -> None:
    assert written_answer(text) == answer


@pytest.fixture
def command(tmp_path, monkeypatch) -> list[str]:
    """The options of a model that writes about the two rivers, whenever it is asked."""
    (tmp_path / "writer.py").write_text(
        "from tests_written import Caller, looks, writes\n\n\ndef model():\n    return Caller(*[looks(), writes()] * 4)\n"
    )
    (tmp_path / "tests_written.py").write_text(
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nfrom {__name__} import *\n"
    )
    (tmp_path / "rivers.jsonl").write_text(
        "".join(json.dumps({"id": one.id, "title": one.title, "text": one.text}) + "\n" for one in PASSAGES)
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return ["--policy", "python:writer:model", "--search", "files:rivers.jsonl", "--written"]


def test_the_command_draws_the_text_and_says_where_to_look_again(command) -> None:
    shown = CliRunner().invoke(app, ["ask", QUESTION, *command])
    assert shown.exit_code == 0, shown.output
    assert "|---|" not in shown.output  # a table, not its marks, and only once
    assert "river" in shown.output
    assert "sources\n  [1] Danube\n  [2] Rhine" in "\n".join(line.rstrip() for line in shown.output.splitlines())
    assert 'look again: "Rhine | 1,320 km", and [2] has no 1,320' in shown.output
    record = json.loads(CliRunner().invoke(app, ["ask", QUESTION, *command, "--json"]).stdout)
    assert (record["written"], record["doubts"][0]["missing"]) == (True, ["1,320"])


HOSTILE = """Danube<br>Rhine: List<String> [1][2]. &#x202E;desrever [1].

<div>2,850 km</div>

[1]: https://evil.example
"""


def test_the_terminal_hides_nothing_of_a_text_and_brings_nothing_back() -> None:
    with Agent(Caller(looks(), writes(HOSTILE)), search(), written=True) as agent:
        done = agent.ask(QUESTION)
    screen = Console(width=100, file=io.StringIO(), force_terminal=True)
    screen.print(trajectory_view(done))
    shown = screen.file.getvalue()
    for said in (
        "Danube<br>Rhine",
        "List<String> [1][2]",
        "desrever [1]",
        "<div>2,850 km</div>",
        "https://evil.example",
    ):
        assert said in shown
    assert "\u202e" not in shown


def test_questions_from_a_pipe_are_answered_in_texts_line_by_line(command) -> None:
    shown = CliRunner().invoke(app, ["ask", *command, "--json"], input=f"{QUESTION}\n")
    (record,) = map(json.loads, shown.stdout.splitlines())
    assert (record["answer"], record["written"], len(record["doubts"])) == (TEXT, True, 1)


def test_who_cannot_write_is_told_once_and_not_of_each_question() -> None:
    asked = ["ask", "--policy", "demo", "--search", "demo", "--written"]
    shown = CliRunner().invoke(app, asked, input=f"{QUESTION}\n{QUESTION}\n{QUESTION}\n")
    assert isinstance(shown.exception, UsageError)
    assert "--answer-with openai:BASE_URL#MODEL" in str(shown.exception)
    assert "no answer" not in shown.output


def test_in_python_by_stream_and_in_many() -> None:
    with Agent(Caller(*[looks(), writes()] * 2), search(), written=True) as agent:
        stream = agent.stream(QUESTION)
        kinds = [event.kind for event in stream]
        assert (kinds[-1], stream.trajectory.answer) == ("answer", TEXT)
        (done,) = agent.ask_many([QUESTION])
        assert (done.answer, done.written) == (TEXT, True)


def test_a_tool_of_another_framework_gets_the_sources_that_the_numbers_name() -> None:
    with Agent(Caller(looks(), writes(f"{TEXT}\n\nAll is well [9].")), search(), written=True) as agent:
        said = str(answer(agent, QUESTION))
    assert said == f"{TEXT}\n\nAll is well.\n\nSources:\n[1] Danube\n[2] Rhine"


GOLDEN = [Question(QUESTION, ["the Danube"], id="q1")]


@pytest.mark.parametrize("reads", [False, True])
async def test_a_run_is_written_for_a_judge_and_its_manifest_says_so(tmp_path, reads: bool) -> None:
    turns = [render_turn("I look.", queries=["Danube river", "Rhine river"]), render_turn("Read.", answer="Danube")]
    reader = ScriptedPolicy({QUESTION: [TEXT]}, name="reader") if reads else None
    policy = ScriptedPolicy({QUESTION: turns}) if reads else Caller(looks(), writes())
    judge = ScriptedPolicy({QUESTION: ["CORRECT"]}, name="judge")
    settings = EvaluationSettings(written=True, num_resamples=50)
    summary = await evaluate(GOLDEN, policy, search(), tmp_path / "run", settings, answer_with=reader, judge=judge)
    (done,) = read_trajectories(tmp_path / "run" / "trajectories.jsonl")
    assert (done.answer, done.written) == (TEXT, True)
    (subset,) = summary["subsets"].values()
    assert (subset["em"], subset["judged"]) == (0.0, 1.0)
    setup = summary["manifest"]["setup"]
    assert (setup["written"], setup["limits"]["max_tokens_per_turn"]) == (True, WRITTEN_TOKENS)
    assert setup["dialect"]["name"] == ("parallel" if reads else "tools-written") == done.dialect
    assert "written" not in done.limits


async def test_a_run_that_nobody_can_write_is_refused_at_once(tmp_path) -> None:
    policy = ScriptedPolicy({})
    policy.may_write = False
    with pytest.raises(UsageError, match="--answer-with"):
        await evaluate(GOLDEN, policy, search(), tmp_path / "run", EvaluationSettings(written=True))
    assert not (tmp_path / "run").exists()


async def test_the_dialect_has_the_room_of_a_text_and_a_prompt_of_ones_own(tmp_path) -> None:
    model = Caller(looks(), writes())
    settings = EvaluationSettings(dialect="tools-written", prompt_template="Mine: {question}", num_resamples=50)
    summary = await evaluate(GOLDEN, model, search(), tmp_path / "run", settings)
    assert model.shown[0][0].startswith(f"Mine: {QUESTION}")
    assert summary["manifest"]["setup"]["limits"]["max_tokens_per_turn"] == WRITTEN_TOKENS == model.max_tokens


def test_the_command_evaluates_texts(command, tmp_path) -> None:
    (tmp_path / "asked.jsonl").write_text(
        json.dumps({"id": "q1", "question": QUESTION, "golden_answers": ["x"]}) + "\n"
    )
    done = CliRunner().invoke(app, ["eval", "--data", "asked.jsonl", "--out", "run", *command])
    assert done.exit_code == 0, done.output
    (record,) = read_trajectories(tmp_path / "run" / "trajectories.jsonl")
    assert record.answer == TEXT


@pytest.mark.parametrize("by_reader", [True, False])
@pytest.mark.parametrize("finish", ["length", "stop"])
def test_a_text_that_ends_with_its_turn_is_said_to_be_cut_off(finish: str, by_reader: bool) -> None:
    class Cut(Caller):
        async def generate(self, segments, **options: Any) -> Generation:
            return replace(await super().generate(segments, **options), finish=finish)

    turns = [render_turn("I look.", queries=["Danube river", "Rhine river"]), render_turn("Read.", answer="Danube")]
    policy = ScriptedPolicy({QUESTION: turns}) if by_reader else Cut(looks(), writes())
    with Agent(policy, search(), written=True, answer_with=Cut(writes()) if by_reader else None) as agent:
        done = trajectory_from_dict(agent.ask(QUESTION).to_dict())
    screen = Console(width=100, file=io.StringIO())
    screen.print(trajectory_view(done))
    assert ("--max-tokens-per-turn" in screen.file.getvalue()) is (finish == "length")


async def test_a_server_writes_where_it_is_asked_and_refuses_where_nobody_can() -> None:
    answering = Answering(Caller(looks(), writes(), looks(), writes()), search())
    assert answering.can_write()
    reply = await answering.answer(QUESTION, AskOptions(written=True))
    assert (reply.content, [doubt.number for doubt in reply.doubts]) == (TEXT, [2])
    await answering.aclose()
    trained = ScriptedPolicy({})
    trained.may_write = False
    short = Answering(trained, search())
    with pytest.raises(RefusalError, match="a few words"):
        short.limits_for(AskOptions(written=True))
    await short.aclose()
    with pytest.raises(UsageError, match="--answer-with"):
        Answering(trained, search(), AgentSettings(written=True))


async def test_a_server_that_writes_gives_a_short_answer_where_a_request_wants_no_reader() -> None:
    turns = [render_turn("I look.", queries=["Danube river", "Rhine river"]), render_turn("Read.", answer="2,850")]
    trained = ScriptedPolicy({QUESTION: turns})
    trained.may_write = False
    reader = ScriptedPolicy({QUESTION: [TEXT]}, name="reader")
    answering = Answering(trained, search(), AgentSettings(written=True), reader)
    assert (await answering.answer(QUESTION, AskOptions())).content == TEXT
    assert (await answering.answer(QUESTION, AskOptions(read=False))).content == "2,850"
    with pytest.raises(RefusalError, match="a few words"):
        answering.limits_for(AskOptions(read=False, written=True))
    await answering.aclose()


@pytest.mark.parametrize(("asked", "room"), [(None, WRITTEN_TOKENS), (200, 200), (600, 600), (9_000, WRITTEN_TOKENS)])
async def test_a_text_has_no_more_room_than_a_request_gives_it(asked: int | None, room: int) -> None:
    model = Caller(looks(), writes())
    answering = Answering(model, search())
    options = AskOptions(written=True)
    await answering.answer(QUESTION, options, limits=answering.limits_for(options, asked))
    assert model.max_tokens == room
    short = Limits().max_tokens_per_turn
    assert answering.limits_for(AskOptions(), asked).max_tokens_per_turn == min(asked or short, short)
    await answering.aclose()


def test_an_order_is_put_as_it_was_typed_to_who_was_not_trained_on_question_marks() -> None:
    model = Caller(looks(), writes())
    with Agent(model, search(), written=True) as agent:
        agent.ask(QUESTION)
    assert f"Question: {QUESTION}\n" in model.shown[0][0]
    model = OnItsOwn({QUESTION: [render_turn("I look.", queries=["Danube"]), render_turn("Read.", answer="Danube")]})
    with Agent(model, search(), written=True) as agent:
        done = agent.ask(QUESTION)
    assert f"Question: {QUESTION}?\n" in done.segments[0].text  # in tags, as policies learn them
    assert f"Question: {QUESTION}\n" in model.asked


def test_a_number_that_names_nothing_takes_no_line_with_it() -> None:
    with Agent(
        Caller(looks(), writes("The Danube is a river [1].\n[9] So is the Rhine [2].")), search(), written=True
    ) as agent:
        assert cite(agent.ask(QUESTION)).text == "The Danube is a river [1].\n So is the Rhine [2]."
