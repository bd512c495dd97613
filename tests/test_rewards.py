import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallelsearch.errors import UsageError
from parallelsearch.grammar import render_turn
from parallelsearch.retrieval.base import Hit
from parallelsearch.rewards import COMPONENTS, PARTS, PRESETS, Weights, facts, reward
from parallelsearch.training.recipe import RewardSettings
from parallelsearch.trajectory import KINDS, NEEDS, Query, Question, QuestionPart, Segment, Trajectory, derive_turns

# Computed once with the released reward function on made trajectories (valid format, lambda_d .15, alpha 3, lambda_s .35,
# lambda_f .1): kind, first search split, right, then the total for n = 0, 1, ... 5 searches.
REFERENCE_TABLE = [
    ("parallel", True, True, [None, 1.80, 1.45, 1.10, 0.75, 0.40]),
    ("parallel", True, False, [None, 0.90, 0.55, 0.20, -0.15, -0.50]),
    ("parallel", False, True, [1.00, 1.35, 1.00, 0.65, 0.30, -0.05]),
    ("parallel", False, False, [0.10, 0.45, 0.10, -0.25, -0.60, -0.95]),
    ("sequential", False, True, [0.80, 1.15, 1.50, 1.50, 1.50, 1.50]),
    ("sequential", False, False, [-0.10, 0.25, 0.60, 0.60, 0.60, 0.60]),
    ("sequential", True, True, [None, 1.00, 1.35, 1.35, 1.35, 1.35]),
    ("sequential", True, False, [None, 0.10, 0.45, 0.45, 0.45, 0.45]),
    ("single", False, True, [1.15, 1.50, 1.15, 0.80, 0.45, 0.10]),
    ("single", False, False, [0.25, 0.60, 0.25, -0.10, -0.45, -0.80]),
    ("single", True, True, [None, 1.35, 1.00, 0.65, 0.30, -0.05]),
    ("single", True, False, [None, 0.45, 0.10, -0.25, -0.60, -0.95]),
]
CELLS = [
    (kind, split, right, n, value)
    for kind, split, right, row in REFERENCE_TABLE
    for n, value in enumerate(row)
    if value is not None
]


def made(kind, searches, answer="gold", thought="t", tail="", limits=None):
    """A trajectory with the given searches (each a list of sub-queries, or the raw content as a string)."""
    segments = [Segment("prompt", "p")]
    for queries in searches:
        if isinstance(queries, str):
            text = f"<think> {thought} </think><search> {queries} </search>"
        else:
            text = render_turn(thought, queries=queries)
        segments += [Segment("model", text), Segment("search", "<information> i </information>")]
    if answer is not None:
        segments.append(Segment("model", render_turn(thought, answer=answer) + tail))
    trajectory = Trajectory("q", segments, ["gold"], kind=kind, limits=limits)
    derive_turns(trajectory)
    return trajectory


def searches(n, split):
    return [["a", "b"] if split and i == 0 else [f"q{i}"] for i in range(n)]


@pytest.mark.parametrize(("kind", "split", "right", "n", "value"), CELLS)
def test_every_cell_of_the_released_code_s_table(kind, split, right, n, value):
    trajectory = made(kind, searches(n, split), "gold" if right else "other")
    assert reward(trajectory, "reference").total == pytest.approx(value)
    assert reward(trajectory, "paper").total == pytest.approx(value - 0.35)


@pytest.mark.parametrize(("kind", "split", "right", "n", "value"), CELLS)
def test_an_invalid_format_costs_a_tenth_in_the_released_code(kind, split, right, n, value):
    trajectory = made(kind, searches(n, split), "gold" if right else "other", tail=" trailing text")
    assert reward(trajectory, "reference").total == pytest.approx(value - 0.10)


def test_the_reference_pays_for_a_separator_alone_and_ours_do_not():
    for content in ("a ## a", "a ## "):
        trajectory = made("parallel", [content])
        assert reward(trajectory, "reference").decomposition == pytest.approx(0.45)
        assert reward(trajectory, "paper").decomposition == 0
        assert reward(trajectory, "gated").decomposition == 0
        chain = made("sequential", [content, ["b"]])
        assert reward(chain, "gated").decomposition == 0


def test_the_defect_that_gated_mends():
    wrong_split = made("parallel", [["a", "b"]], answer="other")
    right_slow = made("parallel", searches(3, False))
    assert reward(wrong_split, "reference").total > reward(right_slow, "reference").total
    assert reward(wrong_split, "gated").total < reward(right_slow, "gated").total
    assert reward(wrong_split, "label-free").total < reward(right_slow, "label-free").total


rounds = st.lists(
    st.one_of(
        st.lists(st.sampled_from("abcdef"), min_size=1, max_size=5, unique=True),
        st.sampled_from(["a ## a", "a ##", "b"]),
    ),
    max_size=6,
)
kinds = st.sampled_from(["parallel", "sequential", "single", "mixed"])


@given(kinds, rounds, rounds, st.booleans(), st.booleans())
@settings(max_examples=300)
def test_no_wrong_answer_ever_outscores_a_right_one(kind, of_right, of_wrong, right_is_messy, has_answer):
    right = made(kind, of_right, tail=" x" if right_is_messy else "")
    wrong = made(kind, of_wrong, answer="other" if has_answer else None)
    for preset in ("gated", "label-free"):
        assert reward(wrong, preset).total < reward(right, preset).total
    assert 1.0 <= reward(right, "gated").total <= 1.4 + 1e-9
    assert 0.0 <= reward(wrong, "gated").total <= 0.4 + 1e-9
    assert reward(wrong, "label-free").total <= 0


@given(kinds, rounds, st.booleans(), st.sampled_from(PRESETS))
def test_the_components_add_up(kind, of, right, preset):
    value = reward(made(kind, of, "gold" if right else "other"), preset)
    assert value.total == pytest.approx(value.outcome + value.decomposition + value.search_count + value.format)
    assert value.to_dict()["total"] == pytest.approx(value.total)


@pytest.mark.parametrize(
    ("kind", "best", "worse"),
    [
        ("parallel", [["a", "b"]], [["a"], ["b"]]),
        ("sequential", [["a"], ["b"]], [["a", "b"]]),
        ("single", [["a"]], [["a"], ["b"]]),
        ("mixed", [["a", "b"], ["c", "d"]], [["a"], ["b"], ["c"], ["d"]]),
    ],
)
def test_gated_prefers_the_shape_the_kind_asks_for(kind, best, worse):
    assert reward(made(kind, best), "gated").total == pytest.approx(1.4)
    assert reward(made(kind, worse), "gated").total < 1.4


def test_gated_more_rounds_on_a_chain_cost_a_little():
    values = [reward(made("sequential", searches(n, False)), "gated").total for n in (1, 2, 3, 4)]
    assert values[1] > values[2] > values[3] > values[0]


def test_label_free_pays_for_fewer_rounds_and_not_for_none():
    values = [reward(made(None, searches(n, False)), "label-free").total for n in range(5)]
    assert values[0] == 1.0
    assert values[1:] == sorted(values[1:], reverse=True)
    assert values[1] == pytest.approx(1.3)
    assert values[4] == pytest.approx(1.0)
    assert reward(made(None, searches(2, False), limits={"max_turns": 1}), "label-free").total == pytest.approx(1.0)


def test_label_free_charges_for_sub_queries_that_bring_nothing_new():
    trajectory = made(None, [["a", "b", "c"]])
    hit = Hit("same", "t", "x")
    trajectory.turns[0].queries = [Query("a", [hit]), Query("b", [hit]), Query("c", error="down")]
    assert reward(trajectory, "label-free").decomposition == pytest.approx(-0.02)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("kind", ["parallel", "sequential", "single", "mixed"])
def test_a_failing_search_engine_never_costs_the_policy(kind, preset):
    healthy = made(kind, [["a", "b"]])
    repeated = made(kind, [["a", "b"], ["a", "b"]])
    repeated.turns[0].queries = [Query("a", error="down"), Query("b", error="down")]
    assert reward(repeated, preset).search_count >= reward(healthy, preset).search_count


def test_a_search_in_the_forced_last_turn_does_not_count():
    trajectory = made("parallel", [["a", "b"]], answer=None)
    trajectory.segments += [Segment("notice", "answer now"), Segment("model", render_turn("t", queries=["c"]))]
    derive_turns(trajectory)
    assert facts(trajectory).num_rounds == 1
    assert reward(trajectory, "paper").search_count == 0


def test_a_tag_inside_a_thought_does_not_count():
    trajectory = made("parallel", [["a", "b"]])
    trajectory.segments[-1].text = "<think> maybe <search> z </search> </think><answer> gold </answer>"
    derive_turns(trajectory)
    assert facts(trajectory).num_rounds == 1
    assert not facts(trajectory).is_well_formed


def test_mixed_counts_as_sequential_in_the_paper():
    for n in range(4):
        assert reward(made("mixed", searches(n, False)), "paper") == reward(
            made("sequential", searches(n, False)), "paper"
        )


@pytest.mark.parametrize("preset", ["paper", "reference", "gated"])
def test_a_missing_kind_names_the_preset_that_needs_none(preset):
    with pytest.raises(UsageError, match="label-free"):
        reward(made(None, [["a"]]), preset)


def test_an_unknown_preset_names_the_nearest():
    with pytest.raises(UsageError, match="Did you mean 'gated'"):
        reward(made("parallel", []), "gate")


def test_weights_are_checked():
    with pytest.raises(UsageError, match="search_count"):
        Weights(search_count=-1)


def test_an_empty_trajectory_scores():
    trajectory = Trajectory("q", [Segment("prompt", "p")], ["gold"], kind="parallel")
    assert reward(trajectory, "gated").total == 0


def test_one_sub_query_a_turn_is_no_split_whatever_was_written():
    """With `max_subqueries` at 1 only the first of two is asked: the record and the reward say the same."""
    limits = {"max_subqueries": 1}
    one = made("parallel", [["a", "b"]], limits=limits)
    assert [query.text for query in one.queries] == ["a"]
    assert not one.is_split
    assert not facts(one).is_decomposed
    assert facts(one).has_separator
    assert reward(one, "paper").decomposition == 0
    assert reward(one, "gated").decomposition == 0
    assert reward(made("parallel", [["a", "b"]]), "paper").decomposition == pytest.approx(0.45)


def test_a_failed_policy_is_not_right_whatever_it_had_written():
    trajectory = made("parallel", searches(1, True))
    assert trajectory.is_right
    trajectory.stop = "error"
    assert not trajectory.is_right
    assert reward(trajectory, "paper").outcome == 0


def test_the_parts_of_a_reward_are_its_fields_and_their_sum():
    value = reward(made("parallel", searches(1, True)), "paper")
    assert tuple(value.to_dict()) == PARTS == (*COMPONENTS, "total")
    assert value.to_dict()["total"] == pytest.approx(sum(getattr(value, name) for name in COMPONENTS))


def test_every_kind_says_what_it_needs():
    assert tuple(NEEDS) == KINDS
    assert {kind: NEEDS[kind].num_rounds for kind in KINDS} == {
        "parallel": 1,
        "sequential": 2,
        "single": 1,
        "mixed": 2,
    }


# ---- coverage, and evidence ------------------------------------------------------------------------------------------

NAMES = ("Ada Brenn", "Carl Dorn", "Vera Lind", "Nils Berg")


def searched(kind, rounds, answer="gold", pages=None, **known):
    """A trajectory whose query for a name finds the page of that name, and the query `?` a page of nobody; `pages` are
    found by a query that names none of them."""
    trajectory = made(kind, rounds, answer)
    for turn in trajectory.rounds:
        for query in turn.queries:
            titles = [name for name in NAMES if name in query.text] or (pages or {}).get(query.text, ["Nobody"])
            query.hits = [Hit(f"id-{title}-{query.text}", title, "text") for title in titles]
    for name, value in known.items():
        setattr(trajectory, name, value)
    return trajectory


def parts(*names, rounds=()):
    return [QuestionPart([name], dict(rounds).get(name, 1)) for name in names]


def quality(trajectory):
    return reward(trajectory, "coverage").decomposition / 0.2


def test_coverage_pays_for_each_part_and_not_for_two_strings():
    four = parts(*NAMES)
    assert quality(searched("parallel", [[*NAMES]], parts=four)) == pytest.approx(1)
    assert quality(searched("parallel", [[*NAMES[:2]]], parts=four)) == pytest.approx(0.5)  # two dropped
    assert quality(searched("parallel", [["x y", "y z"]], parts=four)) == 0  # any two strings
    assert quality(searched("parallel", [[" ".join(NAMES)]], parts=four)) == 0  # all in one query
    doubled = [*NAMES, "Ada Brenn born", "Carl Dorn born"]
    assert quality(searched("parallel", [doubled], parts=four)) == pytest.approx(4 / 6)
    one_by_one = [[name] for name in NAMES]
    assert quality(searched("parallel", one_by_one, parts=four)) < 0.5


@pytest.mark.parametrize("answer", ["gold", "wrong"])
def test_who_finds_nothing_is_not_paid_for_finding(answer):
    """BM25 has no hits for words that stand nowhere: to write such must not pay more than to find other pages."""
    gold = {"supporting_titles": list(NAMES[:2]), "search": {"kind": "bm25"}}
    nothing = searched("parallel", [["zzqq", "xxyy"]], answer, **gold)
    for query in nothing.queries:
        query.hits = []
    others = searched("parallel", [["zzqq", "xxyy"]], answer, **gold)
    assert reward(nothing, "coverage").decomposition == 0
    assert reward(nothing, "label-free").total <= reward(others, "label-free").total
    nothing.search = None  # a record written by hand does not say what was found
    assert reward(nothing, "coverage").decomposition > 0


def test_coverage_does_not_charge_for_what_failed():
    two = parts(*NAMES[:2])
    clean = searched("parallel", [[*NAMES[:2]]], parts=two)
    again = searched("parallel", [[*NAMES[:2]], [*NAMES[:2]]], parts=two)
    for query in again.rounds[0].queries:
        query.error, query.hits = "down", []
    assert reward(again, "coverage").total == pytest.approx(reward(clean, "coverage").total)
    one = searched("parallel", [[*NAMES[:2]], [NAMES[1]]], parts=two)
    one.rounds[0].queries[1].error = "down"
    assert quality(one) == pytest.approx(1)
    twice = searched("parallel", [[*NAMES[:2]], [NAMES[1]]], parts=two)
    assert quality(twice) < 1  # it had not failed


def test_coverage_of_parts_that_come_after_a_first_step():
    of_two_rounds = parts(*NAMES, rounds=[(NAMES[2], 2), (NAMES[3], 2)])
    asked = searched("mixed", [[*NAMES[:2]], [*NAMES[2:]]], parts=of_two_rounds)
    assert reward(asked, "coverage").total == pytest.approx(1.4)
    early = searched("mixed", [[*NAMES]], parts=of_two_rounds)
    assert quality(early) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "known",
    [
        {"supporting_titles": list(NAMES[:2])},
        {"gold_passage_ids": {name: [f"id-{name}-{name}", "other"] for name in NAMES[:2]}},
    ],
)
def test_without_parts_a_gold_page_is_a_part_and_a_query_covers_one(known):
    assert quality(searched("parallel", [[*NAMES[:2]]], **known)) == pytest.approx(1)
    assert quality(searched("parallel", [[NAMES[0]]], **known)) == pytest.approx(0.5)
    both = {"both at once": list(NAMES[:2])}
    if "supporting_titles" in known:
        assert quality(searched("parallel", [["both at once"]], pages=both, **known)) == pytest.approx(0.5)
    assert quality(searched("parallel", [[*NAMES[:2], "?"]], **known)) == pytest.approx(2 / 3)
    assert quality(searched("parallel", [[NAMES[0]], [NAMES[1]]], **known)) == pytest.approx(0.5)
    assert quality(searched("sequential", [[NAMES[0]], [NAMES[1]]], **known)) == pytest.approx(1)
    assert quality(searched("sequential", [[*NAMES[:2]]], **known)) == 0


def test_with_neither_coverage_is_as_gated():
    for kind in KINDS:
        for rounds_of in ([["a", "b"]], [["a"], ["b"]], []):
            trajectory = made(kind, rounds_of)
            assert reward(trajectory, "coverage") == reward(trajectory, "gated")


names_of_rounds = st.lists(
    st.lists(st.sampled_from([*NAMES, "?", "x"]), min_size=1, max_size=5, unique=True), max_size=4
)


@given(kinds, names_of_rounds, names_of_rounds, st.booleans())
@settings(max_examples=150)
def test_evidence_and_coverage_never_lift_a_wrong_answer_above_a_right_one(kind, of_right, of_wrong, has_parts):
    known = {"supporting_titles": list(NAMES), "parts": parts(*NAMES) if has_parts else None}
    right, wrong = searched(kind, of_right, **known), searched(kind, of_wrong, "other", **known)
    for preset in ("coverage", "label-free"):
        assert reward(wrong, preset).total < reward(right, preset).total
    assert 0.0 <= quality(right) <= 1.0 + 1e-9


def test_label_free_pays_for_gold_pages_and_less_for_late_ones():
    known = {"supporting_titles": list(NAMES[:2])}
    split = reward(searched(None, [[*NAMES[:2]]], "other", **known), "label-free").total
    in_turn = reward(searched(None, [[NAMES[0]], [NAMES[1]]], "other", **known), "label-free").total
    once = reward(searched(None, [[NAMES[0]]], "other", **known), "label-free").total
    again = reward(searched(None, [[NAMES[0]], [NAMES[0] + " born"]], "other", **known), "label-free").total
    assert (split, in_turn, once) == pytest.approx((0.3, 0.2625, 0.15))
    assert again == once


def expected(kind_of_rounds, right_rate, gold_rates):
    """The expected reward of a behaviour: right or wrong by `right_rate`, each query's page found by its rate."""
    total = 0.0
    for is_right, weight in ((True, right_rate), (False, 1 - right_rate)):
        for found in itertools.product((True, False), repeat=len(gold_rates)):
            chance = math.prod(rate if hit else 1 - rate for rate, hit in zip(gold_rates, found, strict=True))
            lost = {name for name, hit in zip(NAMES, found, strict=False) if not hit}
            trajectory = searched(None, kind_of_rounds, "gold" if is_right else "other")
            trajectory.supporting_titles = list(NAMES[:2])
            for query in trajectory.queries:
                query.hits = [hit for hit in query.hits if hit.title not in lost] or [Hit(query.text, "Nobody", "x")]
            total += weight * chance * reward(trajectory, "label-free").total
    return total


@pytest.mark.parametrize("right_rates", [(0.36, 0.36, 0.36), (0.31, 0.36, 0.36), (0.9, 0.5, 0.9)])
def test_label_free_ranks_split_above_search_once_on_parallel_questions(right_rates):
    """Right as often as a coin, whatever is searched: that is the undecided start (docs/results-history.md), where a reward
    of the outcome alone teaches to search once. Also where splitting costs five points, and for a policy that can read.
    A name's page is among three hits in .92, and in .70 if the whole question is the query (docs/coldstart.md)."""
    split = expected([[*NAMES[:2]]], right_rates[0], (0.92, 0.92))
    once = expected([[" ".join(NAMES[:2])]], right_rates[1], (0.70, 0.70))
    in_turn = expected([[NAMES[0]], [NAMES[1]]], right_rates[2], (0.92, 0.92))
    assert split > in_turn > once if right_rates[0] >= right_rates[2] else split > once


@pytest.mark.parametrize("right_rates", [(0.055, 0.095, 0.080), (0.3, 0.6, 0.3)])
def test_label_free_ranks_a_chain_above_a_split_on_sequential_questions(right_rates):
    """A split chain finds its first page only: the second has no name yet. Measured: .055, .095 and .080 right."""
    split = expected([[NAMES[0], "?"]], right_rates[0], (0.92, 0.0))
    chain = expected([[NAMES[0]], [NAMES[1]]], right_rates[1], (0.92, 0.86))
    once = expected([[NAMES[0]]], right_rates[2], (0.92, 0.0))
    assert chain > max(once, split)


def test_the_default_is_that_of_training_and_a_kind_that_there_is_not_is_refused():
    trajectory = made("parallel", [["a", "b"]])
    assert reward(trajectory) == reward(trajectory, RewardSettings().preset) != reward(trajectory, "paper")
    with pytest.raises(UsageError, match=r"kind is one of parallel, sequential, single, mixed, or None, not 'par'"):
        Question("q", kind="par")
