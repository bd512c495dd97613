"""Servers: search over HTTP (`search_server`) and as MCP tools (`mcp_server`)."""
