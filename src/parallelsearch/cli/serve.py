"""`serve search` and `serve agent`: options to settings, then the server runs until it is told to stop."""

from __future__ import annotations

from typing import Annotated, Unpack

import typer

from parallelsearch.cli.options import (
    AUTO,
    DEMO,
    AllowedHostOption,
    AnswerWithOption,
    CacheDaysOption,
    CacheOption,
    DialectOption,
    ForceAnswerOption,
    HostOption,
    KOption,
    LimitOptions,
    PolicyOption,
    PortOption,
    RecordOption,
    SearchOption,
    WrittenOption,
    chosen,
    limited,
    limits_of,
    searched,
)
from parallelsearch.errors import UsageError

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Serve search, or the whole agent, over HTTP.")


@app.command("search")
def serve_search(
    search: SearchOption = None,
    k: KOption = 3,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    allowed_host: AllowedHostOption = None,
    mcp: Annotated[str | None, typer.Option(help="Offer MCP tools instead: 'stdio' or 'http'.")] = None,
    split: Annotated[
        str | None,
        typer.Option(metavar="POLICY", help="Take whole questions, which this policy splits; one list for all parts."),
    ] = None,
    max_queries: Annotated[int, typer.Option(help="Queries in one request.")] = 4096,
    max_k: Annotated[int, typer.Option(help="Hits a client may ask for.")] = 100,
    workers: Annotated[int, typer.Option(min=0, help="Processes that search an index; 0: only this one.")] = 0,
    log_queries: Annotated[bool, typer.Option("--log-queries", help="Write query texts to the log.")] = False,
    cache: CacheOption = None,
    cache_days: CacheDaysOption = None,
    record: RecordOption = None,
) -> None:
    """Serve search over HTTP, or as MCP tools.

    The route is POST /retrieve, as Search-R1's clients speak it. With --split a query is a whole question, and its hits are
    passages for all its parts; as MCP tools it is one more tool, 'retrieve'. If PARALLELSEARCH_TOKEN is set, every client
    must send that token.

    Example: parallelsearch serve search --search bm25:my-index --port 8000
    """
    import asyncio

    from parallelsearch.addresses import open_search
    from parallelsearch.server.limits import ServerSettings

    if mcp not in (None, "stdio", "http"):
        raise UsageError(f"--mcp is 'stdio' or 'http', not '{mcp}'")
    address = searched(search, split)
    settings = ServerSettings(
        host=host,
        port=port,
        max_queries=max_queries,
        max_k=max_k,
        logs_queries=log_queries,
        allowed_hosts=tuple(allowed_host or ()),
    )
    found = open_search(
        address,
        k=k,
        cache=cache,
        cache_days=cache_days,
        record=record,
        must_record=False,
        workers=workers,
        split=split,
        reopen=record is None,
    )
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
@limited
def serve_agent(
    policy: PolicyOption = AUTO,
    search: SearchOption = None,
    dialect: DialectOption = None,
    k: KOption = 3,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8080,
    allowed_host: AllowedHostOption = None,
    mcp: Annotated[
        str | None,
        typer.Option(help="'stdio': MCP tools for the program that started this, instead of a port; HTTP has /mcp."),
    ] = None,
    max_concurrent: Annotated[int, typer.Option(help="Questions under way at once; more get status 429.")] = 256,
    answer_with: AnswerWithOption = None,
    written: WrittenOption = False,
    force_answer: ForceAnswerOption = False,
    cache: CacheOption = None,
    cache_days: CacheDaysOption = None,
    record: RecordOption = None,
    latency_s: Annotated[
        float, typer.Option(min=0, help="Make each search of the demo corpus take so much longer, to watch.")
    ] = 0.0,
    example: Annotated[
        list[str] | None,
        typer.Option(
            "--example", metavar="TEXT", help="A question that the page offers; may be repeated. Default: the demo's."
        ),
    ] = None,
    log_queries: Annotated[bool, typer.Option("--log-queries", help="Write query texts to the log.")] = False,
    **limits: Unpack[LimitOptions],
) -> None:
    """Serve the agent as an OpenAI-compatible API, with a page.

    The page, to ask and watch, is at /, MCP tools at /mcp. If PARALLELSEARCH_TOKEN is set, every client must send that
    token. With --mcp stdio it serves one MCP client over standard input and output, as desktop programs want it.

    Example: parallelsearch serve agent --policy demo --search demo --port 8080
    """
    import asyncio

    from parallelsearch.addresses import open_policy, open_search
    from parallelsearch.data import demo
    from parallelsearch.search import Search
    from parallelsearch.server.agent_server import run_agent_server
    from parallelsearch.server.answering import SERVING, AgentSettings, Answering

    if mcp not in (None, "stdio"):
        raise UsageError(f"--mcp is 'stdio', not '{mcp}'; over HTTP the tools are at /mcp: leave --mcp out")
    settings = AgentSettings(
        host=host,
        port=port,
        max_concurrent=max_concurrent,
        limits=limits_of(limits, SERVING),
        abstain=not force_answer,
        written=written,
        dialect=dialect,
        logs_queries=log_queries,
        allowed_hosts=tuple(allowed_host or ()),
        examples=tuple(example or ()),
    )
    policy_address = chosen(policy)
    address = searched(search, DEMO if latency_s else policy_address)
    if latency_s and (address != DEMO or cache is not None or record is not None):
        raise UsageError(
            "--latency-s slows the demo corpus down, so that one can watch; leave it out with another search, with --cache "
            "and with --record"
        )
    found = (
        Search(demo.retriever(latency_s), k=k)
        if latency_s
        else open_search(
            address, k=k, cache=cache, cache_days=cache_days, record=record, must_record=False, reopen=record is None
        )
    )
    reader = None if answer_with is None else open_policy(answer_with)
    if mcp is None:
        run_agent_server(open_policy(policy_address), found, settings, reader=reader)
    else:
        from parallelsearch.server.mcp_server import run_mcp_stdio

        answering = Answering(open_policy(policy_address), found, settings, reader)
        asyncio.run(run_mcp_stdio(found, settings=settings, answering=answering))
