"""Intervals and tests, checked against what is known exactly: scipy's binomial test, normal theory, coverage by simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallelsearch.errors import UsageError
from parallelsearch.evaluation.statistics import (
    Ratio,
    bootstrap,
    holm,
    intervals,
    mcnemar,
    mean_of,
    paired_test,
    permutation_test,
    wilson,
)


def test_the_interval_of_a_mean_is_the_one_of_normal_theory() -> None:
    values = np.random.default_rng(3).random(2000) < 0.4
    low, high = bootstrap({"em": mean_of(values.tolist())}, num_resamples=4000)["em"] or (0, 0)
    mean, error = values.mean(), math.sqrt(values.mean() * (1 - values.mean()) / len(values))
    assert low == pytest.approx(mean - 1.96 * error, abs=0.002)
    assert high == pytest.approx(mean + 1.96 * error, abs=0.002)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    draw = np.random.default_rng(5)
    hits = 0
    for number in range(200):
        interval = bootstrap({"em": mean_of((draw.random(150) < 0.3).tolist())}, num_resamples=300, seed=number)["em"]
        assert interval is not None
        hits += interval[0] <= 0.3 <= interval[1]
    assert 0.88 <= hits / 200 <= 0.99


@pytest.mark.parametrize("num_right", [0, 1, 4])
def test_wilsons_interval_is_that_of_scipy(num_right: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    expected = stats.binomtest(num_right, 4).proportion_ci(method="wilson")
    assert wilson(num_right, 4) == pytest.approx((expected.low, expected.high), abs=1e-4)


def test_a_share_whose_questions_are_all_alike_is_not_certain() -> None:
    always, never, calls = mean_of([True] * 4), mean_of([False, None] * 2), mean_of([1] * 4)
    found = intervals({"always": always, "never": never, "calls": calls}, num_resamples=50)
    assert found["always"] == wilson(4, 4) == pytest.approx((0.51, 1.0), abs=0.001)
    assert found["never"] == wilson(0, 2)
    assert found["calls"] == (1.0, 1.0)  # a number of calls is no share


def test_one_seed_is_one_answer_and_metrics_do_not_disturb_each_other() -> None:
    a, b = mean_of([0, 1, 1, 0, 1] * 20), mean_of([3.0, 4.0, None, 5.0, 6.0] * 20)
    alone = bootstrap({"a": a}, num_resamples=200, seed=7)
    both = bootstrap({"a": a, "b": b}, num_resamples=200, seed=7)
    assert both["a"] == alone["a"]
    assert bootstrap({"a": a}, num_resamples=200, seed=8) != alone


def test_values_that_are_unknown_are_left_out_of_the_mean_and_all_unknown_is_none() -> None:
    ratio = mean_of([None, 2.0, 4.0])
    assert ratio.value == 3.0
    nothing = mean_of([None, None])
    assert nothing.value is None
    assert bootstrap({"x": nothing}) == {"x": None}
    assert bootstrap({}) == {}


def test_a_ratio_of_counts_gets_its_interval_from_whole_questions() -> None:
    split = np.array([1.0] * 50 + [0.0] * 50)
    should = np.array([1.0] * 40 + [0.0] * 10 + [1.0] * 20 + [0.0] * 30)
    precision = Ratio(split * should, split)
    assert precision.value == 0.8
    low, high = bootstrap({"p": precision})["p"] or (0, 0)
    assert 0.66 < low < 0.75
    assert 0.85 < high < 0.93


@pytest.mark.parametrize(("a", "b"), [(0, 0), (3, 3), (10, 25), (0, 9), (1, 40), (3000, 3200)])
def test_mcnemar_is_the_exact_binomial_test(a: int, b: int) -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    expected = scipy_stats.binomtest(a, a + b, 0.5).pvalue if a + b else 1.0
    assert mcnemar(a, b) == pytest.approx(expected, rel=1e-6)
    assert mcnemar(b, a) == mcnemar(a, b)


def test_the_permutation_test_agrees_with_counting_all_sign_flips() -> None:
    differences = [0.5, -0.2, 0.9, 0.4, 0.0, 0.3, -0.1]
    values = [value for value in differences if value]
    observed = abs(sum(values))
    flips = [
        abs(sum(value if number >> bit & 1 else -value for bit, value in enumerate(values))) >= observed - 1e-9
        for number in range(2 ** len(values))
    ]
    assert permutation_test(differences, num_resamples=40_000) == pytest.approx(sum(flips) / len(flips), abs=0.01)
    assert permutation_test([0.0, 0.0]) == 1.0


def test_a_paired_test_of_right_and_wrong_answers() -> None:
    a = [1] * 50 + [0] * 30 + [1] * 5 + [0] * 15
    b = [1] * 50 + [1] * 30 + [0] * 5 + [0] * 15
    result = paired_test(a, b)
    assert result.num_pairs == 100
    assert result.difference == pytest.approx(0.25)
    assert (result.num_only_a, result.num_only_b) == (5, 30)
    assert 0.13 < result.low < 0.17
    assert 0.33 < result.high < 0.37
    assert result.p_mcnemar == mcnemar(5, 30)
    assert result.p_value == pytest.approx(result.p_mcnemar or 0, abs=5e-4)


def test_times_have_no_mcnemar() -> None:
    result = paired_test([1.5, 2.0, 3.0], [1.0, 1.0, 1.0])
    assert result.p_mcnemar is None
    assert result.difference == pytest.approx(-7 / 6)


def test_a_run_against_itself_is_no_difference() -> None:
    result = paired_test([0, 1, 1], [0, 1, 1])
    assert (result.difference, result.low, result.high, result.p_value, result.p_mcnemar) == (0, 0, 0, 1, 1)


def test_wrong_use_is_named() -> None:
    with pytest.raises(UsageError, match=r"\(2,\) and \(3,\)"):
        paired_test([1, 2], [1, 2, 3])
    with pytest.raises(UsageError, match="lengths"):
        bootstrap({"a": mean_of([1.0]), "b": mean_of([1.0, 2.0])})
    with pytest.raises(UsageError, match="level"):
        bootstrap({"a": mean_of([1.0])}, level=2)


def test_holm_on_a_known_example() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_never_lowers_a_p_value_and_keeps_the_order(values: list[float]) -> None:
    adjusted = holm(values)
    assert all(new >= old - 1e-12 and new <= 1 for new, old in zip(adjusted, values, strict=True))
    order = sorted(range(len(values)), key=values.__getitem__)
    assert all(adjusted[a] <= adjusted[b] for a, b in itertools.pairwise(order))
