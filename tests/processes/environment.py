"""The environment of a process that a test starts: the developer's own, without what would change its settings."""

import os

SETTINGS = ("TURNKEEPER_", "TEMPORAL_", "ANTHROPIC_", "OPENAI_")
"""Beginnings of variables that would make another stack of it, or ask a vendor."""


def environment_without(*beginnings: str) -> dict[str, str]:
    """Return our environment without the variables whose names begin so."""
    return {name: value for name, value in os.environ.items() if not name.upper().startswith(beginnings)}
