"""Shared by all tests: small backends and policies that are real objects of the package, where real data lies, and the rule
that on CI nothing is skipped."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings

from parallelsearch.errors import SearchError
from parallelsearch.retrieval.base import Hit, Result, Retriever

# The same examples on every machine: a red run must be repeatable. HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=2_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

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


class EchoRetriever(Retriever):
    """Answers each query with hits named after it, after a delay; fails where `fails` says so. Counts its calls."""

    name = "echo"

    def __init__(
        self,
        latency_s: float = 0.0,
        fails: Callable[[str], Exception | None] = lambda query: None,
        max_batch: int = 64,
        max_concurrency: int = 1,
    ) -> None:
        self.latency_s, self.fails = latency_s, fails
        self.max_batch, self.max_concurrency = max_batch, max_concurrency
        self.calls: list[list[str]] = []
        self.num_running = self.max_running = 0

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        self.calls.append(list(queries))
        self.num_running += 1
        self.max_running = max(self.max_running, self.num_running)
        try:
            if self.latency_s:
                await asyncio.sleep(self.latency_s)
            return [self._answer(query, k) for query in queries]
        finally:
            self.num_running -= 1

    def _answer(self, query: str, k: int) -> Result:
        error = self.fails(query)
        if isinstance(error, SearchError):
            return error
        if error is not None:
            raise error
        return [
            Hit(f"{query}#{n}", query.title(), f"text {n} about {query}", score=1 / n, rank=n) for n in range(1, k + 1)
        ]


@pytest.fixture
def echo() -> type[EchoRetriever]:
    return EchoRetriever


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Real questions and passages; the tests that need them say so with the marker `shared_data`."""
    folder = os.environ.get("PARALLELSEARCH_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("PARALLELSEARCH_DATA does not point at the benchmark files")
    return Path(folder)


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
