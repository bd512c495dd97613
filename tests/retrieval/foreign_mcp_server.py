"""Run as a script: an MCP server as others write them, with the official SDK and none of this package.

    python foreign_mcp_server.py MODE [PORT]

MODE says what its tools look like; with a PORT it speaks streamable HTTP, else stdio. `dies` as a query ends the process,
`endless` writes a line that never ends.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

OUT = os.dup(1)  # the SDK keeps what a tool prints away from its own pipe
PROSE = """Title: Tower of {q}
URL: https://example.org/{q}/1
Description: The first thing about {q},
which goes on in a second line.
Published: 2024-05-06

Title: Bridge of {q}
URL: https://example.org/{q}/2
Description: The second thing."""


def write_for_ever() -> None:
    while True:
        os.write(OUT, b"x" * 65_536)


def hits(query: str, count: int) -> list[dict[str, Any]]:
    if query == "dies":
        os._exit(3)
    if query == "endless":
        write_for_ever()
    if query == "slow":
        time.sleep(120)
    if query == "fails":
        raise ToolError("the engine said no")
    if query == "busy":
        raise ToolError("429 Too Many Requests")
    return [
        {"title": f"T{n}", "link": f"https://x.org/{query}/{n}", "snippet": f"{query} {n}", "score": 1 / n}
        for n in range(1, count + 1)
    ]


def main(mode: str, port: int | None) -> None:
    if mode == "crashes":
        sys.stderr.write("no API key in FOREIGN_KEY\n")
        sys.exit(1)
    if mode == "silent":
        time.sleep(120)
    if mode == "endless":
        write_for_ever()
    server = MCPServer("foreign", log_level="ERROR")

    @server.tool()
    def fetch_page(url: str, max_length: int = 100) -> str:
        return url

    @server.tool()
    def delete_everything(query: str, password: str) -> str:
        raise RuntimeError("this must never be called")

    if mode == "structured":

        @server.tool()
        def web_search(query: str, max_results: int = 10) -> dict[str, Any]:
            return {"organic": hits(query, max_results), "took": 3}

    elif mode == "json-text":

        @server.tool(structured_output=False)
        def brave_web_search(q: str, count: int | None = None) -> str:
            return json.dumps({"web": {"results": hits(q, count or 20)}})

    elif mode == "prose":

        @server.tool(structured_output=False)
        def search(query: str) -> str:
            return "Nothing was found." if query == "nothing" else PROSE.format(q=query)

    elif mode == "batch":

        @server.tool()
        def search_batch(queries: list[str], top_k: int = 5) -> dict[str, Any]:
            if "short" in queries:
                return {"results": []}
            return {"results": [{"error": "no luck"} if q == "unlucky" else {"hits": hits(q, top_k)} for q in queries]}

        @server.tool()
        def search(query: str) -> str:
            raise RuntimeError("the batch tool is better")

    elif mode == "no-search":

        @server.tool()
        def ask_docs(question: str, limit: int = 2) -> dict[str, Any]:
            return {"results": hits(question, limit)}

    elif mode == "environment":

        @server.tool()
        def search(query: str) -> str:
            return os.environ.get(query, "not set")

    if port is None:
        server.run("stdio")
    else:
        server.run("streamable-http", host="127.0.0.1", port=port)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)
