"""A gateway that listens on a port, and the programs that send it requests."""

from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client

from tests.api.conftest import env, session_requests, url
from tests.conftest import ONE_PARTITION, QUICK, server_with

__all__ = ["env", "session_requests", "url"]


@pytest.fixture
async def temporal() -> AsyncIterator[Client]:
    """A server of its own: generated requests start sessions under any id, which other tests expect to be unknown."""
    async with server_with({**QUICK, **ONE_PARTITION}) as client:
        yield client
