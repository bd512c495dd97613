"""Split and retrieve: the merge by its properties, and the rollout that ends early, with written policies and real BM25."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallelsearch import Agent, Limits, Search
from parallelsearch.data import demo
from parallelsearch.errors import SearchError, UsageError
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.retrieval.base import DegradedHits, Hit, Retriever
from parallelsearch.retrieving import MergedHit, SplitRetriever, merge, retrieve, split, splitting
from parallelsearch.trajectory import Query

OLDER = "Who is older, Claude Monet or Camille Pissarro?"


def ranking(query, names):
    """A sub-query with these passages, best first."""
    return Query(
        query, [Hit(name, name.upper(), f"text of {name}", score=9.0 - n, rank=n) for n, name in enumerate(names, 1)]
    )


def ids(passages):
    return [passage.id for passage in passages]


# ---- the merge -------------------------------------------------------------------------------------------------------


def test_every_part_is_represented_before_any_has_its_second():
    easy, hard = ranking("easy", "abcdef"), ranking("hard", "z")
    assert ids(merge([easy, hard], 4)) == ["a", "z", "b", "c"]
    assert ids(merge([hard, easy], 2)) == ["z", "a"]


def test_a_passage_that_several_found_is_given_once_and_comes_first():
    first, second = ranking("one", "axb"), ranking("two", "xyz")
    found = merge([first, second], 4)
    assert ids(found) == ["x", "a", "y", "b"]  # x is second for "one" and stands in its round for "two"
    assert [(by.query, by.rank, by.score) for by in found[0].found_by] == [("two", 1, 8.0), ("one", 2, 7.0)]
    assert found[0].queries == ("two", "one")


def test_what_is_first_for_two_counts_for_both():
    assert ids(merge([ranking("one", "pab"), ranking("two", "pcd"), ranking("three", "q")], 4)) == ["p", "q", "a", "c"]


def test_the_same_text_under_two_ids_is_one_passage_and_another_text_under_one_id_is_two():
    same = [Hit("a", "T", "the  same text"), Hit("b", "T", "the same text")]
    other = Query("two", [Hit("page", "T", "one piece"), Hit("page", "T", "another piece")])
    found = merge([Query("one", same), other], 9)
    assert [(one.id, one.text) for one in found] == [
        ("a", "the  same text"),
        ("page", "one piece"),
        ("page", "another piece"),
    ]


def test_a_budget_in_tokens_takes_the_next_that_fits():
    long, short = Hit("long", "", "x" * 100), Hit("short", "", "x" * 10)
    parts = [Query("one", [long, short]), Query("two", [Hit("other", "", "y" * 10)])]
    assert ids(merge(parts, 9, max_tokens=50, count_tokens=len)) == ["other", "short"]
    assert merge(parts, 9, max_tokens=5, count_tokens=len) == []
    assert ids(merge(parts, 9)) == ["long", "other", "short"]


def test_wrong_numbers_are_refused():
    for wrong in ({"k": 0}, {"k": 1, "max_tokens": 0, "count_tokens": len}):
        with pytest.raises(UsageError, match="at least 1"):
            merge([], **wrong)
    with pytest.raises(UsageError, match="needs count_tokens"):
        merge([], 1, max_tokens=5)


RANKINGS = st.lists(st.lists(st.sampled_from("abcdefghij"), unique=True, max_size=8), max_size=5)


@given(RANKINGS, st.integers(1, 12))
def test_the_merge_is_fair_whole_and_without_duplicates(rankings, k):
    parts = [ranking(f"q{number}", names) for number, names in enumerate(rankings)]
    found = merge(parts, k)
    everything = {name for names in rankings for name in names}
    assert len(set(ids(found))) == len(found) == min(k, len(everything))
    assert [one.rank for one in found] == list(range(1, len(found) + 1))
    assert all(before.score > after.score for before, after in pairwise(found))
    for one in found:
        assert set(one.queries) == {f"q{number}" for number, names in enumerate(rankings) if one.id in names}
    # However the list is cut: who has two that it alone found implies that nobody who found something has none.
    for cut in range(len(found) + 1):
        shown = set(ids(found[:cut]))
        alone = [
            sum(name in shown and sum(name in other for other in rankings) == 1 for name in names) for names in rankings
        ]
        if any(count >= 2 for count in alone):
            assert all(not names or shown & set(names) for names in rankings)
    # Who asks for less gets the beginning of the same list.
    assert ids(merge(parts, 99))[: len(found)] == ids(found)


@given(RANKINGS, st.randoms(use_true_random=False))
def test_the_order_of_the_parts_decides_between_equals_alone(rankings, random):
    shuffled = list(enumerate(rankings))
    random.shuffle(shuffled)
    one = merge([ranking(f"q{number}", names) for number, names in enumerate(rankings)], 99)
    other = merge([ranking(f"q{number}", names) for number, names in shuffled], 99)
    assert set(one_by_one(one)) == set(one_by_one(other))
    heads = {names[0] for names in rankings if names}
    assert set(ids(one)[: len(heads)]) == set(ids(other)[: len(heads)]) == heads


def one_by_one(passages):
    return [(one.id, one.title, one.text, frozenset(one.found_by)) for one in passages]


@given(RANKINGS, st.dictionaries(st.sampled_from("abcdefghij"), st.integers(1, 30)), st.integers(1, 60))
def test_the_budget_is_never_passed_and_nothing_that_fits_is_left(rankings, sizes, max_tokens):
    def count(text):
        return sizes.get(text[-1], 3)

    found = merge([ranking("q", names) for names in rankings], 99, max_tokens=max_tokens, count_tokens=count)
    used = sum(count(one.text) for one in found)
    assert used <= max_tokens
    left = {name for names in rankings for name in names} - set(ids(found))
    assert all(used + sizes.get(name, 3) > max_tokens for name in left)


# ---- the policy ------------------------------------------------------------------------------------------------------


def two(*turns, question=OLDER):
    """A policy that writes these turns, and breaks where it is asked for one more."""
    return ScriptedPolicy({question: turns})


SPLIT = "<think> Both. </think> <search> When was Claude Monet born? ## When was Camille Pissarro born? </search>"
DONE = "<think> Done. </think> <answer> Pissarro </answer>"


def quick():
    policy = demo.DemoPolicy()
    policy.tokens_per_s = None
    return policy


class Counting(Retriever):
    """The demo corpus; counts what it is asked, and fails where it is told to."""

    name = "counting"

    def __init__(self):
        self.asked, self._inner = [], demo.retriever()

    async def search_many(self, queries, k):
        self.asked += [(query, k) for query in queries]
        results = await self._inner.search_many(queries, k)
        return [
            SearchError("told to fail") if "Pissarro" in q else hits for q, hits in zip(queries, results, strict=True)
        ]


async def test_a_split_is_one_turn_and_searches_nothing():
    found = await split(OLDER, two(SPLIT + " and more that nobody waits for"))
    assert found == ["When was Claude Monet born?", "When was Camille Pissarro born?"]
    assert (found.note, found.error, found.trajectory.num_llm_calls) == (None, None, 1)
    assert found.trajectory.segments[-1].text.endswith("</search>")
    assert not any(query.hits for query in found.trajectory.queries)


@pytest.mark.parametrize(
    ("turn", "word"),
    [
        ("<think> I know. </think> <answer> Pissarro </answer>", "answered without a search"),
        ("no tags at all", "no search that can be read"),
        ("<search>  ## </search>", "no search that can be read"),
    ],
)
async def test_without_a_search_the_question_itself_is_the_query_and_that_is_said(turn, word):
    found = await split(OLDER, two(turn))
    assert (found, found.error) == ([OLDER], None)
    assert word in found.note
    search = Search(demo.retriever())
    fetched = await retrieve(OLDER, two(turn), search, k=3)
    assert [query.text for query in fetched.queries] == [OLDER]
    assert [one.queries for one in fetched.passages] == [(OLDER,)] * 3
    assert word in fetched.notes[0]
    assert not fetched.failures
    await search.aclose()


async def test_a_policy_that_fails_costs_the_split_and_not_the_passages():
    search = Search(demo.retriever())
    fetched = await retrieve("When was Claude Monet born?", ScriptedPolicy({}), search, k=2)
    assert fetched.passages[0].title == "Claude Monet"
    assert "the question itself is the query" in fetched.notes[0]
    assert "no turns for the question" in fetched.failures[0]
    # Its second turn fails: what the first found is there.
    fetched = await retrieve(OLDER, two(SPLIT), search, k=2, rounds=3)
    assert {one.title for one in fetched.passages} == {"Claude Monet", "Camille Pissarro"}
    assert "turn 2 was asked for" in fetched.failures[0]
    assert not fetched.notes
    await search.aclose()


async def test_retrieve_asks_each_part_once_and_no_answer_is_written():
    backend = Counting()
    search = Search(backend)
    fetched = await retrieve(OLDER, two(SPLIT), search, k=5)
    assert backend.asked == [("When was Claude Monet born?", 5), ("When was Camille Pissarro born?", 5)]
    assert (fetched.trajectory.num_llm_calls, fetched.trajectory.stop) == (1, "max_turns")
    # One of two failed: the other's passages fill the list, and it is said.
    assert len(fetched.passages) == 5
    assert {one.queries for one in fetched.passages} == {("When was Claude Monet born?",)}
    assert fetched.failures == ["'When was Camille Pissarro born?' failed: told to fail"]
    assert [query.error for query in fetched.queries] == [None, "told to fail"]
    record = json.loads(json.dumps(fetched.to_dict()))
    assert record["queries"][1] == {"text": "When was Camille Pissarro born?", "num_hits": 0, "error": "told to fail"}
    assert record["passages"][0]["found_by"][0]["query"] == "When was Claude Monet born?"
    await search.aclose()


async def test_later_rounds_are_the_policys_own():
    again = "<think> More. </think> <search> Impression, Sunrise ## when was claude monet  born? </search>"
    backend = Counting()
    search = Search(backend, k=2)
    fetched = await retrieve(OLDER, two(SPLIT, again, DONE), search, k=4, rounds=5)
    assert [query.text for query in fetched.queries] == [
        "When was Claude Monet born?",  # asked twice, merged once
        "When was Camille Pissarro born?",
        "Impression, Sunrise",
    ]
    assert fetched.trajectory.num_llm_calls == 3
    assert {k for _, k in backend.asked} == {2, 4}  # the policy reads what it is used to, the list is as deep as asked
    assert {"Claude Monet", "Impression, Sunrise"} <= {one.title for one in fetched.passages}
    only_one = await retrieve(OLDER, two(SPLIT, again, DONE), search, k=4, rounds=1)
    assert only_one.trajectory.num_llm_calls == 1
    await search.aclose()


@pytest.mark.parametrize("rounds", [1, 2])
async def test_depth_holds_for_any_number_of_rounds(rounds):
    search = Search(Counting(), k=3)
    fetched = await retrieve(OLDER, two(SPLIT, DONE), search, k=4, depth=1, rounds=rounds)
    assert [len(query.hits) for query in fetched.queries] == [1, 0]  # the second is told to fail
    assert len(fetched.passages) == 1
    if rounds == 2:  # the policy has read what it is used to
        assert len(fetched.trajectory.queries[0].hits) == 3
    await search.aclose()


async def test_what_was_found_in_part_is_said_whatever_the_depth():
    class InPart(Retriever):
        async def search_many(self, queries, k):
            return [DegradedHits([Hit(f"{n}", "t", f"{n}") for n in range(k)], ["a part is away"]) for _ in queries]

    fetched = await retrieve(OLDER, two(SPLIT, DONE), Search(InPart(), k=3), k=4, depth=1, rounds=2)
    assert len(fetched.failures) == 2
    assert "a part is away" in fetched.failures[0]


@pytest.mark.parametrize(("turns", "rounds"), [((SPLIT,), 1), ((SPLIT, DONE), 2), ((DONE,), 1)])
async def test_what_is_asked_for_afresh_never_comes_from_the_cache(turns, rounds, echo):
    search = Search(echo(), k=2)
    for _ in range(2):
        fetched = await retrieve(OLDER, two(*turns), search, k=4, rounds=rounds, fresh=True)
        assert not any(query.cached for query in fetched.queries)
    assert search.stats.num_cached == 0
    await retrieve(OLDER, two(*turns), search, k=4, rounds=rounds)
    assert search.stats.num_cached == 0  # nor does it go there


async def test_limits_hold_and_too_many_parts_are_said():
    search = Search(demo.retriever())
    limits = Limits(max_subqueries=1)
    fetched = await retrieve(OLDER, two(SPLIT), search, k=3, limits=limits)
    assert [query.text for query in fetched.queries] == ["When was Claude Monet born?"]
    assert fetched.notes == ["over the limit of 1 sub-queries, not searched: When was Camille Pissarro born?"]
    slow = ScriptedPolicy({OLDER: [SPLIT]}, tokens_per_s=1)
    late = await retrieve(OLDER, slow, search, k=3, limits=Limits(timeout_s=0.05))
    assert "within its limits (timeout)" in late.notes[0]
    assert len(late.passages) == 3
    few = await retrieve(OLDER, two(SPLIT), search, k=3, max_tokens=1)
    assert few.notes == ["no passage that was found has at most 1 tokens"]
    for wrong in ({"k": 0}, {"rounds": 0}, {"depth": 0}, {"max_tokens": 0}):
        with pytest.raises(UsageError, match="at least 1"):
            await retrieve(OLDER, two(SPLIT), search, **wrong)
    with pytest.raises(UsageError, match="empty"):
        await retrieve("  ", two(SPLIT), search)
    await search.aclose()


async def test_other_ways_of_talking_split_too():
    search = Search(demo.retriever())
    # `rag` searches for the question before the model is asked: that is its first round, and no model is needed for it.
    found = await retrieve(OLDER, ScriptedPolicy({}), search, k=2, dialect="rag")
    assert ([query.text for query in found.queries], found.trajectory.num_llm_calls) == ([OLDER], 0)
    one = await split(OLDER, quick(), dialect="sequential")
    assert one == ["When was Claude Monet born?"]
    await search.aclose()


# ---- as a backend, and through the front door ------------------------------------------------------------------------


async def test_as_a_backend_it_takes_whole_questions():
    backend = Counting()
    search = Search(SplitRetriever(two(SPLIT), Search(backend)), k=3)
    good, unknown, empty = await search.search_many([OLDER, "When was Claude Monet born?", " "])
    assert isinstance(good.hits, DegradedHits)
    assert all(isinstance(hit, MergedHit) for hit in good.hits)
    assert unknown.hits[0].queries == ("When was Claude Monet born?",)  # the script has no turns for it
    assert "empty" in str(empty.error)
    before = len(backend.asked)
    await search.find(OLDER)  # not kept: a part was missing, and may be back
    assert len(backend.asked) > before
    lost = await search.find("When was Camille Pissarro born?")
    assert "told to fail" in str(lost.error)
    assert search.describe()["search"]["kind"] == "counting"
    await search.aclose()


async def test_as_a_backend_it_passes_on_that_nothing_may_come_from_a_cache(echo):
    inner = Search(echo(), k=2)
    search = splitting(two(SPLIT), inner)
    for num_asked, scope in ((2, ""), (4, "a"), (6, "b")):
        await search.find(OLDER, scope=scope)
        assert (inner.stats.num_cached, inner.stats.num_asked) == (0, num_asked)
    await search.aclose()


def test_the_agent_splits_and_retrieves():
    with Agent(quick(), "demo") as agent:
        assert agent.split(OLDER) == ["When was Claude Monet born?", "When was Camille Pissarro born?"]
        events = []
        found = agent.retrieve(OLDER, k=2, on_event=events.append)
    assert ids(found.passages) == ids(sorted(found.passages, key=lambda one: -one.score))
    assert {one.title for one in found.passages} == {"Claude Monet", "Camille Pissarro"}
    assert [event.kind for event in events].count("query") == 2
