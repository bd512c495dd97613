"""Rejection sampling: what a policy gets right by itself."""

from __future__ import annotations

import pytest
from painters import BIRTH, SINGLE, settings

from parallelsearch import grammar
from parallelsearch.coldstart.sampling import sample_right
from parallelsearch.errors import UsageError
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.search import Search

pytest.importorskip("transformers")


async def test_rejection_sampling_keeps_the_shortest_right_trajectory(search: Search) -> None:
    right = [grammar.render_turn("look", ["Carl Dorn"]), grammar.render_turn("so", answer="Carl Dorn")]
    wrong = [grammar.render_turn("sure", answer="Ada Brenn")]
    policy = ScriptedPolicy({BIRTH.question: right, SINGLE.question: wrong})
    made, report = await sample_right([BIRTH, SINGLE], policy, search, settings(), num_samples=3)
    assert [one.id for one in made] == ["b1"]
    assert report.dropped["single: answer_wrong"] == 3
    with pytest.raises(UsageError, match="num_samples"):
        await sample_right([BIRTH], policy, search, settings(), num_samples=0)
