"""Where tools come from: those built in, and MCP servers."""
