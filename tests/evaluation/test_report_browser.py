"""The report in a real Chromium: links that open the viewer from disk, plots whose names can be read, pages that fit.

The picture of the docs is made by `PARALLELSEARCH_SCREENSHOTS=FOLDER PARALLELSEARCH_REPORT=RUN/report.html pytest
tests/test_report_browser.py`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from parallelsearch import grammar
from parallelsearch.data import demo
from parallelsearch.data.questions import demo_questions
from parallelsearch.evaluation.comparison import compare
from parallelsearch.evaluation.folder import read_rows
from parallelsearch.evaluation.report import choose_examples, write_comparison, write_report
from parallelsearch.evaluation.run import EvaluationSettings, run_questions
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.search import Search
from parallelsearch.viewer.html import export_html

pytestmark = pytest.mark.browser

ODD_ID = 'a&b #1+2 / "é" <i>'
"""An id that a link must not stumble over."""


def make_run(folder: Path, is_sequential: bool = False) -> Path:
    """A third of the demo questions, a third of those wrong, of all kinds."""
    asked = demo_questions()[::3]
    asked[0].id = ODD_ID
    turns = {q: list(said) for q, said in (demo.sequential_turns() if is_sequential else demo.turns()).items()}
    for question in asked[::3]:
        turns[question.question][-1] = grammar.render_turn("I guess.", answer="nobody knows")

    async def run() -> None:
        search = Search(demo.retriever())
        policy = ScriptedPolicy(turns, tokens_per_s=20_000)
        await run_questions(asked, policy, search, folder, EvaluationSettings(num_resamples=20))
        await search.aclose()

    with ThreadPoolExecutor(1) as pool:  # a driven browser keeps an event loop in the main thread
        pool.submit(asyncio.run, run()).result()
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, their reports with the viewer beside them, and the page that compares them."""
    made = tmp_path_factory.mktemp("reports")
    runs = [make_run(made / "at once"), make_run(made / "one by one", is_sequential=True)]
    for run in runs:
        export_html(run, run / "viewer.html", first=choose_examples(read_rows(run)))
        write_report(run, png=False, viewer="viewer.html")
    write_comparison(compare(runs, num_resamples=50), made / "both", png=False)
    return made


Open = Callable[..., Any]


@pytest.fixture
def show(browser: Any) -> Iterator[Open]:
    """Opens a file; afterwards there must have been no complaint and no request but for files."""
    contexts: list[Any] = []
    wrong: list[str] = []

    def one(path: Path, width: int = 1200, **options: Any) -> Any:
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith("file:") else wrong.append(request.url))
        page.goto(path.as_uri())
        return page

    yield one
    for context in contexts:
        context.close()
    assert wrong == []


def test_each_example_opens_in_the_viewer(show: Open, folder: Path) -> None:
    page = show(folder / "at once" / "report.html")
    links = page.locator(".example > a")
    assert links.count() == 10
    for number in (0, 4, 9):
        question = page.locator(".example > details > summary").nth(number).inner_text().rpartition(" (")[0]
        links.nth(number).click()
        page.locator(".trajectory", has_text=question).wait_for()
        page.go_back()


def test_an_odd_id_is_found_and_a_wrong_one_is_named(show: Open, folder: Path) -> None:
    from parallelsearch.evaluation.page import viewer_address

    viewer = folder / "at once" / "viewer.html"
    first = demo_questions()[0].question
    page = show(viewer)
    page.locator("body[data-state=judged]").wait_for()
    page.goto(f"{viewer.parent.as_uri()}/{viewer_address('viewer.html', ODD_ID)}")
    page.locator(".trajectory", has_text=first).wait_for()
    page.goto(f"{viewer.as_uri()}#id=nothing")
    page.locator("#status", has_text="no trajectory with the id nothing").wait_for()


BOXES = """(plot) => [...plot.querySelectorAll("text")].map((text) => {
  const { left, top, right, bottom } = text.getBoundingClientRect();
  return [text.textContent, text.getAttribute("class"), left, top, right, bottom];
})"""


@pytest.mark.parametrize("name", ["at once", "one by one", "both"])
def test_texts_of_plots_neither_overlap_nor_leave_their_frame(show: Open, folder: Path, name: str) -> None:
    page = show(folder / name / "report.html")
    plots = page.locator(".plot")
    assert plots.count() == 6
    num_names = 0
    for number in range(plots.count()):
        plot = plots.nth(number)
        frame = plot.bounding_box()
        boxes = plot.evaluate(BOXES)
        num_names += sum(box[1] == "name" for box in boxes)
        for at, (text, _, left, top, right, bottom) in enumerate(boxes):
            assert left >= frame["x"], text
            assert right <= frame["x"] + frame["width"], text
            assert top >= frame["y"], text
            assert bottom <= frame["y"] + frame["height"], text
            for other, _, left_2, top_2, right_2, bottom_2 in boxes[at + 1 :]:
                # a line of text is higher than its letters: two pixels of it may meet
                is_apart = right <= left_2 or right_2 <= left or bottom - 2 <= top_2 or bottom_2 - 2 <= top
                assert is_apart, (text, other)
    assert num_names >= 5


@pytest.mark.parametrize(
    ("name", "width", "scheme"), [("at once", 1200, "light"), ("at once", 390, "dark"), ("both", 1200, "light")]
)
def test_the_page_fits_and_can_be_read(show: Open, folder: Path, name: str, width: int, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    page = show(folder / name / "report.html", width, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator("summary").first.click()
    found = axe.Axe().run(page)
    assert [violation["id"] for violation in found.response["violations"]] == []


def test_a_picture_for_the_docs(show: Open, folder: Path) -> None:
    given = os.environ.get("PARALLELSEARCH_REPORT")
    page = show(Path(given).absolute() if given else folder / "at once" / "report.html", width=1240)
    picture = page.screenshot(full_page=True, clip={"x": 0, "y": 0, "width": 1240, "height": 1580})
    assert picture[:4] == b"\x89PNG"
    if target := os.environ.get("PARALLELSEARCH_SCREENSHOTS"):
        (Path(target) / "report-page.png").write_bytes(picture)
