"""The report: one page without network, escaped, with every number of the summary; Markdown; PNG; comparison."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from parallelsearch import grammar
from parallelsearch.errors import UsageError
from parallelsearch.evaluation.comparison import compare
from parallelsearch.evaluation.folder import SUMMARY_FILE, read_rows, read_summary
from parallelsearch.evaluation.page import Section, Table, page, viewer_address
from parallelsearch.evaluation.plots import Figure, Series, place_labels, svg, ticks
from parallelsearch.evaluation.report import choose_examples, notes_of, write_comparison, write_report
from parallelsearch.evaluation.run import EvaluationSettings, run_questions
from parallelsearch.files import write_json
from parallelsearch.limits import Limits
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.search import Search
from parallelsearch.trajectory import Question, QuestionPart

EVIL = "<script>alert('x')</script> & \"quotes\""
QUESTIONS = [
    Question(
        f"Who is older, A{n} or B{n}? {EVIL}",
        [f"A{n}"],
        f"q{n}",
        "demo<b>",
        None,
        "parallel",
        ["Title"],
        parts=[QuestionPart([f"A{n}"]), QuestionPart([f"B{n}"])],
    )
    for n in range(6)
] + [Question("Who wrote it?", ["Ada"], "s1", "demo<b>", None, "single")]


def turns_of(question: Question, right: bool) -> list[str]:
    answer = question.golden_answers[0] if right else "wrong"
    name = question.golden_answers[0]
    queries = [f"first thing {name}", f"second thing {name.replace('A', 'B')}"]
    queries = queries if question.kind == "parallel" else ["one thing"]
    return [grammar.render_turn("x", queries), grammar.render_turn("y", answer=answer)]


async def make_run(folder: Path, wrong: int) -> Path:
    script = {q.question: turns_of(q, number >= wrong) for number, q in enumerate(QUESTIONS)}
    search = Search(BM25Retriever.from_passages([Passage("1", "Title", f"first second one thing {EVIL}")]))
    await run_questions(QUESTIONS, ScriptedPolicy(script), search, folder, EvaluationSettings(num_resamples=50))
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
    text = write_report(run).read_text()
    reader = Reader()
    reader.feed(text)
    assert "script" not in reader.tags
    assert "b" not in reader.tags
    assert reader.links == []
    assert not re.search(r"https?://|url\(|@import", text)
    assert reader.tags.count("svg") == 6
    assert text.count('<div class="example">') == 7
    assert text.count('class="query"') >= 7  # their sub-queries
    assert "0.571" in text  # 4 of 7 right
    assert "demo&lt;b&gt;-par" in text
    for drawing in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(drawing)


async def test_questions_without_a_kind_are_told_why_a_table_is_missing(tmp_path: Path) -> None:
    run = await make_run(tmp_path / "run", wrong=3)
    assert "No question has a kind" not in write_report(run).read_text()
    for name in ("trajectories.jsonl", "rows.jsonl"):
        text = re.sub(r'"kind": ?"(parallel|single)"', '"kind":null', (run / name).read_text())
        (run / name).write_text(text)
    page = write_report(run).read_text()
    assert "<p>No question has a kind (parallel, sequential, single, mixed).</p>" in page
    assert "Nothing to show" not in page


async def test_questions_that_failed_or_ran_out_of_time_are_named_at_the_top(tmp_path: Path) -> None:
    run = await make_run(tmp_path / "run", wrong=0)
    assert notes_of(read_summary(run)) == []
    script = {q.question: turns_of(q, True) for q in QUESTIONS[2:]}  # on two questions the policy has nothing to say
    search = Search(BM25Retriever.from_passages([Passage("1", "Title", "text")]))
    settings = EvaluationSettings(num_resamples=20, limits=Limits(timeout_s=1.0))
    slow = ScriptedPolicy(script, tokens_per_s=4)
    summary = await run_questions(QUESTIONS, slow, search, tmp_path / "late", settings)
    await search.aclose()
    failed, late = notes_of(summary)
    assert failed.startswith("the policy failed on 2 of 7 questions, and they count as wrong, last with: the script")
    assert failed.endswith(" Give the same command with --retry-failures to ask them again")
    assert late.startswith("5 of 7 questions ran out of time (1 s each) and count as wrong")
    text = write_report(tmp_path / "late", png=False).read_text()
    assert f'<p class="warning">{late}</p>' in text


async def test_an_error_of_several_lines_is_one_note(tmp_path: Path) -> None:
    run = await make_run(tmp_path / "run", wrong=0)
    summary = read_summary(run)
    next(iter(summary["subsets"].values()))["failures"] = 1
    write_json(run / SUMMARY_FILE, {**summary, "last_error": "CUDA error: busy\n# compile it\nwith assertions"})
    write_report(run, png=False)
    lines = (run / "report.md").read_text().splitlines()
    assert any("last with: CUDA error: busy # compile it with assertions. Give the same" in line for line in lines)
    assert "# compile it" not in lines


async def test_who_answers_in_sentences_is_told_how_to_ask_for_short_answers(tmp_path: Path) -> None:
    summary = read_summary(await make_run(tmp_path / "run", wrong=0))
    next(iter(summary["subsets"].values())).update(em=0.0, sub_em=0.5)
    assert notes_of(summary) == []  # tags ask for short ones as it is
    summary["manifest"]["setup"]["dialect"]["name"] = "tools"
    (note,) = notes_of(summary)
    assert note.startswith("50% of the answers hold a golden one, 0% are one")
    assert "--dialect tools-answer" in note


async def test_passages_that_were_cut_are_named_and_make_runs_unlike(tmp_path: Path) -> None:
    search = Search(BM25Retriever.from_passages([Passage("1", "Title", "first second one thing " * 80)]))
    policy = ScriptedPolicy({q.question: turns_of(q, True) for q in QUESTIONS})
    for name, limit in (("whole", 2000), ("cut", 100)):
        settings = EvaluationSettings(num_resamples=20, limits=Limits(max_observation_tokens=limit))
        summary = await run_questions(QUESTIONS, policy, search, tmp_path / name, settings)
        assert next(iter(summary["subsets"].values()))["cut_ratio"] == (name == "cut")
        notes = notes_of(summary)
        assert len(notes) == (name == "cut")
    await search.aclose()
    assert notes[0].startswith("100% of the passages shown were cut to fit into 100 tokens a round")
    comparison = compare([tmp_path / "whole", tmp_path / "cut"], allow=["limits"], num_resamples=20)
    assert any("not like for like" in text and "whole 0%, cut 100%" in text for text in comparison.warnings)
    same = compare([tmp_path / "cut", tmp_path / "cut"], num_resamples=20)
    assert not any("not like for like" in text for text in same.warnings)


async def test_a_report_that_cannot_be_written_costs_no_numbers(tmp_path: Path) -> None:
    run = await make_run(tmp_path / "run", wrong=0)
    (run / "report.html").mkdir()
    with pytest.raises(UsageError, match=r"the numbers are kept, but the report could not be written to .*run"):
        write_report(run)
    assert read_summary(run)["num_done"] == len(QUESTIONS)


async def test_with_a_viewer_beside_it_every_example_is_a_link(tmp_path: Path) -> None:
    run = await make_run(tmp_path / "run", wrong=3)
    reader = Reader()
    reader.feed(write_report(run, png=False, viewer="my viewer.html").read_text())
    whole, *each = reader.links
    assert whole == "my%20viewer.html"
    assert sorted(each) == sorted(f"my%20viewer.html#id={question.id}" for question in QUESTIONS)
    assert viewer_address("v.html", "a&b #1+2/é") == "v.html#id=a%26b%20%231%2B2%2F%C3%A9"


def test_an_interval_goes_under_its_value_and_numbers_to_the_right() -> None:
    table = Table(("name", "EM", "p"), [["a", "0.100 [0.000, 0.200]", "–"], ["a", "0.5", "-0.3"], ["b", "7 (3%)", "x"]])
    text = page("t", [Section("s", [table])], [])
    assert '<td class="number">0.100<small>[0.000, 0.200]</small></td>' in text
    assert '<td class="number">7<small>(3%)</small></td>' in text
    assert "<td>–</td>" in text  # its column has a word in it
    assert text.count('<tr class="again">') == 1


async def test_markdown_and_pictures_stand_beside_it(tmp_path: Path) -> None:
    run = await make_run(tmp_path / "run", wrong=1)
    write_report(run)
    text = (run / "report.md").read_text()
    assert "| subset | n | EM |" in text
    assert "policy.kind" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in tables)
    pytest.importorskip("matplotlib")
    pictures = sorted(path.name for path in (run / "plots").iterdir())
    assert pictures == [
        "critical_path.png",
        "cumulative_turns.png",
        "em_against_calls.png",
        "error_classes.png",
        "latency.png",
        "split_by_kind.png",
    ]
    assert all((run / "plots" / name).read_bytes()[:4] == b"\x89PNG" for name in pictures)


async def test_a_comparison_names_runs_tests_and_differences(tmp_path: Path) -> None:
    folders = [await make_run(tmp_path / name, wrong) for name, wrong in (("bad", 5), ("good", 0))]
    text = write_comparison(compare(folders, num_resamples=100), tmp_path / "out", png=False).read_text()
    assert "Comparison: bad, good" in text
    assert "good - bad" in text
    assert "p McNemar" in text
    assert "+0.7143" in text
    assert "| subset | run | n | EM |" in (tmp_path / "out" / "report.md").read_text()
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


def scatter(points: list[tuple[float, float]]) -> Figure:
    names = tuple(f"subset number {n}" for n in range(len(points)))
    return Figure("f", "f", "scatter", "x", "y", (Series("run", tuple(points), names),), y_max=1.05)


@pytest.mark.parametrize(
    ("points", "num_labels"),
    [
        ([(1.0, 0.2), (4.0, 0.9)], 2),
        ([(1.0, 0.5), (1.0, 0.5), (1.0, 0.5)], 3),  # one place: to the right, to the left, above
        ([(1.0, 0.0), (2.0, 1.0), (2.0, 0.98)], 3),  # on the edges
        ([(1.0 + n / 1000, 0.5) for n in range(40)], None),  # a heap: some names find no room
    ],
)
def test_names_of_points_do_not_cover_each_other(points: list[tuple[float, float]], num_labels: int | None) -> None:
    figure = scatter(points)
    placed = place_labels(figure)
    assert num_labels is None or len(placed) == num_labels
    assert 0 < len(placed) <= len(points)
    drawing = svg(figure)
    assert drawing.count('class="name"') == len(placed)
    assert all(f"run {name}:" in drawing for name in figure.series[0].labels)  # the tooltip has every name
    assert len({(label.point, label.dx, label.dy) for label in placed}) == len(placed)
