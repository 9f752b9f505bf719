"""Partial output in memory, for a worker and a gateway in one process and one event loop."""

from collections.abc import Sequence

from turnkeeper.models.transcript.partial_output import PartialOutput, PartialTag
from turnkeeper.stores.partials.carrier import LiveSnapshot, PartialCarrier


class InProcessCarrier(PartialCarrier):
    """Hands snapshots from the worker of this process to its gateway, which must be given the same carrier."""

    least_pause = 0.05

    def __init__(self) -> None:
        super().__init__()
        self._shown: dict[str, PartialOutput] = {}

    def show(self, workflow_id: str, snapshot: PartialOutput, *, behind: Sequence[object] = ()) -> None:
        held = self._shown.get(workflow_id)
        if held is None or snapshot.supersedes(held):
            self._shown[workflow_id] = snapshot
        if live := self._followed_sessions.get(workflow_id):
            live.update(snapshot)

    def end(self, workflow_id: str, tag: PartialTag) -> None:
        held = self._shown.get(workflow_id)
        if held is not None and not held.is_later_than(tag):
            del self._shown[workflow_id]

    async def forget(self, workflow_id: str) -> None:
        self._shown.pop(workflow_id, None)

    async def _keep_new(self, workflow_id: str, live: LiveSnapshot) -> None:
        # All later ones are handed over by `show`.
        if shown := self._shown.get(workflow_id):
            live.update(shown)
