"""Images and files in the results of tools: AGT-4, CTX-16."""

from base64 import b64decode
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    TextContent,
)

from tests.activities.toolbox.test_toolbox import invocation, result_of_answer
from tests.vendors.media import PDF, PNG, base64_of
from turnkeeper.activities.toolbox import built_in
from turnkeeper.activities.toolbox.built_in import built_in_tools
from turnkeeper.activities.toolbox.tool_server import ToolServer
from turnkeeper.activities.toolbox.toolbox import Toolbox
from turnkeeper.models.transcript.attachments import (
    MAX_ATTACHMENTS,
    MAX_CONTENT_BYTES,
    FileAttachment,
    ImageAttachment,
)
from turnkeeper.models.transcript.conversation import ToolResult

IMAGE = base64_of(PNG)


def resource(uri: str, content: bytes, media_type: str | None) -> EmbeddedResource:
    return EmbeddedResource(resource=BlobResourceContents(uri=uri, blob=base64_of(content), mime_type=media_type))


@pytest.mark.parametrize(
    ("block", "attachment"),
    [
        (ImageContent(data=IMAGE, mime_type="image/png"), {"media_type": "image/png", "data": IMAGE}),
        # By its content: vendors refuse an image of another type than it says.
        (ImageContent(data=IMAGE, mime_type="image/JPG"), {"media_type": "image/png", "data": IMAGE}),
        (
            resource("file:///a/my%20cat.png", PNG, None),
            {"name": "my cat.png", "media_type": "image/png", "data": IMAGE},
        ),
        (resource("x://y/%E2%80%8B", PNG, None), {"media_type": "image/png", "data": IMAGE}),
        (
            resource("x://y/paper.pdf", PDF, "application/pdf"),
            {"name": "paper.pdf", "media_type": "application/pdf", "data": base64_of(PDF)},
        ),
        (
            resource("x://y", b"\xff", "not a type"),
            {"name": "resource.octetstream", "media_type": "application/octet-stream", "data": base64_of(b"\xff")},
        ),
        (
            AudioContent(data="AAAA", mime_type="audio/wav; rate=8"),
            {"name": "audio.wav", "media_type": "audio/wav", "data": "AAAA"},
        ),
        (
            ImageContent(data=base64_of(b"<svg/>"), mime_type="image/svg+xml"),
            {"name": "image.svgxml", "media_type": "image/svg+xml", "data": base64_of(b"<svg/>")},
        ),
    ],
)
async def test_agt_4_non_text_content_of_a_tool_result_is_attached(block: ContentBlock, attachment: Any) -> None:
    result = await result_of_answer(CallToolResult(content=[TextContent(text="done"), block]))
    (attached,) = result.attachments
    assert (result.outcome, result.content) == ("done", "")
    assert attached.model_dump(exclude={"type"}) == attachment
    assert isinstance(attached, ImageAttachment) == (attachment["media_type"] == "image/png")


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (
            ImageContent(data="AAAA", mime_type="image/png"),
            "[image, image/png, 3 bytes: is not a PNG image]",
        ),
        (ImageContent(data="no base64", mime_type="image/png"), "[image, image/png, 6 bytes: is not base64]"),
        (ImageContent(data="", mime_type="image/png"), "[image, image/png, 0 bytes: is empty]"),
        (resource("x://y", PNG, "application/pdf"), None),
        (resource("x://y", b"text", "application/pdf"), "[resource, application/pdf, 4 bytes: is not a PDF]"),
    ],
)
async def test_agt_4_content_that_no_vendor_can_read_is_named_in_text(block: ContentBlock, text: str | None) -> None:
    result = await result_of_answer(CallToolResult(content=[block]))
    assert result.outcome == (text or "Called tool")
    assert len(result.attachments) == (text is None)


async def test_agt_4_attachments_beyond_the_limit_of_a_message_are_named_in_text(monkeypatch):
    images: list[ContentBlock] = [ImageContent(data=IMAGE, mime_type="image/png")] * (MAX_ATTACHMENTS + 1)
    result = await result_of_answer(CallToolResult(content=images))
    assert len(result.attachments) == MAX_ATTACHMENTS
    assert result.outcome.endswith("bytes: left out, a result has at most 20]")

    half = base64_of(PNG + bytes(MAX_CONTENT_BYTES // 2))
    large: list[ContentBlock] = [ImageContent(data=half, mime_type="image/png")] * 2
    result = await result_of_answer(CallToolResult(content=large))
    assert len(result.attachments) == 1
    assert result.outcome.endswith("bytes: left out, the result is too large]")


async def read(folder: Path, path: str) -> ToolResult:
    tools = built_in_tools(folder, now=lambda: datetime.now(UTC))
    async with Toolbox([ToolServer("own", tools)]) as toolbox:
        return await toolbox.call(invocation("file_read", {"path": path}))


async def test_agt_6_an_image_and_a_pdf_of_the_workspace_are_shown_to_the_model(tmp_path, monkeypatch):
    (tmp_path / "my cat.png").write_bytes(PNG)
    (tmp_path / "paper").write_bytes(PDF)
    image, paper = await read(tmp_path, "my cat.png"), await read(tmp_path, "paper")
    assert image.outcome == f"Read my cat.png: an image (image/png), {len(PNG)} bytes"
    assert image.attachments == [
        ImageAttachment(type="image", name="my cat.png", media_type="image/png", data=IMAGE)
    ]  # fmt: skip
    assert paper.outcome == f"Read paper: a PDF, {len(PDF)} bytes"
    (attached,) = paper.attachments
    assert isinstance(attached, FileAttachment)
    assert b64decode(attached.data) == PDF

    monkeypatch.setattr(built_in, "MAX_ATTACHMENT_BYTES", 10)
    too_large = await read(tmp_path, "paper")
    assert (too_large.status, too_large.attachments) == ("error", [])
    assert too_large.outcome == f"'paper' is a PDF of {len(PDF)} bytes; 10 are allowed."
