"""Every workflow test ends by replaying what it made: what ran must also run again (SES-19)."""

from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client, WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from tests.harness import Stage, stage
from turnkeeper.workflows.agentic_ai_workflow import AgenticAIWorkflow


@pytest.fixture
async def on(temporal: Client) -> AsyncIterator[Stage]:
    """A stage of the test's own; every history made on it is replayed at the end."""
    async with stage(temporal) as staged:
        yield staged
    replayer = Replayer(workflows=[AgenticAIWorkflow], data_converter=pydantic_data_converter)
    await replayer.replay_workflows(histories_of(staged))


async def histories_of(staged: Stage) -> AsyncIterator[WorkflowHistory]:
    for session in staged.sessions:
        for history in await session.histories():
            if len(history.events) > 2:  # a run that no worker has seen yet has nothing to replay
                yield history
