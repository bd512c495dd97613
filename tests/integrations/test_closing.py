"""Our search as a retriever of LangChain and of LlamaIndex: who closes it, and what can be pickled."""

import asyncio
import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from parallelsearch import Search
from parallelsearch.data import demo
from parallelsearch.errors import UsageError
from parallelsearch.integrations import SharedSearch, langchain, llama_index
from parallelsearch.retrieval import build_index

pytest.importorskip("langchain_core", reason="pip install -e '.[integrations]'")
pytest.importorskip("llama_index.core", reason="pip install -e '.[integrations]'")

QUESTION = "Who is older, Claude Monet or Camille Pissarro?"


class Framework(NamedTuple):
    as_retriever: Callable[..., Any]
    asks: str
    """Its method."""
    own: tuple[str, Any]
    """Something of the framework's that a retriever holds."""

    def ask(self, retriever: Any, query: str = QUESTION) -> list[Any]:
        return getattr(retriever, self.asks)(query)


FRAMEWORKS = {
    "langchain": Framework(langchain.as_retriever, "invoke", ("tags", ["mine"])),
    "llama_index": Framework(llama_index.as_retriever, "retrieve", ("verbose", True)),
}


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> Framework:
    return FRAMEWORKS[request.param]


def test_of_two_threads_that_close_a_search_the_second_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    async def aclose(search: Search) -> None:
        await asyncio.sleep(0.2)
        ended.append("search")

    monkeypatch.setattr(Search, "aclose", aclose)
    shared, told = SharedSearch("demo"), []

    def close() -> None:
        try:
            shared.close()
            told.append(list(ended))
        except UsageError as error:
            told.append(error)

    threads = [threading.Thread(target=close) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert told == [["search"]] * 3


@pytest.mark.parametrize("split", [None, "demo"])
def test_a_retriever_of_an_address_is_closed_and_its_threads_end(framework: Framework, split: str | None) -> None:
    before = set(threading.enumerate())
    with framework.as_retriever("demo", k=1, split=split) as retriever:
        assert framework.ask(retriever)
        begun = set(threading.enumerate()) - before
    assert begun
    retriever.close()
    for thread in begun:
        thread.join(60)
    assert not any(thread.is_alive() for thread in begun)
    with pytest.raises(UsageError, match="this search was closed"):
        framework.ask(retriever)


def test_a_retriever_leaves_open_what_it_was_given(framework: Framework) -> None:
    with SharedSearch("demo", k=1) as shared:
        for k in (None, 2):
            with framework.as_retriever(shared, k) as retriever:
                assert len(framework.ask(retriever)) == (k or 1)
        assert shared.find(QUESTION)
    search = Search(demo.retriever())
    with framework.as_retriever(search) as retriever:
        assert framework.ask(retriever)
    assert asyncio.run(search.find("Danube")).error is None


def test_a_retriever_of_addresses_can_be_pickled_and_another_says_why_not(
    framework: Framework, tmp_path, monkeypatch
) -> None:
    (tmp_path / "c.jsonl").write_text('{"id": "1", "title": "Danube", "text": "A river."}')
    build_index(tmp_path / "c.jsonl", tmp_path / "index")
    monkeypatch.chdir(tmp_path)
    name, value = framework.own
    with framework.as_retriever("bm25:index", k=2, split="demo") as retriever:
        setattr(retriever, name, value)
        packed = pickle.dumps(retriever)
        assert framework.ask(copy.deepcopy(retriever), "Danube")
    monkeypatch.chdir("/")
    with pickle.loads(packed) as again:  # in another folder, with the first one closed
        assert len(framework.ask(again, "Danube")) == 1
        assert getattr(again, name) == value
    policy = demo.DemoPolicy()
    for search, split, kind in ((Search(demo.retriever()), None, "Search"), ("demo", policy, "DemoPolicy")):
        with (
            framework.as_retriever(search, split=split) as live,
            pytest.raises(UsageError, match=f"holds a {kind} cannot be pickled; one made of addresses can"),
        ):
            pickle.dumps(live)
