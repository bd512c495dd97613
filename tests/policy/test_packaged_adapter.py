"""The trained adapter that comes with the package: it fits its base, and it splits a comparison."""

import json
from pathlib import Path

import pytest

from parallelsearch.addresses import open_policy, open_search
from parallelsearch.policy import models
from parallelsearch.rollout import Limits, rollout


def folder() -> Path:
    found = models._packaged_adapter("parallel")
    assert found is not None
    return found


def test_it_is_small_and_says_which_base_it_belongs_to():
    assert sum(path.stat().st_size for path in folder().iterdir()) < 16_000_000
    config = json.loads((folder() / "adapter_config.json").read_text())
    assert config["r"] <= 16
    assert config["base_model_name_or_path"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert len(json.loads((folder() / "parallelsearch.json").read_text())["base_hash"]) == 64


def test_names_cannot_leave_the_folder():
    assert models._packaged_adapter("../demo") is None
    assert models._packaged_adapter("none") is None


@pytest.mark.model
@pytest.mark.slow
async def test_it_splits_a_comparison_and_answers_it():
    spec = models.parse_spec("smollm2-135m+parallel")
    assert models.check_adapter(spec)
    policy, search = open_policy("hf:smollm2-135m+parallel", max_context=2560), open_search("demo")
    limits = Limits(max_tokens_per_turn=160, max_tokens=2560)
    trajectory = await rollout("Who is older, Claude Monet or Camille Pissarro?", policy, search, limits)
    await policy.aclose()
    await search.aclose()
    assert trajectory.is_split
    assert trajectory.num_llm_calls == 2
    assert trajectory.answer == "Camille Pissarro"
    assert trajectory.has_token_ids
    assert len(trajectory.loss_mask()) == len(trajectory.response_logprobs())
