"""Who calls the gateway (TSK-6). What is kept for a caller is kept with the caller's id as its owner."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Caller:
    """Who sends a request."""

    id: str


LOCAL = Caller("local")
"""Everyone who reaches the gateway, until there are keys."""
