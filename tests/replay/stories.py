"""The stories with recorded histories: each drives a session on a real server from its start to a given point."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from unittest.mock import patch
from uuid import uuid4

from tests.harness import UNASKED, DrivenSession, Environment, Gate, asks, last_user_message, says, until_copied
from turnkeeper.activities.providers.protocol import Delta, ModelError
from turnkeeper.features.copies.document.document import CopyOrder, ForkSource
from turnkeeper.features.tasks.rules.enrichment import INSTRUCTION
from turnkeeper.features.tasks.session.sub_tasks import sub_task_id
from turnkeeper.models.session import tools as session_tools
from turnkeeper.models.session.messages import DeletionOrder, SessionInput, deletion_id
from turnkeeper.models.settings.history_policy import HandOffPresets
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import ConversationState, ToolResult
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse, ToolInvocation, ToolSpec

Story = Callable[[Environment], Awaitable[DrivenSession]]


async def one_turn(env: Environment) -> DrivenSession:
    session = await env.start()
    await session.prompt("hello")
    await session.idle(turns=1)
    return session


async def tool_calls(env: Environment) -> DrivenSession:
    env.vendor.script = [asks(("look", {"n": 1}), ("look", {"n": 2})), asks(("pay", {})), says("done")]
    session = await env.start(UNASKED)
    await session.prompt("look twice and pay")
    await session.idle(turns=1)
    return session


async def quick_reads(env: Environment) -> DrivenSession:
    env.tools.specs += [ToolSpec(name=name, effect="read", built_in=True) for name in ("file_read", "now")]
    read = ("file_read", {"path": "a.txt"})
    env.vendor.script = [asks(read, ("now", {})), asks(read, ("look", {})), says("done")]
    session = await env.start()
    await session.prompt("read")
    await session.idle(turns=1)
    return session


async def failed_tool(env: Environment) -> DrivenSession:
    async def fail(invocation: object) -> ToolResult:
        return ToolResult(outcome="look failed", status="error")

    env.tools.run = fail
    env.vendor.script = [asks(("look", {}), ("nope", {})), says("it did not work")]
    session = await env.start()
    await session.prompt("look")
    await session.idle(turns=1)
    return session


async def failed_turn(env: Environment) -> DrivenSession:
    env.vendor.script = [ModelError("overloaded", "busy"), ModelError("auth", "no")]
    session = await env.start()
    await session.prompt("hello")
    await session.prompt("hello again")
    await session.idle(turns=2)
    return session


async def cancelled_turn(env: Environment) -> DrivenSession:
    env.vendor.script = [asks(("look", {}), ("pay", {}))]
    env.tools.gate.close()
    session = await env.start(UNASKED)
    await session.prompt(id="p1", text="pay")
    await env.tools.gate.until_arrived(2)
    await session.update("cancel_turn", {"message_id": "p1"})
    await session.prompt("and now?")
    await session.idle(turns=2)
    return session


async def overlapping_prompts(env: Environment) -> DrivenSession:
    env.vendor.gate.close()
    session = await env.start()
    await session.prompt(id="p1", text="slow")
    await env.vendor.gate.until_arrived(1)
    await session.prompt(id="p2", text="queued")
    await session.prompt(id="p3", text="withdrawn")
    await session.update("withdraw_prompt", {"id": "p3"})
    await session.prompt(id="p4", text="now", mode="interrupt")
    await env.vendor.gate.until_arrived(2)
    await session.prompt(id="p5", text="steered too late", mode="steer")
    await session.until(lambda s: s.queue_length == 2)
    env.vendor.gate.open()
    await session.idle(turns=4)
    return session


async def steered_turn(env: Environment) -> DrivenSession:
    env.vendor.script = [asks(("look", {})), says("as you wish")]
    env.tools.gate.close()
    session = await env.start()
    await session.prompt("look")
    await env.tools.gate.until_arrived(1)
    await session.prompt(text="only the red ones", mode="steer")
    await session.until(lambda s: s.queue_length == 1)
    env.tools.gate.open()
    await session.idle(turns=1)
    return session


async def attachments(env: Environment) -> DrivenSession:
    """Prompts with attachments, over several runs."""
    code = {"type": "code", "name": "add.py", "language": "python", "content": "print(1 + 1)"}
    stored = {"type": "image", "name": "cat.png", "media_type": "image/png", "hash": "0" * 64, "bytes": 16_000}
    session = await env.start(SessionInput.model_validate({"limits": {"max_history_events": 50}}))
    for number in range(5):
        await session.prompt(text="look", attachments=[code, stored])
        await session.prompt(last := f"turn {number}")
        await session.until(partial(_has_answered, last))
    return session


def _has_answered(prompt: str, state: ConversationState) -> bool:
    newest = state.messages[-1] if state.messages else None
    return newest is not None and newest.user_message == prompt and newest.is_complete and not state.queue_length


async def waiting_for_the_vendor(env: Environment) -> DrivenSession:
    env.vendor.script = [ModelError("rate_limited", "later", retry_after=5.5), says("at last")]
    session = await env.start()
    await session.prompt("hello")
    await session.idle(turns=1)
    return session


async def configured_and_ended(env: Environment) -> DrivenSession:
    session = await env.start(SessionInput(title="A title", user="alice"))
    await session.prompt("one")
    await session.idle(turns=1)
    await session.update("configure", {"title": "Another", "limits": {"max_steps": 3}})
    await session.prompt("two")
    await session.idle(turns=2)
    await session.update("end_session", {"reason": "done"})
    await session.handle.result()
    return session


async def continued_as_new(env: Environment) -> DrivenSession:
    session = await env.start(SessionInput.model_validate({"limits": {"max_history_events": 50}}))
    for number in range(10):
        await session.prompt(f"turn {number}")
        await session.idle(turns=number + 1)
    await session.handle.signal("end_chat")
    await session.handle.result()
    return session


async def archived_turns(env: Environment) -> DrivenSession:
    session = await env.start(SessionInput.model_validate({"limits": {"max_state_bytes": 40_000}}))
    for number in range(16):
        await session.prompt(f"turn {number} " + "x" * 300)
    await session.idle(turns=16)
    await session.until(lambda s: s.archived_count > 0)
    await session.handle.signal("end_chat")
    await session.handle.result()
    return session


async def turn_over_runs(env: Environment) -> DrivenSession:
    env.vendor.script = [asks(("look", {"n": number}), ("pay", {})) for number in range(12)]
    session = await env.start(
        SessionInput.model_validate({"tool_policy": UNASKED.tool_policy, "limits": {"max_history_events": 50}})
    )
    await session.prompt("look and pay, again and again")
    await session.prompt("and now?")
    await session.handle.signal("end_chat")
    await session.handle.result()
    return session


async def step_over_runs(env: Environment) -> DrivenSession:
    env.vendor.script = [asks(*[("look", {"n": number}) for number in range(40)])]
    session = await env.start(SessionInput.model_validate({"limits": {"max_history_events": 50}}))
    await session.prompt("look everywhere at once")
    await session.handle.signal("end_chat")
    await session.handle.result()
    return session


async def steps_archived(env: Environment) -> DrivenSession:
    async def look(invocation: ToolInvocation) -> ToolResult:
        return ToolResult(outcome="looked", content="x" * 300)

    env.tools.run = look
    env.vendor.script = [asks(("look", {"n": number})) for number in range(32)]
    session = await env.start(SessionInput.model_validate({"limits": {"max_state_bytes": 32_000}}))
    await session.prompt("look for a very long time")
    (turn,) = await session.idle(turns=1)
    assert turn.steps_omitted > 0
    return session


async def large_texts(env: Environment) -> DrivenSession:
    async def read(invocation: ToolInvocation) -> ToolResult:
        return ToolResult(outcome="read", content="x" * 30_000)

    env.tools.run = read
    env.vendor.script = [asks(("look", {"text": "a" * 9_000})), says("w" * 12_000)]
    session = await env.start()
    await session.prompt("read it all")
    await session.prompt("what was it?")
    await session.idle(turns=2)
    return session


async def archive_down(env: Environment) -> DrivenSession:
    in_its_place = env.settings.state_dir / "archive.db"
    in_its_place.mkdir()
    session = await env.start(SessionInput.model_validate({"limits": {"max_state_bytes": 60_000}}))
    state = await session.state()
    while state.session.archive.failing_since is None:
        turns = state.session.turn_count
        await session.prompt(f"turn {turns} " + "x" * 300)
        state = await session.until(
            lambda s, before=turns: (
                s.session.archive.failing_since or (s.session.turn_count > before and s.status == "idle")
            )
        )
    in_its_place.rmdir()
    await session.until(lambda s: s.archived_count > 0)
    return session


async def summarised(env: Environment) -> DrivenSession:
    outcomes = [says("They counted."), says(""), ModelError("auth", "no"), says("They counted on.")]
    env.vendor.summarise = lambda request: outcomes.pop(0) if outcomes else says("They are still counting.")
    window = {"max_messages": 12, "preserve_last_n": 2, "evict_block": 9, "summarize_on_trim": True}
    limits = {"max_history_events": 50}
    session = await env.start(SessionInput.model_validate({"history": window, "limits": limits}))
    for number in range(30):
        await session.prompt(f"turn {number}, with some more words")
        if number % 10 == 9:
            await session.idle(turns=number + 1)
    view = await session.context()
    assert view.summary is not None
    assert view.summaries_failed == 2
    return session


async def overflowed(env: Environment) -> DrivenSession:
    return await _overflowing(env, turns=3, errors=1)


async def halved_window(env: Environment) -> DrivenSession:
    return await _overflowing(env, turns=6, errors=4)


async def _overflowing(env: Environment, *, turns: int, errors: int) -> DrivenSession:
    session = await env.start()
    for number in range(turns):
        await session.prompt(f"turn {number}")
        await session.idle(turns=number + 1)
    env.vendor.script = [ModelError("context_too_long", "no room")] * errors
    await session.prompt("this does not fit")
    await session.idle(turns=turns + 1)
    await session.prompt("this fits")
    await session.idle(turns=turns + 2)
    return session


async def approved(env: Environment) -> DrivenSession:
    env.tools.specs = [*env.tools.specs, ToolSpec(name="send_mail"), ToolSpec(name="post")]
    env.vendor.script = [asks(("send_mail", {"n": 0}), ("look", {}), ("post", {}), ("send_mail", {"n": 1}))]
    session = await env.start(SessionInput.model_validate({"limits": {"max_history_events": 50}}))
    await session.prompt("write to them")
    await session.awaited_approvals(3)
    for number in range(60):  # while it waits, the session continues in a new run
        await session.prompt(f"and then, {number}?")
    await session.until(lambda s: s.revision >= 66)  # waiting in the queue, or rejected
    mail, post, _ = await session.awaited_approvals(3)
    await session.decide(post, "reject", reason="no stamps")
    await session.decide(mail, "allow_for_session")
    await session.until(lambda s: s.session.turn_count > 1, turns=0)
    await session.update("end_session", {"discard_queue": True})
    await session.handle.result()
    return session


async def approval_expired(env: Environment) -> DrivenSession:
    env.tools.specs = [*env.tools.specs, ToolSpec(name="send_mail")]
    env.vendor.script = [asks(("send_mail", {}), ("look", {})), says("nobody was there"), asks(("send_mail", {}))]
    session = await env.start(SessionInput.model_validate({"limits": {"approval_timeout": 0.3}}))
    await session.prompt("write")
    await session.idle(turns=1)
    await session.update("configure", {"limits": {"approval_timeout": 60}})
    await session.prompt(id="p2", text="write again")
    await session.awaited_approvals()
    await session.update("cancel_turn", {"message_id": "p2"})
    await session.idle(turns=2)
    return session


async def tools_renewed(env: Environment, *, turns: int = 6) -> DrivenSession:
    window = {"max_messages": 6, "preserve_last_n": 2, "evict_block": 3}
    session = await env.start(SessionInput.model_validate({"history": window}))
    for number in range(turns):
        await session.prompt(f"turn {number}")
        await session.idle(turns=number + 1)
        env.tools.specs = [*env.tools.specs, ToolSpec(name=f"new_{number}")]
    return session


async def tools_fresh_for_turns(env: Environment) -> DrivenSession:
    """Segments begin every few turns, and the tools are read again once."""
    return await tools_renewed(env, turns=session_tools.FRESH_TURNS + 4)


async def tools_read_again(env: Environment) -> DrivenSession:
    """A server that could not be asked is asked in the next turn; a call that met another tool has the list read."""

    async def change(invocation: ToolInvocation) -> ToolResult:
        return ToolResult(outcome="look has changed, and was not called", status="error", tool_changed=True)

    built_in = env.tools.specs
    env.tools.unread = ["mail"]
    session = await env.start()
    for number, mail in enumerate(([], ["send_mail"], [])):
        await session.prompt(f"turn {number}")
        await session.idle(turns=number + 1)
        env.tools.specs = [*built_in, *(ToolSpec(name=name, server="mail") for name in mail)]
        env.tools.unread = [] if mail else ["mail"]
    env.tools.run = change
    env.vendor.script = [asks(("look", {})), says("done")]
    await session.prompt("look")
    await session.idle(turns=4)
    await session.prompt("and now?")
    await session.idle(turns=5)
    assert env.tools.listings > 3
    return session


async def written_unasked(env: Environment) -> DrivenSession:
    """Recorded without a policy, while built-in tools that write ran unasked by default (AGT-8)."""
    env.tools.specs = [*env.tools.specs, ToolSpec(name="file_write", effect="idempotent", built_in=True)]
    env.vendor.script = [asks(("file_write", {"path": "notes.txt", "content": "hello"})), says("Wrote notes.txt")]
    session = await env.start(UNASKED)
    await session.prompt("write hello to notes.txt")
    await session.idle(turns=1)
    return session


async def stopped_in_mid_answer(env: Environment) -> DrivenSession:
    """Recorded while a stopped turn did not wait for what its model had written (SES-9)."""
    middle = Gate(is_open=False)
    env.vendor.script = [
        asks(("look", {})),
        [Delta("think", "Let me see."), Delta("respond", "It was a dark"), middle, says("It was a dark night.")],
    ]
    session = await env.start()
    await session.prompt(id="p1", text="look, and tell me a story")
    await middle.until_arrived(1)
    await session.update("cancel_turn", {"message_id": "p1"})
    await session.prompt("and now?")
    await session.idle(turns=2)
    return session


async def interrupted_answers(env: Environment) -> DrivenSession:
    """An answer that is stopped, one that is interrupted, and one that breaks off: what was written stays (SES-9)."""
    middles = [Gate(is_open=False), Gate(is_open=False)]
    env.vendor.script = [
        [Delta("think", "Let me see."), Delta("respond", "It was a dark"), middles[0], says("It was a dark night.")],
        [Delta("respond", "Once upon"), Delta("call", "pay"), middles[1], asks(("pay", {}))],
        [Delta("respond", "In the beginning"), ModelError("auth", "no")],
    ]
    session = await env.start()
    await session.prompt(id="p1", text="tell me a story")
    await middles[0].until_arrived(1)
    await session.update("cancel_turn", {"message_id": "p1"})
    await session.prompt(id="p2", text="another one")
    await middles[1].until_arrived(1)
    await session.prompt(id="p3", text="no, a third one", mode="interrupt")
    turns = await session.idle(turns=3)
    assert [turn.steps[-1].text for turn in turns if turn.steps[-1].kind == "model"] == [
        "It was a dark",
        "Once upon",
        "In the beginning",
    ]
    return session


async def summarised_by_default(env: Environment) -> DrivenSession:
    """A session that was started without input: every default is today's."""
    env.vendor.summarise = lambda request: says("They counted.")
    session_id = f"s-{uuid4()}"
    session = env.adopt(await env.client.start_workflow("AgenticAIWorkflow", id=session_id, task_queue=env.task_queue))
    await session.update("configure", {"history": {"summarize_on_trim": True}})
    for number in range(10):
        env.vendor.script = [asks(*[("nothing", {})] * 12)]  # a tool that isn't there costs no activity
        await session.prompt(f"turn {number}")
        await session.idle(turns=number + 1)
    assert (await session.context()).summary is not None
    return session


async def parked_prompts(env: Environment) -> DrivenSession:
    """More waits than a run can hand over, and more is rejected than the session remembers."""
    limits = {"max_history_events": 50, "max_queued_prompts": 4, "max_state_bytes": 40_000, "max_queued_bytes": 2_000}

    def answer(request: ModelRequest) -> ModelResponse:
        if len(env.vendor.requests) == 5:
            env.vendor.gate.close()
        return says(f"echo: {last_user_message(request)}")

    env.vendor.answer = answer
    env.vendor.gate.close()
    session = await env.start(SessionInput.model_validate({"limits": limits}))
    for number in range(25):
        await session.prompt(id=f"p{number}", text=f"prompt {number}")
    for _ in range(30):
        await session.prompt("")
    env.vendor.gate.open()
    await session.until(lambda s: s.session.turn_count == 6, turns=0)
    assert (await session.queue()).parked > 0
    await session.update("withdraw_prompt", {"id": "p20"})
    env.vendor.gate.open()
    await session.idle(turns=24)
    await session.handle.signal("end_chat")
    await session.handle.result()
    return session


async def sub_tasks(env: Environment) -> DrivenSession:
    """Tasks in the foreground, one of them stopped; and one in the background whose answer becomes a prompt (TSK-5)."""
    env.vendor.answer = _delegating
    session = await env.start(SessionInput(tool_policy={"*": "allow"}))
    await session.prompt(id="p1", text="wait for it")
    await session.idle(turns=1)
    await session.prompt(id="p2", text="do not wait for it")
    await session.idle(turns=3)
    env.tools.gate.close()
    await session.prompt(id="p4", text="look into it")
    await env.tools.gate.until_arrived(1)
    await session.update("cancel_turn", {"message_id": "p4"})
    await session.idle(turns=4)
    await session.update("end_session", {})
    await session.handle.result()
    return session


async def task(env: Environment) -> DrivenSession:
    """A task that reports progress, asks for a decision and answers at length (TSK-4, TSK-5)."""
    env.vendor.answer = _delegating
    session = await env.start(SessionInput())
    await session.prompt(id="p1", text="pay for it")
    await session.until(lambda state: any(task.status == "input_required" for task in state.session.tasks))
    task = DrivenSession(env.client, env.client.get_workflow_handle(f"{session.handle.id}.task-1"))
    env.adopt(task.handle)
    (pending,) = await task.awaited_approvals()
    await task.decide(pending, "approve")
    await session.idle(turns=1)
    await task.handle.result()
    return task


def _delegating(request: ModelRequest) -> ModelResponse:
    """Delegate everything to a task, which does what its description says."""
    prompt, has_results = last_user_message(request), request.messages[-1].role == "tool"
    is_task = any(tool.name == "report_progress" for tool in request.head.tools)
    if has_results:
        return says("It was done. " * (1_000 if is_task else 1))
    if is_task:
        tool = next((name for name in ("look", "pay") if prompt.startswith(name)), None)
        return asks(("report_progress", {"percent": 10}), (tool, {})) if tool else says("It is done.")
    if prompt.startswith("["):
        return says("I see.")
    return asks(("run_task", {"description": prompt, "background": prompt.startswith("do not wait")}))


async def ranked_history(env: Environment) -> DrivenSession:
    """A session whose task gets a history that was ranked and is to be condensed."""
    presets = HandOffPresets.model_validate({"keep_user": {"relevant_to": True, "compress": "summarise"}})
    long = "It is as it was. " * 30
    answers = [says(long), asks(("run_task", {"description": "Look.", "conversation_history": "inherit"})), says("ok")]

    def answer(request: ModelRequest) -> ModelResponse:
        if request.head.system == INSTRUCTION:
            return says('{"2": "As it was."}')
        is_task = any(tool.name == "report_progress" for tool in request.head.tools)
        return says("It is done.") if is_task else answers.pop(0)

    env.vendor.answer = answer
    session = await env.start(
        SessionInput(tool_policy={"*": "allow"}, features=Settings(hand_off=presets).session_features)
    )
    for number, text in enumerate(("look", "delegate"), start=1):
        await session.prompt(text)
        await session.idle(turns=number)
    return session


async def condensed_history(env: Environment) -> DrivenSession:
    """The task of such a session, whose history the model condenses."""
    session = await ranked_history(env)
    return env.adopt(env.client.get_workflow_handle(sub_task_id(session.handle.id, 1)))


async def deleted(env: Environment) -> DrivenSession:
    """The deletion of a session that is in the middle of an answer, and not the session: of that nothing is left."""
    env.vendor.gate.close()
    session = await env.start()
    await session.prompt("hello")
    await env.vendor.gate.until_arrived(1)
    order = DeletionOrder(first_run_id=session.handle.first_execution_run_id or "")
    with patch("turnkeeper.workflows.activity_options.DELETION_QUIET", timedelta(seconds=1)):
        deletion = await env.client.start_workflow(
            "DeleteSession", order, id=deletion_id(session.handle.id), task_queue=env.task_queue
        )
        await deletion.result()
    return env.adopt(deletion)


async def forked(env: Environment) -> DrivenSession:
    """A fork: its first run is the copy, which a prompt waits for."""
    session = await env.start()
    await session.prompt(id="p1", text="hello")
    await session.idle(turns=1)
    fork = ForkSource(session=session.handle.id, first_run_id=session.handle.first_execution_run_id or "", turn=1)
    order = CopyOrder(start=SessionInput(), fork=fork)
    copy = await env.client.start_workflow(
        "CopySession",
        order,
        id=f"fork-{uuid4()}",
        task_queue=env.task_queue,
        start_signal="prompt",
        start_signal_args=["and now?"],
    )
    forked = env.adopt(env.client.get_workflow_handle(copy.id))
    await until_copied(forked.handle)
    await forked.idle(turns=2)
    return forked


STORIES: dict[str, Story] = {
    story.__name__: story
    for story in (
        one_turn,
        forked,
        tool_calls,
        quick_reads,
        failed_tool,
        failed_turn,
        cancelled_turn,
        overlapping_prompts,
        steered_turn,
        attachments,
        waiting_for_the_vendor,
        configured_and_ended,
        continued_as_new,
        archived_turns,
        turn_over_runs,
        step_over_runs,
        steps_archived,
        large_texts,
        archive_down,
        summarised,
        overflowed,
        halved_window,
        approved,
        approval_expired,
        tools_renewed,
        tools_fresh_for_turns,
        tools_read_again,
        written_unasked,
        stopped_in_mid_answer,
        interrupted_answers,
        summarised_by_default,
        parked_prompts,
        sub_tasks,
        task,
        ranked_history,
        condensed_history,
        deleted,
    )
}
