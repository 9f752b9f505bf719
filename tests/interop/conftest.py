"""A gateway that really listens, and clients that others wrote."""

from collections.abc import AsyncIterator

import pytest

from tests.api.conftest import env, http, session_requests, url
from tests.interop.ai_chats import Driver, running_driver

__all__ = ["env", "http", "session_requests", "url"]


@pytest.fixture(scope="session")
async def driver() -> AsyncIterator[Driver]:
    """Chats of the AI SDK."""
    async with running_driver() as driver:
        yield driver


@pytest.fixture(scope="session")
async def driver_6() -> AsyncIterator[Driver]:
    """Chats of the AI SDK's version before."""
    async with running_driver(6) as driver:
        yield driver
