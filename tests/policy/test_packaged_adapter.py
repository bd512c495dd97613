"""The trained adapter that comes with the package: its files, its names, its base, its dialect."""

import json
from pathlib import Path

import pytest

from parallelsearch.errors import UsageError
from parallelsearch.policy import models


def folder() -> Path:
    return models.packaged_adapters()["parallel"]


def test_it_is_small_and_says_which_base_it_belongs_to():
    assert sum(path.stat().st_size for path in folder().iterdir()) < 16_000_000
    config = json.loads((folder() / "adapter_config.json").read_text())
    assert config["r"] <= 16
    assert config["base_model_name_or_path"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    note = json.loads((folder() / "parallelsearch.json").read_text())
    assert len(note["base_hash"]) == 64
    assert note["dialect"] == "parallel"


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
        with pytest.raises(UsageError, match=r"hf:smollm2-135m\+parallel, hf:smollm2-135m\+parallel-1"):
            models.parse_spec(f"smollm2-135m+{name}")


@pytest.mark.model
def test_it_fits_its_base_and_says_how_it_talks():
    """What it does with a question is in the golden record."""
    spec = models.parse_spec("smollm2-135m+parallel")
    assert spec.adapter is not None
    assert spec.adapter.name == "parallel-1"
    assert models.check_adapter(spec)
    assert models.dialect_of(spec) == "parallel"
