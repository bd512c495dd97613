"""Milvus, when one machine is outgrown: keyword, dense and hybrid search by the server, through pymilvus.

The same code talks to an embedded Milvus Lite file (`corpus.db`, for trying it out) and to a cluster by its address. Passages
live in one collection: Milvus's own BM25 function over title and text, and one vector field where an encoder is used. What
was loaded (corpus hash, encoder with its probe, finished or not) is recorded with the collection, so that an unfinished
load or another encoder is refused. To load vectors that exist, give a dense index folder as the source: building that one
can be killed and resumed, and nothing is encoded twice.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from parallelsearch.errors import (
    DataError,
    IndexDamagedError,
    ParallelSearchError,
    SearchError,
    SearchTimeoutError,
    TransientSearchError,
    UsageError,
    require,
)
from parallelsearch.http import without_secrets
from parallelsearch.retrieval.base import BlockingRetriever, Hit, Passage, Result
from parallelsearch.retrieval.bm25 import BuildReport, OnProgress
from parallelsearch.retrieval.corpus import DEFAULT_CHUNK_OVERLAP, CorpusReport, Source, name_of, passages_of
from parallelsearch.retrieval.dense import ENCODER
from parallelsearch.retrieval.encoders import known_encoder, open_encoder
from parallelsearch.retrieval.hybrid import DEFAULT_DEPTH, RRF_K
from parallelsearch.retrieval.metadata import bounded
from parallelsearch.retrieval.store import MANIFEST, PassageStore, corpus_sha256, open_manifest
from parallelsearch.retrieval.text_encoder import TextEncoder, Vectors, passage_text, plain_text
from parallelsearch.retrieval.vector_files import KIND, open_vectors
from parallelsearch.retrieval.vectors import decode

DEFAULT_COLLECTION = "passages"
TOKEN_VARIABLE = "MILVUS_TOKEN"
Mode = Literal["bm25", "dense", "hybrid"]
MODES = ("bm25", "dense", "hybrid")
Block = tuple[list[Passage], Vectors | None]

_ABOUT = "parallelsearch.about"
_FORMAT, _FORMAT_WITHOUT_METADATA = 2, 1
# Limits of Milvus: bytes of a text field, and hits of one search.
_MAX_BYTES = {"id": 512, "title": 4_096, "contents": 65_535, "url": 4_096, "date": 128, "metadata": 32_768}
_MAX_K = 16_384
_LOAD_ROWS = 512
_LEXICAL, _DENSE = "lexical", "dense"
_OUTPUT = ["title", "contents", "url", "date", "metadata"]
# Milvus Lite knows the tokenizer only and passes over the filters: no stemming there.
_ANALYZER = {
    "tokenizer": "standard",
    "filter": ["lowercase", "asciifolding", {"type": "stemmer", "language": "english"}],
}

# pymilvus writes a traceback to the terminal for every error it also raises; ours says it once.
logging.getLogger("pymilvus").setLevel(logging.CRITICAL)


def connect(uri: str, *, timeout_s: float, token: str | None = None) -> Any:
    """A client for a Milvus address, or for an embedded database if it is a path that ends in `.db`."""
    pymilvus = require("pymilvus", "milvus")
    if "://" not in uri:
        if not uri.endswith(".db"):
            raise UsageError(
                f"'{uri}' is not a Milvus address. Give http://HOST:19530, or a file that ends in .db for the embedded form"
            )
        require("milvus_lite", "milvus")
        path = Path(uri).expanduser()
        path.parent.mkdir(parents=True, exist_ok=True)
        uri = str(path)
    try:
        return pymilvus.MilvusClient(
            uri=uri, token=token or os.environ.get(TOKEN_VARIABLE, ""), timeout=timeout_s, dedicated=True
        )
    except Exception as error:  # pymilvus, grpc and the embedded server each have their own
        raise ParallelSearchError(f"no connection to Milvus at '{_shown(uri)}': {_reason(error)}") from error


def _shown(uri: str) -> str:
    """As a message may show it; the name of a file stays as it is."""
    return without_secrets(uri) if "://" in uri else uri


def _reason(error: BaseException) -> str:
    message = getattr(error, "message", None) or str(error) or type(error).__name__
    return str(message).strip().partition("\n")[0][:300]


# ---- loading ---------------------------------------------------------------------------------------------------------


def build_milvus(
    source: Source,
    uri: str,
    collection: str = DEFAULT_COLLECTION,
    *,
    encoder: str | TextEncoder | None = None,
    device: str | None = None,
    batch_size: int = 64,
    chunk_words: int | None = None,
    chunk_overlap: int = DEFAULT_CHUNK_OVERLAP,
    skip_bad: bool = False,
    overwrite: bool = False,
    timeout_s: float = 60.0,
    token: str | None = None,
    on_progress: OnProgress | None = None,
) -> BuildReport:
    """Load a corpus into a Milvus collection: for keyword search, and for dense and hybrid search if there is an encoder
    (or if `source` is a dense index folder, whose vectors are taken as they are)."""
    start = time.monotonic()
    report = CorpusReport()
    tell = on_progress or (lambda done, total: None)
    blocks: Iterator[Block]
    about: dict[str, Any] = {"format": _FORMAT, "is_complete": False, "encoder": None}
    if _is_dense_index(source):
        folder = Path(str(source))
        about["encoder"] = json.loads((folder / ENCODER).read_text("utf-8"))
        blocks = _stored_blocks(folder, report)
    else:
        if encoder is not None:
            encoder = open_encoder(encoder, device=device, batch_size=batch_size)
            about["encoder"] = {**encoder.describe(), "probe": [round(float(v), 5) for v in encoder.probe]}
        passages = passages_of(
            source, chunk_words=chunk_words, chunk_overlap=chunk_overlap, on_bad=report.on_bad(source, skip_bad)
        )
        blocks = _encoded_blocks(report.count(_storable(passages, report if skip_bad else None)), encoder)
    client = connect(uri, timeout_s=timeout_s, token=token)
    try:
        _create(client, collection, about, overwrite, timeout_s)
        # Loading yields what it has loaded, so that one pass over the corpus loads and hashes it.
        sha256 = corpus_sha256(_load(client, collection, blocks, timeout_s, tell))
        if report.num_passages == 0:
            client.drop_collection(collection, timeout=timeout_s)
            raise DataError(name_of(source), None, "the corpus holds no passages, so there is nothing to load")
        client.flush(collection, timeout=timeout_s)
        about.update(is_complete=True, corpus_sha256=sha256, num_passages=report.num_passages)
        client.alter_collection_properties(collection, {_ABOUT: json.dumps(about)}, timeout=timeout_s)
    except ParallelSearchError:
        raise
    except Exception as error:
        raise ParallelSearchError(
            f"loading into Milvus at '{_shown(uri)}' failed after {report.num_passages} passages: {_reason(error)}"
        ) from error
    finally:
        client.close()
    tell(report.num_passages, report.num_passages)
    return BuildReport.of(report, report.num_passages, time.monotonic() - start, 0)


def _load(
    client: Any, collection: str, blocks: Iterator[Block], timeout_s: float, tell: OnProgress
) -> Iterator[Passage]:
    num_loaded = 0
    for held, vectors in blocks:
        rows = [_row(passage) for passage in held]
        if vectors is not None:
            for row, vector in zip(rows, vectors, strict=True):
                row[_DENSE] = vector.tolist()
        client.upsert(collection, rows, timeout=timeout_s)
        num_loaded += len(held)
        tell(num_loaded, None)
        yield from held


def _is_dense_index(source: Any) -> bool:
    return isinstance(source, str | os.PathLike) and (Path(source) / MANIFEST).is_file()


def _stored_blocks(folder: Path, report: CorpusReport) -> Iterator[Block]:
    manifest = open_manifest(folder, KIND)
    store = PassageStore(folder)
    vectors, scales = open_vectors(folder, manifest)
    for start in range(0, len(store), _LOAD_ROWS):
        rows = slice(start, start + _LOAD_ROWS)
        yield list(report.count(_storable(iter(store[rows]), None))), decode(vectors, scales, rows)


def _encoded_blocks(passages: Iterator[Passage], encoder: TextEncoder | None) -> Iterator[Block]:
    while held := list(itertools.islice(passages, _LOAD_ROWS)):
        yield held, None if encoder is None else encoder.encode_passages([passage_text(p) for p in held])


def _storable(passages: Iterator[Passage], skipped: CorpusReport | None) -> Iterator[Passage]:
    """Passages that fit Milvus's fields; another raises, or is counted and left out."""
    for passage in passages:
        problem = next(
            (
                (name, len(value.encode("utf-8", "replace")))
                for name, value in _row(passage).items()
                if len(value.encode("utf-8", "replace")) > _MAX_BYTES[name]
            ),
            None,
        )
        if problem is None:
            yield passage
            continue
        name, size = problem
        error = DataError(
            f"passage '{passage.id[:80]}'",
            None,
            f"has {size} bytes, Milvus takes {_MAX_BYTES[name]}; cut the corpus with --chunk-words",
            field="text" if name == "contents" else name,
        )
        if skipped is None:
            raise error
        skipped.skip(error)


def _row(passage: Passage) -> dict[str, Any]:
    metadata = None if passage.metadata is None else bounded(passage.metadata)
    return {
        "id": passage.id,
        "title": passage.title,
        "contents": f"{passage.title}\n{passage.text}",
        "url": passage.url or "",
        "date": passage.date or "",
        "metadata": "" if metadata is None else json.dumps(metadata, ensure_ascii=False),
    }


def _passage(id: str, entity: dict[str, Any]) -> Passage:
    title, contents = str(entity["title"]), str(entity["contents"])
    url, date, metadata = (entity.get(name) or None for name in ("url", "date", "metadata"))
    beside = None if metadata is None else json.loads(metadata)
    return Passage(id, title, contents[len(title) + 1 :], url, date, metadata=beside)


def _create(client: Any, collection: str, about: dict[str, Any], overwrite: bool, timeout_s: float) -> None:
    if not re.fullmatch(r"[A-Za-z_]\w{0,254}", collection, re.ASCII):
        raise UsageError(f"'{collection}' cannot name a Milvus collection: letters, digits and _ only, no digit first")
    pymilvus = require("pymilvus", "milvus")
    kinds = pymilvus.DataType
    if client.has_collection(collection, timeout=timeout_s):
        # What a killed load of ours left behind may go; what was finished, or is another's, only when that is asked for.
        is_leftover = (_read_about(client, collection, timeout_s) or {}).get("is_complete") is False
        if not overwrite and not is_leftover:
            raise UsageError(
                f"there is a collection '{collection}' already. To replace it, add --overwrite, or give another name"
            )
        client.drop_collection(collection, timeout=timeout_s)
    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    for name, max_bytes in _MAX_BYTES.items():
        more = {"enable_analyzer": True, "analyzer_params": _ANALYZER} if name == "contents" else {}
        schema.add_field(name, kinds.VARCHAR, max_length=max_bytes, is_primary=name == "id", **more)
    schema.add_field(_LEXICAL, kinds.SPARSE_FLOAT_VECTOR)
    schema.add_function(
        pymilvus.Function(
            name="bm25",
            input_field_names=["contents"],
            output_field_names=[_LEXICAL],
            function_type=pymilvus.FunctionType.BM25,
        )
    )
    indexes = client.prepare_index_params()
    indexes.add_index(
        _LEXICAL, index_type="SPARSE_INVERTED_INDEX", metric_type="BM25", params={"bm25_k1": 1.5, "bm25_b": 0.75}
    )
    if about["encoder"] is not None:
        schema.add_field(_DENSE, kinds.FLOAT_VECTOR, dim=about["encoder"]["dim"])
        indexes.add_index(_DENSE, index_type="AUTOINDEX", metric_type="IP")
    client.create_collection(
        collection, schema=schema, index_params=indexes, properties={_ABOUT: json.dumps(about)}, timeout=timeout_s
    )


def _read_about(client: Any, collection: str, timeout_s: float) -> dict[str, Any] | None:
    found = client.describe_collection(collection, timeout=timeout_s).get("properties") or {}
    try:
        about = json.loads(found[_ABOUT])
    except (KeyError, TypeError, ValueError):
        return None
    return about if isinstance(about, dict) else None


# ---- searching -------------------------------------------------------------------------------------------------------


class MilvusRetriever(BlockingRetriever):
    """Searches a collection loaded by `build_milvus`.

    `mode`: `hybrid` (reciprocal rank fusion by the server) where there are vectors, else `bm25`; or what is asked for.
    """

    name = "milvus"

    def __init__(
        self,
        uri: str,
        collection: str = DEFAULT_COLLECTION,
        *,
        encoder: str | TextEncoder | None = None,
        mode: Mode | None = None,
        device: str | None = None,
        depth: int = DEFAULT_DEPTH,
        timeout_s: float = 20.0,
        token: str | None = None,
        num_threads: int = 4,
    ) -> None:
        if mode is not None and mode not in MODES:
            raise UsageError(f"unknown mode '{mode}'; known are {', '.join(MODES)}")
        if "://" not in uri and uri.endswith(".db") and not Path(uri).expanduser().exists():
            raise IndexDamagedError(f"there is no Milvus file '{uri}' (looked in {Path.cwd()})")
        super().__init__(num_threads)
        self.collection, self.depth, self.timeout_s = collection, depth, timeout_s
        self._uri = _shown(uri)
        self._client = connect(uri, timeout_s=timeout_s, token=token)
        try:
            self._about = self._open()
            has_metadata = self._about["format"] != _FORMAT_WITHOUT_METADATA
            self._output = _OUTPUT if has_metadata else _OUTPUT[:-1]
            recorded = self._about.get("encoder")
            self.mode: str = mode or ("hybrid" if recorded else "bm25")
            self.encoder = None if self.mode == "bm25" else self._open_encoder(recorded, encoder, device)
        except BaseException:
            self._client.close()
            raise

    def _open(self) -> dict[str, Any]:
        where = f"at '{self._uri}'"
        try:
            names = self._client.list_collections(timeout=self.timeout_s)
            about = _read_about(self._client, self.collection, self.timeout_s) if self.collection in names else None
        except Exception as error:
            raise ParallelSearchError(f"Milvus {where} does not answer: {_reason(error)}") from error
        if self.collection not in names:
            found = ", ".join(sorted(names)[:10]) or "none"
            raise IndexDamagedError(f"there is no collection '{self.collection}' {where} (found: {found})")
        if about is None or about.get("format") not in (_FORMAT, _FORMAT_WITHOUT_METADATA):
            raise IndexDamagedError(
                f"the collection '{self.collection}' {where} was not loaded by this version of parallelsearch. "
                "Load one with build_milvus"
            )
        if not about.get("is_complete"):
            raise IndexDamagedError(
                f"the collection '{self.collection}' {where} was not loaded to the end. Load it again"
            )
        try:  # a cluster may have taken it out of memory since
            self._client.load_collection(self.collection, timeout=self.timeout_s)
        except Exception as error:
            raise ParallelSearchError(f"Milvus {where} cannot open '{self.collection}': {_reason(error)}") from error
        return about

    def _open_encoder(
        self, recorded: dict[str, Any] | None, given: str | TextEncoder | None, device: str | None
    ) -> TextEncoder:
        if recorded is None:
            raise UsageError(f"the collection '{self.collection}' has no vectors: only mode 'bm25' can search it")
        return known_encoder(recorded, given, device, f"the collection '{self.collection}'")

    def search_blocking(self, queries: Sequence[str], k: int) -> list[Result]:
        results: list[Result] = [SearchError("the query is empty") for _ in queries]
        asked = [place for place, query in enumerate(queries) if query.strip()]
        if not asked or k < 1:
            return results
        texts = [plain_text(queries[place], _MAX_BYTES["contents"] // 4) for place in asked]
        vectors = None if self.encoder is None else self.encoder.encode_queries(texts)
        for place, result in zip(asked, self._search(texts, vectors, min(k, _MAX_K)), strict=True):
            results[place] = result
        return results

    def _search(self, texts: list[str], vectors: Vectors | None, k: int) -> list[Result]:
        try:
            found = self._call(texts, vectors, k)
        except Exception as error:  # pymilvus and grpc each have their own
            failure = self._failure(error)
            if len(texts) == 1 or isinstance(failure, TransientSearchError | SearchTimeoutError):
                return [failure] * len(texts)
            # One query may be what the server cannot take: ask one by one, so that the others are answered.
            return [
                self._search([text], None if vectors is None else vectors[n : n + 1], k)[0]
                for n, text in enumerate(texts)
            ]
        return [
            # Keyword scores come back negative from Milvus Lite and positive from a server; larger is better for us.
            [
                Hit.of(_passage(hit["id"], hit["entity"]), abs(float(hit["distance"])), n)
                for n, hit in enumerate(hits, 1)
            ]
            for hits in found
        ]

    def _call(self, texts: list[str], vectors: Vectors | None, k: int) -> Any:
        if self.mode != "hybrid":
            is_dense = self.mode == "dense" and vectors is not None
            return self._client.search(
                self.collection,
                data=vectors.tolist() if is_dense and vectors is not None else texts,
                anns_field=_DENSE if is_dense else _LEXICAL,
                limit=k,
                output_fields=self._output,
                timeout=self.timeout_s,
            )
        pymilvus = require("pymilvus", "milvus")
        depth = max(k, self.depth)
        data = {_LEXICAL: texts, _DENSE: [] if vectors is None else vectors.tolist()}
        requests = [pymilvus.AnnSearchRequest(held, field, {}, depth) for field, held in data.items()]
        return self._client.hybrid_search(
            self.collection,
            requests,
            pymilvus.RRFRanker(RRF_K),
            limit=k,
            output_fields=self._output,
            timeout=self.timeout_s,
        )

    def _failure(self, error: Exception) -> SearchError:
        reason = f"milvus: {_reason(error)}"
        if "DEADLINE_EXCEEDED" in reason or "deadline" in reason.lower() or "timeout" in reason.lower():
            return SearchTimeoutError(f"{reason} (within {self.timeout_s:g} s)")
        # Not reachable, not ready, too many requests.
        is_transient = type(error).__name__ == "MilvusUnavailableException" or getattr(error, "code", None) in (
            1,
            2,
            8,
            9,
        )
        return TransientSearchError(reason) if is_transient or "UNAVAILABLE" in reason else SearchError(reason)

    def describe(self) -> dict[str, Any]:
        encoder = {key: value for key, value in (self._about.get("encoder") or {}).items() if key != "probe"}
        settings = {"mode": self.mode, "collection": self.collection, "uri": self._uri, "encoder": encoder or None}
        return {
            "kind": self.name,
            "corpus_sha256": self._about.get("corpus_sha256"),
            "num_passages": self._about.get("num_passages"),
            "settings": settings,
        }

    async def aclose(self) -> None:
        await super().aclose()
        self._client.close()
