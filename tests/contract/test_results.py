"""The published tables are what the rows in the repository say; a changed row changes them; each new table by made rows."""

from __future__ import annotations

import re
from dataclasses import replace

import base_tables
import engine_runs
import kept_rows
import pytest
import result_tables as tables
import results
import reward_tables
from hypothesis import given
from hypothesis import strategies as st
from kept_rows import BALANCED, DEV, WIDE, Kept, Line, as_kept, read_all, read_records

from parallelsearch.data import load_questions
from parallelsearch.errors import UsageError
from parallelsearch.evaluation import EvaluationSettings, evaluate
from parallelsearch.evaluation.budget import LABELLED, WHOLE
from parallelsearch.evaluation.folder import read_rows
from parallelsearch.evaluation.metrics import summarise
from parallelsearch.grammar import render_turn
from parallelsearch.limits import Limits
from parallelsearch.policy.scripted import ScriptedPolicy

# ---- what is published -----------------------------------------------------------------------------------------------


def test_the_tables_are_what_the_rows_say() -> None:
    kept, found = read_all(), set()
    for page in results.PAGES:
        text = page.read_text(encoding="utf-8")
        names = re.findall(r"<!-- rows: (\w+) -->", text)
        assert names, page
        found.update(names)
        assert results.page_with_tables(text, kept) == text, "type: python scripts/results.py"
    assert found == set(results.TABLES)


def test_the_tables_of_engines_are_what_their_file_says() -> None:
    data, found = engine_runs.read(), set()
    for page in engine_runs.PAGES:
        text = page.read_text(encoding="utf-8")
        found.update(re.findall(r"<!-- runs: (\w+) -->", text))
        assert engine_runs.page_with_tables(text, data) == text, "type: python scripts/engine_runs.py"
    assert found == set(engine_runs.TABLES)
    run = data["training"]["verl"]
    run["seconds"]["step"] = [2 * value for value in run["seconds"]["step"]]
    assert engine_runs.training_table(data) not in (engine_runs.PAGES[0].read_text(encoding="utf-8"))


def test_only_steps_without_company_are_timed() -> None:
    run = {"steps": [1, 2, 3, 4], "alone": [2, 4], "seconds": {"step": [99.0, 3.0, 50.0, 5.0]}}
    assert engine_runs.median_alone(run, "step") == 4.0
    assert engine_runs.median_alone({**run, "alone": []}, "step") == 5.0
    assert engine_runs.median_alone(run, "weights") is None


def test_a_changed_row_changes_its_table() -> None:
    records = read_records(f"{tables.SHIPPED}.s1")
    first = next(number for number, one in enumerate(records) if one["set"] == DEV)
    changed = [*records]
    changed[first] = {**records[first], "em": not records[first]["em"]}
    before, after = as_kept({tables.SHIPPED: records}), as_kept({tables.SHIPPED: changed})
    assert tables.arms_table(after) != tables.arms_table(before)


def test_rows_are_small_whole_and_hold_no_question() -> None:
    for path in results.ROWS.rglob("*.jsonl.zst"):
        assert path.stat().st_size < 350_000, path.name
        rows = read_records(str(path.relative_to(results.ROWS)).removesuffix(".jsonl.zst"))
        assert len({(row["set"], row.get("turns"), row["id"]) for row in rows}) == len(rows)
        assert not any("question" in row for row in rows)
    kept = read_all()
    asked = {name: {line.id for line in kept.whole if line.set == name} for name in (DEV, WIDE, BALANCED)}
    assert {name: len(ids) for name, ids in asked.items()} == {DEV: 3_604, WIDE: 790, BALANCED: 600}
    assert [sum(line.shortcut == how for line in kept.whole) for how in ("agrees", "differs")] == [130, 17]
    for seeds in kept.policies.values():
        assert all(line.id in asked[line.set] for lines in seeds for line in lines if line.set in asked)


@pytest.mark.parametrize(
    ("value", "text"), [(0.5, ".500"), (-0.25, "-.250"), (1.0, "1.000"), (2.04, "2.040"), (None, "–")]
)
def test_figures_are_written_as_in_the_page(value, text) -> None:
    assert tables.figure(value) == text


# ---- made rows -------------------------------------------------------------------------------------------------------


def record(key: str, name: str = WIDE, **values):
    """A parallel question of two parts, answered right in two calls, with its two gold passages in places 1 and 2."""
    return {
        "id": key, "set": name, "turns": 4, "dataset": name, "kind": "parallel", "em": True, "f1": 1.0, "sub_em": True,
        "num_llm_calls": 2, "num_searches": 1, "num_subqueries": 2, "is_split": True, "should_split": True,
        "gold_recall": 1.0, "has_all_gold": True, "stop": "answer", "chance": 0.0, "num_shown": 6, "num_cut": 0,
        "num_parts": 2, "parts_covered": 1.0, "has_first_parts": True, "places": {"1": [1, 2]}, **values,
    }  # fmt: skip


def made(n: int = 10, name: str = WIDE, **values):
    """Some rows. A value that is a list is dealt out in turn."""
    return [
        record(f"q{at}", name, **{key: one[at % len(one)] if isinstance(one, tuple) else one for key, one in values.items()})
        for at in range(n)
    ]  # fmt: skip


def row_of_table(table: str, *cells: str) -> list[str]:
    """The one line of a table that has these cells."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]
    (found,) = [line for line in lines if all(cell in line for cell in cells)]
    return found


def goal(kept: Kept, begin: str, arm: str = "parallel-4") -> str:
    (found,) = [one for one in tables.GOALS if one.text.startswith(begin)]
    return tables.judged(found, kept, arm)


def test_an_arm_has_a_line_for_each_subset_it_was_asked() -> None:
    mixed = made(4, DEV, dataset="2wikimultihopqa", kind="mixed", em=(True, False), num_llm_calls=(2, 3), chance=0.5)
    whole = [{"id": "q0", "set": DEV, "dataset": "2wikimultihopqa", "kind": "mixed", "places": {"1": [1]}}]
    whole[0]["shortcut"] = "differs"
    kept = as_kept({"whole-question": whole, "parallel-4": [*mixed, *made(2, "mixed-balanced", kind="mixed")]})
    table = tables.arms_table(kept)
    line = row_of_table(table, "2Wiki-mixed", "parallel-4")
    assert (line[1], line[3], line[5]) == ("4", ".500", "2.50")
    assert line[4].startswith(".500 (")
    assert line[-2:][0] == ".500"
    assert row_of_table(table, "2Wiki-mixed, years differ")[1] == "1"
    assert row_of_table(table, "mixed-balanced")[1] == "2"
    assert "HotpotQA-par" not in table
    assert "years agree" not in table


def test_calls_and_answers_by_number_of_parts() -> None:
    four = {"num_parts": 4}
    files = {
        "parallel-4": made(**four, em=(True, True, True, False)),
        "sequential-3": made(
            **four, em=(True, False), num_llm_calls=5, parts_covered=0.25, stop=("answer", "max_tokens"), num_cut=3
        ),
    }
    kept = as_kept(files)
    line = row_of_table(tables.wide_table(kept), "4 parts", "sequential-3")
    assert (line[1], line[3], line[4]) == ("10", ".250", "5.00")
    assert line[-2:] == [".500", ".500"]  # passages cut, out of room
    pair = row_of_table(tables.pairs_table(kept), "4 parts")
    assert pair[3] == ".400 (.400, .400)"
    assert pair[4].startswith("+.300 (")
    assert "5 parts and more" not in tables.wide_table(kept)
    # Only the questions that both have count.
    few = as_kept({**files, "sequential-3": files["sequential-3"][:4]})
    assert row_of_table(tables.pairs_table(few), "4 parts")[1] == "4"


def test_rows_with_more_rounds_stand_apart() -> None:
    five = {"num_parts": 5}
    kept = as_kept(
        {
            "parallel-4": made(**five),
            "sequential-3": [
                *made(**five, em=False, num_llm_calls=5),
                *made(**five, turns=8, num_llm_calls=6),
            ],
        }
    )
    table = tables.wide_table(kept)
    assert row_of_table(table, "5 parts", "sequential-3, 4 rounds")[4] == "5.00"
    assert row_of_table(table, "5 parts", "sequential-3, 8 rounds")[4] == "6.00"
    assert goal(kept, "EM, 5 parts and more, 4 rounds").startswith("+1.000")
    assert goal(kept, "EM, 5 parts and more, as many").startswith("+.000")
    assert goal(kept, "calls, 5 parts and more, as many").startswith(".333")


def test_a_budget_is_three_passages_a_part() -> None:
    whole = [
        {"id": f"q{at}", "set": WIDE, "dataset": WIDE, "kind": "parallel", "num_parts": 2, "places": {"1": [1, 7]}}
        for at in range(10)
    ]
    kept = as_kept({"whole-question": whole, "parallel-4": made(places=({"1": [1, 6]}, {"1": [1, 7]}))})
    line = row_of_table(tables.wide_budget_table(kept), "2 parts")
    assert line[1:4] == ["10", "6", ".000"]
    assert line[5].startswith(".500, +.500 (")
    assert goal(kept, "all gold, 2 parts").endswith("met, one seed")
    worse = as_kept({"whole-question": whole, "parallel-4": made(places={"1": [1, 7], "2": [1, None]})})
    assert goal(worse, "all gold, 2 parts").endswith("missed, one seed")


def test_gold_of_a_later_round_counts_where_it_is_allowed() -> None:
    line = Line(record("q", places={"1": [1, None], "2": [2, 3]}))
    assert [line.recall(3, rounds) for rounds in (1, 2, 4, 8)] == [0.5, 1.0, 1.0, 1.0]
    assert Line(record("q", places=None)).recall(3, 1) is None


PLACES = st.lists(st.none() | st.integers(1, 15), min_size=2, max_size=2)


@given(PLACES, PLACES, PLACES)
def test_places_that_are_left_out_are_read_again(one, two, four) -> None:
    places = {1: one, 2: two, 4: four}
    line = Line(record("q", places=kept_rows.fewer(places)))
    for rounds, own in places.items():
        assert line.recall(9, rounds) == sum(place is not None and place <= 9 for place in own) / 2


def test_goals_are_judged_by_their_figures() -> None:
    kept = as_kept({"parallel-4": made(20, parts_covered=(1.0,) * 19 + (0.0,))})
    assert goal(kept, "parts covered, 2 parts").endswith("met, one seed")
    kept = as_kept({"parallel-4": made(20, parts_covered=(1.0,) * 18 + (0.0,) * 2)})
    assert goal(kept, "parts covered, 2 parts").startswith(".900 (")
    assert goal(kept, "parts covered, 2 parts").endswith("missed, one seed")
    assert goal(kept, "parts covered, 8 parts") == "–"


def test_not_inferior_is_for_the_interval_to_say() -> None:
    hotpot = {"name": DEV, "dataset": "hotpotqa"}
    same = as_kept({"parallel-1": made(100, **hotpot), "parallel-4": made(100, **hotpot)})
    assert goal(same, "EM, HotpotQA-par").endswith("met, one seed")
    # No difference on average, and too few questions to say so.
    apart = as_kept(
        {
            "parallel-1": made(100, **hotpot, em=(True, False)),
            "parallel-4": made(100, **hotpot, em=(False, True)),
        }
    )
    assert goal(apart, "EM, HotpotQA-par").startswith("+.000 (-")
    assert goal(apart, "EM, HotpotQA-par").endswith("missed, one seed")


def test_the_best_other_arm_is_the_opponent() -> None:
    five = {"n": 200, "num_parts": 5}
    files = {
        "parallel-4": made(**five),
        "sequential-1": made(**five, em=(True, False, False, False)),
        "parallel-2": made(**five),  # is no other arm
        "parallel-1": made(**five, em=(True, False)),
    }
    found = goal(as_kept(files), "EM, 5 parts and more, 4 rounds")
    assert found.startswith("+.500 (")
    assert found.endswith("met, one seed")
    files["parallel-1"] = made(**five, em=(True,) * 19 + (False,))
    assert goal(as_kept(files), "EM, 5 parts and more, 4 rounds").endswith("missed, one seed")


def test_seeds_are_one_arm_and_widen_its_interval() -> None:
    right, half = made(200, num_parts=2), made(200, num_parts=2, em=(True, False))
    one, two = as_kept({"parallel-4": half}), as_kept({"parallel-4.s1": half, "parallel-4.s2": right})
    line = row_of_table(tables.wide_table(two), "2 parts", "parallel-4")
    assert line[6].startswith(".750 (.000, 1.000")  # two seeds that differ so much tell nothing
    narrow = tables.metrics(tables.lines_of(one, "parallel-4", lambda line: True), "em")[0]
    assert narrow is not None
    assert narrow.high - narrow.low < 0.2
    assert "parallel-4: 2 seeds." in tables.wide_table(two)
    assert "One seed" not in tables.wide_table(two)
    assert "One seed, no result: parallel-4." in tables.wide_table(one)
    assert goal(two, "parts covered, 2 parts").endswith("2 seeds")


def test_what_was_tried_has_a_table_of_its_own_and_stands_in_no_other() -> None:
    right, half = made(60, num_parts=2), made(60, num_parts=2, em=(True, False))
    kept = as_kept({"parallel-2.s1": right, "tried/one-pass-parallel.s1": half})
    line = row_of_table(tables.tried_table(kept), "2 to 4 independent parts, made from pages", "60")
    assert line[2:5] == ["1.000", ".500", "-.500 (-.633, -.367)"]
    assert "one-pass" not in tables.wide_table(kept) + tables.brief_table(kept) + tables.goals_table(kept)


def test_sets_with_scores_of_their_own() -> None:
    fan = made(4, "fanoutqa-corpus", kind="mixed", em=False, string_accuracy=(1.0, 0.5))
    traps = made(5, "traps", has_first_parts=(True, True, True, False, False))
    kept = as_kept({"parallel-4": [*fan, *traps]})
    table = tables.others_table(kept)
    line = row_of_table(table, "FanOutQA")
    assert line[5].startswith(".750 (")
    assert line[6].startswith(".500 (")
    assert row_of_table(table, "traps")[4] == "–"  # the corpus does not have the answers
    assert row_of_table(table, "traps")[8].startswith(".600 (")
    assert goal(kept, "decomposition accuracy, traps").endswith("met, one seed")


def test_labelled_parts_are_compared_where_they_are_known() -> None:
    whole = [
        {"id": f"q{at}", "set": DEV, "dataset": "hotpotqa", "kind": "parallel", "places": {"1": [1, 4]}}
        for at in range(10)
    ]
    kept = as_kept(
        {"whole-question": whole, "parts-as-labelled": [{**one, "places": {"1": [1, 2]}} for one in whole[:5]]}
    )
    table = tables.budget_table(kept)
    assert row_of_table(table, "HotpotQA-par", WHOLE)[1:] == ["10", WHOLE, "1", ".000 / .500", *["1.000 / 1.000"] * 3]
    line = row_of_table(table, "HotpotQA-par", LABELLED)
    assert line[1] == "5"
    assert line[4] == "1.000 / 1.000, +1.000 (+1.000, +1.000)"


def test_the_first_screens_have_the_policy_that_ships_beside_its_twin_and_one_query() -> None:
    policy = made(10, num_parts=4, em=(True, True, True, False, False), chance=0.25, places={"1": [1, 8], "2": [1, 2]})
    twin = made(10, num_parts=4, em=(True, False), num_llm_calls=5, turns=9)
    whole = [
        {"id": one["id"], "set": WIDE, "dataset": WIDE, "kind": "parallel", "num_parts": 4, "places": {"1": [1, 12]}}
        for one in policy
    ]
    kept = as_kept({"parallel-4": policy, "sequential-3": twin, "whole-question": whole})
    line = row_of_table(tables.brief_table(kept), "2 to 4 independent parts, made from pages")
    assert line[1:5] == ["10", ".25", ".500", ".600"]
    assert line[6:] == ["**2.00** instead of 5.00", "1.00"]
    found = row_of_table(tables.found_table(kept), "4 independent parts")
    assert found[1:5] == ["10", "1", ".000", "1.000"]  # eight passages
    assert found[6:8] == ["1.000", "1.000"]  # twelve
    assert tables.brief_table(as_kept({"parallel-4": policy})) == tables.NOTHING


def test_wide_questions_by_what_is_wanted_of_the_parts() -> None:
    first = {"type": "first_of", "em": (True, False), "chance": 0.5}
    files = {
        "parallel-4": made(10, **first),
        "sequential-3": [*made(10, **first), *made(10, type="first_of", turns=9, chance=0.5)],
    }
    line = row_of_table(tables.forms_table(as_kept(files)), "which is first")
    assert line[1:3] == ["10", ".500"]
    assert line[3].startswith("1.000 (")  # the twin with the most rounds it was given
    assert line[4].startswith(".500 (")
    assert "which is last" not in tables.forms_table(as_kept(files))


def test_the_plots_need_rows_and_are_drawn(tmp_path) -> None:
    with pytest.raises(UsageError, match="nothing to draw"):
        results.write_plots(tmp_path, as_kept({"parallel-4": made(3, DEV)}))
    files = {"parallel-4": made(), "sequential-3": [*made(num_llm_calls=3), *made(num_llm_calls=3, turns=8)]}
    calls = tables.wide_figures(as_kept(files))[0]
    assert {one.name: one.points for one in calls.series} == {
        "sequential-3": ((2.0, 3.0),),
        "parallel-4": ((2.0, 2.0),),
        "sequential-3, 8 rounds": ((2.0, 3.0),),
    }
    results.write_plots(tmp_path, as_kept(files))
    for name in ("wide.png", "undecided-steps.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_rewards_are_judged_by_what_was_split_and_what_was_left_whole() -> None:
    def asked(splits: int, wrongly: int):
        """Four parallel questions of which so many are split, and eight chains of which so many are, wrongly."""
        whole = {"kind": "sequential", "should_split": False}
        return [
            *(record(f"p{n}", "dependency", is_split=n < splits, has_first_parts=n < splits) for n in range(4)),
            *(record(f"s{n}", "dependency", **whole, is_split=n < wrongly) for n in range(8)),
            *made(4, "questions_with_gold-par", is_split=(True, False)),
        ]

    files = {f"tried/undecided-start.s{seed}": asked(1, 0) for seed in (1, 2)}
    files |= {f"tried/undecided-gated.s{seed}": asked(4, 2) for seed in (1, 2)}
    table = reward_tables.rewards_table(as_kept(files))
    before, after = row_of_table(table, "before RL"), row_of_table(table, "`gated`")
    assert before[1:3] == ["2", ".500"]
    assert (before[4], before[5], before[6].split()[0]) == (".250", "1.000", ".625")
    assert (after[4], after[5], after[6].split()[0], after[7].split()[0]) == ("1.000", ".750", ".875", "+.250")
    assert "`paper`" not in table
    assert reward_tables.rewards_table(as_kept({})) == tables.NOTHING


def larger_arms() -> dict[str, list]:
    """The arms of the larger base, of two seeds each: on every row of the tables, each arm with another figure."""

    def some(right: int, name: str, n: int = 8, **values):
        return [record(f"{name}{values.get('kind', '')}{values.get('num_parts', '')}{at}", name, **values, em=at < right) for at in range(n)]  # fmt: skip

    def arm(right: int, calls: int, once: int, *, turns: int = 4, dev: bool = False, covered: float = 1.0):
        also = {"num_llm_calls": calls, "turns": turns}
        parallel, seq, mixed = (DEV if dev else f"{DEV}-{ending}" for ending in ("par", "seq", "mixed"))
        whole = {"kind": "sequential", "should_split": False, "is_split": False}
        rows = [
            *(
                one
                for n in (2, 3, 6)
                for one in some(right + (n == 6), WIDE, num_parts=n, parts_covered=covered, **also)
            ),
            *some(right - 1, BALANCED, kind="mixed", **also),
            *(record(f"q{at}", parallel, em=at < right, num_llm_calls=calls) for at in range(8)),
            *(record(f"m{at}", mixed, kind="mixed", em=at < right, num_llm_calls=calls) for at in range(4)),
            *(record(f"s{at}", seq, **whole, em=False, num_subqueries=1 if at < once else 2) for at in range(4)),
            *(record(f"d{at}", "dependency", has_first_parts=at < right, is_split=at < right) for at in range(8)),
            *(record(f"c{at}", "dependency", **{**whole, "is_split": at >= right}) for at in range(8)),
        ]
        if dev:  # the shipped policy was asked more
            rows += [record(f"q{at}", DEV, em=True) for at in range(8, 12)]
            rows += [record(f"{WIDE}2{at}", WIDE, em=True, num_parts=2) for at in range(8, 12)]
        return rows

    twin = [*arm(5, 6, 4, turns=9), *some(0, WIDE, num_parts=2, num_llm_calls=5)]  # with four rounds it has none
    large = [*arm(6, 2, 3), *some(0, WIDE, num_parts=2, turns=9)]  # and with nine, which nobody else had
    arms = {
        "rounds-parallel": large,
        "rounds-sequential": twin,
        "rounds-again": arm(3, 3, 3, covered=0.75),
        "rounds-rl-low": arm(7, 4, 2, covered=0.875),
        "rounds-rl": arm(4, 4, 2),
        "rounds-rl-sequential": [*arm(5, 8, 4, turns=9), *some(0, WIDE, num_parts=2, num_llm_calls=5)],
        "qwen-parallel": arm(3, 5, 0, covered=0.625),
        "small-parallel": arm(2, 3, 1, covered=0.5),
    }
    files = {f"tried/{name}.s{seed}": rows for name, rows in arms.items() for seed in (1, 2)}
    shipped = arm(4, 2, 0, dev=True, covered=0.75)
    works = [
        {"id": f"m{at}", "set": DEV, "kind": "mixed", "shortcut": "agrees" if at < 3 else "differs"} for at in range(4)
    ]
    return {**files, **{f"parallel-3.s{seed}": shipped for seed in (1, 2, 3)}, "whole-question": works}


def begins(cells: list[str]) -> list[str]:
    """Figures without their intervals."""
    return [cell.split()[0] for cell in cells]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # n, chance, larger, twin, difference, calls, by the twin's, parallel-3, difference
        ("2 to 4 parts, made from pages", "16 .000 .750 .625 +.125 2.00 .33 .500 +.250"),
        ("5 to 8 parts", "8 .000 .875 .750 +.125 2.00 .33 .625 +.250"),
        ("two parallel rounds, balanced", "8 .000 .625 .500 +.125 2.00 .33 .375 +.250"),
        ("comparisons (HotpotQA, 2Wiki)", "8 .000 .750 .625 +.125 2.00 .33 .500 +.250"),
        ("2Wiki-mixed", "4 .000 1.000 1.000 +.000 2.00 .33 1.000 +.000"),
        ("2Wiki-mixed, years agree", "3 .000 1.000 1.000 +.000 2.00 .33 1.000 +.000"),
        ("2Wiki-mixed, years differ", "1 .000 1.000 1.000 +.000 2.00 .33 1.000 +.000"),
    ],
)
def test_a_larger_base_is_compared_with_its_twin_and_the_shipped_one(name: str, expected: str) -> None:
    table = base_tables.answers_table(as_kept(larger_arms()))
    assert " ".join(begins(row_of_table(table, name)[1:])) == expected
    assert "demo, parallel" not in table
    assert table.endswith("Seeds: larger base 2, its twin 2, parallel-3 3.")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # n, smaller, larger, difference, with more lessons of two rounds, difference, calls of these two
        ("2 to 4 parts, made from pages", "16 .250 .375 +.125 .750 +.375 5.00 2.00"),
        ("two parallel rounds, balanced", "8 .125 .250 +.125 .625 +.375 5.00 2.00"),
        ("2Wiki-mixed", "4 .500 .750 +.250 1.000 +.250 5.00 2.00"),
    ],
)
def test_more_lessons_of_two_rounds_are_compared_with_fewer(name: str, expected: str) -> None:
    table = base_tables.lessons_table(as_kept(larger_arms()))
    assert " ".join(begins(row_of_table(table, name)[1:])) == expected
    assert table.endswith("Seeds: smaller base, few second rounds 2, larger, few 2, larger base 2.")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # n, before, with RL, difference, of the larger step size, the twin with RL, difference, calls, by the twin's
        ("2 to 4 parts, made from pages", "16 .375 .875 +.500 -.250 .625 +.250 4.00 .50"),
        ("comparisons (HotpotQA, 2Wiki)", "8 .375 .875 +.500 -.250 .625 +.250 4.00 .50"),
    ],
)
def test_rl_is_compared_with_its_start_and_with_rl_of_the_twin(name: str, expected: str) -> None:
    table = base_tables.rl_table(as_kept(larger_arms()))
    assert " ".join(begins(row_of_table(table, name)[1:])) == expected
    assert table.endswith("Seeds: before 2, with RL 2, at 1e-4 2, twin with RL 2.")


def test_what_rl_adds_is_measured_seed_by_seed() -> None:
    """Two starts of .5 and 0 gain .25 each: the spread of the starts is no part of the interval."""

    def run(right: int) -> list:
        return [record(f"{WIDE}{at}", WIDE, num_parts=2, em=at % 4 < right) for at in range(400)]

    files = {
        "rounds-again.s1": run(2),
        "rounds-again.s2": run(0),
        "rounds-rl-low.s1": run(3),
        "rounds-rl-low.s2": run(1),
    }
    kept = as_kept({f"tried/{name}": rows for name, rows in files.items()})
    assert row_of_table(base_tables.rl_table(kept), "2 to 4 parts, made from pages")[4] == "+.250 (+.207, +.293)"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # n, smaller, larger, with more lessons of two rounds, with RL, what that adds, parallel-3, difference
        ("dependency, parallel: decided rightly", "8 .250 .375 .750 .875 +.125 .500 +.250"),
        ("dependency, chains: decided rightly", "8 .250 .375 .750 .875 +.125 .500 +.250"),
        ("2 parts: covered", "8 .500 .625 1.000 .875 -.125 .750 +.250"),
        ("chains (300 drawn): asked in one query", "4 .250 .000 .750 .500 -.250 .000 +.750"),
    ],
)
def test_what_a_larger_base_decides(name: str, expected: str) -> None:
    table = base_tables.splits_table(as_kept(larger_arms()))
    assert " ".join(begins(row_of_table(table, name)[1:])) == expected
    assert {table(as_kept({})) for table in base_tables.TABLES.values()} == {tables.NOTHING}


def test_steps_are_drawn_as_means_of_seeds_and_of_steps_around(tmp_path) -> None:
    path = tmp_path / "steps.json"
    path.write_text(
        '{"gated": {"s1": {"parallel": [0, 0, 0, 0, 1, 1], "sequential": [null, 0.5]},'
        ' "s2": {"parallel": [1, 1, 1, 1, 1, null], "sequential": [null, null]}}}'
    )
    parallel, chains = reward_tables.steps_figures(path)
    assert parallel.series[0].points == ((3.0, 0.6), (8.0, 1.0))
    assert chains.series[0].points == ((3.0, 0.5),)


def test_letters_by_kind_on_the_questions_that_were_asked_both_ways() -> None:
    as_written = made(4, "demo", kind="single", em=(True, False), num_subqueries=(1, 2))
    small = [{**one, "id": f"{one['id']}-small", "set": "demo-small", "em": True} for one in as_written[:3]]
    line = row_of_table(tables.letters_table(as_kept({"parallel-4": [*as_written, *small]})), "single")
    assert line[1:5] == ["3", "parallel-4", ".667", ".667"]  # of three questions, two with one query
    assert [cell.split()[0] for cell in line[5:]] == [".667", "1.000"]
    assert tables.letters_table(as_kept({"parallel-4": as_written})) == tables.NOTHING


def test_by_rounds_who_takes_more_than_the_limit_is_wrong() -> None:
    five = {"num_parts": 5, "em": (True,)}
    files = {
        "parallel-4": made(4, **five, num_searches=(1, 2)),
        "parallel-2": made(4, **five, num_searches=(1,)),
        "tried/sequential-1-round.s1": made(4, num_parts=5, em=(True, False), turns=1),
    }
    table = tables.curve_table(as_kept(files))
    line = row_of_table(table, "5 parts and more")
    assert line[1:3] == ["4", "1"]
    assert [cell.split()[0] for cell in line[3:]] == [".500", "1.000", "+.500", ".500"]
    assert table.count("5 parts and more") == 1, "two rounds were not kept"
    goal = tables._over_best_other(as_kept(files), "parallel-4")
    assert goal is not None
    assert goal.value == pytest.approx(0.5), "trained for one round it is an arm, too"


# ---- keeping ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def rows_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_rows, "ROWS", tmp_path / "rows")
    return tmp_path / "rows"


async def test_kept_rows_say_what_the_run_said(tmp_path, rows_folder) -> None:
    await evaluate("demo-par,demo-seq", "demo", "demo", tmp_path / "run")
    await kept_rows.keep("parallel-4", [tmp_path / "run"], None)
    lines = read_all().policies["parallel-4"][0]
    assert {line.set for line in lines} == {"demo-par", "demo-seq"}
    true = {row.id: row for row in read_rows(tmp_path / "run")}
    again = summarise([replace(line.row, elapsed_s=0.0) for line in lines])
    whole = summarise([true[line.id] for line in lines])
    for name in ("em", "num_llm_calls", "parts_covered", "decomposition_accuracy", "all_gold_ratio", "chance_em"):
        assert again[name] == pytest.approx(whole[name], abs=1e-6), name
    traps = load_questions("traps", limit=3)
    policy = ScriptedPolicy({one.question: [render_turn("x", answer="y")] for one in traps}, name="written")
    await evaluate(traps, policy, "demo", tmp_path / "traps")
    await kept_rows.keep("written", [tmp_path / "traps"], None)
    assert {line.trap for line in read_all().policies["written"][0]} == {"looks_sequential"}


async def test_what_is_kept_is_one_whole_policy(tmp_path, rows_folder) -> None:
    questions = load_questions("demo-par", limit=4)
    settings = EvaluationSettings(limits=Limits(max_turns=2))
    await evaluate(questions, "demo", "demo", tmp_path / "four")
    await evaluate(questions, "demo", "demo", tmp_path / "two", settings)
    await kept_rows.keep("a", [tmp_path / "four", tmp_path / "two"], None)
    assert {line.turns for line in read_all().policies["a"][0]} == {2, 4}
    with pytest.raises(UsageError, match="same limits"):
        await kept_rows.keep("a", [tmp_path / "four", tmp_path / "four"], None)
    with pytest.raises(UsageError, match="arm without a model"):
        await kept_rows.keep("whole-question", [tmp_path / "four"], None)
    # Another set joins with --add, and replaces the file without.
    await evaluate(load_questions("demo-seq", limit=3), "demo", "demo", tmp_path / "chains")
    await kept_rows.keep("a", [tmp_path / "chains"], None, adds=True)
    assert len(read_records("a")) == 11
    await kept_rows.keep("a", [tmp_path / "chains"], None)
    assert len(read_records("a")) == 3
    failing = EvaluationSettings(max_failures_in_a_row=None)  # the demo policy has no turns for these
    await evaluate(load_questions("traps", limit=3), "demo", "demo", tmp_path / "traps", failing)
    with pytest.raises(UsageError, match=r"3 questions that failed.*--retry-failures"):
        await kept_rows.keep("a", [tmp_path / "traps"], None)
    record_file = tmp_path / "chains" / "trajectories.jsonl"
    record_file.write_text("".join(record_file.read_text().splitlines(keepends=True)[:2]))
    with pytest.raises(UsageError, match="not finished: 2 of 3"):
        await kept_rows.keep("a", [tmp_path / "chains"], None)
    manifest = tmp_path / "two" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"temperature": 0.0', '"temperature": 1.0'))
    with pytest.raises(UsageError, match="not runs of one policy"):
        await kept_rows.keep("a", [tmp_path / "four", tmp_path / "two"], None)


def test_what_is_wrong_is_said_in_a_line(tmp_path, capsys) -> None:
    assert results.main(["keep", "a", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: ")
