"""Elasticsearch and OpenSearch, as they stand: `elastic:URL#INDEX`. All queries of a round are one request (`_msearch`).

Nothing has to be said about the index. What fields it has is asked once: the passage is in one called `text`, `content` and
the like, the title in `title`; an option names others. Both are searched. Where documents are long, `chars` has the server
send the sentences of each that fit the query. What else a document says is metadata, and `where` narrows a search by it on
the server.

A key is in `ELASTIC_API_KEY`; a user and a password may stand in the URL, or a header in the variable that `headers_env`
names.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self
from urllib.parse import quote

from parallelsearch.errors import (
    SearchError,
    SearchTimeoutError,
    TransientSearchError,
    UsageError,
    check_whole,
    nearest,
    stopped,
)
from parallelsearch.http import HttpClient, Response, checked_url, without_secrets
from parallelsearch.retrieval.base import DegradedHits, Hit, Passage, Result, Retriever, checked_seconds
from parallelsearch.retrieval.corpus import CJK
from parallelsearch.retrieval.metadata import metadata_of
from parallelsearch.retrieval.narrowing import conditions_of, listed
from parallelsearch.untrusted import finite, whole

KEY_ENV = "ELASTIC_API_KEY"
MAX_QUERY_CHARS, MAX_CLAUSES = 2_000, 1_000
"""What is read of one query. Each of its words is a clause for each field, and servers take 1,024."""
_WORD = re.compile(f"[{CJK}]|[^\\W{CJK}]+")
TIE = 0.3
"""What the field that fits less adds to the score of the one that fits best."""
_TEXTS = ("text", "content", "contents", "page_content", "body", "body_content", "passage", "passage_text", "chunk")
_TITLES = ("title", "metadata.title", "name")
_URLS, _DATES = ("url", "metadata.url", "link"), ("date", "metadata.date")
_SEARCHED = frozenset({"text", "match_only_text", "search_as_you_type", "semantic_text"})
"""Types of fields that are searched by words, or by what they mean."""
_VECTORS = frozenset({"dense_vector", "sparse_vector", "rank_vectors", "knn_vector", "rank_features"})
_RECORDS = frozenset({"object", "nested"})
_FLAT = frozenset({"flattened", "flat_object"})
"""What is in them is compared as whole values, and has no types of its own."""
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
_MAX_REASON_CHARS = 300
_IS_IT = "is Elasticsearch or OpenSearch at this address?"


@dataclass(frozen=True, slots=True)
class _Layout:
    """Which fields of an index say what."""

    text: str
    title: str | None
    url: str | None
    date: str | None
    searched: tuple[tuple[str, float], ...]
    """Fields, and how much each counts."""
    types: Mapping[str, str]
    has_several: bool
    """More than one index: an id alone does not tell a document."""


class ElasticRetriever(Retriever):
    """Searches an index, an alias, or several with commas and `*`, at `URL#INDEX`. `text`, `title` and `url` name the fields
    that hold them; `fields` those that are searched, with commas, `title^2` for one that counts twice. With `chars` a hit
    has the sentences that fit, up to so many characters, in place of the whole text."""

    name = "elastic"
    max_concurrency = 4

    def __init__(
        self,
        address: str,
        *,
        text: str | None = None,
        title: str | None = None,
        url: str | None = None,
        fields: str | Sequence[str] = (),
        chars: int | None = None,
        timeout_s: float = 15.0,
        headers_env: str | None = None,
    ) -> None:
        server, _, index = (part.strip() for part in address.rpartition("#"))
        if not server or not index:
            raise UsageError(
                f"'elastic:{without_secrets(address)}' needs the address of the server and an index: "
                "elastic:http://localhost:9200#my-index"
            )
        if chars is not None:
            check_whole("chars is how many characters of a document fit,", chars)
        self.base_url, self.index, self.chars = checked_url(server, "elastic"), index, chars
        self._what = f"the index '{index}' at {without_secrets(self.base_url)}"
        self.timeout_s, self._headers_env = checked_seconds(timeout_s, "elastic"), headers_env
        self._given = {"text": text, "title": title, "url": url}
        given = fields.split(",") if isinstance(fields, str) else fields
        self._searched = tuple(_weighted(one) for one in given if one.strip())
        self._where: tuple[dict[str, list[str]], ...] = ()
        self._layouts: list[_Layout] = []  # none until it was asked for; shared with those that are narrowed
        key = os.environ.get(KEY_ENV, "").strip()
        if not key.isascii() or not key.isprintable():
            raise UsageError(f"the key in {KEY_ENV} has characters no key has; was it pasted whole?")
        sent = base64.b64encode(key.encode()).decode() if ":" in key else key  # ID:KEY is the other way to write one
        self._http = HttpClient(
            "elastic",
            permanent=SearchError,
            transient=TransientSearchError,
            late=SearchTimeoutError,
            headers={"Accept": "application/json", **({"Authorization": f"ApiKey {sent}"} if key else {})},
            secrets=[key, sent],
            headers_env=headers_env,
            connect_timeout_s=min(5.0, timeout_s),
        )

    # ---- what the index is like --------------------------------------------------------------------------------------

    async def check(self) -> None:
        with contextlib.suppress(SearchError):  # what may pass is left to the queries
            self._filters(await self._layout())

    async def _layout(self) -> _Layout:
        if not self._layouts:
            found = await self._asked("GET", "_field_caps?fields=*")
            try:
                known = found["fields"].items()
                fields = {name: dict(kinds) for name, kinds in known if kinds and not name.startswith("_")}
                nested = [name for name, kinds in fields.items() if "nested" in kinds]
                has_several = len(found.get("indices", ())) > 1
                types = {name: _type(kinds, _is_below(name, *nested)) for name, kinds in fields.items()}
            except (AttributeError, KeyError, TypeError, ValueError):
                raise UsageError(f"{self._what} did not say what fields there are; {_IS_IT}") from None
            if not types:
                raise UsageError(f"{self._what} holds no documents, or there is none of that name")
            self._layouts.append(self._read_layout(types, has_several))
        return self._layouts[0]

    def _read_layout(self, types: Mapping[str, str], has_several: bool) -> _Layout:
        words = [name for name, kind in types.items() if kind in _SEARCHED]
        text = self._field("text", types, _TEXTS)
        if text not in words and not self._given["text"]:
            titles = (*_TITLES, self._given["title"])
            # What is below a field that is no record says the same in another form: `body.english`.
            own = [name for name in words if types.get(name.rpartition(".")[0], "object") in _RECORDS]
            others = [name for name in own if name not in titles]
            text = others[0] if len(others) == 1 else text
        if text is None:
            raise UsageError(
                f"which field of {self._what} holds the text? Name it: elastic?text=FIELD:URL#INDEX. There are: "
                f"{listed(words or types)}"
            )
        title = self._field("title", types, _TITLES)
        searched = self._searched or tuple((name, 1.0) for name in (title, text) if name in words)
        for name, _ in searched or ((text, 1.0),):
            if name not in words:
                is_what = f"is of the type {types[name]}" if name in types else "is not there"
                raise UsageError(
                    f"the field '{name}' of {self._what} {is_what}, and words are looked for in fields of text."
                    f"{nearest(name, words)} There are: {listed(words) or 'none'}"
                )
        url, date = self._field("url", types, _URLS), next((name for name in _DATES if name in types), None)
        return _Layout(text, title, url, date, searched, types, has_several)

    def _field(self, what: str, types: Mapping[str, str], names: Sequence[str]) -> str | None:
        given = self._given[what]
        if given is None:
            there = [name for name in names if types.get(name, "object") not in _RECORDS]
            return min(there, key=lambda name: types[name] not in _SEARCHED, default=None)
        if given not in types:
            raise UsageError(
                f"{what}={given}: {self._what} has no such field.{nearest(given, types)} It has: {listed(types)}"
            )
        return given

    # ---- narrowing ---------------------------------------------------------------------------------------------------

    def where(self, fields: Mapping[str, Any]) -> Self:
        other = copy.copy(self)
        wanted = conditions_of(fields)
        other._where = (*self._where, wanted) if wanted else self._where
        if self._layouts:
            other._filters(self._layouts[0])
        return other

    def _filters(self, layout: _Layout) -> list[dict[str, Any]]:
        return [
            {"terms": {self._exact(name, layout): texts}} for wanted in self._where for name, texts in wanted.items()
        ]

    def _exact(self, name: str, layout: _Layout) -> str:
        """The field in which whole values are compared: a text of the server's own making has one below it."""
        own = {"title": layout.title, "url": layout.url, "date": layout.date}.get(name) or name
        for field in (own, f"metadata.{own}"):
            if _is_below(field, *(one for one, kind in layout.types.items() if kind in _FLAT)):
                return field
            kind = layout.types.get(field, "object")
            if kind in _RECORDS:
                continue
            if kind not in _SEARCHED and " " not in kind:
                return field
            below = [one for one, kind in layout.types.items() if kind == "keyword" and _is_below(one, field)]
            if below:
                return below[0]
            raise UsageError(
                f"where={name}: the field '{field}' of {self._what} is of the type {kind}, in which whole values cannot be "
                "compared; give it a field of the type keyword below it"
            )
        raise UsageError(
            f"where={name}: {self._what} has no such field.{nearest(name, layout.types)} It has: {listed(layout.types)}"
        )

    # ---- searching ---------------------------------------------------------------------------------------------------

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        results: list[Result] = [SearchError("the query is empty") for _ in queries]
        asked = [place for place, query in enumerate(queries) if query.strip()]
        if not asked:
            return results
        try:
            found = await self._search([queries[place] for place in asked], k)
        except UsageError as error:  # the index has changed, or nobody checked
            raise SearchError(str(error)) from error
        for place, one in zip(asked, found, strict=True):
            results[place] = one
        return results

    async def _search(self, queries: Sequence[str], k: int) -> list[Result]:
        layout = await self._layout()
        asked = [self._query(query, k, layout, self.chars) for query in queries]
        answers = await self._answers(asked)
        uncut = [place for place, answer in enumerate(answers) if self.chars and _was_not_cut(answer, layout.text)]
        if uncut:
            again = await self._answers([self._query(queries[place], k, layout, None) for place in uncut])
            for place, answer in zip(uncut, again, strict=True):
                answers[place] = answer
        return [self._result(answer, layout, k) for answer in answers]

    async def _answers(self, asked: Sequence[dict[str, Any]]) -> list[Any]:
        body = "".join(f"{{}}\n{json.dumps(one)}\n" for one in asked).encode("ascii")
        answers = (await self._asked("POST", "_msearch", body)).get("responses")
        if not isinstance(answers, list) or len(answers) != len(asked):
            raise TransientSearchError(f"{self._what} did not answer each query")
        return answers

    def _query(self, query: str, k: int, layout: _Layout, chars: int | None) -> dict[str, Any]:
        query = whole(query[:MAX_QUERY_CHARS])
        ends = [word.end() for word in islice(_WORD.finditer(query), MAX_CLAUSES // len(layout.searched))]
        # Where fields of one name have several types, words are looked for in those that have words.
        how = {"query": query[: max(ends, default=None)], "lenient": layout.has_several}
        matches = [{"match": {name: {**how, "boost": boost}}} for name, boost in layout.searched]
        left_out = [name for name, kind in layout.types.items() if kind in _VECTORS]
        best_of = {"dis_max": {"queries": matches, "tie_breaker": TIE}}
        asked: dict[str, Any] = {
            "size": k,
            "query": {"bool": {"must": best_of, "filter": self._filters(layout)}},
            "_source": {"excludes": [*left_out, "*.inference.chunks"]},
        }
        if chars is not None:
            one = {"fragment_size": chars, "number_of_fragments": 1, "no_match_size": chars}
            asked["highlight"] = {"pre_tags": [""], "post_tags": [""], "fields": {layout.text: one}}
            asked["_source"]["excludes"].append(layout.text)
        return asked

    def _result(self, answer: object, layout: _Layout, k: int) -> Result:
        if not isinstance(answer, dict):
            return SearchError(f"{self._what} sent {type(answer).__name__} where an object belongs")
        if (error := answer.get("error")) is not None:
            told = f"{self._what}: {self._http.clean(_reason(error))}"
            return TransientSearchError(told) if answer.get("status") in _PASSING else SearchError(told)
        items = _items(answer)
        if items is None:
            return SearchError(f"{self._what} sent no list of hits")
        hits: list[Hit] = []
        for item in items[:k]:
            passage = self._passage(item, layout) if isinstance(item, dict) else None
            if passage is not None:
                hits.append(Hit.of(passage, finite(item.get("_score")) or 0.0, len(hits) + 1))
        if items and not hits:
            return SearchError(
                f"{self._what} found {len(items)} documents, and none has a text in '{layout.text}'. Name the field that "
                "has one: elastic?text=FIELD:URL#INDEX"
            )
        missing = _missing(answer)
        return DegradedHits(hits, missing) if missing else hits

    def _passage(self, item: dict[str, Any], layout: _Layout) -> Passage | None:
        source, id = item.get("_source"), item.get("_id")
        if not isinstance(source, dict) or not isinstance(id, str) or not id:
            return None
        fitting = item.get("highlight")
        fragments = fitting.get(layout.text) if isinstance(fitting, dict) else None
        text = " ".join(filter(None, map(_text, fragments))) if isinstance(fragments, list) else ""
        text, title = text or _text(_at(source, layout.text))[: self.chars], _text(_at(source, layout.title))
        if not text and not title:
            return None
        url, date = _text(_at(source, layout.url)), _text(_at(source, layout.date))
        own = {name.partition(".")[0] for name in (layout.text, layout.title, layout.url) if name} - {"metadata"}
        beside = metadata_of(source, own | {layout.date or ""})
        id = f"{_text(item.get('_index'))}/{id}" if layout.has_several else id
        return Passage(whole(id), title, text, url or None, date or None, metadata=beside)

    # ---- the server --------------------------------------------------------------------------------------------------

    async def _asked(self, method: str, what: str, body: bytes | None = None) -> dict[str, Any]:
        response = await self._http.request(
            method,
            f"{self.base_url}/{quote(self.index, safe=',*:')}/{what}",
            content=body,
            headers={} if body is None else {"Content-Type": "application/x-ndjson"},
            timeout_s=self.timeout_s,
        )
        if (error := self._http.error_of(response)) is not None:
            raise self._explained(error, response)
        try:
            answer = response.json()
        except ValueError:
            raise TransientSearchError(f"{self._what} sent something that is not JSON; {_IS_IT}") from None
        if not isinstance(answer, dict):
            raise TransientSearchError(f"{self._what} sent {type(answer).__name__} where an object belongs")
        return answer

    def _explained(self, error: Exception, response: Response) -> Exception:
        if response.status in (401, 403):
            given = "" if self._headers_env is None else f"The headers in {self._headers_env} were not enough. "
            return UsageError(
                f"{stopped(error)} {given}Set {KEY_ENV} to a key that may read '{self.index}', or write user and password "
                "into the address: elastic:https://USER:PASSWORD@HOST:9200#INDEX"
            )
        if response.status == 404:
            return UsageError(f"there is no {self._what.removeprefix('the ')}: {self._reason_of(response)}")
        return error if isinstance(error, TransientSearchError) else UsageError(str(error))

    def _reason_of(self, response: Response) -> str:
        try:
            return self._http.clean(_reason(response.json()["error"]))
        except (ValueError, KeyError, TypeError):
            return f"it answered {response.status}; {_IS_IT}"

    def describe(self) -> dict[str, Any]:
        given = {name: field for name, field in self._given.items() if field}
        searched = [f"{name}^{boost:g}" for name, boost in self._searched]
        told = {**given, "fields": searched, "chars": self.chars, "where": list(self._where)}
        told["headers_env"] = self._headers_env
        settings = {name: value for name, value in told.items() if value}
        return {"kind": self.name, "url": without_secrets(self.base_url), "index": self.index, "settings": settings}

    async def aclose(self) -> None:
        await self._http.aclose()


def _weighted(field: str) -> tuple[str, float]:
    name, mark, boost = field.strip().partition("^")
    try:
        weight = float(boost) if mark else 1.0
    except ValueError:
        weight = 0.0
    if not name or not 0 < weight < 1e6:
        raise UsageError(
            f"fields of elastic are names of fields with commas, title^2 for one that counts twice, not '{field}'"
        )
    return name, weight


def _type(kinds: Mapping[str, Any], is_nested: bool) -> str:
    """The type of a field; behind it, after a space, why it is not searched though others of its type are."""
    kind = min(kinds, key=lambda kind: kind not in _SEARCHED)
    told = kinds[kind]
    if is_nested and kind not in _VECTORS | _RECORDS:
        return f"{kind} in nested records"
    if kind in _SEARCHED and told.get("searchable") is False and not told.get("non_searchable_indices"):
        return f"{kind} that is not indexed"
    return kind


def _is_below(field: str, *others: str) -> bool:
    return any(field.startswith(f"{other}.") for other in others)


def _at(source: Mapping[str, Any], field: str | None) -> object:
    """What a document says in a field, whether its name was written with dots or as records in each other."""
    if field is None:
        return None
    if field in source:
        return source[field]
    head, _, rest = field.partition(".")
    inner = source.get(head)
    if isinstance(inner, list) and rest:
        return [_text(_at(one, rest)) for one in inner if isinstance(one, dict)]
    # A field below a text is that text in another form, and documents say it once.
    return _at(inner, rest) if isinstance(inner, dict) and rest else inner


def _text(value: object) -> str:
    """A text from a document: of several their words, of one with its vectors the text."""
    if isinstance(value, dict):
        value = value.get("text")
    if isinstance(value, list):
        return " ".join(whole(one) for one in value if isinstance(one, str) and one)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return whole(str(value))


def _reason(error: object) -> str:
    """What a server says of its error: the innermost cause is the one that helps."""
    told = error
    for _ in range(5):
        if not isinstance(told, dict):
            break
        causes = told.get("root_cause")
        inner = told.get("caused_by") or (causes[0] if isinstance(causes, list) and causes else None)
        if not isinstance(inner, dict) or inner == told:
            break
        told = inner
    words = (
        "{} ({})".format(told.get("reason") or "it failed", told.get("type")) if isinstance(told, dict) else str(told)
    )
    return " ".join(whole(words[:_MAX_REASON_CHARS]).split())


def _was_not_cut(answer: object, text: str) -> bool:
    """Whether an answer lacks what fits of a document: of a text over a million characters servers send an error instead, and
    of some types of field nothing."""
    if not isinstance(answer, dict):
        return False
    trouble = json.dumps([answer.get("error"), answer.get("_shards")])
    cuts = [item.get("highlight") for item in _items(answer) or () if isinstance(item, dict)]
    return "max_analyzed_offset" in trouble or not all(isinstance(cut, dict) and cut.get(text) for cut in cuts)


def _items(answer: Mapping[str, Any]) -> list[Any] | None:
    found = answer.get("hits")
    items = found.get("hits") if isinstance(found, dict) else None
    return items if isinstance(items, list) else None


def _missing(answer: Mapping[str, Any]) -> list[str]:
    """What the answer was made without. A cluster that is away, of several searched as one, has no shard that failed."""
    told: list[str] = []
    for counted, what, how in (("_shards", "shards", "failed"), ("_clusters", "clusters", "skipped")):
        numbers = answer.get(counted)
        if isinstance(numbers, dict) and finite(number := numbers.get(how)):
            told.append(f"elastic: {number} of {numbers.get('total')} {what} {how}")
    return [*told, "elastic: the server's own time was over"] if answer.get("timed_out") is True else told
