"""The tests of the original design: CTX-9 to CTX-11, TSK-3. Decision 38 says what that is and where ours differ."""

from datetime import datetime
from typing import Any

import pytest

from turnkeeper.features.tasks.rules.enrichment import format_task_enrichment_prompt
from turnkeeper.features.tasks.rules.hand_off import validate_conversation_history
from turnkeeper.models.errors import TaskValidationError

NOW = "2025-10-29T13:30:00"


def truncate_conversation_history(messages: list[dict[str, Any]]) -> dict[str, Any]:
    history = validate_conversation_history(messages, "keep_user", NOW).history
    assert history is not None
    return history.model_dump()


def test_ctx_9_user_message_under_limit_preserved() -> None:
    content = "x" * 200
    result = truncate_conversation_history([{"role": "user", "content": content, "timestamp": "2025-10-29T10:00:00"}])
    assert result["truncated_count"] == 0
    assert result["messages"][0]["content"] == content
    assert result["messages"][0]["truncated"] is False
    assert result["messages"][0]["original_length"] == 200


def test_ctx_9_assistant_message_over_limit_truncated() -> None:
    messages = [{"role": "assistant", "content": "x" * 500, "timestamp": "2025-10-29T10:00:00"}]
    result = truncate_conversation_history(messages)
    assert result["truncated_count"] == 1
    assert len(result["messages"][0]["content"]) <= 150 + len(" ... (truncated)")
    assert result["messages"][0]["truncated"] is True


def test_ctx_10_validation_missing_role() -> None:
    with pytest.raises(TaskValidationError) as exc:
        validate_conversation_history([{"content": "no role"}], "keep_user", NOW)
    assert exc.value.error_type == "missing_field"
    assert "missing required field 'role'" in str(exc.value)
    assert exc.value.field == "conversation_history[0]"
    assert exc.value.value == "an object with the keys 'content'"


def test_ctx_10_validation_over_50_messages() -> None:
    messages = [{"role": "user", "content": f"msg {i}"} for i in range(60)]
    history, warnings = validate_conversation_history(messages, "keep_user", NOW)
    assert history is not None
    assert [message.content for message in history.messages] == [f"msg {i}" for i in range(10, 60)]
    (warning,) = [w for w in warnings if w.code == "too_many_messages"]
    assert "truncating to most recent 50" in warning.message
    assert warning.severity == "medium"


def test_ctx_10_auto_generate_timestamp() -> None:
    result = truncate_conversation_history([{"role": "user", "content": "no timestamp"}])
    assert datetime.fromisoformat(result["messages"][0]["timestamp"])


def test_tsk_3_format_conversation_history_in_prompt() -> None:
    messages = [
        {
            "role": "user",
            "content": "Help me fix a bug",
            "timestamp": "2025-10-29T10:00:00",
            "truncated": False,
            "original_length": 18,
        },
        {
            "role": "assistant",
            "content": "I will help you debug the issue",
            "timestamp": "2025-10-29T10:00:15",
            "truncated": False,
            "original_length": 32,
        },
    ]
    history = {"messages": messages, "total_messages": 2, "truncated_count": 0}
    task_registry = {"task_context": {"conversation_history": history}}
    prompt = format_task_enrichment_prompt(task_registry)
    assert "💬 CONVERSATION HISTORY" in prompt
    assert "[1] 👤 User" in prompt
    assert "[2] 🤖" in prompt
    assert "Help me fix a bug" in prompt
    assert "I will help you debug the issue" in prompt
    assert "2 messages" in prompt


@pytest.mark.parametrize(
    ("history", "error_type"),
    [
        ([{"role": "user"}], "missing_field"),
        ([{"role": "system", "content": "Invalid role"}], "invalid_value"),
        (["no dict"], "type_error"),
        ("no list", "type_error"),
    ],
)
def test_ctx_10_the_edge_cases_that_are_errors(history: Any, error_type: str) -> None:
    with pytest.raises(TaskValidationError) as exc:
        validate_conversation_history(history, "keep_user", NOW)
    assert exc.value.error_type == error_type


def test_ctx_10_empty_conversation_history_is_silently_ignored() -> None:
    assert validate_conversation_history([], "keep_user", NOW) == (None, [])
