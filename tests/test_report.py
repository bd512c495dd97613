"""The report: one page without network, escaped, with every number of the summary; Markdown; PNG; comparison."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from parallelsearch import grammar
from parallelsearch.comparison import compare
from parallelsearch.evaluation import EvaluationSettings, evaluate
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.report import choose_examples, write_comparison, write_report
from parallelsearch.report_plots import Figure, Series, svg, ticks
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.run_folder import read_rows
from parallelsearch.search import Search
from parallelsearch.trajectory import Question

EVIL = "<script>alert('x')</script> & \"quotes\""
QUESTIONS = [
    Question(f"Who is older, A{n} or B{n}? {EVIL}", [f"A{n}"], f"q{n}", "demo<b>", None, "parallel", ["Title"])
    for n in range(6)
] + [Question("Who wrote it?", ["Ada"], "s1", "demo<b>", None, "single")]


def turns_of(question: Question, right: bool) -> list[str]:
    answer = question.golden_answers[0] if right else "wrong"
    queries = ["first thing", "second thing"] if question.kind == "parallel" else ["one thing"]
    return [grammar.render_turn("x", queries), grammar.render_turn("y", answer=answer)]


async def make_run(folder: Path, wrong: int) -> Path:
    script = {q.question: turns_of(q, number >= wrong) for number, q in enumerate(QUESTIONS)}
    search = Search(BM25Retriever.from_passages([Passage("1", "Title", f"first second one thing {EVIL}")]))
    await evaluate(QUESTIONS, ScriptedPolicy(script), search, folder, EvaluationSettings(num_resamples=50))
    await search.aclose()
    return folder


class Reader(HTMLParser):
    """Which tags and which outside addresses a page has."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "action", "srcset")]


async def test_the_page_is_whole_escaped_and_alone(tmp_path: Path) -> None:
    run = await make_run(tmp_path / "run", wrong=3)
    page = write_report(run).read_text()
    reader = Reader()
    reader.feed(page)
    assert "script" not in reader.tags
    assert "b" not in reader.tags
    assert reader.links == []
    assert not re.search(r"https?://|url\(|@import", page)
    assert reader.tags.count("svg") == 5
    assert reader.tags.count("details") == 7
    assert "0.571" in page  # 4 of 7 right
    assert "demo&lt;b&gt;-par" in page
    for drawing in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(drawing)


async def test_markdown_and_pictures_stand_beside_it(tmp_path: Path) -> None:
    run = await make_run(tmp_path / "run", wrong=1)
    write_report(run)
    text = (run / "report.md").read_text()
    assert "| subset | run | n | EM |" in text
    assert "policy.kind" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in tables)
    pytest.importorskip("matplotlib")
    pictures = sorted(path.name for path in (run / "plots").iterdir())
    assert pictures == [
        "cumulative_turns.png",
        "em_against_calls.png",
        "error_classes.png",
        "latency.png",
        "split_by_kind.png",
    ]
    assert all((run / "plots" / name).read_bytes()[:4] == b"\x89PNG" for name in pictures)


async def test_a_comparison_names_runs_tests_and_differences(tmp_path: Path) -> None:
    folders = [await make_run(tmp_path / name, wrong) for name, wrong in (("bad", 5), ("good", 0))]
    page = write_comparison(compare(folders, num_resamples=100), tmp_path / "out", png=False).read_text()
    assert "Comparison: bad, good" in page
    assert "good - bad" in page
    assert "p McNemar" in page
    assert "+0.7143" in page
    assert not (tmp_path / "out" / "plots").exists()


async def test_examples_are_wrong_ones_of_each_class_and_right_ones(tmp_path: Path) -> None:
    rows = read_rows(await make_run(tmp_path / "run", wrong=2))
    chosen = choose_examples(rows, num_each=2)
    assert [reason.partition(":")[0] for reason in chosen.values()][:2] == ["wrong", "wrong"]
    assert list(chosen.values())[-1] == "right, planned as labelled"


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 0), (0, 0.003), (2, 2.4), (0, 123456), (-1, 1), (0.999, 1.001)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    marks = ticks(low, high)
    assert 2 <= len(marks) <= 12
    assert all(low - 1e-9 <= mark <= max(high, low + 1) + 1e-9 for mark in marks)


@pytest.mark.parametrize("kind", ["scatter", "bars", "lines", "steps"])
@pytest.mark.parametrize("points", [(), ((0.0, 0.0),), ((1.0, 0.5), (2.0, 0.75))])
def test_every_plot_draws_whatever_it_is_given(kind: Any, points: tuple[tuple[float, float], ...]) -> None:
    figure = Figure("f", EVIL, kind, EVIL, EVIL, (Series(EVIL, points, (EVIL,)),), ("a", "b", EVIL))
    root = ElementTree.fromstring(svg(figure))
    assert not root.findall(".//script")
    assert "nan" not in svg(figure).lower().replace("quotes", "")
