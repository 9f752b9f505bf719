"""Handles of MCP tasks, what a hand-off refers to, and the ranking of its messages."""
