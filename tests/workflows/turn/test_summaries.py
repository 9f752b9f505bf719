"""Evicted messages are summarised before the model stops seeing them, on the real server: CTX-5."""

from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client

from tests.harness import DrivenSession, Environment, asks, environment, says
from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.models.context.summary import SUMMARY_MARK
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.transcript.conversation import ToolResult, Usage
from turnkeeper.models.transcript.model_call import ModelMessage, ModelRequest, ModelResponse, RespondPart

WINDOW: dict[str, Any] = {
    "max_messages": 12,
    "preserve_first_n": 0,
    "preserve_last_n": 2,
    "evict_block": 9,
    "summarize_on_trim": True,
}


def started(**config: Any) -> SessionInput:
    return SessionInput.model_validate({"history": WINDOW, **config})


async def chat(session: DrivenSession, first: int, last: int) -> None:
    for number in range(first, last + 1):
        await session.prompt(id=f"p{number}", text=f"question {number}, and some words that make it longer")
    await session.idle(turns=last)


def summaries_in(request: ModelRequest) -> list[ModelMessage]:
    return [message for message in request.messages if message.content.startswith(SUMMARY_MARK)]


async def failures(session: DrivenSession) -> int:
    return (await session.context()).summaries_failed


async def test_ctx_5_a_summary_is_placed_between_the_head_and_the_remaining_messages(env: Environment) -> None:
    env.vendor.summarise = lambda request: ModelResponse(
        parts=[RespondPart(kind="respond", text="They counted.")], model="test", usage=Usage(input_tokens=7)
    )
    session = await env.start(started(history={**WINDOW, "preserve_first_n": 1, "max_messages": 14}))
    await chat(session, 1, 8)
    (summary_request,) = env.vendor.summary_requests
    assert summary_request.head.max_tokens == 1_024
    assert summary_request.head.tools == []
    assert "$user: question 2" in summary_request.messages[0].content
    assert "$user: question 1," not in summary_request.messages[0].content, "the head is not evicted"
    newest = env.vendor.turn_requests[-1]
    assert [message.content.split(",")[0] for message in newest.messages] == [
        "question 1",
        "echo: question 1",
        f"{SUMMARY_MARK}\nThey counted.",
        "question 7",
        "echo: question 7",
        "question 8",
    ]
    assert newest.messages[2].role == "assistant"
    turns = await session.idle(turns=7)
    assert [turn.user_message.split(",")[0] for turn in turns] == [f"question {n}" for n in range(1, 9)]
    assert turns[-1].usage == Usage(input_tokens=7)


async def test_ctx_5_a_later_summary_replaces_and_includes_the_earlier_one(env: Environment) -> None:
    env.vendor.summarise = lambda request: says(f"Summary number {len(env.vendor.summary_requests)}.")
    session = await env.start(started())
    await chat(session, 1, 13)
    first, second, *_ = env.vendor.summary_requests
    assert SUMMARY_MARK not in first.messages[0].content
    assert f"$respond: {SUMMARY_MARK}\nSummary number 1." in second.messages[0].content
    assert all(len(summaries_in(request)) <= 1 for request in env.vendor.turn_requests)
    (newest,) = summaries_in(env.vendor.turn_requests[-1])
    assert newest.content == f"{SUMMARY_MARK}\nSummary number {len(env.vendor.summary_requests)}."


async def test_ctx_5_if_a_summary_fails_the_block_is_evicted_without_one(env: Environment) -> None:
    outcomes = [
        says("long. " * 600),
        says("They counted, and then").model_copy(update={"stop": "max_tokens"}),
        asks(("look", {})),
        ModelError("auth", "no such key"),
    ]
    in_vain = len(outcomes)
    env.vendor.summarise = lambda request: outcomes.pop(0) if outcomes else says("Now it works.")
    session = await env.start(started())
    turns = 0
    while len(env.vendor.summary_requests) <= in_vain:
        await chat(session, turns + 1, turns + 4)
        turns += 4
        assert turns < 60
    assert await failures(session) == in_vain
    until_it_worked = env.vendor.requests[: env.vendor.requests.index(env.vendor.summary_requests[-1])]
    assert not any(map(summaries_in, until_it_worked))
    assert all(len(request.messages) <= 12 for request in env.vendor.turn_requests)
    assert "$user: question 1," in env.vendor.summary_requests[-1].messages[0].content, "nothing is lost by a failure"
    assert summaries_in(env.vendor.turn_requests[-1])


async def test_ctx_5_a_transient_failure_is_retried(env: Environment) -> None:
    outcomes = [ModelError("overloaded", "busy", retry_after=0.01), says("It works at the second try.")]
    env.vendor.summarise = lambda request: outcomes.pop(0)
    session = await env.start(started())
    await chat(session, 1, 8)
    assert await failures(session) == 0
    assert summaries_in(env.vendor.turn_requests[-1])


async def test_ctx_5_a_summary_request_too_long_for_the_model_is_shortened(env: Environment) -> None:
    def short_of_memory(request: ModelRequest) -> ModelResponse | ModelError:
        too_long = len(request.messages[0].content) > 15_000
        return ModelError("context_too_long", "no room") if too_long else says("They counted.")

    env.vendor.summarise = short_of_memory
    session = await env.start(started())
    for number in range(1, 8):
        await session.prompt(id=f"p{number}", text=f"question {number} {'x' * 6_000}")
    await session.idle(turns=7)
    assert len(env.vendor.summary_requests) == 3
    assert await failures(session) == 0


async def test_ctx_5_a_summary_that_would_need_a_long_wait_is_skipped(env: Environment) -> None:
    env.vendor.summarise = lambda request: ModelError("rate_limited", "later", retry_after=300)
    session = await env.start(started())
    await chat(session, 1, 8)
    assert await failures(session) == 1


async def test_ctx_5_a_summary_that_takes_too_long_is_skipped(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnkeeper.workflows.activity_options.SUMMARY_PATIENCE", timedelta(seconds=1))
    session = await env.start(started())
    await chat(session, 1, 6)
    env.vendor.gate.close()
    arrived = env.vendor.gate.arrived
    await session.prompt(id="p7", text="question 7")
    await env.vendor.gate.until_arrived(arrived + 2)  # the summary is skipped, and the turn continues
    env.vendor.gate.open()
    assert (await session.idle(turns=7))[-1].agent_message == "echo: question 7"
    assert await failures(session) == 1


async def test_ctx_5_calls_and_results_alone_get_no_summary_and_enter_the_next_one(env: Environment) -> None:
    env.vendor.summarise = lambda request: says("They looked around.")
    env.vendor.script = [asks(("look", {"at": f"thing {number}"})) for number in range(12)]
    session = await env.start(started())
    await session.prompt("look around")
    await session.idle(turns=1)
    assert env.vendor.summary_requests == []
    await chat(session, 2, 9)
    text = env.vendor.summary_requests[0].messages[0].content
    assert '$call: {"name": "look", "args": {"at": "thing 0"}}' in text
    assert "$user: look around" in text


async def test_ctx_5_there_is_at_most_one_summary_per_ten_evicted_messages(env: Environment) -> None:
    env.vendor.summarise = lambda request: says(f"After {len(env.vendor.turn_requests)}.")
    session = await env.start(started(history={**WINDOW, "evict_block": 0}))
    await chat(session, 1, 20)
    evicted = 2 * 20 - len(env.vendor.turn_requests[-1].messages)
    assert 2 <= len(env.vendor.summary_requests) <= evicted // 10
    assert all(len(request.messages) <= 13 for request in env.vendor.turn_requests)
    for number in range(1, 9):
        matching = [request for request in env.vendor.summary_requests if f"$user: question {number}," in str(request)]
        assert len(matching) == 1, f"question {number} is in exactly one request for a summary"


async def test_ctx_5_written_files_are_listed_whatever_the_model_writes(env: Environment) -> None:
    env.tools.specs = [
        spec.model_copy(update={"name": name})
        for spec, name in zip(env.tools.specs, ("look", "file_write"), strict=True)
    ]
    env.tools.run = _write_or_fail
    env.vendor.summarise = lambda request: says("Nothing was written at all.")
    writes = [("file_write", {"path": "a.txt", "content": "a"}), ("file_write", {"path": "bad.txt", "content": "b"})]
    large = [("file_write", {"path": "large.txt", "content": "x" * 20_000}), ("look", {"path": "seen.txt"})]
    env.vendor.script = [asks(*writes, text="I write."), says("done"), asks(*large), says("done")]
    session = await env.start(started(tool_policy={"file_write": "allow"}))
    await session.prompt("write")
    await session.idle(turns=1)
    await session.prompt("write more")
    await session.idle(turns=2)
    await chat(session, 3, 8)
    (summary,) = summaries_in(env.vendor.turn_requests[-1])
    assert summary.content.endswith("\n\nFiles written: a.txt, large.txt")
    env.vendor.script = [asks(("file_write", {"path": "b.txt", "content": "b"})), says("done")]
    await session.prompt("write again")
    await session.idle(turns=9)
    await chat(session, 10, 16)
    (summary,) = summaries_in(env.vendor.turn_requests[-1])
    assert summary.content.endswith("Files written: a.txt, large.txt, b.txt")


async def _write_or_fail(invocation: Any) -> ToolResult:
    failed = invocation.args.get("path") == "bad.txt"
    return ToolResult(outcome="disk full" if failed else "Wrote it", status="error" if failed else "ok")


async def test_ctx_5_stopping_a_turn_during_its_summary_loses_nothing(env: Environment) -> None:
    env.vendor.summarise = lambda request: says("They counted.")
    session = await env.start(started())
    await chat(session, 1, 6)
    env.vendor.gate.close()
    arrived = env.vendor.gate.arrived
    await session.prompt(id="p7", text="question 7")
    await env.vendor.gate.until_arrived(arrived + 1)
    await session.update("cancel_turn", {"message_id": "p7"})
    env.vendor.gate.open()
    turns = await session.idle(turns=7)
    assert turns[-1].status == "cancelled"
    await chat(session, 8, 13)
    assert "$user: question 1," in env.vendor.summary_requests[-1].messages[0].content
    assert summaries_in(env.vendor.turn_requests[-1])


async def test_ctx_5_evicted_messages_that_are_not_cached_are_queried_from_the_workflow(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnkeeper.activities.model_client.REQUESTS.get", lambda key: None)
    monkeypatch.setattr("turnkeeper.models.limits.Limits.page_bytes", 300)
    env.vendor.summarise = lambda request: says("They counted.")
    session = await env.start(started())
    await chat(session, 1, 8)
    assert "$user: question 1," in env.vendor.summary_requests[0].messages[0].content
    assert summaries_in(env.vendor.turn_requests[-1])


async def test_ctx_5_summaries_and_the_messages_awaiting_one_are_carried_to_the_next_run(temporal: Client) -> None:
    async with environment(temporal, limits={"max_history_events": 60, "max_state_bytes": 40_000}) as env:
        env.vendor.summarise = lambda request: says(f"Summary number {len(env.vendor.summary_requests)}.")
        session = await env.start(started(history={**WINDOW, "evict_block": 3}))
        await chat(session, 1, 20)
        assert len(await session.histories()) > 2
        for number in range(1, 9):
            matching = [
                request for request in env.vendor.summary_requests if f"$user: question {number}," in str(request)
            ]
            assert len(matching) == 1, f"question {number} is in exactly one request for a summary"
        assert all(len(summaries_in(request)) <= 1 for request in env.vendor.turn_requests)


async def test_ctx_5_evicted_turns_are_summarised_only_if_configured(env: Environment) -> None:
    session = await env.start(started(history={**WINDOW, "summarize_on_trim": False}))
    await chat(session, 1, 8)
    assert env.vendor.summary_requests == []
    env.vendor.summarise = lambda request: says("From now on.")
    await session.update("configure", {"history": {"summarize_on_trim": True}})
    await chat(session, 9, 15)
    assert summaries_in(env.vendor.turn_requests[-1])
