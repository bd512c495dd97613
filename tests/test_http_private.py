import json
import time
from urllib.parse import quote, quote_plus

import pytest

from parallelsearch.errors import SearchError
from parallelsearch.http import without_asked
from parallelsearch.joined import JoinedRetriever
from parallelsearch.retrieval.base import DegradedHits
from parallelsearch.search import Found
from parallelsearch.server.limits import ServerSettings
from parallelsearch.server.search_server import RetrieveRequest, _log_fields

SECRET = 'who is the "secret"\n wife of Jörg\'s boss?'


@pytest.mark.parametrize(
    "message",
    [
        SECRET,
        f"{SECRET} and {SECRET[:20]}, {SECRET[:13]}",
        repr(SECRET),
        repr(SECRET[:25]),
        json.dumps({"q": SECRET}),
        json.dumps({"q": SECRET}, ensure_ascii=False),
        quote(SECRET),
        quote(SECRET, safe=""),
        quote_plus(SECRET).lower(),
        " ".join(SECRET.split())[:30],
    ],
)
def test_a_text_is_hidden_in_every_form(message):
    hidden = without_asked(f"it failed for {message}: down", [SECRET])
    assert hidden.startswith("it failed for ")
    assert hidden.endswith(": down")
    assert not {"secret", "wife", "boss", "who"} & set(hidden.replace("+", " ").replace("%20", " ").split())
    assert "wife" not in hidden


@pytest.mark.parametrize("text", ["", ".", "...", " ", "x", "İİ", "." * 40, "…", "\ud800 half a pair", "(a|b*"])
def test_odd_texts_end_and_harm_nothing_else(text):
    assert "down" in without_asked(f"it is down ... {text} İ .", [text, text])
    assert without_asked("a plain message", ["a question that it does not quote"]) == "a plain message"


def test_many_short_texts_take_no_time():
    start = time.perf_counter()
    assert without_asked("e" * 100_000, [chr(97 + n % 26) * (1 + n % 7) for n in range(1000)]) == "..." * 143
    assert time.perf_counter() - start < 2


def test_the_search_server_logs_no_query_by_its_errors():
    asked = RetrieveRequest(queries=["capital of France", SECRET], k=3, return_scores=True)
    found = [
        Found("capital of France", DegradedHits([], ["web: no capital%20of%20France"])),
        Found(SECRET, error=SearchError(f"the recording has no query {SECRET[:200]!r}")),
    ]
    fields = _log_fields(asked, found, None, ServerSettings())
    assert (fields["first_missing"], fields["first_error"]) == ("web: no ...", "the recording has no query '...'")
    told = _log_fields(asked, found, None, ServerSettings(logs_queries=True))
    assert "capital%20of%20France" in told["first_missing"]


async def test_joined_searches_warn_without_the_query(echo, caplog):
    failing = echo(fails=lambda query: SearchError(f"no query {query!r}"))
    joined = JoinedRetriever([echo(), failing])
    (found,) = await joined.search_many(["capital of France"], 3)
    assert isinstance(found, DegradedHits)
    assert "no query '...'" in caplog.text
    assert "France" not in caplog.text
