"""The terminal chat without a gateway, with a restarted one, and for an unknown session: API-6."""

import signal
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.client import Client

from tests.api.conftest import served
from tests.clients.conftest import gateway_settings
from tests.clients.terminal.conftest import Chat, run_chat
from tests.harness import Environment, Gate, environment, product, says
from tests.waiting import until
from turnkeeper.activities.providers.protocol import Delta
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.settings.settings import Settings
from turnkeeper.workflows import activity_options


async def test_api_6_the_chat_waits_for_a_gateway_that_restarts_in_mid_answer(
    temporal: Client, env: Environment, chat: Chat
) -> None:
    gate, settings = Gate(is_open=False), gateway_settings(env)
    env.vendor.script = [
        says("One."),
        [Delta("respond", "The first half"), gate, says("The first half and the second.")],
    ]
    async with served(temporal, settings, partials=env.partials) as url:
        opened = chat("hello", at=url)
        terminal = await opened.__aenter__()
        await terminal.until("turn 1 ·")
        terminal.type("tell me more")
        await terminal.until("The first half")
    try:
        await terminal.until("can't be reached")
        assert "reconnecting" in terminal.on_screen
        terminal.type("and this too")
        gate.open()
        async with served(temporal, settings, partials=env.partials, port=int(url.rpartition(":")[2])):
            await terminal.until("Reconnected. Nothing was lost.")
            await terminal.until("turn 3 ·")
            for once in ("The first half and the second.", "› hello", "› tell me more", "› and this too", "One."):
                assert terminal.text.count(once) == 1, once
            terminal.press("c-d")
            assert await terminal.exit_code() == 0
    finally:
        await opened.__aexit__(None, None, None)


async def test_ses_15_the_terminal_shows_what_is_archived_while_no_worker_runs(
    temporal: Client, chat: Chat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity_options, "IDLE_PAUSE", timedelta(seconds=0.1))
    queue = f"q-{uuid4()}"
    settings, session = Settings(task_queue=queue, state_dir=tmp_path, task_timeout=2), f"t-{uuid4()}"
    async with served(temporal, settings, timeouts=product()) as url, GatewayClient(url) as gateway:
        async with environment(temporal, task_queue=queue, state_dir=tmp_path) as env:
            await gateway.start(session)
            await gateway.ask(session, "one", wait=20)
            await until(lambda: env.stores.archive.count(WorkflowId(session)))
        async with chat("--session", session, at=url, is_awaited=False) as terminal:
            await terminal.until("no worker is running. Later turns are shown once one is back.")
            ended = (await gateway.page(session)).archive_time
            assert ended is not None
            assert f"As of {ended.astimezone():%H:%M}, no worker" in terminal.text
            assert "echo: one" in terminal.text
            async with environment(temporal, task_queue=queue, state_dir=tmp_path):
                terminal.type("two")
                await terminal.until("turn 2 ·")
            for once in ("echo: one", "echo: two", "As of "):
                assert terminal.text.count(once) == 1, once
            terminal.press("c-d")


async def test_api_6_sigterm_exits_the_chat_cleanly(chat: Chat) -> None:
    async with chat("hello") as terminal:
        await terminal.until("turn 1 ·")
        terminal.process.send_signal(signal.SIGTERM)
        assert await terminal.exit_code() == 0
        await terminal.until("The session goes on.")


async def test_api_6_an_unreachable_gateway_is_reported_in_one_sentence(tmp_path: Path) -> None:
    ended = await run_chat("hello", "--url", "http://127.0.0.1:1", cwd=tmp_path)
    assert ended.code == 2
    assert ended.err == "The gateway at http://127.0.0.1:1 can't be reached: nothing listens there.\n"
    assert ended.out == ""


async def test_api_6_without_a_url_the_chat_uses_the_stack_of_this_folder(tmp_path: Path) -> None:
    ended = await run_chat("hello", cwd=tmp_path, TURNKEEPER_API_PORT="1")
    assert ended.code == 2
    assert ended.err.endswith("nothing listens there. Start it with `turnkeeper up`.\n")


async def test_api_6_an_unknown_session_is_reported_in_one_sentence(url: str, tmp_path: Path) -> None:
    ended = await run_chat("hello", "--url", url, "--session", "nobody", cwd=tmp_path)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "There is no session 'nobody'.\n"


@pytest.mark.parametrize(
    ("option", "value", "expected_message"),
    [
        ("--session", "", "--session '' is not a session id. An id has 1 to 128 letters, digits or . _ ~ -."),
        ("--session", "a/b", "--session 'a/b' is not a session id. An id has 1 to 128 letters, digits or . _ ~ -."),
        ("--url", "", "--url is blank. Set it to the gateway's address, such as http://HOST:PORT."),
    ],
)
async def test_api_6_invalid_options_are_rejected_at_once(
    tmp_path: Path, option: str, value: str, expected_message: str
) -> None:
    ended = await run_chat("hello", option, value, cwd=tmp_path)
    assert (ended.code, ended.out, ended.err) == (1, "", expected_message + "\n")
