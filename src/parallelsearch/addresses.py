"""Addresses to objects: `bm25:DIR`, `openai:URL#MODEL` and the like, the same in the command line, recipes and Python.

No registry: an address is a scheme and the rest, and this table says who builds it. Backends are imported when asked
for, so an address is also where a missing extra is noticed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallelsearch.errors import UsageError, nearest
from parallelsearch.search import Search

if TYPE_CHECKING:
    from parallelsearch.policy.base import Policy
    from parallelsearch.retrieval.base import Retriever

SEARCH_ADDRESSES = {
    "demo": "the embedded corpus",
    "bm25:DIR": "a BM25 index built by 'parallelsearch index'",
    "dense:DIR": "a dense index",
    "hybrid:DIR": "BM25 and dense, fused",
    "http://HOST:PORT/retrieve": "a search server, several with commas",
    "serper:": "web search; key in SERPER_API_KEY",
    "tavily:": "web search; key in TAVILY_API_KEY",
    "brave:": "web search; key in BRAVE_API_KEY",
    "searxng:URL": "a SearXNG instance",
    "mcp:COMMAND_OR_URL": "the search tool of an MCP server",
    "milvus:URI": "a Milvus server, or a Milvus Lite file",
    "replay:FILE": "recorded searches",
}
POLICY_ADDRESSES = {
    "demo": "replays the turns written for the demo questions",
    "hf:PATH_OR_ID": "a transformers model; with a LoRA adapter: hf:PATH_OR_ID+ADAPTER",
    "openai:BASE_URL#MODEL": "any OpenAI-compatible server",
    "script:FILE": "replays written turns (JSON: question -> list of turns)",
}


def open_search(
    address: str = "demo",
    *,
    k: int = 3,
    record: str | None = None,
    cache: str | None = None,
    workers: int = 0,
    **options: Any,
) -> Search:
    """The search at an address. `record` writes every answer to a file for `replay:`, `cache` keeps answers in a SQLite file
    across runs, `workers` searches an index of this machine in so many processes; other options are those of `Search`."""
    retriever = _in_processes(address, workers) if workers else open_retriever(address)
    if cache is not None:
        from parallelsearch.retrieval.cache import CachedRetriever

        retriever = CachedRetriever(retriever, cache)
    if record is not None:
        from parallelsearch.retrieval.replay import RecordingRetriever

        retriever = RecordingRetriever(retriever, record)
    return Search(retriever, k=k, **options)


def open_retriever(address: str) -> Retriever:
    """The bare backend at an address."""
    scheme, _, rest = address.strip().partition(":")
    if scheme in ("http", "https"):
        from parallelsearch.retrieval.remote import RemoteRetriever

        return RemoteRetriever([url.strip() for url in address.split(",") if url.strip()])
    build = _RETRIEVERS.get(scheme)
    if build is None or (scheme == "demo" and rest):
        raise _unknown("search", address, SEARCH_ADDRESSES)
    return build(_rest(address, rest, scheme not in ("demo", "serper", "tavily", "brave")))


def _in_processes(address: str, workers: int) -> Retriever:
    from parallelsearch.retrieval.processes import ProcessRetriever

    scheme = address.strip().partition(":")[0]
    if scheme not in _LOCAL:
        raise UsageError(f"workers are for an index on this machine ({', '.join(_LOCAL)}), not for '{address}'")
    return ProcessRetriever(functools.partial(open_retriever, address), workers)


def open_policy(address: str = "demo", **options: Any) -> Policy:
    """The policy at an address; options are those of its class."""
    scheme, _, rest = address.strip().partition(":")
    build = _POLICIES.get(scheme)
    if build is None or (scheme == "demo" and rest):
        raise _unknown("policy", address, POLICY_ADDRESSES)
    return build(_rest(address, rest, scheme != "demo"), **options)


def _rest(address: str, rest: str, is_needed: bool) -> str:
    if is_needed and not rest.strip():
        raise UsageError(f"the address '{address}' ends after the colon; say what it points to")
    return rest.strip()


def _unknown(what: str, address: str, known: dict[str, str]) -> UsageError:
    rows = "\n".join(f"  {form:<28} {meaning}" for form, meaning in known.items())
    schemes = [form.partition(":")[0] for form in known]
    hint = nearest(address.partition(":")[0], schemes)
    if not hint and Path(address).is_dir():
        hint = f" '{address}' is a folder: put its kind before it, for example {schemes[1]}:{address}"
    return UsageError(f"'{address}' is no {what} address.{hint} Known addresses:\n{rows}")


# ---- who builds what -------------------------------------------------------------------------------------------------


def _demo_retriever(_: str) -> Retriever:
    from parallelsearch import demo

    return demo.retriever()


def _bm25(rest: str) -> Retriever:
    from parallelsearch.retrieval.bm25 import BM25Retriever

    return BM25Retriever(rest)


def _dense(rest: str) -> Retriever:
    from parallelsearch.retrieval.dense import DenseRetriever

    return DenseRetriever(rest)


def _hybrid(rest: str) -> Retriever:
    from parallelsearch.retrieval.hybrid import open_hybrid

    return open_hybrid(rest)


def _milvus(rest: str) -> Retriever:
    from parallelsearch.retrieval.milvus import MilvusRetriever

    return MilvusRetriever(rest)


def _replay(rest: str) -> Retriever:
    from parallelsearch.retrieval.replay import ReplayRetriever

    return ReplayRetriever(rest)


def _mcp(rest: str) -> Retriever:
    from parallelsearch.retrieval.mcp_client import McpRetriever

    return McpRetriever(rest)


def _serper(rest: str) -> Retriever:
    from parallelsearch.retrieval.web import SerperRetriever

    return SerperRetriever(rest or None)


def _tavily(rest: str) -> Retriever:
    from parallelsearch.retrieval.web import TavilyRetriever

    return TavilyRetriever(rest or None)


def _brave(rest: str) -> Retriever:
    from parallelsearch.retrieval.web import BraveRetriever

    return BraveRetriever(rest or None)


def _searxng(rest: str) -> Retriever:
    from parallelsearch.retrieval.web import SearxngRetriever

    return SearxngRetriever(rest)


_LOCAL = ("demo", "bm25", "dense", "hybrid")

_RETRIEVERS: dict[str, Callable[[str], Retriever]] = {
    "demo": _demo_retriever,
    "bm25": _bm25,
    "dense": _dense,
    "hybrid": _hybrid,
    "milvus": _milvus,
    "replay": _replay,
    "mcp": _mcp,
    "serper": _serper,
    "tavily": _tavily,
    "brave": _brave,
    "searxng": _searxng,
}


def _demo_policy(_: str, **__: Any) -> Policy:
    from parallelsearch import demo

    return demo.DemoPolicy()


def _openai(rest: str, **options: Any) -> Policy:
    from parallelsearch.policy.openai import OpenAIPolicy

    return OpenAIPolicy.from_address(rest, **options)


def _script(rest: str, **options: Any) -> Policy:
    from parallelsearch.policy.scripted import ScriptedPolicy

    return ScriptedPolicy.from_file(rest, **options)


def _hf(rest: str, **options: Any) -> Policy:
    from parallelsearch.policy.local import LocalPolicy

    return LocalPolicy.from_address(rest, **options)


_POLICIES: dict[str, Callable[..., Policy]] = {"demo": _demo_policy, "hf": _hf, "openai": _openai, "script": _script}
