"""OpenAI's two APIs on the wire, through the real SDK: answers, and everything that can go wrong: AGT-9, AGT-11."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from pydantic import ValidationError

from tests.vendors import chat_wire, responses_wire
from tests.vendors.chat_wire import ChatWire, chunk
from tests.vendors.responses_wire import ResponsesWire
from turnkeeper.activities.providers.answer_fields import EARLY_END, UNCLEAR_ANSWER
from turnkeeper.activities.providers.openai.chat import OpenAIChatProvider
from turnkeeper.activities.providers.openai.responses import OpenAIProvider
from turnkeeper.activities.providers.protocol import CallInfo, Delta, ModelError
from turnkeeper.activities.providers.provider import Provider, ProviderRegistry
from turnkeeper.activities.providers.vendor_provider import MAX_TRIES
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.model_call import (
    CallPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RequestHead,
    ToolSpec,
    left_out_text,
)
from turnkeeper.testing.vendor_server import BOUND, Answer, Call, Fault, Reply, VendorServer

WHOLE = Answer(
    text="There is a chair.", think="Where is it?", calls=[Call("call_1", "look", {"at": "left"})], reasoning=5
)
CONTEXT = CallInfo(session_id="s", request=1, attempt=1)
MAKERS: dict[str, Callable[[], VendorServer]] = {
    "responses": ResponsesWire,
    "chat": ChatWire,
    "text": lambda: ChatWire("text"),
}


@pytest.fixture(params=MAKERS)
async def wire(request: pytest.FixtureRequest) -> AsyncIterator[VendorServer]:
    async with MAKERS[request.param]() as started:
        yield started


@pytest.fixture
async def responses() -> AsyncIterator[ResponsesWire]:
    async with ResponsesWire() as started:
        yield started


@pytest.fixture
async def chat() -> AsyncIterator[ChatWire]:
    async with ChatWire() as started:
        yield started


def asking(*messages: ModelMessage, max_tokens: int | None = None) -> ModelRequest:
    head = RequestHead(system="Be brief.", tools=[ToolSpec(name="look")], max_tokens=max_tokens)
    return ModelRequest(head=head, messages=list(messages) or [ModelMessage(role="user", content="What is there?")])


async def ask(
    provider: Provider, model_request: ModelRequest | None = None, info: CallInfo = CONTEXT
) -> tuple[list[Delta], ModelResponse]:
    items: list[Delta | ModelResponse] = []
    async with asyncio.timeout(BOUND), aclosing(provider.stream("m", model_request or asking(), info)) as events:
        async for event in events:
            items.append(event)
    *deltas, response = items
    assert isinstance(response, ModelResponse)
    return [delta for delta in deltas if isinstance(delta, Delta)], response


async def failure(provider: Provider, model_request: ModelRequest | None = None) -> ModelError:
    with pytest.raises(ModelError) as raised:
        await ask(provider, model_request)
    # A chained exception has the vendor's body in it, and would be written into the history and into logs.
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__ or raised.value.__context__ is None
    return raised.value


# ── Answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_agt_3_reasoning_is_sent_back_with_its_encrypted_content(responses):
    responses.script(WHOLE, Answer(text="Done."))
    provider = responses.provider()
    _, step = await ask(provider)
    message = ModelMessage(role="assistant", content=step.text, tool_calls=step.calls, state=step.state)
    await ask(provider, asking(message, ModelMessage(role="tool", content="ok", call_id="call_1")))
    assert [item.get("type") for item in responses.requests[1].body["input"]] == [
        "reasoning",
        "message",
        "function_call",
        "function_call_output",
    ]
    assert responses.requests[1].body["input"][0] == responses_wire.reasoning("Where is it?")


async def test_agt_3_names_and_ids_that_cannot_be_stored_are_cleaned_and_sent_back(wire):
    """Half a character and a NUL in all that the vendor names; the session's next request is a proper one."""
    whole = wire.reply(Answer(text="So¤", think="hm¤", calls=[Call("c¤", "look¤", {"at": "¤"})]))
    odd = [
        chunk.replace(b"\\u00a4", b"\\ud83d\\u0000").replace(b'"model": "', b'"model": "\\ud83d\\u0000')
        for chunk in whole.chunks
    ]
    wire.script(Reply.stream(odd), Answer(text="Done."))
    provider = wire.provider()
    _, step = await ask(provider)
    by_text = isinstance(wire, ChatWire) and wire.protocol == "text"
    named = "unreadable" if by_text else "look\ufffd\ufffd"
    assert (step.text, [call.name for call in step.calls]) == ("So\ufffd\ufffd", [named])
    assert step.model.startswith("\ufffd\ufffd")
    restored = ModelResponse.model_validate_json(step.model_dump_json())
    assert restored == step
    message = ModelMessage(role="assistant", content=restored.text, tool_calls=restored.calls, state=restored.state)
    answered = ModelMessage(role="tool", content="ok", call_id=restored.calls[0].id)
    await ask(provider, asking(ModelMessage(role="user", content="?"), message, answered))


async def test_agt_11_the_request_is_sent_to_the_right_address_with_the_key(wire):
    wire.script(WHOLE)
    await ask(wire.provider())
    (received,) = wire.requests
    is_responses = isinstance(wire, ResponsesWire)
    assert received.path == ("/responses" if is_responses else "/v1/chat/completions")
    assert received.headers["authorization"] == f"Bearer {responses_wire.KEY if is_responses else chat_wire.KEY}"


@pytest.mark.parametrize(
    "between", [b": a comment\n\n", b"id: 7\n\n", b": a comment\nid: 7\nretry: 10\n\n", b"data:\n\n"]
)
async def test_agt_9_events_without_data_are_ignored(wire: VendorServer, between: bytes) -> None:
    reply = wire.reply(WHOLE)
    wire.script(replace(reply, chunks=tuple(part for chunk in reply.chunks for part in (chunk, between, between))))
    _, response = await ask(wire.provider())
    assert response.text == WHOLE.text


@pytest.mark.parametrize("ending", ["silent", "cut"])
async def test_agt_11_an_answer_is_complete_at_its_finish_reason_even_without_usage(chat, ending, monkeypatch):
    monkeypatch.setattr(OpenAIChatProvider, "run_out", 0.1)
    chunks = [chat_wire.sse(each) for each in (chunk({"content": "So."}), chunk({}, "stop"))]
    reply = Reply.stream(chunks)
    chat.script(reply.silent_after(2) if ending == "silent" else reply.cut_after(2))
    _, response = await ask(chat.provider())
    assert (response.text, response.usage) == ("So.", None)


async def test_agt_10_an_endpoint_that_reports_no_usage_has_none(chat):
    chat.script(chat_wire.stream(chunk({"content": "So."}), chunk({}, "stop")))
    _, response = await ask(chat.provider())
    assert response.usage is None


# ── What a model does not take ───────────────────────────────────────────────────────────────────────────────────────

REFUSES = "Unsupported parameter: '{}' is not supported with this model."


def refusing(parameter: str, message: str = REFUSES) -> Reply:
    body = responses_wire.error_body(
        "invalid_request_error", "unsupported_parameter", message.format(parameter), parameter
    )
    return Reply.error(400, body)


async def test_agt_4_reasoning_is_left_out_after_a_model_rejects_it(responses):
    encrypted = "Encrypted content is not supported with this model."
    responses.script(
        refusing("reasoning.summary"), refusing("include", encrypted), Answer(text="So."), Answer(text="So.")
    )
    provider = responses.provider()
    for _ in range(2):
        _, response = await ask(provider)
        assert response.text == "So."
    sent_fields = [{"reasoning", "include"} & set(received.body) for received in responses.requests]
    assert sent_fields == [{"reasoning", "include"}, {"include"}, set(), set()]


async def test_agt_4_an_unverified_organisation_gets_reasoning_without_summaries(responses):
    refusal = "Your organization must be verified to generate reasoning summaries."
    responses.script(refusing("reasoning.summary", refusal), WHOLE)
    _, response = await ask(responses.provider())
    assert response.state is not None
    assert responses.requests[1].body["include"] == ["reasoning.encrypted_content"]


async def test_agt_4_a_rejection_that_no_omission_resolves_is_reported(responses):
    responses.refuse_always(refusing("reasoning"))
    provider = responses.provider()
    counts = []
    for _ in range(2):
        assert (await failure(provider)).error_type == "bad_request"
        counts.append(len(responses.requests))
    # Without `reasoning`; then, since that is not it, without all parameters, without schemas, without tools.
    assert counts == [5, 9]
    bodies = [received.body for received in responses.requests]
    assert all(before != after for before, after in pairwise(bodies))


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "Unknown parameter: 'stream_options'.", "param": "stream_options", "type": "x"}},
        {  # Mistral
            "object": "error",
            "message": {
                "detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"], "msg": "Not permitted"}]
            },
            "type": "invalid_request_error",
        },
        {"object": "error", "message": "[{'type': 'extra_forbidden', 'loc': ('body', 'stream_options')}]", "code": 400},
        {
            "detail": [
                {"type": "extra_forbidden", "loc": ["body", "stream_options"], "msg": "Extra inputs not permitted"}
            ]
        },
    ],
)
async def test_agt_4_a_parameter_that_an_endpoint_does_not_know_is_left_out(chat, body):
    chat.script(Reply.error(400, body), WHOLE, WHOLE)
    provider = chat.provider()
    for _ in range(2):
        await ask(provider)
    assert ["stream_options" in received.body for received in chat.requests] == [True, False, False]


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "'messages.1' : property 'reasoning_content' is unsupported", "type": "x"}},
        {"detail": [{"loc": ["body", "messages", 1, "assistant", "reasoning_content"], "msg": "Extra inputs"}]},
        {"error": {"message": "Unknown", "param": "messages[1].reasoning_content"}},
    ],
)
async def test_agt_4_thinking_is_not_sent_back_to_an_endpoint_that_rejects_it(chat, body):
    chat.script(WHOLE, Reply.error(422, body), Answer(text="Done."))
    provider = chat.provider()
    _, step = await ask(provider)
    message = ModelMessage(role="assistant", content=step.text, tool_calls=step.calls, state=step.state)
    messages = [
        ModelMessage(role="user", content="?"),
        message,
        ModelMessage(role="tool", content="ok", call_id="call_1"),
    ]
    await ask(provider, asking(*messages))
    has_reasoning = ["reasoning_content" in json.dumps(received.body) for received in chat.requests]
    assert has_reasoning == [False, True, False]


OTHER_SESSION = CallInfo(session_id="other", request=1, attempt=1)
DEMANDS = [
    "The `reasoning_content` in the thinking mode must be passed back to the API.",
    "Missing `reasoning_content` field in the assistant message at message index 1. For more information, please refer "
    "to https://api-docs.deepseek.com/guides/thinking_mode#tool-calls",
    "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2",
    "messages.1.reasoning_content: Field required",
    "[{'type': 'extra_forbidden', 'loc': ('body', 'x_y')}, {'type': 'missing', 'loc': ('body', 'reasoning_content')}]",
]


def request_after_look(step: ModelResponse, *, has_state: bool = True) -> ModelRequest:
    """A request after a step, with or without its state: it is missing in a new segment or after a switch of models."""
    state = step.state if has_state else None
    message = ModelMessage(role="assistant", content=step.text, tool_calls=step.calls, state=state)
    result = ModelMessage(role="tool", content="ok", call_id="call_1")
    return asking(ModelMessage(role="user", content="?"), message, result)


def thoughts_sent(wire: VendorServer) -> list[list[str | None]]:
    """For each request, the thinking in each assistant message."""
    return [
        [message.get("reasoning_content") for message in received.body["messages"] if message["role"] == "assistant"]
        for received in wire.requests
    ]


@pytest.mark.parametrize("demand", DEMANDS)
async def test_agt_4_a_session_without_the_required_thinking_works_and_others_keep_theirs(chat, demand):
    refused = Reply.error(400, {"error": {"message": demand, "type": "invalid_request_error", "param": None}})
    chat.script(WHOLE, refused, *[Answer(text="Done.")] * 3)
    provider = chat.provider()
    _, step = await ask(provider)
    await ask(provider, request_after_look(step, has_state=False), OTHER_SESSION)
    await ask(provider, request_after_look(step))
    await ask(provider, request_after_look(step, has_state=False), OTHER_SESSION)
    assert thoughts_sent(chat) == [[], [None], [" "], ["Where is it?"], [" "]]


async def test_agt_4_a_requirement_that_cannot_be_met_is_reported_after_one_try(chat):
    refused = Reply.error(400, {"error": {"message": DEMANDS[0]}})
    chat.script(WHOLE)
    chat.refuse_always(refused)
    provider = chat.provider()
    _, step = await ask(provider)
    assert (await failure(provider, request_after_look(step, has_state=False))).error_type == "bad_request"
    assert thoughts_sent(chat)[:3] == [[], [None], [" "]]
    count = len(chat.requests)
    assert (await failure(provider, request_after_look(step, has_state=False))).error_type == "bad_request"
    assert thoughts_sent(chat)[count] == [" "]


async def test_agt_4_a_message_field_rejected_in_one_session_is_sent_in_others(chat):
    refused = Reply.error(400, {"error": {"message": "'messages.1' : property 'reasoning_content' is unsupported"}})
    chat.script(WHOLE, refused, *[Answer(text="Done.")] * 3)
    provider = chat.provider()
    _, step = await ask(provider)
    await ask(provider, request_after_look(step), OTHER_SESSION)
    await ask(provider, request_after_look(step), OTHER_SESSION)
    await ask(provider, request_after_look(step))
    assert thoughts_sent(chat) == [[], ["Where is it?"], [None], [None], ["Where is it?"]]


async def test_agt_4_a_field_that_is_rejected_and_then_required_is_not_retried_forever(chat):
    refused = Reply.error(400, {"error": {"message": "Unknown field: reasoning_content"}})
    required = Reply.error(400, {"error": {"message": "Missing field: reasoning_content"}})
    chat.script(WHOLE, refused, required)
    chat.refuse_always(refused)
    provider = chat.provider()
    _, step = await ask(provider)
    assert (await failure(provider, request_after_look(step))).error_type == "bad_request"
    # With the field it would be the first request again.
    assert thoughts_sent(chat)[:4] == [[], ["Where is it?"], [None], [None]]
    assert all(before.body != after.body for before, after in pairwise(chat.requests))
    assert len(chat.requests) <= 1 + MAX_TRIES


async def test_agt_4_two_concurrent_rejections_of_a_parameter_are_both_resolved(chat):
    """The second request is sent, with the parameter, before the refusal of the first one arrives."""
    odd = Reply.error(400, {"error": {"message": "Unknown parameter: 'stream_options'."}}).after_requests(2)
    chat.script(odd, odd, WHOLE, WHOLE)
    provider = chat.provider()
    for answer in await asyncio.gather(ask(provider), ask(provider)):
        assert answer[1].text == "There is a chair."
    assert len(chat.requests) == 4


@pytest.mark.parametrize(
    "error_message",
    [
        "Missing required parameter: 'stream_options'.",
        "stream_options must be sent with stream",
        "stream_options: 7 is too high",
        "We had trouble with stream_options.",
    ],
)
async def test_agt_9_a_parameter_rejected_in_unknown_words_is_left_out_with_its_class(chat, error_message):
    chat.script(Reply.error(400, {"error": {"message": error_message, "param": "stream_options"}}), WHOLE, WHOLE)
    provider = chat.provider()
    for _ in range(2):
        await ask(provider)
    assert ["stream_options" in received.body for received in chat.requests] == [True, False, False]


@pytest.mark.parametrize(
    "error_message",
    [
        "Unrecognized request argument supplied: stream_options",
        "Argument not supported on this model: stream_options",
        "m does not support parameters: ['stream_options']. To drop these, set drop_params.",
        'Invalid JSON payload received. Unknown name "stream_options": Cannot find field.',
        'json: unknown field "stream_options"',
        "body.stream_options: Extra inputs are not permitted; body.x: Field required",
        "stream_options is not allowed",
        "Additional properties are not allowed ('stream_options' was unexpected)",
        "There is a parameter that is no longer supported. It is stream_options.",
    ],
)
async def test_agt_4_parameter_rejections_are_recognised_in_the_words_of_many_servers(chat, error_message):
    chat.script(Reply.error(400, {"error": {"message": error_message}}), WHOLE)
    await ask(chat.provider())
    assert ["stream_options" in received.body for received in chat.requests] == [True, False]


TOO_MUCH = {
    "'max_tokens' or 'max_completion_tokens' is too large: 8024. This model's maximum context length is 8192 tokens.": [
        8024,
        1024,
        8024,
        1024,
    ],
    "max_tokens is too large: 8024. This model supports at most 4096 completion tokens.": [8024, 4096, 4096],
    "Invalid max_tokens value, the valid range of max_tokens is [1, 4096]": [8024, 4096, 4096],
}


@pytest.mark.parametrize("error_message", TOO_MUCH)
async def test_ctx_5_a_summary_is_requested_without_reasoning_if_there_is_no_room_for_it(error_message):
    """A stated limit is remembered; the room for reasoning is left out of each such request."""
    limit = TOO_MUCH[error_message][1]
    async with ChatWire() as chat:
        refusal, answer = Reply.error(400, {"error": {"message": error_message}}), chat.reply(WHOLE)
        chat.server.otherwise = lambda received: refusal if received.body["max_tokens"] > limit else answer
        provider = chat.provider()
        for _ in range(2):
            await ask(provider, asking(max_tokens=1024))
        assert [received.body["max_tokens"] for received in chat.requests] == TOO_MUCH[error_message]


async def test_ctx_5_a_summary_too_long_even_without_reasoning_is_an_error(chat):
    chat.script(*[chat.fault("context_too_long")] * 3)
    provider = chat.provider()
    assert (await failure(provider, asking(max_tokens=1024))).error_type == "context_too_long"
    assert (await failure(provider)).error_type == "context_too_long"
    assert [received.body.get("max_tokens") for received in chat.requests] == [8024, 1024, None]


async def test_agt_6_tools_beyond_the_limit_are_left_out_and_logged_once(wire, caplog):
    request = asking()
    many = [ToolSpec(name=f"look_{number}") for number in range(130)]
    request = request.model_copy(update={"head": request.head.model_copy(update={"tools": many})})
    wire.script(*[Answer(text="So.")] * 2)
    provider = wire.provider()
    for _ in range(2):
        await ask(provider, request)
    if isinstance(wire, ChatWire) and wire.protocol == "text":
        assert wire.requests[0].body["messages"][0]["content"].count("## look_") == 128
    else:
        assert [len(received.body["tools"]) for received in wire.requests] == [128, 128]
    vendor = provider.vendor.title
    assert caplog.messages == [f"{vendor} takes 128 tools; not offered: look_128, look_129"]


@pytest.mark.parametrize("name", ["max_tokens", "stop"])
async def test_agt_4_a_rejected_parameter_that_was_not_sent_is_sent_later(chat, name):
    chat.script(Reply.error(400, {"error": {"message": f"Unsupported parameter: '{name}'", "param": name}}))
    chat.script(WHOLE, WHOLE)
    provider = chat.provider()
    await ask(provider)  # without all parameters
    await ask(provider, asking(max_tokens=1024))
    assert [received.body.get("max_tokens") for received in chat.requests] == [None, None, 8024]


async def test_agt_4_a_parameter_that_openai_rejects_unsent_is_sent_later(responses):
    responses.script(refusing("parallel_tool_calls"), WHOLE, WHOLE)
    provider = responses.provider()
    bare = ModelRequest(head=RequestHead(), messages=asking().messages)
    await ask(provider, bare)  # without all parameters
    await ask(provider, asking(max_tokens=1024))
    assert ["parallel_tool_calls" in received.body for received in responses.requests] == [False, False, True]


async def test_agt_4_a_required_field_that_every_message_has_is_reported_at_once(chat):
    chat.script(WHOLE)
    chat.refuse_always(Reply.error(400, {"error": {"message": DEMANDS[0]}}))
    provider = chat.provider()
    _, step = await ask(provider)
    assert (await failure(provider, request_after_look(step))).error_type == "bad_request"
    assert thoughts_sent(chat)[1] == ["Where is it?"]
    # Without the state there is a message without it.
    assert [None] in thoughts_sent(chat)[2:]


async def test_agt_4_a_rejected_field_that_was_not_sent_is_not_left_out(chat):
    """The state belongs to other calls, so it isn't sent; without the field the request would be the same."""
    chat.script(WHOLE)
    chat.refuse_always(Reply.error(400, {"error": {"message": "Unknown field: reasoning_content"}}))
    provider = chat.provider()
    _, step = await ask(provider)
    other = step.model_copy(update={"parts": [part for part in step.parts if not isinstance(part, CallPart)]})
    message = ModelMessage(role="assistant", content=other.text, state=step.state)
    request = asking(ModelMessage(role="user", content="?"), message, ModelMessage(role="user", content="And?"))
    assert (await failure(provider, request)).error_type == "bad_request"
    assert set(map(str, thoughts_sent(chat)[1:])) == {"[None]"}
    assert all(before.body != after.body for before, after in pairwise(chat.requests))


async def test_agt_4_an_output_limit_is_sent_under_the_name_the_model_accepts(chat):
    error_message = (
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    )
    chat.script(Reply.error(400, {"error": {"message": error_message, "param": "max_tokens"}}), WHOLE)
    await ask(chat.provider(), asking(max_tokens=1024))
    assert [received.body.get("max_completion_tokens") for received in chat.requests] == [None, 8024]


@pytest.mark.parametrize(
    "error_message",
    [
        "registry.ollama.ai/library/gemma:2b does not support tools",
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
        "tools param requires --jinja flag",
    ],
)
async def test_ctx_13_an_error_about_missing_tool_calling_suggests_the_text_protocol(chat, error_message):
    chat.script(Reply.error(400, {"error": {"message": error_message}}), Answer(text="Hello."))
    _, response = await ask(chat.provider())
    assert "tools" not in chat.requests[1].body
    assert left_out_text(response.left_out) == (
        "Left out for this model: tools (openai_chat.protocol='text' is for models without tool calling)"
    )


# ── Refused ──────────────────────────────────────────────────────────────────────────────────────────────────────────

ERROR_TYPES: dict[Fault, str] = {"permission": "auth", "stale_reasoning": "bad_request"}


TOO_LONG: list[tuple[int, Any]] = [
    (400, {"error": {"code": "context_length_exceeded", "type": "invalid_request_error", "message": "Too long"}}),
    (400, {"object": "error", "code": 400, "message": "This model's maximum context length is 4096 tokens. However…"}),
    (400, {"error": {"code": 400, "message": "The prompt (length 9) is longer than the maximum model length of 8."}}),
    (400, {"error": {"code": 400, "type": "exceed_context_size_error", "message": "the request exceeds the context"}}),
    (500, {"error": {"code": 500, "message": "the request exceeds the available context size. try increasing it"}}),
    (400, {"error": "Trying to keep the first 9 tokens when context the overflows. However, the model is loaded with "
                    "context length of only 8 tokens, which is not enough."}),
    (400, "Reached context length of 4096 tokens with this model"),
    (413, "Payload Too Large"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "body"), TOO_LONG)
async def test_ctx_7_a_context_overflow_is_recognised_in_every_servers_words(wire, status, body):
    wire.script(Reply.error(status, body))
    assert (await failure(wire.provider())).error_type == "context_too_long"
    assert len(wire.requests) == 1


@pytest.mark.parametrize(
    "error_message",
    [
        "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
        "Item 'fc_1' of type 'function_call' was provided without its required 'reasoning' item: 'rs_1'.",
        "Item with id 'rs_1' not found. Items are not persisted when `store` is set to false.",
        "Reasoning input items can only be provided to a reasoning or computer use model.",
        "The encrypted content gAAA... could not be verified.",
    ],
)
async def test_agt_9_rejected_reasoning_is_left_out(responses, error_message):
    refusal = Reply.error(400, responses_wire.error_body("invalid_request_error", None, error_message, "input"))
    responses.script(WHOLE, refusal, Answer(text="Done."))
    provider = responses.provider()
    _, step = await ask(provider)
    _, response = await ask(provider, request_after_look(step))
    assert [part.kind for part in response.left_out] == ["state"]
    kinds = [{item.get("type") for item in received.body["input"]} for received in responses.requests]
    assert ["reasoning" in each for each in kinds] == [False, True, False]


@pytest.mark.parametrize(
    ("code", "error_type"),
    [
        ("server_error", "provider_error"),
        ("rate_limit_exceeded", "rate_limited"),
        ("context_length_exceeded", "context_too_long"),
        ("insufficient_quota", "quota"),
        ("invalid_prompt", "refusal"),
        ("bio_policy", "refusal"),
        ("misalignment_policy_violation", "refusal"),
        ("image_content_policy_violation", "refusal"),
        ("data_residency_mismatch", "bad_request"),
        ("vector_store_timeout", "timeout"),
        ("something_new", "provider_error"),
    ],
)
async def test_agt_11_a_failed_response_is_classified_by_its_code(responses, code, error_type):
    events = responses_wire.events_of([], responses_wire.failed(code, "It failed."))
    responses.script(responses_wire.stream(*events, is_known=False))
    error = await failure(responses.provider())
    assert error.error_type == error_type
    assert "req_1" in error.message


async def test_agt_11_an_answer_truncated_by_the_context_limit_is_a_context_overflow(wire):
    wire.script(Answer(text="Half", stop="context_too_long"))
    assert (await failure(wire.provider())).error_type == "context_too_long"


# ── Cut off ──────────────────────────────────────────────────────────────────────────────────────────────────────────


# ── Garbled ──────────────────────────────────────────────────────────────────────────────────────────────────────────

ODD_CHUNKS: dict[str, dict[str, Any]] = {
    "choices": {"choices": 7},
    "a choice": {"choices": [7]},
    "a delta": {"choices": [{"delta": 7}]},
    "text": chunk({"content": 7}),
    "calls": chunk({"tool_calls": 7}),
    "a call": chunk({"tool_calls": [7]}),
    "a function": chunk({"tool_calls": [{"index": 0, "function": 7}]}),
    "an id": chunk({"tool_calls": [{"index": 0, "id": [7], "function": {"name": "look"}}]}, "stop"),
    "a reason": {"choices": [{"delta": {}, "finish_reason": ["stop"]}]},
}
ODD_ITEMS: dict[str, dict[str, Any]] = {
    "content": {"type": "message", "content": 7},
    "a piece": {"type": "message", "content": [7]},
    "text": {"type": "message", "content": [{"text": 7}]},
    "a summary": {"type": "reasoning", "summary": [{"text": 7}]},
    "arguments": {"type": "function_call", "call_id": "a", "name": "look", "arguments": 7},
}


async def test_agt_9_a_stream_that_is_done_without_a_finish_reason_is_incomplete(chat):
    half = Reply.stream([chat_wire.sse(chunk({"content": "So."}))])
    chat.script(chat_wire.stream(chunk({"content": "So."})), half)
    provider = chat.provider()
    done, cut = await failure(provider), await failure(provider)
    assert (done.error_type, done.lasting) == ("provider_error", UNCLEAR_ANSWER)
    assert "without a reason to stop" in done.message
    assert (cut.error_type, cut.lasting) == ("connection", EARLY_END)


LM_STUDIO = (
    "Input does not fit in context length. The input has 9000 tokens, but the context length only supports 8192."
)


@pytest.mark.parametrize("error", [{"message": LM_STUDIO}, LM_STUDIO])
async def test_agt_9_a_context_overflow_with_status_200_is_recognised(chat, error):
    event = b"event: error\ndata: " + json.dumps({"error": error}).encode() + b"\n\n"
    chat.script(Reply.stream([event]), Reply.error(200, {"error": error}))
    provider = chat.provider()
    assert [(await failure(provider)).error_type for _ in range(2)] == ["context_too_long"] * 2


async def test_agt_9_a_wrong_path_with_status_200_is_recognised(chat):
    error_message = "Unexpected endpoint or method. (POST /v1/v1/chat/completions)"
    chat.script(Reply.error(200, {"error": error_message}))
    error = await failure(chat.provider())
    assert error.error_type == "not_found"
    assert "check its name, and the address of the endpoint" in error.message
    assert error_message in error.message


@pytest.mark.parametrize(
    ("code", "message", "error_type"),
    [
        (401, "No auth credentials found", "auth"),
        (402, "Insufficient credits", "quota"),
        ("402", "This request requires more", "quota"),
        (403, "Key not allowed", "auth"),
        (404, "No endpoints found", "not_found"),
        (429, "Slow down", "rate_limited"),
        (502, "Provider disconnected", "provider_error"),
        (400, "Provider returned error", "bad_request"),
    ],
)
async def test_agt_9_an_error_code_in_a_stream_counts_as_the_status(chat, code, message, error_type):
    first_chunk = chat_wire.sse(chunk({"content": "half"}))
    failed = {**chunk({"content": ""}, "error"), "error": {"code": code, "message": message}}
    chat.script(Reply.stream([first_chunk, chat_wire.sse(failed)]))
    assert (await failure(chat.provider())).error_type == error_type
    assert len(chat.requests) == 1


@pytest.mark.parametrize("what", ODD_CHUNKS)
async def test_agt_11_a_malformed_chunk_is_a_provider_error(chat, what):
    chat.script(chat_wire.stream(ODD_CHUNKS[what], is_known=False))
    assert (await failure(chat.provider())).error_type == "provider_error"


@pytest.mark.parametrize("what", ODD_ITEMS)
async def test_agt_11_a_malformed_item_is_a_provider_error(responses, what):
    done = {"type": "response.output_item.done", "output_index": 0, "item": ODD_ITEMS[what]}
    *_, end = responses_wire.events_of([])
    responses.script(responses_wire.stream(done, end, is_known=False))
    assert (await failure(responses.provider())).error_type == "provider_error"


# ── Keys and addresses ───────────────────────────────────────────────────────────────────────────────────────────────

OPENAIS_OWN = ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID")


async def test_agt_4_openai_specific_settings_are_not_sent_to_other_endpoints(chat, monkeypatch):
    for variable in OPENAIS_OWN:
        monkeypatch.setenv(variable, "sk-openais-own-0123")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/elsewhere")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Secret: sk-openais-own\nAuthorization: Bearer sk-openais-own")
    chat.script(WHOLE, WHOLE)
    await ask(chat.provider())
    await ask(OpenAIChatProvider(silence_timeout=BOUND, base_url=chat.base_url))
    assert "sk-openais-own" not in str([received.headers for received in chat.requests])
    assert [received.headers.get("authorization") for received in chat.requests] == [f"Bearer {chat_wire.KEY}", None]


async def test_agt_4_the_environments_key_and_address_are_used(responses, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", responses_wire.KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", responses.base_url)
    responses.script(WHOLE)
    await ask(OpenAIProvider(silence_timeout=BOUND))
    assert responses.requests[0].headers["authorization"] == f"Bearer {responses_wire.KEY}"


@pytest.mark.parametrize("admin_key", [None, "sk-admin-0123456789"])
async def test_agt_4_a_missing_key_error_names_the_variable_to_set(monkeypatch, admin_key):
    for variable in OPENAIS_OWN:
        monkeypatch.delenv(variable, raising=False)
    if admin_key:
        monkeypatch.setenv("OPENAI_ADMIN_KEY", admin_key)
    error = await failure(OpenAIProvider(silence_timeout=1))
    assert (error.error_type, error.message) == ("auth", "no key is set; set OPENAI_API_KEY for the worker")


def test_agt_4_a_missing_address_error_names_the_setting():
    with pytest.raises(ModelError, match=r"set openai_chat\.base_url"):
        ProviderRegistry.from_settings(Settings()).resolve("openai-chat:qwen3")


async def test_agt_4_the_worker_calls_the_endpoint_of_its_settings(monkeypatch):
    async with ChatWire("text") as wire:
        endpoint = {"base_url": wire.base_url, "api_key": chat_wire.KEY, "protocol": "text"}
        provider, name = ProviderRegistry.from_settings(Settings(openai_chat=endpoint)).resolve("openai-chat:qwen3:8b")
        wire.script(WHOLE)
        _, response = await ask(provider)
    assert name == "qwen3:8b"
    assert response.calls[0].name == "look"
    assert wire.requests[0].headers["authorization"] == f"Bearer {chat_wire.KEY}"
    assert "tools" not in wire.requests[0].body


async def test_agt_11_the_fake_servers_reject_unexpected_and_invalid_requests():
    with pytest.raises(ValidationError, match="input"):
        ResponsesWire().check({"model": "m", "stream": True, "input": [{"type": "function_call"}]})
    with pytest.raises(ValidationError, match="content"):
        ChatWire().check({"model": "m", "stream": True, "messages": [{"role": "user"}]})
    orphan = {"type": "function_call_output", "call_id": "a", "output": "x"}
    with pytest.raises(AssertionError):
        ResponsesWire().check({"model": "m", "stream": True, "store": False, "input": [orphan]})
    with pytest.raises(AssertionError):
        ChatWire().check({"model": "m", "stream": True, "messages": [{"role": "assistant", "content": "x"}]})
    with pytest.raises(AssertionError):
        ResponsesWire().check({"model": "m", "stream": True, "store": False, "input": [], "temprature": 1})
