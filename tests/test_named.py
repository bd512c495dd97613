"""What the caller wrote, by `module:name`: it is found where the command is typed, and its mistakes are told in one message."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parallelsearch.addresses import open_policy, open_retriever, open_search
from parallelsearch.agent import Agent
from parallelsearch.cli.app import app
from parallelsearch.errors import RewardError, UsageError
from parallelsearch.named import load_named
from parallelsearch.policy import Policy
from parallelsearch.rewards import Reward, Weights, check, describe, reward
from parallelsearch.search import Search
from parallelsearch.trajectory import Trajectory

QUESTION = "Who is older, Claude Monet or Camille Pissarro?"
MINE = """
import numpy as np

from parallelsearch import Hit, Policy, Retriever, Reward
from parallelsearch.policy import Generation

COST = 0.1

def number(trajectory): return trajectory.is_right - COST
def whole(trajectory): return 2
def yes(trajectory): return trajectory.is_right
def single_precision(trajectory): return np.float32(0.5)
def parts(trajectory): return Reward(True, 0.25, 0, -0.5)
def nothing(trajectory): pass
def text(trajectory): return "1.0"
def not_a_number(trajectory): return float("nan")
def bad_part(trajectory): return Reward(1.0, 0.0, "0.3", 0.0)
def breaks(trajectory):
    return helper(trajectory)
def helper(trajectory):
    return trajectory.limits["budget"]
async def later(trajectory): return 1.0
def two(trajectory, model): return 1.0
class Judge:
    def __init__(self, cost): self.cost = cost
    def __call__(self, trajectory): return -self.cost
    def method(self): return 1.0
judge = Judge(0.7)

def look_up(query): return [("Monet", "Claude Monet was born in 1840."), ("Pissarro", "Born in 1830.")]
class Shelf:
    def search_many(self, queries, k): return [look_up(query)[:k] for query in queries]
class Dictionary(Retriever):
    name = "dictionary"
    async def search_many(self, queries, k): return [[Hit("1", "Monet", "Born in 1840.")] for _ in queries]
def opened(): return Dictionary()
def no_key(): raise ValueError("no key")
def gives_up(trajectory=None): raise SystemExit("given up")
def long(trajectory): return 10**400
class Lazy:
    @property
    def reward(self): raise OSError("no file")
lazy = Lazy()
class Remote(Shelf):
    def __init__(self, url): pass

class Mine(Policy):
    name = "mine"
    async def generate(self, segments, *, stop, max_tokens, sampling, session, on_text=None):
        if len(segments) > 1:
            return Generation("<think> The earlier. </think> <answer> Camille Pissarro </answer>", "stop")
        return Generation("<think> Both. </think> <search> Monet born ## Pissarro born </search>", "stop")
class Texts(Mine):
    async def generate(self, segments, **options): return "<answer> x </answer>"
class Breaks(Mine):
    async def generate(self, segments, **options):
        return {}["reply"]
class Sized(Mine):
    def __init__(self, size): pass
class Half(Policy): pass
one = Mine()
def make(): return Mine()
"""


@pytest.fixture
def mine(own_folder: Path) -> Path:
    path = own_folder / "mine.py"
    path.write_text(MINE)
    return path


def line_of(text: str) -> int:
    (number,) = [number for number, line in enumerate(MINE.splitlines(), start=1) if text in line]
    return number


def asked(kind: str | None = None) -> Trajectory:
    return Trajectory("q?", id="q7", kind=kind, golden_answers=["x"], answer="x", stop="answer")  # type: ignore[arg-type]


# ---- modules and names -----------------------------------------------------------------------------------------------


def test_a_module_is_looked_for_where_the_command_is_typed_and_then_elsewhere(mine: Path) -> None:
    assert load_named("mine:number", "reward").__module__ == "mine"
    assert load_named("mine:Judge.method", "reward").__name__ == "method"
    assert load_named("parallelsearch.answers:exact_match", "reward").__module__ == "parallelsearch.answers"
    (mine.parent / "folder").mkdir()
    (mine.parent / "folder" / "inner.py").write_text("def here(trajectory): return 1.0")
    assert load_named("folder.inner:here", "reward")(None) == 1.0


def test_wrong_names_say_what_is_there_and_what_to_type(mine: Path) -> None:
    folder = mine.parent
    (folder / "divides.py").write_text("import json\nratio = 1 / 0\n")
    (folder / "unfinished.py").write_text("def f(:\n")
    (folder / "needy.py").write_text("\nimport no_such_thing\n")
    (folder / "program.py").write_text("import sys\nsys.exit(3)\n")
    for name, message in [
        ("mien:number", rf"no module 'mien' for the reward 'mien:number': not in {folder},.*Did you mean 'mine'\?"),
        ("mine.inner:number", "there is no module 'mine.inner' for the reward"),
        ("mine:nummber", rf"'mine' \({mine}\) has no 'nummber'. Did you mean 'number'\? It has: COST, number, whole, "),
        ("mine:Judge.metod", "has no 'Judge.metod'. Did you mean 'method'"),
        ("mine:COST.number", "has no 'COST.number'."),
        ("mine:lazy.reward", r"'mine:lazy.reward' cannot be had: OSError: no file \(mine.py, line "),
        ("mine.py:number", "'mine.py' is a file, .* write mine:number"),
        ("./folder/mine.py:number", "write folder.mine:number"),
        ("mine:", "'mine:' names no reward; write module:name"),
        ("divides:f", r"'divides:f' cannot be imported: ZeroDivisionError: division by zero \(divides.py, line 2\)"),
        ("unfinished:f", r"SyntaxError: .*\(unfinished.py, line 1\)"),
        ("needy:f", r"ModuleNotFoundError: No module named 'no_such_thing' \(needy.py, line 2\)"),
        ("program:f", r"SystemExit: 3 \(program.py, line 2\)"),
    ]:
        with pytest.raises(UsageError, match=message):
            load_named(name, "reward")


# ---- rewards ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("number", Reward(0.9, 0.0, 0.0, 0.0)),
        ("whole", Reward(2.0, 0.0, 0.0, 0.0)),
        ("yes", Reward(1.0, 0.0, 0.0, 0.0)),
        ("single_precision", Reward(0.5, 0.0, 0.0, 0.0)),
        ("parts", Reward(1.0, 0.25, 0.0, -0.5)),
        ("judge", Reward(-0.7, 0.0, 0.0, 0.0)),
    ],
)
def test_a_reward_of_ones_own_gives_a_number_or_its_parts(mine: Path, name: str, value: Reward) -> None:
    found = reward(asked(), f"mine:{name}")
    assert found == value
    assert all(type(part) is float for part in found.to_dict().values())


def test_a_reward_of_ones_own_that_gives_no_number_or_breaks_names_the_trajectory(mine: Path) -> None:
    for name, message in [
        ("nothing", r"gave None \(NoneType\) for the trajectory 'q7'; a reward gives a number, or Reward\(outcome, "),
        ("text", r"gave '1.0' \(str\) for the trajectory 'q7'"),
        ("not_a_number", r"gave nan \(float\) for"),
        ("long", r"gave 10{79} \(int\) for"),
        ("gives_up", r"broke on the trajectory 'q7': SystemExit: given up \(mine.py, line "),
        ("bad_part", r"gave Reward\(outcome=1.0, .*search_count='0.3'"),
        ("breaks", rf"broke on the trajectory 'q7': TypeError: .*\(mine.py, line {line_of('budget')}\)"),
    ]:
        with pytest.raises(RewardError, match=f"the reward 'mine:{name}' {message}"):
            reward(asked(), f"mine:{name}")


def test_what_can_be_no_reward_is_refused_before_it_is_called(mine: Path) -> None:
    for name, message in [
        ("mine:COST", "'mine:COST' is 0.1, and a function of a trajectory is wanted"),
        ("mine:later", "is async; write it with def"),
        ("mine:two", "cannot be called with a trajectory alone: missing a required argument: 'model'"),
        ("python:mine:number", "without 'python:', so write mine:number"),
        ("number", "no reward preset 'number'; choose one of paper, .*, or module:function for one of your own"),
    ]:
        with pytest.raises(UsageError, match=message):
            check(name)
    with pytest.raises(UsageError, match="alpha: the preset 'mine:number' has no weights"):
        check("mine:number", Weights(alpha=2.0))


def test_a_manifest_tells_a_changed_reward(mine: Path) -> None:
    before = describe("mine:number")
    assert before["preset"] == "mine:number"
    assert describe("mine:judge")["sha256"] == before["sha256"]
    mine.write_text(MINE.replace("COST = 0.1", "COST = 0.2"))
    assert describe("mine:number")["sha256"] != before["sha256"]
    assert "sha256" not in describe("gated")


@pytest.mark.parametrize("name", ["made", "decorated", "one"])
def test_a_manifest_tells_a_changed_reward_that_something_else_made(tmp_path: Path, name: str) -> None:
    # A partial is written in functools, a decorated function and an object may be written anywhere.
    (tmp_path / "helping.py").write_text(
        "def twice(function):\n    return lambda trajectory: 2 * function(trajectory)\n"
        "class Fixed:\n    def __init__(self, cost): self.cost = cost\n    def __call__(self, trajectory): return self.cost\n"
    )
    code = (
        "import functools, helping\n"
        "def of(trajectory, cost): return cost\n"
        "made = functools.partial(of, cost=COST)\n"
        "@helping.twice\n"
        "def decorated(trajectory): return COST\n"
        "one = helping.Fixed(COST)\n"
    )
    tell = f"from parallelsearch.rewards import describe; print(describe('own:{name}')['sha256'])"
    told = []
    for cost in ("1", "1", "2"):
        (tmp_path / "own.py").write_text(code.replace("COST", cost))
        told.append(subprocess.run([sys.executable, "-c", tell], cwd=tmp_path, capture_output=True, check=True).stdout)
    assert told[0] == told[1] != told[2]


# ---- policies and searches -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["one", "Mine", "make"])
@pytest.mark.parametrize("search", ["look_up", "Shelf", "Dictionary", "opened"])
def test_a_policy_and_a_search_of_ones_own_answer_together(mine: Path, policy: str, search: str) -> None:
    with Agent(f"python:mine:{policy}", f"python:mine:{search}", abstain=False) as agent:
        found = agent.ask(QUESTION)
    assert (found.answer, found.num_subqueries, found.is_split) == ("Camille Pissarro", 2, True)
    assert all(query.hits[0].title == "Monet" for query in found.queries)
    assert agent.policy.address == f"python:mine:{policy}"


def test_a_search_of_ones_own_stands_beside_others(mine: Path) -> None:
    assert open_retriever("all:python:mine:look_up|demo").max_batch >= 1
    with pytest.raises(UsageError, match="workers are for an index on this machine"):
        open_search("python:mine:look_up", workers=2)


def test_what_can_be_no_policy_or_search_says_what_to_write(mine: Path) -> None:
    for name, message in [
        ("number", "mine:number' is called without arguments, and there is missing a required argument: 'trajectory'"),
        (
            "opened",
            "'python:mine:opened' gives a Dictionary, no policy: write a class that inherits from parallelsearch.P",
        ),
        ("COST", "'python:mine:COST' gives a float, no policy"),
        ("Sized", r"missing a required argument: 'size'; name a function .* the policy: def mine\(\): return Sized\("),
        ("Half", "mine:Half' made no policy: TypeError: Can't instantiate abstract class Half"),
        ("no_key", rf"mine:no_key' made no policy: ValueError: no key \(mine.py, line {line_of('no key')}\)"),
        ("gives_up", "mine:gives_up' made no policy: SystemExit: given up"),
        ("Mien", "has no 'Mien'. Did you mean 'Mine'"),
    ]:
        with pytest.raises(UsageError, match=message):
            open_policy(f"python:mine:{name}")
    for name, message in [
        ("number", r"'python:mine:number': number\(trajectory, ...\) does not say whether it takes one query or all"),
        ("COST", "'python:mine:COST': a float is no search backend"),
        ("make", "'python:mine:make': a Mine is no search backend"),
        ("Remote", "missing a required argument: 'url'; name a function that takes none and makes the search"),
        ("no_key", "mine:no_key' made no search: ValueError: no key"),
    ]:
        with pytest.raises(UsageError, match=message):
            open_search(f"python:mine:{name}")
    with pytest.raises(UsageError, match="ends after the colon; it goes on like python:MODULE:NAME"):
        open_policy("python:")


def test_a_policy_of_ones_own_that_breaks_names_the_line(mine: Path) -> None:
    with Agent("python:mine:Breaks", "demo") as agent:
        assert f"(KeyError: 'reply') (mine.py, line {line_of('reply')})" in (agent.ask(QUESTION).error or "")
    with Agent("python:mine:Texts", "demo") as agent:
        assert 'gave a str as its turn; generate gives a Generation, for example Generation(text, "stop")' in (
            agent.ask(QUESTION).error or ""
        )


def test_servers_open_them(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[object] = []
    monkeypatch.setattr("parallelsearch.server.search_server.run_search_server", lambda *given: served.extend(given))
    monkeypatch.setattr(
        "parallelsearch.server.agent_server.run_agent_server", lambda *given, **options: served.extend(given)
    )
    for line in (["search"], ["agent", "--policy", "python:mine:Mine"]):
        result = CliRunner().invoke(app, ["serve", *line, "--search", "python:mine:look_up"])
        assert result.exit_code == 0, result.output
    searches = [one.retriever.name for one in served if isinstance(one, Search)]
    assert (searches, [one.name for one in served if isinstance(one, Policy)]) == (["look_up"] * 2, ["mine"])


def test_a_command_finds_what_lies_where_it_is_typed(mine: Path) -> None:
    """The script's own folder, and not where it is typed, is where Python looks first."""
    script = Path(sys.executable).with_name("parallelsearch")

    def typed(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([script, *arguments], cwd=mine.parent, capture_output=True, text=True, timeout=400)

    own = ("--policy", "python:mine:make", "--search", "python:mine:look_up")
    evaluated = typed("eval", "--limit", "3", *own, "--out", "run", "--json")
    assert evaluated.returncode == 0, evaluated.stderr
    assert json.loads(evaluated.stdout)["manifest"]["setup"]["policy"]["kind"] == "mine"
    scored = typed("score", "run/trajectories.jsonl", "--reward", "mine:number", "--json")
    assert [json.loads(line)["decomposition"] for line in scored.stdout.splitlines()] == [0.0] * 3
    broken = typed("score", "run/trajectories.jsonl", "--reward", "mine:breaks")
    assert (broken.returncode, broken.stderr.count("\n")) == (1, 1)
    assert "the reward 'mine:breaks' broke on the trajectory" in broken.stderr
