"""`ask` without a question at a terminal: a real pseudo-terminal, a real search, written turns."""

import json
import re
import signal

import pytest

from parallelsearch import grammar
from pseudo_terminal import CTRL_C, CTRL_D, PASTE, UP, Terminal

MONET, PISSARRO = "When was Claude Monet born?", "When was Camille Pissarro born?"
LIST = "Which of these was born first?\nClaude Monet\nCamille Pissarro\nPaul Cézanne"
SLOW = "Who was the youngest of all?"
PROMPT = "\n> "
SLOWLY = "python:my_search:look_up"


def turns(queries: str, answer: str) -> list[str]:
    return [
        grammar.render_turn("I look it up.", queries=queries.split(" / ")),
        grammar.render_turn("Found.", answer=answer),
    ]


SCRIPT = {
    MONET: turns("Claude Monet born", "14 November 1840"),
    PISSARRO: turns("Camille Pissarro born", "10 July 1830"),
    LIST: turns("Claude Monet born / Camille Pissarro born / Paul Cézanne born", "Camille Pissarro"),
    "Who painted Impression, Sunrise?": turns("Impression, Sunrise painter", "Claude Monet [1]"),
    SLOW: turns("something slow", "nobody"),
}
SEARCH = """
import asyncio
from parallelsearch.data import demo

found = demo.retriever()

async def look_up(queries, k):
    if "something slow" in queries:
        await asyncio.sleep(600)
    return await found.search_many(queries, k)
"""
"""The demo corpus, and a query that takes for ever."""


@pytest.fixture
def talk(tmp_path):
    (tmp_path / "script.json").write_text(json.dumps(SCRIPT))
    (tmp_path / "my_search.py").write_text(SEARCH)
    opened: list[Terminal] = []

    def begin(*arguments: str, search: str = "demo", **options) -> Terminal:
        command = ("ask", "--policy", "script:script.json", "--search", search, *arguments)
        opened.append(Terminal(*command, cwd=tmp_path, **options))
        return opened[-1]

    yield begin
    for one in opened:
        one.close()


def test_a_follow_up_is_understood_and_ctrl_d_leaves(talk):
    terminal = talk()
    assert "Ctrl-D or an empty line leaves" in terminal.until(PROMPT)
    terminal.type(f"{MONET}\n")
    assert "answer: 14 November 1840" in terminal.until(PROMPT)
    terminal.type("And Camille Pissarro?\n")
    told = terminal.until(PROMPT)
    assert f"understood as: {PISSARRO}\n" in told
    assert "search  Camille Pissarro born" in told  # told live
    assert "answer: 10 July 1830" in told
    terminal.type("/new\n")
    assert "forgotten" in terminal.until(PROMPT)
    terminal.type("And Camille Pissarro?\n")
    told = terminal.until(PROMPT)
    assert "understood as" not in told
    assert "the script has no turns for the question" in told
    terminal.type(CTRL_D)
    assert terminal.end() == 0
    assert terminal.output.endswith("\n3 questions: 1 failed\n")
    assert "Traceback" not in terminal.output


@pytest.mark.parametrize("leave", ["\n", "/quit\n", "exit\n"])
def test_ways_to_leave(talk, leave):
    terminal = talk()
    terminal.until(PROMPT)
    terminal.type(leave)
    assert terminal.end() == 0


def test_ctrl_c_stops_the_question_and_not_the_conversation(talk):
    terminal = talk("--prices", "1000,2000,3000", search=SLOWLY)
    terminal.until(PROMPT)
    for _ in range(2):
        terminal.type(f"{SLOW}\n")
        terminal.until("search  something slow")
        terminal.type(CTRL_C)
        assert "stopped" in terminal.until(PROMPT, timeout_s=10)
    terminal.type("nonsense")
    terminal.until("nonsense")  # Python's readline is deaf for the moment before it waits for keys
    terminal.type(CTRL_C)  # at the prompt it takes away what was typed
    try:
        terminal.until(PROMPT, timeout_s=10)
    except AssertionError:  # it came in that moment all the same, and is heard at the next key
        terminal.type(" ")
        terminal.until(PROMPT)
    assert "slow" not in terminal.silence(0.5)  # a rollout that was stopped tells nothing more
    terminal.type(f"{MONET}\n")
    told = terminal.until(PROMPT)
    assert "answer: 14 November 1840" in told
    (cost,) = re.findall(r"^cost ([\d.]+)$", told, re.M)
    assert float(cost) > 0
    terminal.type("\n")
    assert terminal.end() == 0
    assert f"3 questions: 2 stopped, cost {cost} in all, without what was stopped\n" in terminal.output


def test_the_cost_of_each_question_and_of_all(talk):
    terminal = talk("--prices", "1000,2000,3000", "--record", "searches.jsonl", "--max-cost", "50")
    terminal.until(PROMPT)
    costs = []
    for question in (MONET, PISSARRO):
        terminal.type(f"{question}\n")
        costs += re.findall(r"^cost ([\d.]+)$", terminal.until(PROMPT), re.M)
    terminal.type(CTRL_D)
    assert terminal.end() == 0
    assert len(costs) == 2
    (total,) = re.findall(r"2 questions: cost ([\d.]+) in all\n", terminal.output)
    assert float(total) == pytest.approx(sum(map(float, costs)), rel=1e-5)


def test_one_recording_and_one_cache_for_all_of_it(talk, tmp_path):
    for _ in range(2):
        terminal = talk("--record", "searches.jsonl", "--cache", "kept.sqlite", "--json")
        terminal.until("> ")
        for question in (MONET, PISSARRO):
            terminal.type(f"{question}\n")
            terminal.until('"invalid_citations": []}')
        terminal.type(CTRL_D)
        assert terminal.end() == 0
    answers = [json.loads(line) for line in terminal.output.splitlines() if line.startswith("{")]
    assert [query["cached"] for answer in answers for turn in answer["turns"] for query in turn["queries"]] == [
        True
    ] * 2
    recorded = (tmp_path / "searches.jsonl").read_text()
    assert "Claude Monet born" in recorded
    assert "Camille Pissarro born" in recorded


MARKED, UNMARKED = PASTE % LIST, f"{LIST}\n"


@pytest.mark.parametrize(
    ("term", "typed", "then"),
    [
        pytest.param("xterm", MARKED, "\n", id="a terminal that marks what is pasted"),
        pytest.param("xterm", PASTE % UNMARKED, "\n", id="and the line end with it"),
        pytest.param("xterm", UNMARKED, "", id="one that does not"),
        pytest.param("dumb", UNMARKED, "", id="one that can do nothing"),
        pytest.param("dumb", LIST, "\n", id="and no line end"),
        pytest.param("xterm", f"{UNMARKED}\n".replace("\n", "\r"), "", id="with the line ends of the keyboard"),
    ],
)
def test_a_list_that_is_pasted_is_one_question(talk, term, typed, then):
    terminal = talk(env={"TERM": term})
    terminal.until("> ")
    assert (b"\x1b[?2004h" in terminal.raw) == (term == "xterm")  # a terminal marks what is pasted if it is asked to
    terminal.type(typed)
    if then:
        assert "turn 1" not in terminal.silence(0.5)  # nothing is asked before Enter
        terminal.type(then)
    assert "answer: Camille Pissarro" in terminal.until("turn 2  ")
    terminal.until("> ")
    terminal.type(CTRL_D)
    assert terminal.end() == 0
    assert terminal.output.count("answer: ") == 1
    assert "no turns for the question" not in terminal.output


def test_what_was_asked_comes_back_with_the_arrow_whole(talk):
    terminal = talk()
    terminal.until(PROMPT)
    terminal.type(PASTE % LIST + "\n")
    terminal.until(PROMPT)
    terminal.type(f"{MONET}\n")
    terminal.until(PROMPT)
    terminal.type(UP + UP + "\n")
    assert "answer: Camille Pissarro" in terminal.until(PROMPT)


@pytest.mark.parametrize("typed", [f"{PISSARRO}\n", "\n\n"], ids=["a question", "impatience"])
def test_what_is_typed_while_an_answer_is_on_its_way_is_asked_next_and_enter_is_no_farewell(talk, typed):
    terminal = talk(search=SLOWLY)
    terminal.until(PROMPT)
    terminal.type(f"{SLOW}\n")
    terminal.until("search  something slow")
    terminal.type(typed)
    terminal.until(typed)  # as the kernel echoes it
    terminal.process.send_signal(signal.SIGINT)  # a Ctrl-C that is typed takes with it what was typed before
    terminal.until("stopped")
    terminal.until(PROMPT)
    if typed.isspace():
        terminal.until(PROMPT)
        terminal.type(f"{PISSARRO}\n")
    assert "answer: 10 July 1830" in terminal.until("turn 2  ")
    terminal.until(PROMPT)
    terminal.type(CTRL_D)
    assert terminal.end() == 0


def test_commands_and_small_talk_ask_nothing(talk):
    terminal = talk()
    terminal.until(PROMPT)
    for typed, told in (
        ("/help", "/new   forget"),
        ("/nwe", "there is no /nwe; there are:\n/new"),
        ("thanks!", "welcome"),
    ):
        terminal.type(f"{typed}\n")
        said = terminal.until(PROMPT)
        assert told in said
        assert "turn 1" not in said


def test_json_has_what_was_typed_and_stands_alone_where_it_is_sent_elsewhere(talk, tmp_path):
    with (tmp_path / "answers.jsonl").open("wb") as out:
        terminal = talk("--json", stdout=out)
        for question in (MONET, "And Camille Pissarro?", "thanks"):
            terminal.until("> ")
            terminal.type(f"{question}\n")
        terminal.until("> ")
        terminal.type(CTRL_D)
        assert terminal.end() == 0
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [(one.get("asked"), one["question"]) for one in answers] == [
        (None, MONET),
        ("And Camille Pissarro?", PISSARRO),
        (None, "thanks"),
    ]
    assert answers[1]["sources"][0]["title"] == "Camille Pissarro"


@pytest.mark.parametrize("columns", [20, 40])
def test_a_narrow_terminal_without_unicode(talk, columns):
    terminal = talk(columns=columns, env={"PYTHONIOENCODING": "ascii", "TERM": "dumb"})
    terminal.until("> ")
    terminal.type("Who painted Impression, Sunrise?\n")
    terminal.until("answer: ")
    terminal.until("> ")
    terminal.type("When was he born in Orléans?\n")
    terminal.until("understood as")
    terminal.until("> ")
    terminal.type(CTRL_D)
    assert terminal.end() == 0
    assert "Traceback" not in terminal.output


def test_a_setting_that_is_wrong_is_said_before_the_first_question(talk):
    terminal = talk("--dialect", "fancy")
    assert terminal.end() == 2
    assert "there is no dialect 'fancy'" in terminal.output


def test_python_without_readline(talk, tmp_path):
    (tmp_path / "readline.py").write_text("raise ImportError('no readline here')\n")
    terminal = talk(env={"PYTHONPATH": f"{tmp_path}:{__import__('os').environ.get('PYTHONPATH', '')}"})
    terminal.until("> ")
    terminal.type(f"{LIST}\n")
    terminal.until("answer: Camille Pissarro")
    terminal.until("> ")
    terminal.type(f"{MONET}\n")
    terminal.until("answer: 14 November 1840")


def test_a_question_on_the_command_line_reads_no_terminal(talk):
    terminal = talk(MONET)
    assert terminal.end() == 0
    assert "> " not in terminal.output.splitlines()
    assert "answer: 14 November 1840" in terminal.output


@pytest.mark.model
@pytest.mark.slow
def test_the_trained_model_is_loaded_once_and_answers_after_ctrl_c(talk):
    pytest.importorskip("xllamacpp", reason="pip install -e '.[llama]'")
    terminal = talk("--policy", "gguf:smollm2-135m+parallel", "--max-turns", "2")
    terminal.until(PROMPT)
    terminal.type("Who painted Impression, Sunrise?\n")
    assert "answer: Claude Monet\n" in terminal.until(PROMPT, timeout_s=300)
    terminal.type("Where was he born?\n")
    terminal.until("tokens", timeout_s=300)  # llama.cpp is writing
    terminal.type(CTRL_C)
    terminal.until("stopped", timeout_s=10)
    terminal.until(PROMPT)
    terminal.type("Where was he born?\n")
    told = terminal.until(PROMPT, timeout_s=300)
    assert "understood as: Where was Claude Monet born?\n" in told
    assert "answer: Paris\n" in told
    terminal.type(CTRL_D)
    assert terminal.end() == 0
