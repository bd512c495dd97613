"""The trained adapters that come with the package: their files, names, base and dialects, and who takes which."""

import json

import pytest

from parallelsearch import Agent
from parallelsearch import agent as agents
from parallelsearch.errors import UsageError
from parallelsearch.grammar import render_turn
from parallelsearch.policy import gguf, models
from parallelsearch.policy.scripted import ScriptedPolicy


@pytest.mark.parametrize("kind", ["parallel", "sequential"])
def test_it_is_small_and_says_which_base_it_belongs_to(kind: str):
    folder = models.packaged_adapters()[kind]
    assert sum(path.stat().st_size for path in folder.iterdir()) < 16_000_000
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["r"] <= 16
    assert config["base_model_name_or_path"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    note = json.loads((folder / "parallelsearch.json").read_text())
    assert len(note["base_hash"]) == 64
    assert note["dialect"] == kind


def test_a_name_without_a_number_is_the_newest_and_others_stay(tmp_path):
    for name in ("parallel-1", "parallel-2", "parallel-10", "sequential-1", "notes", "draft-3"):
        (tmp_path / name).mkdir()
        if name != "draft-3":  # no adapter in it
            (tmp_path / name / "adapter_config.json").write_text("{}")
    found = {name: path.name for name, path in models.packaged_adapters(tmp_path).items()}
    assert found == {
        "parallel": "parallel-10",
        "parallel-1": "parallel-1",
        "parallel-2": "parallel-2",
        "parallel-10": "parallel-10",
        "sequential": "sequential-1",
        "sequential-1": "sequential-1",
    }


def test_names_that_do_not_exist_name_those_that_do():
    for name in ("../demo", "parallel-99", "sideways"):
        with pytest.raises(UsageError, match=r"hf:smollm2-135m\+parallel, hf:smollm2-135m\+parallel-4"):
            models.parse_spec(f"smollm2-135m+{name}")


@pytest.mark.model
@pytest.mark.parametrize(("kind", "name"), [("parallel", "parallel-4"), ("sequential", "sequential-3")])
def test_it_fits_its_base_and_says_how_it_talks(kind: str, name: str):
    """What it does with a question is in the golden record."""
    spec = models.parse_spec(f"smollm2-135m+{kind}")
    assert spec.adapter is not None
    assert spec.adapter.name == name
    assert models.check_adapter(spec)
    assert models.dialect_of(spec) == kind


# ---- twins -----------------------------------------------------------------------------------------------------------

OLDER = "Who is older, Claude Monet or Camille Pissarro?"


@pytest.mark.parametrize(
    ("address", "dialect", "twin"),
    [
        ("gguf:smollm2-135m+parallel", "sequential", "gguf:smollm2-135m+sequential"),
        ("hf:smollm2-135m+parallel-4", "sequential", "hf:smollm2-135m+sequential"),
        ("hf:smollm2-135m+sequential", "parallel", "hf:smollm2-135m+parallel"),
        ("gguf:smollm2-135m+parallel", "parallel", None),
        ("gguf:smollm2-135m+parallel", "search-r1", None),  # no adapter of the package was trained on it
        ("gguf:smollm2-135m+./runs/parallel", "sequential", None),
        ("gguf:smollm2-135m", "sequential", None),
        ("openai:http://h/v1#smollm2-135m+parallel", "sequential", None),  # what a server has, it has
        ("demo", "sequential", None),
    ],
)
def test_which_is_the_twin(address: str, dialect: str, twin: str | None):
    assert models.twin_of(address, dialect) == twin


def test_the_twin_is_loaded_when_first_asked_for_and_once(monkeypatch: pytest.MonkeyPatch):
    loaded: list[ScriptedPolicy] = []

    def opened(policy: object, dialect: str) -> ScriptedPolicy:
        loaded.append(
            ScriptedPolicy(
                {OLDER: [render_turn("x", queries=["Monet born"]), render_turn("x", answer="the twin's")]}, name=dialect
            )
        )
        return loaded[-1]

    monkeypatch.setattr(agents, "open_twin", opened)
    policy = ScriptedPolicy(
        {OLDER: [render_turn("x", queries=["Monet born", "Pissarro born"]), render_turn("x", answer="its own")]},
        name="own",
    )
    policy.address, policy.dialect = "gguf:smollm2-135m+parallel", "parallel"
    with Agent(policy, abstain=False) as agent:
        assert agent.ask(OLDER).answer == "its own"
        assert agent.ask(OLDER, dialect="parallel").answer == "its own"
        assert not loaded
        assert [one.answer for one in agent.ask_many([OLDER, OLDER], dialect="sequential")] == ["the twin's"] * 2
        assert agent.ask(OLDER, dialect="sequential").answer == "the twin's"
        assert agent.split(OLDER, dialect="sequential") == ["Monet born"]
        assert len(loaded) == 1


@pytest.mark.model
def test_one_at_a_time_is_asked_of_the_twin(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PARALLELSEARCH_CACHE", raising=False)  # where other tests have converted the base already
    monkeypatch.setattr(gguf, "num_cores", lambda: 1)  # beside other tests two threads wait for each other
    with Agent("gguf:smollm2-135m+parallel") as agent:
        assert agent.policy.describe()["adapter"] == "parallel-4"  # what it does itself is in test_gguf.py
        one_by_one = agent.ask(OLDER, dialect="sequential")
    assert one_by_one.policy is not None
    assert one_by_one.policy["adapter"] == "sequential-3"
    assert [len(turn.queries) for turn in one_by_one.rounds] == [1, 1]
    assert one_by_one.answer == "Camille Pissarro"
