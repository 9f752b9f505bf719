"""The context that an agent gets with its task (TSK-1)."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, ValidationError
from pydantic_core import ErrorDetails

from turnkeeper.models.errors import TaskValidationError, preview
from turnkeeper.models.field_paths import field_path
from turnkeeper.models.invalid_values import error_type_of
from turnkeeper.models.tasks.stored_history import ConversationHistory
from turnkeeper.models.wire import Compact

Priority = Literal["P0", "P1", "P2", "P3", "P4"]
"""The most urgent first."""


def _none_if_empty(value: object) -> object:
    is_empty = isinstance(value, Mapping) and not value.get("messages", value)
    return None if is_empty else value


class TaskContext(Compact):
    """The start context of a task's agent. All fields are optional; `None` and empty values mean the same."""

    description: str = ""
    priority: Priority | None = None
    client_cwd: str | None = None
    background_context: str | None = None
    expected_deliverables: list[str] | None = None
    success_criteria: list[str] | None = None
    constraints: list[str] | None = None
    relevant_files: list[str] | None = None
    conversation_history: Annotated[ConversationHistory | None, BeforeValidator(_none_if_empty)] = None
    """Other programs may store one without messages, with null times: it is read as `None`."""
    related_documentation: list[str] | None = None

    def with_history(self, history: ConversationHistory | None) -> "TaskContext":
        return self.model_copy(update={"conversation_history": history})


REGISTRY_KEY = "task_context"
"""The key of the context in a task registry; a caller may pass the registry's object."""


def read_task_context(raw: Mapping[str, object]) -> TaskContext:
    """Parse a context, or an object with the one key `task_context`.

    Raises `TaskValidationError` for wrong values and unknown keys.

    >>> read_task_context({"task_context": {"constraints": ["No new dependencies"]}}).constraints
    ['No new dependencies']
    """
    if set(raw) == {REGISTRY_KEY}:
        context = raw[REGISTRY_KEY]
        if not isinstance(context, Mapping):
            raise TaskValidationError(REGISTRY_KEY, "must be an object", preview(context), "type_error")
        raw = context
    elif REGISTRY_KEY in raw:
        others = ", ".join(sorted(map(str, raw.keys() - {REGISTRY_KEY})))
        reason = f"must be the only key; pass it on without {field_path([others])}"
        raise TaskValidationError(REGISTRY_KEY, reason, preview(raw), "invalid_value")
    try:
        return TaskContext.model_validate(raw, extra="forbid")
    except ValidationError as error:
        raise _first_error(error.errors()[0]) from None


def _first_error(problem: ErrorDetails) -> TaskValidationError:
    if problem["type"] == "extra_forbidden":
        allowed = ", ".join(TaskContext.model_fields) if len(problem["loc"]) == 1 else "those of a stored history"
        reason = f"is unknown; known are {allowed}"
    else:
        reason = problem["msg"][:1].lower() + problem["msg"][1:]
    return TaskValidationError(
        field_path(problem["loc"]), reason, preview(problem["input"]), error_type_of(dict(problem))
    )
