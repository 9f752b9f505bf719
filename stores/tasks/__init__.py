"""What the store has for tasks: handles of MCP tasks, what a hand-off refers to, and the ranking of its messages."""
