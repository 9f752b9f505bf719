"""Partial output in memory, for a worker and a gateway in one process and one event loop."""

from collections.abc import Sequence

from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.transcript.partial_output import LiveNews, PartialOutput, PartialTag
from turnkeeper.stores.partials.carrier import LiveSnapshot, PartialCarrier


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
