"""What `pages:` costs and brings: seconds beyond the engine's own, pages a second, and how much of the gold text comes back.

    python benchmarks/pages.py

A server on loopback, in a process of its own, plays a SearXNG and its pages, and takes 200 ms for every answer. A page is
made of twelve passages of the embedded corpus in a row drawn with a seed; the engine ranks pages by BM25 and shows of each
the 30 words around the sentence that has most words of the query. So snippets are as good as they can be, and a page holds
its answer in plain text: what the web's pages are like is not measured here.

Gold text is the passages that the demo's parallel questions rest on, asked for by their sub-queries: counted is the share of
their sentences that stand whole in one of the hits.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import re
import statistics
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from parallelsearch.addresses import open_search
from parallelsearch.data import demo
from parallelsearch.data.questions import demo_questions
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.retrieval.terms import Analyzer, split_words

PER_PAGE, SNIPPET_WORDS = 12, 30


def sentences(text: str) -> list[str]:
    return [" ".join(one.split()) for one in re.split(r"(?<=[.!?])\s+(?=[A-Z])", text) if one.strip()]


def snippet(text: str, terms: set[str], analyzer: Analyzer) -> str:
    """The words around the sentence that has most of the query."""
    best = max(sentences(text), key=lambda one: len(terms & {analyzer.term(word) for word in split_words(one)}))
    words, start = text.split(), len(text[: text.find(best)].split())
    room = max(0, SNIPPET_WORDS - len(best.split())) // 2
    return " ".join(words[max(0, start - room) :][:SNIPPET_WORDS])


def serve(port: Any, latency_s: float, seed: int) -> None:
    passages = demo.passages()
    random.Random(seed).shuffle(passages)
    pages = [passages[at : at + PER_PAGE] for at in range(0, len(passages), PER_PAGE)]
    texts = [" ".join(passage.text for passage in page) for page in pages]
    engine = BM25Retriever.from_passages([Passage(str(at), "", text) for at, text in enumerate(texts)])
    analyzer = Analyzer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            time.sleep(latency_s)
            parts = urlsplit(self.path)
            if parts.path == "/search":
                query = parse_qs(parts.query)["q"][0]
                found = engine.search_blocking([query], 10)[0]
                terms = set(analyzer.query_terms(query))
                base = f"http://127.0.0.1:{self.server.server_address[1]}"
                items = [
                    {
                        "title": f"Page {hit.id}",
                        "url": f"{base}/{hit.id}?{quote(query)}",
                        "content": snippet(hit.text, terms, analyzer),
                    }
                    for hit in found
                ]
                self.say(json.dumps({"results": items}), "application/json")
            else:
                page = pages[int(parts.path[1:]) % len(pages)]
                body = "".join(f"<h2>{one.title}</h2><p>{one.text}</p>" for one in page)
                menu = "<div><ul>" + "<li><a href='/'>Some other page of this site</a></li>" * 60 + "</ul></div>"
                self.say(
                    f"<!doctype html><title>Page</title><body>{menu}{body}{menu}</body>", "text/html; charset=utf-8"
                )

        def say(self, text: str, kind: str) -> None:
            data = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 256

    with Server(("127.0.0.1", 0), Handler) as server:
        port.send(server.server_address[1])
        server.serve_forever()


async def latency(address: str, queries: list[str], num_rounds: int, at_once: int) -> tuple[list[float], int]:
    """Seconds of each round of so many sub-queries, asked of a fresh search, and the pages behind all hits."""
    took, num_pages = [], 0
    for number in range(num_rounds):
        search = open_search(address, k=3)
        start_s = time.perf_counter()
        founds = await search.search_many(queries[number * at_once : (number + 1) * at_once])
        took.append(time.perf_counter() - start_s)
        num_pages += len({hit.url for found in founds for hit in found.hits})
        await search.aclose()
    return took, num_pages


async def gold(address: str) -> tuple[float, float]:
    """The share of gold sentences in the hits, and the words of a hit."""
    texts = {passage.title: passage.text for passage in demo.passages()}
    asked = [
        (query, texts[title])
        for question in demo_questions()
        for queries in [(question.metadata or {})["rounds"][0]]
        if len(queries) == len(question.supporting_titles or ())
        for query, title in zip(queries, question.supporting_titles or (), strict=True)
        if title in texts
    ]
    search = open_search(address, k=3)
    founds = await search.search_many([query for query, _ in asked])
    await search.aclose()
    assert not any(found.error for found in founds)
    wanted = found_again = 0
    for found, (_, text) in zip(founds, asked, strict=True):
        hits = [" ".join(hit.text.split()) for hit in found.hits]
        wanted += len(sentences(text))
        found_again += sum(any(one in hit for hit in hits) for one in sentences(text))
    lengths = [len(hit.text.split()) for found in founds for hit in found.hits]
    return found_again / wanted, statistics.mean(lengths)


async def measure(base: str, num_rounds: int) -> None:
    queries = [query for question in demo_questions() for query in (question.metadata or {})["rounds"][0]]
    random.Random(1).shuffle(queries)
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    engine = f"searxng:{base}"
    for name, address in [("snippets", engine), ("pages", f"pages?private=1:{engine}")]:
        await latency(address, queries, 1, 4)  # what is imported when first used
        took, _ = await latency(address, queries, num_rounds, 4)
        print(f"{name}: 4 sub-queries, k 3: median {statistics.median(took):.3f} s, highest {max(took):.3f} s")
    start_s = time.process_time()
    took, num_pages = await latency(f"pages?private=1&timeout_s=60:{engine}", queries, 4, 40)
    cpu_ms = 1000 * (time.process_time() - start_s) / num_pages
    print(
        f"pages: 40 sub-queries at once: {num_pages / sum(took):.0f} pages/s, {cpu_ms:.0f} ms of the processor a page"
    )
    for name, address in [("snippets", engine), ("words=100", f"pages?private=1&timeout_s=60:{engine}"),
                          ("words=200", f"pages?private=1&timeout_s=60&words=200:{engine}")]:  # fmt: skip
        share, words = await gold(address)
        print(f"{name}: {share:.3f} of the gold sentences in three hits of {words:.0f} words")


def main() -> None:
    parser = argparse.ArgumentParser(description="What opening pages costs and brings.")
    parser.add_argument("--latency-s", type=float, default=0.2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=serve, args=(there, args.latency_s, args.seed), daemon=True
    )
    server.start()
    try:
        asyncio.run(measure(f"http://127.0.0.1:{here.recv()}", args.rounds))
    finally:
        server.terminate()


if __name__ == "__main__":
    main()
