"""Images, PDFs, code and files in the requests to every API, and what vendors refuse of them: CTX-16, AGT-4."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from tests.vendors.anthropic_wire import AnthropicWire
from tests.vendors.apis import WIRES
from tests.vendors.chat_wire import ChatWire
from tests.vendors.golden_files import assert_golden
from tests.vendors.media import PDF, PNG, base64_of
from tests.vendors.responses_wire import ResponsesWire
from turnkeeper.activities.providers.offline.provider import answer
from turnkeeper.activities.providers.protocol import AttachmentProblem, CallInfo, ModelError
from turnkeeper.activities.providers.provider import Provider
from turnkeeper.activities.providers.request_encoding import TEXT_ONLY, short_id, visible_request
from turnkeeper.activities.providers.vendor_words import attachment_refusal
from turnkeeper.models.transcript.attachments import Attachment, CodeAttachment, FileAttachment, ImageAttachment
from turnkeeper.models.transcript.model_call import (
    CallPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RequestHead,
    ToolSpec,
)
from turnkeeper.testing.vendor_server import BOUND, Answer, Reply, VendorServer

CONTEXT = CallInfo(session_id="s", request=1, attempt=1)

IMAGE = ImageAttachment(type="image", name="cat.png", media_type="image/png", data=base64_of(PNG))
LINK = ImageAttachment(type="image", url="https://example.com/cat.png")
PAPER = FileAttachment(type="file", name="paper.pdf", media_type="application/pdf", data=base64_of(PDF))
CODE = CodeAttachment(type="code", name="a.py", language="python", content='print("""```""")')
NOTES = FileAttachment(type="file", name="notes.json", media_type="application/json", data=base64_of(b'{"a": 1}'))
ARCHIVE = FileAttachment(type="file", name="all.zip", media_type="application/zip", data=base64_of(b"PK\x03\x04\xff"))

NOT_READ = "(not shown: this model can't read it)"
UNREADABLE = "(the model's provider could not read it)"

Media = list[tuple[str, str]]
"""Images and documents in a request: where they are, and their base64 or address."""


@pytest.fixture(params=WIRES)
async def wire(request: pytest.FixtureRequest) -> AsyncIterator[VendorServer]:
    async with WIRES[request.param]() as started:
        yield started


def user(*attachments: Attachment, text: str = "What is it?") -> ModelMessage:
    return ModelMessage(role="user", content=text, attachments=list(attachments))


def step_with_results(*results: Sequence[Attachment], status: str = "ok") -> list[ModelMessage]:
    """Return a prompt, and a step whose calls have results with these attachments."""
    calls = [CallPart(kind="call", id=f"c{number}", name="look") for number in range(len(results))]
    return [
        ModelMessage(role="user", content="Look."),
        ModelMessage(role="assistant", tool_calls=calls),
        *(
            ModelMessage.model_validate(
                {"role": "tool", "content": f"saw {number}", "call_id": f"c{number}", "tool_name": "look",
                 "status": status, "attachments": list(attachments)}
            )
            for number, attachments in enumerate(results)
        ),
    ]  # fmt: skip


def asking(*messages: ModelMessage) -> ModelRequest:
    return ModelRequest(head=RequestHead(tools=[ToolSpec(name="look")]), messages=list(messages))


async def ask(provider: Provider, model: str, *messages: ModelMessage) -> ModelResponse:
    stream = provider.stream(model.partition(":")[2], asking(*messages), CONTEXT)
    async with asyncio.timeout(BOUND), aclosing(stream) as pieces:
        async for piece in pieces:
            if isinstance(piece, ModelResponse):
                return piece
    raise AssertionError("no answer")


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield every object of a body, with the types and roles of those around it."""
    if isinstance(value, dict):
        path = (*path, *(str(value[key]) for key in ("role", "type") if key in value))
        yield path, value
        for inner in value.values():
            yield from leaves(inner, path)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, path)


def media_sent(body: Any) -> Media:
    media: Media = []
    for path, block in leaves(body):
        match block:
            case {"type": "image" | "document" as kind, "source": source}:
                around = "tool" if "tool_result" in path else "user"
                media.append((f"{around} {kind}", source.get("url") or source["data"]))
            case {"type": "input_image", "image_url": url}:
                media.append((f"{'tool' if 'function_call_output' in path else 'user'} image", url))
            case {"type": "input_file", "file_data": url}:
                media.append((f"{'tool' if 'function_call_output' in path else 'user'} document", url))
            case {"type": "image_url", "image_url": {"url": url}}:
                media.append(("user image", url))
            case {"type": "file", "file": {"file_data": url}}:
                media.append(("user document", url))
    return [(kind, content.rpartition(",")[2]) for kind, content in media]


def texts_sent(body: Any) -> str:
    """Return all texts of a request's conversation, one below the other."""
    texts: list[str] = []
    for _, block in leaves(body):
        texts += [block[key] for key in ("text", "content", "output") if isinstance(block.get(key), str)]
    return "\n".join(texts)


# ── What models are shown ────────────────────────────────────────────────────────────────────────────────────────────


async def test_ctx_16_images_and_pdfs_are_sent_in_order_with_their_names_in_the_text(wire):
    wire.script(Answer(text="A cat."))
    await ask(wire.provider(), wire.model, user(IMAGE, LINK, PAPER))
    body = wire.requests[0].body
    assert media_sent(body) == [
        ("user image", IMAGE.data),
        ("user image", "https://example.com/cat.png"),
        ("user document", PAPER.data),
    ]
    assert (
        "What is it?\n\n[Image: cat.png, image/png, 70 bytes]\n\n[Image: https://example.com/cat.png]"
        "\n\n[File: paper.pdf, application/pdf, 68 bytes]"
    ) in texts_sent(body)


async def test_ctx_16_text_files_are_shown_in_a_safe_fence_and_other_files_are_named(wire):
    wire.script(Answer(text="Python."))
    await ask(wire.provider(), wire.model, user(CODE, NOTES, ARCHIVE))
    body = wire.requests[0].body
    assert media_sent(body) == []
    assert (
        'What is it?\n\n[Code: a.py, python, 16 bytes]\n````python\nprint("""```""")\n````'
        '\n\n[File: notes.json, application/json, 8 bytes]\n```\n{"a": 1}\n```'
        f"\n\n[File: all.zip, application/zip, 5 bytes] {NOT_READ}"
    ) in texts_sent(body)


async def test_agt_4_a_tools_image_follows_the_results_of_its_step(wire):
    wire.script(Answer(text="A cat."), Answer(text="Yes."))
    provider = wire.provider()
    messages = step_with_results([IMAGE], [], [PAPER])
    await ask(provider, wire.model, *messages)
    follow_up = [ModelMessage(role="assistant", content="A cat."), user(text="Sure?")]
    await ask(provider, wire.model, *messages, *follow_up)
    where = "user" if isinstance(wire, ChatWire) else "tool"
    for received in wire.requests:
        assert media_sent(received.body) == [(f"{where} image", IMAGE.data), (f"{where} document", PAPER.data)]
    texts = texts_sent(wire.requests[0].body)
    assert "saw 0\n\n[Image: cat.png, image/png, 70 bytes]" in texts
    if isinstance(wire, ChatWire):
        roles = [message["role"] for message in wire.requests[0].body["messages"]]
        assert roles == ["user", "assistant", "tool", "tool", "tool", "assistant", "user"]
        assert f"From the result of look, call {short_id('c0', 1)}:" in texts
        assert f"From the result of look, call {short_id('c2', 1)}:" in texts
        first, second = (received.body["messages"] for received in wire.requests)
        assert second[: len(first)] == first


async def test_agt_3_attachments_are_encoded_to_the_recorded_bytes(wire):
    wire.script(Answer(text="A cat."))
    turn = [user(IMAGE, LINK, PAPER, CODE, NOTES, ARCHIVE), ModelMessage(role="assistant", content="Many things.")]
    await ask(wire.provider(), wire.model, *turn, *step_with_results([IMAGE], [PAPER]), user(text="And now?"))
    name = {AnthropicWire: "anthropic", ResponsesWire: "responses", ChatWire: "chat"}[type(wire)]
    assert_golden(f"{name}_attachments", wire.requests[0].body)


async def test_agt_4_a_steering_prompt_joins_the_images_of_the_results_before_it():
    async with ChatWire() as wire:
        wire.script(Answer(text="A cat."))
        await ask(wire.provider(), wire.model, *step_with_results([IMAGE]), user(text="Only its colour."))
        last = wire.requests[0].body["messages"][-1]
    assert [part["type"] for part in last["content"]] == ["text", "image_url", "text"]
    assert last["content"][-1]["text"] == "Only its colour."


async def test_agt_4_an_image_of_a_failed_call_follows_the_results():
    async with AnthropicWire() as wire:
        wire.script(Answer(text="Oh."))
        await ask(wire.provider(), wire.model, *step_with_results([IMAGE], [], status="error"))
        body = wire.requests[0].body
    assert media_sent(body) == [("user image", IMAGE.data)]
    assert [block["type"] for block in body["messages"][-1]["content"]] == ["tool_result"] * 2 + ["text", "image"]
    assert "saw 0\n\n[Image: cat.png, image/png, 70 bytes]" in texts_sent(body)


@pytest.mark.parametrize(
    ("make", "model"),
    [
        (AnthropicWire, "claude-2.1"),
        (ResponsesWire, "o3-mini"),
        (lambda: ChatWire(images="no"), "qwen3"),
        (lambda: ChatWire("text"), "qwen3"),
    ],
)
async def test_ctx_16_a_model_without_vision_gets_the_names(make: Callable[[], VendorServer], model: str) -> None:
    async with make() as wire:
        wire.script(Answer(text="I can't see it."))
        messages = [*step_with_results([IMAGE]), ModelMessage(role="assistant", content="Hm."), user(PAPER, CODE)]
        await ask(wire.provider(), f"p:{model}", *messages)
        body = wire.requests[0].body
    assert media_sent(body) == []
    assert f"[Image: cat.png, image/png, 70 bytes] {NOT_READ}" in texts_sent(body)
    assert f"[File: paper.pdf, application/pdf, 68 bytes] {NOT_READ}" in texts_sent(body)
    assert "print(" in texts_sent(body)


def test_ctx_16_the_offline_model_lists_the_attachments() -> None:
    text = answer(asking(user(IMAGE, text="hello?"))).text
    assert text.startswith("You attached [Image: cat.png, image/png]. I can name attachments")


@pytest.mark.parametrize(
    ("attachment", "kind"),
    [
        # A file that is an image, and an image whose type is wrong: vendors refuse that.
        (FileAttachment(type="file", name="a.png", media_type="image/png", data=IMAGE.data), "image/png"),
        (IMAGE.model_copy(update={"media_type": "image/jpeg"}), "image/png"),
        # OpenAI knows a file's type by the ending of its name.
        (PAPER.model_copy(update={"name": "paper"}), "application/pdf"),
    ],
)
async def test_ctx_16_images_and_pdfs_are_sent_with_their_media_type(wire, attachment, kind):
    wire.script(Answer(text="A cat."))
    await ask(wire.provider(), wire.model, user(attachment))
    is_image = kind == "image/png"
    assert media_sent(wire.requests[0].body) == [("user image" if is_image else "user document", attachment.data)]
    assert kind in wire.requests[0].raw.decode()


def test_ctx_16_an_upload_missing_from_the_store_is_named() -> None:
    stored = [
        IMAGE.model_copy(update={"data": "", "hash": "0" * 64, "bytes": 12_000}),
        CODE.model_copy(update={"content": "", "hash": "0" * 64, "bytes": 9_000}),
    ]
    text = visible_request(asking(user(*stored)), TEXT_ONLY).messages[0].content
    assert text.count("(its content can't be loaded now)") == 2


# ── What vendors refuse ──────────────────────────────────────────────────────────────────────────────────────────────


def refusing(words: str, *, status: int = 400) -> Reply:
    error = {"type": "invalid_request_error", "message": words, "code": None, "param": None}
    return Reply.error(status, {"type": "error", "error": error})


BROKEN = "Could not process image"


async def test_agt_4_a_model_that_rejects_images_gets_their_names_from_then_on(caplog):
    async with ChatWire() as wire:
        wire.script(refusing("Model does not support images. Please use a model that does."))
        wire.script(Answer(text="I can't see it."), Answer(text="Nor this."))
        provider = wire.provider()
        await ask(provider, wire.model, user(IMAGE))
        await ask(provider, wire.model, user(LINK, PAPER))
        bodies = [received.body for received in wire.requests]
    assert [len(media_sent(body)) for body in bodies] == [1, 0, 1]  # the PDF was not refused
    assert f"[Image: cat.png, image/png, 70 bytes] {NOT_READ}" in texts_sent(bodies[1])
    assert "images (the model does not read them)" in caplog.text


async def test_agt_4_with_images_yes_only_the_rejected_images_are_left_out():
    async with ChatWire(images="yes") as wire:
        wire.script(refusing("Model does not support images."), *[Answer(text="Hm.")] * 2)
        provider = wire.provider()
        await ask(provider, wire.model, user(IMAGE))
        await ask(provider, wire.model, user(LINK))
        assert [len(media_sent(received.body)) for received in wire.requests] == [1, 0, 1]


async def test_agt_4_a_broken_image_is_named_in_text_and_does_not_stop_the_next_turn(wire):
    wire.script(Answer(text="A cat."), refusing(BROKEN), Answer(text="I can't read it."), Answer(text="Hello."))
    provider, good = wire.provider(), user(IMAGE)
    await ask(provider, wire.model, good)
    broken = user(ImageAttachment(type="image", name="broken.png", media_type="image/png", data=base64_of(PNG + b"!")))
    turns = [good, ModelMessage(role="assistant", content="A cat."), broken]
    await ask(provider, wire.model, *turns)
    await ask(provider, wire.model, *turns, ModelMessage(role="assistant", content="I can't read it."), user())
    bodies = [received.body for received in wire.requests]
    # What the vendor has read before is not blamed.
    assert [len(media_sent(body)) for body in bodies] == [1, 2, 1, 1]
    assert all(("user image", IMAGE.data) in media_sent(body) for body in bodies)
    assert all(f"[Image: broken.png, image/png, 71 bytes] {UNREADABLE}" in texts_sent(body) for body in bodies[2:])


async def test_agt_4_if_no_attachment_is_new_a_rejection_removes_all_of_them(wire):
    wire.script(Answer(text="A cat."))
    wire.refuse_always(refusing(BROKEN))
    provider = wire.provider()
    await ask(provider, wire.model, user(IMAGE))
    with pytest.raises(ModelError, match="Could not process image"):
        await ask(provider, wire.model, user(IMAGE))
    assert [len(media_sent(received.body)) for received in wire.requests][:3] == [1, 1, 0]
    assert not any(media_sent(received.body) for received in wire.requests[3:])


async def test_agt_4_a_request_that_is_too_large_drops_its_oldest_images_first(wire):
    large = [
        IMAGE.model_copy(update={"data": base64_of(PNG + bytes([number]) * 600_000)}) for number in range(4)
    ]  # fmt: skip
    too_large = Reply.error(
        413, {"error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}}
    )
    wire.script(too_large, too_large, Answer(text="Cats."))
    await ask(wire.provider(), wire.model, user(*large))
    requests = [[content for _, content in media_sent(received.body)] for received in wire.requests]
    assert [len(contents) for contents in requests] == [4, 2, 1]
    assert requests[-1] == [large[-1].data]


async def test_agt_4_a_content_policy_refusal_is_not_retried(wire):
    wire.script(refusing("The request was rejected as a result of our safety system. Could not process image."))
    with pytest.raises(ModelError) as raised:
        await ask(wire.provider(), wire.model, user(IMAGE))
    assert raised.value.error_type == "refusal"


WORDS: dict[str, tuple[int, str, AttachmentProblem]] = {
    "OpenAI": (400, "Invalid content type. image_url is only supported by certain models.", "no_images"),
    "DeepSeek": (
        400,
        "Failed to deserialize the JSON body into the target type: messages[1]: unknown variant `image_url`, expected"
        " `text` at line 1 column 679289",
        "no_images",
    ),
    "DeepSeek before": (
        422,
        "Failed to deserialize the JSON body into the target type: messages[2]: data did not match any variant of"
        " untagged enum ChatCompletionRequestContent at line 1 column 15700",
        "no_media",
    ),
    "OpenRouter": (404, "No endpoints found that support image input", "no_images"),
    "LM Studio": (400, "Model does not support images. Please use a model that does.", "no_images"),
    "llama.cpp": (500, "image input is not supported - hint: you may need to provide the mmproj", "no_images"),
    "llama-cpp-python": (
        500,
        "Image input detected, but the model is not configured with a mmproj module",
        "no_images",
    ),
    "Ollama": (500, "this model is missing data required for image input", "no_images"),
    "Groq": (400, "messages[0].content must be a string", "no_media"),
    "vLLM": (400, "At most 0 image(s) may be provided in one request.", "no_images"),
    "vLLM's number": (400, "At most 1 image(s) may be provided in one request.", "too_many"),
    "Anthropic's number": (400, "messages: too many images and documents: 101 + 0 > 100", "too_many"),
    "a number": (400, "Too many images in request. Max is 50.", "too_many"),
    "a proxy of files": (400, "unknown variant `file`, expected `text` or `image_url`", "no_pdfs"),
    "Anthropic": (400, "Could not process image", "unreadable"),
    "Anthropic's size": (
        400,
        "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 6966696 bytes > 5242880 bytes",
        "unreadable",
    ),
    "Anthropic's type": (
        400,
        "messages.83.content.0.tool_result.content.1.image.source.base64: The image was specified using the image/jpeg"
        " media type, but the image appears to be a image/png image",
        "unreadable",
    ),
    "Anthropic's pages": (400, "A maximum of 100 PDF pages may be provided.", "unreadable"),
    "Anthropic's password": (400, "The PDF specified is password protected.", "unreadable"),
    "Anthropic's address": (400, "Unable to download the file. Please verify the URL and try again.", "unreadable"),
    "OpenAI's format": (
        400,
        "You uploaded an unsupported image. Please make sure your image has of one the following formats: ['png']",
        "unreadable",
    ),
    "OpenAI's address": (400, "Error while downloading https://example.com/cat.png.", "unreadable"),
    "Mistral": (400, "Unexpected role 'user' after role 'tool'", "unreadable"),
    "a proxy": (413, "", "too_large"),
}


@pytest.mark.parametrize("server", WORDS)
def test_agt_4_image_rejections_are_recognised_for_every_server(server: str) -> None:
    status, words, problem = WORDS[server]
    refusal = attachment_refusal(status, frozenset(), words)
    assert refusal is not None
    assert refusal.problem == problem
    assert refusal.limit == {"vLLM's number": 1, "Anthropic's number": 100, "a number": 50}.get(server)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, "prompt is too long: 215000 tokens > 200000 maximum"),
        (400, "Unsupported parameter: 'stream_options'"),
        (401, "Could not process image"),
        (429, "Too many images per minute: image input is not supported at this rate"),
        (404, "model: claude-nobody"),
        (500, "Internal server error"),
        (404, "The model gpt-4.2-image is not available"),
        (400, "The model gpt-4.2-image is not available"),
        (400, "The file search tool is not enabled"),
        (400, "This model does not support file search"),
        (400, "Failed to parse input at pos 12"),
        (500, "failed to process input"),
        (500, "Error while downloading the model"),
    ],
)
def test_agt_4_other_errors_are_not_mistaken_for_image_rejections(status: int, words: str) -> None:
    assert attachment_refusal(status, frozenset(), words) is None
