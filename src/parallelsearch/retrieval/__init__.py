"""Search backends: `base` says what one is; each other module is one backend or a part that several of them share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallelsearch.lazy import export

if TYPE_CHECKING:
    from parallelsearch.retrieval.base import BlockingRetriever as BlockingRetriever
    from parallelsearch.retrieval.base import Hit as Hit
    from parallelsearch.retrieval.base import Passage as Passage
    from parallelsearch.retrieval.base import Result as Result
    from parallelsearch.retrieval.base import Retriever as Retriever
    from parallelsearch.retrieval.bm25 import BM25Retriever as BM25Retriever
    from parallelsearch.retrieval.corpus import read_corpus as read_corpus
    from parallelsearch.retrieval.corpus import read_passages as read_passages
    from parallelsearch.retrieval.dense import DenseRetriever as DenseRetriever
    from parallelsearch.retrieval.encoder import Encoder as Encoder
    from parallelsearch.retrieval.hybrid import HybridRetriever as HybridRetriever
    from parallelsearch.retrieval.indexing import build_index as build_index
    from parallelsearch.retrieval.indexing import plan_index as plan_index
    from parallelsearch.retrieval.mcp_client import McpRetriever as McpRetriever
    from parallelsearch.retrieval.milvus import MilvusRetriever as MilvusRetriever
    from parallelsearch.retrieval.pages import PagesRetriever as PagesRetriever
    from parallelsearch.retrieval.readymade import open_readymade as open_readymade
    from parallelsearch.retrieval.remote import RemoteRetriever as RemoteRetriever
    from parallelsearch.retrieval.replay import RecordingRetriever as RecordingRetriever
    from parallelsearch.retrieval.replay import ReplayRetriever as ReplayRetriever
    from parallelsearch.retrieval.rerank import RerankRetriever as RerankRetriever
    from parallelsearch.retrieval.served_encoder import ServedEncoder as ServedEncoder
    from parallelsearch.retrieval.text_encoder import TextEncoder as TextEncoder
    from parallelsearch.retrieval.web import BraveRetriever as BraveRetriever
    from parallelsearch.retrieval.web import SearxngRetriever as SearxngRetriever
    from parallelsearch.retrieval.web import SerperRetriever as SerperRetriever
    from parallelsearch.retrieval.web import TavilyRetriever as TavilyRetriever
    from parallelsearch.retrieval.web import WebRetriever as WebRetriever

export(
    __name__,
    {
        "base": ("BlockingRetriever", "Hit", "Passage", "Result", "Retriever"),
        "bm25": ("BM25Retriever",),
        "corpus": ("read_corpus", "read_passages"),
        "dense": ("DenseRetriever",),
        "encoder": ("Encoder",),
        "hybrid": ("HybridRetriever",),
        "indexing": ("build_index", "plan_index"),
        "mcp_client": ("McpRetriever",),
        "milvus": ("MilvusRetriever",),
        "pages": ("PagesRetriever",),
        "readymade": ("open_readymade",),
        "remote": ("RemoteRetriever",),
        "replay": ("RecordingRetriever", "ReplayRetriever"),
        "rerank": ("RerankRetriever",),
        "served_encoder": ("ServedEncoder",),
        "text_encoder": ("TextEncoder",),
        "web": ("BraveRetriever", "SearxngRetriever", "SerperRetriever", "TavilyRetriever", "WebRetriever"),
    },
)
