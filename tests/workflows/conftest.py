"""Every workflow test ends by replaying what it made: what ran must also run again (SES-19)."""

from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client, WorkflowHistory

from tests.harness import Environment, environment, replayer


@pytest.fixture
async def env(temporal: Client) -> AsyncIterator[Environment]:
    """An environment of the test's own; every history made on it is replayed at the end."""
    async with environment(temporal) as env:
        yield env
    await replayer().replay_workflows(histories_of(env))


async def histories_of(env: Environment) -> AsyncIterator[WorkflowHistory]:
    for session in env.sessions:
        for history in await session.histories():
            if len(history.events) > 2:  # a run that no worker has seen yet has nothing to replay
                yield history
