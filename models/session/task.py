"""The parameters of a task, and its preparation before anything starts (TSK-1 to TSK-3)."""

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, Field, WithJsonSchema

from turnkeeper.models.errors import TaskValidationError, preview
from turnkeeper.models.ids import ID_PATTERN
from turnkeeper.models.model_name import checked_model
from turnkeeper.models.session.messages import ModelName, Title
from turnkeeper.models.session.tool_policy import ToolPolicy
from turnkeeper.models.tasks.enrichment import BARE_PROMPT_CHARS, first_prompt, history_that_fits
from turnkeeper.models.tasks.hand_off import TaskValidationWarning, validate_conversation_history
from turnkeeper.models.tasks.history_policy import KEEP_USER, PolicyChoice
from turnkeeper.models.tasks.inheritance import Inheritance
from turnkeeper.models.tasks.stored_history import ConversationHistory
from turnkeeper.models.tasks.task_context import Priority, TaskContext
from turnkeeper.models.tokens import estimate_tokens
from turnkeeper.models.wire import NO_NUL_PATTERN, NOT_BLANK_PATTERN, Frozen, Strict

MAX_ITEMS = 2_500
"""More items would not fit in `BARE_PROMPT_CHARS`."""


def _storable(text: str) -> str:
    if "\0" in text:
        raise ValueError("contains a NUL character (U+0000)")
    return text


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("is blank: say what is to be done")
    return text


_TEXT_SCHEMA = {"type": "string", "maxLength": BARE_PROMPT_CHARS, "pattern": NO_NUL_PATTERN}

StorableText = Annotated[
    str, Field(max_length=BARE_PROMPT_CHARS), AfterValidator(_storable), WithJsonSchema(_TEXT_SCHEMA)
]
Description = Annotated[
    str,
    Field(max_length=BARE_PROMPT_CHARS),
    AfterValidator(_storable),
    AfterValidator(_not_blank),
    WithJsonSchema({**_TEXT_SCHEMA, "pattern": NOT_BLANK_PATTERN, "examples": ["Write a changelog."]}),
]
StorableTexts = Annotated[list[StorableText], Field(max_length=MAX_ITEMS)]

Id = Annotated[str, Field(pattern=ID_PATTERN)]

GivenHistory = Annotated[
    object,
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "role": {"type": "string", "examples": ["user", "assistant", "orchestrator"]},
                            "content": {"type": "string"},
                            "timestamp": {"type": ["string", "null"], "examples": ["2025-10-29T13:20:15Z"]},
                        },
                        "required": ["role", "content"],
                    },
                },
                {"const": "inherit"},
                {"type": "null"},
            ]
        }
    ),
]
"""Validated by `validate_conversation_history`, which reads only the latest messages."""


class TaskRequest(Strict):
    """The parameters of any task; only the description is required. `timeout` is in seconds."""

    description: Description
    priority: Priority = "P2"
    client_cwd: StorableText | None = None
    background_context: StorableText | None = None
    expected_deliverables: StorableTexts | None = None
    success_criteria: StorableTexts | None = None
    constraints: StorableTexts | None = None
    relevant_files: StorableTexts | None = None
    related_documentation: StorableTexts | None = None
    conversation_history: GivenHistory = None
    """The conversation that led to the task; `inherit`: that of the task's parent."""
    history_policy: PolicyChoice = KEEP_USER
    title: Title | None = None
    model: Annotated[ModelName, Field(max_length=200), AfterValidator(checked_model)] | None = None
    timeout: float | None = Field(None, ge=1, le=7 * 86_400, allow_inf_nan=False)

    @property
    def priority_key(self) -> int:
        """Temporal's priority: 1 for P0, the most urgent, to 5 for P4."""
        return int(self.priority[1]) + 1

    @property
    def inherits_history(self) -> bool:
        return self.conversation_history == "inherit"

    def context(self, history: ConversationHistory | None) -> TaskContext:
        """Return what the agent is told, with `history`; a priority only where one was given."""
        fields = self.model_dump(include=TaskContext.model_fields.keys() - {"conversation_history"})
        priority = self.priority if "priority" in self.model_fields_set else None
        return TaskContext.model_validate({**fields, "priority": priority}).with_history(history)


class CreateTask(TaskRequest):
    """What a task is created with from outside. `parent`: the session whose conversation it may inherit."""

    tool_policy: ToolPolicy | None = None
    idempotency_key: Id | None = None
    parent: Id | None = None

    @property
    def parent_to_inherit_from(self) -> str | None:
        """The session whose conversation is handed off; `None`: none. Raises `TaskValidationError`."""
        if not self.inherits_history:
            return None
        if self.parent is None:
            reason = "is needed to inherit its conversation_history: give the id of a session"
            raise TaskValidationError("parent", reason, preview(None), "missing_field")
        return self.parent


class HandOffReport(Frozen):
    """How many messages were given and kept; tokens are those of their texts, estimated (TSK-2, TSK-7).

    Of an inherited conversation, only the latest `max_messages` of the policy's roles count as given; a warning says
    that there were others.
    """

    given: int
    kept: int
    truncated: int
    dropped: int
    estimated_tokens_before: int
    estimated_tokens_after: int


class PreparedTask(Frozen):
    """A task that is ready to start: the agent's context, the first `prompt`, and warnings about corrections."""

    context: TaskContext
    prompt: str
    report: HandOffReport
    warnings: list[TaskValidationWarning]


def prepare_task(task: TaskRequest, *, now: datetime | str, inherited: Inheritance | None = None) -> PreparedTask:
    """Validate and cut the history, and build the first prompt; nothing is started. Raises `TaskValidationError`.

    The messages of `inherited` replace `task.conversation_history`; warnings refer to them by index, and hard limits do
    not apply to them (TSK-1).

    >>> task = CreateTask(description="Say hello.", conversation_history=[{"role": "user", "content": "Greet me!"}])
    >>> prepared = prepare_task(task, now="2025-10-29T13:30:00Z")
    >>> prepared.report.kept, prepared.report.estimated_tokens_after, prepared.prompt.splitlines()[-3]
    (1, 3, '📊 History metadata: 1 messages')
    """
    messages, policy = task.conversation_history, task.history_policy
    if inherited is not None:
        messages, policy = list(inherited.messages), policy.without_hard_limits()
    history, warnings = validate_conversation_history(messages, policy, now)
    context = task.context(history)
    fitting, dropping = history_that_fits(context)
    context = context.with_history(fitting)
    return PreparedTask(
        context=context,
        prompt=first_prompt(context),
        report=_report(messages, fitting),
        warnings=[*(inherited.warnings if inherited else []), *warnings, *dropping],
    )


def _report(messages: object, history: ConversationHistory | None) -> HandOffReport:
    before = messages if isinstance(messages, list) else []
    after = history.messages if history else []
    return HandOffReport(
        given=len(before),
        kept=len(after),
        truncated=history.truncated_count if history else 0,
        dropped=len(before) - len(after),
        estimated_tokens_before=estimate_tokens(_texts(before)),
        estimated_tokens_after=estimate_tokens(after),
    )


def _texts(messages: list[object]) -> Iterator[dict[str, str]]:
    """Yield the texts of messages, most of which are not validated."""
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            yield {"content": content}
