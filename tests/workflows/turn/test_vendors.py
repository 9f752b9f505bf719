"""One story over every API, on a real server with real tools: AGT-1, AGT-3, AGT-4, AGT-8, AGT-10, AGT-11."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from tests.harness import DrivenSession, Environment, environment
from tests.vendors.anthropic_cache import without_breakpoints
from tests.vendors.apis import WIRES
from turnkeeper.activities.providers.provider import ProviderRegistry
from turnkeeper.activities.toolbox.toolbox import build_toolbox
from turnkeeper.models.ids import split_model
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import ConversationMessage, ModelStep
from turnkeeper.testing.vendor_server import Answer, Call, VendorServer

PROMPT = "Read a.txt and read b.txt, and write hello to c.txt"
FOLLOW_UP = "What did I ask first?"

STORY = (
    Answer(
        think="Both have to be read first.",
        text="I read both.",
        calls=[Call("c1", "file_read", {"path": "a.txt"}), Call("c2", "file_read", {"path": "b.txt"})],
        input=200,
        cached=150,
        reasoning=7,
    ),
    Answer(think="Now I can write.", calls=[Call("c3", "file_write", {"path": "c.txt", "content": "hello"})]),
    Answer(text="a.txt says apple, b.txt says banana, and c.txt is written."),
    Answer(text=f"The first thing you asked was: “{PROMPT}”."),
)

ASK_BEFORE_WRITING = {"file_write": "ask"}


@asynccontextmanager
async def with_real_tools(client: Client, wires: Sequence[VendorServer], workspace: Path) -> AsyncIterator[Environment]:
    """A worker that has the models of `wires` and the offline model, and works in `workspace`."""
    (workspace / "a.txt").write_text("apple\n")
    (workspace / "b.txt").write_text("banana\n")
    offline = ProviderRegistry.from_settings(Settings(offline_words_per_second=0))
    factories = {split_model(wire.model)[0]: wire.provider for wire in wires}
    providers = ProviderRegistry({**factories, "offline": lambda: offline.resolve("offline:")[0]})
    async with (
        build_toolbox(Settings(workspace_root=workspace)) as toolbox,
        environment(client, providers=providers, toolbox=toolbox) as env,
    ):
        yield env


async def run_turn(session: DrivenSession, workspace: Path) -> list[ConversationMessage]:
    """Run the session's turns of the story, and return them."""
    await session.prompt(id="p1", text=PROMPT)
    (pending,) = await session.awaited_approvals()
    assert (pending.tool, pending.call_id) == ("file_write", "1.2.0")
    assert not (workspace / "c.txt").exists()
    await session.decide(pending, "approve")
    await session.idle(turns=1)
    await session.prompt(id="p2", text=FOLLOW_UP)
    return await session.idle(turns=2)


@pytest.mark.parametrize("api", [*WIRES, "offline"])
async def test_agt_4_the_same_scenario_works_over_every_api(temporal: Client, tmp_path: Path, api: str) -> None:
    async with AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(WIRES[api]())] if api in WIRES else []
        for wire in wires:
            wire.script(*STORY)
        env = await stack.enter_async_context(with_real_tools(temporal, wires, tmp_path))
        model = wires[0].model if wires else "offline:"
        session = await env.start(SessionInput(model=model, tool_policy=ASK_BEFORE_WRITING))
        first, second = await run_turn(session, tmp_path)

        reading, writing, answering = first.steps
        assert isinstance(reading, ModelStep)
        assert reading.thinking
        assert [call.name for call in reading.tool_calls] == ["file_read", "file_read"]
        assert [call.result.content for call in reading.tool_calls] == ["1: apple", "2: banana"] or all(
            word in call.result.content for word, call in zip(("apple", "banana"), reading.tool_calls, strict=True)
        )
        assert [call.approval.decision for call in writing.tool_calls] == ["approve"]
        assert not answering.tool_calls
        assert first.agent_message
        assert (tmp_path / "c.txt").read_text().strip() == "hello"
        assert PROMPT in (second.agent_message or "")
        assert [first.status, second.status] == ["completed", "completed"]
        used = (await session.state()).session.usage
        assert used == first.usage + second.usage
        for wire in wires:
            assert used.input_tokens == 200 + 3 * 100
            assert (used.cached_tokens, used.reasoning_tokens, used.output_tokens) == (150, 7, 4 * 20)
            assert len(wire.requests) == len(STORY)
            _grows_at_its_end([without_breakpoints(request.body) for request in wire.requests])
            assert PROMPT in wire.requests[-1].raw.decode()
            assert "banana" in wire.requests[-1].raw.decode()


def _grows_at_its_end(bodies: list[dict[str, Any]]) -> None:
    """Messages sent to the vendor never change afterwards: its cache and its reasoning depend on it (CTX-4)."""
    for earlier, later in pairwise(bodies):
        (past,) = {"messages", "input"} & set(earlier)
        assert later[past][: len(earlier[past])] == earlier[past]
        assert {name: value for name, value in later.items() if name != past} == {
            name: value for name, value in earlier.items() if name != past
        }


async def test_agt_3_a_session_switches_to_another_vendor_at_its_next_turn(temporal: Client, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        wires = {name: await stack.enter_async_context(wire()) for name, wire in WIRES.items()}
        env = await stack.enter_async_context(with_real_tools(temporal, list(wires.values()), tmp_path))
        order = [*wires, *reversed(wires)]
        session = await env.start(SessionInput(model=wires[order[0]].model))
        for turn, name in enumerate(order, start=1):
            # Some endpoints use the same ids again and again, of characters that no vendor takes.
            ids = ["call:1", "call:2"] if name == "openai-chat" else [f"{name}_{turn}_1", f"{name}_{turn}_2"]
            calls = [Call(ids[0], "file_read", {"path": "a.txt"}), Call(ids[1], "now")]
            step = Answer(think=f"thought {turn}", text=f"step {turn}", calls=calls)
            wires[name].script(step, Answer(text=f"answer {turn}"))
            await session.update("configure", {"model": wires[name].model})
            await session.prompt(f"prompt {turn}")
            turns = await session.idle(turns=turn)
            assert (turns[-1].status, turns[-1].agent_message) == ("completed", f"answer {turn}")
            body = wires[name].requests[-1].raw.decode()
            for before in range(1, turn):
                assert f"prompt {before}" in body
                assert f"answer {before}" in body
                # Thinking goes back to the API it came from, and to no other.
                assert (f"thought {before}" in body) <= (order[before - 1] == name)
            assert body.count("apple") == turn
