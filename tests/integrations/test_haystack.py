"""Haystack, the real library: its retrievers in our search, our search as a component of its pipelines."""

import asyncio
import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # before its import: nothing is sent, and no file is written
pytest.importorskip("haystack", reason="pip install -e '.[haystack]'")
from haystack import Document, Pipeline, component
from haystack.components.builders import PromptBuilder
from haystack.components.retrievers.in_memory import InMemoryBM25Retriever
from haystack.document_stores.in_memory import InMemoryDocumentStore

from parallelsearch import Agent, Search
from parallelsearch.data import demo
from parallelsearch.errors import SearchError, UsageError
from parallelsearch.integrations.haystack import HaystackRetriever, ParallelSearchRetriever
from parallelsearch.retrieval import build_index

QUESTION = "Who is older, Claude Monet or Camille Pissarro?"


def test_a_document_store_is_searched_by_the_agent():
    store = InMemoryDocumentStore()
    store.write_documents(
        [
            Document(id=passage.id, content=passage.text, meta={"title": passage.title, "page_number": 3})
            for passage in demo.passages()
            if passage.title in ("Claude Monet", "Camille Pissarro", "Mont Blanc", "Danube")
        ]
    )
    policy = demo.DemoPolicy()
    policy.tokens_per_s = None
    with Agent(policy, Search(HaystackRetriever(InMemoryBM25Retriever(store)), k=2)) as agent:
        found = agent.retrieve(QUESTION, k=2)
    assert {one.title for one in found.passages} == {"Claude Monet", "Camille Pissarro"}
    assert [one.metadata for one in found.passages] == [{"page_number": 3}] * 2
    assert found.trajectory.search["retriever"] == "InMemoryBM25Retriever"


async def test_a_blocking_component_is_a_backend_and_its_failure_is_the_querys():
    @component
    class Own:
        @component.output_types(documents=list[Document])
        def run(self, query: str, top_k: int = 3):
            if "bad" in query:
                raise KeyError("content")
            return {"documents": [Document(content=query, score=0.5)] * 5}

    search = Search(HaystackRetriever(Own()))
    good, bad = await search.search_many(["good", "bad"], 2)
    assert [(hit.text, hit.score) for hit in good.hits] == [("good", 0.5)] * 2
    assert "KeyError: 'content'" in str(bad.error)
    await search.aclose()
    for wrong in (PromptBuilder("{{ x }}"), {}):
        with pytest.raises(UsageError, match="takes query and top_k"):
            HaystackRetriever(wrong)


def test_a_pipeline_splits_is_saved_and_is_loaded_again():
    pipeline = Pipeline()
    pipeline.add_component("retriever", ParallelSearchRetriever("demo", top_k=2, split="demo"))
    pipeline.add_component(
        "prompt", PromptBuilder("{% for d in documents %}{{ d.meta.title }};{% endfor %} {{ question }}")
    )
    pipeline.connect("retriever.documents", "prompt.documents")
    loaded = Pipeline.loads(pipeline.dumps(), allowed_modules=["parallelsearch.integrations.haystack"])
    inputs = {"retriever": {"query": QUESTION}, "prompt": {"question": QUESTION}}
    assert loaded.run(inputs)["prompt"]["prompt"] == f"Claude Monet;Camille Pissarro; {QUESTION}"
    asked = asyncio.run(loaded.run_async(inputs, include_outputs_from={"retriever"}))
    first = asked["retriever"]["documents"][0]
    assert first.meta["queries"] == ["When was Claude Monet born?"]
    retriever = loaded.get_component("retriever")
    assert len(retriever.run(QUESTION, top_k=5)["documents"]) == 5
    with pytest.raises(SearchError, match="empty"):
        retriever.run(" ")
    with pytest.raises(SearchError, match="k is from 1 to 1000, not 'x'"):
        retriever.run(QUESTION, top_k="x")
    loaded.close()  # a pipeline closes its components
    assert retriever._shared is None
    assert len(retriever.run(QUESTION)["documents"]) == 2  # and the next run opens them again
    retriever.close()
    retriever.close()
    with pytest.raises(UsageError, match="at least 1"):
        ParallelSearchRetriever(top_k=0)
    with pytest.raises(UsageError, match="top_k is the number of documents: a whole number, not 'x'"):
        ParallelSearchRetriever(top_k="x")


def test_metadata_of_a_corpus_is_a_documents_meta(tmp_path):
    line = {"id": "1", "text": "Notice is given in writing.", "source": "/docs/contract.pdf", "page": 3}
    (tmp_path / "corpus.jsonl").write_text(json.dumps(line))
    build_index(tmp_path / "corpus.jsonl", tmp_path / "index")
    retriever = ParallelSearchRetriever(f"bm25:{tmp_path / 'index'}")
    [document] = retriever.run("notice")["documents"]
    retriever.close()
    assert (document.meta["source"], document.meta["page"]) == ("/docs/contract.pdf", 3)


def test_the_first_queries_of_several_threads_open_one_search():
    retriever = ParallelSearchRetriever("demo", top_k=1)
    opened = set()
    with ThreadPoolExecutor(16) as pool:
        for one in [pool.submit(retriever._opened) for _ in range(32)]:
            opened.add(id(one.result()))
    retriever.close()
    assert len(opened) == 1
