"""Web engines against a server on loopback that speaks their JSON."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from search_fault_server import FaultServer, Reply

from parallelsearch.addresses import open_retriever
from parallelsearch.errors import SearchError, SearchTimeoutError, TransientSearchError, UsageError
from parallelsearch.retrieval.base import Hit
from parallelsearch.retrieval.web import (
    BraveRetriever,
    ExaRetriever,
    SearxngRetriever,
    SerperRetriever,
    TavilyRetriever,
    WebRetriever,
    plain_text,
)
from parallelsearch.search import Search

KEY = "k3y-0123456789"
ENGINES = [SerperRetriever, TavilyRetriever, BraveRetriever, ExaRetriever, SearxngRetriever]


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERPER_API_KEY", "TAVILY_API_KEY", "BRAVE_API_KEY", "EXA_API_KEY"):
        monkeypatch.setenv(name, KEY)


async def ask(
    engine: type[WebRetriever], server: FaultServer, *queries: str, k: int = 3, timeout_s: float = 120
) -> list:
    retriever = engine(server.base_url, timeout_s=timeout_s)
    try:
        return await retriever.search_many(queries, k)
    finally:
        await retriever.aclose()


async def test_serper():
    answer = {
        "answerBox": {"title": "Height", "answer": "330 m", "snippet": "It is 330 m tall.", "link": "https://e.org/t"},
        "organic": [
            {"title": "Tower", "link": "https://e.org/t", "snippet": "Built in <b>1889</b>.", "position": 1},
            {"title": "Other", "link": "https://o.org/", "snippet": "A &amp; B", "date": "Mar 3, 2021"},
            {"title": "no link", "snippet": "dropped"},
        ],
    }
    async with FaultServer(Reply(answer)) as server:
        (hits,) = await ask(SerperRetriever, server, "eiffel height")
        request = server.requests[0]
    assert (request.method, request.target, request.headers["x-api-key"]) == ("POST", "/search", KEY)
    assert request.json == {"q": "eiffel height", "num": 10}
    assert hits == [
        Hit("https://e.org/t", "Height", "330 m It is 330 m tall. Built in 1889.", "https://e.org/t", rank=1),
        Hit("https://o.org/", "Other", "A & B", "https://o.org/", "Mar 3, 2021", rank=2),
    ]


async def test_serper_says_something_itself():
    known = {
        "title": "Claude Monet",
        "type": "French painter",
        "description": "Oscar-Claude Monet was a French <b>painter</b>.",
        "attributes": {"Born": "November 14, 1840", "Children": 2, "Died": "December 5, 1926"},
    }
    page = "https://en.wikipedia.org/wiki/Claude_Monet"
    organic = [{"title": "Monet", "link": page, "snippet": "He painted."}]
    script = [
        {"answerBox": {"title": "Born", "answer": "November 14, 1840"}, "knowledgeGraph": known, "organic": organic},
        {"answerBox": {"title": "Born", "answer": "November 14, 1840"}, "organic": []},
        {"answerBox": {"title": "Born"}, "knowledgeGraph": {**known, "descriptionLink": page}, "organic": organic},
        {"answerBox": [], "knowledgeGraph": {"title": "x", "attributes": []}, "organic": organic},
    ]
    async with FaultServer(*map(Reply, script)) as server:
        retriever = SerperRetriever(server.base_url, timeout_s=120)
        first, again, linked, empty = [(await retriever.search_many([query], 3))[0] for query in "abcd"]
        await retriever.aclose()
    facts = "Oscar-Claude Monet was a French painter. Born: November 14, 1840. Died: December 5, 1926."
    assert [(hit.title, hit.text, hit.url, hit.rank) for hit in first] == [
        ("Born", "November 14, 1840", None, 1),
        ("Claude Monet", facts, None, 2),
        ("Monet", "He painted.", page, 3),
    ]
    assert again == first[:1]  # under the same id
    assert linked == [Hit(page, "Claude Monet", f"{facts} He painted.", page, rank=1)]
    assert [hit.title for hit in empty] == ["Monet"]


async def test_tavily():
    answer = {
        "results": [{"title": "T", "url": "https://t.org", "content": "long", "score": 0.9, "published_date": "2024"}]
    }
    async with FaultServer(Reply(answer)) as server:
        (hits,) = await ask(TavilyRetriever, server, "x", k=5)
        request = server.requests[0]
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.json["max_results"] == 5
    assert hits == [Hit("https://t.org", "T", "long", "https://t.org", "2024", 0.9, 1)]


async def test_brave():
    item = {
        "title": "T",
        "url": "https://b.org",
        "description": "one <strong>two</strong>",
        "page_age": "2023-01-02",
        "extra_snippets": ["three"],
    }
    async with FaultServer(Reply({"web": {"results": [item]}})) as server:
        (hits,) = await ask(BraveRetriever, server, "word " * 80, k=50)
        request = server.requests[0]
    asked = parse_qs(urlsplit(request.target).query)
    assert urlsplit(request.target).path == "/web/search"
    assert len(asked["q"][0].split()) == 50
    assert asked["count"] == ["20"]
    assert request.headers["x-subscription-token"] == KEY
    assert hits == [Hit("https://b.org", "T", "one two three", "https://b.org", "2023-01-02", 0.0, 1)]


async def test_exa():
    items = [
        {"title": "T", "url": "https://e.org", "highlights": ["One.", 3, "<b>Two</b>."], "publishedDate": "2024-01-02"},
        {"title": "U", "url": "https://u.org", "text": "whole", "score": 0.3},
    ]
    async with FaultServer(Reply({"results": items})) as server:
        (hits,) = await ask(ExaRetriever, server, "x", k=5)
        request = server.requests[0]
    assert (request.target, request.headers["x-api-key"]) == ("/search", KEY)
    assert request.json == {"query": "x", "numResults": 5, "contents": {"highlights": {"maxCharacters": 700}}}
    assert hits == [
        Hit("https://e.org", "T", "One. ... Two.", "https://e.org", "2024-01-02", 0.0, 1),
        Hit("https://u.org", "U", "whole", "https://u.org", None, 0.3, 2),
    ]


async def test_searxng():
    item = {"title": "T", "url": "https://s.org", "content": "c", "publishedDate": "2022-01-01T00:00:00", "score": 3.5}
    async with FaultServer(Reply({"results": [item, item, {"title": "x"}]})) as server:
        (hits,) = await ask(SearxngRetriever, server, "größe & more?")
        asked = parse_qs(urlsplit(server.requests[0].target).query)
    assert asked == {"q": ["größe & more?"], "format": ["json"]}
    assert hits == [Hit("https://s.org", "T", "c", "https://s.org", "2022-01-01T00:00:00", 3.5, 1)]


async def test_searxng_says_what_to_set_and_that_silence_is_not_an_answer():
    silent = Reply({"results": [], "unresponsive_engines": [["google", "timeout"], ["bing", "access denied"]]})
    async with FaultServer(Reply("Forbidden", 403), silent, Reply({"results": []})) as server:
        forbidden, nobody, nothing = [(await ask(SearxngRetriever, server, "x"))[0] for _ in range(3)]
    assert "settings.yml" in str(forbidden)
    assert isinstance(nobody, TransientSearchError)
    assert "google, bing" in str(nobody)
    assert nothing == []


# ---- faults, the same for all ----------------------------------------------------------------------------------------

FAULTS = [
    (Reply("slow", 429, {"Retry-After": "2"}), TransientSearchError, "429"),
    (Reply("oops", 500), TransientSearchError, "500"),
    (Reply(f"bad key {KEY}", 401), SearchError, "401"),
    (Reply("pay", 402), SearchError, "402"),
    (Reply("<html>"), TransientSearchError, "not JSON"),
    (Reply("[1]"), TransientSearchError, "list"),
    (Reply({"results": []}, cut_after=3), TransientSearchError, "broke"),
    (Reply(closes=True), TransientSearchError, "broke"),
    (Reply(hangs=True), SearchTimeoutError, " 1 s"),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("reply", "error_type", "message"), FAULTS, ids=lambda value: value if isinstance(value, str) else ""
)
async def test_each_fault_is_a_value_without_the_key(engine, reply, error_type, message):
    async with FaultServer(reply) as server:
        (error,) = await ask(engine, server, "x", timeout_s=1 if reply.hangs else 120)
    assert type(error) is error_type
    assert message in str(error)
    assert engine.key_env is None or KEY not in str(error)
    if message == "429":
        assert error.retry_after_s == 2
    if message == "401" and engine.key_env:
        assert engine.key_env in str(error)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "answer",
    [{}, {"results": None, "organic": 3, "web": []}, {"results": ["x", {}], "organic": [None], "web": {"results": 1}}],
)
async def test_an_answer_without_results_is_an_empty_list(engine, answer):
    async with FaultServer(Reply(answer)) as server:
        assert await ask(engine, server, "x") == [[]]


@pytest.mark.parametrize("engine", ENGINES)
async def test_one_request_a_query_and_odd_queries_survive(engine):
    queries = ["a", "", "\x00\x1b", "\ud800", "x" * 100_000, "</search>"]
    async with FaultServer(Reply({})) as server:
        results = await ask(engine, server, *queries)
        assert len(server.requests) == 5
        assert max(len(request.target) + len(request.body) for request in server.requests) < 10_000
    assert isinstance(results[1], SearchError)
    assert [result for i, result in enumerate(results) if i != 1] == [[]] * 5


async def test_retry_after_is_waited_for_and_other_queries_go_on():
    def answer(request):
        first = request.json["q"] == "busy" and sum(r.json["q"] == "busy" for r in server.requests) == 1
        return (
            Reply("slow", 429, {"Retry-After": "3"})
            if first
            else Reply({"organic": [{"title": "T", "link": "u", "snippet": "s"}]})
        )

    async with FaultServer(answer) as server:
        search = Search(SerperRetriever(server.base_url), timeout_s=120)
        found = await search.search_many(["busy", "free"])
        await search.aclose()
    assert [one.error for one in found] == [None, None]
    assert found[0].end_s - found[0].start_s >= 3
    assert found[1].end_s < found[0].end_s - 1


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine.key_env])
def test_a_missing_key_is_said_by_name(engine, monkeypatch):
    monkeypatch.setenv(engine.key_env, " ")
    with pytest.raises(UsageError, match=engine.key_env):
        engine()


def test_the_manifest_holds_no_key_and_searxng_needs_an_address():
    assert KEY not in str([SerperRetriever().describe(), BraveRetriever("http://u:pw@h/?key=1").describe()])
    assert BraveRetriever("http://u:pw@h/?key=1").describe() == {"kind": "brave", "url": "http://h/"}
    with pytest.raises(UsageError, match="searxng:http"):
        SearxngRetriever()


NARROWED = {
    SerperRetriever: {"q": "site:who.int OR site:cdc.gov/flu flu", "num": 10, "tbs": "qdr:w"},
    TavilyRetriever: {
        "query": "flu",
        "max_results": 3,
        "search_depth": "basic",
        "include_domains": ["who.int", "cdc.gov/flu"],
        "time_range": "week",
    },
    BraveRetriever: {
        "q": ["site:who.int OR site:cdc.gov/flu flu"],
        "count": ["3"],
        "text_decorations": ["false"],
        "freshness": ["pw"],
    },
    ExaRetriever: {
        "query": "flu",
        "numResults": 3,
        "contents": {"highlights": {"maxCharacters": 700}},
        "includeDomains": ["who.int", "cdc.gov/flu"],
    },
    SearxngRetriever: {"q": ["site:who.int OR site:cdc.gov/flu flu"], "format": ["json"], "time_range": ["week"]},
}


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_search_is_narrowed_to_sites_and_to_what_is_new(engine):
    urls = [
        "https://WHO.int/flu",
        "https://www.who.int/news?x=1",
        "http://data.who.int",
        "https://notwho.int/flu",
        "https://who.int.evil.org/",
        "https://evil.org/who.int",
        "https://who.int@evil.org/",
        "https://cdc.gov/flu/about",
        "https://cdc.gov/flux",
        "https://cdc.gov/",
        "https://[bad/",
    ]
    items = [
        {"title": url, "url": url, "link": url, "snippet": "x", "content": "x", "description": "x"} for url in urls
    ]
    answer = {"organic": items, "results": items, "web": {"results": items}, "answerBox": {"answer": "7", "title": "A"}}
    async with FaultServer(Reply(answer)) as server:
        narrowed = engine(server.base_url, site="https://www.WHO.int/, cdc.gov/flu/", since="week")
        (hits,) = await narrowed.search_many(["flu"], 3)
        (more,) = await narrowed.search_many(["flu"], 20)
        request = server.requests[0]
        await narrowed.aclose()
    asked = request.json if request.method == "POST" else parse_qs(urlsplit(request.target).query)
    if engine is ExaRetriever:
        day = datetime.fromisoformat(asked.pop("startPublishedDate"))
        assert timedelta(days=6) < datetime.now(UTC) - day < timedelta(days=8)
    assert asked == NARROWED[engine]
    assert [hit.url for hit in more] == [*urls[:3], urls[7]]
    assert hits == more[:3]
    assert narrowed.describe() == {
        "kind": engine.name,
        "url": server.base_url,
        "site": ["who.int", "cdc.gov/flu"],
        "since": "week",
    }


@pytest.mark.parametrize("engine", ENGINES)
async def test_sites_are_part_of_what_an_engine_takes_and_the_query_is_not_lost(engine):
    """Brave takes 400 characters and 50 words, sites and all."""
    sites = ",".join(f"host{number}.example" for number in range(10))
    async with FaultServer(Reply({})) as server:
        narrowed = engine(server.base_url, site=sites)
        for query in ("wonderful " * 60, "flu " * 3 + "x" * 1_000):
            await narrowed.search_many([query], 3)
        requests = list(server.requests)
        await narrowed.aclose()
    for request in requests:
        asked = request.json if request.method == "POST" else parse_qs(urlsplit(request.target).query)
        text = asked.get("query") or asked["q"]
        text = text[0] if isinstance(text, list) else text
        assert len(text) <= engine.max_query_chars
        assert engine is not BraveRetriever or len(text.split()) <= 50
        assert "wonderful wonderful" in text or "flu flu flu" in text


def test_so_many_sites_that_no_query_has_room_are_refused():
    sites = ",".join(f"host{number}.example" for number in range(26))
    with pytest.raises(UsageError, match=r"26 hosts, which leave no room for a query .* all:ADDRESS\|ADDRESS"):
        BraveRetriever(site=sites)
    assert len(TavilyRetriever(site=sites).sites) == 26


def test_what_a_search_can_be_narrowed_to():
    found = open_retriever("serper?site=who.int&since=month:")
    assert found.describe() == {
        "kind": "serper",
        "url": "https://google.serper.dev",
        "site": ["who.int"],
        "since": "month",
    }
    for address, message in (
        ("serper?since=fortnight:", "since of serper is day, week, month, year, not 'fortnight'"),
        ("brave?since=weak:", "Did you mean 'week'?"),
        ("tavily?site=who.int cdc.gov:", "a host such as who.int, or several with commas, not 'who.int cdc.gov'"),
        ("serper?site=:", "not ''"),
    ):
        with pytest.raises(UsageError) as caught:
            open_retriever(address)
        assert message in str(caught.value)


def test_plain_text():
    assert plain_text("a <b>bold</b> &lt;x&gt; 1 < 2<br>next<!-- c --> 3 > 2") == "a bold <x> 1 < 2 next 3 > 2"
    assert plain_text(None) == plain_text(3) == ""
