"""Records as HTML: what a notebook shows, in a real Chromium on white and on black, and against hostile text."""

import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallelsearch import Agent, Retrieval
from parallelsearch.evaluation.page import Example, page
from parallelsearch.markup import STYLE, steps_html
from parallelsearch.retrieval.base import Hit
from parallelsearch.retrieving import merge
from parallelsearch.trajectory import Abstention, Query, Reading, Segment, Shown, Trajectory, Turn

KAFKA = "Who was the oldest of James Joyce, Virginia Woolf and Franz Kafka?"
ATTACK = (
    "</p></style><script>window.hacked=1</script><img src=x onerror='window.hacked=2'><svg onload=window.hacked=3>"
    "<!-- [x](javascript:window.hacked=4) &lt;b&gt; \"' \u202e $x^2$ \x00\x1b[31m \ud800"
)
ALLOWED = {"a", "details", "div", "li", "ol", "p", "pre", "span", "strong", "style", "summary"}
ATTRIBUTES = {"class", "href", "open", "rel"}


def full_of(text: str, url: str | None = None) -> Trajectory:
    """A record with this text in every field that a stranger can write."""
    hit = Hit(text, text, text, url=url or text, metadata={text or "x": text, "source": text}, score=float("nan"))
    queries = [Query(text, [hit], end_s=float("nan"), missing=[text]), Query(text, [hit], error=text)]
    turn = Turn(queries, [text], problems=[text], thought=text, shown=[Shown(1, text, 0, 5, True)])
    return Trajectory(
        text,
        [Segment("prompt", text), Segment("model", text), Segment("search", text), Segment(text, text)],
        golden_answers=[text],
        turns=[turn, Turn(finish="timeout"), Turn(text=text)],
        answer=text,
        elapsed_s=float("inf"),
        abstained=Abstention("unsupported", text),
        reading=Reading({"model": text}, text, text, text),
    )


def retrieval_of(done: Trajectory) -> Retrieval:
    passages = merge(done.queries, 3)
    return Retrieval(done.question, passages, done.queries, done, [done.question], [done.question], float("nan"))


class Reader(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.open = "", []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data


@pytest.fixture(scope="module")
def agent():
    with Agent("demo", "demo") as opened:
        yield opened


def test_a_trajectory_shows_its_round_side_by_side_and_what_it_came_to(agent):
    done = agent.ask(KAFKA)
    read = Reader(done._repr_html_())
    cards = [attributes for tag, attributes in read.elements if attributes.get("class") == "query"]
    assert len(cards) == done.num_subqueries == 3
    for words in (KAFKA, "turn 1 · 3 searches at once", "When was Virginia Woolf born?", "answer: Virginia Woolf"):
        assert words in read.text
    for one in done.turns[0].shown:
        assert f"shown as [{one.number}]" in read.text
    assert done.shown_hits[0].text in read.text
    assert "2 LLM calls, 1 round of search, 3 sub-queries, " in read.text
    assert done.segments[-1].text.strip() in read.text  # letter by letter, folded
    assert not read.open


def test_a_retrieval_shows_its_passages_and_who_found_them(agent):
    found = agent.retrieve(KAFKA, k=4)
    read = Reader(found._repr_html_())
    for passage in found.passages:
        assert f"{passage.title} found by: {'; '.join(passage.queries)}" in read.text
        assert passage.text in read.text
    assert sum(attributes.get("class") == "query" for _, attributes in read.elements) == 3


def test_why_there_is_no_answer_is_said(agent):
    assert "no answer: the demo policy is no model" in Reader(agent.ask("What is love?")._repr_html_()).text
    held = Trajectory("q?", stop="answer", abstained=Abstention("unsupported", "Paris"))
    assert (
        "no answer: none of the passages found says sothe model's own guess: Paris" in Reader(held._repr_html_()).text
    )
    wrong = Trajectory("q?", answer="Rome", golden_answers=["Paris", "Lutetia"])
    assert "answer: Rome (wrong, expected Paris or Lutetia)" in Reader(wrong._repr_html_()).text


TABLE = "| river | length |\n|---|---|\n| Danube | 2,850 km [1] |\n"


@pytest.mark.parametrize("reads", [False, True])
def test_a_written_answer_keeps_its_lines_is_whole_and_stands_there_once(reads):
    text = f"# Rivers\n\n{TABLE * 150}\nThat is **all** [1]."
    turn = Turn(text="short" if reads else text, action="answer")
    reading = Reading({"model": "writer"}, text, "short") if reads else None
    done = Trajectory("q?", [Segment("model", turn.text)], turns=[turn], answer=text, written=True, reading=reading)
    shown = done._repr_html_()
    unfolded = shown.partition("<details>")[0]
    assert f'<p class="answer">{text}</p>' in unfolded  # a paragraph that keeps its lines, by its style
    assert unfolded.count("That is **all**") == 1
    assert "writes the text of the answer" in unfolded
    example = page("Run", [], [], examples=[Example("wrong", done)])
    assert f'<p class="answer">{text}</p>' in example
    assert example.partition("as it was written")[0].count("That is **all**") == 1
    assert "answer: a text; golden: unknown" in example


def test_links_lead_to_the_web_alone():
    for url in ("https://example.org/a?b&c", "HTTP://example.org"):
        read = Reader(full_of("x", url)._repr_html_())
        links = [attributes for tag, attributes in read.elements if tag == "a"]
        assert links == [{"href": url, "rel": "noopener noreferrer nofollow"}] * 2
    assert "<a " not in full_of("x", "javascript:alert(1)")._repr_html_()


@given(st.one_of(st.text(), st.sampled_from([ATTACK, '" onload="x', "</div>", "<!--", "&amp;", "</pre></details>"])))
def test_whatever_stands_in_a_record_is_text(text):
    done = full_of(text)
    for shown in (done._repr_html_(), retrieval_of(done)._repr_html_(), steps_html(done)):
        read = Reader(shown)
        assert {tag for tag, _ in read.elements} <= ALLOWED
        assert {name for _, attributes in read.elements for name in attributes} <= ATTRIBUTES
        assert not read.open  # every element ends, so nothing of the page behind it is taken in
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", shown)
        shown.encode()


def test_a_long_text_is_cut():
    shown = full_of("word " * 100_000)._repr_html_()
    assert len(shown) < 200_000
    assert " …" in shown


def test_a_record_shows_itself_without_the_viewer():
    code = (
        "import sys\nfrom parallelsearch import Trajectory\nassert 'turn' in Trajectory('q?')._repr_html_()\n"
        "print([name for name in sys.modules if name.startswith(('parallelsearch.viewer', 'parallelsearch.server', 'rich'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n", done.stderr


def test_a_report_shows_its_examples_so():
    done = full_of("x")
    text = page("Run", [], [], examples=[Example("wrong", done)])
    assert steps_html(done) in text
    assert text.count(STYLE) == 1


# ---- in a browser ----------------------------------------------------------------------------------------------------

THEMES = {"light": ("#ffffff", "#1c1c1c"), "dark": ("#111111", "#f0f0f0")}
CONTRAST = """(element) => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const style = getComputedStyle(element), paper = parts(getComputedStyle(document.body).backgroundColor);
  if (style.backgroundColor !== "rgba(0, 0, 0, 0)") return 0;
  const ink = parts(style.color).map((value, at) => paper[at] + (value - paper[at]) * Number(style.opacity));
  const linear = (value) => (value /= 255) <= .03928 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => .2126 * linear(r) + .7152 * linear(g) + .0722 * linear(b) + .05;
  return Math.max(light(ink), light(paper)) / Math.min(light(ink), light(paper));
}"""
"""Of an element without a paper of its own, as WCAG counts it; 4.5 is what small text needs."""


def shown_in(browser, html: str, theme: str, width: int = 1000, system: str = "light"):
    paper, ink = THEMES[theme]
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=system)
    tab = context.new_page()
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.set_content(f'<!doctype html><meta charset="utf-8"><body style="background:{paper};color:{ink}">{html}</body>')
    return tab, asked


@pytest.mark.browser
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("system", ["light", "dark"])
def test_it_is_read_on_the_paper_it_stands_on(browser, agent, theme, system):
    """A notebook's theme need not be that of the system."""
    tab, asked = shown_in(browser, agent.ask(KAFKA)._repr_html_(), theme, system=system)
    tab.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    for place in (
        ".asked",
        ".thought",
        ".query .name",
        ".query .soft",
        ".hits p",
        "summary span",
        ".answer strong",
        "pre",
    ):
        assert tab.locator(f".parallelsearch {place}").first.evaluate(CONTRAST) >= 4.5, place
    assert asked == []
    tab.context.close()


@pytest.mark.browser
def test_sub_queries_stand_side_by_side_where_there_is_room(browser, agent):
    for width, num_tops in ((1000, 1), (320, 3)):
        tab, _ = shown_in(browser, agent.ask(KAFKA)._repr_html_(), "light", width)
        boxes = [tab.locator(".query").nth(number).bounding_box() for number in range(3)]
        assert len({box["y"] for box in boxes}) == num_tops
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        tab.context.close()


@pytest.mark.browser
def test_hostile_text_does_nothing(browser):
    done = full_of(ATTACK)
    for shown in (done._repr_html_(), retrieval_of(done)._repr_html_()):
        tab, asked = shown_in(browser, shown, "dark")
        tab.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert tab.evaluate("window.hacked") is None
        assert tab.locator("script, img, svg").count() == 0
        assert asked == []
        tab.context.close()
