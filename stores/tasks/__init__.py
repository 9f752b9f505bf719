"""What the store has for tasks: the handles of MCP tasks, and what a hand-off refers to."""
