"""A run's history from its end, page by page: what has become of a session is among its newest events."""

from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client

PAGE_EVENTS = 20
"""What has become of a session's last task is among its newest few events, but for a burst of signals."""

LATER_PAGE_EVENTS = 500
"""Where the first page is not enough, all of a run is read in a page or two."""

READ_SECONDS = 2.0


async def newest_pages(
    client: Client, workflow_id: str, *, run_id: str = "", first_page_events: int = PAGE_EVENTS
) -> AsyncGenerator[Sequence[HistoryEvent], None]:
    """Yield all events of a run in pages, the newest first; without `run_id`, of the newest run. Raises `RPCError`."""
    token = b""
    while True:
        page = await client.workflow_service.get_workflow_execution_history_reverse(
            GetWorkflowExecutionHistoryReverseRequest(
                namespace=client.namespace,
                execution=WorkflowExecution(workflow_id=workflow_id, run_id=run_id),
                maximum_page_size=LATER_PAGE_EVENTS if token else first_page_events,
                next_page_token=token,
            ),
            timeout=timedelta(seconds=READ_SECONDS),
        )
        yield page.history.events
        token = page.next_page_token
        if not token:
            return
