"""Hits in the answer of an MCP tool, whatever its shape.

Tools answer with structured content, with JSON in a text, or with prose for a model to read. Pure functions find the
list of results and its usual fields; what has no known shape becomes one passage for each block of text, so nothing an
engine found is lost. Only a short note that stands alone and says that nothing was found, or what failed, is no passage.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from parallelsearch.errors import SearchError, TransientSearchError
from parallelsearch.retrieval.base import Hit, Passage, Result
from parallelsearch.retrieval.metadata import bounded
from parallelsearch.untrusted import finite, whole

if TYPE_CHECKING:
    from mcp.types import CallToolResult

_LISTS = ("results", "hits", "result", "items", "documents", "passages", "organic", "web", "data", "content")
_TEXTS = ("text", "content", "contents", "snippet", "description", "body", "passage", "page_content", "summary")
_TITLES = ("title", "name", "heading")
_URLS = ("url", "link", "href", "uri")
_DATES = ("date", "published_date", "publishedDate", "page_age", "published")
_SCORES = ("score", "relevance_score", "relevance", "similarity")
_RATE_LIMIT = re.compile(r"\b429\b|rate.?limit|too many requests|temporarily|try again", re.IGNORECASE)
_BULLET = r"[ \t]*+(?>(?:(?:[-*]|\d++[.)])[ \t]*+)?)\**+"  # possessive: no run of spaces is read twice
_RECORD = re.compile(rf"(?im)^(?={_BULLET}title\**+[ \t]*+:)")
_FIELD = re.compile(rf"(?i)^{_BULLET}([a-z][a-z ]{{1,20}}?)\**+[ \t]*+:[ \t]*+(.*)$")
_ADDRESS = re.compile(r"https?://[^\s<>\"')\]]+")

_MAX_NOTE_CHARS = 300
_NOTHING_FOUND = re.compile(
    r"(?:(?:sorry|unfortunately)[,.:! ]++)?(?:i |we )?(?:"
    r"(?:there (?:are|were|was) )?(?:found )?(?:no|0|zero) (?:\w++ ){0,2}?"
    r"(?:(?:results?|matches|hits)(?: (?:available|could|for|found|match|matching|returned|was|were)\b|[.!:]|$)"
    r"|(?:articles?|content|data|documents?|entries|information|items|pages?|papers?|passages?|records?|sources?) "
    r"(?:(?:was|were|could be) )?(?:found|match|matched|matching)\b)"
    r"|nothing (?:was )?found(?: (?:about|for|in|on)\b|[.!:]|$)"
    r"|(?:your |the )?(?:search|query)\b.{0,200} did not match any\b"
    r"|(?:could|did)(?: not|n't) find any(?:thing|(?: \w++)?? (?:results|matches))\b)",
    re.IGNORECASE,
)
_ERROR = re.compile(  # "Error correction was invented by ..." is a passage
    r"(?:an )?error(?:(?: [\w'()-]++){0,5}?:"
    r"| (?:calling|during|executing|fetching|getting|occurred|performing|querying|retrieving|searching|while)\b)",
    re.IGNORECASE,
)


def read_answer(answer: CallToolResult, k: int) -> Result:
    """The hits in the answer for one query."""
    texts = [text for block in answer.content if isinstance(text := getattr(block, "text", None), str)]
    if answer.is_error:
        return _failure(" ".join(texts))
    value = _value(answer, texts)
    if isinstance(value, dict) and value.get("error") and not _items(value):
        return _failure(str(value["error"]))
    if value is not None:
        return _hits(_items(value) or [], k)
    items = _items_of_texts(texts)
    note = _note(items)
    if _ERROR.match(note):
        return _failure(note)
    return [] if _NOTHING_FOUND.match(note) else _hits(items, k)


def read_batch_answer(answer: CallToolResult, queries: Sequence[str], k: int) -> list[Result]:
    """The results in the answer for several queries: one entry each, in order, a failure in its place."""
    texts = [text for block in answer.content if isinstance(text := getattr(block, "text", None), str)]
    if answer.is_error:
        raise _failure(" ".join(texts))
    value = _value(answer, texts)
    entries = (
        next((value[name] for name in _LISTS if isinstance(value.get(name), list)), None)
        if isinstance(value, dict)
        else value
    )
    if not isinstance(entries, list) or len(entries) != len(queries):
        found = f"{len(entries)} results" if isinstance(entries, list) else "no list of results"
        raise TransientSearchError(f"the MCP tool gave {found} for {len(queries)} queries")
    return [_entry(entry, k) for entry in entries]


def _entry(entry: Any, k: int) -> Result:
    if isinstance(entry, dict) and entry.get("error"):
        error = entry["error"]
        return _failure(str(error.get("message", error) if isinstance(error, dict) else error))
    items = _items(entry)
    return _hits(items, k) if items is not None else SearchError("the MCP tool sent an entry without results")


def _failure(message: str) -> SearchError:
    message = f"the MCP tool failed: {' '.join(whole(message[:1000]).split())[:300] or 'it gave no reason'}"
    return TransientSearchError(message) if _RATE_LIMIT.search(message) else SearchError(message)


def _value(answer: CallToolResult, texts: Sequence[str]) -> Any:
    """The structured content, or the JSON that stands in the text; None if the answer is prose."""
    if answer.structured_content is not None:
        value = answer.structured_content
        # A tool that returns a string is wrapped by the SDK; the string itself may be JSON.
        if isinstance(value, dict) and len(value) == 1 and isinstance(value.get("result"), str):
            return _parsed(value["result"])
        return value
    values = [_parsed(text) for text in texts]
    if not values or any(value is None for value in values):
        return None
    return values[0] if len(values) == 1 else values


def _parsed(text: str) -> Any:
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _items(value: Any, depth: int = 0) -> list[Any] | None:
    """The list of results in a value, or None."""
    if isinstance(value, list):
        return value
    if isinstance(value, dict) and depth < 3:
        for name in _LISTS:
            if isinstance(value.get(name), list | dict) and (found := _items(value[name], depth + 1)) is not None:
                return found
        if _first(value, _TEXTS) or (_first(value, _URLS) and _first(value, _TITLES)):
            return [value]
    return None


def _hits(items: Sequence[Any], k: int) -> list[Hit]:
    hits: list[Hit] = []
    for item in items:
        found = _passage(item)
        if found is not None and len(hits) < k and all(found[0].id != hit.id for hit in hits):
            hits.append(Hit.of(*found, rank=len(hits) + 1))
    return hits


def _passage(item: Any) -> tuple[Passage, float] | None:
    if isinstance(item, str):
        item = {"text": item}
    if not isinstance(item, dict):
        return None
    if isinstance(item.get("document"), dict):
        item = {**item, **item["document"]}
    title, text, url = _first(item, _TITLES), _first(item, _TEXTS), _first(item, _URLS)
    if not title and not text:
        return None
    if not title and "contents" in item and "\n" in text:  # Search-R1's form
        title, _, text = text.partition("\n")
        title = title.strip().strip('"')
    identity = item.get("id")
    if not isinstance(identity, str | int) or identity == "":
        identity = url or hashlib.sha256(f"{title}\n{text}".encode("utf-8", "replace")).hexdigest()[:16]
    score = next((number for name in _SCORES if (number := finite(item.get(name))) is not None), 0.0)
    beside = item.get("metadata")
    metadata = bounded(beside) if isinstance(beside, dict) else None
    date = _first(item, _DATES) or None
    return Passage(whole(str(identity)), title, text, url or None, date, metadata=metadata), score


def _first(item: dict[str, Any], names: Iterable[str]) -> str:
    said = (item[name].strip() for name in names if isinstance(item.get(name), str))
    return whole(next((text for text in said if text), ""))


def _items_of_texts(texts: Sequence[str]) -> list[dict[str, str]]:
    """Prose: records that begin with "Title:", else one result for each block."""
    items: list[dict[str, str]] = []
    for text in texts:
        records = [part for part in _RECORD.split(text) if part.strip()]
        if _RECORD.search(text):
            items += [_record(part) for part in records if _RECORD.match(part)]
        elif text.strip():
            address = _ADDRESS.search(text)
            items.append({"text": text.strip(), "url": address.group() if address else ""})
    return items


def _note(items: Sequence[dict[str, str]]) -> str:
    """The text of a result that is short, stands alone and has neither title nor address; else empty."""
    is_bare = len(items) == 1 and not _first(items[0], (*_TITLES, *_URLS))
    text = items[0].get("text", "") if is_bare else ""
    return text if len(text) <= _MAX_NOTE_CHARS else ""


def _record(part: str) -> dict[str, str]:
    """`Title: ...`, `URL: ...`, `Description: ...`; lines without a name belong to the text."""
    known = {*_TEXTS, *_TITLES, *_URLS, "published date"}
    record: dict[str, str] = {}
    last = "text"
    for line in part.splitlines():
        match = _FIELD.match(line)
        if match and match.group(1).strip().lower() in {*known, *_DATES}:
            last = match.group(1).strip().lower().replace(" ", "_")
            record[last] = match.group(2).strip()
        elif line.strip():
            last = "text" if last in (*_TITLES, *_URLS, *_DATES) else last
            record[last] = f"{record.get(last, '')} {line.strip()}".strip()
    return record
