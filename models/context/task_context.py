"""What an agent is told of its task beside the task itself (TSK-1)."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator

from models.context.stored_history import ConversationHistory
from models.wire import Compact

Priority = Literal["P0", "P1", "P2", "P3", "P4"]
"""From the most urgent to the least."""


def _none_if_empty(given: object) -> object:
    is_empty = isinstance(given, Mapping) and not given.get("messages", given)
    return None if is_empty else given


class TaskContext(Compact):
    """What a task's agent is started with. Nothing of it is needed; None, or an empty text or list: not given."""

    description: str = ""
    priority: Priority | None = None
    client_cwd: str | None = None
    background_context: str | None = None
    expected_deliverables: list[str] | None = None
    success_criteria: list[str] | None = None
    constraints: list[str] | None = None
    relevant_files: list[str] | None = None
    conversation_history: Annotated[ConversationHistory | None, BeforeValidator(_none_if_empty)] = None
    """Seed 1 stores one without messages too, its times None: that is none."""
    related_documentation: list[str] | None = None

    def with_history(self, history: ConversationHistory | None) -> "TaskContext":
        """Return the context with another history."""
        return self.model_copy(update={"conversation_history": history})
