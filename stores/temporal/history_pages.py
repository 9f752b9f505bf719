"""Reads a run's history newest first: the latest state is usually on the first page."""

from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client

from turnkeeper.models.ids import WorkflowId

PAGE_EVENTS = 20
"""Enough for the outcome of the last workflow task, unless many signals followed it."""

LATER_PAGE_EVENTS = 500
"""Large, so that one or two further pages have the rest of a run."""

READ_SECONDS = 2.0


async def newest_pages(
    client: Client, workflow_id: WorkflowId, *, run_id: str = ""
) -> AsyncGenerator[Sequence[HistoryEvent], None]:
    """Yield all events of a run in pages, newest first; without `run_id`, of the newest run. Raises `RPCError`."""
    token = b""
    while True:
        page = await client.workflow_service.get_workflow_execution_history_reverse(
            GetWorkflowExecutionHistoryReverseRequest(
                namespace=client.namespace,
                execution=WorkflowExecution(workflow_id=workflow_id, run_id=run_id),
                maximum_page_size=LATER_PAGE_EVENTS if token else PAGE_EVENTS,
                next_page_token=token,
            ),
            timeout=timedelta(seconds=READ_SECONDS),
        )
        yield page.history.events
        token = page.next_page_token
        if not token:
            return
