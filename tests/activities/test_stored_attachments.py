"""Where the attachments of tools' results are stored: CTX-16, SES-15, SES-16."""

from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import pytest

from tests.vendors.media import PNG, base64_of
from turnkeeper.activities.large_texts import LargeTexts
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.attachments import NO_ROOM_NOTE, ImageAttachment, json_bytes
from turnkeeper.models.transcript.conversation import ToolResult
from turnkeeper.models.transcript.model_call import ModelMessage, ModelRequest, RequestHead
from turnkeeper.stores.blobs import attachments_owner
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.stores import Stores

SESSION = WorkflowId("s1")


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[Stores]:
    async with Stores.of(Settings(state_dir=tmp_path)) as stores:
        yield stores


def image(number: int, size: int) -> ImageAttachment:
    content = PNG + bytes([number]) * size
    return ImageAttachment(type="image", name=f"{number}.png", media_type="image/png", data=base64_of(content))


def shot(*attachments: ImageAttachment) -> ToolResult:
    return ToolResult(outcome="shot", content="done", attachments=list(attachments))


async def test_ctx_16_small_result_images_stay_inline_and_large_ones_go_to_the_store(stores: Stores) -> None:
    texts = LargeTexts(stores.blobs)
    small, large = image(1, 100), image(2, 50_000)
    assert await texts.keep_result(SESSION, shot(small), 8_192) == shot(small)

    for _ in range(2):  # a second attempt changes nothing
        result = await texts.keep_result(SESSION, shot(small, large), 8_192)
        content = PNG + bytes([2]) * 50_000
        reference = {"type": "image", "name": "2.png", "media_type": "image/png"}
        reference |= {"hash": sha256(content).hexdigest(), "bytes": len(content)}  # type: ignore[dict-item]
        assert [one.model_dump() for one in result.attachments] == [small.model_dump(), reference]
        assert result.content == "done"
    assert await stores.blobs.delete(attachments_owner(SESSION)) == 1


async def test_ctx_16_call_model_loads_the_attachments_of_results_from_the_store(stores: Stores) -> None:
    large = image(1, 50_000)
    result = await LargeTexts(stores.blobs).keep_result(SESSION, shot(large), 8_192)
    message = ModelMessage(role="tool", content="shot", call_id="c", attachments=result.attachments)
    request = ModelRequest(head=RequestHead(), messages=[message])
    resolved = await LargeTexts(stores.blobs).with_attachments(SESSION, request)
    (attached,) = resolved.messages[0].attachments
    assert isinstance(attached, ImageAttachment)
    assert attached.data == large.data


async def test_ses_16_a_full_turn_keeps_few_references_and_names_the_other_attachments(stores: Stores) -> None:
    images = [image(number, 10_000) for number in range(20)]
    result = await LargeTexts(stores.blobs).keep_result(SESSION, shot(*images), 1_000)
    assert 1 <= len(result.attachments) < 5
    assert json_bytes(result.attachments) <= 500
    assert "[Image: 19.png, image/png, 10 KB] (left out: the turn has no room for more)" in await _whole(stores, result)
    assert await stores.blobs.delete(attachments_owner(SESSION)) == len(result.attachments)


async def _whole(stores: Stores, result: ToolResult) -> str:
    if result.blob is None:
        return result.content
    return (await stores.blobs.get(SESSION, [result.blob.hash]))[result.blob.hash]


async def test_ctx_16_while_the_store_is_down_an_image_is_named_in_the_result(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def down(*_: object) -> None:
        raise StoreUnavailableError("down")

    monkeypatch.setattr(stores.blobs, "put_data", down)
    result = await LargeTexts(stores.blobs).keep_result(SESSION, shot(image(1, 100), image(2, 50_000)), 8_192)
    assert result.attachments == [image(1, 100)]
    assert result.content == "done\n\n[Image: 2.png, image/png, 50 KB] (left out: it could not be stored)"
    assert "attachments of a result are left out" in caplog.text


async def test_ctx_16_the_newest_attachments_are_sent_and_older_ones_are_named(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnkeeper.activities.large_texts.MAX_REQUEST_BYTES", 120_000)
    texts = LargeTexts(stores.blobs)
    results = [await texts.keep_result(SESSION, shot(image(number, 50_000)), 8_192) for number in range(3)]
    messages = [ModelMessage(role="user", content="look", attachments=result.attachments) for result in results]
    request = await LargeTexts(stores.blobs).with_attachments(
        SESSION, ModelRequest(head=RequestHead(), messages=messages)
    )
    oldest, *newest = request.messages
    assert oldest.attachments == []
    assert oldest.content.endswith("[Image: 0.png, image/png, 50 KB]" + NO_ROOM_NOTE)
    assert [(message.content, len(message.attachments)) for message in newest] == [("look", 1), ("look", 1)]
    assert await stores.blobs.delete_data(attachments_owner(SESSION)) == len(results)
