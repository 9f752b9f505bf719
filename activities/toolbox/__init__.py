"""The sources of tools: the built-in ones, and MCP servers."""
