"""Elasticsearch and OpenSearch against a small index on loopback that refuses what they refuse: `_field_caps`, then one
`_msearch` for all queries, by the words of its documents."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from search_fault_server import FaultServer, Reply, Request

from parallelsearch import Agent, open_search
from parallelsearch.addresses import open_retriever
from parallelsearch.errors import SearchError, SearchTimeoutError, TransientSearchError, UsageError
from parallelsearch.policy import ScriptedPolicy
from parallelsearch.retrieval.base import DegradedHits, Hit
from parallelsearch.retrieval.elastic import KEY_ENV, ElasticRetriever

PAINTERS = {
    "1": {"title": "Claude Monet", "text": "Born on 14 November 1840 in Paris.", "url": "http://a/monet", "page": 3},
    "2": {
        "title": "Camille Pissarro",
        "text": "Born on 10 July 1830. A friend of Monet.",
        "tags": ["island"],
        "page": 4,
    },
    "3": {"title": "Monet (crater)", "text": "A crater on Mercury.", "page": 3},
}
TYPES = {"title": "text", "title.keyword": "keyword", "text": "text", "url": "keyword", "page": "long", "tags": "text"}


class Index(FaultServer):
    """One index `wiki`, as far as one asks it here."""

    def __init__(
        self,
        *script: Reply,
        documents: dict[str, dict[str, Any]] = PAINTERS,
        types: Mapping[str, str | dict[str, Any]] = TYPES,
        names: tuple[str, ...] = ("wiki",),
    ) -> None:
        super().__init__(*script, self.answer)
        self.documents, self.types, self.names = documents, types, names

    def address(self, options: str = "", index: str = "wiki") -> str:
        return f"elastic{options}:{self.base_url}#{index}"

    def asked(self) -> list[list[dict[str, Any]]]:
        """The bodies of each `_msearch`."""
        return [
            [json.loads(line) for line in request.body.decode().splitlines()[1::2]]
            for request in self.requests
            if request.target.endswith("_msearch")
        ]

    def answer(self, request: Request) -> Reply:
        index, what = unquote(urlsplit(request.target).path).strip("/").split("/")
        if index not in ("wiki", "w*"):
            cause = {"type": "index_not_found_exception", "reason": f"no such index [{index}]"}
            return Reply({"error": {"root_cause": [cause], **cause}, "status": 404}, 404)
        if what == "_field_caps":
            assert (request.method, urlsplit(request.target).query) == ("GET", "fields=*")
            fields = {
                name: {kind: {"type": kind, "searchable": kind not in ("object", "nested")}}
                if isinstance(kind, str)
                else kind
                for name, kind in self.types.items()
            }
            return Reply({"indices": list(self.names), "fields": {"_id": {"_id": {"metadata_field": True}}, **fields}})
        assert (request.method, what) == ("POST", "_msearch")
        if request.headers.get("content-type") != "application/x-ndjson":
            return Reply({"error": "Content-Type header is not supported", "status": 406}, 406)
        body = request.body.decode()
        assert body.endswith("\n"), "the last line must end, too"
        lines = [json.loads(line) for line in body.splitlines()]
        assert lines[::2] == [{}] * (len(lines) // 2)
        return Reply({"took": 1, "responses": [self.find(one) for one in lines[1::2]]})

    def find(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert set(asked) <= {"size", "query", "_source", "highlight"}
        query = asked["query"]["bool"]
        assert set(query) == {"must", "filter"}
        best_of = query["must"]["dis_max"]
        scores: dict[str, float] = {}
        fitting: dict[str, list[float]] = {}
        for clause in best_of["queries"]:
            ((field, match),) = clause["match"].items()
            if "(((" in match["query"]:
                cause = {"type": "parse_exception", "reason": "failed to create query: too many clauses"}
                error = {
                    "root_cause": [cause],
                    "type": "search_phase_execution_exception",
                    "reason": "all shards failed",
                }
                return {"error": error, "status": 400}
            words = set(re.findall(r"\w+", match["query"].lower()))
            for id, document in self.documents.items():
                score = match["boost"] * len(words & set(re.findall(r"\w+", said(document, field).lower())))
                fitting.setdefault(id, []).append(score)
        for id, each in fitting.items():
            scores[id] = max(each) + best_of["tie_breaker"] * (sum(each) - max(each))
        for one in query["filter"]:
            ((field, values),) = one["terms"].items()
            assert self.types[field] not in ("text", "object"), "a field of words has no whole values"
            for id, document in self.documents.items():
                if said(document, field.removesuffix(".keyword")) not in values:
                    scores.pop(id, None)
        best = sorted((id for id in scores if scores[id]), key=lambda id: -scores[id])[: asked["size"]]
        return {
            "timed_out": False,
            "_shards": {"total": 2, "successful": 2, "skipped": 0, "failed": 0},
            "hits": {"hits": [self.hit(id, scores[id], asked) for id in best]},
            "status": 200,
        }

    def hit(self, id: str, score: float, asked: dict[str, Any]) -> dict[str, Any]:
        document = self.documents[id]
        kept = {name: value for name, value in document.items() if name not in asked["_source"]["excludes"]}
        hit = {"_index": self.names[0], "_id": id, "_score": score, "_source": kept}
        for field, how in asked.get("highlight", {}).get("fields", {}).items():
            sentences = re.findall(r"[^.]+\.", said(document, field))
            hit["highlight"] = {field: [sentences[-1].strip()[: how["fragment_size"]]]}
        return hit


def said(document: dict[str, Any], field: str) -> str:
    value: Any = document
    for name in [field] if field in document else field.split("."):
        value = value.get(name, "") if isinstance(value, dict) else value
    return " ".join(value) if isinstance(value, list) else str(value)


async def search(address: str, *queries: str, k: int = 3) -> list[Any]:
    retriever = open_retriever(address)
    try:
        await retriever.check()
        return await retriever.search_many(queries, k)
    finally:
        await retriever.aclose()


async def test_a_round_is_one_request_and_needs_no_word_about_the_index() -> None:
    async with Index() as index:
        monet, none, pissarro = await search(index.address(), "claude monet", "zzqq", "when was camille pissarro born")
        assert [len(bodies) for bodies in index.asked()] == [3]
        asked = index.asked()[0][0]
    url = "http://a/monet"
    assert monet[0] == Hit("1", "Claude Monet", PAINTERS["1"]["text"], url, score=2.0, rank=1, metadata={"page": 3})
    assert [(hit.title, hit.rank) for hit in monet[1:]] == [("Camille Pissarro", 2), ("Monet (crater)", 3)]
    assert none == []
    assert pissarro[0].metadata == {"page": 4, "tags": ["island"]}
    assert [list(one["match"]) for one in asked["query"]["bool"]["must"]["dis_max"]["queries"]] == [["title"], ["text"]]


async def test_the_fields_are_found_or_named() -> None:
    langchain = {"7": {"text": "Onyx is run by Ada.", "metadata": {"source": "a.md", "title": "Onyx"}}}
    types = {"text": "text", "metadata.source": "text", "metadata.source.keyword": "keyword", "metadata.title": "text"}
    async with Index(documents=langchain, types={**types, "metadata": "object", "vector": "dense_vector"}) as index:
        (hits,) = await search(index.address("?where=source=a.md"), "onyx")
        assert index.asked()[0][0]["_source"]["excludes"][0] == "vector"
        (none,) = await search(index.address("?where=source=b.md"), "onyx")
    assert hits == [
        Hit("7", "Onyx", "Onyx is run by Ada.", score=1.3, rank=1, metadata={"source": "a.md", "title": "Onyx"})
    ]
    assert none == []
    german = {"8": {"ueberschrift": "Onyx", "inhalt": "Ada leitet es.", "quelle": "http://o"}}
    types = {"ueberschrift": "text", "inhalt": "text", "quelle": "keyword"}
    async with Index(documents=german, types=types) as index:
        with pytest.raises(UsageError, match=r"which field .*elastic\?text=FIELD.*There are: inhalt, ueberschrift"):
            await search(index.address(), "onyx")
        options = "?text=inhalt&title=ueberschrift&url=quelle&fields=ueberschrift^2,inhalt"
        (hits,) = await search(index.address(options), "onyx ada")
    assert hits == [Hit("8", "Onyx", "Ada leitet es.", "http://o", score=2.3, rank=1)]
    async with Index(documents={"9": {"story": "Ada."}}, types={"story": "text", "number": "long"}) as index:
        (hits,) = await search(index.address(), "ada")  # one field of words is the text
    assert [hit.text for hit in hits] == ["Ada."]
    for types in (
        {"body_content": "text", "headings": "text"},  # Elastic's crawler
        {"passage_text": "text", "note": "text"},  # OpenSearch's tutorials
        {"chunk": "long", "story": "text", "story.english": "text"},  # a number is no text
    ):
        story = next(name for name in types if types[name] == "text")
        async with Index(documents={"1": {story: "Ada."}}, types=types) as index:
            (hits,) = await search(index.address(), "ada")
        assert [hit.text for hit in hits] == ["Ada."]


async def test_of_a_long_document_the_server_sends_what_fits() -> None:
    async with Index() as index:
        (hits,) = await search(index.address("?chars=40"), "pissarro")
        asked = index.asked()[0][0]
    assert hits[0].text == "A friend of Monet."
    assert "text" in asked["_source"]["excludes"]
    assert asked["highlight"]["fields"]["text"] == {"fragment_size": 40, "number_of_fragments": 1, "no_match_size": 40}


@pytest.mark.parametrize("is_whole", [True, False])
async def test_texts_that_the_server_does_not_cut_are_asked_for_whole(is_whole: bool) -> None:
    """A text over `index.highlight.max_analyzed_offset` sinks its query, or the shard it is in."""
    reason = (
        "The length of [text] field of [0] doc of [wiki] index has exceeded [1000000] - maximum allowed to be analyzed "
    )
    cause = {
        "type": "illegal_argument_exception",
        "reason": f"{reason}for highlighting. This maximum can be set by changing the [index.highlight.max_analyzed_offset]",
    }
    error = {"root_cause": [cause], "type": "search_phase_execution_exception", "reason": "all shards failed"}
    async with Index() as index:
        find = index.find

        def refuse(asked: dict[str, Any]) -> dict[str, Any]:
            if "highlight" not in asked or "pissarro" not in json.dumps(asked["query"]):
                return find(asked)
            if is_whole:
                return {"error": error, "status": 400}
            failures = [{"shard": 0, "index": "wiki", "node": "n", "reason": cause}]
            return {"_shards": {"total": 2, "failed": 1, "failures": failures}, "hits": {"hits": []}, "status": 200}

        index.find = refuse
        mercury, pissarro = await search(index.address("?chars=12"), "mercury", "pissarro")
        assert [len(bodies) for bodies in index.asked()] == [2, 1]
    assert [hit.text for hit in mercury] == ["A crater on "]
    assert [hit.text for hit in pissarro] == ["Born on 10 J"]
    assert not isinstance(pissarro, DegradedHits)


async def test_a_hit_without_a_fragment_keeps_its_text() -> None:
    """The highlighter of `semantic_text` knows no `no_match_size`; keywords over `ignore_above` have no fragment either."""
    async with Index() as index:
        hit = index.hit
        index.hit = lambda id, score, asked: {
            name: it for name, it in hit(id, score, asked).items() if name != "highlight"
        }
        (hits,) = await search(index.address("?chars=12"), "pissarro")
    assert [hit.text for hit in hits] == ["Born on 10 J"]


async def test_texts_with_their_vectors_and_texts_in_lists_are_read() -> None:
    documents = {"1": {"text": {"text": "Onyx.", "inference": {"chunks": []}}}, "2": {"text": ["Onyx", "Basalt", None]}}
    async with Index(documents=documents, types={"text": "semantic_text"}) as index:
        index.find = lambda asked: {"hits": {"hits": [index.hit(id, 1.0, asked) for id in documents]}, "status": 200}
        (hits,) = await search(index.address(), "onyx")
    assert [hit.text for hit in hits] == ["Onyx.", "Onyx Basalt"]


async def test_fields_in_which_words_find_nothing_are_not_searched() -> None:
    """Those of nested records need a query of their own, and a match in a field that is not indexed is an error."""
    unindexed = {"text": {"type": "text", "searchable": False, "aggregatable": False}}
    types = {
        "passages": "nested",
        "passages.text": "text",
        "passages.name": "keyword",
        "passages.vector": "dense_vector",
        "title": unindexed,
        "story": "search_as_you_type",
        "story._2gram": "search_as_you_type",
        "story.english": "text",
        "number": "long",
    }
    documents = {"1": {"title": "Onyx", "story": "Ada runs it.", "passages": [{"text": "x", "name": "y"}]}}
    async with Index(documents=documents, types=types) as index:
        (hits,) = await search(index.address(), "ada")
        (match,) = index.asked()[0][0]["query"]["bool"]["must"]["dis_max"]["queries"]
        assert list(match["match"]) == ["story"]
        assert "passages.vector" in index.asked()[0][0]["_source"]["excludes"]
        (parts,) = await search(index.address("?text=story.english"), "ada")
        for option, told in {
            "?fields=passages.text": "'passages.text' .* is of the type text in nested records, .*There are: story, ",
            "?fields=title": "'title' .* is of the type text that is not indexed, and words",
            "?where=passages.name=y": "'passages.name' .* is of the type keyword in nested records, in which whole values",
        }.items():
            with pytest.raises(UsageError, match=told):
                await search(index.address(option), "ada")
    assert [(hit.title, hit.text) for hit in hits] == [("Onyx", "Ada runs it.")]
    assert [hit.text for hit in parts] == ["Ada runs it."]


async def test_one_name_may_have_two_types_in_two_indexes() -> None:
    both = {"long": {"type": "long", "indices": ["a"]}, "text": {"type": "text", "indices": ["b"], "searchable": True}}
    some = {"text": {"type": "text", "searchable": False, "non_searchable_indices": ["a"]}}
    async with Index(types={"text": both, "title": some}, names=("a", "b")) as index:
        (hits,) = await search(index.address(), "pissarro")
        matches = index.asked()[0][0]["query"]["bool"]["must"]["dis_max"]["queries"]
    assert [hit.id for hit in hits] == ["a/2"]
    assert [(name, how["lenient"]) for one in matches for name, how in one["match"].items()] == [
        ("title", True),
        ("text", True),
    ]


@pytest.mark.parametrize("query", ["\u753b\u5bb6" * 1_000, "x yz " * 500, "word " * 300])
async def test_a_long_query_has_no_more_clauses_than_servers_take(query: str) -> None:
    """OpenSearch counts those of all fields together, and takes 1,024."""
    types = dict.fromkeys(("title", "text", "a", "b"), "text")
    async with Index(types=types) as index:
        await search(index.address("?fields=title,text,a,b"), query)
        (match, *_) = index.asked()[0][0]["query"]["bool"]["must"]["dis_max"]["queries"]
    words = re.findall(r"[\u4e00-\u9fff]|[a-z]+", match["match"]["title"]["query"])
    assert 4 * len(words) == 1_000


async def test_where_nothing_can_be_shown_the_field_is_asked_for() -> None:
    """As with a field that others are copied to (`copy_to`): documents do not say it."""
    async with Index(documents={"1": {"body": "Ada"}}, types={"text": "text"}) as index:
        index.find = lambda asked: {"hits": {"hits": [index.hit("1", 1.0, asked)]}, "status": 200}
        (result,) = await search(index.address(), "ada")
    assert isinstance(result, SearchError)
    assert "found 1 documents, and none has a text in 'text'. Name the field that has one" in str(result)


async def test_a_text_may_be_in_a_list_of_records() -> None:
    documents = {"1": {"parts": [{"said": "Onyx."}, {"said": ["Ada", "runs"]}, {"other": 1}, "x"]}}
    async with Index(documents=documents, types={"parts": "object", "parts.said": "text"}) as index:
        index.find = lambda asked: {"hits": {"hits": [index.hit("1", 1.0, asked)]}, "status": 200}
        (hits,) = await search(index.address(), "onyx")
    assert [hit.text for hit in hits] == ["Onyx. Ada runs"]


async def test_where_is_asked_of_the_server() -> None:
    async with Index() as index:
        (hits,) = await search(index.address("?where=page=3"), "monet")
        assert [hit.id for hit in hits] == ["1", "3"]
        one = open_search(index.address(), where={"page": [3, 4], "title": "Camille Pissarro"})
        assert [hit.id for hit in (await one.find("monet")).hits] == ["2"]
        assert index.asked()[-1][0]["query"]["bool"]["filter"] == [
            {"terms": {"page": ["3", "4"]}},
            {"terms": {"title.keyword": ["Camille Pissarro"]}},
        ]
        other = one.where({"page": 3})
        assert (await other.find("monet")).hits == []
        with pytest.raises(UsageError, match=r"where=pages: .*no such field. Did you mean 'page'\?"):
            one.where({"pages": 3})
        await one.aclose()
        with pytest.raises(UsageError, match=r"where=tags: .*a field of the type keyword below it"):
            await search(index.address("?where=tags=island"), "monet")
        with pytest.raises(SearchError, match="where=pages"):  # nobody checked
            await open_retriever(index.address("?where=pages=3")).search_many(["monet"], 3)


@pytest.mark.parametrize("kind", ["flattened", "flat_object"])
async def test_where_finds_what_is_in_a_flat_field(kind: str) -> None:
    documents = {
        "1": {"text": "Ada", "metadata": {"source": "a.md"}},
        "2": {"text": "Ada", "metadata": {"source": "b"}},
    }
    async with Index(documents=documents, types={"text": "text", "metadata": kind}) as index:
        index.types = {**index.types, "metadata.source": "keyword"}  # as the stand-in filters; servers do not list it
        answer = index.answer
        caps = {name: {it: {"type": it, "searchable": True}} for name, it in [("text", "text"), ("metadata", kind)]}
        index.script[-1] = lambda asked: (
            Reply({"indices": ["wiki"], "fields": caps}) if "_field_caps" in asked.target else answer(asked)
        )
        (hits,) = await search(index.address("?where=metadata.source=b"), "ada")
    assert [hit.id for hit in hits] == ["2"]


async def test_ids_of_several_indexes_do_not_meet() -> None:
    async with Index(names=("wiki-1", "wiki-2")) as index:
        (hits,) = await search(index.address(index="w*"), "pissarro")
        assert "/w*/_msearch" in unquote(index.requests[-1].target)
    assert hits[0].id == "wiki-1/2"


async def test_a_query_that_fails_costs_itself_alone() -> None:
    async with Index() as index:
        good, bad, empty = await search(index.address(), "monet", "(((", " ")
        assert [len(bodies) for bodies in index.asked()] == [2]
    assert [hit.id for hit in good] == ["1", "2", "3"]
    assert isinstance(bad, SearchError)
    assert not isinstance(bad, TransientSearchError)
    assert str(bad).endswith("failed to create query: too many clauses (parse_exception)")
    assert str(empty) == "the query is empty"


async def test_what_passes_is_repeated_and_what_is_missing_is_said() -> None:
    async with Index() as index:
        find = index.find
        busy = {"error": {"type": "es_rejected_execution_exception", "reason": "queue is full"}, "status": 429}
        index.find = lambda asked: {**find(asked), "timed_out": True, "_shards": {"total": 5, "failed": 2}}
        (degraded,) = await search(index.address(), "monet")
        assert isinstance(degraded, DegradedHits)
        assert degraded.failures == ("elastic: 2 of 5 shards failed", "elastic: the server's own time was over")
        away = {"total": 2, "successful": 1, "skipped": 1}  # of `ours,theirs:wiki`, where `theirs` may be missing
        index.find = lambda asked: {**find(asked), "_clusters": away}
        (degraded,) = await search(index.address(), "monet")
        assert degraded.failures == ("elastic: 1 of 2 clusters skipped",)
        index.find = lambda asked: busy
        (result,) = await search(index.address(), "monet")
        assert isinstance(result, TransientSearchError)
        answers = iter([busy])
        index.find = lambda asked: next(answers, None) or find(asked)
        found = open_search(index.address())
        assert len((await found.find("monet")).hits) == 3
        await found.aclose()


async def test_what_is_wrong_is_said_before_a_model_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Index() as index:
        with pytest.raises(UsageError, match=r"there is no index 'wkii' at http://.*no such index \[wkii\]"):
            await search(index.address(index="wkii"), "monet")
        for option, told in {
            "?text=txt": "text=txt: .* no such field. Did you mean 'text'",
            "?fields=page": "the field 'page' .* is of the type long, .* There are: tags, text, title",
            "?fields=titel": "the field 'titel' .* is not there, .* Did you mean 'title'",
        }.items():
            with pytest.raises(UsageError, match=told):
                await search(index.address(option), "monet")
        with pytest.raises(SearchError, match="there is no index 'wkii'"):  # nobody checked
            await open_retriever(index.address(index="wkii")).search_many(["monet"], 3)
    closed = {"root_cause": [], "type": "index_closed_exception", "reason": "closed", "index": "wiki"}
    for other, told in [
        (Reply({"error": closed, "status": 400}, 400), "answered 400 Whatever: closed$"),
        (Reply(b"", 301), "answered 301 Whatever. It redirects to nowhere: use that address"),
        (
            Reply({"message": "Hello"}),
            "did not say what fields there are; is Elasticsearch or OpenSearch at this address",
        ),
        (Reply({"fields": {"text": [1, "a"]}}), "did not say what fields there are"),
        (Reply(b"<html>Not Found</html>", 404), "it answered 404; is Elasticsearch or OpenSearch at this address"),
    ]:
        async with FaultServer(other) as server:
            with pytest.raises(UsageError, match=told):
                await search(f"elastic:{server.base_url}#wiki", "monet")
            assert len(server.requests) == 1
    async with Index(types={}) as index:
        with pytest.raises(UsageError, match="holds no documents, or there is none of that name"):
            await search(index.address(), "monet")
    for address, told in {
        "elastic:": r"it goes on like elastic:URL#INDEX",
        "elastic:http://localhost:9200": "needs the address of the server and an index: elastic:http://localhost:9200#my-index",
        "elastic:http://me:pw@localhost:9200": r"'elastic:http://localhost:9200' needs",
        "elastic:localhost:9200#wiki": "elastic needs an address such as",
        "elastic?chars=0:http://h#wiki": "chars is .* at least 1",
        "elastic?fields=title^x:http://h#wiki": "title.2 for one that counts twice, not 'title.x'",
        "elastic?feilds=title:http://h#wiki": "Did you mean 'fields'",
        "elastic?timeout_s=0:http://h#wiki": "timeout_s of elastic is seconds, more than 0",
    }.items():
        with pytest.raises(UsageError, match=told):
            open_retriever(address)
    monkeypatch.setenv(KEY_ENV, "schlüssel")
    with pytest.raises(UsageError, match=f"the key in {KEY_ENV} has characters no key has"):
        open_retriever("elastic:http://h#wiki")


async def test_keys_are_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_ENV, "a-secret")
    async with Index() as index:
        retriever = open_retriever(index.address())
        await retriever.check()
        assert index.requests[-1].headers["authorization"] == "ApiKey a-secret"
        await retriever.aclose()
        login = index.address().replace("http://", "http://me:p%23w@")
        (hits,) = await search(login, "monet")
        assert len(hits) == 3
        pair = base64.b64decode(index.requests[-1].headers["authorization"].removeprefix("Basic ")).decode()
        assert pair == "me:p#w"
        assert "p#w" not in json.dumps(open_retriever(login).describe())
    monkeypatch.setenv(KEY_ENV, "id:a-secret")
    async with Index() as index:
        await search(index.address(), "monet")
        assert index.requests[-1].headers["authorization"] == f"ApiKey {base64.b64encode(b'id:a-secret').decode()}"
    monkeypatch.setenv(KEY_ENV, "a-secret")
    refusal = Reply({"error": {"type": "security_exception", "reason": "no a-secret here"}, "status": 401}, 401)
    async with Index(refusal) as index:
        with pytest.raises(
            UsageError, match=rf"answered 401 Whatever: no \*\*\* here.*Set {KEY_ENV} to a key that may read 'wiki'"
        ):
            await search(index.address(), "monet")


async def test_a_server_that_is_away_or_slow_is_left_to_the_queries() -> None:
    retriever = ElasticRetriever("http://127.0.0.1:9#wiki")
    await retriever.check()
    with pytest.raises(TransientSearchError, match="is it running"):
        await retriever.search_many(["monet"], 3)
    await retriever.aclose()
    async with Index(Reply(b"{}", delay_s=5)) as index:
        slow = ElasticRetriever(f"{index.base_url}#wiki", timeout_s=0.2)
        with pytest.raises(SearchTimeoutError):
            await slow.search_many(["monet"], 3)
        await slow.aclose()


async def test_an_index_that_goes_away_fails_its_queries() -> None:
    async with Index() as index:
        retriever = open_retriever(index.address())
        await retriever.check()
        index.script[:] = [Reply({"error": {"type": "x", "reason": "gone"}}, 404)]
        with pytest.raises(SearchError, match=r"there is no index 'wiki' .*gone"):
            await retriever.search_many(["monet"], 3)
        await retriever.aclose()


async def test_an_agent_asks_it() -> None:
    turns = ["<search> claude monet ## camille pissarro </search>", "<answer> Camille Pissarro </answer>"]
    async with Index() as index:
        policy = ScriptedPolicy({"Who is older?": turns})
        async with Agent(policy=policy, search=index.address()) as agent:
            trajectory = await agent.ask_async("Who is older?")
        assert [len(bodies) for bodies in index.asked()] == [2]
    assert [query.hits[0].title for query in trajectory.turns[0].queries] == ["Claude Monet", "Camille Pissarro"]
