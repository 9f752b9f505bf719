"""What an agent is told of its task beside the task itself (TSK-1)."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, ValidationError
from pydantic_core import ErrorDetails

from turnkeeper.models.errors import TaskErrorType, TaskValidationError, shown
from turnkeeper.models.field_paths import field_path
from turnkeeper.models.tasks.stored_history import ConversationHistory
from turnkeeper.models.wire import Compact

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
        return self.model_copy(update={"conversation_history": history})


REGISTRY_KEY = "task_context"
"""Under which the registry of a task has its context; seed 1 passes that on as it is."""


def read_task_context(given: Mapping[str, object]) -> TaskContext:
    """Read a context, or an object whose one key is `task_context`, as another program wrote it.

    Raises `TaskValidationError` for what is wrong and for unknown keys: nothing is left out without a word.

    >>> read_task_context({"task_context": {"constraints": ["No new dependencies"]}}).constraints
    ['No new dependencies']
    """
    if set(given) == {REGISTRY_KEY}:
        context = given[REGISTRY_KEY]
        if not isinstance(context, Mapping):
            raise TaskValidationError(REGISTRY_KEY, "must be an object", shown(context), "type_error")
        given = context
    elif REGISTRY_KEY in given:
        others = ", ".join(sorted(map(str, given.keys() - {REGISTRY_KEY})))
        reason = f"must be the only key; pass it on without {field_path([others])}"
        raise TaskValidationError(REGISTRY_KEY, reason, shown(given), "invalid_value")
    try:
        return TaskContext.model_validate(given, extra="forbid")
    except ValidationError as error:
        raise _first_error(error.errors()[0]) from None


def _first_error(problem: ErrorDetails) -> TaskValidationError:
    if problem["type"] == "extra_forbidden":
        known = ", ".join(TaskContext.model_fields) if len(problem["loc"]) == 1 else "those of a stored history"
        reason = f"is unknown; known are {known}"
    else:
        reason = problem["msg"][:1].lower() + problem["msg"][1:]
    error_type = _ERROR_TYPES.get(problem["type"], "type_error")
    return TaskValidationError(field_path(problem["loc"]), reason, shown(problem["input"]), error_type)


_ERROR_TYPES: Mapping[str, TaskErrorType] = {
    "extra_forbidden": "invalid_value",
    "literal_error": "invalid_value",
    "missing": "missing_field",
}
