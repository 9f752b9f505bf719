"""Tests for what others add to Turnkeeper: their agents (`play`), and model providers (`provider_kit`).

    from turnkeeper.testing import Answer, Call, Play

The kit for providers needs no pytest.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnkeeper.testing.agents import Answer as Answer
    from turnkeeper.testing.agents import Call as Call
    from turnkeeper.testing.agents import Play as Play
    from turnkeeper.testing.agents import PlayedSession as PlayedSession
    from turnkeeper.testing.agents import PlayedTurn as PlayedTurn

_NAMES = ("Answer", "Call", "Play", "PlayedSession", "PlayedTurn")

if not TYPE_CHECKING:  # the plugin of pytest is loaded with everybody's tests

    def __getattr__(name: str) -> object:
        if name not in _NAMES:
            raise AttributeError(f"module 'turnkeeper.testing' has no attribute {name!r}")
        return getattr(import_module("turnkeeper.testing.agents"), name)
