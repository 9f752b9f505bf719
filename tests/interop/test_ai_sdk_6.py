"""The AI SDK's version 6, which npm gives on Node 20 (API-1)."""

import pytest
from httpx import AsyncClient

from tests.harness import Environment, Gate, asks, says
from tests.interop.ai_chats import Driver
from tests.interop.test_ai_sdk import words
from turnkeeper.activities.providers.protocol import ModelError

HEADERS = {"x-ai-sdk-version": "6"}


@pytest.mark.parametrize("headers", [HEADERS, {}], ids=["says its version", "as it is"])
async def test_api_1_version_6_runs_a_chat_with_tools_and_a_second_prompt(
    driver_6: Driver, url: str, env: Environment, headers: dict[str, str]
) -> None:
    env.vendor.script = [asks(("look", {"at": "x"})), says("Found it.")]
    chat = await driver_6.open(url, headers=headers)
    await chat.send("look", id="m1")
    assert (chat.status, chat.error, chat.text) == ("ready", None, "Found it.")
    assert [part["state"] for part in chat.parts("dynamic-tool")] == ["output-available"]
    await chat.send("and again")
    assert (chat.status, chat.text) == ("ready", "echo: and again")


@pytest.mark.parametrize("headers", [HEADERS, {}], ids=["says its version", "as it is"])
async def test_ses_9_a_stopped_turn_is_not_an_error_in_version_6(
    driver_6: Driver, url: str, http: AsyncClient, env: Environment, headers: dict[str, str]
) -> None:
    gate = Gate(is_open=False)
    env.vendor.script = [[words("Once upon"), gate, says("Once upon a time.")]]
    chat = await driver_6.open(url, headers=headers)
    sending = chat.sending("tell me a story")
    await chat.until_shows("Once upon")
    assert (await http.post(f"/workflow/{chat.id}/cancel", json={})).status_code == 202
    await sending
    assert (chat.status, chat.error, chat.text) == ("ready", None, "Once upon")


async def test_agt_8_in_version_6_a_decision_continues_the_same_message(
    driver_6: Driver, url: str, env: Environment
) -> None:
    env.vendor.script = [asks(("pay", {"to": "me"})), says("Paid.")]
    chat = await driver_6.open(url, headers=HEADERS)
    await chat.send("pay")
    (part,) = chat.parts("dynamic-tool")
    assert part["state"] == "approval-requested"
    await chat.do("approve", id=part["approval"]["id"], approved=True)
    await chat.until_shows("Paid.")
    assert chat.error is None
    # A reloaded page gets the call, but not who decided on it.
    assert [part["state"] for part in chat.parts("dynamic-tool")] == ["output-available"]


async def test_agt_8_in_version_6_a_denied_call_is_shown_as_denied(
    driver_6: Driver, url: str, http: AsyncClient, env: Environment
) -> None:
    """A call that was denied stays `approval-responded` forever.

    Reported as vercel/ai#17136.
    """
    env.vendor.script = [asks(("pay", {"to": "me"})), says("Not paid.")]
    chat = await driver_6.open(url, headers=HEADERS)
    await chat.send("pay")
    (part,) = chat.parts("dynamic-tool")
    await chat.do("approve", id=part["approval"]["id"], approved=False)
    await chat.until_shows("Not paid.")
    past = (await http.get(f"/api/chat/{chat.id}/messages", headers=HEADERS)).json()
    reloaded = await driver_6.open(url, id=chat.id, messages=past, headers=HEADERS)
    await reloaded.send("thanks")
    for page in (chat, reloaded):
        assert [part["state"] for part in page.messages[1]["parts"] if "toolName" in part] == ["output-denied"]
    assert env.tools.calls == []


async def test_ses_7_in_version_6_a_steering_message_is_shown(
    driver_6: Driver, url: str, http: AsyncClient, env: Environment
) -> None:
    env.vendor.gate.close()
    env.vendor.script = [asks(("look", {})), says("Sunny.")]
    chat = await driver_6.open(url, headers=HEADERS)
    sending = chat.sending("look")
    await env.vendor.gate.until_arrived(1)
    steer = {"message": "and the weather?", "id": "steer-1", "mode": "steer"}
    assert (await http.post(f"/workflow/{chat.id}/prompt", json=steer)).status_code == 202
    env.vendor.gate.open()
    await sending
    assert (chat.status, chat.error, chat.text) == ("ready", None, "Sunny.")
    (joined,) = chat.parts("data-steering-message")
    assert joined["data"] == {"text": "and the weather?"}


async def test_api_1_in_version_6_a_retried_answer_is_shown_after_resuming(
    driver_6: Driver, url: str, env: Environment
) -> None:
    first, second = Gate(is_open=False), Gate(is_open=False)
    broken = ModelError("overloaded", "busy", retry_after=0.01)
    env.vendor.script = [[words("Once upon"), first, broken], [words("There was"), second, says("There was a cat.")]]
    chat = await driver_6.open(url, headers=HEADERS, resumes=True)
    sending = chat.sending("tell me a story")
    await chat.until_shows("Once upon")
    first.open()
    await sending
    await chat.until_shows("There was")
    second.open()
    await chat.until(lambda chat: chat.status == "ready" and chat.text == "There was a cat.")
