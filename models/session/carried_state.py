"""The state that a session carries from one run to the next (SES-14).

This model is public API of running sessions: new fields have defaults (SES-19). `docs/extending.md` lists the places of
a new field.
"""

from turnkeeper.features.tasks.session.allowance import AllowanceState, TurnAccount
from turnkeeper.features.tasks.session.sub_tasks import SubTasksState
from turnkeeper.features.tasks.session.task_state import TaskState
from turnkeeper.models.context.model_context import ContextState
from turnkeeper.models.replay_text.turns import MovedEvents
from turnkeeper.models.session.archive.archive_health import ArchiveState
from turnkeeper.models.session.queue.prompt_queue import QueueState
from turnkeeper.models.session.refused_parts import RefusalState
from turnkeeper.models.session.tools.session_tools import ToolsState
from turnkeeper.models.session.turn.running_turn import CarriedTurn
from turnkeeper.models.transcript.model_call import CompactUsage
from turnkeeper.models.transcript.trajectory import Usage
from turnkeeper.models.transcript.transcript import TranscriptState
from turnkeeper.models.wire import Compact, Items, UtcDatetime


class SessionFacts(Compact):
    """The carried fields that belong to no part of the session."""

    created_at: UtcDatetime
    revision: int
    request_count: int = 0
    usage: Usage = Usage()
    tasks_usage: Usage = Usage()
    """The share that tasks have used."""
    usage_between_turns: CompactUsage = None
    """Usage of tasks that ended when no turn was running: the next turn shows it."""
    ending: str | None = None
    """Why the session is ending; `None`: it is not ending."""
    moved_events: MovedEvents = MovedEvents()


class CarriedState(SessionFacts):
    """The whole state of a session, carried from one run to the next (SES-14). Under 1 MB.

    Each part is the state of one class and is defined beside it.
    """

    transcript: TranscriptState = TranscriptState()
    queue: QueueState = QueueState()
    context: ContextState = ContextState()
    tools: ToolsState = ToolsState()
    refusals: RefusalState = RefusalState()
    """The parts that its model has refused: `Session.refusals`."""
    archive: ArchiveState = ArchiveState()
    task: TaskState = TaskState()
    """The session's own task, if it is one: `Session.own_task`."""
    tasks: SubTasksState = SubTasksState()
    """The tasks that it has started: `Session.sub_tasks`."""
    accounts: Items[TurnAccount] = []
    """In a root: the budgets of its turns and of the tasks in its tree, `Session.accounts`."""
    allowance: AllowanceState | None = None
    """In a task of a tree: `Session.allowance`."""
    running: CarriedTurn | None = None

    @property
    def facts(self) -> SessionFacts:
        return SessionFacts(**{name: getattr(self, name) for name in SessionFacts.model_fields})
