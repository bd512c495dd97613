"""Web search: Serper, Tavily, Brave, Exa and SearXNG, one small class each over one base (Wikipedia has a module of its own).

An engine says how to ask and where its results stand in the answer; the base does the rest: key from the environment,
time-out, 429 with Retry-After, results as passages whose id is the URL, HTML taken out of snippets, and nothing from sites
that were not asked for. A key is never in a message or a manifest. Pages are not fetched: a passage is what the engine shows
of them (`pages` opens them).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from urllib.parse import urlsplit

from parallelsearch.errors import SearchError, SearchTimeoutError, TransientSearchError, UsageError, nearest, stopped
from parallelsearch.http import HttpClient, Response, checked_url, cleaned, without_secrets
from parallelsearch.retrieval.base import Hit, Passage, Result, Retriever, checked_seconds
from parallelsearch.retrieval.documents import html_document
from parallelsearch.untrusted import finite, whole

_MAX_SNIPPET_CHARS, _MAX_URL_CHARS = 20_000, 4_000
_LEAST_WORDS, _WORD_CHARS = 8, 8
"""What sites must leave of a query, in words and letters of a word."""
SINCE = ("day", "week", "month", "year")
"""How far back a search may be narrowed to: what all engines know."""
_DAYS = dict(zip(SINCE, (1, 7, 31, 366), strict=True))
_EXA_CHARS = 700
"""Of a page: about as much as a passage of an index has."""
_SITE = re.compile(r"(?:[\w-]+\.)*[\w-]+(?:/[\w./%~-]*)?", re.ASCII)
"""A host, with the beginning of a path if one is wanted."""


def plain_text(snippet: object) -> str:
    """A snippet without tags and entities, on one line. Anything but a string is empty."""
    if not isinstance(snippet, str):
        return ""
    return " ".join(html_document(whole(snippet[:_MAX_SNIPPET_CHARS]))[1].split())


class WebRetriever(Retriever):
    """A web search API that takes one query a request. Subclasses say how to ask and how to read."""

    key_env: ClassVar[str | None] = None
    """The variable the key is in, or None for an engine without one."""
    default_url: ClassVar[str | None] = None
    max_k: ClassVar[int] = 20
    max_query_chars: ClassVar[int] = 2_000
    max_query_words: ClassVar[int | None] = None
    writes_sites: ClassVar[bool] = True
    """Sites are words of the query."""
    max_batch = 1

    def __init__(
        self,
        base_url: str | None = None,
        *,
        timeout_s: float = 15.0,
        max_concurrency: int = 8,
        site: str | Sequence[str] = (),
        since: str | None = None,
        headers_env: str | None = None,
    ) -> None:
        """`site`: results of these hosts alone, those below them included (several, in an address with commas); `since`: of
        the last day, week, month or year; `headers_env`: the variable with headers of the user's own, which a gateway wants
        beside an engine's key or in its place."""
        url = base_url or self.default_url
        if not url:
            raise UsageError(f"{self.name} needs the address of its server: {self.name}:http://127.0.0.1:8080")
        key = os.environ.get(self.key_env, "").strip() if self.key_env else ""
        if self.key_env and not key and headers_env is None:
            raise UsageError(f"{self.name} search needs a key: set the environment variable {self.key_env}")
        if not key.isascii() or not key.isprintable():
            raise UsageError(f"the key in {self.key_env} has characters no key has; was it pasted whole?")
        self.base_url, self.max_concurrency = checked_url(url, self.name), max_concurrency
        self.timeout_s = checked_seconds(timeout_s, self.name)
        self.sites = _sites(site, self.name)
        words, chars = self._room_for_words(), self._room_for_chars()
        if (words is not None and words < _LEAST_WORDS) or chars < _LEAST_WORDS * _WORD_CHARS:
            raise UsageError(
                f"site of {self.name} has {len(self.sites)} hosts, which leave no room for a query in what it takes; name "
                "fewer, or join several searches: all:ADDRESS|ADDRESS"
            )
        if since is not None and since not in SINCE:
            raise UsageError(f"since of {self.name} is {', '.join(SINCE)}, not '{since}'.{nearest(since, SINCE)}")
        self.since = since
        self._headers_env = headers_env
        self._http = HttpClient(
            self.name,
            permanent=SearchError,
            transient=TransientSearchError,
            late=SearchTimeoutError,
            headers={"Accept": "application/json", **(self._key_headers(key) if key or not self.key_env else {})},
            secrets=[key],
            headers_env=headers_env,
            connect_timeout_s=min(5.0, timeout_s),
            max_connections=max_concurrency,
        )

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        return list(await asyncio.gather(*(self._search(query, k) for query in queries)))

    async def _search(self, query: str, k: int) -> Result:
        query = shortened(" ".join(query.split()[: self._room_for_words()]), self._room_for_chars())
        if not query:
            return SearchError("the query is empty")
        try:
            response = await self._ask(query, min(k, self.max_k))
            if (error := self._http.error_of(response)) is not None:
                raise self._explained(error, response.status)
            return self._hits(response.content, k)
        except SearchError as error:
            return cleaned(error, self._http.clean)

    def _explained(self, error: Exception, status: int) -> SearchError:
        if status in (401, 403) and self._headers_env is not None:
            beside = f" or the key in {self.key_env}" if self.key_env else ""
            return SearchError(f"{stopped(error)} The headers in {self._headers_env}{beside} were not accepted")
        if status in (401, 403) and self.key_env:
            return SearchError(f"{stopped(error)} The key in {self.key_env} was not accepted")
        return error if isinstance(error, SearchError) else SearchError(str(error))

    def _hits(self, body: bytes, k: int) -> list[Hit]:
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            raise TransientSearchError(f"{self.name} sent something that is not JSON") from None
        if not isinstance(answer, dict):
            raise TransientSearchError(f"{self.name} sent {type(answer).__name__} where an object belongs")
        found: dict[str, tuple[Passage, float]] = {}
        for passage, score in self._read(answer):
            if not passage.id or not (passage.text or passage.title) or not self._is_wanted(passage.url):
                continue
            if passage.id not in found:
                found[passage.id] = passage, score
            elif passage.text not in (first := found[passage.id][0]).text:  # one page found twice
                merged = replace(first, text=f"{first.text} {passage.text}".strip())
                found[passage.id] = merged, found[passage.id][1]
        best = list(found.values())[:k]
        return [Hit.of(passage, score, rank) for rank, (passage, score) in enumerate(best, start=1)]

    def describe(self) -> dict[str, Any]:
        narrowed = {"site": self.sites, "since": self.since, "headers_env": self._headers_env}
        told = {name: value for name, value in narrowed.items() if value}
        return {"kind": self.name, "url": without_secrets(self.base_url), **told}

    def _is_wanted(self, url: str | None) -> bool:
        """An engine may pass over what it was asked: a result of another site is none."""
        if not self.sites:
            return True
        try:
            parts = urlsplit(url or "")
            place = (parts.hostname or "") + parts.path
        except ValueError:
            return False
        return any(_lies_in(place.lower(), site) for site in self.sites)

    def _with_sites(self, query: str) -> str:
        """The query in the words of an engine that knows `site:`."""
        return f"{' OR '.join(f'site:{site}' for site in self.sites)} {query}" if self.sites else query

    def _room_for_chars(self) -> int:
        return self.max_query_chars - (len(self._with_sites("")) if self.writes_sites else 0)

    def _room_for_words(self) -> int | None:
        if self.max_query_words is None:
            return None
        return self.max_query_words - (len(self._with_sites("").split()) if self.writes_sites else 0)

    async def aclose(self) -> None:
        await self._http.aclose()

    # ---- what an engine says -----------------------------------------------------------------------------------------

    def _key_headers(self, key: str) -> dict[str, str]:
        """The headers that carry the key."""
        return {}

    @abstractmethod
    async def _ask(self, query: str, k: int) -> Response:
        """One request for one query."""

    @abstractmethod
    def _read(self, answer: dict[str, Any]) -> Iterable[tuple[Passage, float]]:
        """Passages and scores in the answer, best first."""

    async def _post(self, path: str, body: Mapping[str, Any]) -> Response:
        content = json.dumps(body).encode("ascii")
        headers = {"Content-Type": "application/json"}
        return await self._http.request(
            "POST", self.base_url + path, content=content, headers=headers, timeout_s=self.timeout_s
        )

    async def _get(self, path: str, params: Mapping[str, str]) -> Response:
        # A lone surrogate cannot be put in an address.
        safe = {name: value.encode("utf-8", "replace").decode("utf-8") for name, value in params.items()}
        return await self._http.request("GET", self.base_url + path, params=safe, timeout_s=self.timeout_s)


class SerperRetriever(WebRetriever):
    """Google's results through serper.dev. The answer box comes first, then what Google knows of a thing."""

    name = "serper"
    key_env = "SERPER_API_KEY"
    default_url = "https://google.serper.dev"
    max_k = 100

    def _key_headers(self, key: str) -> dict[str, str]:
        return {"X-API-KEY": key}

    async def _ask(self, query: str, k: int) -> Response:
        since = {"tbs": f"qdr:{self.since[0]}"} if self.since else {}
        return await self._post("/search", {"q": self._with_sites(query), "num": max(k, 10), **since})

    def _read(self, answer: dict[str, Any]) -> Iterable[tuple[Passage, float]]:
        box = answer.get("answerBox")
        if isinstance(box, dict):
            parts = [plain_text(box.get("answer")), plain_text(box.get("snippet"))]
            text = " ".join(part for part in parts if part)
            yield _named(_passage({**box, "text": text}, url="link", text="text")), 0.0
        known = answer.get("knowledgeGraph")
        if isinstance(known, dict):
            facts = known.get("attributes")
            pairs = facts.items() if isinstance(facts, dict) else ()
            parts = [f"{plain_text(name)}: {value}." for name, given in pairs if (value := plain_text(given))]
            text = " ".join(part for part in (plain_text(known.get("description")), *parts) if part)
            yield _named(_passage({**known, "text": text}, url="descriptionLink", text="text")), 0.0
        for item in _items(answer.get("organic")):
            yield _passage(item, url="link", text="snippet", date="date"), 0.0


class TavilyRetriever(WebRetriever):
    """tavily.com, which gives scores and longer extracts."""

    name = "tavily"
    key_env = "TAVILY_API_KEY"
    default_url = "https://api.tavily.com"
    max_query_chars = 400
    writes_sites = False

    def _key_headers(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}

    async def _ask(self, query: str, k: int) -> Response:
        sites = {"include_domains": self.sites} if self.sites else {}
        since = {"time_range": self.since} if self.since else {}
        body = {"query": query, "max_results": k, "search_depth": "basic", **sites, **since}
        return await self._post("/search", body)

    def _read(self, answer: dict[str, Any]) -> Iterable[tuple[Passage, float]]:
        for item in _items(answer.get("results")):
            yield _passage(item, url="url", text="content", date="published_date"), _number(item.get("score"))


class BraveRetriever(WebRetriever):
    """Brave's own web index."""

    name = "brave"
    key_env = "BRAVE_API_KEY"
    default_url = "https://api.search.brave.com/res/v1"
    max_query_chars, max_query_words = 400, 50  # the API refuses a longer query

    def _key_headers(self, key: str) -> dict[str, str]:
        return {"X-Subscription-Token": key}

    async def _ask(self, query: str, k: int) -> Response:
        since = {"freshness": f"p{self.since[0]}"} if self.since else {}
        asked = {"q": self._with_sites(query), "count": str(k), "text_decorations": "false", **since}
        return await self._get("/web/search", asked)

    def _read(self, answer: dict[str, Any]) -> Iterable[tuple[Passage, float]]:
        web = answer.get("web")
        for item in _items(web.get("results") if isinstance(web, dict) else None):
            passage = _passage(item, url="url", text="description", date="page_age")
            snippets = item.get("extra_snippets")
            extra = [plain_text(snippet) for snippet in snippets] if isinstance(snippets, list) else []
            yield replace(passage, text=" ".join([passage.text, *filter(None, extra)]).strip()), 0.0


class ExaRetriever(WebRetriever):
    """exa.ai, which searches by meaning and gives the sentences of a page that fit."""

    name = "exa"
    key_env = "EXA_API_KEY"
    default_url = "https://api.exa.ai"
    max_k = 100
    writes_sites = False

    def _key_headers(self, key: str) -> dict[str, str]:
        return {"x-api-key": key}

    async def _ask(self, query: str, k: int) -> Response:
        sites = {"includeDomains": self.sites} if self.sites else {}
        since = {"startPublishedDate": _days_ago(_DAYS[self.since])} if self.since else {}
        fitting = {"highlights": {"maxCharacters": _EXA_CHARS}}
        return await self._post("/search", {"query": query, "numResults": k, "contents": fitting, **sites, **since})

    def _read(self, answer: dict[str, Any]) -> Iterable[tuple[Passage, float]]:
        for item in _items(answer.get("results")):
            passage = _passage(item, url="url", text="text", date="publishedDate")
            fitting = item.get("highlights")
            parts = [plain_text(part) for part in fitting] if isinstance(fitting, list) else []
            text = " ... ".join(filter(None, parts)) or passage.text
            yield replace(passage, text=text), _number(item.get("score"))


class SearxngRetriever(WebRetriever):
    """A SearXNG of one's own: no key, no quota. Its settings must list `json` under `search: formats`."""

    name = "searxng"
    max_k = 50

    async def _ask(self, query: str, k: int) -> Response:
        since = {"time_range": self.since} if self.since else {}
        return await self._get("/search", {"q": self._with_sites(query), "format": "json", **since})

    def _explained(self, error: Exception, status: int) -> SearchError:
        if status == 403:
            other = "" if self._headers_env is None else f"; or the headers in {self._headers_env} were not accepted"
            return SearchError(
                f"{stopped(error)} Add 'json' to 'search: formats:' in the settings.yml of SearXNG{other}"
            )
        return super()._explained(error, status)

    def _read(self, answer: dict[str, Any]) -> Iterable[tuple[Passage, float]]:
        items = list(_items(answer.get("results")))
        silent = answer.get("unresponsive_engines")
        if (
            not items and isinstance(silent, list) and silent
        ):  # nothing found because nobody answered: not the same as nothing there
            names = ", ".join(
                plain_text(str(engine[0] if isinstance(engine, list) and engine else engine)[:100])
                for engine in silent[:10]
            )
            raise TransientSearchError(f"searxng found nothing: its engines did not answer ({names})")
        for item in items:
            yield (
                _passage(item, url="url", text="content", date="publishedDate"),
                _number(item.get("score")),
            )


def _sites(given: str | Sequence[str], engine: str) -> list[str]:
    """Hosts, as people write them: with or without the scheme, `www.` or a slash at the end."""
    sites: list[str] = []
    for one in given.split(",") if isinstance(given, str) else given:
        site = re.sub(r"^(?:https?://)?(?:www\.)?", "", one.strip().lower()).rstrip("/")
        if not _SITE.fullmatch(site):
            raise UsageError(f"site of {engine} is a host such as who.int, or several with commas, not '{one}'")
        sites.append(site)
    return sites


def _lies_in(place: str, site: str) -> bool:
    """Whether a host with its path is of a site, or of a host or a path below it."""
    host, _, path = site.partition("/")
    own, _, rest = place.partition("/")
    return (own == host or own.endswith(f".{host}")) and (not path or rest == path or rest.startswith(f"{path}/"))


def _items(value: object) -> Iterable[dict[str, Any]]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else ()


def url_of(value: object) -> str:
    """An address as an engine gives it; empty where it gives none."""
    return whole(value[:_MAX_URL_CHARS]) if isinstance(value, str) else ""


def text_of(value: object) -> str:
    """A text that holds no HTML, on one line. Anything but a string is empty."""
    return " ".join(whole(value[:_MAX_SNIPPET_CHARS]).split()) if isinstance(value, str) else ""


def _passage(item: Mapping[str, Any], *, url: str, text: str, date: str | None = None) -> Passage:
    address = url_of(item.get(url))
    day = item.get(date) if date else None
    return Passage(
        address,
        plain_text(item.get("title")),
        plain_text(item.get(text)),
        address or None,
        whole(day[:100]) if isinstance(day, str) and day else None,
    )


def _named(passage: Passage) -> Passage:
    """What an engine says itself has no address; its text is what it goes by."""
    if passage.id or not passage.text:
        return passage
    text = f"{passage.title}\n{passage.text}".encode("utf-8", "replace")
    return replace(passage, id=hashlib.sha256(text).hexdigest()[:16])


def _days_ago(days: int) -> str:
    return (datetime.now(UTC) - timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _number(value: object) -> float:
    return finite(value) or 0.0


def shortened(query: str, max_chars: int) -> str:
    """The query, cut between words where the API takes no more."""
    if len(query) <= max_chars:
        return query
    return query[: max_chars + 1].rpartition(" ")[0] or query[:max_chars]
