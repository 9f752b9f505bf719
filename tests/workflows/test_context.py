"""The model's view of a long conversation, on the real server: CTX-3, CTX-4, CTX-6 to CTX-8."""

import logging
from itertools import pairwise
from typing import Any

import pytest
from temporalio.client import Client, WorkflowQueryFailedError

from tests.harness import DrivenSession, Environment, asks, environment, last_user_message, says
from tests.models.context.test_model_view import orphans
from tests.workflows.test_web_ui import details
from turnkeeper.activities.providers.offline.provider import answer
from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.models.context.summary import INSTRUCTION, SUMMARY_MARK
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.texts import count_chars, tokens_of
from turnkeeper.models.transcript.conversation import ConversationMessage, ToolResult, Usage
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse, ProviderState, ToolInvocation
from turnkeeper.models.transcript.notes import REFUSED_PROMPT

CALLS = "make many calls"
FACT = "The launch code of the probe is 4711."
QUESTION = "What is the launch code of the probe?"


class LongConversation:
    """The offline model as the vendor; on request it makes many calls before it answers."""

    def __init__(self, *, calls: int, calls_a_step: int) -> None:
        self.calls_left = calls
        self.calls_a_step = calls_a_step

    def __call__(self, request: ModelRequest) -> ModelResponse:
        if request.head.system != INSTRUCTION and last_user_message(request) == CALLS and self.calls_left:
            numbers = range(self.calls_left, self.calls_left - self.calls_a_step, -1)
            self.calls_left -= self.calls_a_step
            return asks(*[("look", {"at": number}) for number in numbers])
        return answer(request)


async def hold_long_conversation(
    env: Environment, *, calls: int, calls_a_step: int = 1, turns: int, history: dict[str, Any]
) -> tuple[list[ConversationMessage], int]:
    """Run a conversation and check what the model saw of it; return the turns and the number of new segments."""
    env.vendor.answer = LongConversation(calls=calls, calls_a_step=calls_a_step)
    session = await env.start(SessionInput.model_validate({"history": history, "limits": {"max_steps": 100}}))
    prompts = [FACT, CALLS, *(f"Write line {number}, please." for number in range(turns)), QUESTION]
    for text in prompts:
        await session.prompt(text)
    transcript = await session.idle(turns=len(prompts))

    assert [turn.user_message for turn in transcript] == prompts
    assert all(turn.status == "completed" for turn in transcript)
    assert sum(len(step.tool_calls) for step in transcript[1].steps if step.kind == "model") == calls
    for request in env.vendor.turn_requests:
        assert len(request.messages) <= history["max_messages"] + 1 + calls_a_step
        assert not orphans(request.messages)
        assert last_user_message(request) in prompts
        assert sum(message.content.startswith(SUMMARY_MARK) for message in request.messages) <= 1
    is_new_segment = [
        after.messages[: len(before.messages)] != before.messages
        for before, after in pairwise(env.vendor.turn_requests)
    ]
    assert 3 < sum(is_new_segment) < len(is_new_segment) / 4, "between two evictions a request only grows at its end"
    return transcript, sum(is_new_segment)


async def test_ctx_4_a_turn_of_sixty_calls_and_later_turns_stay_within_thirty_messages(env: Environment) -> None:
    history = {"max_messages": 30, "preserve_first_n": 0, "summarize_on_trim": True}
    turns, new_segments = await hold_long_conversation(env, calls=60, calls_a_step=3, turns=25, history=history)
    assert turns[-1].agent_message == f"The summary of our conversation says: {FACT}"
    assert new_segments // 2 <= len(env.vendor.summary_requests) <= new_segments


async def test_ctx_4_a_long_conversation_stays_within_its_window_without_summaries(env: Environment) -> None:
    history = {"max_messages": 12, "preserve_first_n": 0, "preserve_last_n": 2}
    turns, _ = await hold_long_conversation(env, calls=20, turns=15, history=history)
    assert "I find nothing about" in (turns[-1].agent_message or "")
    assert env.vendor.summary_requests == []


async def test_ctx_6_the_log_reports_the_size_of_the_context_and_what_was_removed(
    env: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "temporalio.workflow")
    session = await env.start(SessionInput.model_validate({"history": {"max_messages": 10, "preserve_last_n": 2}}))
    for number in range(1, 8):
        await session.prompt(f"number {number}")
    await session.idle(turns=7)
    messages = [record.message.partition(" ({")[0] for record in caplog.records if record.name == "temporalio.workflow"]
    assert "Conversation: 2 messages (~6 tokens)" in messages
    assert any(message.startswith("Trimmed conversation: 7 messages removed, 5 kept (~") for message in messages)
    assert "Conversation approaching limit (9/10 messages)" in messages


async def test_ctx_2_a_warning_about_settings_that_leave_no_room_is_logged_once(
    env: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    session = await env.start(SessionInput.model_validate({"history": {"max_messages": 3, "preserve_last_n": 4}}))
    for number in range(1, 8):
        await session.prompt(f"number {number}")
    await session.idle(turns=7)
    warned = [record.message for record in caplog.records if "Conversation window" in record.message]
    assert len(warned) == 1
    assert "preserve_first_n=1 and preserve_last_n=4 leave no room within max_messages=3" in warned[0]


# ---- the vendor's own limit


def too_long() -> ModelError:
    return ModelError("context_too_long", "200001 tokens")


def size(request: ModelRequest) -> int:
    return sum(map(count_chars, request.messages))


async def test_ctx_7_a_context_overflow_halves_the_context_by_size_and_repeats_the_call(env: Environment) -> None:
    session = await env.start()
    for number in range(1, 11):
        await session.prompt(f"number {number}" + "!" * 100 * (number == 5))
    await session.idle(turns=10)
    env.vendor.script = [too_long(), too_long(), says("now it fits")]
    await session.prompt("number 11")
    turn = (await session.idle(turns=11))[-1]
    assert (turn.agent_message, turn.error) == ("now it fits", None)
    first, second, third = env.vendor.requests[-3:]
    assert size(first) / 4 < size(second) <= size(first) / 2
    assert size(third) <= size(second) / 2
    assert len(second.messages) > len(first.messages) / 4
    for request in (second, third):
        assert request.messages[0].content == "number 1"
        assert request.messages[-1].content == "number 11"
    view = await session.context()
    assert view.max_messages == 100
    assert view.max_tokens == view.fixed.estimated_tokens + tokens_of(size(second)) // 2
    assert f"at most ~{view.max_tokens:,} tokens are sent" in await details(session)


async def test_ctx_7_a_turn_with_large_results_does_not_leave_a_four_message_context(
    env: Environment,
) -> None:
    """The vendor takes 60 kB; three results have 30 kB each, and what follows is small."""

    def answer_if_it_fits(request: ModelRequest) -> ModelResponse | ModelError:
        if size(request) > 60_000:
            return too_long()
        return asks(*[("look", {})] * 3) if len(request.messages) == 1 else says("noted")

    async def long_result(invocation: ToolInvocation) -> ToolResult:
        return ToolResult(outcome="look done", content="x" * 30_000)

    env.vendor.answer = answer_if_it_fits
    env.tools.run = long_result
    session = await env.start()
    await session.prompt("read the three files")
    (turn,) = await session.idle(turns=1)
    assert turn.agent_message == "noted", "what is too long by itself is shortened"
    assert len(env.vendor.requests) == 3
    for number in range(2, 14):
        await session.prompt(f"number {number}")
    assert all(turn.agent_message == "noted" for turn in await session.idle(turns=13))
    assert len(env.vendor.requests) == 3 + 12, "no further overflow"
    assert len(env.vendor.requests[-1].messages) > 20
    view = await session.context()
    assert view.turns[0].seen == "truncated"
    assert view.max_tokens is not None
    assert view.estimated_tokens <= view.max_tokens


async def test_ctx_7_after_two_repetitions_the_turn_fails_and_the_session_continues(env: Environment) -> None:
    env.vendor.script = [too_long()] * 3
    session = await env.start()
    await session.prompt("hello")
    (turn,) = await session.idle(turns=1)
    assert (turn.status, turn.error_type) == ("failed", "context_too_long")
    assert len(env.vendor.requests) == 3
    assert (await session.context()).max_tokens is None, "nothing was learned of the size"
    await session.prompt("hello again")
    assert (await session.idle(turns=2))[-1].agent_message == "echo: hello again"


async def test_ctx_7_a_learned_limit_opens_a_segment_and_lasts_until_the_window_changes(
    env: Environment,
) -> None:
    thinking = asks(("look", {})).model_copy(update={"state": ProviderState(api="test", model="m", items=["signed"])})
    env.vendor.script = [thinking, too_long()]
    session = await env.start()
    await session.prompt("look " + "around " * 40)
    await session.idle(turns=1)
    assert [any(message.state for message in request.messages) for request in env.vendor.requests] == [
        False,
        True,
        False,
    ]
    limit = (await session.context()).max_tokens
    assert limit is not None
    for number in range(2, 20):
        await session.prompt(f"number {number}, {'and more ' * 10}")
    await session.idle(turns=19)
    view = await session.context()
    # What can't be evicted was over it, and was answered.
    assert view.max_tokens is not None
    assert limit <= view.max_tokens
    assert view.message_count < 12
    await session.update("configure", {"history": {"max_messages": 50}})
    for number in range(20, 28):
        await session.prompt(f"number {number}")
    await session.idle(turns=27)
    assert (await session.context()).max_tokens is None
    assert len(env.vendor.requests[-1].messages) > 16


async def test_ctx_7_one_step_with_many_results_does_not_block_the_session(env: Environment) -> None:
    env.vendor.script = [asks(*[("look", {})] * 8), *[too_long()] * 3]
    session = await env.start()
    await session.prompt("look at everything")
    (turn,) = await session.idle(turns=1)
    assert turn.error_type == "context_too_long"
    await session.prompt("never mind")
    assert (await session.idle(turns=2))[-1].agent_message == "echo: never mind"
    assert not orphans(env.vendor.requests[-1].messages)


async def test_ctx_7_a_turn_that_the_vendor_rejected_is_left_out_of_later_requests(env: Environment) -> None:
    """A vendor that judges the whole request would otherwise refuse every later turn, too."""

    def judge(request: ModelRequest) -> ModelResponse | ModelError:
        if any("bad" in message.content for message in request.messages):
            return ModelError("refusal", "no")
        return says(f"echo: {last_user_message(request)}")

    env.vendor.answer = judge
    session = await env.start()
    for number, text in enumerate(["hello", "something bad", "an innocent question", "and another"], start=1):
        await session.prompt(text)
        turns = await session.idle(turns=number)
    assert [turn.error_type for turn in turns] == [None, "refusal", None, None]
    assert turns[1].user_message == "something bad"
    assert [message.content for message in env.vendor.requests[-1].messages][2:5] == [
        REFUSED_PROMPT,
        "[Failed: the provider refused to answer. Nothing was done.]",
        "an innocent question",
    ]
    view = await session.context()
    assert [turn.seen for turn in view.turns] == ["verbatim", "refused", "verbatim", "verbatim"]
    assert view.segment == 2


# ---- the account


async def seen(session: DrivenSession) -> list[str]:
    return [turn.seen for turn in (await session.context()).turns]


async def test_ctx_8_the_context_view_shows_which_part_of_each_turn_the_model_sees(env: Environment) -> None:
    env.vendor.summarise = lambda request: says("They counted.")
    window = {"max_messages": 11, "preserve_last_n": 1, "evict_block": 9, "summarize_on_trim": True}
    session = await env.start(SessionInput.model_validate({"history": window, "system_prompt": "Be kind."}))
    await session.prompt(id="p1", text="number 1")
    await session.idle(turns=1)
    view = await session.context()
    assert (view.segment, view.message_count, view.max_messages, view.max_tokens) == (1, 2, 11, None)
    assert view.fixed.system_prompt_tokens == 2
    assert view.fixed.tools == ["look", "pay", "run_task"]
    assert view.estimated_tokens == view.fixed.estimated_tokens + view.turns[0].estimated_tokens
    assert view.turns[0].model_dump() == {
        "number": 1,
        "message_id": "p1",
        "seen": "verbatim",
        "estimated_tokens": 6,
        "characters_cut": 0,
    }
    for number in range(2, 9):
        await session.prompt(f"number {number}")
    await session.idle(turns=8)
    view = await session.context()
    assert [turn.seen for turn in view.turns] == ["truncated", *["summarised"] * 5, "verbatim", "verbatim"]
    assert view.turns[0].characters_cut == len("echo: number 1")
    assert view.turns[1].estimated_tokens == 0
    assert view.summary is not None
    assert (view.summary.text, view.summary.turns) == ("They counted.", [(1, 6)])
    assert view.segment == 2
    assert "in the model's context; one a summary of turns 1 to 6" in await details(session)


async def test_ctx_6_the_context_view_continues_from_the_token_count_of_the_vendor(env: Environment) -> None:
    env.vendor.script = [says("12345678").model_copy(update={"usage": Usage(input_tokens=1_000)})]
    session = await env.start()
    await session.prompt("hello")
    await session.idle(turns=1)
    assert (await session.context()).reported_tokens == 1_000 + 2
    await session.prompt("and on")
    await session.idle(turns=2)
    assert (await session.context()).reported_tokens == 1_000 + 2 + 5  # "and on" and "echo: and on"


async def test_ctx_8_without_summaries_evicted_messages_are_not_visible_to_the_model(env: Environment) -> None:
    session = await env.start(SessionInput.model_validate({"history": {"max_messages": 6, "preserve_last_n": 2}}))
    for number in range(1, 5):
        await session.prompt(f"number {number}")
    await session.idle(turns=4)
    assert await seen(session) == ["truncated", "not_at_all", "verbatim", "verbatim"]


async def test_ctx_8_the_context_view_pages_back_to_turns_in_the_archive(temporal: Client) -> None:
    async with environment(temporal, limits={"max_history_events": 60, "max_state_bytes": 40_000}) as env:
        session = await env.start(SessionInput.model_validate({"history": {"max_messages": 8, "preserve_last_n": 2}}))
        for number in range(1, 21):
            await session.prompt(f"number {number}, {'and more ' * 110}")
        await session.idle(turns=20)
        assert (await session.state()).archived_count > 5
        view = await session.context({"limit": 8})
        assert [turn.number for turn in view.turns] == list(range(13, 21))
        assert view.has_more
        view = await session.context({"limit": 30, "before": 13})
        assert [turn.number for turn in view.turns] == list(range(1, 13))
        assert not view.has_more
        assert (view.turns[0].seen, view.turns[1].seen) == ("truncated", "not_at_all")


@pytest.mark.parametrize(
    ("request_", "field"), [({"before": 0}, "before"), ({"limit": 0}, "limit"), ({"of": 3}, "of"), (7, "JSON object")]
)
async def test_ctx_8_a_bad_request_for_the_context_view_names_the_field(
    env: Environment, request_: Any, field: str
) -> None:
    session = await env.start()
    with pytest.raises(WorkflowQueryFailedError) as refused:
        await session.handle.query("get_context_view", request_)
    assert field in str(refused.value)
