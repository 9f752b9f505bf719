"""What a feature runs in the workflow of a session, beside its `SessionPart`."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from pydantic import JsonValue
from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from turnkeeper.models.errors import RejectedError
    from turnkeeper.models.ids import PublicId, WorkflowId, sibling_id
    from turnkeeper.models.session.messages import FeatureMessage
    from turnkeeper.models.session.session import Session
    from turnkeeper.models.wire import Compact, Frozen
    from turnkeeper.workflows.turn.turn_scope import TurnPart, TurnScope


@dataclass(frozen=True)
class Host:
    """What the workflow does for its parts."""

    receive: Callable[[object], object]
    """Handles a prompt, as the signal does."""
    refresh_ui: Callable[[], None]
    """Updates the Web UI after a visible change."""


class WorkflowPart:
    """What a feature does in a session's workflow. Each hook does nothing, unless a feature overrides it.

    The rules of workflow code hold: the same commands in every replay, so no clock, no chance and no environment.
    """

    name: ClassVar[str]
    """The feature's."""

    def __init__(self, session: Session, host: Host) -> None:
        self._session = session
        self._host = host

    @property
    def is_sending(self) -> bool:
        """Whether something is pending that Temporal would drop if the session continued as new now."""
        return False

    def begin(self) -> None:
        """Begin what the feature does in the background, until this run ends."""

    def receive(self, message: FeatureMessage) -> None:
        """Handle a message of another session. Only write, and return. Raises `RejectedError`: nothing happens then."""

    def answer(self, question: FeatureMessage) -> Compact:
        """Answer a query for the feature. Raises `RejectedError` if it is none that it answers."""
        raise RejectedError("invalid", f"feature: {self.name} answers no queries.", field="feature")

    def turn(self, scope: TurnScope) -> TurnPart:
        """Return what the feature does in a turn of the session."""
        return TurnPart()

    async def close(self) -> None:
        """Finish what the feature does: the session is closed."""

    async def result(self) -> dict[str, JsonValue]:
        """Return what the feature adds to the result of an ended session's workflow; empty: nothing."""
        return {}

    async def send(self, to: PublicId, kind: str, body: Frozen) -> None:
        """Send a message to the same part of another session. Raises `ApplicationError` if that has ended."""
        target = sibling_id(to, of=WorkflowId(workflow.info().workflow_id))
        message = FeatureMessage(feature=self.name, kind=kind, body=body.model_dump(mode="json"))
        await workflow.get_external_workflow_handle(target).signal("feature_message", message)


_parts: tuple[type[WorkflowPart], ...] = ()


def use_workflow_parts(parts: Iterable[type[WorkflowPart]]) -> None:
    """Give these parts to every session that this process runs or replays: once, before the first one."""
    global _parts  # Temporal builds workflows itself, and gives them only their input
    _parts = tuple(parts)


def workflow_parts(session: Session, host: Host) -> list[WorkflowPart]:
    return [part(session, host) for part in _parts]
