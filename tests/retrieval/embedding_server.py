"""A small server on loopback that speaks /v1/embeddings: the vector of a text is the sum of its words' vectors, so that texts
with the same words are near each other. It goes wrong as a test says.

Each request takes the next of `faults`, a function of the texts that gives a status with a body, or changes the answer; None
answers. When they are used up, the server answers as its limits say.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

DIM = 128
Answer = dict[str, Any]


def vector_of(text: str, seed: int = 0, dim: int = DIM) -> np.ndarray:
    found = np.zeros(dim)
    for word in re.findall(r"\w+", text.lower()):
        # Short words say little, and a prefix nothing.
        weight = 0.2 if word.isalpha() and len(word) <= 4 else 0.0 if word.startswith("search_") else 1.0
        found += weight * np.random.default_rng([zlib.crc32(word.encode()), seed]).standard_normal(dim)
    return found if found.any() else np.ones(dim)


@dataclass
class Fault:
    """A bad answer. `change` is given the good one and the texts, and says what is sent instead."""

    status: int = 200
    body: Any = ""
    headers: dict[str, str] = field(default_factory=dict)
    change: Callable[[Answer, list[str]], Answer] | None = None
    wait_s: float = 0.0
    closes: bool = False


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Clients that are killed leave in the middle."""


class EmbeddingServer:
    def __init__(self, *faults: Fault | None, model: str = "words", seed: int = 0, port: int = 0) -> None:
        self.faults: list[Fault | None] = list(faults)
        self.model, self.seed, self.key = model, seed, ""
        self.max_texts, self.max_chars = 10_000, 1_000_000
        self.too_long = (400, "the input length exceeds the context length")
        self.breaks_on = ""  # a text with this in it is answered 500, with whatever it is sent
        self.knows_base64 = self.knows_dimensions = True
        self.dies_after = 1_000_000  # texts
        self.wait_s = 0.0
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.answered: Counter[str] = Counter()
        self.num_at_once = self.most_at_once = 0
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with server._lock:
                    server.requests.append(body)
                    server.headers.append({name.lower(): value for name, value in self.headers.items()})
                    server.num_at_once += 1
                    server.most_at_once = max(server.most_at_once, server.num_at_once)
                    fault = server.faults.pop(0) if server.faults else None
                try:
                    found = server._answer(self.path, self.headers.get("Authorization"), body, fault)
                finally:
                    with server._lock:
                        server.num_at_once -= 1
                if found is None:
                    self.close_connection = True
                    return
                status, answer, headers = found
                content = answer if isinstance(answer, str) else json.dumps(answer)
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(content.encode()))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content.encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", port), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self.address = f"openai:{self.url}#{model}"

    def __enter__(self) -> EmbeddingServer:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def texts(self) -> list[list[str]]:
        """The texts of each request."""
        return [request["input"] for request in self.requests]

    def _answer(
        self, path: str, authorization: str | None, body: dict[str, Any], fault: Fault | None
    ) -> tuple[int, Any, dict[str, str]] | None:
        texts: list[str] = body["input"]
        time.sleep(self.wait_s + (fault.wait_s if fault else 0))
        if fault is not None and fault.closes:
            return None
        if fault is not None and fault.status != 200:
            return fault.status, fault.body, fault.headers
        refusal = self._refusal(path, authorization, body, texts)
        if refusal is not None:
            status, message = refusal
            return status, {"error": {"message": message}}, {}
        with self._lock:
            if self.answered.total() >= self.dies_after:
                return None
            self.answered.update(texts)
        vectors = [vector_of(text, self.seed, body.get("dimensions", DIM)) for text in texts]
        is_packed = body.get("encoding_format") == "base64"
        answer: Answer = {
            "object": "list",
            "data": [
                {
                    "object": "embedding",
                    "index": at,
                    "embedding": base64.b64encode(vector.astype("<f4").tobytes()).decode()
                    if is_packed
                    else vector.tolist(),
                }
                for at, vector in enumerate(vectors)
            ],
            "model": self.model,
            "usage": {"prompt_tokens": 1, "total_tokens": 1},
        }
        return 200, fault.change(answer, texts) if fault is not None and fault.change is not None else answer, {}

    def _refusal(
        self, path: str, authorization: str | None, body: dict[str, Any], texts: list[str]
    ) -> tuple[int, str] | None:
        if path != "/v1/embeddings":
            return 404, "not found"
        if self.key and authorization != f"Bearer {self.key}":
            return 401, f"Incorrect API key provided: {(authorization or '').removeprefix('Bearer ')}"
        if body["model"] != self.model:
            return 404, f'model "{body["model"]}" not found, try pulling it first'
        if "encoding_format" in body and not self.knows_base64:
            return 400, "unknown field"
        if "dimensions" in body and not self.knows_dimensions:
            del body["dimensions"]
        if not all(text.strip() for text in texts):
            return 400, "input cannot be an empty string"
        if len(texts) > self.max_texts:
            return 422, f"batch size {len(texts)} > maximum allowed batch size {self.max_texts}"
        if any(len(text) > self.max_chars for text in texts):
            return self.too_long
        if self.breaks_on and any(self.breaks_on in text for text in texts):
            return 500, "failed to encode response: json: unsupported value: NaN"
        return None
