"""The choice of the carrier, which is the same for a whole installation, and the two that need nothing more (AGT-5).

`InProcessCarrier` is for a worker and a gateway in one process. `HeartbeatCarrier` uses the heartbeats of the model
call, for those who have neither a shared folder nor Redis.

**Heartbeats.** The server stores heartbeat details with the pending activity, outside the history, and returns them
when the workflow is described. The worker heartbeats with its newest snapshot once a second, whether or not somebody
follows: it can't know. The gateway describes a workflow twice a second, but only while somebody follows it, and once
for all followers. Every heartbeat has to repeat the snapshot: one without details would erase it.

The server passes the details of an attempt on to the next one. They remain visible until the next attempt's first
snapshot; their tag says which attempt they are from. They disappear with the activity, with one exception: if Temporal
ends it because the turn's time is over, its timeout event contains the last details. That adds no event, at most
`MAX_PARTIAL_BYTES` per such turn, and it is deleted with the session.

Tool calls carry their progress in the same way; a heartbeat without it only hides it from those who come later.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta

from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError

from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.settings.settings import Settings, SettingsError
from turnkeeper.models.transcript.partial_output import CallProgress, LiveNews, PartialOutput, PartialTag
from turnkeeper.stores.partials.carrier import LiveSnapshot, PartialCarrier
from turnkeeper.stores.partials.over_sockets import SocketCarrier


class InProcessCarrier(PartialCarrier):
    """Carries snapshots in memory; worker and gateway must use the same object."""

    min_pause = 0.05

    def __init__(self) -> None:
        super().__init__()
        self._latest: dict[str, PartialOutput] = {}

    def publish(self, workflow_id: WorkflowId, news: LiveNews, *, behind: Sequence[object] = ()) -> None:
        latest = self._latest.get(workflow_id)
        if isinstance(news, PartialOutput) and (latest is None or news.supersedes(latest)):
            self._latest[workflow_id] = news
        if live := self._followed_sessions.get(workflow_id):
            live.update(news)

    def end(self, workflow_id: WorkflowId, tag: PartialTag) -> None:
        latest = self._latest.get(workflow_id)
        if latest is not None and not latest.is_later_than(tag):
            del self._latest[workflow_id]

    async def forget(self, workflow_id: WorkflowId) -> None:
        self._latest.pop(workflow_id, None)

    async def _keep_updated(self, workflow_id: WorkflowId, live: LiveSnapshot) -> None:
        # `publish` updates `live` from now on.
        if latest := self._latest.get(workflow_id):
            live.update(latest)


READ_SECONDS = 0.5
READ_TIMEOUT = timedelta(seconds=2)

RETRY_SECONDS = 1.0
"""The pause after a failed read, longer because the server may limit requests."""

CARRYING: dict[str, type[LiveNews]] = {"call_model": PartialOutput, "call_tool": CallProgress}
"""The activities whose heartbeats are read, and what they carry as their first detail."""

_log = logging.getLogger(__name__)


class HeartbeatCarrier(PartialCarrier):
    """Carries snapshots in heartbeats."""

    min_pause = 1.0

    first_pause = 0.15
    """Each heartbeat is a write at the server; an answer that is complete sooner needs none (OPS-8)."""

    def __init__(self, client: Client) -> None:
        """Follow through `client`. Publishing does not use it: a worker publishes from within its activity."""
        super().__init__()
        self._client = client
        self._latest: dict[str, PartialOutput] = {}

    # ---- the worker's side

    def publish(self, workflow_id: WorkflowId, news: LiveNews, *, behind: Sequence[object] = ()) -> None:
        latest = self._latest.get(workflow_id)
        if isinstance(news, PartialOutput) and (latest is None or not latest.is_later_than(news)):
            self._latest[workflow_id] = news
        # An outdated attempt heartbeats too: the server rejects that, which tells the attempt that it is outdated.
        activity.heartbeat(news, *behind)

    def end(self, workflow_id: WorkflowId, tag: PartialTag) -> None:
        """Omit it from further heartbeats; the server drops it with the activity or at its next attempt."""
        latest = self._latest.get(workflow_id)
        if latest is not None and not latest.is_later_than(tag):
            del self._latest[workflow_id]

    def heartbeat_details(self, workflow_id: WorkflowId) -> Sequence[object]:
        """Return the newest snapshot, for heartbeats that only show that the worker is alive."""
        latest = self._latest.get(workflow_id)
        return () if latest is None else (latest,)

    # ---- the gateway's side

    async def forget(self, workflow_id: WorkflowId) -> None:
        """Do nothing: the server deletes heartbeats with the session."""

    async def _keep_updated(self, workflow_id: WorkflowId, live: LiveSnapshot) -> None:
        seen: list[bytes] = []
        while True:
            pause = READ_SECONDS
            try:
                async with asyncio.timeout(READ_TIMEOUT.total_seconds()):
                    seen = await self._read(workflow_id, live, seen)
            except (RPCError, TimeoutError, RuntimeError, ValueError) as error:
                # `RuntimeError`: a client that never connected; `ValueError`: details of another version.
                _log.debug("the heartbeats of %s could not be read", workflow_id, exc_info=error)
                pause = RETRY_SECONDS
            await asyncio.sleep(pause)

    async def _read(self, workflow_id: WorkflowId, live: LiveSnapshot, seen: list[bytes]) -> list[bytes]:
        """Read what the session's running activities carry, except for the bytes `seen`; return the bytes of all."""
        request = DescribeWorkflowExecutionRequest(
            namespace=self._client.namespace, execution=WorkflowExecution(workflow_id=workflow_id)
        )
        described = await self._client.workflow_service.describe_workflow_execution(request, timeout=READ_TIMEOUT)
        all_bytes = []
        for pending in described.pending_activities:
            kind = CARRYING.get(pending.activity_type.name)
            if kind is None or not pending.heartbeat_details.payloads:
                continue
            details = pending.heartbeat_details.payloads[0]
            all_bytes.append(details.SerializeToString())
            if all_bytes[-1] not in seen:
                (news,) = await self._client.data_converter.decode([details], [kind])
                if news is not None:  # without partial output, only further details follow
                    live.update(news)
        return all_bytes


def carrier_factory(settings: Settings) -> Callable[[Client], PartialCarrier]:
    """Return a function that creates the configured carrier for a Temporal client.

    Raises:
        SettingsError: `redis_url` is set, but the package `redis` is not installed.
    """
    if settings.partials == "heartbeats":
        return HeartbeatCarrier
    url = settings.redis_url
    if url is None:
        return lambda client: SocketCarrier(
            settings.state_dir, namespace=client.namespace, task_queue=settings.task_queue
        )
    try:
        # Imported here, since the package is optional.
        from turnkeeper.stores.partials.over_redis import RedisCarrier
    except ModuleNotFoundError as error:
        raise SettingsError("redis_url: Redis needs the package redis: install turnkeeper[redis].") from error
    return lambda client: RedisCarrier(url, namespace=client.namespace, task_queue=settings.task_queue)
