"""Wikipedia, and any other MediaWiki, as it is now: `wikipedia:`, `wikipedia:de`, `wikipedia:URL_OF_ITS_API`. No key.

One request a query finds pages and brings their introductions as plain text. The wiki's engine wants every word of a query
on a page; where that finds nothing, the names in it are asked for with OR. A query is words alone: what the engine would take
for an operator is left out. What stands further down a page than its introduction is for `pages:wikipedia:`.

The wikis of Wikimedia ask their callers to come one after the other and to say who they are: few requests run at a time, and
`PARALLELSEARCH_CONTACT` is the variable for an address.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

from parallelsearch.errors import SearchError, TransientSearchError, UsageError, stopped
from parallelsearch.http import CONTACT_ENV, Response, checked_url, told_contact, without_secrets
from parallelsearch.retrieval.base import Passage, Result
from parallelsearch.retrieval.web import WebRetriever, shortened, text_of, url_of
from parallelsearch.untrusted import whole

MAX_AT_ONCE = 4
"""Requests that run at a time: the parts of a question, and hardly more."""
_MAX_PAGES = 20
"""So many introductions one answer may hold."""
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z]{2,10}){0,2}|simple")
_SIGN = re.compile(r"[*?~\\:\[\]{}<>|^=]|(?<!\w)[-!/]|/(?!\w)|(?<![א-ת])\"|\"(?![א-ת])")
"""What it takes for none stays, since the engine compares the whole query with titles: AC/DC, Yahoo!, Emma (novel), צה\"ל."""
_OPERATORS = frozenset({"AND", "OR", "NOT", "&&"})
_PASSING = re.compile(
    r"ratelimited|maxlag|readonly|internal_api_error|search-error|cirrussearch-(?:too-busy|backend)|timeout"
)
"""Codes of errors that another try may not meet."""
_SHORT = 3
_LONG = 4


class WikipediaRetriever(WebRetriever):
    """Pages of a wiki by its own search, each with its introduction. `wiki`: a language of Wikipedia, or the address of the
    `api.php` of a MediaWiki that has the extension TextExtracts."""

    name = "wikipedia"
    max_k = _MAX_PAGES
    max_query_chars = 300  # MediaWiki refuses a longer query
    writes_sites = False

    def __init__(self, wiki: str = "", *, timeout_s: float = 15.0, headers_env: str | None = None) -> None:
        super().__init__(_api_of(wiki), timeout_s=timeout_s, max_concurrency=MAX_AT_ONCE, headers_env=headers_env)

    def _key_headers(self, key: str) -> dict[str, str]:
        return told_contact()

    async def _search(self, query: str, k: int) -> Result:
        words = [word for word in _SIGN.sub(" ", query).split() if word.strip("()") not in _OPERATORS]
        found = await super()._search(" ".join(words), k)
        either = shortened(" OR ".join(_names(words)), self.max_query_chars).removesuffix(" OR")
        if found == [] and either and either != " ".join(words):
            return await super()._search(either, k)
        return found

    async def _ask(self, query: str, k: int) -> Response:
        asked = {
            "action": "query",
            "format": "json",
            "formatversion": "2",
            "redirects": "1",
            "generator": "search",
            "gsrsearch": query,
            "gsrlimit": str(k),
            "gsrenablerewrites": "1",
            "prop": "extracts|info|pageprops",
            "exintro": "1",
            "explaintext": "1",
            "exlimit": "max",
            "inprop": "url",
            "ppprop": "disambiguation",
        }
        return await self._get("", asked)

    def _explained(self, error: Exception, status: int) -> SearchError:
        if status in (403, 429) and not told_contact():
            told = f"{stopped(error)} Wikis may want to know who asks: set {CONTACT_ENV} to an address of yours"
            if isinstance(error, TransientSearchError):
                return TransientSearchError(told, retry_after_s=error.retry_after_s)
            return SearchError(told)
        return super()._explained(error, status)

    def _read(self, answer: dict[str, Any]) -> Iterable[tuple[Passage, float]]:
        error = answer.get("error")
        if isinstance(error, dict):
            raise _failure(error)
        found = answer.get("query")
        pages = found.get("pages") if isinstance(found, dict) else None
        pages = [page for page in pages if isinstance(page, dict)] if isinstance(pages, list) else []
        if pages and not any("extract" in page for page in pages):
            raise SearchError(
                f"{self.name} found pages and no text of them: the wiki needs MediaWiki's extension TextExtracts"
            )
        for page in sorted(pages, key=_place):
            url = url_of(page.get("fullurl"))
            yield Passage(url, text_of(page.get("title")), text_of(page.get("extract")), url or None), 0.0


def _api_of(wiki: str) -> str:
    wiki = wiki.strip()
    if "://" in wiki:
        url = checked_url(wiki, "wikipedia")
        if not urlsplit(url).path.endswith(".php"):
            raise UsageError(
                f"'{without_secrets(url)}' is not the address of a wiki's API, which ends in api.php: "
                "wikipedia:https://wiki.example.org/w/api.php"
            )
        return url
    language = wiki.lower() or "en"
    if not _LANGUAGE.fullmatch(language):
        raise UsageError(
            f"'wikipedia:{wiki}' names no wiki: write wikipedia: for the English Wikipedia, wikipedia:de for another "
            "language, or the address of a wiki's API, wikipedia:https://wiki.example.org/w/api.php"
        )
    return f"https://{language}.wikipedia.org/w/api.php"


def _place(page: dict[str, Any]) -> tuple[bool, int]:
    """As the engine has them, but pages that only tell things of one name apart come last."""
    properties, index = page.get("pageprops"), page.get("index")
    is_list = isinstance(properties, dict) and "disambiguation" in properties
    return is_list, index if isinstance(index, int) else _MAX_PAGES


def _names(words: Sequence[str]) -> list[str]:
    """The words that pages are called by: those with a capital or of digits; where there are none, the longer ones."""
    bare = [word.strip(".,;'`’()!") for word in words]
    is_name = [word != word.lower() or word.isdigit() for word in bare]
    if len(words) > 1:
        is_name[0] = is_name[1]  # a name of two words, or how a question begins
    named = [word for word, is_one in zip(bare, is_name, strict=True) if is_one and len(word) >= _SHORT]
    return named or [word for word in bare if len(word) >= _LONG]


def _failure(error: dict[str, Any]) -> SearchError:
    code, told = str(error.get("code"))[:100], str(error.get("info"))[:300]
    text = whole(f"wikipedia: {' '.join(told.split())} ({code})")
    return TransientSearchError(text) if _PASSING.search(code) else SearchError(text)
