"""Histories of a session's own tasks that are ranked or condensed, on the real server (CTX-15, TSK-5)."""

from typing import Any

import pytest

from tests.features.tasks.workflow.test_sub_tasks import DELEGATE, answers, delegated, delegating, is_task, task_of
from tests.harness import DrivenSession, Environment, broken, heal, last_user_message, replayer, says
from turnkeeper.features.tasks.rules.enrichment import INSTRUCTION, answer_of, read_request
from turnkeeper.features.tasks.session.sub_tasks import RUN_TASK_SPEC
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.settings.history_policy import HandOffPresets
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import ConversationMessage, ModelStep, ToolResult
from turnkeeper.models.transcript.model_call import ModelRequest

FACT = "The longest file is listed in the index of part 7."
ANSWER = "It is as it was before. " * 30 + FACT + " That is all." * 30


def started(**keep_user: Any) -> SessionInput:
    presets = HandOffPresets.model_validate({"keep_user": keep_user})
    return SessionInput(tool_policy={"*": "allow"}, features=Settings(hand_off=presets).session_features)


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

    monkeypatch.setattr("turnkeeper.features.tasks.activities.rank", broken)
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


LONG_FACT = "Talk. " * 60 + "The vault's number is 4711."

SMALL = SessionInput.model_validate(
    {"tool_policy": {"*": "allow"}, "limits": {"max_state_bytes": 40_000, "max_queued_bytes": 8_000}}
)


async def archived_talk(env: Environment, **args: Any) -> DrivenSession:
    """Return a session that has said something in its first turn, which is in the archive, and starts tasks later."""

    def answer(request: ModelRequest) -> Any:
        if last_user_message(request).startswith("What is the vault"):
            return says(LONG_FACT)
        if last_user_message(request).startswith("Lunch"):
            return says("Soup, " * 300)
        return delegating(agent=answers("Found it."), **args)(request)

    env.vendor.answer = answer
    session = await env.start(SMALL)
    await session.prompt(id="p0", text="What is the vault's number?")
    await session.idle(turns=1)
    for number in range(1, 13):
        await session.prompt(id=f"p{number}", text=f"Lunch {number}?")
        await session.idle(turns=number + 1)
    await session.until(lambda state: state.archived_count >= 1)
    return session


@pytest.mark.parametrize("history", ["latest", "relevant"])
async def test_tsk_5_run_task_hands_over_what_is_in_the_archive(env: Environment, history: str) -> None:
    session = await archived_talk(env, history=history)
    env.vendor.answer = delegating(agent=answers("Found it."), history=history, title="Vault")
    await session.prompt(id="go", text=DELEGATE)
    await session.idle(turns=14)
    (turn,) = (await task_of(env, session).state()).messages
    assert "What is the vault's number?" in turn.user_message
    assert ("The vault's number is 4711." in turn.user_message) == (history == "relevant"), "latest cuts long answers"
    (result,) = results_of((await session.state()).messages[-1])
    assert result.content.startswith("Found it.")
    assert "[The history that the task got:" in result.content


async def test_tsk_5_run_task_says_that_the_archive_could_not_be_read(env: Environment) -> None:
    session = await archived_talk(env)
    env.vendor.answer = delegating(agent=answers("Found it."), history="latest", background=True)
    file = broken(env)
    await session.prompt(id="go", text=DELEGATE)
    await session.idle(turns=15)
    heal(file)
    (result,) = results_of((await session.state()).messages[-2])
    assert "Earlier turns are in the archive, which could not be read." in result.content
    (turn,) = (await task_of(env, session).state()).messages
    assert "vault" not in turn.user_message


async def test_tsk_5_run_task_offers_what_a_person_can_choose_for_a_task(env: Environment) -> None:
    args = {
        "history": "none",
        "priority": "P0",
        "model": "offline:script/other",
        "related_documentation": ["docs/vault.md"],
        "client_cwd": "/home/ann",
    }
    assert args.keys() <= RUN_TASK_SPEC.input_schema["properties"].keys()
    env.vendor.answer = delegating(agent=answers("Found it."), **args)
    session, _ = await delegated(env)
    state = await task_of(env, session).state()
    assert state.session.model == "offline:script/other"
    for text in ("P0", "docs/vault.md", "/home/ann"):
        assert text in state.messages[0].user_message


async def test_tsk_5_history_and_conversation_history_together_are_an_error(env: Environment) -> None:
    env.vendor.answer = delegating(history="latest", conversation_history="inherit")
    _, (result,) = await delegated(env)
    assert result.status == "error"
    assert "history or conversation_history, not both" in result.outcome


def results_of(turn: ConversationMessage) -> list[ToolResult]:
    steps = [step for step in turn.steps if isinstance(step, ModelStep)]
    return [call.result for step in steps for call in step.tool_calls if call.result]
