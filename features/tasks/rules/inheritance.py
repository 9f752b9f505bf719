"""The conversation that a task inherits from its parent session (TSK-1).

It consists of the latest messages of the policy's roles. The transcript is read from its end, some turns at a time,
until there are enough messages. A warning says that others were left out.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from turnkeeper.features.tasks.rules.hand_off import history_warning
from turnkeeper.models.settings.history_policy import HistoryPolicy, HistoryRole
from turnkeeper.models.transcript.attachments import MAX_ATTACHMENTS, MAX_CONTENT_BYTES, Attachment, with_names
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.notes import earlier_try_note, ending_note, joined_prompts
from turnkeeper.models.transcript.task_view import TaskValidationWarning
from turnkeeper.models.transcript.trajectory import UserStep

MAX_PAGES = 4
"""About 4 MB of transcript. From a longer conversation a task inherits only the newest part, with a warning (TSK-2)."""

SPEAKERS: tuple[HistoryRole, ...] = ("user", "assistant")
"""The roles in a session."""


@dataclass(frozen=True)
class Inheritance:
    """The inherited messages, as far as the parent's conversation has been read; empty at first.

    >>> at = datetime.fromisoformat("2026-01-01T00:00:00Z")
    >>> turn = ConversationMessage(
    ...     id="m1", timestamp=at, user_timestamp=at, revision=2, user_message="Hi", agent_message="Hello!")
    >>> inherited = Inheritance(HistoryPolicy(max_messages=1)).with_older([turn], has_older=False)
    >>> [message["content"] for message in inherited.messages], inherited.is_enough, inherited.is_partial
    (['Hello!'], True, True)
    """

    policy: HistoryPolicy
    messages: Sequence[Mapping[str, object]] = ()
    """Messages of the policy's roles, oldest first, at most the policy's `max_read`."""
    seen: int = 0
    """Number of messages of any role, in the turns that were read."""
    has_older: bool = False
    """Whether there are turns that were not read."""
    retries: str | None = None
    """The id of the turn that the oldest turn read so far retries."""

    def with_older(self, turns: Iterable[ConversationMessage], *, has_older: bool) -> "Inheritance":
        """Add the turns right before those read so far; `has_older`: there are earlier ones."""
        turns = list(turns)
        older = messages_in(turns, retried=self.retries, with_notes="user" in self.policy.roles)
        messages = [*(message for message in older if message["role"] in self.policy.roles), *self.messages]
        return replace(
            self,
            messages=messages[-self.policy.max_read :],
            seen=self.seen + len(older),
            has_older=has_older,
            retries=turns[0].retries if turns else self.retries,
        )

    @property
    def is_enough(self) -> bool:
        """Whether there are as many messages as the policy allows, or as exist."""
        return len(self.messages) >= self.policy.max_read or not self.has_older

    @property
    def is_partial(self) -> bool:
        """Whether messages were left out: earlier ones, or those of other roles."""
        return self.has_older or self.seen > len(self.messages)

    @property
    def warnings(self) -> list[TaskValidationWarning]:
        """What was inherited, if messages were left out (TSK-2)."""
        if not self.is_partial:
            return []
        roles = ", ".join([role for role in self.policy.roles if role in SPEAKERS] or self.policy.roles)
        part = f"the latest {len(self.messages):,} messages" if self.messages else "no messages"
        message = f"Of the parent's conversation {part} of {roles} were taken."
        advice = "Choose a history_policy with other max_messages or roles to inherit others."
        too_many = history_warning("too_many_messages", message, suggestion=advice)
        nothing = "No message is left: the task is given no history."
        return [too_many] if self.messages else [too_many, history_warning("all_filtered", nothing, severity="high")]


def messages_in(
    turns: Sequence[ConversationMessage], *, retried: str | None = None, with_notes: bool = True
) -> list[dict[str, object]]:
    """Return the messages in `turns`, oldest first: of each the user's prompt, with steering ones, and the answer.

    In place of a missing answer there is a note (CTX-17). Thinking, tool calls, turns that the vendor refused and those
    whose place a retry took are left out, but for a note of what those had done. `retried`: the id of the turn that the
    next one retries. `with_notes`: notes are about prompts, and take the place of answers where there are none.
    """
    messages = list[dict[str, object]]()
    retried_ids = [*(turn.retries for turn in turns[1:]), retried]
    for turn, retried_id in zip(turns, retried_ids, strict=False):
        if turn.is_error and turn.id == retried_id:
            note = earlier_try_note(turn) if with_notes else None
            messages += [_message("assistant", note, turn.agent_timestamp or turn.timestamp)] if note else []
        elif turn.error_type != "refusal":
            messages += _messages_of(turn, with_notes=with_notes)
    return messages


def _messages_of(turn: ConversationMessage, *, with_notes: bool) -> Iterator[dict[str, object]]:
    attachments, texts = list(turn.attachments), list[str]()
    for step in (step for step in turn.steps if isinstance(step, UserStep)):
        together = [*attachments, *step.attachments]
        fits = len(together) <= MAX_ATTACHMENTS and sum(one.bytes or 0 for one in together) <= MAX_CONTENT_BYTES
        attachments = together if fits else attachments
        texts.append(step.content if fits else with_names(step.content, step.attachments))
    text = joined_prompts(turn.user_message, texts)
    yield _message("user", text, turn.user_timestamp, attachments)
    answer = turn.agent_message
    if answer is None and with_notes:
        answer = ending_note(turn)
    if answer is not None:
        yield _message("assistant", answer, turn.agent_timestamp or turn.timestamp)


def _message(
    role: HistoryRole, content: str, timestamp: datetime, attachments: Sequence[Attachment] = ()
) -> dict[str, object]:
    message: dict[str, object] = {"role": role, "content": content, "timestamp": timestamp.isoformat()}
    return {**message, "attachments": list(attachments)} if attachments else message
