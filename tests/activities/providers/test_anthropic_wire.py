"""Anthropic's API on the wire, through the real SDK: answers, and everything that can go wrong: AGT-9, AGT-11."""

import asyncio
import gzip
import json
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

import pytest
from pydantic import ValidationError

from tests.vendors.anthropic_wire import KEY, MODEL, AnthropicWire, error_body, sse, stream
from turnkeeper.activities.providers.anthropic.provider import AnthropicProvider
from turnkeeper.activities.providers.bounded_body import MAX_EVENT_BYTES, MAX_STREAM_BYTES
from turnkeeper.activities.providers.protocol import CallInfo, Delta, ModelError
from turnkeeper.activities.providers.provider import Provider
from turnkeeper.models.transcript.model_call import ModelMessage, ModelRequest, ModelResponse, RequestHead, ToolSpec
from turnkeeper.testing.vendor_server import BOUND, Answer, Call, Fault, Received, Reply

WHOLE = Answer(text="There is a chair.", think="Where is it?", calls=[Call("toolu_1", "look", {"at": "left"})])


@pytest.fixture
async def wire() -> AsyncIterator[AnthropicWire]:
    async with AnthropicWire() as started:
        yield started


def request(*messages: ModelMessage) -> ModelRequest:
    head = RequestHead(system="Be brief.", tools=[ToolSpec(name="look")])
    return ModelRequest(head=head, messages=list(messages) or [ModelMessage(role="user", content="What is there?")])


async def ask(provider: Provider, model_request: ModelRequest | None = None) -> tuple[list[Delta], ModelResponse]:
    items: list[Delta | ModelResponse] = []
    async with asyncio.timeout(BOUND), aclosing(provider.stream(MODEL, model_request or request(), CONTEXT)) as events:
        async for event in events:
            items.append(event)
    *deltas, response = items
    assert isinstance(response, ModelResponse)
    return [delta for delta in deltas if isinstance(delta, Delta)], response


CONTEXT = CallInfo(session_id="s", request=1, attempt=1)


async def failure(provider: Provider) -> ModelError:
    with pytest.raises(ModelError) as raised:
        await ask(provider)
    # A chained exception has the vendor's body in it, and would be written into the history and into logs.
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__ or raised.value.__context__ is None
    return raised.value


async def test_agt_11_one_request_is_made_with_the_key_and_exactly_the_encoded_body(wire: AnthropicWire) -> None:
    wire.script(WHOLE)
    await ask(wire.provider())
    (received,) = wire.requests
    assert received.path == "/v1/messages"
    assert received.headers["authorization"] == f"Bearer {KEY}"
    assert set(received.body) == {
        "model", "stream", "max_tokens", "thinking", "system", "tools", "messages"
    }  # fmt: skip


async def test_agt_11_an_answer_is_sent_back_byte_for_byte(wire: AnthropicWire) -> None:
    """Two steps with thinking, parallel calls and a block of next year, each replayed in the next request."""
    first = [
        *sse_blocks(
            (
                {"type": "thinking", "thinking": "", "signature": ""},
                {"type": "thinking_delta", "thinking": "Links — Ü"},
            ),
            ({"type": "redacted_thinking", "data": "EmwK"}, None),
            ({"type": "dream", "scenes": [1.0, None]}, None),
            (
                {"type": "tool_use", "id": "a", "name": "look", "input": {}},
                {"type": "input_json_delta", "partial_json": '{"z": 1, "a": [0.10]}'},
            ),
            ({"type": "thinking", "thinking": "", "signature": ""}, {"type": "signature_delta", "signature": "+/="}),
            ({"type": "tool_use", "id": "b", "name": "look", "input": {}}, None),
        )
    ]
    wire.server.check = lambda body: None  # the SDK's types do not know next year's block
    wire.script(stream(*first, is_known=False), Answer(text="Done."))
    provider = wire.provider()
    _, step = await ask(provider)
    assert step.state is not None
    replayed = ModelResponse.model_validate_json(step.model_dump_json())
    message = ModelMessage(role="assistant", tool_calls=replayed.calls, state=replayed.state)
    results = [ModelMessage(role="tool", content="ok", call_id=call.id) for call in replayed.calls]
    await ask(provider, request(ModelMessage(role="user", content="What is there?"), message, *results))
    before, after = wire.requests[0].body["messages"], wire.requests[1].body["messages"]
    assert after[: len(before)] == before
    assert json.dumps(after[1]["content"]) == json.dumps(
        [
            {"type": "thinking", "thinking": "Links — Ü", "signature": ""},
            {"type": "redacted_thinking", "data": "EmwK"},
            {"type": "dream", "scenes": [1.0, None]},
            {"type": "tool_use", "id": "a", "name": "look", "input": {"z": 1, "a": [0.10]}},
            {"type": "thinking", "thinking": "", "signature": "+/="},
            {"type": "tool_use", "id": "b", "name": "look", "input": {}},
        ]
    )


def sse_blocks(*blocks: tuple[dict[str, Any], dict[str, Any] | None]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {"id": "msg_1", "model": MODEL, "usage": {}}}]
    for index, (start, delta) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        if delta:
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    return [*events, {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}, {"type": "message_stop"}]


async def test_agt_11_a_complete_answer_does_not_need_the_end_of_the_stream(wire: AnthropicWire) -> None:
    reply = wire.reply(WHOLE)
    wire.script(reply.silent_after(len(reply.chunks)), reply.cut_after(len(reply.chunks)))
    for _ in range(2):
        _, response = await ask(wire.provider())
        assert response.text == "There is a chair."


# ---- refused


ERROR_TYPES: dict[Fault, str] = {"rate_limited": "rate_limited", "permission": "auth", "stale_reasoning": "bad_request"}


async def test_agt_11_an_error_event_that_is_not_json_is_a_provider_error(wire: AnthropicWire) -> None:
    wire.script(Reply.stream([b"event: error\ndata: oh no\n\n"]))
    assert (await failure(wire.provider())).error_type == "provider_error"


# ---- cut off


# ---- garbled


GARBLED: dict[str, Reply] = {
    "no type": Reply.stream([b"event: x\ndata: {}\n\n"]),
    "no message": Reply.stream([sse({"type": "message_start"})]),
    "an odd message": Reply.stream([sse({"type": "message_start", "message": "x"})]),
    "an unknown block": Reply.stream([sse({"type": "content_block_delta", "index": 7, "delta": {}})]),
    "an odd block": Reply.stream([sse({"type": "content_block_start", "index": 0, "content_block": ["text"]})]),
    "an odd delta": Reply.stream(
        [
            sse({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
            sse({"type": "content_block_delta", "index": 0, "delta": 7}),
        ]
    ),
    "a call without a name": Reply.stream(
        [sse({"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "a"}})]
    ),
    "an odd id": stream(
        *sse_blocks(({"type": "tool_use", "id": 7, "name": "look", "input": {}}, None)), is_known=False
    ),
}


@pytest.mark.parametrize("what", GARBLED)
async def test_agt_11_an_unreadable_answer_is_a_provider_error(wire: AnthropicWire, what: str) -> None:
    wire.script(GARBLED[what])
    error = await failure(wire.provider())
    assert error.error_type == "provider_error"
    assert error.message.startswith("Anthropic's answer could not be read: ")
    assert len(wire.requests) == 1


async def test_agt_11_an_error_with_status_200_is_classified(wire: AnthropicWire) -> None:
    wire.script(Reply.error(200, {"type": "error", "error": {"type": "overloaded_error", "message": "x"}}))
    assert (await failure(wire.provider())).error_type == "overloaded"


async def test_agt_11_a_stream_with_the_wrong_content_type_is_read(wire: AnthropicWire) -> None:
    wire.script(wire.reply(WHOLE).with_headers({"content-type": "text/plain"}))
    _, response = await ask(wire.provider())
    assert response.text == "There is a chair."


def unnamed(reply: Reply) -> Reply:
    """The reply without its `event:` lines: some servers send it so."""
    lines = (chunk.split(b"\n", 1) for chunk in reply.chunks)
    return replace(reply, chunks=tuple(rest if first.startswith(b"event:") else first for first, rest in lines))


@pytest.mark.parametrize("piece", [3, 100_000])
async def test_agt_9_events_without_a_name_are_recognised_by_their_type(wire: AnthropicWire, piece: int) -> None:
    reply = unnamed(wire.reply(WHOLE))
    assert b"event:" not in b"".join(reply.chunks)
    ping = b'data: {"type": "ping"}\n\n'
    wire.script(replace(reply, chunks=(ping, *reply.chunks)).slowly(piece=piece))
    _, response = await ask(wire.provider())
    assert (response.text, response.stop) == ("There is a chair.", "tool_calls")


@pytest.mark.parametrize("fault", ["overloaded", "context_too_long", "quota"])
async def test_agt_9_an_error_event_without_a_name_is_classified_by_its_type(wire: AnthropicWire, fault: Fault) -> None:
    wire.script(unnamed(wire.fault_within(fault)))
    assert (await failure(wire.provider())).error_type == fault


@pytest.mark.parametrize("data", [b"{", b"[1]", b"7", b'"x"', b"[" * 100_000])
async def test_agt_9_an_event_without_a_name_and_a_type_is_a_provider_error(wire: AnthropicWire, data: bytes) -> None:
    wire.script(Reply.stream([b"data: " + data + b"\n\n"]))
    assert (await failure(wire.provider())).error_type == "provider_error"


async def test_agt_9_an_html_page_means_a_wrong_address_unless_it_has_answered_before(wire: AnthropicWire) -> None:
    page = Reply.error(200, "<html>Please sign in</html>")
    wire.script(page, WHOLE, page)
    provider = wire.provider()
    error = await failure(provider)
    assert (error.error_type, error.should_retry) == ("provider_error", False)
    assert error.message.endswith("it sent text/html in place of a stream of events; check the address of Anthropic")
    await ask(provider)
    assert (await failure(provider)).lasting


async def test_agt_9_an_answer_without_content_is_not_a_truncated_one(wire: AnthropicWire) -> None:
    nothing = Reply(status=204, headers=())
    wire.script(nothing, WHOLE, nothing)
    provider = wire.provider()
    error = await failure(provider)
    assert (error.error_type, error.should_retry) == ("provider_error", False)
    assert "it sent no content (HTTP 204) in place of a stream of events" in error.message
    await ask(provider)
    assert (await failure(provider)).lasting


# ---- without end


PIECE = b"x" * 65_536
ENDLESS = [PIECE] * 3_200
"""Two hundred megabytes."""

BOUNDED: dict[str, tuple[Reply, str]] = {
    "a line": (Reply.stream([b"event: x\ndata: ", *ENDLESS]), "too_large"),
    "an event of many lines": (Reply.stream([b"event: x\n", *[b"data: 1\n" * 8_192] * 3_200]), "too_large"),
    "an object": (replace(Reply.error(200, {}), chunks=(b'{"error": {"message": "', *ENDLESS)), "provider_error"),
    "a page": (replace(Reply.error(200, ""), chunks=(b"<html>", *ENDLESS)), "provider_error"),
    "an error": (
        replace(Reply.error(400, {}), chunks=(b'{"error": {"message": "prompt is too long ', *ENDLESS)),
        "context_too_long",
    ),
    "an error in plain text": (replace(Reply.error(529, "x"), chunks=(b"Overloaded ", *ENDLESS)), "overloaded"),
    "a redirection": (Reply(chunks=tuple(ENDLESS), status=307), "bad_request"),
}


@pytest.mark.parametrize("what", BOUNDED)
async def test_agt_9_endless_bodies_are_read_within_a_memory_limit(wire: AnthropicWire, what: str) -> None:
    reply, error_type = BOUNDED[what]
    provider = wire.provider()
    wire.script(WHOLE, reply)
    await ask(provider)  # what is loaded once is not counted
    tracemalloc.start()
    try:
        error = await failure(provider)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert error.error_type == error_type
    assert len(error.message) < 600
    assert peak < 4 * MAX_EVENT_BYTES


async def test_agt_9_an_endless_answer_is_aborted(wire: AnthropicWire, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_STREAM_BYTES > 10_000_000
    monkeypatch.setattr("turnkeeper.activities.providers.bounded_body.MAX_STREAM_BYTES", 100_000)
    ping = sse({"type": "weather", "told": "x" * 10_000})
    wire.script(Reply.stream([ping] * 20))
    assert (await failure(wire.provider())).error_type == "too_large"


@pytest.mark.parametrize("piece", [1, 3, 1_000])
async def test_agt_9_each_event_has_its_own_size_limit_however_the_stream_is_split(
    wire: AnthropicWire, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr("turnkeeper.activities.providers.bounded_body.MAX_EVENT_BYTES", 400)
    whole = wire.reply(WHOLE)
    assert len(b"".join(whole.chunks)) > 2_000
    with_carriage_returns = replace(whole, chunks=tuple(chunk.replace(b"\n", b"\r\n") for chunk in whole.chunks))
    wire.script(whole.slowly(piece=piece), with_carriage_returns.slowly(piece=piece))
    for _ in range(2):
        _, response = await ask(wire.provider())
        assert response.text == "There is a chair."


async def test_agt_9_answers_are_requested_uncompressed_and_a_zip_bomb_is_not_unpacked(wire: AnthropicWire) -> None:
    bomb = gzip.compress(b'{"error": {"message": "slow down"}}' + b" " * 200_000_000, compresslevel=1)
    packed = {"content-encoding": "gzip", "retry-after": "7"}
    wire.script(WHOLE, Reply.stream([bomb], packed), replace(Reply.error(429, {}, packed), chunks=(bomb,)))
    provider = wire.provider()
    await ask(provider)
    assert wire.requests[0].headers["accept-encoding"] == "identity"
    error = await failure(provider)
    assert (error.error_type, error.message) == (
        "provider_error",
        "Anthropic's answer could not be read: it is compressed, which was not asked for",
    )
    error = await failure(provider)
    assert (error.error_type, error.retry_after) == ("rate_limited", 7)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_agt_9_a_compressed_error_is_read_up_to_a_limit(wire: AnthropicWire, encoding: str) -> None:
    compressor = zlib.compressobj(wbits=31 if encoding == "gzip" else 15)
    body = compressor.compress(b'{"error": {"message": "prompt is too long"}}' + b" " * 10_000_000)
    body += compressor.flush()
    packed = replace(Reply.error(400, {}, {"content-encoding": encoding}), chunks=(body[:40], body[40:]))
    wire.refuse_always(packed)
    assert (await failure(wire.provider())).error_type == "context_too_long"
    wire.refuse_always(replace(packed, chunks=(b"not compressed",)))
    assert (await failure(wire.provider())).error_type == "bad_request"


async def test_agt_9_errors_do_not_repeat_the_request_that_the_vendor_quotes(wire: AnthropicWire) -> None:
    prompt = "I divorce Anna, don't tell Ben."
    echo = error_body("invalid_request_error", f"max_tokens: too many, in answer to “{prompt}”")
    within = {**echo, "type": "error"}
    provider = wire.provider()
    for reply in (
        Reply.error(400, echo),
        Reply.error(200, echo),
        Reply.error(422, f"max_tokens: too many: {prompt}"),
        Reply.stream([*wire.reply(WHOLE).chunks[:3], sse(within)]),
    ):
        wire.refuse_always(reply)
        with pytest.raises(ModelError, match="max_tokens: too many") as raised:
            await ask(provider, request(ModelMessage(role="user", content=prompt)))
        assert raised.value.error_type == "bad_request"
        assert "Anna" not in raised.value.message


# ---- keys and packages


async def test_agt_4_a_missing_key_error_names_the_variable_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    for variable in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    error = await failure(AnthropicProvider(silence_timeout=1))
    assert (error.error_type, error.message) == ("auth", "no key is set; set ANTHROPIC_API_KEY for the worker")


async def test_agt_4_the_environments_key_and_address_are_used(
    wire: AnthropicWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", wire.base_url)
    wire.script(WHOLE)
    await ask(AnthropicProvider(silence_timeout=BOUND))
    assert wire.requests[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    "address",
    [{"api_key": f"{KEY}\nX: y"}, {"base_url": "nowhere"}, {"base_url": "http://[::1"}],
    ids=["a line break in the key", "no address", "half an address"],
)
async def test_agt_4_a_request_that_cannot_be_sent_is_not_retried(wire: AnthropicWire, address: dict[str, str]) -> None:
    whole = {"base_url": wire.base_url, "api_key": KEY, **address}
    error = await failure(AnthropicProvider(silence_timeout=BOUND, **cast(Any, whole)))
    assert wire.requests == []
    assert error.error_type == "bad_request"
    assert "check ANTHROPIC_API_KEY and the address of Anthropic" in error.message
    assert KEY not in error.message


async def test_agt_11_the_fake_server_rejects_unexpected_and_invalid_requests() -> None:
    wire = AnthropicWire()
    with pytest.raises(AssertionError, match="was not expected"):
        async with wire:
            await failure(wire.provider())
    with pytest.raises(ValidationError, match="max_tokens"):
        wire.check({"model": MODEL, "stream": True, "messages": []})
    orphan = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]}
    with pytest.raises(AssertionError):
        wire.check({"model": MODEL, "stream": True, "max_tokens": 1, "messages": [orphan]})
    assert Received("/", {}, b"{}").body == {}
