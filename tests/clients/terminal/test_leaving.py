"""Typed prompts are sent even if the chat exits at once or the gateway doesn't answer: API-6."""

from collections.abc import AsyncIterator

import pytest

from tests.api.relay import Relay
from tests.clients.terminal.conftest import Chat
from tests.clients.terminal.test_chat import is_idle, session_in
from turnkeeper.clients.python.gateway import GatewayClient


@pytest.fixture
async def relay(url: str) -> AsyncIterator[Relay]:
    """The transport to the gateway, which can be cut."""
    async with Relay(url.removeprefix("http://")) as relay:
        yield relay


async def test_api_6_a_prompt_is_sent_even_if_you_exit_right_after_it(chat: Chat, gateway: GatewayClient) -> None:
    async with chat() as terminal:
        await terminal.until(is_idle)
        terminal.type("what time is it?")
        terminal.press("c-d")
        assert await terminal.exit_code() == 0
        await terminal.until("The session goes on.")
        session = session_in(terminal)
    (turn,) = (await gateway.updates(session, wait=10)).new_messages
    assert turn.user_message == "what time is it?"


async def test_api_6_exiting_waits_until_pending_prompts_are_sent(
    chat: Chat, relay: Relay, gateway: GatewayClient
) -> None:
    async with chat(at=f"http://{relay.address}") as terminal:
        await terminal.until(is_idle)
        await relay.cut()
        await terminal.until("reconnecting")
        terminal.type("what time is it?")
        await terminal.until("1 sending")
        assert "queued" not in terminal.on_screen
        terminal.press("c-d")
        await terminal.until("Still sending your prompts. Press Ctrl-C to leave without sending them.")
        await relay.heal()
        assert await terminal.exit_code() == 0
        await terminal.until("The session goes on.")
        session = session_in(terminal)
    (turn,) = (await gateway.updates(session, wait=10)).new_messages
    assert turn.user_message == "what time is it?"


async def test_api_6_exiting_without_waiting_lists_the_unsent_prompts(chat: Chat, relay: Relay) -> None:
    async with chat(at=f"http://{relay.address}") as terminal:
        await terminal.until(is_idle)
        await relay.cut()
        await terminal.until("reconnecting")
        for text in ("first", "second"):
            terminal.type(text)
        await terminal.until("2 sending")
        terminal.press("c-d")
        await terminal.until("Still sending")
        terminal.press("c-c")
        assert await terminal.exit_code() == 1
        await terminal.until("May not have arrived: first")
        await terminal.until("Not sent: second")
        assert "Resume with" in terminal.text[terminal.text.index("Not sent") :]
