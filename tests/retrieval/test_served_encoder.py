"""Embeddings from a real HTTP server on loopback, with all that goes wrong there: rates, lengths, order, bad vectors, silence,
a server that dies in a build, another model behind the same address."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embedding_server import DIM, EmbeddingServer, Fault, vector_of

from parallelsearch import open_search
from parallelsearch.errors import (
    IndexDamagedError,
    ParallelSearchError,
    SearchError,
    SearchTimeoutError,
    TransientSearchError,
    UsageError,
)
from parallelsearch.http import background
from parallelsearch.retrieval.base import DegradedHits, Passage
from parallelsearch.retrieval.dense import DenseRetriever, build_dense
from parallelsearch.retrieval.encoders import expected_dim, open_encoder
from parallelsearch.retrieval.hybrid import build_hybrid
from parallelsearch.retrieval.indexing import plan_index
from parallelsearch.retrieval.readymade import open_readymade
from parallelsearch.retrieval.served_encoder import MAX_CHARS, Patience, ServedEncoder, ServedModel
from parallelsearch.retrieval.store import partial_folder
from parallelsearch.retrieval.text_encoder import PROBE_TEXT, Prefixes
from parallelsearch.retrieval.vector_files import open_vectors

FACTS = [
    Passage("fr", "Paris", "Paris is the capital and largest city of France."),
    Passage("eg", "Nile", "The Nile is a river in Africa."),
    Passage("mo", "Moon", "The Moon is the natural satellite of the Earth."),
    Passage("be", "Beethoven", "German composer whose ninth symphony ends with the Ode to Joy."),
]
KEY = "sk-0123456789abcdef"
QUICK = Patience(attempts=3, max_wait_s=2.0)


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    with EmbeddingServer() as one:
        yield one


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def towns(count: int) -> list[Passage]:
    return [Passage(f"p{n}", f"Town {n}", f"Town {n} lies {n * 7 % 100} km from the sea.") for n in range(count)]


def unit(text: str, seed: int = 0) -> np.ndarray:
    vector = vector_of(text, seed)
    return vector / np.linalg.norm(vector)


def agree(vectors: np.ndarray, texts: list[str]) -> None:
    np.testing.assert_allclose(vectors, np.stack([unit(text) for text in texts]), atol=1e-6)


# ---- an address ------------------------------------------------------------------------------------------------------


def test_an_address_says_model_and_options() -> None:
    served = ServedModel.of(
        "openai:http://localhost:11434/v1/?timeout_s=5&dimensions=256&query_prefix=q%3A+#nomic/embed:v1.5"
    )
    assert (served.base_url, served.model) == ("http://localhost:11434/v1", "nomic/embed:v1.5")
    assert served.options == {"timeout_s": 5.0, "dimensions": 256, "query_prefix": "q:+"}


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("openai:http://localhost:11434/v1", "needs its model behind a '#'"),
        ("openai:localhost:11434/v1#m", "needs an address such as http://"),
        ("openai:http://h/v1?time_s=3#m", "Did you mean 'timeout_s'"),
        ("openai:http://h/v1?dimensions=0#m", "dimensions of a served encoder must be greater than 0"),
        ("openai:http://h/v1?dimensions=many#m", "is a whole number, not 'many'"),
        ("http://localhost:11434/v1", "write openai:BASE_URL#MODEL"),
    ],
)
def test_a_wrong_address_says_what_to_type(address: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        open_encoder(address)


def test_a_limit_in_tokens_is_for_encoders_of_this_machine(server: EmbeddingServer) -> None:
    with pytest.raises(UsageError, match=r"\?max_chars="):
        build_dense(FACTS, "unused", server.address, max_tokens=100)


@pytest.mark.parametrize(
    ("model", "dim"),
    [
        ("text-embedding-3-small", 1536),
        ("text-embedding-3-large", 3072),
        ("nomic-embed-text", 768),
        ("mxbai-embed-large", 1024),
        ("Qwen/Qwen3-Embedding-0.6B", 1024),
        ("mine", None),
    ],
)
def test_a_plan_asks_no_server(model: str, dim: int | None) -> None:
    address = f"openai:http://127.0.0.1:1/v1#{model}"
    assert expected_dim(address) == dim
    assert expected_dim(f"openai:http://127.0.0.1:1/v1?dimensions=256#{model}") == 256
    planned, _ = plan_index(1_000_000, "hybrid", "float16", encoder=address)
    assert planned.disk_bytes["dense vectors"] == 2e6 * (dim or 384)
    assert planned.num_tokens == 136_000_000
    lines = "\n".join(planned.lines())
    assert "about 136,000,000, which the encoder's server reads" in lines
    assert "as long as the server takes, and about 2.1 minutes" in lines  # the BM25 part
    assert ("is not known here" in lines) == (dim is None)


# ---- vectors ---------------------------------------------------------------------------------------------------------


def test_vectors_are_of_length_one_whatever_the_order_of_the_answer(server: EmbeddingServer) -> None:
    def backwards(answer: Any, _: list[str]) -> Any:
        return {**answer, "data": answer["data"][::-1]}

    encoder = ServedEncoder(server.address)
    assert (encoder.dim, server.texts) == (DIM, [[PROBE_TEXT]])
    server.faults = [Fault(change=backwards)]
    texts = ["a river", "a town by the sea", "music"]
    agree(encoder.encode_passages(texts), texts)
    assert encoder.encode_queries([]).shape == (0, DIM)


@pytest.mark.parametrize("knows_base64", [True, False])
def test_base64_and_lists_of_numbers_are_read(knows_base64: bool, server: EmbeddingServer) -> None:
    server.knows_base64 = knows_base64
    encoder = ServedEncoder(server.address)
    agree(encoder.encode_passages(["a river"]), ["a river"])
    formats = [request.get("encoding_format") for request in server.requests]
    # A server that does not know the field is asked once with it.
    assert formats == (["base64", "base64"] if knows_base64 else ["base64", None, None])


def test_identical_texts_are_asked_for_once_and_empty_ones_never(server: EmbeddingServer) -> None:
    encoder = ServedEncoder(server.address)
    found = encoder.encode_queries(["a b", "c", "a b", " ", "half \ud83d"])
    assert len(server.requests) == 2
    assert sorted(server.texts[-1]) == ["a b", "c", "half ?"]
    agree(found[:3], ["a b", "c", "a b"])
    assert not found[3].any()


def test_the_family_of_the_model_says_the_prefixes_and_options_win(server: EmbeddingServer) -> None:
    server.model = "nomic-embed-text"
    encoder = ServedEncoder(f"openai:{server.url}#nomic-embed-text")
    encoder.encode_queries(["who"])
    encoder.encode_passages(["what"])
    assert server.texts[1:] == [["search_query: who"], ["search_document: what"]]
    told = ServedEncoder(f"openai:{server.url}?query_prefix=q%3A%20&passage_prefix=#nomic-embed-text")
    assert told.prefixes == Prefixes("q: ", "")


def test_dimensions_are_asked_for_and_a_server_that_ignores_them_is_told(server: EmbeddingServer) -> None:
    address = f"openai:{server.url}?dimensions=16#words"
    assert ServedEncoder(address).dim == 16
    server.knows_dimensions = False
    with pytest.raises(SearchError, match=rf"asked for vectors of 16 dimensions and gave {DIM}.* Leave dimensions out"):
        ServedEncoder(address)


def test_many_texts_go_in_batches_by_number_and_by_characters(server: EmbeddingServer) -> None:
    server.wait_s = 0.02
    encoder = ServedEncoder(server.address, batch_size=10)
    texts = [f"text {n}" for n in range(95)]
    agree(encoder.encode_passages(texts), texts)
    assert sorted(map(len, server.texts[1:])) == [5, *[10] * 9]
    assert 1 < server.most_at_once <= encoder.num_calls
    server.requests.clear()
    long = [f"{n} " + "x" * 7_000 for n in range(40)]
    ServedEncoder(server.address, batch_size=1000).encode_passages(long)
    assert [sum(map(len, texts)) <= 200_000 for texts in server.texts] == [True, True, True]


# ---- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_rate_limit_is_waited_for_as_the_server_says(server: EmbeddingServer) -> None:
    encoder = ServedEncoder(server.address, building=QUICK)
    server.faults = [Fault(429, "slow down", {"Retry-After": "1"}), Fault(503, "busy")]
    start = time.monotonic()
    agree(encoder.encode_passages(["a river"]), ["a river"])
    assert time.monotonic() - start >= 1
    server.faults = [Fault(429, "slow down", {"Retry-After": "100"})]
    with pytest.raises(TransientSearchError, match="asks to wait 100 s, more than the 2 s allowed"):
        encoder.encode_passages(["a river"])


def test_an_empty_purse_is_not_waited_for(server: EmbeddingServer) -> None:
    encoder = ServedEncoder(server.address)
    server.faults = [Fault(429, {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}})]
    with pytest.raises(SearchError, match="You exceeded your quota") as caught:
        encoder.encode_passages(["a river"])
    assert not isinstance(caught.value, TransientSearchError)
    assert len(server.requests) == 2


def test_a_query_has_seconds_and_a_build_has_time(server: EmbeddingServer) -> None:
    encoder = ServedEncoder(server.address, building=QUICK)
    server.faults = [Fault(503, "busy")] * 3
    start = time.monotonic()
    with pytest.raises(TransientSearchError, match=r"503 .*busy \(after 3 attempts\)"):
        encoder.encode_queries(["a river"])
    assert time.monotonic() - start < 6
    server.faults = [Fault(closes=True)]
    agree(encoder.encode_queries(["a river"]), ["a river"])


def test_a_slow_server_is_given_up_and_says_what_to_change(server: EmbeddingServer) -> None:
    encoder = ServedEncoder(f"openai:{server.url}?timeout_s=0.3#words")
    server.wait_s = 2.0
    with pytest.raises(SearchTimeoutError, match=r"did not answer within 0.3 s. A smaller --batch-size, or a larger"):
        encoder.encode_passages(["a river"])


@pytest.mark.parametrize("status", [400, 413, 500])
def test_a_text_that_is_too_long_is_cut_and_that_text_alone(status: int, server: EmbeddingServer) -> None:
    server.max_chars, server.too_long = 500, (status, "input is too large to process")
    encoder = ServedEncoder(server.address)
    texts = [f"town {n}" for n in range(30)]
    long = "word " * 300  # 1,500 characters: half of it is still too much
    agree(encoder.encode_passages([*texts, long, *texts]), [*texts, long[:375], *texts])
    assert max(map(len, server.answered)) == 375
    assert [server.answered[text] for text in texts] == [1] * 30


def test_no_text_is_sent_longer_than_the_limit(server: EmbeddingServer) -> None:
    ServedEncoder(server.address).encode_passages(["a" * 20_000])
    assert len(server.texts[-1][0]) == MAX_CHARS
    ServedEncoder(f"openai:{server.url}?max_chars=100#words").encode_passages(["a" * 20_000])
    assert len(server.texts[-1][0]) == 100


def test_how_many_texts_a_request_may_have_is_learned(server: EmbeddingServer) -> None:
    server.max_texts = 16
    encoder = ServedEncoder(server.address)
    texts = [f"text {n}" for n in range(64)]
    agree(encoder.encode_passages(texts), texts)
    server.requests.clear()
    agree(encoder.encode_passages(texts), texts)
    assert [len(one) for one in server.texts] == [16] * 4


def test_a_text_that_breaks_the_server_costs_only_itself(
    server: EmbeddingServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.breaks_on = "cursed"
    encoder = ServedEncoder(server.address, building=Patience(2, 0.1))
    texts = [f"text {n}" for n in range(64)]
    found = encoder.encode_passages([*texts, "cursed"])
    agree(found[:64], texts)
    assert not found[64].any()
    assert "a text has no vector and is not found by its meaning" in caplog.text
    with pytest.raises(TransientSearchError, match="500"):
        encoder.encode_queries(["cursed"])


def test_a_server_that_refuses_everything_is_not_taken_for_bad_texts(server: EmbeddingServer) -> None:
    encoder = ServedEncoder(server.address)
    server.faults = [Fault(400, "no such thing")] * 100
    with pytest.raises(SearchError, match=r"400 .*no such thing"):
        encoder.encode_passages([f"text {n}" for n in range(64)])
    assert len(server.requests) < 30


def test_many_bad_texts_beside_a_server_that_is_well(server: EmbeddingServer, caplog: pytest.LogCaptureFixture) -> None:
    encoder = ServedEncoder(server.address)
    server.max_chars, server.too_long = len(PROBE_TEXT), (422, "we do not like it")
    found = encoder.encode_passages([*(f"{'x' * 60} {n}" for n in range(12)), "a river"])
    assert not found[:12].any()
    agree(found[12:], ["a river"])
    assert caplog.text.count("has no vector") == 5
    assert "no more of these are told" in caplog.text


def _drop_second(answer: Any, texts: list[str]) -> Any:
    return {**answer, "data": answer["data"][:1] + answer["data"][2:]}


def _nan_first(answer: Any, texts: list[str]) -> Any:
    answer["data"][0]["embedding"] = [float("nan")] * DIM
    return answer


def _null_first(answer: Any, texts: list[str]) -> Any:
    answer["data"][0]["embedding"] = None
    return answer


def _all_the_same_index(answer: Any, texts: list[str]) -> Any:
    return {**answer, "data": [{**item, "index": 0} for item in answer["data"]]}


def _no_index(answer: Any, texts: list[str]) -> Any:
    return {**answer, "data": [{"embedding": item["embedding"]} for item in answer["data"]]}


@pytest.mark.parametrize(
    ("change", "num_more"),
    [(_drop_second, 1), (_nan_first, 1), (_null_first, 1), (_all_the_same_index, 2), (_no_index, 0)],
)
def test_what_an_answer_lacks_is_asked_for_again_and_nothing_else(
    change: Any, num_more: int, server: EmbeddingServer
) -> None:
    encoder = ServedEncoder(server.address)
    server.faults = [Fault(change=change)]
    texts = ["one", "two", "three", "four"]
    agree(encoder.encode_passages(texts), texts)
    assert len(server.requests) == 2 + num_more


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault(change=lambda *_: {"data": []}), "0 embeddings for 1 texts, none with numbers in it"),
        (Fault(change=_nan_first), "1 embeddings for 1 texts, none with numbers in it"),
        (
            Fault(change=lambda a, _: {"data": a["data"] * 2}),
            "2 embeddings for 1 texts, and does not say which is whose",
        ),
        (Fault(change=lambda *_: {"embeddings": []}), "no list 'data'"),
        (Fault(change=lambda *_: "<html>login</html>"), "not JSON: '<html>login"),  # type: ignore[arg-type,return-value]
        (
            Fault(change=lambda *_: {"data": [{"index": 0, "embedding": [1.0, 2.0]}]}),
            f"a vector of 2 dimensions, and those before had {DIM}: there is another model",
        ),
    ],
)
def test_an_answer_that_cannot_be_used_is_a_failed_query(fault: Fault, message: str, server: EmbeddingServer) -> None:
    encoder = ServedEncoder(server.address)
    server.faults = [fault]
    with pytest.raises(SearchError, match=message):
        encoder.encode_queries(["a river"])


# ---- keys ------------------------------------------------------------------------------------------------------------


def test_the_key_comes_from_the_environment_and_stands_nowhere(
    server: EmbeddingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key = KEY
    with pytest.raises(SearchError, match="No key was sent: set OPENAI_API_KEY"):
        ServedEncoder(server.address)
    monkeypatch.setenv("MY_KEY", "sk-another-key-0000")
    address = f"openai:{server.url.replace('//', '//user:pa55word@')}?api_key_env=MY_KEY#words"
    server.key = ""  # a login in the address is sent instead of the key
    encoder = ServedEncoder(address)
    build_dense(FACTS, tmp_path / "index", encoder)
    assert encoder.name == f"openai:{server.url}?api_key_env=MY_KEY#words"
    for path in (tmp_path / "index").iterdir():
        assert b"pa55word" not in path.read_bytes()
    server.key = KEY
    plain = f"openai:{server.url}?api_key_env=MY_KEY#words"
    with pytest.raises(SearchError, match="It refused the key in MY_KEY") as caught:
        ServedEncoder(plain)
    assert "sk-another" not in str(caught.value)  # the server quoted it
    assert "***" in str(caught.value)
    monkeypatch.setenv("MY_KEY", KEY)
    assert ServedEncoder(plain).dim == DIM


def test_an_unknown_model_or_path_says_what_to_look_at(server: EmbeddingServer) -> None:
    with pytest.raises(SearchError, match=r"try pulling it first. Does the server have the model 'other'"):
        ServedEncoder(f"openai:{server.url}#other")
    with pytest.raises(SearchError, match=r"mostly in /v1"):
        ServedEncoder(f"openai:{server.url.removesuffix('/v1')}#words")


# ---- indexes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
async def test_an_index_is_built_and_asked_in_one_request_a_round(
    dtype: str, server: EmbeddingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_dense(FACTS, tmp_path / "index", server.address, dtype=dtype)
    monkeypatch.chdir("/")
    search = open_search(f"dense:{tmp_path / 'index'}", k=1)
    server.requests.clear()
    founds = await search.search_many(["capital of France", "river in Africa", "the Moon", "river in Africa"])
    await search.aclose()
    assert [found.hits[0].id for found in founds] == ["fr", "eg", "mo", "eg"]
    assert len(server.requests) == 1
    assert sorted(server.texts[0]) == ["capital of France", "river in Africa", "the Moon"]


def test_another_model_behind_the_same_address_is_refused(server: EmbeddingServer, tmp_path: Path) -> None:
    build_dense(FACTS, tmp_path / "index", server.address)
    server.seed = 7
    with pytest.raises(IndexDamagedError, match="gives other vectors for the same text"):
        DenseRetriever(tmp_path / "index")
    with pytest.raises(IndexDamagedError, match=rf"{DIM} dimensions\), and .* has 16"):
        DenseRetriever(tmp_path / "index", encoder=f"openai:{server.url}?dimensions=16#words")


async def test_an_index_is_asked_by_another_address_of_the_same_model(server: EmbeddingServer, tmp_path: Path) -> None:
    with EmbeddingServer(model="alias") as first:
        build_dense(FACTS, tmp_path / "index", first.address)
    written = server.address.replace(":", "%3A")
    search = open_search(f"dense?encoder={written}:{tmp_path / 'index'}", k=1)
    assert [hit.id for hit in (await search.find("river in Africa")).hits] == ["eg"]
    await search.aclose()


async def test_a_server_that_is_down_is_a_failed_query_and_comes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddingServer() as first:
        build_hybrid(FACTS, tmp_path / "index", first.address)
    dense = open_search(f"dense:{tmp_path / 'index' / 'dense'}", k=1, attempts=1)
    hybrid = open_search(f"hybrid:{tmp_path / 'index'}", k=1, attempts=1)
    assert "until this passes" in caplog.text
    found = await dense.find("river in Africa")
    assert "refused the connection; is it running?" in str(found.error)
    found = await hybrid.find("river in Africa")
    assert [hit.id for hit in found.hits] == ["eg"]  # by its keywords
    assert isinstance(found.hits, DegradedHits)
    with EmbeddingServer(port=first.port):
        assert [hit.id for hit in (await dense.find("river in Africa")).hits] == ["eg"]
        assert not isinstance((await hybrid.find("river in Africa")).hits, DegradedHits)
    # What comes up in its place is looked at before the first query is answered.
    late = open_search(f"dense:{tmp_path / 'index' / 'dense'}", k=1, attempts=1)
    with EmbeddingServer(port=first.port, seed=3):
        assert "gives other vectors for the same text" in str((await late.find("river in Africa")).error)
    for search in (dense, hybrid, late):
        await search.aclose()


async def test_one_query_that_is_refused_does_not_sink_the_others(server: EmbeddingServer, tmp_path: Path) -> None:
    build_dense(FACTS, tmp_path / "index", server.address)
    search = open_search(f"dense:{tmp_path / 'index'}", k=1)
    server.max_chars, server.too_long = 50, (400, "moderated")
    bad = "words that the server does not like at all, and no others"
    founds = await search.search_many(["river in Africa", bad])
    assert [hit.id for hit in founds[0].hits] == ["eg"]
    assert "has no vector for this query" in str(founds[1].error)
    assert "400 Bad Request: moderated" in str((await search.find(bad)).error)
    await search.aclose()


def test_a_server_that_dies_in_a_build_is_paid_once(server: EmbeddingServer, tmp_path: Path) -> None:
    held = towns(1000)
    server.dies_after, server.wait_s = 400, 0.01
    encoder = ServedEncoder(server.address, batch_size=20, building=Patience(2, 0.1))
    with pytest.raises(ParallelSearchError, match=r"[34]\d\d of 1,000 passages are encoded and kept: the same command"):
        build_dense(held, tmp_path / "index", encoder, batch_size=20)
    assert not (tmp_path / "index").exists()
    done = server.answered.copy()
    assert 400 <= done.total() < 500
    server.dies_after = 1_000_000
    # By another name, another batch and another time-out it is the same encoder.
    build_dense(held, tmp_path / "index", f"openai:{server.url}?timeout_s=50#words", batch_size=50)
    paid = server.answered - server.answered.__class__([PROBE_TEXT] * 10)
    assert set(paid.values()) == {1}
    assert len(paid) == 1000
    vectors, _ = open_vectors(tmp_path / "index")
    agree(np.array(vectors), [f"{p.title}\n{p.text}" for p in held])


BUILD = """
import sys
from pathlib import Path
from parallelsearch.retrieval import build_index
build_index(Path(sys.argv[1]), sys.argv[2], kind="dense", encoder=sys.argv[3], dtype="int8", batch_size=10)
"""


def test_a_build_that_was_killed_asks_for_what_it_has_not(server: EmbeddingServer, tmp_path: Path) -> None:
    held = towns(600)
    corpus, out = tmp_path / "corpus.jsonl", tmp_path / "index"
    corpus.write_text("\n".join(json.dumps({"id": p.id, "title": p.title, "text": p.text}) for p in held))
    server.wait_s = 0.05
    process = subprocess.Popen([sys.executable, "-c", BUILD, corpus, out, server.address])
    deadline = time.monotonic() + 300
    while server.answered.total() < 150:
        assert process.poll() is None, "the build ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    while server.num_at_once:
        time.sleep(0.01)
    record = json.loads((partial_folder(out) / "progress.json").read_text())
    kept = record["num_rows"] + sum(end - start for start, end in record.get("ahead", []))
    first = server.answered.total() - 1
    assert 100 <= kept <= first
    before = server.answered.copy()
    build_dense(corpus, out, server.address, dtype="int8", batch_size=10)
    asked = server.answered - before
    del asked[PROBE_TEXT]
    assert asked.total() == 600 - kept
    # What was on its way when it was killed, four requests at most, is all that is paid twice.
    assert first - kept <= 10 * ServedEncoder.num_calls
    vectors, scales = open_vectors(out)
    assert scales is not None
    np.testing.assert_allclose(
        vectors * scales[:, None], np.stack([unit(f"{p.title}\n{p.text}") for p in held]), atol=0.01
    )


def test_an_interrupted_build_leaves_nothing_under_way(server: EmbeddingServer, tmp_path: Path) -> None:
    def stop(done: int, total: int | None) -> None:
        if total is not None and done >= 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_dense(towns(500), tmp_path / "index", server.address, batch_size=10, on_progress=stop)
    time.sleep(0.3)
    num_requests = len(server.requests)
    time.sleep(0.3)
    assert len(server.requests) == num_requests < 30


@pytest.mark.parametrize("has_faiss", [True, False])
def test_a_ready_made_faiss_index_with_a_served_encoder(
    has_faiss: bool, server: EmbeddingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faiss = pytest.importorskip("faiss")
    encoder = ServedEncoder(server.address)
    contents = [f'"{p.title}"\n{p.text}' for p in FACTS]
    (tmp_path / "corpus.jsonl").write_text(
        "".join(json.dumps({"id": p.id, "contents": text}) + "\n" for p, text in zip(FACTS, contents, strict=True))
    )
    index = faiss.IndexFlatIP(encoder.dim)
    index.add(encoder.encode_passages(contents))
    faiss.write_index(index, str(tmp_path / "flat.index"))
    if not has_faiss:  # and no torch: a flat index is searched by numpy
        for name in ("faiss", "torch"):
            monkeypatch.setitem(sys.modules, name, None)
    search = open_search(f"faiss:{tmp_path / 'flat.index'}+{tmp_path / 'corpus.jsonl'}#{server.address}", k=1)
    hits = search.retriever.search_blocking(["river in Africa"], 1)[0]  # type: ignore[attr-defined]
    assert [hit.id for hit in hits] == ["eg"]
    server.seed = 5
    with pytest.raises(IndexDamagedError, match="another encoder, or another corpus"):
        open_readymade(tmp_path / "flat.index", tmp_path / "corpus.jsonl", server.address)


# ---- without torch ---------------------------------------------------------------------------------------------------

COMMAND = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "sentence_transformers", "faiss"}:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

sys.meta_path.insert(0, Absent())
from parallelsearch.cli.app import main
sys.argv = ["parallelsearch", *sys.argv[1:]]
main()
"""


def without_torch(*arguments: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_base_install_has_hybrid_search_with_a_served_encoder(server: EmbeddingServer, tmp_path: Path) -> None:
    server.model = "nomic-embed-text"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    address = f"openai:{server.url}#nomic-embed-text"
    without_torch("data", "corpus", "--out", "corpus.jsonl", cwd=tmp_path)
    said = without_torch(
        "index", "corpus.jsonl", "--out", "my-index", "--kind", "hybrid", "--encoder", address, cwd=tmp_path
    )
    assert "522 passages" in said
    paid = sum(count for text, count in server.answered.items() if PROBE_TEXT not in text)
    assert paid == 522
    server.requests.clear()
    question = "Who is older, Claude Monet or Camille Pissarro?"
    for kind, folder in (("hybrid", "my-index"), ("dense", "my-index/dense")):
        said = without_torch("ask", question, "--search", f"{kind}:{tmp_path / folder}", "--json", cwd=elsewhere)
        record = json.loads(said)
        assert record["answer"] == "Camille Pissarro"
        assert {"Claude Monet", "Camille Pissarro"} <= {source["title"] for source in record["sources"]}
        assert not [query for turn in record["turns"] for query in turn.get("queries", []) if query.get("error")]
    asked = [text for texts in server.texts for text in texts if PROBE_TEXT not in text]
    assert all(text.startswith("search_query: ") for text in asked)


# ---- threads and loops -----------------------------------------------------------------------------------------------


async def test_it_may_be_called_from_a_running_loop_and_from_many_threads(server: EmbeddingServer) -> None:
    encoder = ServedEncoder(server.address)  # in a loop's own thread: as an index is opened by async code
    found: dict[int, np.ndarray] = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: encoder.encode_queries([f"text {n}"])})) for n in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, vectors in found.items():
        agree(vectors, [f"text {number}"])
    assert len(found) == 12
    assert server.most_at_once <= encoder.num_calls


def test_a_forked_process_has_a_loop_of_its_own(server: EmbeddingServer) -> None:
    code = """
import os, sys
from parallelsearch.retrieval import ServedEncoder
ServedEncoder(sys.argv[1])
if (child := os.fork()) == 0:
    os._exit(0 if ServedEncoder(sys.argv[1]).dim == 128 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", code, server.address],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")


async def _work(value: int) -> int:
    return value


def test_work_is_done_in_one_loop() -> None:
    assert background.wait_for(_work(3)) == 3
    assert background.submit(_work(4)).result() == 4
    assert [thread.name for thread in threading.enumerate()].count("parallelsearch-http") == 1
