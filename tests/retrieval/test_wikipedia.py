"""Wikipedia against a small wiki on loopback that finds pages as MediaWiki's search does: every word must be there, unless OR
stands between them."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from search_fault_server import FaultServer, Reply, Request

from parallelsearch import Agent, __version__
from parallelsearch.addresses import open_retriever
from parallelsearch.errors import SearchError, SearchTimeoutError, TransientSearchError, UsageError
from parallelsearch.http import CONTACT_ENV
from parallelsearch.policy import ScriptedPolicy
from parallelsearch.retrieval.base import Hit
from parallelsearch.retrieval.wikipedia import WikipediaRetriever

PAGES = {
    "Claude Monet": "Oscar-Claude Monet (14 November 1840 – 5 December 1926) was a French painter.\nHe was born in Paris.",
    "Camille Pissarro": "Camille Pissarro (10 July 1830 – 13 November 1903) was a painter born on the island of St Thomas.",
    "Monet": "Monet may refer to: Claude Monet, painter; Monet (crater)",
    "Guggenheim Museum Bilbao": "The Guggenheim Museum Bilbao is a museum of art designed by Frank Gehry, a < b.",
}


class Wiki(FaultServer):
    """`/w/api.php` as far as one asks it here, and the pages themselves under `/wiki/`."""

    def __init__(self, *script: Reply) -> None:
        super().__init__(*script, self.answer)

    @property
    def api(self) -> str:
        return f"{self.base_url}/w/api.php"

    def asked(self) -> list[dict[str, str]]:
        return [{name: one for name, (one,) in parse_qs(urlsplit(each.target).query).items()} for each in self.requests]

    def answer(self, request: Request) -> Reply:
        parts = urlsplit(request.target)
        if parts.path.startswith("/wiki/"):
            return Reply(
                "<title>Monet</title><p>Head.</p><p>His asteroid is 6676 Monet.</p>", 200, {"Content-Type": "text/html"}
            )
        asked = {name: one for name, (one,) in parse_qs(parts.query).items()}
        assert parts.path == "/w/api.php"
        assert (asked["action"], asked["format"], asked["formatversion"]) == ("query", "json", "2")
        query = asked["gsrsearch"]
        if len(query) > 300:
            return Reply({"error": {"code": "cirrussearch-query-too-long", "info": "Search request is too long."}})
        words = re.findall(r"\w+", query.replace(" OR ", " ").lower())
        fits = any if " OR " in query else all
        found = [
            title
            for title, text in PAGES.items()
            if fits(word in re.findall(r"\w+", f"{title} {text}".lower()) for word in words)
        ][: int(asked["gsrlimit"])]
        if not found:
            return Reply({"batchcomplete": True})
        pages = [self.page(title, index) for index, title in enumerate(found, start=1)]
        return Reply({"batchcomplete": True, "query": {"pages": pages[::-1]}})  # by their ids, as MediaWiki has them

    def page(self, title: str, index: int) -> dict[str, object]:
        page = {"pageid": index, "ns": 0, "title": title, "index": index, "extract": PAGES[title]}
        page["fullurl"] = f"{self.base_url}/wiki/{quote(title.replace(' ', '_'))}"
        return {**page, "pageprops": {"disambiguation": ""}} if "may refer to" in PAGES[title] else page


async def search(wiki: Wiki, *queries: str, k: int = 3, timeout_s: float = 120) -> list:
    retriever = WikipediaRetriever(wiki.api, timeout_s=timeout_s)
    try:
        return await retriever.search_many(queries, k)
    finally:
        await retriever.aclose()


async def test_pages_come_with_their_introductions_in_the_order_of_the_engine():
    async with Wiki() as wiki:
        painters, one = await search(wiki, "painter", "painter born island")
        asked = wiki.asked()[0]
    assert [(hit.title, hit.rank) for hit in painters] == [("Claude Monet", 1), ("Camille Pissarro", 2), ("Monet", 3)]
    url = f"{wiki.base_url}/wiki/Camille_Pissarro"
    assert one == [Hit(url, "Camille Pissarro", PAGES["Camille Pissarro"], url, rank=1)]
    assert "\n" not in painters[0].text
    assert asked["gsrlimit"] == "3"
    assert asked["prop"] == "extracts|info|pageprops"
    assert (asked["exintro"], asked["explaintext"], asked["exlimit"]) == ("1", "1", "max")


async def test_a_page_that_only_tells_names_apart_comes_last():
    async with Wiki() as wiki:
        (hits,) = await search(wiki, "monet painter claude")
        (first,) = await search(wiki, "monet crater")
    assert [hit.title for hit in hits] == ["Claude Monet", "Monet"]
    assert [hit.title for hit in first] == ["Monet"]


async def test_where_no_page_has_every_word_its_names_are_asked_for():
    question = "In which city was the designer of the Guggenheim Museum in Bilbao born?"
    async with Wiki() as wiki:
        (hits,) = await search(wiki, question)
        (none,) = await search(wiki, "zzqq")
        queries = [asked["gsrsearch"] for asked in wiki.asked()]
    assert hits[0].title == "Guggenheim Museum Bilbao"
    assert hits[0].text.endswith("a < b.")  # it is text already, and no HTML
    assert none == []
    assert queries == [question.rstrip("?"), "Guggenheim OR Museum OR Bilbao", "zzqq"]


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        ('"Claude Monet" -painter', "Claude Monet painter"),
        ("intitle:Monet insource:/x.*/", "intitle Monet insource x."),
        ("Jean-Paul Sartre OR NOT (AND)", "Jean-Paul Sartre"),
        ("Star Wars: A New Hope?", "Star Wars A New Hope"),
        ("C++ and C#", "C++ and C#"),
        ("AC/DC !Yahoo! / P!nk -Emma (novel) (-x)", "AC/DC Yahoo! P!nk Emma (novel) ( x)"),
        ("OR-7 wolf AND pack && Oregon", "OR-7 wolf pack Oregon"),
        ('"צה"ל" הוקם "מתי"', 'צה"ל הוקם מתי'),
        ("word " * 200, " ".join(["word"] * 60)),
    ],
)
async def test_a_query_is_words_and_no_operators(written: str, asked: str):
    async with Wiki(Reply({"batchcomplete": True})) as wiki:
        await search(wiki, written)
        assert wiki.asked()[0]["gsrsearch"] == asked


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        ("in which year was Pissarro really zzqq", "Pissarro"),
        ("zzqq", None),
        ("when was Yahoo! sued (by Google) zzqq", "Yahoo OR Google"),
        (" ".join(f"Name{n:03}" for n in range(60)), " OR ".join(f"Name{n:03}" for n in range(27))),
    ],
)
async def test_what_is_asked_second(written: str, asked: str | None):
    async with Wiki(Reply({"batchcomplete": True})) as wiki:
        await search(wiki, written)
        assert [one["gsrsearch"] for one in wiki.asked()][1:] == ([] if asked is None else [asked])


async def test_few_requests_run_at_a_time():
    async with Wiki(*[Reply({"batchcomplete": True}, delay_s=0.1)] * 12) as wiki:
        await search(wiki, *(f"query{n}" for n in range(12)))
        assert wiki.most_at_once <= 4
        assert len(wiki.requests) == 12


@pytest.mark.parametrize(
    ("reply", "kind", "message"),
    [
        (
            Reply({"error": {"code": "ratelimited", "info": "You've exceeded\nyour rate limit."}}),
            TransientSearchError,
            "rate limit",
        ),
        (Reply({"error": {"code": "maxlag", "info": "Waiting"}}), TransientSearchError, "maxlag"),
        (Reply({"error": {"code": "badvalue", "info": "No"}}), SearchError, "No (badvalue)"),
        (Reply({"error": {"code": "cirrussearch-parse-error", "info": "Simpler"}}), SearchError, "Simpler"),
        (Reply({"error": {}}), SearchError, "None"),
        (Reply({"query": {"pages": [{"title": "A", "index": 1}]}}), SearchError, "TextExtracts"),
        (Reply("slow down", 429, {"Retry-After": "7"}), TransientSearchError, CONTACT_ENV),
        (Reply("Please respect our robot policy", 403), SearchError, CONTACT_ENV),
        (Reply("<html>", 200), TransientSearchError, "not JSON"),
        (Reply("[]", 200), TransientSearchError, "list"),
        (Reply("oops", 503), TransientSearchError, "503"),
        (Reply(closes=True), TransientSearchError, "broke"),
        (Reply(hangs=True), SearchTimeoutError, " 1 s"),
    ],
)
async def test_each_fault_is_a_value(
    reply: Reply, kind: type[SearchError], message: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv(CONTACT_ENV, raising=False)
    async with Wiki(reply, reply) as wiki:  # a connection that closes is opened once more
        (error,) = await search(wiki, "Monet", timeout_s=1 if reply.hangs else 120)
    assert type(error) is kind
    assert message in str(error)
    assert reply.status != 429 or error.retry_after_s == 7


@pytest.mark.parametrize(
    "answer",
    [
        {"query": None},
        {"query": {"pages": "x"}},
        {"query": {"pages": [None, 3]}},
        {"query": {"pages": [{"title": 3, "index": "x", "extract": None, "fullurl": ["u"], "pageprops": []}]}},
    ],
)
async def test_an_odd_answer_is_an_empty_list(answer: dict[str, object]):
    async with Wiki(Reply(answer), Reply(answer)) as wiki:
        assert await search(wiki, "Claude Monet") == [[]]


@pytest.mark.parametrize(
    ("contact", "told"),
    [
        ("jo@example.org\r\nX-Evil: (1)", " (jo@example.org X-Evil: %281%29)"),
        (
            " https://de.wikipedia.org/wiki/Benutzer:Jörg_(Bot) ",
            " (https://de.wikipedia.org/wiki/Benutzer:J%C3%B6rg_%28Bot%29)",
        ),
        ("J\udcff\x1b\\", " (J%FF%1B%5C)"),
        (" \n ", ""),
    ],
)
async def test_who_asks_is_said_to_the_wiki_in_what_a_header_may_hold(
    contact: str, told: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(CONTACT_ENV, contact)
    async with Wiki(Reply("no", 403)) as wiki:
        (error,) = await search(wiki, "Monet")
        headers = wiki.requests[0].headers
    assert headers["user-agent"] == f"parallelsearch/{__version__}{told}"
    assert "x-evil" not in headers
    assert (CONTACT_ENV in str(error)) is (not told)


async def test_who_asks_is_said_to_no_other_search(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(CONTACT_ENV, "jo@example.org")
    async with FaultServer() as server:
        for address in (f"{server.base_url}/retrieve", f"searxng:{server.base_url}"):
            other = open_retriever(address)
            await other.search_many(["Monet"], 1)
            await other.aclose()
        assert {request.headers["user-agent"] for request in server.requests} == {f"parallelsearch/{__version__}"}


def test_which_wiki():
    for address, url in (
        ("wikipedia:", "https://en.wikipedia.org/w/api.php"),
        ("wikipedia: DE", "https://de.wikipedia.org/w/api.php"),
        ("wikipedia:zh-min-nan", "https://zh-min-nan.wikipedia.org/w/api.php"),
        ("wikipedia:simple", "https://simple.wikipedia.org/w/api.php"),
        ("wikipedia?timeout_s=3:https://wiki.example.org/w/api.php", "https://wiki.example.org/w/api.php"),
    ):
        assert open_retriever(address).describe() == {"kind": "wikipedia", "url": url}
    for address, message in (
        ("wikipedia:German", "'wikipedia:German' names no wiki: write wikipedia:"),
        ("wikipedia:de.evil.org/", "names no wiki"),
        ("wikipedia:ftp://x/", "needs an address such as"),
        (
            "wikipedia:https://jo:pw@de.wikipedia.org",
            "'https://de.wikipedia.org' is not the address of a wiki's API, which",
        ),
        ("wikipedia:https://de.wikipedia.org/wiki/Monet", "ends in api.php: wikipedia:https://"),
        ("wikipedia?lang=de:", "has no option 'lang'"),
        ("wikipeda:", "Did you mean 'wikipedia'?"),
    ):
        with pytest.raises(UsageError) as caught:
            open_retriever(address)
        assert message in str(caught.value)


async def test_a_page_is_opened_for_what_its_introduction_lacks():
    async with Wiki() as wiki:
        pages = open_retriever(f"pages?private=1:wikipedia:{wiki.api}")
        (hits,) = await pages.search_many(["Claude Monet"], 1)
        await pages.aclose()
    assert (hits[0].title, hits[0].text) == ("Claude Monet", "Head.\nHis asteroid is 6676 Monet.")


async def test_a_question_is_asked_of_a_wiki_in_one_round():
    question = "Who is older, Claude Monet or Camille Pissarro?"
    turns = [
        "<think>Both.</think><search> Claude Monet born ## Camille Pissarro born </search>",
        "<think>1830 is before 1840.</think><answer> Camille Pissarro </answer>",
    ]
    async with Wiki() as wiki:
        async with Agent(policy=ScriptedPolicy({question: turns}), search=f"wikipedia:{wiki.api}") as agent:
            trajectory = await agent.ask_async(question)
        assert wiki.most_at_once == 2
    assert trajectory.answer == "Camille Pissarro"
    assert [query.hits[0].title for query in trajectory.rounds[0].queries] == ["Claude Monet", "Camille Pissarro"]
