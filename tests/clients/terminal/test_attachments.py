"""Files in the terminal: CTX-16, API-6."""

from pathlib import Path

import pytest

from tests.clients.terminal.conftest import Chat, run_chat
from tests.harness import Environment
from turnkeeper.clients.python.attachments import make_attachment, read_attachment
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.models.transcript.attachments import MAX_ATTACHMENT_BYTES, CodeAttachment, FileAttachment

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels"


async def test_ctx_16_attach_sends_a_file_with_the_prompt(url: str, env: Environment, tmp_path: Path) -> None:
    (tmp_path / "add.py").write_text("print(1 + 1)")
    ended = await run_chat("what is it?", "--attach", "add.py", "--url", url, cwd=tmp_path)
    assert (ended.code, ended.out) == (0, "echo: what is it?\n")
    (code,) = env.vendor.turn_requests[0].messages[-1].attachments
    assert code == CodeAttachment(type="code", name="add.py", language="python", content="print(1 + 1)")
    missing = await run_chat("and this?", "--attach", "nothing.png", "--url", url, cwd=tmp_path)
    assert (missing.code, missing.err) == (1, "Not attached: nothing.png: No such file or directory\n")


async def test_ctx_16_slash_attach_sends_a_file_with_the_next_prompt(
    chat: Chat, env: Environment, tmp_path: Path
) -> None:
    (tmp_path / "cat.png").write_bytes(PNG)
    async with chat() as terminal:
        terminal.type("/attach nothing.png")
        await terminal.until("Not attached: nothing.png")
        terminal.type("\x15/attach cat.png")
        await terminal.until("[Image: cat.png, image/png] will be sent with the next prompt")
        terminal.type("look")
        await terminal.until("turn 1 ·")
        assert "[Image: cat.png, image/png]" in terminal.text.split("› look", 1)[1]
    assert [one.type for one in env.vendor.turn_requests[0].messages[-1].attachments] == ["image"]


async def test_ctx_16_the_python_client_uploads_and_downloads_an_attachment(
    gateway: GatewayClient, env: Environment
) -> None:
    session = (await gateway.start()).workflow_id
    uploaded = await gateway.upload(session, b"1,2\n", media_type="text/csv", name="a.csv")
    assert uploaded == FileAttachment(
        type="file", name="a.csv", media_type="text/csv", hash=uploaded.hash, bytes=len(b"1,2\n")
    )
    assert await gateway.attachment(session, uploaded.hash or "") == b"1,2\n"
    turn = await gateway.ask(session, "", wait=20, attachments=[uploaded])
    assert turn is not None
    assert turn.attachments == [uploaded]


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("cat.jpg", PNG, "image image/png"),
        ("cat.png", b"no image", "file application/octet-stream"),
        ("main.rs", b"fn main() {}", "code rust"),
        ("main.rs", b"\xff\xfe", "file application/octet-stream"),
        ("notes", b"text", "file text/plain"),
        ("a.csv", b"1,2", "file text/csv"),
        ("a.pdf", b"%PDF-1.7", "file application/pdf"),
    ],
)
def test_ctx_16_the_type_of_a_file_follows_from_its_name_and_first_bytes(name: str, content: bytes, kind: str) -> None:
    attachment = make_attachment(name, content)
    about = attachment.language if isinstance(attachment, CodeAttachment) else attachment.media_type
    assert f"{attachment.type} {about}" == kind


def test_ctx_16_an_empty_or_too_large_file_is_rejected_before_it_is_sent(tmp_path: Path) -> None:
    for content, reason in ((b"", "is empty"), (b"x" * (MAX_ATTACHMENT_BYTES + 1), "7,000,000 are allowed")):
        (tmp_path / "file.txt").write_bytes(content)
        with pytest.raises(ValueError, match=reason):
            read_attachment(tmp_path / "file.txt")
