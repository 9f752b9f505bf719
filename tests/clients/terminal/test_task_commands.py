"""`turnkeeper tasks`: tasks from a shell: API-6, TSK-1, TSK-4."""

import json
from pathlib import Path

from tests.clients.terminal.conftest import run_command
from tests.harness import Environment, asks, last_user_message, says
from tests.waiting import until
from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.models.transcript.model_call import ToolSpec


async def test_api_6_creating_a_task_with_wait_prints_only_its_answer(
    url: str, env: Environment, tmp_path: Path, gateway: GatewayClient
) -> None:
    context = tmp_path / "context.json"
    context.write_text(json.dumps({"constraints": ["Two coats"], "conversation_history": [_message("x" * 9_000)]}))
    env.vendor.script = [says("It is painted.\n\nTwice.")]
    options = ["--title", "Paint", "--priority", "P0", "--timeout", "60", "--context", str(context), "--wait"]
    ended = await run_command("tasks", "create", "Paint it.", *options, "--url", url, cwd=tmp_path)
    assert (ended.code, ended.out) == (0, "It is painted.\n\nTwice.\n"), ended.err
    assert "Warning: conversation_history[0]" in ended.err
    prompt = last_user_message(env.vendor.requests[0])
    assert "    - Two coats\n" in prompt
    assert "    P0\n" in prompt

    (task,) = [task for task in (await gateway.tasks.list(limit=5)).tasks if task.task_id in ended.err]
    details = await run_command("tasks", "get", task.task_id, "--json", "--url", url, cwd=tmp_path)
    assert json.loads(details.out)["result"]["summary"] == "It is painted."
    message = await run_command("tasks", "message", task.task_id, "And now?", "--url", url, cwd=tmp_path)
    assert message.out == f"Sent. Wait for the answer with: turnkeeper tasks get {task.task_id} --wait --url {url}\n"
    again = await run_command("tasks", "get", task.task_id, "--wait", "--url", url, cwd=tmp_path)
    assert (again.code, again.out) == (0, "echo: And now?\n")
    await until(lambda: _is_listed(gateway, task.task_id))
    listed = await run_command("tasks", "list", "--status", "completed", "--limit", "1", "--url", url, cwd=tmp_path)
    assert listed.out == f"{task.task_id}  completed  Paint\n"
    cancelled = await run_command("tasks", "cancel", task.task_id, "--reason", "Done.", "--url", url, cwd=tmp_path)
    assert (cancelled.code, cancelled.out.splitlines()[0]) == (0, f"{task.task_id}  completed  Paint")


async def _is_listed(gateway: GatewayClient, task_id: str) -> bool:
    """Return whether the task, the newest of all, is listed as completed, which it is a moment after it is."""
    return [task.task_id for task in (await gateway.tasks.list(status="completed", limit=1)).tasks] == [task_id]


async def test_api_6_waiting_for_a_task_exits_with_3_for_an_approval_and_1_for_a_failure(
    url: str, env: Environment, tmp_path: Path
) -> None:
    env.tools.specs = [ToolSpec(name="send_mail")]
    env.vendor.script = [asks(("send_mail", {})), ModelError("bad_request", "no such parameter")]
    waiting = await run_command("tasks", "create", "Write.", "--wait", "--url", url, cwd=tmp_path)
    assert (waiting.code, waiting.out) == (3, "")
    assert "needs approval" in waiting.err
    failed = await run_command("tasks", "create", "Fail.", "--wait", "--url", url, cwd=tmp_path)
    assert (failed.code, failed.out) == (1, "")
    assert "no such parameter" in failed.err


async def test_agt_8_an_unattended_task_denies_calls_that_need_approval(
    url: str, env: Environment, tmp_path: Path
) -> None:
    env.tools.specs = [ToolSpec(name="send_mail")]
    env.vendor.script = [asks(("send_mail", {})), says("I may not.")]
    options = ["--unattended", "--wait", "--url", url]
    ended = await run_command("tasks", "create", "Write.", *options, cwd=tmp_path)
    assert (ended.code, ended.out) == (0, "I may not.\n"), ended.err
    assert env.tools.calls == []


async def test_api_6_a_task_inherits_the_conversation_of_its_parent(
    url: str, env: Environment, tmp_path: Path, gateway: GatewayClient
) -> None:
    parent = (await gateway.start()).workflow_id
    await gateway.ask(parent, "The colour is teal.", wait=30)
    options = ["--parent", parent, "--inherit", "--json", "--url", url]
    created = await run_command("tasks", "create", "Paint it.", *options, cwd=tmp_path)
    receipt = json.loads(created.out)
    assert (created.code, receipt["context"]["kept"]) == (0, 2)
    assert (await gateway.tasks.get(receipt["task_id"], wait_seconds=30)).parent == parent
    assert "The colour is teal." in last_user_message(env.vendor.requests[-1])


async def test_api_6_every_invalid_option_of_a_new_task_is_reported(url: str, tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[]")
    for options, sentence in (
        (["--priority", "P9"], "  priority: "),
        (["--inherit"], "--inherit needs --parent"),
        (["--context", "none.json"], "--context none.json can't be used: No such file"),
        (["--context", "list.json"], "not a JSON object"),
    ):
        ended = await run_command("tasks", "create", "Paint it.", *options, "--url", url, cwd=tmp_path)
        assert (ended.code, ended.out) == (1, ""), options
        assert sentence in ended.err
    unknown = await run_command("tasks", "get", "task-none", "--url", url, cwd=tmp_path)
    assert (unknown.code, unknown.err) == (1, "There is no task 'task-none'.\n")
    away = await run_command("tasks", "list", "--url", "http://127.0.0.1:9", cwd=tmp_path)
    assert (away.code, "can't be reached" in away.err) == (2, True)


def _message(content: str) -> dict[str, str]:
    return {"role": "user", "content": content, "timestamp": "2025-10-29T13:20:15Z"}
