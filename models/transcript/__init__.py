"""The record of a session: prompts, steps, tool calls, answers."""
