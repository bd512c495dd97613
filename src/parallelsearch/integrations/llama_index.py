"""LlamaIndex: its retrievers as backends, and our search and agent as a retriever and a tool for it.

    Search(LlamaIndexRetriever(index.as_retriever(similarity_top_k=5)))     # theirs in our agent
    as_retriever("bm25:my-index")                                           # ours in their query engines
    as_retriever("bm25:my-index", split=POLICY)                             # the same, and questions are split
    agent_tool(Agent(...))                                                  # the whole agent as a tool for their agents

Needs llama-index-core only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from parallelsearch.agent import Agent
from parallelsearch.errors import UsageError, require
from parallelsearch.integrations import (
    BOOKKEEPING,
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
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.schema import NodeWithScore, QueryBundle
    from llama_index.core.tools import FunctionTool
    from llama_index.core.vector_stores import MetadataFilters

    class OurRetriever(BaseRetriever, Closing):
        """What `as_retriever` gives."""


EXTRA = "integrations"


class LlamaIndexRetriever(ForeignRetriever):
    """A LlamaIndex retriever as a backend. It gives as many nodes as it was made to give (`similarity_top_k`), cut to
    `k`: LlamaIndex has no number for one call."""

    name = "llama-index"

    def __init__(self, retriever: BaseRetriever, max_concurrency: int = 16) -> None:
        super().__init__(retriever, max_concurrency)
        require("llama_index.core", EXTRA)
        from llama_index.core.base.base_retriever import BaseRetriever

        if not isinstance(retriever, BaseRetriever):
            raise UsageError(f"expected a LlamaIndex retriever, found {type(retriever).__name__}")
        self._retriever = retriever

    async def find(self, query: str, k: int) -> list[Hit]:
        found = await self._retriever.aretrieve(query)
        return [
            hit_of(node.node.get_content(), node.node.metadata, rank, node.node.node_id, node.score)
            for rank, node in enumerate(found, 1)
        ]


def as_retriever(
    search: SharedSearch | Search | str,
    k: int | None = None,
    split: Policy | str | None = None,
    filters: MetadataFilters | None = None,
) -> OurRetriever:
    """Our search as a LlamaIndex retriever. `k` is the search's own unless given; a search that failed raises. With `split`,
    a policy or its address, the question is split and `k` passages are for all its parts. `filters` say what metadata must
    equal (`==`, `in`; all of them). It can be closed, and used in a `with` block."""
    require("llama_index.core", EXTRA)
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.schema import NodeWithScore, TextNode

    wheres = [] if filters is None else _wheres(filters)
    found = shared(search, k, split)
    for where in wheres:
        found = found.where(where)

    def nodes(hits: list[Hit]) -> list[NodeWithScore]:
        unseen = {"excluded_llm_metadata_keys": list(BOOKKEEPING), "excluded_embed_metadata_keys": list(BOOKKEEPING)}
        return [
            NodeWithScore(
                node=TextNode(id_=hit.id, text=hit.text, metadata=metadata_of(hit), **unseen), score=hit.score
            )
            for hit in hits
        ]

    class ParallelSearchRetriever(BaseRetriever, Closing):
        _found, _given, _make = found, (search, k, split, filters), staticmethod(as_retriever)

        def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            return nodes(found.find(query_bundle.query_str))

        async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            return nodes(await found.find_async(query_bundle.query_str))

        # Copied as if it were pickled, it would open a second search. (LangChain's copies in its own way.)
        def __copy__(self) -> ParallelSearchRetriever:
            return self

        def __deepcopy__(self, memo: object) -> ParallelSearchRetriever:
            return self

    return cast("OurRetriever", ParallelSearchRetriever())


def _wheres(filters: MetadataFilters) -> list[dict[str, Any]]:
    """What each filter wants; all must hold."""
    every: list[Any] = list(filters.filters)
    is_and = filters.condition == "and" or (len(every) < 2 and filters.condition != "not")
    if not is_and or not all(map(_is_plain, every)):
        raise UsageError(f"filters can be '==' a value and 'in' a list, joined by 'and', not: {filters!r}")
    return [{one.key: one.value} for one in every]


def _is_plain(one: Any) -> bool:
    """One that `where` means the same by: there a list is one of which any may fit."""
    operator = getattr(one, "operator", None)
    return operator == "in" or (operator == "==" and not isinstance(one.value, list))


def agent_tool(agent: Agent, name: str = TOOL_NAME, description: str = TOOL_DESCRIPTION) -> FunctionTool:
    """The agent as a tool. Its content is the answer, its raw output the `Answered` with the trajectory."""
    require("llama_index.core", EXTRA)
    from llama_index.core.tools import FunctionTool

    def ask(question: str) -> Answered:
        return answer(agent, question)

    async def ask_async(question: str) -> Answered:
        return await answer_async(agent, question)

    return FunctionTool.from_defaults(ask, async_fn=ask_async, name=name, description=description)
