"""A gateway that really listens, and clients that others wrote."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.api.conftest import env, http, session_requests, url
from tests.interop.ai_chats import Driver, running_driver

__all__ = ["env", "http", "session_requests", "url"]


@pytest.fixture(scope="session", autouse=True)
def _programs_are_compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let Node read compiled code from the second start of a program on: each takes half a second of a processor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NODE_COMPILE_CACHE", str(tmp_path_factory.mktemp("node")))
        yield


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
