"""The conversation of a session as a task inherits it (TSK-1)."""

from collections.abc import Iterable, Iterator
from datetime import datetime

from models.context.history_policy import HistoryRole
from models.conversation import ConversationMessage
from models.trajectory import UserStep


def spoken_messages(turns: Iterable[ConversationMessage]) -> list[dict[str, str]]:
    """Return what was said in `turns`, oldest first: the user's words, also those steered in, and the agent's answers.

    What the agent thought and did on the way to an answer is not handed over.
    """
    return [message for turn in turns for message in _messages_of(turn)]


def _messages_of(turn: ConversationMessage) -> Iterator[dict[str, str]]:
    yield _message("user", turn.user_message, turn.user_timestamp)
    for step in turn.steps:
        if isinstance(step, UserStep):
            yield _message("user", step.content, step.timestamp)
    if turn.agent_message is not None:
        yield _message("assistant", turn.agent_message, turn.agent_timestamp or turn.timestamp)


def _message(role: HistoryRole, content: str, timestamp: datetime) -> dict[str, str]:
    return {"role": role, "content": content, "timestamp": timestamp.isoformat()}
