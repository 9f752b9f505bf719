"""Attachments of prompts, without Temporal: CTX-16, SES-5, SES-19."""

from base64 import b64encode
from typing import Any

import pytest

from tests.models.builders import NOW, answer_turn, at, complete_turn, session
from turnkeeper.models.context.summary import summary_request
from turnkeeper.models.errors import RejectedError
from turnkeeper.models.replay_text.grammar import parse_replay, render_replay
from turnkeeper.models.replay_text.turns import replay_events
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.session.prompts import Prompt, PromptSignal, read_prompt, text_bytes
from turnkeeper.models.session.session import Session
from turnkeeper.models.session.views import queue_of
from turnkeeper.models.transcript.attachments import (
    IMAGE_CHARS,
    Attachment,
    CodeAttachment,
    FileAttachment,
    ImageAttachment,
    hashes_of,
    json_bytes,
    refer_attachments,
    resolve_attachments,
)
from turnkeeper.models.transcript.conversation import ToolResult, UserStep
from turnkeeper.models.transcript.model_call import ModelMessage

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20
CAT = {"type": "image", "name": "cat.png", "media_type": "image/png", "data": b64encode(PNG).decode()}
STORED_CAT = {"type": "image", "name": "cat.png", "media_type": "image/png", "hash": "a" * 64, "bytes": 12_000}
CODE = {"type": "code", "name": "add.py", "language": "python", "content": "print(1 + 1)"}


def prompted(target: Session, text: str, *attachments: dict[str, Any], id: str = "p1", mode: str = "enqueue") -> None:
    raw = {"id": id, "text": text, "attachments": list(attachments), "mode": mode}
    target.receive(raw, extra_arguments=0, new_id="new", now=NOW)


def rejection_of(*attachments: object, text: str = "look") -> RejectedError:
    raw = {"text": text, "attachments": list(attachments)}
    with pytest.raises(RejectedError) as rejection:
        read_prompt(raw, extra_arguments=0, new_id="p1", now=NOW)
    return rejection.value


@pytest.mark.parametrize(
    ("changed", "field", "reason"),
    [
        ({**CAT, "data": "no base64!"}, "attachments[1].data", "must be base64"),
        ({**CAT, "data": b64encode(b"GIF89a").decode()}, "attachments[1].data", "is not a PNG image"),
        ({**CAT, "data": ""}, "attachments[1].data", "give exactly one of data, hash or url"),
        ({**CAT, "url": "https://example.org/cat.png"}, "attachments[1].data", "give exactly one of"),
        ({"type": "image", "url": "file:///etc/passwd"}, "attachments[1].url", "http or https address"),
        ({"type": "image", "url": "https://a b"}, "attachments[1].url", "http or https address"),
        *(
            ({"type": "image", "url": f"http://{host}/latest"}, "attachments[1].url", "a public address")
            for host in (
                *("169.254.169.254", "127.0.0.1:8080", "10.1.2.3", "[::1]", "[::ffff:10.0.0.1]", "[fe80::1]", "[::x]"),
                *("[64:ff9b::a00:1]", "[2002:a00:1::]", "[::10.0.0.1]", "example.com:99999", "example.com:0"),
                *(
                    "localhost",
                    "LOCALHOST.",
                    "a.localhost",
                    "metadata.google.internal",
                    "2130706433",
                    "0x7f.1",
                    "me@10.0.0.1",
                ),
                *("router", "127.0.0.%31", "\uff11\uff10.0.0.1", r"10.0.0.1\\@example.org", "\uff4cocalhost\u3002"),
            )
        ),
        ({"type": "image", "data": CAT["data"]}, "attachments[1].media_type", "is required"),
        ({**CAT, "media_type": "image/svg+xml"}, "attachments[1].media_type", '"image/png"'),
        ({**CAT, "name": "a\nb"}, "attachments[1].name", "none of them a control character"),
        ({**CAT, "name": "x" * 201}, "attachments[1].name", "1 to 200 characters"),
        ({**STORED_CAT, "hash": "../etc"}, "attachments[1].hash", "SHA-256"),
        ({**STORED_CAT, "bytes": -1}, "attachments[1].bytes", "must be 1 to"),
        ({**CODE, "language": "py\n```"}, "attachments[1].language", "40 at most"),
        ({**CODE, "content": "a\0b"}, "attachments[1].content", "NUL"),
        ({"type": "file", "name": "a", "media_type": "pdf", "data": "YQ=="}, "attachments[1].media_type", "text/csv"),
        ({"type": "file", "media_type": "text/csv", "data": "YQ=="}, "attachments[1].name", "is required"),
        ({"type": "video"}, "attachments[1]", "type must be"),
        ("cat.png", "attachments[1]", "an object"),
    ],
)
def test_ctx_16_an_invalid_attachment_is_rejected_with_a_reason(changed: object, field: str, reason: str) -> None:
    rejection = rejection_of(CODE, changed)
    assert (rejection.reason, rejection.field) == ("invalid", field)
    assert reason in rejection.message


@pytest.mark.parametrize("host", ["example.org", "example.org.:8443", "8.8.8.8", "[2606:4700::1111]", "intern.example"])
def test_ctx_16_a_public_image_url_is_accepted(host: str) -> None:
    raw = {"text": "look", "attachments": [{"type": "image", "url": f"https://{host}/cat.png"}]}
    assert read_prompt(raw, extra_arguments=0, new_id="p1", now=NOW).attachments


def test_ctx_16_a_prompt_has_a_limited_number_and_size_of_attachments() -> None:
    assert rejection_of(*[CODE] * 21).field == "attachments"
    stored = {**STORED_CAT, "bytes": 5_000_000}
    assert "10,000,000 bytes together" in rejection_of(stored, stored).message


def test_ctx_16_a_signal_with_more_than_8_kb_is_rejected_with_a_hint_to_the_gateway() -> None:
    rejection = rejection_of({**CODE, "content": "x" * 9_000})
    assert rejection.field == "attachments"
    assert "through the gateway" in rejection.message


def test_ses_5_a_prompt_with_attachments_may_be_blank() -> None:
    chat = session()
    prompted(chat, " ", STORED_CAT)
    turn = chat.begin_turn(now=at(1))
    assert turn.attachments == [ImageAttachment.model_validate(STORED_CAT)]
    assert chat.config.title == "cat.png"
    assert rejection_of(text=" ").reason == "blank"


def test_ses_6_attachments_count_in_the_queue_and_are_carried() -> None:
    chat = session()
    prompted(chat, "look", STORED_CAT, CODE)
    size = len('"look"') + json_bytes([ImageAttachment.model_validate(STORED_CAT), CodeAttachment.model_validate(CODE)])
    assert chat.queue.text_bytes == size
    waiting = queue_of(chat).waiting[0]
    assert [one.name for one in waiting.attachments] == ["cat.png", "add.py"]
    start = SessionInput.model_validate_json(chat.carry().model_dump_json())
    resumed = Session("s1", start, now=NOW)
    assert resumed.queue.waiting == chat.queue.waiting
    assert resumed.queue.text_bytes == size


def test_ses_7_a_steering_prompt_brings_its_attachments() -> None:
    chat = session()
    prompted(chat, "begin")
    chat.begin_turn(now=at(1))
    prompted(chat, "this one", STORED_CAT, id="p2", mode="steer")
    chat.steer_turn(now=at(2))
    step = chat.turn_slot.running().message.steps[0]
    assert isinstance(step, UserStep)
    assert (
        step.attachments == chat.context.view.messages[-1].attachments == [ImageAttachment.model_validate(STORED_CAT)]
    )


def test_ctx_16_the_model_sees_the_attachments_of_a_turn_in_the_next_run_too() -> None:
    chat = session()
    prompted(chat, "look", STORED_CAT, CODE)
    answer_turn(chat)
    message = chat.context.view.messages[0]
    assert [one.name for one in message.attachments] == ["cat.png", "add.py"]
    assert chat.context.view.entries[0].chars == len("look") + IMAGE_CHARS + len("print(1 + 1)")
    start = SessionInput.model_validate_json(chat.carry().model_dump_json())
    resumed = Session("s1", start, now=NOW)
    assert resumed.context.view.messages == chat.context.view.messages
    assert resumed.context.view.digest(resumed.head) == chat.context.view.digest(chat.head)


def test_ctx_16_an_entry_of_an_archived_turn_keeps_its_attachments() -> None:
    chat = session()
    prompted(chat, "look", STORED_CAT)
    answer_turn(chat)
    before = chat.context.view.messages
    chat.context.view.detach(chat.transcript.turns[0], inline_bytes=512)
    assert chat.context.view.messages == before
    assert chat.context.view.entries[0].ref.messages[0].attachments == before[0].attachments


def test_ctx_7_an_attachment_that_cannot_be_evicted_is_named_in_the_overflow_error() -> None:
    chat = session(history={"preserve_first_n": 1})
    stored_code = {"type": "code", "name": "big.py", "hash": "b" * 64, "bytes": 400_000}
    prompted(chat, "look", stored_code, CODE)
    answer_turn(chat)
    prompted(chat, "and now?", id="p2")
    chat.begin_turn(now=at(5))
    chat.context.learn_limit(chat.config.history, model="offline:", head=chat.head)
    first = chat.context.view.messages[0]
    assert first.content == "look\n\n[Code: big.py, 400 KB] (not shown: the conversation is too long for the model)"
    assert [one.name for one in first.attachments] == ["add.py"]


def test_ctx_7_a_prompt_with_large_attachments_does_not_evict_the_conversation() -> None:
    chat = session()
    prompted(chat, "my name is Ada")
    answer_turn(chat)
    large = [{"type": "code", "name": f"{n}.py", "hash": str(n) * 64, "bytes": 200_000} for n in range(7)]
    prompted(chat, "look", *large, CODE, id="p2")
    chat.begin_turn(now=at(5))
    chat.context.learn_limit(chat.config.history, model="offline:", head=chat.head)
    assert [one.name for one in chat.context.view.messages[-1].attachments] == ["6.py", "add.py"]
    chat.context.learn_limit(chat.config.history, model="offline:", head=chat.head)
    chat.context.evict(chat.config.history, model="offline:", head=chat.head, max_bytes=1_000_000)
    messages = chat.context.view.messages
    assert messages[0].content == "my name is Ada"
    assert messages[-1].content.startswith("look\n\n[Code: 0.py, 200 KB] (not shown: the conversation is too long")
    assert [one.name for one in messages[-1].attachments] == ["add.py"]
    resumed = Session("s1", SessionInput.model_validate_json(chat.carry().model_dump_json()), now=NOW)
    assert resumed.context.view.messages == messages


def test_ctx_7_large_attachments_meet_a_learned_limit_without_evicting_messages() -> None:
    chat = session()
    for number in range(3):
        prompted(chat, f"{number}" * 4_000, id=f"p{number}")
        answer_turn(chat)
    prompted(chat, "begin", id="p8")
    chat.begin_turn(now=at(5))
    chat.context.learn_limit(chat.config.history, model="offline:", head=chat.head)
    complete_turn(chat, "ok", now=at(6))
    seen = chat.context.view.message_count
    prompted(chat, "look", {"type": "code", "name": "a.py", "hash": "a" * 64, "bytes": 200_000}, id="p9")
    chat.begin_turn(now=at(7))
    chat.context.evict(chat.config.history, model="offline:", head=chat.head, max_bytes=1_000_000)
    assert chat.context.view.message_count >= seen - 2
    assert chat.context.view.messages[-1].attachments == []


def test_ctx_12_a_replay_text_names_attachments_and_parses_back() -> None:
    chat = session()
    prompted(chat, "look", STORED_CAT)
    answer_turn(chat, "a cat")
    events = replay_events(chat.transcript.turns[0])
    text = render_replay(events, [], max_history=0)
    assert "$user: look\n\n[Image: cat.png, image/png, 12 KB]" in text
    assert parse_replay(text) == (events, None)


def test_ctx_5_a_summary_request_names_attachments() -> None:
    image = ImageAttachment.model_validate(STORED_CAT)
    request = summary_request([ModelMessage(role="user", content="look", attachments=[image])])
    assert "[Image: cat.png, image/png, 12 KB]" in request.messages[0].content
    assert request.messages[0].attachments == []


def test_ses_19_without_attachments_the_json_is_unchanged() -> None:
    chat = session()
    prompted(chat, "look")
    answer_turn(chat)
    step = UserStep(kind="user", message_id="p2", content="look", timestamp=NOW)
    prompt = Prompt(id="p1", text="look", received_at=NOW)
    assert ModelMessage(role="user", content="look").model_dump_json() == '{"role":"user","content":"look"}'
    values = (chat.transcript.turns[0], step, ToolResult(outcome="ok"), prompt, PromptSignal(text="look"))
    assert [value for value in values if "attachments" in value.model_dump_json()] == []
    assert text_bytes(prompt) == len('"look"')


# ---- references


def test_ses_15_the_largest_uploads_are_sent_by_reference_until_the_rest_fits() -> None:
    big, small = b"%PDF-" + b"x" * 20_000, "x" * 7_000
    attachments: list[Attachment] = [
        FileAttachment(type="file", name="a.pdf", media_type="application/pdf", data=b64encode(big).decode()),
        CodeAttachment(type="code", content=small),
    ]
    referred, contents = refer_attachments(attachments)
    assert (referred[0].bytes, referred[1]) == (len(big), attachments[1])
    assert list(contents.values()) == [big]
    assert hashes_of(referred) == set(contents)
    assert json_bytes(referred) <= 8_192
    assert refer_attachments(referred) == (referred, {})
    text, whole = resolve_attachments("look", referred, contents)
    assert (text, [one.model_copy(update={"hash": None, "bytes": None}) for one in whole]) == ("look", attachments)


@pytest.mark.parametrize(("content", "is_shown"), [(b"print(1)", True), (b"\xff\xfe", False), (b"a\0b", False)])
def test_ctx_16_a_binary_upload_is_not_shown_as_code(content: bytes, is_shown: bool) -> None:
    code = CodeAttachment(type="code", name="a.py", hash="a" * 64, bytes=len(content))
    text, attachments = resolve_attachments("look", [code], {"a" * 64: content})
    assert bool(attachments) is is_shown
    assert ("(not shown: it is not text)" in text) is not is_shown
