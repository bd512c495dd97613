"""The viewer in a real Chromium: filter, open, side by side, steps, by keyboard, on a phone, and against hostile text."""

from __future__ import annotations

import json
import os

import pytest
from viewer_process import viewer
from viewer_runs import ATTACK, NUM_QUESTIONS, evaluation_run, hostile_trajectory, training_run

from browsing import PHONE, Watched
from parallelsearch.trajectory import Reading, Segment, Trajectory, write_trajectories
from parallelsearch.viewer.html import export_html

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    return {
        "parallel": evaluation_run(folder / "parallel", num_wrong=4),
        "sequential": evaluation_run(folder / "sequential", sequential=True, num_wrong=2),
        "grpo": training_run(folder / "grpo"),
        "folder": folder,
    }


class ViewPage(Watched):
    """The viewer's page, served or from a file."""

    def __init__(self, browser, url: str, **context) -> None:
        super().__init__(browser, url, "body[data-state=judged]", **context)

    @property
    def status(self) -> str:
        return self.page.locator("#status").inner_text()

    def open(self, number: int, count: int = 1) -> None:
        self.page.locator(".entry").nth(number).click()
        self.page.locator(".trajectory").nth(count - 1).wait_for()


@pytest.fixture
def show(browser):
    opened: list[ViewPage] = []

    def one(url: str, **context) -> ViewPage:
        opened.append(ViewPage(browser, url, **context))
        return opened[-1]

    yield one
    for each in opened:
        each.close()


@pytest.fixture(scope="module")
def exported(runs):
    """A file of both evaluations, opened from disk."""
    path = runs["folder"] / "out.html"
    export_html([runs["parallel"], runs["sequential"]], path, reward="paper")
    return path.as_uri()


@pytest.fixture(scope="module")
def served(runs):
    with viewer(runs["parallel"], runs["sequential"], runs["grpo"]) as url:
        yield url + "/"


def test_filter_and_sort(show, exported):
    watched = show(exported)
    page = watched.page
    assert watched.status == f"{NUM_QUESTIONS} of {NUM_QUESTIONS} trajectories"
    page.select_option("#outcome", "wrong")
    assert watched.status == f"4 of {NUM_QUESTIONS} trajectories"
    assert page.locator(".entry .wrong").count() == 4
    page.select_option("#outcome", "")
    page.select_option("#split", "yes")
    split = int(watched.status.split()[0])
    page.select_option("#split", "no")
    assert 0 < split == NUM_QUESTIONS - int(watched.status.split()[0])
    page.click("#reset")
    page.locator("#status", has_text=f"{NUM_QUESTIONS} of").wait_for()
    page.select_option("#order", "reward-down")
    totals = [float(text.split("reward ")[1].split(" ")[0]) for text in page.locator(".meta").all_inner_texts()]
    assert totals == sorted(totals, reverse=True)
    assert totals[0] > totals[-1]
    page.fill("#reward-min", "1")
    assert int(watched.status.split()[0]) == sum(total >= 1 for total in totals)
    page.click("#reset")
    page.fill("#text", "NOBODY knows")
    assert watched.status.startswith("4 of")
    page.fill("#text", "no such thing anywhere")
    assert page.locator("#list").inner_text() == "Nothing fits these filters."


@pytest.mark.parametrize("page_kind", ["exported", "served"])
def test_error_classes_lead_to_their_trajectories(show, request, runs, page_kind):
    watched = show(request.getfixturevalue(page_kind))
    errors = json.loads((runs["parallel"] / "summary.json").read_text())["subsets"]
    counts = next(iter(errors.values()))["errors"]
    page = watched.page
    page.click("#overview > summary")
    page.locator("#overview button").first.wait_for()
    assert page.locator("#overview button").count() == len(counts)
    watched.keep("viewer-errors")
    for name, count in counts.items():
        page.locator("#overview button", has_text=name.replace("_", " ")).first.click()
        assert watched.status.startswith(f"{count} of")


def test_an_opened_trajectory(show, served):
    watched = show(served)
    page = watched.page
    page.select_option("#kind", "parallel")
    page.select_option("#outcome", "right")
    watched.open(0)
    card = page.locator(".trajectory")
    assert card.locator(".segment.model").count() == 2
    assert "trained on" in card.locator(".segment.model .label").first.inner_text()
    assert "not trained on" in card.locator(".segment.search summary").first.inner_text()
    queries = card.locator(".query")
    assert queries.count() >= 2
    boxes = [queries.nth(number).bounding_box() for number in range(2)]
    assert boxes[0]["y"] == boxes[1]["y"]  # side by side
    assert boxes[0]["x"] < boxes[1]["x"]
    bars = card.locator(".bars", has_text="Timing").locator("tbody tr")
    assert bars.count() == 2 + queries.count()
    assert "shown as [1]" in queries.first.locator("summary").first.inner_text()
    queries.first.locator("summary").first.click()
    assert queries.first.locator("details p").first.is_visible()
    watched.keep("viewer-trajectory")


def test_two_runs_side_by_side(show, served):
    watched = show(served)
    page = watched.page
    page.select_option("#beside", label="sequential")
    assert watched.status == f"{NUM_QUESTIONS} of {NUM_QUESTIONS} questions in both"
    page.select_option("#compared", "right")
    assert watched.status.startswith("2 of")
    page.select_option("#compared", "")
    page.select_option("#kind", "parallel")
    watched.open(0, count=2)
    cards = page.locator(".trajectory")
    assert cards.count() == 2
    assert cards.nth(0).locator("h2").inner_text() == cards.nth(1).locator("h2").inner_text()
    assert cards.nth(0).locator(".segment.model").count() < cards.nth(1).locator(".segment.model").count()
    page.set_viewport_size({"width": 1300, "height": 860})
    left, right = (cards.nth(number).bounding_box() for number in range(2))
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] <= right["x"]
    watched.keep("viewer-compare")


def test_steps_as_a_slider(show, served):
    watched = show(served)
    page = watched.page
    page.select_option("#run", label="grpo")
    assert watched.status == "18 of 18 trajectories"
    page.select_option("#phase", "validation")
    slider = page.locator("#step-left")
    slider.focus()
    page.keyboard.press("Home")
    assert page.locator("#stepper-left output").inner_text() == "step 0"
    assert "accuracy 0.5" in page.locator("#stepper-left .figures-line").inner_text()
    assert watched.status.startswith("4 of 6")
    watched.open(1)
    question = page.locator(".trajectory h2").inner_text()
    calls_before = page.locator(".trajectory .segment.model").count()
    slider.focus()
    page.keyboard.press("End")
    # The opened question is followed to the new step, where the policy has learnt to split it.
    page.locator(".trajectory .soft", has_text="step 20").first.wait_for()
    assert page.locator(".trajectory h2").inner_text() == question
    assert page.locator(".trajectory .segment.model").count() < calls_before
    assert slider.get_attribute("aria-valuetext") == "step 20"
    page.select_option("#beside", label="grpo")
    watched.open(0, count=2)
    steps = page.locator(".trajectory > .soft:first-child").all_inner_texts()
    assert ["step 0" in steps[0], "step 20" in steps[1]] == [True, True]
    watched.keep("viewer-steps")


def test_hostile_text_is_only_text(show, tmp_path):
    folder = tmp_path / "<img src=x onerror=window.hacked=6>"
    folder.mkdir()
    write_trajectories(folder / "trajectories.jsonl", [hostile_trajectory("a"), hostile_trajectory("b")])
    export_html(folder, tmp_path / "out.html")
    with viewer(folder) as url:
        for address in ((tmp_path / "out.html").as_uri(), url + "/"):
            watched = show(address)
            page = watched.page
            page.click("#overview > summary")
            watched.open(0)
            for fold in page.locator("details > summary").all():
                if fold.is_visible():
                    fold.click()
            assert page.locator(".trajectory h2").text_content() == ATTACK
            assert page.locator("main img, main svg, main script, main b, main iframe").count() == 0
            assert page.locator("a[href^='javascript']").count() == 0
            assert page.locator(".restored", has_text="</answer>").count() == 1
            assert page.evaluate("window.hacked") is None


def test_a_written_answer_and_who_read(show, tmp_path):
    (folder := tmp_path / "run").mkdir()
    text = "# Rivers\n\n| river | length |\n|---|---|\n| Danube | 2,850 km [1] |\n\nThe Danube is *longer* [1]."
    reading = Reading({"kind": "openai", "model": "big"}, text, own_answer="Danube", generate_s=1.5)
    done = Trajectory(
        "Compare them.", [Segment("model", "x")], ["Danube"], "a", answer=text, written=True, reading=reading
    )
    write_trajectories(folder / "trajectories.jsonl", [done])
    export_html([folder], tmp_path / "view.html")
    watched = show((tmp_path / "view.html").as_uri(), **PHONE)
    watched.open(0)
    shown = watched.page.locator(".trajectory .text")
    assert shown.inner_text() == text  # line by line
    facts = watched.page.locator(".trajectory .facts").all_inner_texts()
    assert any("Read by\nbig" in one and "Danube" in one for one in facts)
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= 360


def test_keyboard_alone(show, exported):
    page = show(exported).page
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "text"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "list"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("j")
    page.locator(".trajectory").wait_for()
    assert page.locator("#list").get_attribute("aria-activedescendant") == "entry-1"
    assert page.locator("#entry-1").get_attribute("aria-selected") == "true"
    assert page.evaluate("document.activeElement.id") == "list"
    page.keyboard.press("Enter")
    page.locator("#detail:focus").wait_for()
    # j and k move on wherever the focus is, but where one writes they are letters.
    page.keyboard.press("k")
    assert page.locator("#list").get_attribute("aria-activedescendant") == "entry-0"
    page.locator("#filters select").first.focus()
    page.keyboard.press("j")
    assert page.locator("#list").get_attribute("aria-activedescendant") == "entry-1"
    page.locator("#text").focus()
    page.keyboard.press("j")
    assert page.locator("#text").input_value() == "j"
    assert page.locator("#list").get_attribute("aria-activedescendant") != "entry-2"
    page.locator("#text").fill("")
    page.keyboard.press("Escape")
    page.keyboard.press("End")
    assert page.locator("#list").get_attribute("aria-activedescendant") == f"entry-{NUM_QUESTIONS - 1}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(show, served, scheme):
    watched = show(served, color_scheme=scheme, bypass_csp=True)
    watched.page.select_option("#run", label="grpo")
    watched.page.click("#overview > summary")
    watched.open(0)
    assert watched.axe_violations() == []


def test_a_phone_in_the_dark(show, exported):
    watched = show(exported, color_scheme="dark", **PHONE)
    page = watched.page
    assert page.locator("#outcome").is_hidden()  # folded away
    watched.open(0)
    page.locator("#detail:focus").wait_for()
    assert page.evaluate("document.querySelector('#detail').getBoundingClientRect().top") < 50  # scrolled into sight
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    watched.keep("viewer-phone")
    page.click("a.back")
    page.locator("#list:focus").wait_for()


def test_ten_thousand_stay_fluid(show, tmp_path):
    path = tmp_path / "trajectories.jsonl"
    write_trajectories(
        path,
        (
            Trajectory(f"question number {n}?", [Segment("model", "<answer> yes </answer>")], ["yes"], f"q{n}",
                       kind="parallel", answer="yes" if n % 2 else "no", stop="answer")
            for n in range(10_000)
        ),
    )  # fmt: skip
    with viewer(path) as url:
        watched = show(url + "/")
        page = watched.page
        page.locator("#status", has_text="10,000 of 10,000").wait_for()
        assert page.locator(".entry").count() < 60
        page.focus("#list")
        page.keyboard.press("End")
        page.locator(".trajectory h2", has_text="question number 9999?").wait_for()
        page.fill("#text", "number 77")
        page.locator("#status", has_text="111 of 10,000").wait_for()
        assert page.locator(".entry").count() < 60  # only what is in sight is drawn, however many there are


def test_the_token_is_asked_for(browser, runs):
    with viewer(runs["parallel"], token="s3cret") as url:
        page = browser.new_page()
        page.goto(url + "/")
        page.fill("#token", "s3cret")
        page.click("#token-form button")
        page.locator("#status", has_text=f"{NUM_QUESTIONS} of").wait_for()
        page.close()


def test_what_was_left_out_is_said_on_the_page(show, tmp_path):
    texts = [os.urandom(3000).hex() for _ in range(60)]
    write_trajectories(
        tmp_path / "trajectories.jsonl",
        (Trajectory(f"question {n}?", [Segment("model", text)], id=f"q{n}") for n, text in enumerate(texts)),
    )
    report = export_html(tmp_path, tmp_path / "out.html", max_bytes=150_000)
    assert 0 < report.num_embedded < 60
    watched = show((tmp_path / "out.html").as_uri())
    assert report.left_out in watched.page.locator("#notes").inner_text()
    watched.page.locator(".entry.absent").first.click()
    watched.page.locator("#detail", has_text="left out to keep the file small").wait_for()
