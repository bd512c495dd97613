"""Retrieval at equal budget: no arm is shown more than the budget, places are read off one order, and the door works."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallelsearch.data import demo, demo_questions
from parallelsearch.errors import UsageError
from parallelsearch.evaluation.budget import (
    LABELLED,
    PASSAGES,
    ROUNDS,
    WHOLE,
    Arm,
    GoldPlaces,
    _places,
    arm_of_record,
    budget_figure,
    budget_table,
    cells,
    labelled_arm,
    run_arm,
    whole_arm,
)
from parallelsearch.evaluation.whole import evaluate, spend_budgets
from parallelsearch.gold import Gold
from parallelsearch.policy import ScriptedPolicy
from parallelsearch.retrieval import build_index
from parallelsearch.retrieval.base import Hit, Passage
from parallelsearch.search import Search
from parallelsearch.trajectory import Query, Question


def ranked(*keys: str) -> list[Hit]:
    return [Hit(key, f"Title {key}", f"text {key}", score=1.0, rank=n) for n, key in enumerate(keys, start=1)]


def test_queries_are_dealt_in_turn_and_a_passage_counts_once() -> None:
    gold = Gold((frozenset({"a3"}), frozenset({"b2"}), frozenset({"z"})), "passage")
    queries = [Query("a", ranked("a1", "a2", "a3")), Query("b", ranked("b1", "b2", "a1"))]
    assert _places(gold, queries) == [5, 4, None]  # a1 b1 a2 b2 a3
    assert _places(gold, queries[:1]) == [3, None, None]
    assert _places(gold, []) == [None, None, None]


KEYS = st.lists(st.sampled_from("abcdefghijklmnop"), unique=True, max_size=15)


@settings(max_examples=50)
@given(st.lists(KEYS, min_size=1, max_size=4), st.sets(st.sampled_from("abcdefgh"), min_size=1))
def test_more_passages_never_find_less_and_no_place_is_taken_twice(lists, wanted) -> None:
    gold = Gold(tuple(frozenset({key}) for key in sorted(wanted)), "passage")
    places = _places(gold, [Query(str(n), ranked(*keys)) for n, keys in enumerate(lists)])
    taken = [place for place in places if place is not None]
    assert len(set(taken)) == len(taken)
    found = GoldPlaces("q", "g", dict.fromkeys(ROUNDS, places))
    recalls = [found.recall(budget, 1) for budget in PASSAGES]
    assert recalls == sorted(recalls)
    assert all(recall * len(places) <= budget for recall, budget in zip(recalls, PASSAGES, strict=True))
    reachable = {key for keys in lists for key in keys} & wanted
    assert found.recall(max(PASSAGES), 1) * len(places) <= len(reachable)


@pytest.fixture(scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("budget") / "run"
    await evaluate(demo_questions()[:40], "demo", "demo", folder)
    return folder


async def test_two_runs_of_one_name_are_two_arms(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "run"
    shutil.copytree(run, other)
    await spend_budgets([str(run), str(other)], "demo", tmp_path / "out")
    arms = {cell["arm"] for cell in json.loads((tmp_path / "out" / "budget.json").read_text())["cells"]}
    assert {f"{run.parent.name}/run", "other/run"} <= arms


async def test_a_run_is_scored_from_its_record_or_searched_again_deeper(run: Path) -> None:
    search = Search(demo.retriever())
    recorded, again = arm_of_record("r", run), await run_arm("r", run, search)
    whole = await whole_arm(demo_questions()[:40], search)
    await search.aclose()
    assert [one.id for one in recorded.found] == [one.id for one in again.found]
    for shallow, deep in zip(recorded.found, again.found, strict=True):
        for num_rounds in ROUNDS:
            assert shallow.recall(3, num_rounds) <= deep.recall(15, num_rounds)
            assert deep.recall(15, 1) <= deep.recall(15, 4) or num_rounds == 1
    found = cells([whole, again], num_resamples=50)
    split = [cell for cell in found if cell.group == "parallel, 2 parts" and cell.num_passages == 6]
    assert [(cell.arm, cell.num_rounds) for cell in split] == [(WHOLE, 1), ("r", 1), ("r", 2), ("r", 4)]
    assert split[0].difference is None
    assert split[1].difference == pytest.approx(split[1].all_gold - split[0].all_gold)
    assert "6 passages" in budget_table(found).head
    assert "parallel" in budget_figure(found).title


async def test_the_labelled_arm_asks_for_each_part_in_its_round() -> None:
    films = Question(
        "Which film has the older director, Psycho or Jaws?",
        kind="mixed",
        id="1",
        supporting_titles=["Psycho (1960 film)", "Jaws", "Alfred Hitchcock", "Steven Spielberg"],
    )
    asked: list[str] = []

    class Listening(Search):
        async def search_many(self, queries, k=None):
            asked.extend(queries)
            return await super().search_many(queries, k)

    search = Listening(demo.retriever())
    arm = await labelled_arm([films, Question("Who?", ["x"], "2", kind="single", supporting_titles=["X"])], search)
    await search.aclose()
    assert asked == ["Psycho", "Jaws", "Alfred Hitchcock", "Steven Spielberg"]
    assert [found.id for found in arm.found] == ["1"]


async def test_policies_and_runs_are_arms_of_one_command(run: Path, tmp_path: Path) -> None:
    page = await spend_budgets([str(run), "demo"], "demo", tmp_path, questions=demo_questions()[:40])
    text = page.read_text()
    assert WHOLE in text
    assert "<svg" in text
    stored = json.loads((tmp_path / "budget.json").read_text())
    assert [arm["name"] for arm in stored["arms"]] == [WHOLE, LABELLED, "run", "demo"]
    one, other = (arm["found"] for arm in stored["arms"][2:])
    assert sorted(one, key=lambda found: found["id"]) == sorted(other, key=lambda found: found["id"])


async def test_the_report_of_a_run_has_the_budget_first(run: Path) -> None:
    text = (run / "report.md").read_text()
    assert text.index("budget of passages") < text.index("## Results")


async def test_what_cannot_be_measured_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--data"):
        await spend_budgets(["demo"], "demo", tmp_path)
    with pytest.raises(UsageError, match="is no run folder"):
        await spend_budgets([str(tmp_path / "mistyped")], "demo", tmp_path)
    with pytest.raises(UsageError, match="'mistyped' is no run folder"):
        await spend_budgets(["mistyped"], "demo", tmp_path)
    with pytest.raises(UsageError, match="gold is known"):
        cells([Arm("a"), Arm("b")])
    search = Search(demo.retriever())
    assert (await whole_arm([Question("Who?", ["x"], "1")], search)).found == []
    await search.aclose()
    with pytest.raises(UsageError, match="run folder"):
        arm_of_record("a", tmp_path)


async def test_a_run_over_another_corpus_is_not_searched_again_in_the_demo_unasked(tmp_path: Path) -> None:
    own = tmp_path / "own"
    build_index([Passage("1", "Pavo 300", "The Pavo 300 was released in 2007.")], own)
    question = Question("When was the Pavo 300 released?", ["2007"], "1", kind="single", supporting_titles=["Pavo 300"])
    model = ScriptedPolicy({question.question: ["<search> Pavo 300 </search>", "<answer> 2007 </answer>"]})
    await evaluate([question], model, f"bm25:{own}", tmp_path / "run")

    def first(folder: Path) -> dict[str, float]:
        return json.loads((folder / "budget.json").read_text())["cells"][0]

    with pytest.raises(UsageError, match=r"did not search the embedded corpus \(bm25, 1 passages\).*--search ADDRESS"):
        await spend_budgets([str(tmp_path / "run")], None, tmp_path / "forgotten")
    assert not (tmp_path / "forgotten").exists()
    page = await spend_budgets([str(tmp_path / "run")], "demo", tmp_path / "elsewhere")
    assert first(tmp_path / "elsewhere")["all_gold"] == 0.0
    assert "searched another corpus" in page.read_text()
    assert len(json.loads((tmp_path / "elsewhere" / "budget.json").read_text())["warnings"]) == 1
    await spend_budgets([str(tmp_path / "run")], f"bm25:{own}", tmp_path / "right")
    assert first(tmp_path / "right")["all_gold"] == 1.0
    assert json.loads((tmp_path / "right" / "budget.json").read_text())["warnings"] == []


def test_groups_stand_in_one_order_however_a_run_ended() -> None:
    groups = ["single", "parallel, 10 parts", "no kind", "mixed, 2 parts", "parallel, 2 parts", "sequential"]
    arm = Arm("r", [GoldPlaces(str(n), group, {number: [1] for number in ROUNDS}) for n, group in enumerate(groups)])
    found = list(dict.fromkeys(cell.group for cell in cells([arm], num_resamples=10)))
    assert found == [
        "all", "parallel, 2 parts", "parallel, 10 parts", "sequential", "single", "mixed, 2 parts", "no kind",
    ]  # fmt: skip
