"""Shared by all tests: small backends and policies that are real objects of the package, where real data lies, and the rule
that on CI nothing is skipped."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings

from echoing import EchoRetriever
from small_data import write_small_data

# The same examples on every machine: a red run must be repeatable. HYPOTHESIS_PROFILE=explore looks for new ones.
# How long it takes to make one says something about the machine only.
_TIMELESS: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("repeatable", derandomize=True, **_TIMELESS)
settings.register_profile("explore", max_examples=2_000, **_TIMELESS)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # Haystack would report its use, and write to the home folder

# What `auto` takes where a test names no policy: the replay, so that commands are tried in moments. tests/policy/test_auto.py
# tries the choice itself, and names models where it wants them.
os.environ["PARALLELSEARCH_POLICY"] = "demo"

# The benchmark files are for the tests that ask for them (`data_dir`): every start of a training looks through all of them for
# questions it must not see, which takes two seconds, and a tiny run proves no more by it.
DATA = "PARALLELSEARCH_DATA"
REAL_DATA = os.environ.get(DATA)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("dist", "no") == "no":  # the first process of several runs no tests, and hands the variable on
        os.environ.pop(DATA, None)


# A machine that has everything (CI) sets this: there, a test that is skipped because a package, Chromium or the real data is
# missing would look like a test that passed.
NO_SKIPS = "PARALLELSEARCH_NO_SKIPS"
Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def _refuse_skip(report: Report) -> Report:
    if os.environ.get(NO_SKIPS) and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"nothing may be skipped where {NO_SKIPS} is set: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _refuse_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _refuse_skip((yield))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests go first: one that comes last keeps a single worker busy while the others have nothing to do."""
    num_slow = Counter(item.path for item in items if item.get_closest_marker("slow") is not None)
    items.sort(key=lambda item: -num_slow[item.path])


def pytest_collection_finish() -> None:
    """What the tests import lives as long as they do: a collection need not look at a million objects each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def echo() -> type[EchoRetriever]:
    return EchoRetriever


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder where a command is typed, for modules of one's own. What is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture(scope="session")
def has_real_data() -> bool:
    """Whether PARALLELSEARCH_DATA pointed at the benchmark files when the tests began."""
    return bool(REAL_DATA) and Path(str(REAL_DATA)).is_dir()


@pytest.fixture(scope="session")
def _data_dir(has_real_data: bool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if has_real_data:
        return Path(str(REAL_DATA))
    return write_small_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def data_dir(_data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The benchmark files: the real ones, or, where there are none, small ones of our own (`small_data.py`). The tests that
    read the real ones have the marker `shared_data`."""
    monkeypatch.setenv(DATA, str(_data_dir))
    return _data_dir


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real Chromium; the tests that drive it say so with the marker `browser`."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    path = os.environ.get("PARALLELSEARCH_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium, or set PARALLELSEARCH_CHROMIUM")
    flags = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=flags)
        yield launched
        launched.close()
