"""Small turns, steps and texts to keep."""

from datetime import UTC, datetime
from hashlib import sha256

from turnkeeper.models.transcript.conversation import (
    ConversationMessage,
    ModelStep,
    Step,
    ToolCall,
    ToolResult,
    UserStep,
)
from turnkeeper.stores.archive import ArchivedTurn

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def turn(number: int, *, text: str = "hello", **fields: object) -> ConversationMessage:
    return ConversationMessage.model_validate(
        {
            "id": f"m{number}",
            "timestamp": NOW,
            "user_message": text,
            "user_timestamp": NOW,
            "agent_message": "ok",
            "revision": number,
            "status": "completed",
            **fields,
        }
    )


def archived(number: int, **fields: object) -> ArchivedTurn:
    return ArchivedTurn(number=number, turn=turn(number, **fields))  # type: ignore[arg-type]


def turns(first: int, last: int) -> list[ArchivedTurn]:
    return [archived(number) for number in range(first, last + 1)]


def steps(first: int, last: int) -> list[Step]:
    """Model steps with a tool call each, every third one a steered prompt."""
    return [_user_step(number) if number % 3 == 2 else _model_step(number) for number in range(first, last + 1)]


def hash_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _model_step(number: int) -> ModelStep:
    call = ToolCall(id=f"1.{number}.0", name="read", args={"n": number}, result=ToolResult(outcome=f"read {number}"))
    return ModelStep(kind="model", number=number, text=f"step {number}", tool_calls=[call], timestamp=NOW)


def _user_step(number: int) -> UserStep:
    return UserStep(kind="user", message_id=f"p{number}", content="go on", timestamp=NOW)
