"""The test that every provider must pass: think, use a tool, answer, and continue in a second turn."""

from pathlib import Path
from uuid import uuid4

from temporalio.client import Client

from tests.harness import environment
from turnkeeper.activities.providers.provider import ProviderRegistry
from turnkeeper.activities.toolbox.toolbox import build_toolbox
from turnkeeper.models.ids import split_model
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import ConversationMessage, ModelStep

PATIENCE = 240.0
"""Seconds that a turn may take: a real model thinks for a while."""

SPARING = {"max_steps": 10, "max_tokens_per_turn": 200_000, "turn_timeout": 200}


async def read_and_remember(client: Client, model: str, workspace: Path) -> list[ConversationMessage]:
    """Run two turns of a session with the providers and tools of a worker; return the turns.

    What is to be told is in a file and cannot be guessed, so the tool was used. The second turn is answered from the
    first, whose blocks the vendor is sent back and has to accept, thinking and all (AGT-3).
    """
    secret = f"The harbour light is {uuid4().hex[:8]}"
    (workspace / "notes.txt").write_text(f"# {secret}\n\nIt is seen from afar.\n")
    providers = ProviderRegistry.from_settings(Settings(offline_words_per_second=0))
    async with (
        build_toolbox(Settings(workspace_root=workspace)) as toolbox,
        environment(client, providers=providers, toolbox=toolbox) as env,
    ):
        session = await env.start(SessionInput.model_validate({"model": model, "limits": SPARING}))
        await session.prompt("Think carefully about which tool you need. Read notes.txt and tell me its first heading.")
        await session.until(lambda state: state.status == "idle" and state.session.turn_count == 1, bound=PATIENCE)
        await session.prompt("Which file did you read?")
        state = await session.until(lambda state: state.status == "idle" and len(state.messages) == 2, bound=PATIENCE)
    first, second = state.messages
    assert (first.error, second.error) == (None, None)
    assert secret in (first.agent_message or "")
    assert "notes.txt" in (second.agent_message or "")
    _check_steps(first, is_priced=split_model(model)[0] != "openai-chat")
    assert first.usage is not None
    assert second.usage is not None
    assert state.session.usage == first.usage + second.usage
    return state.messages


def _check_steps(turn: ConversationMessage, *, is_priced: bool) -> None:
    """Check that every step has usage, every call has a result, and the last step answers."""
    *working, last = [step for step in turn.steps if isinstance(step, ModelStep)]
    calls = [call for step in working for call in step.tool_calls]
    assert working
    assert not last.tool_calls
    assert "ok" in [call.result.status for call in calls if call.result]
    for step in (*working, last):
        assert step.model
        assert step.request_id
        assert step.usage is not None
        assert step.usage.input_tokens > 0
        assert step.usage.output_tokens > 0
        assert (step.usage.cost is not None) == is_priced


def has_thought(turns: list[ConversationMessage]) -> bool:
    """Return whether the model thought before it acted: the thinking is shown, or its tokens are counted."""
    steps = [step for turn in turns for step in turn.steps if isinstance(step, ModelStep)]
    return any(step.thinking or (step.usage and step.usage.reasoning_tokens) for step in steps)
