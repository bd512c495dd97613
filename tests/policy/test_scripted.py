"""The policy that replays written turns."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from parallelsearch import grammar
from parallelsearch.errors import DataError, PolicyError, UsageError
from parallelsearch.policy.base import Generation, Sampling
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.trajectory import Segment
from virtual_time import in_virtual_time

QUESTION = "Who is older, Claude Monet or Camille Pissarro?"
SEARCH = "<think> Two people. </think>\n<search> Monet born ## Pissarro born </search>"
ANSWER = "<think> Done. </think>\n<answer> Pissarro </answer>"
SCRIPT = {QUESTION: [SEARCH, ANSWER], "Where is Lisbon?": [ANSWER]}


def prompt(policy: ScriptedPolicy, question: str = QUESTION) -> Segment:
    return policy.prompt(grammar.prompt_text(question), question)


async def say(policy: ScriptedPolicy, segments: list[Segment], max_tokens: int = 500, **options: Any) -> Generation:
    return await policy.generate(
        segments, stop=grammar.STOP_STRINGS, max_tokens=max_tokens, sampling=Sampling(), session="s", **options
    )


async def test_turns_come_in_order() -> None:
    policy = ScriptedPolicy(SCRIPT)
    segments = [prompt(policy)]
    first = await say(policy, segments)
    segments += [first.segment(), policy.insert("\nresults\n", "search"), policy.insert("\nAnswer now.\n", "notice")]
    second = await say(policy, segments)
    assert (first.text, first.finish, second.text, second.finish) == (SEARCH, "stop", ANSWER, "stop")
    assert (first.token_ids, first.num_tokens) == (None, policy.count_tokens(SEARCH))
    segments.append(second.segment())
    with pytest.raises(
        PolicyError, match=r"the script has 2 turns for the question 'Who is older.*turn 3 was asked for"
    ):
        await say(policy, segments)


async def test_same_question_many_times_at_once() -> None:
    policy = ScriptedPolicy(SCRIPT, tokens_per_s=2000)

    async def rollout(number: int) -> list[str]:
        segments = [prompt(policy)]
        for _ in range(2):
            await asyncio.sleep(0.001 * (number % 5))
            segments.append((await say(policy, segments)).segment())
        return [segment.text for segment in segments[1:]]

    assert await asyncio.gather(*(rollout(number) for number in range(50))) == [[SEARCH, ANSWER]] * 50


async def test_case_and_spacing_of_the_question_do_not_matter() -> None:
    policy = ScriptedPolicy(SCRIPT)
    generation = await say(policy, [prompt(policy, "  who is OLDER, Claude Monet\nor Camille Pissarro? ")])
    assert generation.text == SEARCH


async def test_unknown_question_names_the_nearest() -> None:
    policy = ScriptedPolicy(SCRIPT)
    with pytest.raises(PolicyError) as caught:
        await say(policy, [prompt(policy, "Who is older, Monet or Pissarro?")])
    assert f"no turns for the question 'Who is older, Monet or Pissarro?'. It has: '{QUESTION}'" in str(caught.value)
    with pytest.raises(PolicyError, match="It has: 2 others"):
        await say(policy, [prompt(policy, "zzz")])


async def test_prompt_must_be_the_policys_own() -> None:
    policy = ScriptedPolicy(SCRIPT)
    with pytest.raises(PolicyError, match=r"policy's own prompt\(\)"):
        await say(policy, [Segment("prompt", "made elsewhere")])
    with pytest.raises(PolicyError, match="no prompt segment"):
        await say(policy, [Segment("model", SEARCH)])


@pytest.mark.parametrize(
    ("text", "max_tokens", "expected", "finish"),
    [
        (SEARCH + " and more", 500, SEARCH, "stop"),
        (SEARCH + ANSWER, 500, SEARCH, "stop"),
        ("no tags at all", 500, "no tags at all", "eos"),
        ("0123456789", 2, "01234567", "length"),
        ("01234567", 2, "01234567", "eos"),
        ("01</search>", 2, "01</sear", "length"),
        ("01</search><search> b </search>", 5, "01</search>", "stop"),  # the second is cut off and never closed
        ("", 5, "", "eos"),
    ],
)
async def test_turn_ends_where_an_engine_would_end_it(text: str, max_tokens: int, expected: str, finish: str) -> None:
    policy = ScriptedPolicy({QUESTION: [text]})
    generation = await say(policy, [prompt(policy)], max_tokens)
    assert (generation.text, generation.finish) == (expected, finish)


async def test_without_a_pace_the_turn_is_one_piece() -> None:
    policy = ScriptedPolicy(SCRIPT)
    pieces: list[str] = []
    await say(policy, [prompt(policy)], on_text=pieces.append)
    assert pieces == [SEARCH]


@in_virtual_time
async def test_pace_is_kept_and_does_not_drift() -> None:
    text = "x" * 800  # 200 tokens, one second
    policy = ScriptedPolicy({QUESTION: [text]}, tokens_per_s=200)
    pieces: list[str] = []
    times_s: list[float] = []
    start_s = time.perf_counter()

    def on_text(piece: str) -> None:
        pieces.append(piece)
        times_s.append(time.perf_counter() - start_s)
        if len(pieces) == 20:
            time.sleep(0.1)  # a hiccup of the event loop is caught up with

    await say(policy, [prompt(policy)], on_text=on_text)
    assert "".join(pieces) == text
    assert {len(piece) for piece in pieces} == {4}
    due_s = [(number + 1) / 200 for number in range(200)]
    assert all(time_s >= at_s - 1e-6 for time_s, at_s in zip(times_s, due_s, strict=True))
    late = [number for number in range(200) if times_s[number] > due_s[number] + 0.001]
    assert late == list(range(20, 39)), "the hiccup does not add up"


@in_virtual_time
async def test_pace_holds_without_a_listener_too() -> None:
    policy = ScriptedPolicy({QUESTION: ["x" * 80]}, tokens_per_s=100)
    start_s = time.perf_counter()
    await say(policy, [prompt(policy)])
    assert time.perf_counter() - start_s == pytest.approx(0.2, abs=0.01)


def test_what_it_says_about_itself() -> None:
    policy = ScriptedPolicy(SCRIPT, tokens_per_s=50.0, name="replayed")
    assert policy.describe() == {"kind": "replayed", "num_questions": 2, "tokens_per_s": 50.0}
    assert policy.streams
    with pytest.raises(UsageError, match="tokens_per_s must be greater than zero, not 0"):
        ScriptedPolicy(SCRIPT, tokens_per_s=0)


# ---- files -----------------------------------------------------------------------------------------------------------


async def test_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"Où est Zoë?": [ANSWER]}, ensure_ascii=False), encoding="utf-8")
    policy = ScriptedPolicy.from_file(path, tokens_per_s=1e6)
    assert (await say(policy, [prompt(policy, "où est zoë?")])).text == ANSWER


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", r"script.json, line 1: is not JSON"),
        (b'{\n"a": ["x"],\n}', r"script.json, line 3: is not JSON"),
        (b"[]", "script.json: a script is an object, question -> list of turns; found an empty list"),
        (b'{"Who?": "text"}', "script.json: field 'Who\\?': expected a list of turns, found str"),
        (b'{"Who?": []}', "field 'Who\\?': expected a list of turns, found an empty list"),
        (b'{"Who?": ["a", 5]}', "field 'Who\\?': turn 2 is not text, found int"),
        (b'{"Who?": ["a"], "who? ": ["b"]}', "field 'who\\? ': is the same question as 'Who\\?'"),
        (b"\xff\xfe{}", "is not UTF-8 text"),
    ],
)
def test_bad_files_are_named(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=words):
        ScriptedPolicy.from_file(path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no script '.*none.json'"):
        ScriptedPolicy.from_file(tmp_path / "none.json")
