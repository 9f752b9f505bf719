"""The AI SDK's own client against the gateway: API-1, AGT-5, AGT-8."""

from typing import Any

import pytest
from httpx import AsyncClient
from temporalio.client import Client

from tests.api.conftest import served
from tests.harness import TASK_SECONDS, DrivenSession, Environment, Gate, asks, says
from tests.interop.ai_chats import Chat, Driver
from turnkeeper.activities.providers.protocol import Delta, ModelError
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import ToolResult
from turnkeeper.models.transcript.model_call import ModelResponse, RespondPart, ThinkPart, ToolInvocation, ToolSpec


def thinks(thought: str, text: str) -> ModelResponse:
    return ModelResponse(
        parts=[ThinkPart(kind="think", text=thought), RespondPart(kind="respond", text=text)], model="test"
    )


def words(text: str) -> Delta:
    return Delta(kind="respond", text=text)


def session_of(env: Environment, chat: Chat) -> DrivenSession:
    return env.adopt(env.client.get_workflow_handle(chat.id))


def tool_states(chat: Chat) -> list[tuple[str, str]]:
    return [(part["toolName"], part["state"]) for part in chat.parts("dynamic-tool")]


# ---- answers


async def test_agt_5_text_is_streamed(driver: Driver, url: str, env: Environment) -> None:
    gate = Gate(is_open=False)
    thought = Delta(kind="think", text="Hm.")
    env.vendor.script = [[thought, words("Hello"), gate, words(", Ada."), thinks("Hm.", "Hello, Ada.")]]
    chat = await driver.open(url)
    sending = chat.sending("hello")
    await chat.until_shows("Hello")
    assert (chat.status, [part["state"] for part in chat.parts("reasoning")]) == ("streaming", ["done"])
    gate.open()
    await sending
    assert (chat.status, chat.error, chat.text) == ("ready", None, "Hello, Ada.")
    assert [part["type"] for part in chat.answer["parts"]] == ["step-start", "reasoning", "text"]
    assert [part["state"] for part in chat.parts("text")] == ["done"]
    assert chat.texts_shown() == ["", "Hello", "Hello, Ada."]
    assert chat.finishes == [{"isAbort": False, "isDisconnect": False, "isError": False, "finishReason": "stop"}]
    assert chat.answer["metadata"]["model"] == "test"


async def test_agt_5_a_retry_replaces_the_partial_text(driver: Driver, url: str, env: Environment) -> None:
    gate = Gate(is_open=False)
    broken = ModelError("overloaded", "busy", retry_after=0.01)
    env.vendor.script = [
        [words("Once upon"), gate, broken],
        [words("There was"), gate, says("There was a cat.")],
    ]
    chat = await driver.open(url)
    sending = chat.sending("tell me a story")
    await chat.until_shows("Once upon")
    gate.open()
    await sending
    assert (chat.status, chat.text) == ("ready", "There was a cat.")
    assert not any("Once" in text and "There" in text for text in chat.texts_shown())


async def test_api_1_all_messages_of_a_chat_go_to_one_session(
    driver: Driver, url: str, http: AsyncClient, env: Environment
) -> None:
    chat = await driver.open(url)
    await chat.send("one")
    await chat.send("two")
    assert [message["role"] for message in chat.messages] == ["user", "assistant", "user", "assistant"]
    assert chat.text == "echo: two"
    turns = (await http.get(f"/workflow/{chat.id}/conversation/full")).json()["messages"]
    assert [(turn["id"], turn["user_message"]) for turn in turns] == [
        (chat.messages[0]["id"], "one"),
        (chat.messages[2]["id"], "two"),
    ]


async def test_api_1_a_client_may_send_only_the_last_message(driver: Driver, url: str, env: Environment) -> None:
    chat = await driver.open(url, only_last=True)
    await chat.send("one")
    await chat.send("two")
    assert (chat.status, chat.text) == ("ready", "echo: two")


async def test_ses_6_the_same_message_sent_twice_is_one_turn(driver: Driver, url: str, env: Environment) -> None:
    first = await driver.open(url)
    await first.send("once", id="m1")
    again = await driver.open(url, id=first.id)
    await again.send("once", id="m1")
    assert again.answer["parts"] == first.answer["parts"]
    assert len(env.vendor.requests) == 1


async def test_ses_15_an_answer_stored_by_reference_is_streamed_in_full(
    driver: Driver, url: str, env: Environment
) -> None:
    long = "word " * 4_000
    env.vendor.script = [says(long)]
    chat = await driver.open(url)
    await chat.send("write a lot")
    assert chat.text == long


# ---- tools


async def test_agt_6_a_tool_call_is_shown_with_its_result(driver: Driver, url: str, env: Environment) -> None:
    gate = Gate(is_open=False)
    call_start = Delta(kind="call", text="look")
    env.vendor.script = [
        [words("I look."), call_start, gate, asks(("look", {"at": "sky"}), text="I look.")],
        says("Blue."),
    ]
    chat = await driver.open(url)
    sending = chat.sending("what colour is the sky?")
    await chat.until(lambda chat: chat.is_answered and bool(chat.parts("dynamic-tool")))
    assert tool_states(chat) == [("look", "input-streaming")]
    gate.open()
    await sending
    (call,) = chat.parts("dynamic-tool")
    assert (call["toolCallId"], call["state"], call["input"]) == ("1.1.0", "output-available", {"at": "sky"})
    assert call["output"] == {"outcome": "look done", "content": "{'at': 'sky'}", "durationMs": 1}
    assert [part["type"] for part in chat.answer["parts"]] == [
        *("step-start", "text", "dynamic-tool"),
        *("step-start", "text"),
    ]


async def test_agt_7_a_failed_tool_call_shows_the_result_that_the_model_sees(
    driver: Driver, url: str, env: Environment
) -> None:
    async def fail(invocation: ToolInvocation) -> ToolResult:
        return ToolResult(outcome="look failed", content="no such file", status="error")

    env.tools.run = fail
    env.vendor.script = [asks(("look", {})), says("I could not.")]
    chat = await driver.open(url)
    await chat.send("look")
    (call,) = chat.parts("dynamic-tool")
    assert (call["state"], call["errorText"]) == ("output-error", "look failed\nno such file")
    assert chat.status == "ready"


async def test_ses_15_the_excerpt_of_a_large_result_links_to_the_full_text(
    driver: Driver, url: str, http: AsyncClient, env: Environment
) -> None:
    async def read(invocation: ToolInvocation) -> ToolResult:
        return ToolResult(outcome="read", content="line\n" * 5_000)

    env.tools.run = read
    env.vendor.script = [asks(("look", {})), says("Long.")]
    chat = await driver.open(url)
    await chat.send("look")
    (call,) = chat.parts("dynamic-tool")
    assert len(call["output"]["content"]) < 1_000
    assert (await http.get(call["output"]["blob"]["url"])).text == "line\n" * 5_000


async def test_ses_7_a_steering_message_is_shown_where_it_joined_the_turn(
    driver: Driver, url: str, http: AsyncClient, env: Environment
) -> None:
    env.tools.gate.close()
    env.vendor.script = [asks(("look", {})), says("Both.")]
    chat = await driver.open(url)
    sending = chat.sending("look")
    await env.tools.gate.until_arrived(1)
    steer = {"message": "and listen", "id": "m2", "mode": "steer"}
    assert (await http.post(f"/workflow/{chat.id}/prompt", json=steer)).status_code == 202
    env.tools.gate.open()
    await sending
    assert [part["type"] for part in chat.answer["parts"]] == [
        *("step-start", "dynamic-tool", "steering-message", "step-start", "text"),
    ]
    (joined,) = chat.parts("steering-message")
    assert (joined["id"], joined["parts"]) == ("m2", [{"type": "text", "text": "and listen"}])


# ---- approvals


async def awaiting(
    driver: Driver, url: str, env: Environment, *calls: dict[str, Any], **options: Any
) -> tuple[Chat, list[dict[str, Any]]]:
    """A chat whose answer waits for decisions on sending mails, and the approvals it shows."""
    env.tools.specs = [ToolSpec(name="send_mail")]
    env.vendor.script = [asks(*[("send_mail", call) for call in calls]), says("That was it.")]
    chat = await driver.open(url, **options)
    await chat.send("write")
    assert (chat.status, chat.finishes[-1]["finishReason"]) == ("ready", "tool-calls")
    assert tool_states(chat) == [("send_mail", "approval-requested")] * len(calls)
    return chat, [part["approval"] for part in chat.parts("dynamic-tool")]


async def test_agt_8_an_approved_call_runs_in_the_same_message(
    driver: Driver, url: str, http: AsyncClient, env: Environment
) -> None:
    """After an approval the call is announced again, and a message id comes twice.

    Reported as ag-ui#2014, assistant-ui#1261.
    """
    chat, (approval,) = await awaiting(driver, url, env, {"to": "bob"})
    waiting = chat.answer
    await chat.do("approve", id=approval["id"], approved=True)
    await chat.until(lambda chat: chat.status == "ready" and chat.text == "That was it.")
    assert chat.answer["id"] == waiting["id"]
    assert [part["type"] for part in chat.answer["parts"]] == ["step-start", "dynamic-tool", "step-start", "text"]
    (call,) = chat.parts("dynamic-tool")
    assert (call["state"], call["approval"]["approved"]) == ("output-available", True)
    assert [call.args for call in env.tools.calls] == [{"to": "bob"}]
    await chat.send("thanks")
    ids = [message["id"] for message in chat.messages]
    assert len(set(ids)) == len(ids) == 4
    newest = await http.get(f"/api/chat/{chat.id}/messages", params={"limit": 1})
    older = await http.get(f"/api/chat/{chat.id}/messages", params={"limit": 1, "before": ids[2]})
    assert [message["id"] for message in [*older.json(), *newest.json()]] == ids


async def test_agt_8_a_rejection_reaches_the_model_with_its_reason(
    driver: Driver, url: str, http: AsyncClient, env: Environment
) -> None:
    """A call that was denied stays `approval-responded` forever.

    Reported as vercel/ai#17136.
    """
    chat, (approval,) = await awaiting(driver, url, env, {"to": "bob"}, only_last=True)
    await chat.do("approve", id=approval["id"], approved=False, reason="Not today.")
    await chat.until(lambda chat: chat.status == "ready" and chat.text == "That was it.")
    past = (await http.get(f"/api/chat/{chat.id}/messages")).json()
    assert tool_states(chat) == [("send_mail", "output-denied")]
    assert env.tools.calls == []
    assert "Not today." in env.vendor.requests[-1].messages[-1].content
    reloaded = await driver.open(url, id=chat.id, messages=past, only_last=True)
    await reloaded.send("thanks")
    assert [part.get("state") for part in reloaded.messages[1]["parts"] if "toolName" in part] == ["output-denied"]


async def test_agt_8_large_arguments_are_shown_in_full_before_the_decision(
    driver: Driver, url: str, env: Environment
) -> None:
    mail = {"to": "bob", "text": "x" * 20_000}
    chat, (approval,) = await awaiting(driver, url, env, mail)
    assert chat.parts("dynamic-tool")[0]["input"] == mail
    await chat.do("approve", id=approval["id"], approved=True)
    await chat.until(lambda chat: chat.status == "ready" and chat.text == "That was it.")
    assert [call.args for call in env.tools.calls] == [mail]


async def test_agt_8_two_calls_are_decided_separately(driver: Driver, url: str, env: Environment) -> None:
    chat, (first, second) = await awaiting(driver, url, env, {"to": "ann"}, {"to": "bob"})
    await chat.do("approve", id=first["id"], approved=True)
    assert tool_states(chat) == [("send_mail", "approval-responded"), ("send_mail", "approval-requested")]
    await chat.do("approve", id=second["id"], approved=False)
    await chat.until(lambda chat: chat.status == "ready" and chat.text == "That was it.")
    assert tool_states(chat) == [("send_mail", "output-available"), ("send_mail", "output-denied")]
    assert [call.args for call in env.tools.calls] == [{"to": "ann"}]


async def test_agt_8_one_decision_is_applied_while_the_other_call_still_waits(
    driver: Driver, url: str, env: Environment
) -> None:
    chat, (first, second) = await awaiting(driver, url, env, {"to": "ann"}, {"to": "bob"})
    await chat.do("approve", id=first["id"], approved=True)
    await chat.do("send", message=None)
    assert tool_states(chat) == [("send_mail", "output-available"), ("send_mail", "approval-requested")]
    await chat.do("approve", id=second["id"], approved=True)
    await chat.until(lambda chat: chat.status == "ready" and chat.text == "That was it.")
    assert [call.args for call in env.tools.calls] == [{"to": "ann"}, {"to": "bob"}]


async def test_agt_8_a_reloaded_page_shows_the_pending_calls(driver: Driver, url: str, env: Environment) -> None:
    chat, (approval,) = await awaiting(driver, url, env, {"to": "bob"})
    page = await driver.open(url, id=chat.id)
    await page.do("resume")
    assert page.answer["parts"] == chat.answer["parts"]
    await page.do("approve", id=approval["id"], approved=True)
    await page.until(lambda page: page.status == "ready" and page.text == "That was it.")


async def test_agt_8_deciding_a_call_that_was_decided_elsewhere_is_a_conflict(
    driver: Driver, url: str, env: Environment
) -> None:
    chat, (approval,) = await awaiting(driver, url, env, {"to": "bob"})
    session = session_of(env, chat)
    (pending,) = await session.approvals()
    await session.decide(pending, "reject")
    await session.idle(turns=1)
    await chat.do("approve", id=approval["id"], approved=True)
    await chat.until(lambda chat: chat.error is not None)
    assert "not-awaiting-approval" in (chat.error or "")
    assert env.tools.calls == []


# ---- coming back


async def test_api_1_a_reloaded_page_shows_the_whole_running_turn_once(
    driver: Driver, url: str, env: Environment
) -> None:
    """A page that is reloaded in mid-answer lacks the text from before the reload.

    Reported as open-webui#29596, dify#35307, epam/ai-dial-chat#8684.
    """
    gate = Gate(is_open=False)
    env.vendor.script = [
        asks(("look", {}), text="I look."),
        [words("It is"), gate, words(" blue."), says("It is blue.")],
    ]
    chat = await driver.open(url)
    sending = chat.sending("what colour?")
    await chat.until_shows("I look.It is")
    page = await driver.open(url, id=chat.id)
    resuming = page.doing("resume")
    await page.until_shows("I look.It is")
    gate.open()
    await sending
    await resuming
    assert page.answer == chat.answer
    assert page.text == "I look.It is blue."


async def test_api_1_a_client_resumes_a_lost_stream_without_repetition(
    driver: Driver, url: str, env: Environment
) -> None:
    gate = Gate(is_open=False)
    env.vendor.script = [[words("It is"), gate, words(" blue."), says("It is blue.")]]
    chat = await driver.open(url)
    sending = chat.sending("what colour?")
    await chat.until_shows("It is")
    await chat.do("stop")  # for a durable session this disconnects only
    await sending
    resuming = chat.doing("resume")
    await chat.until(lambda chat: chat.status == "streaming")
    gate.open()
    await resuming
    assert (chat.status, chat.text) == ("ready", "It is blue.")
    assert [message["role"] for message in chat.messages] == ["user", "assistant"]


async def test_api_1_a_stream_resumes_after_a_gateway_restart_as_documented(
    driver: Driver, temporal: Client, env: Environment
) -> None:
    gate = Gate(is_open=False)
    looks = asks(("look", {}), text="I look.")
    env.vendor.script = [looks, [words("It is"), gate, words(" blue."), says("It is blue.")]]
    settings = Settings(task_queue=env.task_queue, state_dir=env.settings.state_dir, task_timeout=TASK_SECONDS)
    async with served(temporal, settings, partials=env.partials) as url:
        chat = await driver.open(url, resumes=True)
        sending = chat.sending("what colour?")
        await chat.until_shows("I look.It is")
    await sending
    failed_state = next(state for state in chat.seen if state["error"])
    assert (failed_state["status"], failed_state["error"].partition(":")[0]) == (
        "error",
        "The connection ended before the turn did. The turn continues",
    )
    async with served(temporal, settings, partials=env.partials, port=int(url.rpartition(":")[2])):
        await chat.until_shows("I look.It is")
        gate.open()
        await chat.until(lambda chat: chat.status == "ready" and chat.text == "I look.It is blue.")
    assert chat.error is None
    assert [message["role"] for message in chat.messages] == ["user", "assistant"]


async def test_api_1_without_a_running_turn_there_is_no_stream_to_resume(
    driver: Driver, url: str, http: AsyncClient, env: Environment
) -> None:
    new = await driver.open(url)
    await new.do("resume")
    assert (new.status, new.error, new.messages) == ("ready", None, [])
    chat = await driver.open(url)
    await chat.send("hello")
    page = await driver.open(url, id=chat.id)
    await page.do("resume")
    assert (page.status, page.error, page.messages) == ("ready", None, [])
    await http.post(f"/workflow/{chat.id}/end")
    await session_of(env, chat).handle.result()
    assert (await http.get(f"/api/chat/{chat.id}/stream")).status_code == 204


async def test_api_3_two_clients_of_a_turn_show_the_same_message(driver: Driver, url: str, env: Environment) -> None:
    gate = Gate(is_open=False)
    env.vendor.script = [[words("It is"), gate, words(" blue."), says("It is blue.")]]
    chat = await driver.open(url)
    sending = chat.sending("what colour?", id="m1")
    await chat.until_shows("It is")
    other = await driver.open(url, id=chat.id)
    sending_too = other.sending("what colour?", id="m1")
    await other.until_shows("It is")
    gate.open()
    await sending
    await sending_too
    assert other.messages == chat.messages


# ---- waiting, stopping, failing


async def test_ses_6_a_message_sent_during_a_turn_is_queued_and_then_streamed(
    driver: Driver, url: str, env: Environment
) -> None:
    gate = Gate(is_open=False)
    env.vendor.script = [[words("One"), gate, says("One.")], says("Two.")]
    chat, other = await driver.open(url), None
    first = chat.sending("one")
    await chat.until_shows("One")
    other = await driver.open(url, id=chat.id)
    second = other.sending("two")
    await session_of(env, chat).until(lambda state: state.queue_length == 1)
    assert other.status == "submitted"
    gate.open()
    await first
    await second
    assert (chat.text, other.text) == ("One.", "Two.")


async def test_ses_6_the_queue_of_a_client_is_sent_one_by_one(driver: Driver, url: str, env: Environment) -> None:
    gate = Gate(is_open=False)
    env.vendor.script = [[words("One"), gate, says("One.")], says("Two.")]
    chat = await driver.open(url, queue=True)
    first = chat.sending("one")
    await chat.until_shows("One")
    await chat.send("two")
    gate.open()
    await first
    await chat.until(lambda chat: chat.status == "ready" and len(chat.messages) == 4)
    assert chat.text == "Two."


async def test_ses_8_a_withdrawn_message_ends_with_an_error_that_says_so(
    driver: Driver, url: str, http: AsyncClient, env: Environment
) -> None:
    gate = Gate(is_open=False)
    env.vendor.script = [[words("One"), gate, says("One.")]]
    chat = await driver.open(url)
    first = chat.sending("one")
    await chat.until_shows("One")
    other = await driver.open(url, id=chat.id)
    second = other.sending("two", id="m2")
    await session_of(env, chat).until(lambda state: state.queue_length == 1)
    assert (await http.delete(f"/workflow/{chat.id}/queue/m2")).status_code == 204
    await second
    assert (other.status, other.error) == ("error", "Prompt 'm2' was withdrawn. Send it with a new id.")
    gate.open()
    await first


async def test_ses_9_a_stop_ends_the_turn_for_all_watchers(
    driver: Driver, url: str, http: AsyncClient, env: Environment
) -> None:
    gate = Gate(is_open=False)
    env.vendor.script = [[words("Once upon"), gate, says("Once upon a time.")]]
    chat = await driver.open(url)
    sending = chat.sending("tell me a story")
    await chat.until_shows("Once upon")
    page = await driver.open(url, id=chat.id)
    resuming = page.doing("resume")
    await page.until_shows("Once upon")
    await chat.do("stop")
    await sending
    assert (chat.status, chat.text) == ("ready", "Once upon")
    assert page.status == "streaming"  # disconnecting does not stop the turn
    assert (await http.post(f"/workflow/{chat.id}/cancel", json={})).status_code == 202
    await resuming
    assert (page.status, page.text, page.finishes[-1]["finishReason"]) == ("ready", "Once upon", "other")
    await page.do("resume")
    assert page.status == "ready"


async def test_api_2_a_failed_turn_is_an_error_with_a_readable_message(
    driver: Driver, url: str, env: Environment
) -> None:
    env.vendor.script = [[words("I"), ModelError("auth", "the key is not accepted")]]
    chat = await driver.open(url)
    await chat.send("hello", id="m1")
    (turn,) = await session_of(env, chat).idle(turns=1)
    assert (chat.status, chat.error) == ("error", turn.error)
    assert "the key is not accepted" in (chat.error or "")


async def test_api_1_a_failed_message_can_be_regenerated_until_it_succeeds(
    driver: Driver, url: str, env: Environment
) -> None:
    env.vendor.script = [ModelError("auth", "no key"), ModelError("auth", "still no key"), says("At last.")]
    chat = await driver.open(url)
    await chat.send("hello", id="m1")
    assert "no key" in (chat.error or "")
    await chat.do("regenerate")
    assert "still no key" in (chat.error or "")
    await chat.do("regenerate")
    assert (chat.status, chat.error, chat.text) == ("ready", None, "At last.")
    assert [message["role"] for message in chat.messages] == ["user", "assistant"]
    await chat.do("regenerate")
    assert "has an answer" in (chat.error or "")
    await session_of(env, chat).idle(turns=3)
    assert len(env.vendor.requests) == 3


async def test_ses_9_a_stopped_message_can_be_regenerated(
    driver: Driver, url: str, http: AsyncClient, env: Environment
) -> None:
    gate = Gate(is_open=False)
    env.vendor.script = [[words("Once"), gate, says("Once.")], says("At last.")]
    chat = await driver.open(url, only_last=True)
    sending = chat.sending("hello")
    await chat.until_shows("Once")
    await http.post(f"/workflow/{chat.id}/cancel", json={})
    await sending
    await chat.do("regenerate", messageId=chat.answer["id"])
    assert (chat.status, chat.text) == ("ready", "At last.")


@pytest.mark.parametrize("names_it", [False, True])
async def test_api_1_a_reloaded_page_can_regenerate_a_stopped_answer(
    driver: Driver, url: str, http: AsyncClient, env: Environment, names_it: bool
) -> None:
    gate = Gate(is_open=False)
    env.vendor.script = [[words("Once"), gate, says("Once.")], says("At last.")]
    chat = await driver.open(url)
    sending = chat.sending("hello")
    await chat.until_shows("Once")
    page = await driver.open(url, id=chat.id)  # it has only what it is sent now
    resuming = page.doing("resume")
    await page.until_shows("Once")
    await http.post(f"/workflow/{chat.id}/cancel", json={})
    await resuming
    await sending
    await page.do("regenerate", **({"messageId": page.answer["id"]} if names_it else {}))
    assert (page.status, page.error, page.text) == ("ready", None, "At last.")
    assert [turn.user_message for turn in await session_of(env, chat).idle(turns=2)] == ["hello", "hello"]


async def test_api_1_loaded_messages_equal_those_of_a_client_that_streamed_them(
    driver: Driver, url: str, http: AsyncClient, env: Environment
) -> None:
    env.vendor.script = [
        thinks("Hm.", "Hello, Ada."),
        asks(("look", {"at": "x"}), ("look", {"at": "y"}), text="Let me see."),
        says("Found."),
        asks(("pay", {"to": "me"}), ("pay", {"to": "you"})),
        says("One of two."),
        ModelError("auth", "no key"),
    ]
    chat = await driver.open(url)
    await chat.send("hello", id="m1")
    await chat.send("look", id="m2")
    await chat.send("pay", id="m3")
    first, second = chat.parts("dynamic-tool")
    deciding = chat.doing("approve", id=first["approval"]["id"], approved=True)
    await chat.do("approve", id=second["approval"]["id"], approved=False, reason="not you")
    await deciding
    await chat.until(lambda chat: chat.is_answered and chat.text == "One of two." and chat.status == "ready")
    await chat.send("fail", id="m4")
    assert chat.status == "error"
    past = await http.get(f"/api/chat/{chat.id}/messages")
    assert past.status_code == 200
    texts = [approval["descriptor"].pop("text") for approval in approvals_of(chat.messages)]
    assert [text.splitlines()[-1] for text in texts] == ['  to: "me"', '  to: "you"']
    assert [approval["descriptor"].pop("isWhole") for approval in approvals_of(chat.messages)] == [True, True]
    for past_message, seen_message in zip(past.json(), chat.messages, strict=True):
        assert plain(past_message) == plain(seen_message)
    reloaded = await driver.open(url, id=chat.id, messages=past.json())
    await reloaded.send("and then?")
    assert reloaded.text == "echo: and then?"
    older = await http.get(f"/api/chat/{chat.id}/messages", params={"before": "m2", "limit": 5})
    assert [message["id"] for message in older.json()] == ["m1", "m1:answer"]
    assert (await http.get("/api/chat/never-was/messages")).status_code == 404


def approvals_of(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The approvals of all calls that people have decided on."""
    return [part["approval"] for message in messages for part in message["parts"] if "approval" in part]


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without the fields that only the client or only the server has."""
    parts = [{name: value for name, value in part.items() if value is not None} for part in message["parts"]]
    metadata = dict(message.get("metadata", {})) if message["role"] == "assistant" else {}
    metadata.pop("processingTimeMs", None)  # after an error the client reads no further
    return {"id": message["id"], "role": message["role"], "metadata": metadata, "parts": parts}


async def test_api_2_terminating_a_session_in_mid_turn_is_an_error_that_says_so(
    driver: Driver, url: str, env: Environment
) -> None:
    gate = Gate(is_open=False)
    env.vendor.script = [[words("Once"), gate, says("Once.")]]
    chat = await driver.open(url)
    sending = chat.sending("tell me a story")
    await chat.until_shows("Once")
    await session_of(env, chat).handle.terminate()
    await sending
    assert (chat.status, chat.error) == ("error", "The session is terminated; this turn has no answer.")


async def test_api_1_a_session_that_is_deleted_in_mid_turn_ends_its_streams(
    driver: Driver, url: str, http: AsyncClient, env: Environment
) -> None:
    gate = Gate(is_open=False)
    env.vendor.script = [[words("Once"), gate, says("Once.")]]
    chat = await driver.open(url)
    sending = chat.sending("tell me a story")
    await chat.until_shows("Once")
    assert (await http.delete(f"/workflow/{chat.id}")).status_code in (200, 202)
    await sending
    assert chat.status == "error"
    assert chat.id in (chat.error or "") or "terminated" in (chat.error or "")


async def test_ses_14_a_turn_that_continues_in_a_new_run_is_one_message(
    driver: Driver, url: str, env: Environment
) -> None:
    env.vendor.script = [*[asks(("look", {"n": number}), text=f"{number} ") for number in range(6)], says("done")]
    chat = await driver.open(url)
    session = await env.start(SessionInput(limits=Limits(max_history_events=50)), id=chat.id)
    await chat.send("look around")
    assert (chat.status, chat.text) == ("ready", "0 1 2 3 4 5 done")
    assert tool_states(chat) == [("look", "output-available")] * 6
    assert len(await session.histories()) > 1


async def test_api_2_a_chat_with_an_ended_session_rejects_messages(
    driver: Driver, url: str, http: AsyncClient, env: Environment
) -> None:
    session = await env.start(SessionInput())
    await http.post(f"/workflow/{session.handle.id}/end")
    await session.handle.result()
    chat = await driver.open(url, id=session.handle.id)
    await chat.send("hello")
    assert chat.status == "error"
    assert "session-ended" in (chat.error or "")
