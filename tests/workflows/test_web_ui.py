"""A session in queries and in the Temporal Web UI: SES-3, SES-13, SES-17."""

import json
import re
from collections.abc import AsyncIterator

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import WorkflowHistory, WorkflowQueryFailedError

from tests.harness import DrivenSession, Environment, Gate, asks, says
from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.stores.temporal import search_attributes

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"

PUBLIC_QUERIES = [
    "get_context_view",
    "get_conversation_state",
    "get_conversation_updates",
    "get_model_request",  # our own too, under the name that its requirement gives it
    "get_pending_approvals",
    "get_queue",
    "get_replay_context",
]


async def details(session: DrivenSession) -> str:
    metadata = await session.handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return metadata.current_details


async def summaries(session: DrivenSession) -> AsyncIterator[str]:
    async for event in session.handle.fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            yield json.loads(event.user_metadata.summary.data)


def _own_upserts(history: WorkflowHistory) -> list[HistoryEvent]:
    """Return the writes of search attributes, without the one by `patched` in each run."""
    return [
        event
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES
        and "TemporalChangeVersion"
        not in event.upsert_workflow_search_attributes_event_attributes.search_attributes.indexed_fields
    ]


async def test_ses_17_current_details_show_the_title_user_progress_and_queue(env: Environment) -> None:
    env.vendor.script = [asks(("look", {}))]
    env.tools.gate.close()
    session = await env.start(
        SessionInput(title="Deploy *now*", user="alice", chat_url="http://127.0.0.1:8080/workflow/x/conversation/full")
    )
    await session.prompt("look at <b>this</b>")
    await env.tools.gate.until_arrived(1)
    await session.prompt("and then that")
    await session.until(lambda s: s.queue_length == 1)
    page = await details(session)
    assert r"### Deploy \*now\*" in page
    for fact in (
        "**Status:** processing",
        "**User:** alice",
        "**Model:** `offline:`",
        "**Tools:** look, pay",
        "**Conversation:** 1 message (~5 tokens) in the model's context",
        "[Open the conversation](http://127.0.0.1:8080/",
        "**Turn 1** · step 1",
        "- `look`: running",
        "**Queue** (1)",
        "1. and then that",
    ):
        assert fact in page
    assert "<b>" not in page


async def test_ses_17_current_details_show_how_and_why_the_last_turn_ended(env: Environment) -> None:
    """M7: a failed or stopped turn left `Status: idle` and nothing else."""
    env.vendor.script = [ModelError("auth", "the key was *refused*"), Gate(is_open=False), says("fine")]
    session = await env.start()
    assert "**Status:** idle since 20" in await details(session)
    assert "Last turn" not in await details(session)
    await session.prompt("one")
    await session.idle(turns=1)
    page = await details(session)
    assert re.search(rf"Status:\*\* idle since {TIME}\n- \*\*Last turn:\*\* failed at {TIME} \(auth\): ", page), page
    assert r"the key was \*refused\*" in page
    await session.prompt(id="p2", text="two")
    await session.until(lambda s: s.current_message_id == "p2")
    assert "Last turn" not in await details(session)
    await session.update("cancel_turn", {"message_id": "p2", "reason": "wrong account"})
    await session.idle(turns=2)
    assert re.search(rf"Last turn:\*\* stopped at {TIME}: Cancelled: wrong account", await details(session))
    await session.prompt("three")
    await session.idle(turns=3)
    assert re.search(rf"Last turn:\*\* completed at {TIME}\n", await details(session))


async def test_ses_17_current_details_show_the_call_that_awaits_approval(env: Environment) -> None:
    """M7: such a call was `running` in the next step, with its arguments as Python."""
    env.vendor.script = [asks(("pay", {"to": "a `b`", "urgent": True})), says("done")]
    session = await env.start(SessionInput(tool_policy={"pay": "ask"}))
    await session.prompt("pay")
    await session.until(lambda s: s.status == "awaiting_approval")
    page = await details(session)
    assert "**Turn 1** · step 1: pay\n- `pay`: awaiting approval\n" in page
    assert 'Arguments:\n  to: "a `b`"\n  urgent: true\n' in page


async def test_ses_17_every_handler_has_a_description_and_our_queries_come_last(env: Environment) -> None:
    session = await env.start()
    metadata = await session.handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    definition = metadata.definition
    queries = [query for query in definition.query_definitions if not query.name.startswith("__")]  # the SDK's own
    handlers = [*queries, *definition.signal_definitions, *definition.update_definitions]
    assert [handler.name for handler in handlers if not handler.description] == []
    names = sorted(query.name for query in queries)
    own = [query.name for query in queries if "For our own" in query.description]
    assert names[: len(PUBLIC_QUERIES)] == PUBLIC_QUERIES
    assert set(names) - set(PUBLIC_QUERIES) == set(own) - {"get_model_request"}


async def test_ses_17_every_activity_has_a_summary(env: Environment) -> None:
    env.vendor.script = [asks(("look", {})), says("done")]
    session = await env.start(SessionInput(model="offline:m"))
    await session.prompt("look")
    await session.idle(turns=1)
    assert [summary async for summary in summaries(session)] == [
        "tools of this session",
        "m · 1.1 · 1 message, ~1 tokens",
        "look · 1.1.0",
        "m · 1.2 · 3 messages, ~15 tokens",
    ]


async def test_ses_17_the_turn_count_is_written_only_with_another_search_attribute(
    env: Environment,
) -> None:
    session = await env.start(SessionInput(user="alice"))
    for number in range(3):
        await session.prompt(f"prompt {number}")
        await session.idle(turns=number + 1)
    described = await session.handle.describe()
    attributes = described.typed_search_attributes
    assert attributes.get(search_attributes.SESSION_STATUS) == "open"
    assert attributes.get(search_attributes.USER) == "alice"
    assert attributes.get(search_attributes.MODEL) == "offline:"
    assert attributes.get(search_attributes.TURNS) == 0
    assert await described.memo_value("title") == "prompt 0"
    assert len(_own_upserts(await session.handle.fetch_history())) == 1
    await session.handle.signal("end_chat")
    await session.handle.result()
    ended = (await session.handle.describe()).typed_search_attributes
    assert (ended.get(search_attributes.SESSION_STATUS), ended.get(search_attributes.TURNS)) == ("ended", 3)


async def test_ses_17_the_turn_count_is_written_when_a_run_starts(env: Environment) -> None:
    session = await env.start(SessionInput.model_validate({"user": "alice", "limits": {"max_history_events": 50}}))
    for number in range(12):
        await session.prompt(f"prompt {number}")
    await session.idle(turns=12)
    runs = await session.histories()
    assert len(runs) > 1
    assert [len(_own_upserts(run)) for run in runs] == [1] * len(runs)
    attributes = (await session.handle.describe()).typed_search_attributes
    turn_count = attributes.get(search_attributes.TURNS) or 0
    assert 1 < turn_count <= 12
    assert attributes.get(search_attributes.USER) == "alice"


async def test_ses_17_a_bare_json_string_from_the_web_ui_is_answered(env: Environment) -> None:
    session = await env.start()
    await session.handle.signal("prompt", "read it to me")
    assert [turn.agent_message for turn in await session.idle(turns=1)] == ["echo: read it to me"]


async def test_ses_3_the_views_of_a_conversation_have_their_fields(env: Environment) -> None:
    session = await env.start(SessionInput(title="T", user="alice"))
    await session.prompt("hello")
    await session.idle(turns=1)
    state = await session.handle.query("get_conversation_state")
    assert set(state) >= {
        "messages",
        "is_processing",
        "current_message_id",
        "revision",
        "status",
        "queue_length",
        "archived_count",
        "has_more",
        "session",
    }
    assert set(state["session"]) >= {"id", "title", "user", "model", "created_at", "turn_count", "usage"}
    assert set(state["messages"][0]) >= {"is_complete", "is_error", "status", "revision", "reasoning_trajectory"}
    update = await session.handle.query("get_conversation_updates")
    assert set(update) >= {
        "new_messages",
        "updated_messages",
        "is_processing",
        "current_message_id",
        "last_seen_message_id",
        "revision",
        "reset",
        "has_more",
        "status",
        "queue_length",
    }


async def test_ses_13_get_queue_and_get_model_request_answer_or_reject_clearly(env: Environment) -> None:
    env.vendor.gate.close()
    session = await env.start(SessionInput(system_prompt="be brief"))
    await session.prompt(id="p1", text="one")
    await env.vendor.gate.until_arrived(1)
    await session.prompt(id="p2", text="two")
    queue = await session.queue()
    assert [(prompt.id, prompt.position) for prompt in queue.waiting] == [("p2", 1)]
    assert [(fate.id, fate.fate) for fate in queue.fates] == [("p1", "started")]
    page = await session.handle.query("get_model_request", {"request": 1})
    assert page["head"]["system"] == "be brief"
    assert [message["content"] for message in page["messages"]] == ["one"]
    with pytest.raises(WorkflowQueryFailedError, match="Model request 7 is not open"):
        await session.handle.query("get_model_request", {"request": 7})
    env.vendor.gate.open()
    await session.idle(turns=2)
