"""The MCP server at `/mcp`: sessions and tasks as tools (TSK-6). Needs `listing` and `tasks`."""

from turnkeeper.features.feature import Feature

FEATURE = Feature(
    "mcp",
    needs=(
        "listing",
        "tasks",
    ),
)
