"""Groups of seeds: the interval holds what it promises on simulated seeds, and one seed is no result."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from parallelsearch.data import demo_questions
from parallelsearch.errors import UsageError
from parallelsearch.evaluation import compare, compare_groups
from parallelsearch.evaluation.report import write_group_comparison
from parallelsearch.evaluation.run import run_answers
from parallelsearch.evaluation.seeds import NO_RESULT, group_test, t_quantile, t_tails, welch
from parallelsearch.evaluation.statistics import Ratio, mean_of, paired_test

stats = pytest.importorskip("scipy.stats")


def means(values: np.ndarray) -> list[Ratio]:
    return [mean_of(row.tolist()) for row in values]


def simulated(draw: np.random.Generator, num_seeds: int, num_questions: int, shift: float, spread: float):
    """Right or wrong by seed and question: questions are easy or hard for all, a seed is a little better or worse."""
    ease = draw.beta(2, 2, num_questions) * 0.6 + 0.2
    groups = []
    for mean in (0.0, shift):
        seeds = draw.normal(mean, spread, num_seeds)
        groups.append((draw.random((num_seeds, num_questions)) < ease + seeds[:, None]).astype(float))
    return groups


@pytest.mark.parametrize(("num_seeds", "spread"), [(2, 0.04), (3, 0.04), (3, 0.0)])
def test_the_interval_covers_the_truth_about_as_often_as_it_says(num_seeds: int, spread: float) -> None:
    draw = np.random.default_rng(num_seeds * 100 + round(1000 * spread))
    num_hits, num_trials = 0, 150
    for number in range(num_trials):
        a, b = simulated(draw, num_seeds, 120, 0.05, spread)
        found = group_test(means(a), means(b), num_resamples=200, seed=number)
        num_hits += found.low <= 0.05 <= found.high
    assert 0.92 <= num_hits / num_trials <= 1.0


def test_an_interval_over_questions_alone_does_not() -> None:
    """Why seeds are resampled: with one run of each it misses the truth far more often than one time in twenty."""
    draw = np.random.default_rng(8)
    num_hits = 0
    for number in range(200):
        a, b = simulated(draw, 1, 400, 0.0, 0.05)
        found = paired_test(a[0], b[0], num_resamples=200, seed=number)
        num_hits += found.low <= 0 <= found.high
    assert num_hits / 200 < 0.8


def test_without_any_spread_of_seeds_it_is_near_the_interval_over_questions() -> None:
    draw = np.random.default_rng(3)
    one_a, one_b = draw.random(500) < 0.4, draw.random(500) < 0.5
    found = group_test(means(np.tile(one_a, (3, 1))), means(np.tile(one_b, (3, 1))), num_resamples=4000)
    plain = paired_test(one_a, one_b, num_resamples=4000)
    assert found.difference == pytest.approx(plain.difference)
    assert (found.low, found.high) == pytest.approx((plain.low, plain.high), abs=0.006)


def test_one_seed_is_no_result_however_large_the_difference() -> None:
    a, b = means(np.zeros((1, 50))), means(np.ones((1, 50)))
    found = group_test(a, b)
    assert (found.difference, found.verdict) == (1.0, NO_RESULT)
    assert (found.p_seeds, found.p_exchanged, found.p_least) == (None, None, None)
    assert group_test(a, means(np.ones((3, 50)))).verdict == NO_RESULT


def test_several_seeds_are_told_apart_or_not() -> None:
    draw = np.random.default_rng(4)
    a, b = simulated(draw, 3, 800, 0.2, 0.01)
    found = group_test(means(a), means(b))
    assert found.verdict == "differ"
    assert (found.p_exchanged, found.p_least) == (0.1, 0.1)
    a, b = simulated(draw, 3, 100, 0.0, 0.03)
    assert group_test(means(a), means(b)).verdict == "not told apart"


def test_ratios_are_summed_before_they_are_divided() -> None:
    top, bottom = np.array([1.0, 0.0, 1.0, 0.0]), np.array([1.0, 1.0, 1.0, 0.0])
    found = group_test([Ratio(top, bottom)] * 2, [Ratio(bottom, bottom)] * 2)
    assert found.values_a == pytest.approx((2 / 3, 2 / 3))
    assert found.difference == pytest.approx(1 / 3)
    assert group_test([Ratio(top, bottom)] * 2, [Ratio(top, 0 * bottom)] * 2) is None


@pytest.mark.parametrize("freedom", [1, 2, 3.7, 4, 10, 100, 3000.5])
def test_students_t_is_that_of_scipy(freedom: float) -> None:
    for value in (0.0, 0.3, 1.0, 2.5, 12.0):
        assert t_tails(value, freedom) == pytest.approx(2 * stats.t.sf(value, freedom), rel=1e-9)
    assert t_quantile(0.975, freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-9)


def test_welchs_test_is_that_of_scipy() -> None:
    a, b = [0.66, 0.68, 0.671], [0.79, 0.75, 0.80, 0.81]
    assert welch(a, b) == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)
    assert (welch([1, 1], [1, 1]), welch([1, 1], [2, 2]), welch([1], [2, 2])) == (1.0, 0.0, None)


# ---- groups of run folders -------------------------------------------------------------------------------------------

QUESTIONS = demo_questions()[:30]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three seeds of two ways: the second is right on more questions, and not on the same number each time."""
    folder = tmp_path_factory.mktemp("runs")
    made = {}
    for name, num_right in {"a1": 9, "a2": 10, "a3": 11, "c1": 21, "c2": 22, "c3": 24}.items():
        answers = folder / f"{name}.jsonl"
        said = [q.golden_answers[0] if number < num_right else name for number, q in enumerate(QUESTIONS)]
        lines = [json.dumps({"id": q.id, "answer": text}) for q, text in zip(QUESTIONS, said, strict=True)]
        answers.write_text("\n".join(lines))
        made[name] = folder / name
        run_answers(QUESTIONS, answers, made[name], num_resamples=20)
    return made


def test_groups_of_runs_are_compared_by_questions_and_seeds(runs: dict[str, Path], tmp_path: Path) -> None:
    found = compare_groups([[runs[f"a{n}"] for n in (1, 2, 3)], [runs[f"c{n}"] for n in (1, 2, 3)]], num_resamples=300)
    assert found.groups == {"a": ["a1", "a2", "a3"], "c": ["c1", "c2", "c3"]}
    em = next(test.result for test in found.tests if (test.subset, test.metric) == ("demo", "em"))
    assert em.values_a == pytest.approx((9 / 30, 10 / 30, 11 / 30))
    assert em.difference == pytest.approx((67 - 30) / 90)
    assert em.low < em.difference < em.high
    assert em.verdict == "differ"
    page = write_group_comparison(found, tmp_path).read_text()
    assert "a1, a2, a3" in page
    assert "differ" in page


def test_one_run_a_side_is_said_to_be_no_result(runs: dict[str, Path]) -> None:
    found = compare_groups([[runs["a1"]], [runs["c1"], runs["c2"]]], num_resamples=50)
    assert {test.result.verdict for test in found.tests} == {NO_RESULT}
    assert any("a1 has one seed" in warning for warning in found.warnings)
    assert any("training seed" in warning for warning in compare([runs["a1"], runs["c1"]]).warnings)


def test_the_same_run_twice_is_not_two_seeds(runs: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match="one run twice"):
        compare_groups([[runs["a1"], runs["a1"]], [runs["c1"]]])
    with pytest.raises(UsageError, match="at least two"):
        compare_groups([[runs["a1"]], []])
