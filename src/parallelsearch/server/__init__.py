"""Servers: search over HTTP and as MCP tools, and the whole agent as an OpenAI-compatible API with a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallelsearch.lazy import export

if TYPE_CHECKING:
    from parallelsearch.server.agent_server import create_agent_app as create_agent_app
    from parallelsearch.server.agent_server import run_agent_server as run_agent_server
    from parallelsearch.server.answering import AgentSettings as AgentSettings
    from parallelsearch.server.limits import ServerSettings as ServerSettings
    from parallelsearch.server.mcp_server import create_mcp_app as create_mcp_app
    from parallelsearch.server.mcp_server import create_mcp_server as create_mcp_server
    from parallelsearch.server.mcp_server import run_mcp_http as run_mcp_http
    from parallelsearch.server.mcp_server import run_mcp_stdio as run_mcp_stdio
    from parallelsearch.server.search_server import create_search_app as create_search_app
    from parallelsearch.server.search_server import run_search_server as run_search_server

export(
    __name__,
    {
        "agent_server": ("create_agent_app", "run_agent_server"),
        "answering": ("AgentSettings",),
        "limits": ("ServerSettings",),
        "mcp_server": ("create_mcp_app", "create_mcp_server", "run_mcp_http", "run_mcp_stdio"),
        "search_server": ("create_search_app", "run_search_server"),
    },
)
