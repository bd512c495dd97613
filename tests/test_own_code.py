"""What a policy or search of one's own says of itself where it describes nothing: its name, and a hash of its code."""

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

import parallelsearch as ps
from parallelsearch import own_code
from parallelsearch.errors import UsageError
from parallelsearch.evaluation.run import run_questions
from parallelsearch.own_code import UNREADABLE, described
from parallelsearch.policy import Generation, ScriptedPolicy
from parallelsearch.retrieval.own import as_retriever

ASKED = [ps.Question("Who is older, Monet or Pissarro?", ["Pissarro"], id="1")]


def policy(answer: str, base: type[Any] = ps.Policy) -> ps.Policy:
    class Mine(base):  # type: ignore[misc]
        name = "mine"

        async def generate(self, segments: Sequence[Any], **_: Any) -> Generation:
            return Generation(f"<think> y </think>\n<answer> {answer} </answer>", "stop")

    return Mine()


def function(passage: str) -> Callable[..., list[str]]:
    def find(query: str) -> list[str]:
        return [passage]

    return find


def written(source: str) -> Any:
    """Code that has no file."""
    names: dict[str, Any] = {}
    exec(source, {"__name__": "written"}, names)
    return next(iter(names.values()))


def code_of(backend: Any) -> str:
    return str(as_retriever(backend).describe()["code_sha256"])


async def test_a_changed_policy_is_refused_and_the_same_one_is_told_to_be_finished(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with aclosing(ps.open_search("demo")) as search:
        await run_questions(ASKED, policy("Monet"), search, tmp_path)
        assert not caplog.records
        await run_questions(ASKED, policy("Monet"), search, tmp_path)
        assert "nothing was asked: the run in" in caplog.text
        with pytest.raises(UsageError, match=r"policy\.code_sha256: "):
            await run_questions(ASKED, policy("Pissarro"), search, tmp_path)


async def test_two_searches_of_one_name_are_not_alike(tmp_path: Path) -> None:
    for name in ("good", "bad"):
        async with aclosing(ps.Search(function(name))) as search:
            await run_questions(
                ASKED, ScriptedPolicy({ASKED[0].question: ["<answer> x </answer>"]}), search, tmp_path / name
            )
    with pytest.raises(UsageError, match=r"(?s)search\.code_sha256: .*--allow search"):
        ps.compare([tmp_path / "good", tmp_path / "bad"])


def test_the_code_is_that_of_the_object_not_of_its_name() -> None:
    assert code_of(function("a")) == code_of(function("a")) != code_of(function("b"))
    lambdas = [lambda query: ["a"], lambda query: ["b"]]  # on one line
    assert code_of(lambdas[0]) != code_of(lambdas[1])

    def find(query: str, passage: str) -> list[str]:
        return [passage]

    a, b = (functools.partial(find, passage=one) for one in "ab")
    a.name, b.name = "find", "find"  # type: ignore[attr-defined]
    assert code_of(a) != code_of(b)
    sources = [f"class Own:\n    def search_many(self, queries, k):\n        return {value}" for value in ("[]", "[1]")]
    first, second = (written(source)() for source in sources)
    assert code_of(first) == code_of(written(sources[0])()) != code_of(second)


@pytest.mark.parametrize(
    "member",
    [
        "@property\n    def text(self): return VALUE",
        "@functools.cached_property\n    def text(self): return VALUE",
        "@staticmethod\n    def text(): return VALUE",
        "@classmethod\n    def text(cls): return VALUE",
        "@functools.cache\n    def text(self): return VALUE",
        "def _text(self, value): return value\n    text = functools.partialmethod(_text, VALUE)",
    ],
)
def test_every_kind_of_method_counts(member: str) -> None:
    def made(value: str) -> str:
        source = f"class Own:\n    def search_many(self, queries, k): return []\n    {member}".replace("VALUE", value)
        names: dict[str, Any] = {"functools": functools, "__name__": "written"}
        exec(source, names)
        return code_of(names["Own"]())

    assert made("'a'") == made("'a'") != made("'b'")


def test_what_is_given_beside_an_object_counts() -> None:
    def find(query: str, client: object, passage: str) -> list[str]:
        return [passage]

    def own(passage: str) -> Callable[..., list[str]]:
        def find(query: str, client: object = object(), passage: str = passage) -> list[str]:
            return [passage]

        return find

    assert code_of(own("a")) == code_of(own("a")) != code_of(own("b"))
    a, again, b = (described("find", functools.partial(find, client=object(), passage=one)) for one in "aab")
    assert a == again != b


def test_it_is_the_same_in_every_process() -> None:
    source = (
        "from parallelsearch.own_code import described\n"
        "find = lambda query: ['a'] if query in {'one', 'two', 'three', 'four'} else []\n"
        "print(described('find', find)['code_sha256'])"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", source], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(found) == 1


def test_values_of_the_class_and_of_its_bases_count() -> None:
    class Base(ps.Policy):
        prompt_text = "a"

    class Other(Base):
        prompt_text = "b"

    assert len({policy("x", base).describe()["code_sha256"] for base in (ps.Policy, Base, Other)}) == 3


def test_what_the_code_changes_itself_does_not_count() -> None:
    num_asked = 0

    def find(query: str) -> list[str]:
        nonlocal num_asked
        num_asked += 1
        return []

    before = described("find", find)
    find("q")
    own_code._sha256.cache_clear()
    assert described("find", find) == before


async def test_what_cannot_be_read_is_said_and_what_is_ours_says_no_code(tmp_path: Path) -> None:
    assert described("len", len) == {"kind": "len", "code_sha256": UNREADABLE}
    assert described("search", ps.Retriever) == {"kind": "search"}

    class Native(ps.Retriever):
        async def search_many(self, queries: Sequence[str], k: int) -> list[Any]:
            return [[] for _ in queries]

        def describe(self) -> dict[str, Any]:
            return described("native", len)

    async with aclosing(ps.Search(Native())) as search:
        summary = await run_questions(ASKED, policy("x"), search, tmp_path)
    (warning,) = summary["manifest"]["warnings"]
    assert "the code of 'native' cannot be read" in warning
