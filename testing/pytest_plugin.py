"""The fixture `play` for tests of agents: `pytest_plugins = ["turnkeeper.testing.pytest_plugin"]` in `conftest.py`.

It is no entry point: pytest would then rewrite the assertions of the whole package in everybody's tests.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # other people's tests must not load a Temporal SDK that they don't use
    from turnkeeper.testing.agents import Play, TestServer


@pytest.fixture(scope="session")
def turnkeeper_server() -> "Iterator[TestServer]":
    """Run a Temporal server, with all data in a temporary folder, for the whole run of tests."""
    from turnkeeper.testing.agents import TestServer

    with TestServer.running() as server:
        yield server


@pytest.fixture
def play(turnkeeper_server: "TestServer") -> "Play":
    """Return what plays turns with agents."""
    from turnkeeper.testing.agents import Play

    return Play(turnkeeper_server)
