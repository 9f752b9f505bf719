"""The conversation of a session as a task inherits it (TSK-1).

Of a conversation of any length the messages of the policy's roles are taken, the latest of them. It is read from its
end, some turns at a time, for as long as messages are wanted. That others were left out is told in a warning.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from turnkeeper.models.tasks.hand_off import TaskValidationWarning, history_warning
from turnkeeper.models.tasks.history_policy import HistoryPolicy, HistoryRole
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.trajectory import UserStep

SPEAKERS: tuple[HistoryRole, ...] = ("user", "assistant")
"""Who speaks in a session."""


@dataclass(frozen=True)
class Inheritance:
    """What a task takes of its parent's conversation, as far as that has been read; nothing at first.

    >>> at = datetime.fromisoformat("2026-01-01T00:00:00Z")
    >>> turn = ConversationMessage(
    ...     id="m1", timestamp=at, user_timestamp=at, revision=2, user_message="Hi", agent_message="Hello!")
    >>> taken = Inheritance(HistoryPolicy(max_messages=1)).with_older([turn], has_older=False)
    >>> [message["content"] for message in taken.messages], taken.is_enough, taken.has_left_out
    (['Hello!'], True, True)
    """

    policy: HistoryPolicy
    messages: Sequence[Mapping[str, str]] = ()
    """Of the policy's roles, oldest first, `max_messages` at most."""
    seen: int = 0
    """Of any role, in the turns that were read."""
    has_older: bool = False
    """There are turns that were not read."""

    def with_older(self, turns: Iterable[ConversationMessage], *, has_older: bool) -> "Inheritance":
        """Take from the turns right before those read so far; `has_older`: others come before them."""
        spoken = spoken_messages(turns)
        found = [*(message for message in spoken if message["role"] in self.policy.roles), *self.messages]
        return replace(
            self,
            messages=found[-self.policy.max_messages :],
            seen=self.seen + len(spoken),
            has_older=has_older,
        )

    @property
    def is_enough(self) -> bool:
        """There are as many messages as the policy wants, or as there are."""
        return len(self.messages) >= self.policy.max_messages or not self.has_older

    @property
    def has_left_out(self) -> bool:
        """Something was said that is not taken: earlier, or by others."""
        return self.has_older or self.seen > len(self.messages)

    @property
    def warnings(self) -> list[TaskValidationWarning]:
        """What was taken, where something was left out (TSK-2)."""
        if not self.has_left_out:
            return []
        roles = ", ".join([role for role in self.policy.roles if role in SPEAKERS] or self.policy.roles)
        taken = f"the latest {len(self.messages):,} messages" if self.messages else "no messages"
        message = f"Of the parent's conversation {taken} of {roles} were taken."
        advice = "Choose a history_policy with other max_messages or roles to inherit others."
        too_many = history_warning("too_many_messages", message, suggestion=advice)
        nothing = "No message is left: the task is given no history."
        return [too_many] if self.messages else [too_many, history_warning("all_filtered", nothing, severity="high")]


def spoken_messages(turns: Iterable[ConversationMessage]) -> list[dict[str, str]]:
    """Return what was said in `turns`, oldest first: the user's words, also those steered in, and the agent's answers.

    What the agent thought and did on the way to an answer is not handed over, and no turn that the vendor refused.
    """
    return [message for turn in turns if turn.error_type != "refusal" for message in _messages_of(turn)]


def _messages_of(turn: ConversationMessage) -> Iterator[dict[str, str]]:
    yield _message("user", turn.user_message, turn.user_timestamp)
    for step in turn.steps:
        if isinstance(step, UserStep):
            yield _message("user", step.content, step.timestamp)
    if turn.agent_message is not None:
        yield _message("assistant", turn.agent_message, turn.agent_timestamp or turn.timestamp)


def _message(role: HistoryRole, content: str, timestamp: datetime) -> dict[str, str]:
    return {"role": role, "content": content, "timestamp": timestamp.isoformat()}
