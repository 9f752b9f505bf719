"""`turnkeeper chat` without a person: pipes, scripts, `--json`: API-6."""

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.clients.terminal.conftest import plain_env, run_chat
from tests.clients.terminal.terminal import turnkeeper_terminal
from tests.harness import Environment, Gate, asks, says
from turnkeeper.activities.providers.protocol import Delta, ModelError
from turnkeeper.clients.python.conversation import Conversation, UpdateEvent
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.clients.terminal.one_shot import OneShotPrompt
from turnkeeper.models.transcript.model_call import ToolSpec


def events_in(out: str) -> list[tuple[str, dict[str, Any]]]:
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert all(line.keys() == {"event", "data"} for line in lines)
    return [(line["event"], line["data"]) for line in lines]


async def test_api_6_a_piped_message_prints_only_its_answer(url: str, env: Environment, tmp_path: Path) -> None:
    env.vendor.script = [asks(("look", {}), text="I will look."), says("It is **4711**.")]
    ended = await run_chat("--url", url, cwd=tmp_path, stdin="what is the code?\n")
    assert (ended.code, ended.out, ended.err) == (0, "It is **4711**.\n", "")
    assert env.vendor.requests[0].messages[-1].content.strip() == "what is the code?"


async def test_api_6_a_message_on_the_command_line_can_continue_a_session(
    url: str, gateway: GatewayClient, tmp_path: Path
) -> None:
    session = f"t-{uuid4()}"
    await gateway.start(session)
    for number in (1, 2):
        ended = await run_chat(f"m{number}", "--session", session, "--url", url, cwd=tmp_path)
        assert (ended.code, ended.out) == (0, f"echo: m{number}\n")
    assert (await gateway.describe(session)).turn_count == 2


async def test_api_6_a_failed_turn_prints_its_error_to_stderr(url: str, env: Environment, tmp_path: Path) -> None:
    env.vendor.script = [ModelError("bad_request", "no such parameter")]
    ended = await run_chat("hello", "--url", url, cwd=tmp_path)
    assert (ended.code, ended.out) == (1, "")
    assert "no such parameter" in ended.err


async def test_ses_9_the_partial_text_of_a_failed_answer_is_printed_to_stderr(
    url: str, env: Environment, tmp_path: Path
) -> None:
    broken_off = [Delta("respond", "It was a dark"), ModelError("bad_request", "no such parameter")]
    env.vendor.script = [broken_off, broken_off]
    ended = await run_chat("hello", "--url", url, cwd=tmp_path)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("It was a dark\n(stopped here)\n")
    assert "no such parameter" in ended.err
    as_json = await run_chat("hello", "--json", "--url", url, cwd=tmp_path)
    (final,) = [data for name, data in events_in(as_json.out) if name == "final"]
    assert (as_json.code, final["answer"], final["unfinished"]) == (1, None, "It was a dark")


async def test_api_6_a_pending_approval_exits_with_3_and_prints_how_to_decide(
    url: str, env: Environment, gateway: GatewayClient, tmp_path: Path
) -> None:
    env.tools.specs = [ToolSpec(name="send_mail")]
    env.vendor.script = [asks(("send_mail", {"to": "bob"}))]
    ended = await run_chat("write to bob", "--url", url, cwd=tmp_path)
    assert (ended.code, ended.out) == (3, "")
    session = ended.err.split("--session ")[1].split()[0]
    assert ended.err == (
        "Approval needed:\n\nTool: send_mail\nServer: built in\nEffect: changes something; runs at most once\n"
        'Arguments:\n  to: "bob"\n'
        f"Your prompt is safe. Decide with: turnkeeper chat --session {session} --url {url}\n"
    )
    assert (await gateway.describe(session)).status == "awaiting_approval"


async def with_held_answer(env: Environment, gateway: GatewayClient) -> str:
    """Start a session whose model has been asked and answers once the vendor's gate is opened; return its id."""
    env.vendor.gate.close()
    session = f"t-{uuid4()}"
    await gateway.start(session, prompt="slow")
    await env.vendor.gate.until_arrived(1)
    return session


async def test_api_6_withdrawing_a_prompt_elsewhere_ends_the_wait_for_it(
    url: str, env: Environment, gateway: GatewayClient, tmp_path: Path
) -> None:
    session = await with_held_answer(env, gateway)
    command = ["chat", "waits", "--session", session, "--url", url, "--json"]
    async with turnkeeper_terminal(*command, env=plain_env(), cwd=tmp_path, columns=2_000) as terminal:
        await terminal.until('"text":"waits"')
        (waiting,) = (await gateway.queue(session)).waiting
        await gateway.withdraw(session, waiting.id)
        assert await terminal.exit_code() == 1
        await terminal.until("was withdrawn")


async def test_api_6_a_blank_message_is_not_sent(url: str, tmp_path: Path) -> None:
    ended = await run_chat("--url", url, cwd=tmp_path, stdin="  \n")
    assert (ended.code, ended.out, ended.err) == (1, "", "Nothing to send: the message is blank.\n")


async def test_api_6_json_prints_one_event_per_line(url: str, env: Environment, tmp_path: Path) -> None:
    gate = Gate(is_open=False)
    env.vendor.script = [[Delta("respond", "Hel"), gate, Delta("respond", "lo"), says("Hello!")]]
    command = ["chat", "--json", "hi", "--url", url]
    async with turnkeeper_terminal(*command, env=plain_env(), cwd=tmp_path, columns=4_000, rows=60) as terminal:
        await terminal.until('"Hel"')  # flushed while the model still writes
        gate.open()
        assert await terminal.exit_code() == 0
        await terminal.until('"event":"final"')
        events = events_in(terminal.text)
    names = [name for name, _ in events]
    assert set(names) <= {"update", "queue", "partial", "final"}
    assert names.index("partial") > names.index("update")
    assert names[-1] == "final"
    final = events[-1][1]
    assert (final["status"], final["answer"], final["exit_code"]) == ("answered", "Hello!", 0)
    ended = [turn for name, data in events if name == "update" for turn in data["updated_messages"]]
    assert ended[-1]["agent_message"] == "Hello!"


async def test_api_6_json_without_a_message_reads_prompts_from_stdin(url: str, tmp_path: Path) -> None:
    command = ["chat", "--json", "--url", url]
    async with turnkeeper_terminal(*command, env=plain_env(), cwd=tmp_path, columns=4_000, rows=60) as terminal:
        await terminal.until('"event":"update"')
        terminal.type("one", enter=False)
        terminal.press("enter")
        await terminal.until("echo: one")
        terminal.press("c-d")
        assert await terminal.exit_code() == 0


@pytest.mark.parametrize("stdin", [None, "one\ntwo"])
async def test_api_6_json_watches_until_the_session_ends_even_if_stdin_ends(
    url: str, gateway: GatewayClient, tmp_path: Path, stdin: str | None
) -> None:
    session = f"t-{uuid4()}"
    await gateway.start(session)
    line_count = len((stdin or "").splitlines())
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(run_chat("--json", "--session", session, "--url", url, cwd=tmp_path, stdin=stdin))
        async for event in gateway.events(session):
            is_idle = isinstance(event, UpdateEvent) and event.update.status == "idle"
            if is_idle and (await gateway.describe(session)).turn_count == line_count:
                break
        await gateway.end(session)
    ended = watching.result()
    assert (ended.code, ended.err) == (0, "")
    events = events_in(ended.out)
    assert events[-1][1]["status"] == "ended"
    assert {name for name, _ in events} <= {"update", "queue", "partial"}


async def test_api_6_json_reports_a_rejected_line_and_continues(
    url: str, env: Environment, gateway: GatewayClient, tmp_path: Path
) -> None:
    session = await with_held_answer(env, gateway)
    await gateway.end(session)
    command = ["chat", "--json", "--session", session, "--url", url]
    async with turnkeeper_terminal(*command, env=plain_env(), cwd=tmp_path, columns=4_000, rows=60) as terminal:
        await terminal.until('"status":"ending"')
        terminal.type("late")
        await terminal.until('"event":"refused"')
        env.vendor.gate.open()
        await terminal.until('"status":"ended"')
        assert await terminal.exit_code() == 0
        (refused,) = [data for name, data in events_in(terminal.text) if name == "refused"]
    assert refused["text"] == "late"
    assert "is ending and takes no more prompts" in refused["reason"]


async def test_api_6_ctrl_c_stops_the_turn_of_a_one_shot_message(
    url: str, env: Environment, gateway: GatewayClient, tmp_path: Path
) -> None:
    env.vendor.gate.close()
    session = f"t-{uuid4()}"
    await gateway.start(session)
    command = ["chat", "--json", "slow", "--session", session, "--url", url]
    async with turnkeeper_terminal(*command, env=plain_env(), cwd=tmp_path, columns=4_000, rows=60) as terminal:
        await terminal.until('"user_message":"slow"')
        terminal.press("c-c")
        assert await terminal.exit_code() == 130
    (turn,) = (await gateway.updates(session, wait=10)).new_messages
    assert turn.status in ("cancelled", "processing")
    assert (await gateway.ask(session, "slow", message_id=turn.id, wait=20)).error == "Cancelled: Stopped by the user."


async def test_api_6_ctrl_c_stops_a_turn_before_its_first_event(env: Environment, gateway: GatewayClient) -> None:
    session = f"t-{uuid4()}"
    await gateway.start(session)
    env.vendor.gate.close()
    prompt = OneShotPrompt(gateway, session, "slow", Conversation())
    await gateway.prompt(session, prompt.text, message_id=prompt.message_id)
    await env.vendor.gate.until_arrived(1)
    await prompt.stop()
    turn = await gateway.ask(session, prompt.text, message_id=prompt.message_id, wait=20)
    assert turn is not None
    assert turn.error == "Cancelled: Stopped by the user."
