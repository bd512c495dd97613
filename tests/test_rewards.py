import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallelsearch.errors import UsageError
from parallelsearch.grammar import render_turn
from parallelsearch.retrieval.base import Hit
from parallelsearch.rewards import PRESETS, Weights, facts, reward
from parallelsearch.trajectory import Query, Segment, Trajectory, derive_turns

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
