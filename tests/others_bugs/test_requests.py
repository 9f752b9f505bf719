"""Every request is one that a strict vendor takes, whatever the session has met: AGT-3, AGT-4, AGT-9, CTX-3, CTX-5.

The rules of each vendor stand in `tests/vendors`: a request that breaks one is refused, and is a problem of its server.
"""

import json
import struct
import zlib
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult, ImageContent
from temporalio.client import Client

from tests.api.conftest import gateway
from tests.harness import UNASKED, DrivenSession, Environment, environment, says
from tests.vendors.anthropic_wire import AnthropicWire, error_body
from tests.vendors.apis import WIRES
from tests.vendors.environment import next_turn, vendor_environment
from tests.vendors.media import PNG, base64_of
from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.activities.toolbox.tool_server import ToolServer
from turnkeeper.activities.toolbox.toolbox import Toolbox
from turnkeeper.activities.tools import ToolSource
from turnkeeper.models.context.summary import INSTRUCTION, SUMMARY_MARK
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse, ToolSpec
from turnkeeper.testing.vendor_server import Answer, Call, Received, Reply, VendorServer

SYSTEM = "You look things up in the archive of the city."
SEARCH = ToolSpec(name="file_read", effect="read", built_in=True)

WINDOWS = range(5, 18, 2)
STEPS = (1, 2, 3, 4, 5)
"""How many calls the steps of a turn make."""


@dataclass
class RepeatingModel:
    """Plays turns of `STEPS`; the ids of its calls begin at `search:0` in every step."""

    wire: VendorServer
    left: deque[int] = field(default_factory=deque)
    summaries: int = 0

    def __call__(self, received: Received) -> Reply:
        if self.wire.system_of(received.body) == INSTRUCTION:
            self.summaries += 1
            return self.wire.reply(Answer(text="They searched."))
        self.left = self.left or deque([*STEPS, 0])
        calls = [Call(f"search:{n}", "file_read", {"path": f"{n}.txt"}) for n in range(self.left.popleft())]
        return self.wire.reply(Answer(text="" if calls else "Nothing there.", calls=calls))


@dataclass
class LongConversation:
    wire: VendorServer
    model: RepeatingModel
    statuses: list[str]
    problems: list[str]

    @property
    def turn_bodies(self) -> list[Any]:
        bodies = [received.body for received in self.wire.requests]
        return [body for body in bodies if self.wire.system_of(body) != INSTRUCTION]


@pytest.fixture(scope="module", params=WIRES)
async def conversation(temporal: Client, request: pytest.FixtureRequest) -> AsyncIterator[LongConversation]:
    """A turn in each of `WINDOWS`, with summaries; in the last one the vendor once calls the context too long."""
    async with WIRES[request.param]() as wire, vendor_environment(temporal, wire) as env:
        wire.server.otherwise = model = RepeatingModel(wire)
        env.tools.specs = [SEARCH]
        session = await env.start(SessionInput(model=wire.model, system_prompt=SYSTEM))
        for turn, messages in enumerate(WINDOWS, start=1):
            window = {"max_messages": messages, "preserve_last_n": 2, "evict_block": 3, "summarize_on_trim": True}
            await session.update("configure", {"history": window})
            if turn == len(WINDOWS):
                wire.script(wire.fault("context_too_long"))
            await session.prompt(f"Search for {turn}, please.")
            turns = await session.idle(turns=turn)
        problems, wire.server.problems = wire.server.problems, []
        yield LongConversation(wire, model, [turn.status for turn in turns], problems)


def test_agt_3_call_ids_that_repeat_in_every_step_are_unique(conversation: LongConversation) -> None:
    """A vendor restarts its call ids in each round: calls are dropped, results orphaned, and the chat is dead.

    Reported as open-webui#28305.
    """
    wire = conversation.wire
    assert conversation.problems == []
    for body in conversation.turn_bodies:
        ids = wire.call_ids_of(body)
        assert len(set(ids)) == len(ids)
        assert wire.result_ids_of(body) == ids
    assert max(len(wire.call_ids_of(body)) for body in conversation.turn_bodies) > max(STEPS)
    assert set(conversation.statuses) == {"completed"}


def test_ctx_3_no_window_separates_a_call_from_its_result(conversation: LongConversation) -> None:
    """A window cuts between a call and its result, also among the calls of one step, and the vendor refuses the rest.

    Reported as n8n#34187, langchain#38352, deepagents#270.
    """
    assert conversation.problems == []
    assert set(conversation.statuses) == {"completed"}
    sizes = [len(conversation.wire.call_ids_of(body)) for body in conversation.turn_bodies]
    drops = [before for before, after in pairwise(sizes) if after < before]
    assert len(drops) > len(WINDOWS), "windows have cut in the middle of turns"


def test_ctx_5_a_summary_leaves_the_system_prompt_in_every_request(conversation: LongConversation) -> None:
    """A summary takes the place of the system prompt, and the model forgets who it is.

    Reported as open-webui#26710, browser-use/agent-sdk#3.
    """
    assert conversation.model.summaries > len(WINDOWS) // 2
    assert {conversation.wire.system_of(body) for body in conversation.turn_bodies} == {SYSTEM}
    assert any(SUMMARY_MARK in json.dumps(body) for body in conversation.turn_bodies)


# ---- one turn, and what comes after it


@asynccontextmanager
async def session_on(
    temporal: Client, wire: VendorServer, *, toolbox: ToolSource | None = None, **fields: Any
) -> AsyncIterator[tuple[Environment, DrivenSession]]:
    """A session whose tools run without approval, and which is asked nothing yet."""
    async with vendor_environment(temporal, wire, toolbox=toolbox) as env:
        yield env, await env.start(UNASKED.model_validate({**UNASKED.model_dump(), "model": wire.model, **fields}))


@pytest.mark.parametrize("api", WIRES)
async def test_agt_3_truncated_arguments_are_not_run_and_are_sent_back_as_json(temporal: Client, api: str) -> None:
    """A router says `tool_calls` for an answer that was cut: half of a file is written, or each later request refused.

    Reported as hermes-agent#7680, DSpark#55, truehot/LMLocal#8.
    """
    cut = Call("c1", "pay", '{"path": "a.txt", "content": "line1')
    async with WIRES[api]() as wire, session_on(temporal, wire) as (env, session):
        wire.script(Answer(text="I write.", calls=[cut], stop="tool_calls"), Answer(text="Cut."), Answer(text="Hello."))
        turns = [await next_turn(session, "write a.txt"), await next_turn(session, "hello")]
        assert [turn.agent_message for turn in turns] == ["Cut.", "Hello."]
        assert env.tools.calls == []
        (call,) = turns[0].steps[0].tool_calls
        assert (call.result.status, call.result.outcome) == ("error", "The arguments of pay are not a JSON object")
        assert len(wire.requests) == 3


MODIFIED = (
    "messages.1.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be "
    "modified. These blocks must remain as they were in the original response."
)
SIGNATURE = "messages.1.content.0: Invalid `signature` in `thinking` block"


@pytest.mark.parametrize("words", [MODIFIED, SIGNATURE], ids=["modified", "signature"])
async def test_agt_9_thinking_of_a_changed_model_is_dropped_once(temporal: Client, words: str) -> None:
    """A vendor changes the model under a session and refuses its old thinking in each request: the session is dead.

    Reported as claude-code#63229, claude-code#63293, hermes-agent#17861, hermes-agent#43667, copilot-cli#3407.
    """
    refused: set[str] = set()
    refusals = 0

    def answer(received: Received) -> Reply:
        nonlocal refusals
        if any(thought in received.raw.decode() for thought in refused):
            refusals += 1
            return Reply.error(400, error_body("invalid_request_error", words))
        return wire.reply(answers.popleft())

    look = [Call("c1", "look")]
    answers = deque(
        Answer(think=f"thought {number}", text=f"text {number}", calls=look if number % 2 else ())
        for number in range(1, 7)
    )
    async with AnthropicWire() as wire, session_on(temporal, wire) as (env, session):
        wire.server.otherwise = answer
        env.tools.gate.close()
        await session.prompt("look")
        await env.tools.gate.until_arrived(1)
        refused.add("thought 1")  # in the middle of a turn
        env.tools.gate.open()
        await session.idle(turns=1)
        await next_turn(session, "look again")
        refused.update({"thought 2", "thought 3", "thought 4"})  # between two turns
        await next_turn(session, "and again")
        turns = await session.idle(turns=3)
        assert [turn.agent_message for turn in turns] == ["text 2", "text 4", "text 6"]
        assert refusals == 2
        assert "text 4" in wire.requests[-1].raw.decode()


@pytest.mark.parametrize("max_messages", [2, 4])
async def test_ctx_5_a_window_below_the_mandatory_messages_costs_few_requests(
    temporal: Client, max_messages: int
) -> None:
    """A window smaller than the messages that must stay is condensed forever.

    Reported as OpenHands#10873, software-agent-sdk#1073, software-agent-sdk#2034.
    """
    window = {"max_messages": max_messages, "preserve_last_n": 20, "summarize_on_trim": True}
    max_chars = 1_000_000

    def answer(request: ModelRequest) -> ModelResponse | ModelError:
        chars = sum(len(message.content) for message in request.messages)
        return says("noted") if chars < max_chars else ModelError("context_too_long", "too long")

    async with environment(temporal) as env:
        env.vendor.answer = env.vendor.summarise = answer
        session = await env.start(SessionInput.model_validate({"history": window}))
        counts = []
        for number in range(1, 25):
            if number > 20:
                max_chars = 1_500  # another model, whose context is smaller than what must stay
                await session.update("configure", {"model": "offline:small"})
            before = len(env.vendor.requests)
            turn = await next_turn(session, f"note {number}: {'and more ' * 40}")
            counts.append(len(env.vendor.requests) - before)
        assert 20 < sum(counts[:20]) <= 22
        # A request that is too long is shortened twice, with a summary each time, which is shortened twice too.
        assert max(counts) <= 3 * (1 + 3)
        assert sum(counts[20:]) <= 4 + 3 * (1 + 3)
        assert (turn.status, turn.agent_message) == ("completed", "noted")


def wide_png(width: int) -> bytes:
    """Return an image of a few bytes and one row."""
    parts = [(b"IHDR", struct.pack(">IIBBBBB", width, 1, 1, 0, 0, 0, 0)), (b"IEND", b"")]
    parts.insert(1, (b"IDAT", zlib.compress(bytes(1 + width // 8))))
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return PNG[:8] + b"".join(chunks)


MAX_PIXELS = 8_000
OF_TOOL, OF_PROMPT = base64_of(wide_png(10_000)), base64_of(wide_png(9_000))
TOO_WIDE = Reply.error(
    400,
    {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "messages.0.content.1.image.source.base64.data: At least one of the image dimensions exceed max "
            f"allowed size: {MAX_PIXELS} pixels",
        },
    },
)


def images_in(received: Received) -> list[str]:
    return [image for image in (OF_TOOL, OF_PROMPT) if image in received.raw.decode()]


async def panorama() -> CallToolResult:
    """Return a picture of the whole street."""
    return CallToolResult(content=[ImageContent(data=OF_TOOL, mime_type="image/png")])


@pytest.mark.parametrize("api", WIRES)
async def test_agt_4_an_image_with_too_many_pixels_is_left_out(temporal: Client, api: str) -> None:
    """An image of few bytes and 10,000 pixels is in the conversation, and the vendor refuses each later request.

    Reported as hermes-agent#25837, hermes-agent#37677.
    """
    server = MCPServer("camera", log_level="CRITICAL")
    server.add_tool(panorama)
    answers = deque([Answer(calls=[Call("c1", "panorama")]), *(Answer(text=f"text {number}") for number in range(3))])

    def answer(received: Received) -> Reply:
        return TOO_WIDE if images_in(received) else wire.reply(answers.popleft())

    async with WIRES[api]() as wire, Toolbox([ToolServer("camera", server)]) as toolbox:
        wire.server.otherwise = answer
        async with session_on(temporal, wire, toolbox=toolbox) as (_, session):
            image = {"type": "image", "name": "street.png", "media_type": "image/png", "data": OF_PROMPT}
            turns = [
                await next_turn(session, "Look at the street."),
                await next_turn(session, "And this one?", attachments=[image]),
                await next_turn(session, "Thanks."),
            ]
        assert [turn.agent_message for turn in turns] == ["text 0", "text 1", "text 2"]
        # Each is refused once, by the request that has it first.
        assert [images_in(received) for received in wire.requests] == [[], [OF_TOOL], [], [OF_PROMPT], [], []]
        assert "street.png" in wire.requests[-1].raw.decode()


MAX_BODY_BYTES = 1_200_000
TOO_LARGE = Reply.error(
    413, {"type": "error", "error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}}
)


async def test_agt_4_accumulated_images_do_not_block_prompts(temporal: Client) -> None:
    """Images pile up until each request is over the vendor's size: 413 forever, despite few tokens.

    Reported as code-yeongyu/senpi#302.
    """

    def answer(received: Received) -> Reply:
        return TOO_LARGE if len(received.raw) > MAX_BODY_BYTES else wire.reply(Answer(text="Seen."))

    def image(number: int) -> dict[str, Any]:
        content = base64_of(PNG + bytes([number]) * 250_000)
        return {"type": "image", "name": f"{number}.png", "media_type": "image/png", "data": content}

    async with AnthropicWire() as wire, session_on(temporal, wire) as (env, session):
        wire.server.otherwise = answer
        async with gateway(temporal, env.task_queue, env.settings.state_dir) as http:
            for number in range(1, 7):
                images = [image(2 * number), image(2 * number + 1)]
                body = {"message": "What is it?", "attachments": images}
                assert (await http.post(f"/workflow/{session.handle.id}/prompt", json=body)).status_code == 202
                (turn, *_) = reversed(await session.idle(turns=number))
                assert (turn.status, turn.agent_message) == ("completed", "Seen.")
                assert images[1]["data"] in wire.requests[-1].raw.decode(), "the newest image is sent"
        assert len(wire.requests) <= 2 * 6


@pytest.mark.parametrize("api", WIRES)
async def test_agt_7_each_call_has_a_result_however_its_turn_ended(temporal: Client, api: str) -> None:
    """After a stop, a limit or a denial there are fewer results than calls, and the vendor refuses each later request.

    Reported as gemini-cli#3814, gemini-cli#5443.
    """
    async with WIRES[api]() as wire, session_on(temporal, wire, tool_policy={"look": "deny"}) as (env, session):
        calls = 0

        def answer(received: Received) -> Reply:
            nonlocal calls
            if not has_calls:
                return wire.reply(Answer(text="Well."))
            calls += 5
            has_calls.clear()
            return wire.reply(Answer(calls=[Call(f"{calls}_{n}", "look", {"n": n}) for n in range(5)]))

        has_calls = {"yes"}
        wire.server.otherwise = answer
        await next_turn(session, "denied")
        for change in (
            {"limits": {"max_tool_calls": 3}, "tool_policy": {"look": "allow"}},
            {"limits": {"max_tool_calls": 50, "approval_timeout": 0.2}, "tool_policy": {"look": "ask"}},
        ):
            await session.update("configure", change)
            has_calls.add("yes")
            await next_turn(session, "limited, then expired")
        await session.update("configure", {"tool_policy": {"look": "allow"}})
        has_calls.add("yes")
        env.tools.gate.close()
        await session.prompt(id="stopped", text="stopped")
        await env.tools.gate.until_arrived(1)
        await session.update("cancel_turn", {"message_id": "stopped"})
        turn = await next_turn(session, "and now?")
        assert turn.agent_message == "Well."
        last = wire.requests[-1].body
        assert len(wire.call_ids_of(last)) == len(wire.result_ids_of(last)) == 4 * 5
