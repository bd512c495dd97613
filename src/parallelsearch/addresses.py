"""Addresses to objects: `bm25:DIR`, `openai:URL#MODEL` and the like, the same in the command line, recipes and Python.

No registry: an address is a scheme and the rest, and a row of a table says what it means, who builds it, and what in it is
a path. A new backend is its own module and one row here. Backends are imported when asked for, so an address is also
where a missing extra is noticed.

Options of a search stand right behind its scheme, `dense?nprobe=64:DIR`: behind the rest they could not be told from the
name of a file, the query of a URL or the words of a command, and in `rerank:MODEL+ADDRESS` not whose they are.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallelsearch.dialects import open_dialect
from parallelsearch.errors import ParallelSearchError, UsageError, nearest
from parallelsearch.files import PathLike
from parallelsearch.named import load_named, said
from parallelsearch.options import read_options
from parallelsearch.retrieval.own import Backend, as_retriever
from parallelsearch.search import Search

if TYPE_CHECKING:
    from parallelsearch.policy.base import Policy
    from parallelsearch.retrieval.base import Retriever
    from parallelsearch.retrieval.live_files import LiveFiles

OpenPart = Callable[[str], "Retriever"]
logger = logging.getLogger(__name__)
_DAY_S = 86_400.0
PYTHON = "python"
"""The scheme of what the caller wrote."""
_HOST_AND_PORT = re.compile(r"[\w.-]+:\d{1,5}(?:/.*)?")

# ---- the table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Address:
    """A kind of address. What stands after the colon of `form` has to be there; `demo` has no colon and takes nothing."""

    form: str
    meaning: str
    build: str | Callable[..., Any]
    """Who makes the object from the rest: a function, or `module:name` under this package, imported when asked for."""
    whole: Callable[[str], str] | None = None
    """The rest with its paths made whole ones; None where it holds none."""
    is_index: bool = False
    """An index of this machine that several processes may map at once (`workers`)."""
    stamps: str = ""
    """Of an index that is no folder with a manifest: who makes what tells that it is to be opened again."""
    options: Mapping[str, type] = field(default_factory=dict)
    """What may stand behind the scheme of a search: keywords of who builds it."""
    parts: Callable[[str], list[str]] | None = None
    """The addresses of other searches in the rest, which who builds it opens with its keyword `open_part`."""

    @property
    def scheme(self) -> str:
        return self.form.partition(":")[0]

    def builder(self) -> Callable[..., Any]:
        return _own_code(self.build) if isinstance(self.build, str) else self.build


def _own_code(name: str) -> Callable[..., Any]:
    module, _, name = name.partition(":")
    made: Callable[..., Any] = attrgetter(name)(importlib.import_module(f"parallelsearch.{module}"))
    return made


def _path(rest: str) -> str:
    """With the home of whoever `~` names; as it is written where there is no such user."""
    return str(Path(os.path.expanduser(rest)).absolute())


def _path_if_there(rest: str) -> str:
    """A model is a folder or a name of the hub."""
    return _path(rest) if os.path.exists(_path(rest)) else rest


def _path_or_uri(rest: str) -> str:
    return rest if "://" in rest else _path(rest)


def _rerank_parts(rest: str) -> tuple[str, str]:
    model, _, inner = (part.strip() for part in rest.partition("+"))
    if not model or not inner:
        raise UsageError(f"'rerank:{rest}' needs a cross-encoder and a search: rerank:MODEL+ADDRESS")
    return model, inner


def _rerank(rest: str, open_part: OpenPart, **options: Any) -> Retriever:
    from parallelsearch.retrieval.rerank import RerankRetriever

    model, inner = _rerank_parts(rest)
    return RerankRetriever(open_part(inner), model, **options)


def _whole_rerank(rest: str) -> str:
    model, inner = _rerank_parts(rest)
    return f"{_path_if_there(model)}+{with_whole_path(inner)}"


def _pages(rest: str, open_part: OpenPart, **options: Any) -> Retriever:
    from parallelsearch.retrieval.pages import PagesRetriever

    return PagesRetriever(open_part(rest), **options)


def _whole_pages(rest: str) -> str:
    return with_whole_path(rest)


def _faiss_parts(rest: str) -> tuple[str, str, str]:
    files, _, encoder = (part.strip() for part in rest.partition("#"))
    index, _, corpus = (part.strip() for part in files.partition("+"))
    if not index or not corpus or not encoder:
        raise UsageError(
            f"'faiss:{rest}' needs the index, the corpus it was made from and its encoder: faiss:INDEX+CORPUS#ENCODER, "
            "for example faiss:e5_Flat.index+wiki-18.jsonl.gz#intfloat/e5-base-v2"
        )
    return index, corpus, encoder


def _faiss(rest: str, **options: Any) -> Retriever:
    from parallelsearch.retrieval.readymade import open_readymade

    index, corpus, encoder = _faiss_parts(rest)
    return open_readymade(os.path.expanduser(index), os.path.expanduser(corpus), encoder, **options)


def _whole_faiss(rest: str) -> str:
    index, corpus, encoder = _faiss_parts(rest)
    return f"{_path(index)}+{_path(corpus)}#{_path_if_there(encoder)}"


def _all_parts(rest: str) -> list[str]:
    parts = [part.strip() for part in rest.split("|")]
    if len(parts) < 2 or not all(parts):
        raise UsageError(
            f"'all:{rest}' needs two addresses or more with | between them: all:ADDRESS|ADDRESS, for example "
            "'all:bm25:my-index|serper:'"
        )
    return parts


def _all(rest: str, open_part: OpenPart, **options: Any) -> Retriever:
    from parallelsearch.joined import JoinedRetriever

    return JoinedRetriever([open_part(part) for part in _all_parts(rest)], **options)


def _whole_all(rest: str) -> str:
    return "|".join(map(with_whole_path, _all_parts(rest)))


def _auto() -> Policy:
    from parallelsearch.policy.auto import choose

    choice = choose()
    logger.info("%s", choice)
    return open_policy(choice.address)


def _own_search(rest: str) -> Retriever:
    found = load_named(rest, "search")
    if isinstance(found, type) or (inspect.isfunction(found) and not inspect.signature(found).parameters):
        found = _made(found, rest, "search")
    try:
        return as_retriever(found)
    except UsageError as error:
        raise UsageError(f"'{PYTHON}:{rest}': {error}") from error


def _own_policy(rest: str) -> Policy:
    from parallelsearch.policy.base import Policy

    found = load_named(rest, "policy")
    if not isinstance(found, Policy) and callable(found):
        found = _made(found, rest, "policy")
    if not isinstance(found, Policy):
        raise UsageError(
            f"'{PYTHON}:{rest}' gives a {type(found).__name__}, no policy: write a class that inherits from "
            "parallelsearch.Policy and has an async method generate, and name it, one of it, or a function that makes one"
        )
    return found


def _made(maker: Callable[[], object], rest: str, what: str) -> object:
    """What a class or a function of the caller's own makes, without arguments."""
    try:
        inspect.signature(maker).bind()
    except TypeError as error:
        raise UsageError(
            f"'{PYTHON}:{rest}' is called without arguments, and there is {error}; name a function that takes none and "
            f"makes the {what}: def mine(): return {maker.__name__}(...)"
        ) from error
    except ValueError:  # of C, which does not tell
        pass
    try:
        return maker()
    except (Exception, SystemExit) as error:
        raise UsageError(f"'{PYTHON}:{rest}' made no {what}: {said(error)}") from error


_WHERE = {"where": dict}
_NPROBE = {"nprobe": int}
_ENCODER = {"encoder": str}
_TIMEOUT = {"timeout_s": float}
_HEADERS = {"headers_env": str}
_SERVER = {**_TIMEOUT, **_HEADERS}
_WEB = {**_SERVER, "site": str, "since": str}
SEARCH_ADDRESSES = (
    Address("demo", "the embedded corpus", "data.demo:retriever", is_index=True),
    Address(
        "files:PATH",
        "a folder of documents or a corpus file, indexed by itself",
        "retrieval.live_files:open_files",
        _path,
        is_index=True,
        stamps="retrieval.live_files:stamps_of",
        options={"stemmer": str, "title_weight": int, "chunk_words": int, **_WHERE},
    ),
    Address(
        "bm25:DIR",
        "a BM25 index built by 'parallelsearch index'",
        "retrieval.bm25:BM25Retriever",
        _path,
        is_index=True,
        options=_WHERE,
    ),
    Address(
        "dense:DIR",
        "a dense index",
        "retrieval.dense:DenseRetriever",
        _path,
        is_index=True,
        options={**_NPROBE, **_ENCODER, **_WHERE},
    ),
    Address(
        "hybrid:DIR",
        "BM25 and dense, fused",
        "retrieval.hybrid:open_hybrid",
        _path,
        is_index=True,
        options={"weights": tuple, "depth": int, "rrf_k": int, **_NPROBE, **_ENCODER, **_WHERE},
    ),
    Address(
        "faiss:INDEX+CORPUS#ENCODER",
        "a faiss index with the JSON Lines it was made from",
        _faiss,
        _whole_faiss,
        options=_NPROBE,
    ),
    Address(
        "rerank:MODEL+ADDRESS",
        "any of these, put in order by a cross-encoder",
        _rerank,
        _whole_rerank,
        options={"depth": int},
        parts=lambda rest: [_rerank_parts(rest)[1]],
    ),
    Address(
        "all:ADDRESS|ADDRESS",
        "several of these at once, their hits in turns",
        _all,
        _whole_all,
        options={"weights": tuple},
        parts=_all_parts,
    ),
    Address(
        "http://HOST:PORT/retrieve",
        "a search server, several with commas",
        "retrieval.remote:RemoteRetriever",
        options=_SERVER,
    ),
    Address("serper:", "web search; key in SERPER_API_KEY", "retrieval.web:SerperRetriever", options=_WEB),
    Address("tavily:", "web search; key in TAVILY_API_KEY", "retrieval.web:TavilyRetriever", options=_WEB),
    Address("brave:", "web search; key in BRAVE_API_KEY", "retrieval.web:BraveRetriever", options=_WEB),
    Address("exa:", "web search; key in EXA_API_KEY", "retrieval.web:ExaRetriever", options=_WEB),
    Address("searxng:URL", "a SearXNG instance", "retrieval.web:SearxngRetriever", options=_WEB),
    Address(
        "wikipedia:",
        "Wikipedia itself, no key; in another language wikipedia:de, another wiki wikipedia:URL of its api.php",
        "retrieval.wikipedia:WikipediaRetriever",
        options=_SERVER,
    ),
    Address(
        "pages:ADDRESS",
        "any of these that finds pages of the web, with what they say in place of snippets",
        _pages,
        _whole_pages,
        options={**_TIMEOUT, "depth": int, "words": int, "private": bool},
        parts=lambda rest: [rest],
    ),
    Address(
        "mcp:COMMAND_OR_URL",
        "the search tool of an MCP server",
        "retrieval.mcp_client:McpRetriever",
        options={"tool": str, **_SERVER, "connect_timeout_s": float},
    ),
    Address(
        "milvus:URI",
        "a Milvus server, or a Milvus Lite file",
        "retrieval.milvus:MilvusRetriever",
        _path_or_uri,
        options={"collection": str, "mode": str, **_ENCODER},
    ),
    Address(
        "elastic:URL#INDEX",
        "an index of Elasticsearch or OpenSearch; key in ELASTIC_API_KEY",
        "retrieval.elastic:ElasticRetriever",
        options={"text": str, "title": str, "url": str, "fields": str, "chars": int, **_SERVER, **_WHERE},
    ),
    Address("replay:FILE", "recorded searches", "retrieval.replay:ReplayRetriever", _path),
    Address(f"{PYTHON}:MODULE:NAME", "a function or an object of your own that searches", _own_search),
)
DEFAULT_POLICY = "auto"
"""For whoever names no policy, in Python and on the command line."""
POLICY_ADDRESSES = (
    Address("auto", "the trained policy where an engine is installed, else 'demo'", _auto),
    Address("demo", "replays the turns written for the demo questions", "data.demo:DemoPolicy"),
    Address(
        "gguf:FILE",
        "a GGUF file on llama.cpp, without torch; with a LoRA adapter: gguf:FILE+ADAPTER",
        "policy.gguf:GgufPolicy.from_address",
    ),
    Address(
        "hf:PATH_OR_ID",
        "a transformers model; with a LoRA adapter: hf:PATH_OR_ID+ADAPTER",
        "policy.local:LocalPolicy.from_address",
    ),
    Address("openai:BASE_URL#MODEL", "any OpenAI-compatible server", "policy.openai:OpenAIPolicy.from_address"),
    Address(
        "anthropic:#MODEL",
        "Anthropic's Messages API; key in ANTHROPIC_API_KEY; elsewhere: anthropic:BASE_URL#MODEL",
        "policy.anthropic:AnthropicPolicy.from_address",
    ),
    Address(
        "script:FILE",
        "replays written turns (JSON: question -> list of turns)",
        "policy.scripted:ScriptedPolicy.from_file",
        _path,
    ),
    Address(f"{PYTHON}:MODULE:NAME", "a Policy of your own, its class or a function that makes it", _own_policy),
)


def _found(address: str, what: str, known: tuple[Address, ...]) -> tuple[Address, str]:
    """The row an address belongs to, and what stands after its colon."""
    scheme, _, rest = address.strip().partition(":")
    scheme = scheme.partition("?")[0] if what == "search" else scheme
    rest = rest.strip()
    row = next((row for row in known if row.scheme == ("http" if scheme == "https" else scheme)), None)
    if row is None or (rest and ":" not in row.form):
        raise _unknown(what, address, known)
    if not rest and row.form.partition(":")[2]:
        raise UsageError(f"the address '{address}' ends after the colon; it goes on like {row.form}")
    return row, os.path.expanduser(rest) if row.whole is _path else rest  # a shell leaves the `~` behind a colon alone


def _unknown(what: str, address: str, known: tuple[Address, ...]) -> UsageError:
    rows = "\n".join(f"  {row.form:<28} {row.meaning}" for row in known)
    schemes = [row.scheme for row in known]
    hint = _meant(address.strip(), what) or nearest(address.partition(":")[0].partition("?")[0], schemes)
    return UsageError(f"'{address}' is no {what} address.{hint} Known addresses:\n{rows}")


def _meant(address: str, what: str) -> str:
    """What to type for something that is there but has no scheme before it."""
    path = Path(_path(address))
    if os.path.isdir(path):  # which says no, too, of what is too long for a path
        scheme = _kind_of(path) if what == "search" else "hf"
        return f" '{address}' is a folder: write {scheme}:{address}."
    if os.path.isfile(path):
        scheme = "files" if what == "search" else "gguf" if path.suffix == ".gguf" else "script"
        return f" '{address}' is a file: write {scheme}:{address}."
    if what == "search" and _HOST_AND_PORT.fullmatch(address):
        return f" For a search server write http://{address.partition('/')[0]}/retrieve."
    return ""


def _kind_of(folder: Path) -> str:
    """Of an index its kind; any other folder is one of documents."""
    from parallelsearch.retrieval.hybrid import PART_FOLDERS
    from parallelsearch.retrieval.store import open_manifest

    if all((folder / part).is_dir() for part in PART_FOLDERS):
        return "hybrid"
    try:
        return open_manifest(folder).kind
    except ParallelSearchError:
        return "files"


# ---- opening ---------------------------------------------------------------------------------------------------------


def open_search(
    address: str = "demo",
    *,
    k: int = 3,
    record: PathLike | None = None,
    must_record: bool = True,
    cache: PathLike | None = None,
    cache_days: float | None = None,
    workers: int = 0,
    split: Policy | str | None = None,
    where: Mapping[str, Any] | None = None,
    reopen: bool = False,
    **options: Any,
) -> Search:
    """The search at an address. `where` narrows an index to passages by their metadata, `{"page": 3}` or `{"page": [3, 4]}`.
    `record` writes every answer to a file for `replay:`; without `must_record`, as in a server, searches go on where that
    fails. `cache` keeps answers in a SQLite file across runs, for `cache_days` where that is given, `workers` searches an
    index of this machine in so many processes; with `split`, a policy or its address, it takes whole questions, and its hits
    are the merged passages of their parts. With `reopen` an index of this machine that is built again is opened again, as by
    a server. Other options are those of `Search`."""
    _check_days(cache, cache_days)
    if reopen and record is not None:
        raise UsageError("a recording is of one index: give record, or reopen, not both")
    searches: list[Search] = []

    def forget() -> None:
        for one in searches:
            one.forget()

    on_change = forget if reopen else None
    open_it = functools.partial(_in_processes, workers=workers) if workers else open_retriever
    retriever = open_it(address, where=where, on_change=on_change)
    searches.append(Search(_keeping(retriever, record, cache, cache_days, must_record), k=k, **options))
    if split is not None:
        from parallelsearch.retrieving import splitting

        searches.append(splitting(open_policy(split) if isinstance(split, str) else split, searches[0]))
    return searches[-1]


def open_own_search(
    backend: Backend,
    *,
    k: int = 3,
    record: PathLike | None = None,
    cache: PathLike | None = None,
    cache_days: float | None = None,
) -> Search:
    """The same for a backend of the caller's own."""
    _check_days(cache, cache_days)
    return Search(_keeping(as_retriever(backend), record, cache, cache_days), k=k)


def _check_days(cache: PathLike | None, cache_days: float | None) -> None:
    if cache_days is not None and (cache is None or not cache_days > 0):
        raise UsageError(
            f"cache_days ({cache_days:g}) is how long the cache keeps an answer: more than 0 days, in a file that "
            "--cache FILE names (in Python: cache=)"
        )


def _keeping(
    retriever: Retriever,
    record: PathLike | None,
    cache: PathLike | None,
    cache_days: float | None,
    must_record: bool = True,
) -> Retriever:
    if cache is not None:
        from parallelsearch.retrieval.cache import CachedRetriever

        retriever = CachedRetriever(retriever, cache, ttl_s=None if cache_days is None else cache_days * _DAY_S)
    if record is not None:
        from parallelsearch.retrieval.replay import RecordingRetriever

        retriever = RecordingRetriever(retriever, record, must_be_whole=must_record)
    return retriever


def search_of(search: Search | Backend | str, k: int = 3) -> Search:
    """The search a caller means: an address, a backend of the caller's own (an object or a function), or a `Search`."""
    if isinstance(search, Search):
        return search
    return open_search(search, k=k) if isinstance(search, str) else Search(search, k=k)


def open_retriever(
    address: str, where: Mapping[str, Any] | None = None, on_change: Callable[[], None] | None = None
) -> Retriever:
    """The bare backend at an address, narrowed to what the address says and to `where`. With `on_change` an index that is
    built again is opened again, and then it is called."""
    row, rest = _found(address, "search", SEARCH_ADDRESSES)
    scheme, options = _options(address, row)
    if on_change is not None and row.is_index and rest:
        return _reopening(functools.partial(open_retriever, address, where), address, on_change)
    if row.scheme == "http":  # the scheme is part of what it points to
        rest = f"{scheme}:{rest}"
    wheres = (options.pop("where", None), where)
    if row.parts is not None:
        options["open_part"] = functools.partial(open_retriever, on_change=on_change)
    retriever: Retriever = row.builder()(rest, **options) if ":" in row.form else row.builder()()
    for wanted in wheres:
        retriever = retriever if wanted is None else retriever.where(wanted)
    return retriever


def _options(address: str, row: Address) -> tuple[str, dict[str, Any]]:
    """The scheme as it is written, and what stands behind it."""
    scheme, _, written = address.strip().partition(":")[0].partition("?")
    return scheme, read_options(written, row.options, f"{scheme}:")


def _reopening(open_index: Callable[[], Retriever], address: str, on_change: Callable[[], None]) -> Retriever:
    from parallelsearch.retrieval.reopening import ReopeningRetriever

    row, rest = _found(address, "search", SEARCH_ADDRESSES)
    options = {name: value for name, value in _options(address, row)[1].items() if name != "where"}
    stamps = _own_code(row.stamps)(rest, **options) if row.stamps else None
    return ReopeningRetriever(open_index, rest, on_change, stamps)


def _in_processes(
    address: str, where: Mapping[str, Any] | None, on_change: Callable[[], None] | None, workers: int
) -> Retriever:
    from parallelsearch.retrieval.processes import ProcessRetriever

    row, rest = _found(address, "search", SEARCH_ADDRESSES)
    if not row.is_index:
        known = ", ".join(row.scheme for row in SEARCH_ADDRESSES if row.is_index)
        raise UsageError(f"workers are for an index on this machine ({known}), not for '{address}'")
    open_index = functools.partial(ProcessRetriever, functools.partial(open_retriever, address, where), workers)
    return open_index() if on_change is None or not rest else _reopening(open_index, address, on_change)


def open_policy(address: str = DEFAULT_POLICY, **options: Any) -> Policy:
    """The policy at an address; options are those of its class."""
    row, rest = _found(address, "policy", POLICY_ADDRESSES)
    policy: Policy = row.builder()(rest, **options) if ":" in row.form else row.builder()()
    policy.address = policy.address or address.strip()  # `auto` has opened another
    talk = open_dialect(policy.dialect)
    policy.expect([talk.prompt(question, "") for question in ("Who?", "And when was it?")], talk.tools)
    return policy


def open_twin(policy: Policy, dialect: str) -> Policy | None:
    """The policy's twin: an adapter of the package on the same base, trained on that dialect. None where it has none."""
    from parallelsearch.policy.models import twin_of

    address = None if policy.address is None or policy.dialect == dialect else twin_of(policy.address, dialect)
    return None if address is None else open_policy(address)


def files_of(address: str) -> list[LiveFiles]:
    """The files that an address searches as they lie there, those of its parts included."""
    try:
        row, rest = _found(address, "search", SEARCH_ADDRESSES)
        parts = [] if row.parts is None else row.parts(rest)
        options = _options(address, row)[1]
    except UsageError:  # whoever opens it says what is wrong with it
        return []
    if row.scheme != "files":
        return [files for part in parts for files in files_of(part)]
    from parallelsearch.retrieval.live_files import live_files

    return [live_files(rest, **{name: value for name, value in options.items() if name != "where"})]


def with_whole_path(address: str) -> str:
    """The search address with its paths made whole ones, for a process that runs in another folder. What is no path, or no
    address, stays as it is."""
    try:
        row, rest = _found(address, "search", SEARCH_ADDRESSES)
        return address if row.whole is None else f"{address.strip().partition(':')[0]}:{row.whole(rest)}"
    except UsageError:  # whoever opens it says what is wrong with it
        return address
