"""What runs beside a session's main loop: a feature's part, with its `SessionPart`, and background tasks."""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from pydantic import JsonValue
from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from turnkeeper.models.errors import REJECTION_PREFIX, RejectedError
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


async def run_in_background(work: Callable[[], Awaitable[None]]) -> None:
    """Run a background task; an error in it is a bug and fails the workflow task (SES-10)."""
    try:
        await work()
    except Exception as error:  # noqa: BLE001  # it fails the workflow task below
        failure = error  # `error` is unbound after this block

        def fail() -> bool:
            # `RuntimeError`, since some of Temporal's errors would fail the workflow.
            raise RuntimeError("Work beside the session's main loop failed.") from failure

        # The SDK only logs an error in a task; an error in a condition fails the workflow task, even if nothing wakes
        # the main loop.
        await workflow.wait_condition(fail)


@contextmanager
def report_rejections() -> Iterator[None]:
    """Turn a `RejectedError` into the caller's error; nothing enters the history.

    The error of a failed query arrives as text only; the prefix `REJECTION_PREFIX` distinguishes it from a bug.
    """
    try:
        yield
    except RejectedError as rejection:
        # Without its cause, which Temporal would send too.
        raise ApplicationError(
            f"{REJECTION_PREFIX}{rejection.message}", rejection.field, type=rejection.reason
        ) from None
