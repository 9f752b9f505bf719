"""Attachments of a history: validated, stored by reference, named where they belong, attached to the prompt: CTX-16."""

from base64 import b64encode
from hashlib import sha256
from typing import Any

import pytest

from turnkeeper.features.tasks.session.task import CreateTask, PreparedTask, prepare_task
from turnkeeper.models.errors import TaskValidationError
from turnkeeper.models.transcript.attachments import MAX_ATTACHMENTS

NOW = "2026-01-01T00:00:00Z"
PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 20_000


def image(content: bytes = PNG, **more: Any) -> dict[str, Any]:
    return {"type": "image", "name": "a.png", "media_type": "image/png", "data": b64encode(content).decode(), **more}


def code(text: str = "print(1)") -> dict[str, Any]:
    return {"type": "code", "name": "a.py", "language": "python", "content": text}


def prepared(*messages: dict[str, Any], **policy: Any) -> PreparedTask:
    history = [{"role": "user", "content": "Look.", "timestamp": NOW, **message} for message in messages]
    task = {"description": "Go.", "conversation_history": history, "history_policy": policy}
    return prepare_task(CreateTask.model_validate(task), now=NOW)


def test_ctx_16_the_history_names_attachments_and_the_first_prompt_has_them() -> None:
    task = prepared({"attachments": [image(), code()]})
    assert "    Look.\n    \n    [Image: a.png, image/png, 20 KB]\n    [Code: a.py, python, 8 bytes]\n" in task.prompt
    assert [(one.type, one.hash) for one in task.attachments] == [
        ("image", sha256(PNG).hexdigest()),
        ("code", sha256(b"print(1)").hexdigest()),
    ]
    assert task.contents == {sha256(PNG).hexdigest(): PNG, sha256(b"print(1)").hexdigest(): b"print(1)"}
    stored = task.context.model_dump_json()
    assert b64encode(PNG).decode()[:100] not in stored
    assert task.context.model_validate_json(stored) == task.context
    assert task.warnings == []


def test_ctx_11_a_message_without_attachments_is_stored_as_before() -> None:
    assert "attachments" not in prepared({}, {"attachments": []}).context.model_dump_json()


def test_ctx_16_a_message_of_attachments_alone_stays() -> None:
    task = prepared({"content": " ", "attachments": [code()]})
    assert task.report.kept == 1
    assert "    [Code: a.py, python, 8 bytes]\n" in task.prompt


def test_ctx_16_what_is_dropped_takes_its_attachments_with_it() -> None:
    task = prepared({"attachments": [code("old")]}, {"attachments": [code("new")]}, max_messages=1)
    assert list(task.contents.values()) == [b"new"]


def test_ctx_16_a_prompt_has_the_latest_attachments_each_once_and_a_bounded_number() -> None:
    messages = [{"attachments": [code(f"print({number})"), code("same")]} for number in range(MAX_ATTACHMENTS + 5)]
    task = prepared(*messages)
    contents = [task.contents[one.hash or ""].decode() for one in task.attachments]
    assert len(contents) == len(set(contents)) == MAX_ATTACHMENTS
    assert contents[-2:] == [f"print({MAX_ATTACHMENTS + 4})", "same"]


def test_ctx_16_an_image_by_url_is_attached_unchanged() -> None:
    task = prepared({"attachments": [{"type": "image", "url": "https://example.org/cat.png"}]})
    assert [one.hash for one in task.attachments] == [None]
    assert task.contents == {}
    assert "[Image: https://example.org/cat.png]" in task.prompt


@pytest.mark.parametrize(
    ("attachments", "field"),
    [
        ("x", "attachments"),
        (0, "attachments"),
        ({}, "attachments"),
        ([1], "attachments[0]"),
        ([{"kind": "code"}], "attachments[0]"),
        ([code(), {"type": "code", "content": 7}], "attachments[1].content"),
        ([{"type": "code", "hash": "0" * 64, "bytes": 5}], "attachments[0].hash"),
        ([image(b"GIF89a")], "attachments[0].data"),
        ([image(data="!")], "attachments[0].data"),
        ([{"type": "code"}], "attachments[0].content"),
        ([code()] * (MAX_ATTACHMENTS + 1), "attachments"),
    ],
)
def test_ctx_10_a_wrong_attachment_is_an_error_that_names_it(attachments: object, field: str) -> None:
    with pytest.raises(TaskValidationError) as error:
        prepared({}, {"attachments": attachments})
    assert error.value.field == f"conversation_history[1].{field}"


def test_ctx_10_an_error_about_all_attachments_of_a_message_names_them_once() -> None:
    with pytest.raises(TaskValidationError, match=r"^\w+\[0\]\.attachments: may have at most 20 items$"):
        prepared({"attachments": [code()] * (MAX_ATTACHMENTS + 1)})


def test_ctx_16_unnamed_attachments_are_numbered_and_have_their_true_size() -> None:
    first, second = ({"type": "code", "language": "python", "content": f"print({text!r})"} for text in ("one", "two"))
    task = prepared({"attachments": [first]}, {"attachments": [second, first]})
    assert "[Code: code 1, python, 12 bytes]\n" in task.prompt
    assert "[Code: code 2, python, 12 bytes]\n    [Code: code 1, python, 12 bytes]\n" in task.prompt
    assert [one.name for one in task.attachments] == ["code 2", "code 1"]
