"""A teacher on the wire: an OpenAI-compatible server that writes questions about painters by rule, well or badly.

It reads the passages out of the prompt, as a model would, so what it writes follows from them.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_PASSAGE = re.compile(r"^\[(\d+)\] ([^:\n]+): (.*)$", re.MULTILINE)
_BORN = re.compile(r"born in (\d{4})")
_TEACHER = re.compile(r"pupil of ([A-Z]\w+ [A-Z]\w+)")


def reply(prompt: str) -> str:
    """What a sound teacher says."""
    pages = {int(number): (title, text) for number, title, text in _PASSAGE.findall(prompt)}
    asked = re.search(r"^Question: (.*)$", prompt, re.MULTILINE)
    if asked:
        return answer(asked[1], list(pages.values()))
    if "The first step asks for the name" in prompt:
        (one, text), (other, about) = pages[1], pages[2]
        year = _BORN.search(about)
        return _said(
            f"In what year was the teacher of {one} born?",
            year[1] if year else "",
            [(f"teacher of {one}", other, 1), ("year in which #1 was born", year[1] if year else "", 2)],
        )
    if "one fact from each passage" in prompt:
        years = {title: int(found[1]) for title, text in pages.values() if (found := _BORN.search(text))}
        names = list(years)
        listed = f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else ""
        steps = [(f"{name} born", str(years[name]), number) for number, name in enumerate(names, start=1)]
        return _said(f"Who was born first, {listed}?", min(names, key=years.__getitem__), steps)
    title, text = pages[1]
    year = _BORN.search(text)
    return _said(
        f"In what year was {title} born?", year[1] if year else "", [(f"{title} born", year[1] if year else "", 1)]
    )


def answer(question: str, pages: list[tuple[str, str]]) -> str:
    years = {title: int(found[1]) for title, text in pages if (found := _BORN.search(text))}
    if question.startswith("Who was born first"):
        return min((name for name in years if name in question), key=years.__getitem__)
    name = question.removeprefix("In what year was ").removesuffix(" born?")
    if name.startswith("the teacher of "):
        text = next(text for title, text in pages if title == name.removeprefix("the teacher of "))
        name = _TEACHER.search(text)[1]  # type: ignore[index]
    return f"{years[name]}."


def _said(question: str, answer: str, steps: list[tuple[str, str, int]]) -> str:
    record = {
        "question": question,
        "answer": answer,
        "steps": [{"question": q, "answer": a, "passage": n} for q, a, n in steps],
    }
    return f"Here it is:\n```json\n{json.dumps(record)}\n```"


@contextmanager
def serving(say: Any = reply) -> Iterator[tuple[str, list[str]]]:
    """The server's address as a policy, and the prompts it got."""
    prompts: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prompt = body["messages"][-1]["content"]
            prompts.append(prompt)
            text = say(prompt)
            if text is None:
                self.send_error(503)
                return
            usage = {"prompt_tokens": len(prompt) // 4, "completion_tokens": len(text) // 4}
            record = {
                "id": "x",
                "object": "chat.completion",
                "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
                "usage": usage,
            }
            data = json.dumps(record).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"openai:http://127.0.0.1:{server.server_port}/v1?stream=0#teacher", prompts
    finally:
        server.shutdown()
        server.server_close()
