"""Shared by the tests that need verifiers (`make test-verifiers`), which stands beside the environment, not in it: it wants
an older openai and an older mcp. It keeps its files under the home folder, so these tests have one of their own."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

import pytest

HOME = tempfile.mkdtemp(prefix="verifiers-home-")
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
os.environ["HOME"] = HOME  # before the import of verifiers, which looks once
os.environ["HF_HUB_OFFLINE"] = "1"
for name in [name for name in os.environ if name.startswith("PRIME_")]:
    del os.environ[name]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "ignore")
