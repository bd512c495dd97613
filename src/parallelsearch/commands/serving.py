"""`serve search` and `serve agent`: options to settings, then the server runs until it is told to stop."""

from __future__ import annotations

from typing import Annotated

import typer

from parallelsearch.commands.options import (
    AllowedHostOption,
    HostOption,
    KOption,
    PolicyOption,
    PortOption,
    SearchOption,
)
from parallelsearch.errors import UsageError

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Serve search, or the whole agent, over HTTP.")


@app.command("search")
def serve_search(
    search: SearchOption = "demo",
    k: KOption = 3,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    allowed_host: AllowedHostOption = None,
    mcp: Annotated[str | None, typer.Option(help="Offer MCP tools instead: 'stdio' or 'http'.")] = None,
    max_queries: Annotated[int, typer.Option(help="Queries in one request.")] = 4096,
    max_k: Annotated[int, typer.Option(help="Hits a client may ask for.")] = 100,
    workers: Annotated[int, typer.Option(min=0, help="Processes that search an index; 0: only this one.")] = 0,
    log_queries: Annotated[bool, typer.Option("--log-queries", help="Write query texts to the log.")] = False,
    cache: Annotated[str | None, typer.Option(help="Keep search results in this SQLite file.")] = None,
    record: Annotated[str | None, typer.Option(help="Record the searches to this file, for replay:FILE.")] = None,
) -> None:
    """Serve search over HTTP (POST /retrieve, as Search-R1's clients speak it) or as MCP tools.

    A token in PARALLELSEARCH_TOKEN is then required of every client.

    Example: parallelsearch serve search --search bm25:my-index --port 8000
    """
    import asyncio

    from parallelsearch.addresses import open_search
    from parallelsearch.server.limits import ServerSettings

    if mcp not in (None, "stdio", "http"):
        raise UsageError(f"--mcp is 'stdio' or 'http', not '{mcp}'")
    settings = ServerSettings(
        host=host,
        port=port,
        max_queries=max_queries,
        max_k=max_k,
        logs_queries=log_queries,
        allowed_hosts=tuple(allowed_host or ()),
    )
    found = open_search(search, k=k, cache=cache, record=record, workers=workers)
    if mcp is None:
        from parallelsearch.server.search_server import run_search_server

        run_search_server(found, settings)
    elif mcp == "http":
        from parallelsearch.server.mcp_server import run_mcp_http

        run_mcp_http(found, settings)
    else:
        from parallelsearch.server.mcp_server import run_mcp_stdio

        asyncio.run(run_mcp_stdio(found, settings=settings))


@app.command("agent")
def serve_agent(
    policy: PolicyOption = "demo",
    search: SearchOption = "demo",
    k: KOption = 3,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8080,
    allowed_host: AllowedHostOption = None,
    max_concurrent: Annotated[int, typer.Option(help="Questions under way at once; more get status 429.")] = 256,
    timeout_s: Annotated[float, typer.Option(help="Seconds until the best answer so far is given.")] = 120.0,
    abstain: Annotated[bool, typer.Option("--abstain", help="Say so when no passage found holds the answer.")] = False,
    log_queries: Annotated[bool, typer.Option("--log-queries", help="Write query texts to the log.")] = False,
) -> None:
    """Serve the agent as an OpenAI-compatible API, with a page to ask and watch at /.

    A token in PARALLELSEARCH_TOKEN is then required of every client. Over the demo corpus each search takes 0.4 s, as one
    over the web would, so that the page has something to show.

    Example: parallelsearch serve agent --policy demo --search demo --port 8080
    """
    from parallelsearch import demo
    from parallelsearch.addresses import open_policy, open_search
    from parallelsearch.rollout import Limits
    from parallelsearch.search import Search
    from parallelsearch.server.agent_server import run_agent_server
    from parallelsearch.server.answering import AgentSettings

    settings = AgentSettings(
        host=host,
        port=port,
        max_concurrent=max_concurrent,
        limits=Limits(timeout_s=timeout_s),
        abstain=abstain,
        logs_queries=log_queries,
        allowed_hosts=tuple(allowed_host or ()),
    )
    found = Search(demo.retriever(latency_s=0.4), k=k) if search == "demo" else open_search(search, k=k)
    twin = demo.DemoPolicy(sequential=True) if policy == "demo" else None
    run_agent_server(open_policy(policy), found, settings, sequential_policy=twin)
