"""Shared by the tests that need verl and Ray (`make test-verl`): a tiny model on disk, verl's configuration, servers to ask.

verl, Ray and their dependencies warn a great deal while they are imported; warnings are errors in the main suite only.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("VERL_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Ray ends its workers when the machine's memory is nearly full, whoever filled it.
os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
# It runs its workers at niceness 15, where whatever else the machine does keeps them from starting, and then gives up on them.
os.environ.setdefault("RAY_worker_niceness", "0")
os.environ.setdefault("RAY_worker_register_timeout_seconds", "150")
os.environ.setdefault("RAY_gcs_server_request_timeout_seconds", "400")
os.environ.setdefault("RAY_health_check_timeout_ms", "120000")

import pytest

from parallelsearch.training import smoke

RECIPES = Path(__file__).parents[2] / "recipes"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "ignore")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _save(folder: Path, leaning: float) -> Path:
    tokenizer = smoke.make_tokenizer()
    smoke.make_model(tokenizer, seed=1, leaning=leaning).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model of 74,000 weights that speaks the grammar: greedy, it answers some questions and searches for others."""
    return _save(tmp_path_factory.mktemp("models") / "tiny", leaning=1.0)


@pytest.fixture(scope="session")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without the grammar: long turns of noise, each answered by a notice."""
    return _save(tmp_path_factory.mktemp("models") / "noisy", leaning=0.0)


@pytest.fixture(scope="session")
def tokenizer(tiny: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny)
