"""LangChain, the real library: its retrievers in our search, our search and agent in its hands."""

import asyncio
import logging
import zlib

import pytest

from free_ports import free_port
from parallelsearch import Agent, Search
from parallelsearch.data import demo
from parallelsearch.errors import SearchError, UsageError
from parallelsearch.integrations import SharedSearch, hit_of
from parallelsearch.integrations.langchain import LangChainRetriever, agent_tool, as_retriever
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import build_bm25

pytest.importorskip("langchain_core", reason="pip install -e '.[integrations]'")
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore

QUESTION = "Who is older, Claude Monet or Camille Pissarro?"


class BagOfWords(Embeddings):
    """Words hashed into 256 counts: enough for a vector store to tell passages apart."""

    def embed_query(self, text):
        counts = [0.0] * 256
        for word in text.lower().replace("?", " ").replace(".", " ").split():
            counts[zlib.crc32(word.encode()) % 256] += 1.0
        return counts

    def embed_documents(self, texts):
        return [self.embed_query(text) for text in texts]


@pytest.fixture(scope="module")
def store():
    store = InMemoryVectorStore(BagOfWords())
    store.add_documents(
        [
            Document(passage.text, id=passage.id, metadata={"title": passage.title})
            for passage in demo.passages()
            if passage.title in ("Claude Monet", "Camille Pissarro", "Mont Blanc", "Danube")
        ]
        + [Document("Sources are links.", metadata={"source": "https://example.org/a", "score": 0.5})]
    )
    return store


def quick_policy():
    policy = demo.DemoPolicy()
    policy.tokens_per_s = None
    return policy


def quick_agent(search="demo"):
    return Agent(quick_policy(), search)


def test_a_vector_store_is_searched_by_the_agent(store):
    with quick_agent(Search(LangChainRetriever(store.as_retriever()), k=2)) as agent:
        trajectory = agent.ask(QUESTION)
    first, second = trajectory.turns[0].queries
    assert (first.hits[0].title, second.hits[0].title) == ("Claude Monet", "Camille Pissarro")
    assert [hit.rank for hit in first.hits] == [1, 2]
    assert trajectory.search == {"kind": "langchain", "retriever": "VectorStoreRetriever", "k": 2}


def test_metadata_comes_in_with_a_document_and_goes_out_with_one():
    told = {"source": "/docs/contract.pdf", "page": 3, "section": "4.2", "title": "Contract", "raw": object()}
    theirs = RunnableLambda(lambda query: [Document("Notice is given in writing.", id="c", metadata=dict(told))])
    known = {"source": "/docs/contract.pdf", "page": 3, "section": "4.2"}
    search = Search(LangChainRetriever(theirs))
    with as_retriever(search) as retriever, as_retriever(search, split=quick_policy()) as splitting:
        [document] = retriever.invoke("notice")
        [merged] = splitting.invoke("notice")
    assert document.metadata == known | {"title": "Contract", "score": 0.0, "rank": 1}
    assert known.items() <= merged.metadata.items()
    with quick_agent(search) as agent:
        assert [hit.metadata for query in agent.ask(QUESTION).queries for hit in query.hits] == [known, known]


@pytest.mark.parametrize(
    ("metadata", "url", "kept"),
    [
        ({"source": "https://a.org", "title": "T"}, "https://a.org", {"source": "https://a.org"}),
        ({"url": "https://a.org", "source": "a.pdf"}, "https://a.org", {"source": "a.pdf"}),
        ({"url": "file:///a.pdf"}, None, {"url": "file:///a.pdf"}),
        ({"title": "T", "id": "1", "date": "2021", "score": 1, "rank": 2, "relevance_score": 3}, None, None),
    ],
)
def test_what_no_field_has_taken_is_metadata(metadata, url, kept):
    hit = hit_of("text", metadata, 1)
    assert (hit.url, hit.metadata) == (url, kept)


def test_a_shared_search_gives_each_retriever_as_many_as_it_wants():
    with SharedSearch("demo") as shared:
        numbers = [len(as_retriever(shared, k=k).invoke("a painter born in France")) for k in (1, 7)]
        assert numbers == [1, 7]
        with pytest.raises(UsageError, match="from 1 to 1000, not 0"):
            as_retriever(shared, k=0)


def test_a_shared_search_closes_what_it_opened_and_says_that_it_is_closed():
    search, policy = Search(demo.retriever()), demo.DemoPolicy()
    for split in (None, policy):
        with SharedSearch(search, 1, split) as shared:
            assert shared.find(QUESTION)
    assert asyncio.run(search.find("Danube")).error is None
    for again in (shared.find, lambda query: asyncio.run(shared.find_async(query)), as_retriever(shared).invoke):
        with pytest.raises(UsageError, match="this search was closed and answers no more"):
            again(QUESTION)
    shared.close()
    with SharedSearch("demo", 1, "demo") as opened:
        assert opened.find(QUESTION)
    with pytest.raises(UsageError, match="this search was closed"):
        asyncio.run(opened.search.retriever.search.find(QUESTION))


def test_what_is_found_in_part_is_said(caplog):
    address = f"openai:http://127.0.0.1:{free_port()}/v1#m"
    with SharedSearch("demo", 2, split=address) as shared, caplog.at_level(logging.WARNING):
        assert as_retriever(shared).invoke(QUESTION)
    assert any("found in part" in one.message and "the policy failed" in one.message for one in caplog.records)


async def test_a_vector_store_gives_as_many_hits_as_are_asked_for(store):
    search = Search(LangChainRetriever(store.as_retriever(search_kwargs={"k": 1})), k=1)
    assert [len((await search.find("Claude Monet", k)).hits) for k in (1, 3, 4)] == [1, 3, 4]
    (hit,) = (await search.find("sources are links")).hits
    assert (hit.url, hit.score, hit.title) == ("https://example.org/a", 0.5, "")
    assert hit.id
    await search.aclose()


async def test_one_query_that_fails_does_not_sink_the_others():
    calls = []

    def find(query):
        calls.append(query)
        if "lost" in query and calls.count(query) == 1:
            raise ConnectionResetError("by peer")
        if "bad" in query:
            raise KeyError("title")
        return [Document(query)] * 5

    search = Search(LangChainRetriever(RunnableLambda(find)), first_wait_s=0.01)
    good, bad, lost = await search.search_many(["good", "bad", "lost"])
    assert [hit.text for hit in good.hits] == ["good"] * 3
    assert "KeyError: 'title'" in str(bad.error)
    assert lost.error is None  # a lost connection is worth a second try
    assert calls.count("lost") == 2
    assert calls.count("bad") == 1
    await search.aclose()


def test_what_is_not_a_retriever_is_refused():
    with pytest.raises(UsageError, match="found dict"):
        LangChainRetriever({})
    with pytest.raises(UsageError, match="max_concurrency"):
        LangChainRetriever(RunnableLambda(lambda _: []), max_concurrency=0)


def test_our_search_is_a_retriever_blocking_and_async():
    with SharedSearch("demo", k=2) as search:
        retriever = as_retriever(search)
        documents = retriever.invoke("When was Claude Monet born?")
        assert [document.metadata["rank"] for document in documents] == [1, 2]
        assert documents[0].metadata["title"] == "Claude Monet"
        assert {passage.id: passage.text for passage in demo.passages()}[documents[0].id] == documents[0].page_content
        assert asyncio.run(retriever.ainvoke("When was Claude Monet born?")) == documents
        assert search.search.stats.num_cached == 1  # both kinds of callers share one cache
        chain = retriever | (lambda found: len(found))
        assert chain.batch(["Danube", "Mont Blanc"]) == [2, 2]
        with pytest.raises(SearchError, match="empty"):
            retriever.invoke(" ")


def test_our_retriever_splits_whole_questions():
    retriever = as_retriever("demo", k=2, split="demo")
    documents = retriever.invoke(QUESTION)
    assert [document.metadata["title"] for document in documents] == ["Claude Monet", "Camille Pissarro"]
    assert documents[1].metadata["queries"] == ["When was Camille Pissarro born?"]
    assert asyncio.run(retriever.ainvoke(QUESTION)) == documents
    whole = as_retriever("demo", k=2).invoke(QUESTION)
    assert "queries" not in whole[0].metadata
    with SharedSearch("demo", split="demo") as search, pytest.raises(UsageError, match="if it was made so"):
        as_retriever(search, split="demo")


def test_the_agent_is_a_tool_blocking_and_async():
    with quick_agent() as agent:
        tool = agent_tool(agent)
        assert tool.args == {"question": {"title": "Question", "type": "string"}}
        assert tool.invoke({"question": QUESTION}) == "Camille Pissarro"
        call = {"type": "tool_call", "id": "7", "name": tool.name, "args": {"question": QUESTION}}
        message = asyncio.run(tool.ainvoke(call))
        assert message.content == "Camille Pissarro"
        assert message.artifact.trajectory.num_subqueries == 2
        # A question the policy has no turns for: the tool says so in words.
        assert tool.invoke({"question": "zzz qqq?"}).startswith("No answer was found (")


@pytest.fixture
def paged(tmp_path):
    pages = [Passage(f"{n}", "Lease", f"Notice {n} is given.", metadata={"page": n % 3}) for n in range(9)]
    build_bm25(pages, tmp_path / "index")
    return f"bm25:{tmp_path / 'index'}"


def test_a_call_says_how_many_and_of_which_passages(paged):
    with as_retriever(paged, k=2) as retriever:
        assert [document.id for document in retriever.invoke("notice")] == ["0", "1"]
        assert [document.id for document in retriever.invoke("notice", k=3)] == ["0", "1", "2"]
        assert [document.id for document in retriever.invoke("notice", filter={"page": 2})] == ["2", "5"]
        found = asyncio.run(retriever.ainvoke("notice", k=9, filter={"page": [1, 2]}))
        assert [document.metadata["page"] for document in found] == [1, 2, 1, 2, 1, 2]
        assert [document.id for document in retriever.invoke("notice")] == ["0", "1"]


def test_what_a_call_cannot_take_is_refused(paged):
    with as_retriever(paged, k=2) as retriever:
        for options, words in (
            ({"filters": {"page": 2}}, "has no option 'filters'. Did you mean 'filter'"),
            ({"filter": {"pages": 2}}, "Did you mean 'page'"),
            ({"filter": {"page": {"$gte": 2}}}, "compares a field with a value"),
        ):
            with pytest.raises(UsageError, match=words):
                retriever.invoke("notice", **options)
            with pytest.raises(UsageError, match=words):
                asyncio.run(retriever.ainvoke("notice", **options))


def test_a_filter_goes_through_the_splitting_and_is_refused_where_it_cannot_be_kept(paged):
    with as_retriever(paged, k=2, split=quick_policy()) as retriever:
        assert [document.metadata["page"] for document in retriever.invoke("notice", filter={"page": 2})] == [2, 2]
    with (
        as_retriever(Search(lambda query: [query])) as retriever,
        pytest.raises(UsageError, match="cannot narrow what it finds"),
    ):
        retriever.invoke("notice", filter={"page": 2})
