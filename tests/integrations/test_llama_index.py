"""LlamaIndex, the real library: its retrievers in our search, our search and agent in its hands."""

import asyncio
import pickle
import zlib

import pytest

from parallelsearch import Agent, Search
from parallelsearch.data import demo
from parallelsearch.errors import SearchError, UsageError
from parallelsearch.integrations import SharedSearch
from parallelsearch.integrations.llama_index import LlamaIndexRetriever, agent_tool, as_retriever
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import build_bm25

pytest.importorskip("llama_index.core", reason="pip install -e '.[integrations]'")
from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import MetadataMode, TextNode
from llama_index.core.vector_stores import (
    ExactMatchFilter,
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)

QUESTION = "Who is older, Claude Monet or Camille Pissarro?"


class BagOfWords(BaseEmbedding):
    """Words hashed into 256 counts: enough for an index to tell passages apart."""

    def _get_text_embedding(self, text):
        counts = [0.0] * 256
        for word in text.lower().replace("?", " ").replace(".", " ").split():
            counts[zlib.crc32(word.encode()) % 256] += 1.0
        return counts

    def _get_query_embedding(self, query):
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query):
        return self._get_text_embedding(query)


class Broken(BaseRetriever):
    def _retrieve(self, query_bundle):
        raise RuntimeError("the index is gone")


@pytest.fixture(scope="module")
def index():
    nodes = [
        TextNode(id_=passage.id, text=passage.text, metadata={"title": passage.title})
        for passage in demo.passages()
        if passage.title in ("Claude Monet", "Camille Pissarro", "Mont Blanc", "Danube")
    ]
    return VectorStoreIndex(nodes, embed_model=BagOfWords())


def quick_agent(search="demo"):
    policy = demo.DemoPolicy()
    policy.tokens_per_s = None
    return Agent(policy, search)


def test_an_index_is_searched_by_the_agent(index):
    retriever = LlamaIndexRetriever(index.as_retriever(similarity_top_k=4))
    with quick_agent(Search(retriever, k=2)) as agent:
        trajectory = agent.ask(QUESTION)
    first, second = trajectory.turns[0].queries
    assert (first.hits[0].title, second.hits[0].title) == ("Claude Monet", "Camille Pissarro")
    assert [hit.rank for hit in first.hits] == [1, 2]
    assert first.hits[0].score > first.hits[1].score > 0
    assert first.hits[0].id in {passage.id for passage in demo.passages()}
    assert trajectory.search == {"kind": "llama-index", "retriever": "VectorIndexRetriever", "k": 2}


def test_metadata_comes_in_with_a_node_and_goes_out_with_one():
    told = {"file_name": "contract.pdf", "page_label": "3"}
    node = TextNode(id_="c", text="Notice is given in writing.", metadata=told)
    index = VectorStoreIndex([node], embed_model=BagOfWords())
    with as_retriever(Search(LlamaIndexRetriever(index.as_retriever()))) as retriever:
        [found] = retriever.retrieve("notice")
    assert found.node.metadata == told | {"title": "contract.pdf", "score": found.score, "rank": 1}


async def test_a_failure_is_a_value():
    search = Search(LlamaIndexRetriever(Broken()))
    found = await search.find("anything")
    assert "Broken failed: RuntimeError: the index is gone" in str(found.error)
    await search.aclose()


def test_what_is_not_a_retriever_is_refused():
    with pytest.raises(UsageError, match="found str"):
        LlamaIndexRetriever("bm25:folder")


def test_our_search_is_a_retriever_blocking_and_async(monkeypatch):
    with SharedSearch("demo", k=2) as search:
        retriever = as_retriever(search)
        nodes = retriever.retrieve("When was Claude Monet born?")
        assert len(nodes) == 2
        assert nodes[0].node.metadata["title"] == "Claude Monet"
        assert nodes[0].score >= nodes[1].score > 0
        again = asyncio.run(retriever.aretrieve("When was Claude Monet born?"))
        assert [node.node.node_id for node in again] == [node.node.node_id for node in nodes]
        assert search.search.stats.num_cached == 1
        monkeypatch.setattr(Settings, "_llm", MockLLM())  # engines want a model to hold; 'no_text' never calls it
        engine = RetrieverQueryEngine(retriever, get_response_synthesizer(response_mode="no_text"))
        assert len(engine.query("Danube").source_nodes) == 2
        with pytest.raises(SearchError, match="empty"):
            retriever.retrieve(" ")


def test_a_model_is_shown_what_is_known_of_a_passage_and_not_of_the_search():
    policy = demo.DemoPolicy()
    policy.tokens_per_s = None
    with as_retriever("demo", k=2, split=policy) as retriever:
        node = retriever.retrieve(QUESTION)[0].node
    assert set(node.metadata) >= {"title", "score", "rank", "queries"}
    for mode in (MetadataMode.LLM, MetadataMode.EMBED):
        assert node.get_content(mode) == f"title: {node.metadata['title']}\n\n{node.text}"


def test_our_retriever_splits_whole_questions():
    retriever = as_retriever("demo", k=2, split="demo")
    nodes = retriever.retrieve(QUESTION)
    assert [node.node.metadata["title"] for node in nodes] == ["Claude Monet", "Camille Pissarro"]
    assert nodes[0].node.metadata["queries"] == ["When was Claude Monet born?"]
    assert nodes[0].score > nodes[1].score  # who sorts by score keeps the order
    assert [node.node.node_id for node in asyncio.run(retriever.aretrieve(QUESTION))] == [n.node.node_id for n in nodes]


def test_the_agent_is_a_tool_blocking_and_async():
    with quick_agent() as agent:
        tool = agent_tool(agent)
        assert list(tool.metadata.get_parameters_dict()["properties"]) == ["question"]
        output = tool.call(question=QUESTION)
        assert output.content == "Camille Pissarro"
        assert output.raw_output.trajectory.num_subqueries == 2
        assert asyncio.run(tool.acall(question=QUESTION)).content == "Camille Pissarro"


def test_filters_narrow_the_search_and_what_is_no_equality_is_refused(tmp_path):
    pages = [Passage(f"{n}", "Lease", f"Notice {n} is given.", metadata={"page": n % 3}) for n in range(9)]
    build_bm25(pages, tmp_path / "index")
    address = f"bm25:{tmp_path / 'index'}"
    filters = MetadataFilters(
        filters=[
            MetadataFilter(key="page", value=[1, 2], operator=FilterOperator.IN),
            ExactMatchFilter(key="page", value=2),
        ]
    )
    with as_retriever(address, k=5, filters=filters) as retriever:
        assert [node.node.node_id for node in retriever.retrieve("notice")] == ["2", "5", "8"]
        with pickle.loads(pickle.dumps(retriever)) as again:
            assert [node.node.node_id for node in again.retrieve("notice")] == ["2", "5", "8"]
    either = MetadataFilters(filters=filters.filters, condition=FilterCondition.OR)
    greater = MetadataFilters(filters=[MetadataFilter(key="page", value=1, operator=FilterOperator.GT)])
    neither = MetadataFilters(filters=[ExactMatchFilter(key="page", value=2)], condition=FilterCondition.NOT)
    both = MetadataFilters(filters=[MetadataFilter(key="page", value=[1, 2], operator=FilterOperator.EQ)])
    for wrong in (either, greater, neither, both, MetadataFilters(filters=[filters])):
        with pytest.raises(UsageError, match="'==' a value and 'in' a list, joined by 'and'"):
            as_retriever(address, filters=wrong)
