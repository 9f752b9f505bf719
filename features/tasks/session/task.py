"""The parameters of a task, over HTTP and of the tools, and its preparation before anything starts (TSK-1 to TSK-5)."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StrictBool, ValidationError, WithJsonSchema, model_validator

from turnkeeper.features.tasks.rules.enrichment import BARE_PROMPT_CHARS, LongTexts, first_prompt, history_that_fits
from turnkeeper.features.tasks.rules.hand_off import (
    HISTORY_FIELD,
    PROMPT_TOKENS,
    ExchangeRelevance,
    Inheritance,
    Rank,
    hand_off_history,
    history_warning,
)
from turnkeeper.features.tasks.rules.task_context import ConversationHistory, Priority, TaskContext
from turnkeeper.features.tasks.rules.text_room import attachments_of, contents_of, missing_hashes
from turnkeeper.features.tasks.session.task_state import ProgressReport, TaskInput, TextsToCondense
from turnkeeper.models.errors import RejectedError, TaskValidationError, preview
from turnkeeper.models.ids import AGENT_PATTERN, ID_PATTERN, checked_model
from turnkeeper.models.session.messages import ModelName, Title
from turnkeeper.models.session.prompts import rejection_for
from turnkeeper.models.session.tools import ToolPolicy
from turnkeeper.models.settings.history_policy import KEEP_USER, HandOffPresets, HistoryPolicy, PolicyChoice
from turnkeeper.models.texts import counted, estimate_tokens
from turnkeeper.models.transcript.attachments import MAX_ATTACHMENTS, Attachment
from turnkeeper.models.transcript.conversation import HandOffReport, TaskValidationWarning
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
                            "attachments": {
                                "type": ["array", "null"],
                                "maxItems": MAX_ATTACHMENTS,
                                "description": "As those of a prompt, with their contents or a url.",
                                "items": {
                                    "type": "object",
                                    "properties": {"type": {"enum": ["code", "image", "file"]}},
                                    "required": ["type"],
                                },
                            },
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

    def policy(self, presets: HandOffPresets) -> HistoryPolicy:
        """Return the policy for the history under the operator's presets."""
        return presets.resolve(self.history_policy)

    def context(self, history: ConversationHistory | None) -> TaskContext:
        """Return what the agent is told, with `history`; a priority only where one was given."""
        fields = self.model_dump(include=TaskContext.model_fields.keys() - {"conversation_history"})
        priority = self.priority if "priority" in self.model_fields_set else None
        return TaskContext.model_validate({**fields, "priority": priority}).with_history(history)


class CreateTask(TaskRequest):
    """What a task is created with from outside. `parent`: the session whose conversation it may inherit."""

    agent: str | None = Field(None, pattern=AGENT_PATTERN)
    """What the task's session is, such as `weather` or `weather@2`."""
    tool_policy: ToolPolicy | None = None
    unattended: StrictBool = False
    """Whether nobody is there to approve tool calls: tools that the policy does not mention are denied,
    unless they are read-only (AGT-8)."""
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


class PreparedTask(Frozen):
    """A task that is ready to start: the agent's context, the first `prompt`, and warnings about corrections.

    It has texts and contents that are still to be stored, so it never leaves its process: `input` is what does.
    """

    context: TaskContext
    prompt: str
    report: HandOffReport
    warnings: list[TaskValidationWarning]
    long_texts: LongTexts | None = None
    """What the model is to condense before the task's first model call."""
    relevance: list[ExchangeRelevance] = []
    """Of each exchange of the history, if they were ranked."""
    attachments: list[Attachment] = []
    """Of the first prompt: those of the history, by reference (CTX-16)."""
    contents: dict[str, bytes] = {}
    """What they refer to, to be stored before the task starts."""

    @property
    def notes(self) -> list[str]:
        """What was changed, in short: the warnings about the whole history, and how many texts were cut."""
        cut = self.report.truncated - self.report.to_condense
        texts = f"{counted(cut, 'long text')} {'was' if cut == 1 else 'were'}"
        whole = [warning.message for warning in self.warnings if warning.field == HISTORY_FIELD]
        return [*whole, f"{texts} cut."] if cut else whole

    def input(self, *, to_condense: TextsToCondense | None) -> TaskInput:
        """Return what the task's session begins with, once texts and contents are stored."""
        return TaskInput(
            context=self.context, report=self.report, attachments=self.attachments, to_condense=to_condense
        )

    @property
    def missing_hashes(self) -> set[str]:
        """The contents to copy from the session whose conversation is inherited."""
        return missing_hashes(self.attachments, self.contents)

    def with_contents(self, contents: Mapping[str, bytes]) -> "PreparedTask":
        """Return the task with more contents; attachments whose contents are still missing are only named."""
        every = {**self.contents, **contents}
        lost = missing_hashes(self.attachments, every)
        return self.model_copy(
            update={"contents": every, "attachments": [one for one in self.attachments if one.hash not in lost]}
        )

    def without_attachments(self, reason: str) -> "PreparedTask":
        """Return the task with its attachments only named, and a warning with the `reason`, a sentence."""
        warning = history_warning("not_attached", f"The attachments are only named in the history: {reason}")
        return self.model_copy(update={"attachments": [], "contents": {}, "warnings": [*self.warnings, warning]})

    def without_condensing(self, reason: str) -> "PreparedTask":
        """Return the task with its texts cut, and a warning with the `reason`, a sentence."""
        warning = history_warning("not_condensed", f"The long texts are cut, not condensed: {reason}")
        report = self.report.model_copy(update={"to_condense": 0})
        return self.model_copy(update={"long_texts": None, "report": report, "warnings": [*self.warnings, warning]})


def policy_of(task: TaskRequest, presets: HandOffPresets, *, inherits: bool) -> HistoryPolicy:
    """Return the policy of a task under the operator's presets, without hard limits if it `inherits` (TSK-1)."""
    policy = task.policy(presets)
    return policy.without_hard_limits() if inherits else policy


def prepare_task(
    task: TaskRequest,
    *,
    now: datetime | str,
    inherited: Inheritance | None = None,
    presets: HandOffPresets | None = None,
    rank: Rank | None = None,
) -> PreparedTask:
    """Validate and cut the history, and build the first prompt; nothing is started. Raises `TaskValidationError`.

    The messages of `inherited` replace `task.conversation_history`; warnings refer to them by index, and hard limits do
    not apply to them (TSK-1). `rank` is needed by a policy with `relevant_to`, `presets` by an operator's settings.

    >>> task = CreateTask(description="Say hello.", conversation_history=[{"role": "user", "content": "Greet me!"}])
    >>> prepared = prepare_task(task, now="2025-10-29T13:30:00Z")
    >>> prepared.report.kept, prepared.report.estimated_tokens_after, prepared.prompt.splitlines()[-3]
    (1, 3, '📊 History metadata: 1 messages')
    """
    policy = policy_of(task, presets or HandOffPresets(), inherits=inherited is not None)
    messages = task.conversation_history if inherited is None else list(inherited.messages)
    hand_off = hand_off_history(
        messages,
        policy,
        now,
        description=task.description,
        rank=rank,
        max_tokens=PROMPT_TOKENS - estimate_tokens([{"content": first_prompt(task.context(None))}]),
        has_stored_contents=inherited is not None,
    )
    context = task.context(hand_off.history)
    fitting, dropping = history_that_fits(context)
    context = context.with_history(fitting)
    attachments = attachments_of(fitting)
    long_texts = LongTexts.of(context, hand_off, policy)
    return PreparedTask(
        context=context,
        prompt=first_prompt(context),
        report=_report(messages, fitting, to_condense=len(long_texts.texts) if long_texts else 0),
        warnings=[*(inherited.warnings if inherited else []), *hand_off.warnings, *dropping],
        long_texts=long_texts,
        relevance=list(hand_off.relevance),
        attachments=attachments,
        contents=contents_of(attachments, hand_off.contents),
    )


def _report(messages: object, history: ConversationHistory | None, *, to_condense: int) -> HandOffReport:
    before = messages if isinstance(messages, list) else []
    after = history.messages if history else []
    return HandOffReport(
        given=len(before),
        kept=len(after),
        truncated=history.truncated_count if history else 0,
        dropped=len(before) - len(after),
        estimated_tokens_before=estimate_tokens(_texts(before)),
        estimated_tokens_after=estimate_tokens(after),
        left_out=history.left_out if history else 0,
        to_condense=to_condense,
    )


def _texts(messages: list[object]) -> Iterator[dict[str, str]]:
    """Yield the texts of messages, most of which are not validated."""
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            yield {"content": content}


class RunTask(TaskRequest):
    """Arguments of `run_task`. With `background`, the caller does not wait for the answer."""

    history: Literal["latest", "relevant", "none"] | None = None
    """What the task reads of the caller's conversation: the latest messages, those that matter to it, or nothing."""
    background: bool = False
    agent: str | None = None
    """The agent that does it, one of those that the session may hand over to; `None`: one like this session's."""

    @model_validator(mode="after")
    def _check_history(self) -> Self:
        if self.history is not None and self.conversation_history is not None:
            raise ValueError("give history or conversation_history, not both")
        return self

    @property
    def inherits_history(self) -> bool:
        return self.history in ("latest", "relevant") or super().inherits_history

    def policy(self, presets: HandOffPresets) -> HistoryPolicy:
        policy = super().policy(presets)
        return policy.model_copy(update={"relevant_to": True}) if self.history == "relevant" else policy


def read_run_task(args: object, *, handoffs: Sequence[str] | None = None) -> RunTask:
    """Validate the arguments of `run_task` in a session that may hand over to these agents; `None`: to any.

    Raises `RejectedError`, which names the field.
    """
    try:
        request = RunTask.model_validate(args)
    except ValidationError as error:
        raise rejection_for(error) from None
    if handoffs is not None and request.agent not in (handoffs or (None,)):
        allowed = f"must be {' or '.join(handoffs)}" if handoffs else "this session has none to hand over to"
        raise RejectedError("invalid", f"agent: {allowed}.", field="agent")
    return request


def read_progress(args: object) -> ProgressReport:
    """Validate the arguments of `report_progress`. Raises `RejectedError`, which names the field."""
    try:
        report = ProgressReport.model_validate(args)
    except ValidationError as error:
        raise rejection_for(error) from None
    if not report.model_fields_set:
        raise RejectedError("invalid", "Give at least one of message, percent and findings.")
    return report
