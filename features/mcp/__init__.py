"""The MCP server at `/mcp`: sessions and tasks as tools (TSK-6). Needs `tasks`, `listing` and `access`."""
