"""One refused part never ends a session: what is left out, for all vendors and parts (AGT-9)."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.vendors.apis import WIRES
from turnkeeper.activities.providers.blamed_parts import media_at
from turnkeeper.activities.providers.protocol import CallInfo, ModelError
from turnkeeper.activities.providers.provider import ProviderRegistry
from turnkeeper.activities.providers.refused_parts import RefusableApi
from turnkeeper.activities.providers.vendor_provider import MAX_TRIES, MEMORY_SECONDS, RefusedParts
from turnkeeper.models.transcript.attachments import PDF, FileAttachment, ImageAttachment
from turnkeeper.models.transcript.model_call import (
    CallPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ProviderState,
    RefusedPart,
    RequestHead,
    ToolSpec,
)
from turnkeeper.testing.vendor_server import BOUND, Answer, Received, Reply, VendorServer

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
TOOLS = [
    ToolSpec(name="now", input_schema={"type": "object", "properties": {}}),
    ToolSpec(name="array_noitems", input_schema={"type": "object", "properties": {"a": {"const": "odd"}}}),
    ToolSpec(name="look", input_schema={"type": "object", "properties": {"at": {"type": "string"}}}),
]
STATES = {
    "anthropic": ProviderState(
        api="anthropic.messages",
        model="m",
        items=[
            {"type": "thinking", "thinking": "Left.", "signature": "opaque"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "call_1", "name": "look", "input": {"at": "left"}},
        ],
    ),
    "openai": ProviderState(
        api="openai.responses",
        model="m",
        items=[
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "opaque"},
            {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": '{"at": "left"}'},
        ],
    ),
    "openai-chat": ProviderState(
        api="openai.chat",
        model="m",
        items=[{"reasoning_content": "opaque"}, {"type": "function", "id": "call_1"}],
    ),
}
MODELS = {"anthropic": "claude-sonnet-5-5", "openai": "gpt-5.5", "openai-chat": "qwen3"}


def conversation(api: str) -> ModelRequest:
    """Return a request with a part of each kind."""
    state = STATES[api].model_copy(update={"model": MODELS[api]})
    call = CallPart(kind="call", id="call_1", name="look", args={"at": "left"})
    image = ImageAttachment(type="image", name="cat.png", media_type="image/png", data=PNG)
    paper = FileAttachment(type="file", name="a.pdf", media_type=PDF, data="JVBERi0xLjQ=")
    messages = [
        ModelMessage(role="user", content="What is there?", attachments=[image, paper]),
        ModelMessage(role="assistant", content="I look.", tool_calls=[call], state=state),
        ModelMessage(role="tool", call_id="call_1", tool_name="look", content="ok\n\nA chair."),
    ]
    return ModelRequest(head=RequestHead(system="Be brief.", tools=TOOLS), messages=messages)


@dataclass(frozen=True)
class Rule:
    """A part that a strict vendor refuses, and its words with all it can name: `{name}` and `{index}` of a tool."""

    name: str
    is_broken: Callable[[Any], bool]
    wordings: tuple[str, ...] = ()
    apis: tuple[str, ...] = tuple(WIRES)


def tools_in(body: Any) -> list[dict[str, Any]]:
    return [tool.get("function", tool) for tool in body.get("tools", [])]


def odd_index(body: Any) -> int:
    tools = tools_in(body)
    return next((index for index, tool in enumerate(tools) if '"const"' in schema_json(tool)), -1)


def schema_json(tool: Mapping[str, Any]) -> str:
    return json.dumps(tool.get("parameters") or tool.get("input_schema") or {})


def contains(text: str) -> Callable[[Any], bool]:
    return lambda body: text in json.dumps(body)


def has_top(name: str) -> Callable[[Any], bool]:
    return lambda body: name in body


def is_over(name: str, limit: int) -> Callable[[Any], bool]:
    return lambda body: body.get(name, 0) > limit


RULES = [
    Rule(
        "the schema of a tool",
        lambda body: odd_index(body) >= 0,
        (
            "Invalid schema for function '{name}': In context=('properties', 'a'), array schema missing items.",
            "tools[{index}].function.parameters: unsupported keyword 'const'",
            "tools.{index}.custom.input_schema: unsupported keyword 'anyOf'",
            "GenerateContentRequest.tools[0].function_declarations[{index}].parameters.properties[a].items: missing.",
            "tool {name} has a parameter that we do not like",
        ),
    ),
    Rule(
        "a tool",
        lambda body: any(tool["name"] == "array_noitems" for tool in tools_in(body)),
        ("The name of tool '{name}' is reserved.", "tools.{index}: this tool is not allowed here"),
    ),
    Rule("tools", has_top("tools"), ("this model does not support tools", "Tools are nothing for me.")),
    Rule(
        "images",
        contains(PNG),
        ("Model does not support images.", "Could not process image", "messages[0].content must be a string"),
    ),
    Rule(
        "a file",
        contains("JVBERi0xLjQ="),
        ("PDF input is not supported", "A maximum of 100 PDF pages may be provided."),
    ),
    Rule(
        "reasoning",
        contains("opaque"),
        (
            "Encrypted reasoning item was created by a different model and cannot be used",
            "Invalid `signature` in `thinking` block",
            "the thought block is from elsewhere",
        ),
    ),
    Rule(
        "max_tokens",
        is_over("max_tokens", 8_192),
        ("max_tokens: {value} > 8192", "max_tokens: too large"),
        ("anthropic",),
    ),
    Rule(
        "thinking",
        has_top("thinking"),
        ("adaptive thinking is not supported", "thinking: Extra inputs are not permitted"),
        ("anthropic",),
    ),
    Rule(
        "thinking.display",
        contains('"display"'),
        ("thinking.adaptive.display: Extra inputs are not permitted",),
        ("anthropic",),
    ),
    Rule(
        "cache_control",
        contains("cache_control"),
        ("system.0.cache_control: Extra inputs are not permitted",),
        ("anthropic",),
    ),
    Rule("store", has_top("store"), ("Unknown parameter: 'store'.",), ("openai",)),
    Rule("reasoning parameters", has_top("reasoning"), ("Unsupported parameter: 'reasoning'.",), ("openai",)),
    Rule("include", has_top("include"), ("Unknown parameter: 'include'.",), ("openai",)),
    Rule("stream_options", has_top("stream_options"), ("Unknown field: stream_options",), ("openai-chat",)),
]
UNNAMED = ("Bad Request", "", "Something in it is not to our taste.")
CANNOT_BE_UNNAMED = {"store", "max_tokens"}
"""Without a word that names them these are not left out: storage would begin, and the API requires a length."""


class StrictVendor:
    """Refuses each request with a part that it does not take, in its own words, and answers all others."""

    def __init__(self, wire: VendorServer, rule: Rule, words: str) -> None:
        self._rule = rule
        self._words = words
        self._answer = wire.reply(Answer(text="Done."))
        self.refusals = 0
        wire.server.check = lambda body: None  # it is stricter here, and laxer there, than the vendor's own types
        wire.server.requests.clear()
        wire.server.otherwise = self.reply

    def reply(self, received: Received) -> Reply:
        body = received.body
        if not self._rule.is_broken(body):
            return self._answer
        self.refusals += 1
        index = next((at for at, tool in enumerate(tools_in(body)) if tool["name"] == "array_noitems"), -1)
        words = self._words.replace("{name}", "array_noitems").replace("{index}", str(index))
        words = words.replace("{value}", str(body.get("max_tokens")))
        return Reply.error(400, {"error": {"type": "invalid_request_error", "message": words}})


def cases() -> Iterator[tuple[str, Rule, str]]:
    for rule in RULES:
        for api in rule.apis:
            for words in (*rule.wordings, *(UNNAMED if rule.name not in CANNOT_BE_UNNAMED else ())):
                yield api, rule, words


async def ask(wire: VendorServer, provider: Any, request: ModelRequest, info: CallInfo) -> ModelResponse:
    async with asyncio.timeout(BOUND), aclosing(provider.stream(MODELS[api_of(wire)], request, info)) as pieces:
        received = [piece async for piece in pieces]
    assert isinstance(received[-1], ModelResponse)
    return received[-1]


def api_of(wire: VendorServer) -> str:
    return wire.model.partition(":")[0]


INFO = CallInfo(session_id="s", request=1, attempt=1)
CASES = list(cases())


@pytest.mark.parametrize("api", WIRES)
async def test_agt_9_a_session_answers_after_any_single_part_is_rejected(api: str) -> None:
    """Also on another worker, which knows only what the session carries; no later turn has a refused request."""
    async with WIRES[api]() as wire:
        for _, rule, words in [case for case in CASES if case[0] == api]:
            case, vendor = (api, rule.name, words), StrictVendor(wire, rule, words)
            provider = wire.provider()
            request = conversation(api)
            first = await ask(wire, provider, request, INFO)
            assert first.text == "Done.", case
            assert first.left_out, case
            assert all(part.reason for part in first.left_out), case
            assert len(wire.requests) <= MAX_TRIES, case
            assert all(before.raw != after.raw for before, after in pairwise(wire.requests)), case
            refused = vendor.refusals
            if any(part.kind == "state" for part in first.left_out):  # the workflow begins a segment without it
                messages = [message.model_copy(update={"state": None}) for message in request.messages]
                request = request.model_copy(update={"messages": messages})
            await ask(wire, provider, request, INFO)
            on_another_worker = replace(INFO, left_out=tuple(first.left_out))
            second = await ask(wire, wire.provider(), request, on_another_worker)
            assert (vendor.refusals, second.left_out) == (refused, []), case


def test_agt_9_the_table_of_rejected_parts_is_large() -> None:
    assert len(CASES) >= 90


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=st.sampled_from(CASES), before=st.text(max_size=40), after=st.text(max_size=40))
def test_agt_9_a_rejected_part_is_found_in_any_surrounding_text(
    case: tuple[str, Rule, str], before: str, after: str
) -> None:
    api, rule, words = case
    around = f"{before.replace('{', '')} {words} {after.replace('{', '')}"

    async def answer() -> str:
        async with WIRES[api]() as wire:
            StrictVendor(wire, rule, around)
            return (await ask(wire, wire.provider(), conversation(api), INFO)).text

    assert asyncio.run(answer()) == "Done."


# ---- what is left out, and what stays


async def test_agt_9_a_tool_is_offered_with_its_schema_as_text_before_it_is_left_out() -> None:
    async with WIRES["openai"]() as wire:
        StrictVendor(wire, RULES[0], RULES[0].wordings[0])
        response = await ask(wire, wire.provider(), conversation("openai"), INFO)
        tools = {tool["name"]: tool for tool in wire.requests[-1].body["tools"]}
    assert [part.text for part in response.left_out] == [
        "schema of the tool array_noitems (the model's provider refused it)"
    ]
    assert '"const"' in tools["array_noitems"]["description"]
    assert "at" in tools["look"]["parameters"]["properties"]


async def test_agt_9_a_changed_tool_is_offered_again() -> None:
    async with WIRES["openai"]() as wire:
        vendor = StrictVendor(wire, RULES[0], RULES[0].wordings[0])
        provider, request = wire.provider(), conversation("openai")
        await ask(wire, provider, request, INFO)
        fixed = [tool.model_copy(update={"input_schema": TOOLS[2].input_schema}) for tool in TOOLS]
        request = request.model_copy(update={"head": RequestHead(tools=fixed)})
        await ask(wire, provider, request, INFO)
        assert vendor.refusals == 1
        assert "at" in wire.requests[-1].body["tools"][1]["parameters"]["properties"]


async def test_agt_9_only_the_class_of_parts_that_caused_the_error_stays_left_out() -> None:
    async with WIRES["openai-chat"]() as wire:
        StrictVendor(wire, Rule("images", contains(PNG)), "Bad Request")
        provider, request = wire.provider(), conversation("openai-chat")
        response = await ask(wire, provider, request, INFO)
        assert {part.kind for part in response.left_out} == {"attachment"}
        await ask(wire, provider, request, INFO)
        body = wire.requests[-1].body
        assert ("stream_options" in body, "opaque" in json.dumps(body), PNG in json.dumps(body)) == (True, True, False)


async def test_agt_9_tools_that_were_accepted_before_are_not_left_out_of_longer_requests() -> None:
    """They stay, and the error says that nothing explains it: then its length may be the reason."""
    async with WIRES["openai-chat"]() as wire:
        wire.refuse_always(Reply.error(400, {"error": {"message": "Bad Request"}}))
        with pytest.raises(ModelError) as raised:
            await ask(wire, wire.provider(), conversation("openai-chat"), replace(INFO, may_be_too_long=True))
        assert raised.value.is_unexplained
        assert all("tools" in received.body and "stream_options" in received.body for received in wire.requests)


async def test_agt_9_vendor_side_storage_is_never_enabled_by_a_retry() -> None:
    async with WIRES["openai"]() as wire:
        wire.refuse_always(Reply.error(400, {"error": {"message": "Bad Request"}}))
        with pytest.raises(ModelError):
            await ask(wire, wire.provider(), conversation("openai"), INFO)
        assert all(received.body["store"] is False for received in wire.requests)
        assert len(wire.requests) <= MAX_TRIES


# ---- memory


def part(name: str, kind: Any = "parameter", limit: int | None = None) -> RefusedPart:
    return RefusedPart(kind=kind, name=name, limit=limit, reason="it was refused")


def test_agt_9_a_rejected_part_is_tried_again_after_a_day_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    times = [0.0]
    memory = RefusedParts(RefusableApi(), clock=lambda: times[-1])
    for _ in range(2):
        memory.learn("m", "s", [part("stream_options")])
    for moment, count in ((MEMORY_SECONDS - 1, 1), (MEMORY_SECONDS, 0)):
        times.append(moment)
        assert len(memory.parts_of("m", "s")) == count
    assert caplog.messages == [
        "m refused a part of a request, left out for 86400 s: parameter stream_options (it was refused)"
    ]


def test_agt_9_parameters_are_rejected_per_model_and_contents_per_session() -> None:
    memory = RefusedParts(RefusableApi())
    memory.learn("m", "s", [part("a_b"), part("x", "field"), part("hash", "attachment"), part("", "state")])
    assert [each.name for each in memory.parts_of("m", "s")] == ["a_b", "x", "hash"]
    assert [each.name for each in memory.parts_of("m", "other")] == ["a_b"]
    assert memory.parts_of("n", "s") == RefusedParts(RefusableApi()).parts_of("m", "s") == []


def test_agt_9_the_record_of_rejected_parts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnkeeper.activities.providers.vendor_provider.MAX_REMEMBERED", 2)
    memory = RefusedParts(RefusableApi())
    for session in ("s1", "s2", "s3"):
        memory.learn("m", session, [part("x", "field")])
    assert [len(memory.parts_of("m", session)) for session in ("s1", "s2", "s3")] == [0, 1, 1]


# ---- attachments


def images(count: int, *, size: int = 1) -> list[ImageAttachment]:
    return [
        ImageAttachment(type="image", name=str(number), media_type="image/png", data=PNG[:40] + str(number) * 4 * size)
        for number in range(count)
    ]


def sent_images(received: Received, among: list[ImageAttachment]) -> list[str]:
    return [image.name or "" for image in among if image.data in received.raw.decode()]


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("At most 1 image(s) may be provided in one request.", ["3"]),
        ("At most 3 image(s) may be provided in one request.", ["1", "2", "3"]),
        ("Too many images in request.", ["2", "3"]),
        ("Too many images in request. Max is 9.", ["2", "3"]),
        ("messages.0.content.2.image.source.base64: Could not process image", ["0", "2", "3"]),
        ("Could not process image", ["0", "1"]),  # the images of the newest message
    ],
)
async def test_agt_4_only_the_rejected_images_are_left_out(words: str, left: list[str]) -> None:
    all_images = images(4)
    halves = all_images[:2], all_images[2:]
    messages = [
        ModelMessage(role="user", content="Look.", attachments=list(halves[0])),
        ModelMessage(role="assistant", content="Cats."),
        ModelMessage(role="user", content="And these?", attachments=list(halves[1])),
    ]
    request = ModelRequest(head=RequestHead(), messages=messages)
    async with WIRES["anthropic"]() as wire:
        wire.server.check = lambda body: None
        wire.script(Reply.error(400, {"error": {"message": words}}), *[Answer(text="Cats.")] * 2)
        provider = wire.provider()
        for info in (INFO, replace(INFO, session_id="other")):
            await ask(wire, provider, request, info)
        visible = [sent_images(received, all_images) for received in wire.requests]
    # A refusal in one session hides no image in another.
    assert visible == [["0", "1", "2", "3"], left, ["0", "1", "2", "3"]]


def test_agt_4_a_position_in_the_body_identifies_its_image() -> None:
    first, second = images(2)
    body = {"messages": [{"content": [{"type": "text"}, *({"source": {"data": one.data}} for one in (first, second))]}]}
    assert media_at("messages.0.content.2.image.source.base64", body, [first, second]) == [second]
    assert media_at("messages.0.content.9", body, [first, second]) == []


async def test_agt_9_a_worker_reports_the_parts_left_out_for_each_model() -> None:
    """`turnkeeper doctor` shows it for all sessions, without the parts that only one session had rejected."""
    async with WIRES["openai-chat"]() as wire:
        providers = ProviderRegistry({"openai-chat": wire.provider})
        provider, _ = providers.resolve(wire.model)
        assert providers.refused_parts() == {}
        for name in ("stream_options", "a file"):
            rule = next(rule for rule in RULES if rule.name == name)
            StrictVendor(wire, rule, rule.wordings[0])
            await ask(wire, provider, conversation("openai-chat"), INFO)
    assert providers.refused_parts() == {
        "openai-chat:qwen3": [
            "parameter stream_options (the model's provider refused it)",
            "PDFs (the model does not read them)",
        ]
    }
