"""Partial output in the heartbeats of the activity that asks the model: it needs nothing but Temporal (AGT-5).

Theory of operation. The details of a heartbeat are kept by the server with the pending activity, in no history, and
anybody who describes the workflow can read them. The worker heartbeats with its newest snapshot; the SDK lets one
heartbeat through every 0.2 s (`worker.py`) and keeps the newest of those between. The gateway describes a workflow five
times a second, but only while somebody follows it: a session that nobody watches costs no description, and one that
many watch as many as one. Every heartbeat has to repeat the snapshot: one without details would wipe it.

The server hands the details of an attempt on to the next one. They stay to be seen until that one's first snapshot, and
the tag in them says whose they are. They are gone with the activity, with one exception: where Temporal itself ends it,
since the turn's time is over or too many workers have died, the event that says so has the last ones in it. That costs
no event more, at most `MAX_PARTIAL_BYTES` once in such a turn, and goes when the session is deleted.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from datetime import timedelta

from temporalio import activity
from temporalio.api.common.v1 import Payload, Payloads, WorkflowExecution
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError

from turnkeeper.models.transcript.partial_output import PartialOutput, PartialTag
from turnkeeper.stores.partials.carrier import LiveSnapshot, PartialCarrier

LOOK_SECONDS = 0.2
LOOK_TIMEOUT = timedelta(seconds=2)

RETRY_SECONDS = 1.0
"""After a look that failed: a server that limits requests is not asked as often as one that answers."""

CALL_MODEL = "call_model"
"""The activity whose heartbeats are read. Others have no details, or details that are none of ours."""

_log = logging.getLogger(__name__)


class HeartbeatCarrier(PartialCarrier):
    """Carries snapshots in heartbeats."""

    min_pause = 0.2

    first_pause = 0.15
    """Each heartbeat is a write at the server: an answer that is whole sooner has none (OPS-8)."""

    def __init__(self, client: Client) -> None:
        """Follow through `client`; to show, a worker needs no more than the activity it is in."""
        super().__init__()
        self._client = client
        self._latest: dict[str, PartialOutput] = {}

    # ---- the worker's side

    def show(self, workflow_id: str, snapshot: PartialOutput, *, behind: Sequence[object] = ()) -> None:
        latest = self._latest.get(workflow_id)
        if latest is None or not latest.is_later_than(snapshot):
            self._latest[workflow_id] = snapshot
        # An attempt that was given up heartbeats too: the server takes nothing of it, and so it learns that it was.
        activity.heartbeat(snapshot, *behind)

    def end(self, workflow_id: str, tag: PartialTag) -> None:
        """Have no heartbeat carry it any more; what the server has goes with the activity, or with its next attempt."""
        latest = self._latest.get(workflow_id)
        if latest is not None and not latest.is_later_than(tag):
            del self._latest[workflow_id]

    def heartbeat_details(self, workflow_id: str) -> Sequence[object]:
        """Return the newest snapshot, for the heartbeats that say no more than that the worker is alive."""
        latest = self._latest.get(workflow_id)
        return () if latest is None else (latest,)

    # ---- the gateway's side

    async def forget(self, workflow_id: str) -> None:
        """Do nothing: what the server has of a session goes with the session."""

    async def _keep_new(self, workflow_id: str, live: LiveSnapshot) -> None:
        seen = b""
        while True:
            pause = LOOK_SECONDS
            try:
                async with asyncio.timeout(LOOK_TIMEOUT.total_seconds()):
                    seen = await self._look(workflow_id, live, seen)
            except (RPCError, TimeoutError, RuntimeError, ValueError) as error:
                # `RuntimeError`: a client that never connected; `ValueError`: details of another release.
                _log.debug("no look at the heartbeats of %s", workflow_id, exc_info=error)
                pause = RETRY_SECONDS
            await asyncio.sleep(pause)

    async def _look(self, workflow_id: str, live: LiveSnapshot, seen: bytes) -> bytes:
        """Take the newest snapshot, unless it is the one of `seen`; return its bytes."""
        details = await self._details(workflow_id)
        if details is None or details.SerializeToString() == seen:
            return seen
        (snapshot,) = await self._client.data_converter.decode([details], [PartialOutput])
        if snapshot is not None:  # nothing was shown, and there is something behind it
            live.update(snapshot)
        return details.SerializeToString()

    async def _details(self, workflow_id: str) -> Payload | None:
        request = DescribeWorkflowExecutionRequest(
            namespace=self._client.namespace, execution=WorkflowExecution(workflow_id=workflow_id)
        )
        described = await self._client.workflow_service.describe_workflow_execution(request, timeout=LOOK_TIMEOUT)
        return _model_call_details(described.pending_activities)


def _model_call_details(pending: Iterable[PendingActivityInfo]) -> Payload | None:
    """Return what the heartbeats of the model call carry; a session has one at a time."""
    for call in pending:
        if call.activity_type.name == CALL_MODEL:
            details: Payloads = call.heartbeat_details
            return details.payloads[0] if details.payloads else None
    return None
