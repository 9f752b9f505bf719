"""A session's tasks in the terminal (TSK-5, API-6)."""

from pathlib import Path

from tests.clients.terminal.conftest import Chat, run_chat
from tests.clients.terminal.test_chat import session_in
from tests.features.tasks.workflow.test_sub_tasks import DELEGATE, calls_then, delegating, task_of
from tests.harness import Environment


async def test_tsk_5_a_task_shows_its_progress_and_the_command_for_its_approval(chat: Chat, env: Environment) -> None:
    report = ("report_progress", {"message": "Half of it", "percent": 50})
    env.vendor.answer = delegating(agent=calls_then(report, ("pay", {})), title="Pay the fees")
    async with chat() as terminal:
        terminal.type(DELEGATE)
        await terminal.until("Task Pay the fees: needs approval · 50 % · Half of it")
        await terminal.until("chat --session")
        parent = env.adopt(env.client.get_workflow_handle(session_in(terminal)))
        task = task_of(env, parent)
        (pending,) = await task.awaited_approvals()
        await terminal.until(f"Approval needed for call {pending.call_id} in session {task.handle.id}")
        await terminal.until("Effect: changes something; runs at most once")
        await task.decide(pending, "approve")
        await terminal.until("pay done")
        assert "Task Pay the fees" not in terminal.on_screen


async def test_tsk_5_a_pending_approval_in_a_task_exits_with_3(url: str, env: Environment, tmp_path: Path) -> None:
    env.vendor.answer = delegating(agent=calls_then(("pay", {})), title="Pay the fees")
    ended = await run_chat(DELEGATE, "--url", url, cwd=tmp_path)
    assert (ended.code, ended.out) == (3, "")
    assert "Approval needed in a task: Pay the fees\n\nSession " in ended.err
    assert "Effect: changes something; runs at most once\n" in ended.err, "the same text as in every interface"
