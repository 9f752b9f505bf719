"""Histories of a session's own tasks that are ranked or condensed, on the real server (CTX-15, TSK-5)."""

from typing import Any

import pytest

from tests.harness import DrivenSession, Environment, last_user_message, replayer, says
from tests.workflows.tasks.test_sub_tasks import DELEGATE, answers, delegating, is_task, task_of
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.tasks.condensing import INSTRUCTION, answer_of, read_request
from turnkeeper.models.tasks.history_policy import HandOffPresets
from turnkeeper.models.transcript.model_call import ModelRequest

FACT = "The longest file is listed in the index of part 7."
ANSWER = "It is as it was before. " * 30 + FACT + " That is all." * 30


def started(**keep_user: Any) -> SessionInput:
    presets = HandOffPresets.model_validate({"keep_user": keep_user})
    return SessionInput(tool_policy={"*": "allow"}, hand_off=presets)


async def delegated_after_talk(env: Environment, start: SessionInput) -> tuple[DrivenSession, str]:
    """Return a session that has talked and then started a task, and the prompt of that task's agent."""
    session = await env.start(start)
    for number, text in enumerate(("Hello.", "Which file is the longest?", "Lunch?", "Paint it.", DELEGATE), start=1):
        await session.prompt(id=f"p{number}", text=text)
        await session.idle(turns=number)
    child = task_of(env, session)
    return session, (await child.state()).messages[0].user_message


def condensing(request: ModelRequest) -> Any:
    if request.head.system == INSTRUCTION:
        parsed = read_request(request.messages[0].content)
        return says(answer_of({text.id: FACT for text in parsed.texts if FACT in text.text} if parsed else {}))
    if not is_task(request) and last_user_message(request).startswith("Which"):
        return says(ANSWER)
    return delegating(agent=answers("Found it."), conversation_history="inherit")(request)


async def test_ctx_15_a_sub_task_gets_what_matters_to_it_by_the_operators_policy(env: Environment) -> None:
    env.vendor.answer = condensing
    session, prompt = await delegated_after_talk(env, started(relevant_to=True))
    assert "Which file is the longest?" in prompt
    assert "Hello." in prompt
    assert "Lunch" not in prompt
    for history in await session.histories():
        await replayer().replay_workflow(history)


async def test_ctx_15_the_long_texts_of_a_sub_task_are_condensed(env: Environment) -> None:
    env.vendor.answer = condensing
    session, prompt = await delegated_after_talk(env, started(compress="summarise", max_total_chars=1, min_messages=50))
    assert f"    {FACT} ... (condensed, original: {len(ANSWER)} chars)" in prompt
    task = (await task_of(env, session).state()).session.task
    assert task is not None
    assert task.condensed is not None
    assert (task.condensed.condensed, task.condensed.cut) == (1, 0)


async def test_ctx_15_if_the_history_can_not_be_ranked_its_latest_messages_stay(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(query: str, texts: object) -> list[float]:
        raise OSError("no index")

    monkeypatch.setattr("turnkeeper.activities.hand_off.rank", broken)
    env.vendor.answer = condensing
    session, prompt = await delegated_after_talk(env, started(relevant_to=True))
    assert "Lunch?" in prompt
    (task,) = (await session.state()).session.tasks
    assert task.status == "completed"


async def test_ctx_9_the_operators_presets_hold_for_tasks_of_sessions(env: Environment) -> None:
    env.vendor.answer = condensing
    _, prompt = await delegated_after_talk(env, started(max_messages=2, min_messages=1))
    assert "Lunch" not in prompt
    assert "📊 History metadata: 2 messages" in prompt
