"""A session with a tool that returns images, on each API's wire: AGT-4, CTX-16."""

import pytest
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult, ImageContent, TextContent
from temporalio.client import Client

from tests.harness import UNASKED
from tests.vendors.apis import WIRES
from tests.vendors.environment import vendor_environment
from tests.vendors.media import PNG, base64_of
from turnkeeper.activities.toolbox.tool_server import ToolServer
from turnkeeper.activities.toolbox.toolbox import Toolbox
from turnkeeper.stores.blobs import attachments_owner
from turnkeeper.testing.vendor_server import Answer, Call, Reply

IMAGE = base64_of(PNG + bytes(20_000))
BROKEN = Reply.error(400, {"error": {"type": "invalid_request_error", "message": "Could not process image"}})


async def shot() -> CallToolResult:
    """Return a picture of the screen."""
    return CallToolResult(content=[TextContent(text="taken"), ImageContent(data=IMAGE, mime_type="image/png")])


@pytest.mark.parametrize("api", WIRES)
async def test_agt_4_a_tools_image_is_sent_by_reference_and_a_broken_one_ends_no_turn(
    temporal: Client, api: str
) -> None:
    server = MCPServer("screen", log_level="CRITICAL")
    server.add_tool(shot)
    async with (
        WIRES[api]() as wire,
        Toolbox([ToolServer("screen", server)]) as toolbox,
        vendor_environment(temporal, wire, toolbox=toolbox) as env,
    ):
        session = await env.start(UNASKED.model_copy(update={"model": wire.model}))
        calls = Answer(calls=[Call("call_1", "shot")])
        wire.script(calls, Answer(text="A screen."), calls, BROKEN, Answer(text="I can't read it."))
        wire.script(Answer(text="Hello."))
        for number, text in enumerate(("What is there?", "And now?", "Hello?"), start=1):
            await session.prompt(text=text)
            turns = await session.idle(turns=number)
        (history,) = await session.histories()
        stored = await env.stores.blobs.delete(attachments_owner(session.handle.id))

    assert [turn.agent_message for turn in turns] == ["A screen.", "I can't read it.", "Hello."]
    # Twice the same image: the second one is refused with the first, and so is left out everywhere.
    assert [received.raw.decode().count(IMAGE) for received in wire.requests] == [0, 1, 1, 2, 0, 0]
    assert "could not read it" in wire.requests[-1].raw.decode()
    assert stored == 1
    step = turns[0].steps[0]
    assert step.kind == "model"
    assert step.tool_calls[0].result is not None
    (attached,) = step.tool_calls[0].result.attachments
    assert (attached.bytes, attached.model_dump().get("data")) == (len(PNG) + 20_000, None)
    assert max(len(event.SerializeToString()) for event in history.events) < 20_000
