"""Every workflow test ends by replaying what it made: what ran must also run again (SES-19)."""

from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client, WorkflowHistory

from tests.harness import Stage, replayer, stage


@pytest.fixture
async def on(temporal: Client) -> AsyncIterator[Stage]:
    """A stage of the test's own; every history made on it is replayed at the end."""
    async with stage(temporal) as staged:
        yield staged
    await replayer().replay_workflows(histories_of(staged))


async def histories_of(staged: Stage) -> AsyncIterator[WorkflowHistory]:
    for session in staged.sessions:
        for history in await session.histories():
            if len(history.events) > 2:  # a run that no worker has seen yet has nothing to replay
                yield history
