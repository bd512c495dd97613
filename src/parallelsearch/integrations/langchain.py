"""LangChain: its retrievers as backends, and our search and agent as a retriever and a tool for it.

    Search(LangChainRetriever(store.as_retriever()))     # theirs in our agent
    as_retriever("bm25:my-index")                        # ours in their chains
    as_retriever("bm25:my-index", split=POLICY)          # the same, and questions are split
    retriever.invoke("Who?", k=2, filter={"page": 3})    # for one call: how many, and of which passages
    agent_tool(Agent(...))                               # the whole agent as a tool for their agents

Needs langchain-core only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar, cast

from parallelsearch.agent import Agent
from parallelsearch.errors import UsageError, refuse_unknown, require
from parallelsearch.integrations import (
    TOOL_DESCRIPTION,
    TOOL_NAME,
    Answered,
    Closing,
    ForeignRetriever,
    SharedSearch,
    answer,
    answer_async,
    hit_of,
    metadata_of,
    shared,
)
from parallelsearch.policy.base import Policy
from parallelsearch.retrieval.base import Hit
from parallelsearch.search import Search

if TYPE_CHECKING:
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.runnables import Runnable
    from langchain_core.tools import StructuredTool

    class OurRetriever(BaseRetriever, Closing):
        """What `as_retriever` gives."""


EXTRA = "integrations"


class LangChainRetriever(ForeignRetriever):
    """A LangChain retriever, or any runnable from a string to documents, as a backend.

    A vector store's retriever is asked for `k` documents; others give as many as they were made to give, cut to `k`.
    """

    name = "langchain"

    def __init__(self, retriever: Runnable[str, list[Document]], max_concurrency: int = 16) -> None:
        super().__init__(retriever, max_concurrency)
        require("langchain_core", EXTRA)
        from langchain_core.runnables import Runnable
        from langchain_core.vectorstores import VectorStoreRetriever

        if not isinstance(retriever, Runnable):
            raise UsageError(f"expected a LangChain retriever, found {type(retriever).__name__}")
        self._retriever = retriever
        self._takes_k = isinstance(retriever, VectorStoreRetriever)

    async def find(self, query: str, k: int) -> list[Hit]:
        options: dict[str, Any] = {"k": k} if self._takes_k else {}
        documents = await self._retriever.ainvoke(query, **options)
        return [
            hit_of(document.page_content, document.metadata, rank, document.id)
            for rank, document in enumerate(documents, 1)
        ]


def as_retriever(
    search: SharedSearch | Search | str, k: int | None = None, split: Policy | str | None = None
) -> OurRetriever:
    """Our search as a LangChain retriever. `k` is the search's own unless given; a search that failed raises. With `split`, a
    policy or its address, the question is split and `k` passages are for all its parts. It can be closed, and used in a
    `with` block. A call takes `k` and `filter`, the values that metadata must have (`Retriever.where`), and nothing else."""
    require("langchain_core", EXTRA)
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever

    found = shared(search, k, split)

    def documents(hits: list[Hit]) -> list[Document]:
        return [Document(page_content=hit.text, id=hit.id, metadata=metadata_of(hit)) for hit in hits]

    def narrowed(options: dict[str, Any]) -> SharedSearch:
        refuse_unknown(options, ("filter", "k"), "a call of this retriever")
        fields = options.get("filter")
        return found if fields is None else found.where(fields)

    class ParallelSearchRetriever(BaseRetriever, Closing):
        _found: ClassVar[SharedSearch] = found
        _given: ClassVar[tuple[Any, ...]] = (search, k, split)
        _make: ClassVar[Any] = staticmethod(as_retriever)

        def _get_relevant_documents(
            self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **options: Any
        ) -> list[Document]:
            return documents(narrowed(options).find(query, options.get("k")))

        async def _aget_relevant_documents(
            self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **options: Any
        ) -> list[Document]:
            search = await asyncio.to_thread(narrowed, options)  # the first filter on a field reads all passages
            return documents(await search.find_async(query, options.get("k")))

    return cast("OurRetriever", ParallelSearchRetriever())


def agent_tool(agent: Agent, name: str = TOOL_NAME, description: str = TOOL_DESCRIPTION) -> StructuredTool:
    """The agent as a tool. Its content is the answer, its artifact the `Answered` with the trajectory."""
    require("langchain_core", EXTRA)
    from langchain_core.tools import StructuredTool

    def ask(question: str) -> tuple[str, Answered]:
        found = answer(agent, question)
        return str(found), found

    async def ask_async(question: str) -> tuple[str, Answered]:
        found = await answer_async(agent, question)
        return str(found), found

    return StructuredTool.from_function(
        ask, ask_async, name=name, description=description, response_format="content_and_artifact"
    )
