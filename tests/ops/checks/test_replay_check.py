"""Sessions are replayed with the code at hand before it is deployed (OPS-9, SES-19)."""

import asyncio
import base64
import dataclasses
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import Replayer
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from tests.harness import environment
from tests.ops.conftest import BOUND
from tests.processes.forked import PIPE, STDOUT, fork
from tests.replay.record import unpacked_histories
from tests.replay.stories import STORIES
from tests.waiting import until
from turnkeeper.activities.tools import ToolActivities
from turnkeeper.models.command_line import command_line
from turnkeeper.models.settings.settings import Settings
from turnkeeper.ops import replay_check
from turnkeeper.ops.local.supervisor import own_command
from turnkeeper.ops.replay_check import Finding, Tally, check_files, check_sessions, read_history
from turnkeeper.stores.temporal.connection import connect
from turnkeeper.stores.temporal.endpoint import TemporalAccessError
from turnkeeper.stores.temporal.payload_converter import DATA_CONVERTER
from turnkeeper.workflows.agentic_ai_workflow import AgenticAIWorkflow

ROOT = Path(__file__).parents[3]
HISTORIES = unpacked_histories()
TOOLS = HISTORIES / "tool_calls.json"
RENAMED = ("@activity.defn\n    async def call_tool", '@activity.defn(name="run_tool")\n    async def call_tool')
DIFFERS = (
    "the SDK says: [TMPRL1100] Nondeterminism error: Activity type of scheduled event 'call_tool' does not match "
    "activity type of activity command 'run_tool'"
)


# ---- replaying with changed code


async def findings(*paths: Path) -> list[Finding]:
    return [finding async for finding in check_files(paths)]


async def only_finding(path: Path) -> Finding:
    (finding,) = await findings(path)
    return finding


async def replays_for_the_sdk(path: Path) -> bool:
    replayer = Replayer(workflows=[AgenticAIWorkflow], data_converter=DATA_CONVERTER)
    return (await replayer.replay_workflow(read_history(path), raise_on_replay_failure=False)).replay_failure is None


def at_the_end_of_a_turn(monkeypatch: pytest.MonkeyPatch, step: Callable[[], object]) -> None:
    monkeypatch.setattr("turnkeeper.workflows.turn.turn_runner.TurnRunner._log_end", lambda turn: step())


@pytest.fixture
def renamed_activity(monkeypatch: pytest.MonkeyPatch) -> None:
    defined = ToolActivities.call_tool.__temporal_activity_definition  # type: ignore[attr-defined]
    renamed = dataclasses.replace(defined, name="run_tool")
    monkeypatch.setattr(ToolActivities.call_tool, "__temporal_activity_definition", renamed)


async def test_ops_9_recorded_histories_replay_with_the_current_code(folder: Path) -> None:
    """Some histories; tests/replay covers all."""
    copies = {Path(shutil.copy(file, folder)) for file in sorted(HISTORIES.glob("*.json"))[::6]}
    results = await findings(folder)
    assert [finding for finding in results if finding.verdict != "replays"] == []
    assert {finding.file for finding in results} == copies
    assert len(results) > 2


@pytest.mark.usefixtures("renamed_activity")
async def test_ops_9_a_renamed_activity_is_reported_with_session_and_run() -> None:
    started = read_history(TOOLS).events[0].workflow_execution_started_event_attributes
    line = f"session {started.workflow_id}, run {started.original_execution_run_id} ({TOOLS}): {DIFFERS}"
    assert (await only_finding(TOOLS)).line() == line


def _fail() -> None:
    raise ApplicationError("over")


async def _upsert_memo_later() -> None:
    """Upsert after the timer that follows each turn."""
    passes = iter([False])
    await workflow.wait_condition(lambda: next(passes, True))
    workflow.upsert_memo({"a": 1})


@pytest.mark.parametrize(
    ("step", "command"),
    [
        (lambda: asyncio.create_task(workflow.sleep(1)), "Timer"),
        (lambda: asyncio.create_task(_upsert_memo_later()), "ModifyWorkflowProperties"),
        (_fail, "Fail workflow"),
    ],
)
async def test_ops_9_a_command_beyond_the_history_is_reported_though_the_sdk_accepts_it(
    step: Callable[[], object], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_the_end_of_a_turn(monkeypatch, step)
    finding = await only_finding(TOOLS)
    last = len(read_history(TOOLS).events)
    assert await replays_for_the_sdk(TOOLS)
    assert finding.verdict == "differs"
    assert finding.message == f"after event {last} nothing more is recorded, but today's code asks for: {command}"


async def test_ops_9_the_event_at_which_the_sdk_stops_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    at_the_end_of_a_turn(monkeypatch, lambda: asyncio.create_task(workflow.sleep(1)))
    finding = await only_finding(HISTORIES / "configured_and_ended.json")
    message = r"the SDK says: \[TMPRL1100\] .* Timer machine does not handle this event: event (\d+), (\w+)"
    event, kind = re.fullmatch(message, finding.message).groups()  # type: ignore[union-attr]
    assert json.loads(finding.to_json())["event"] == int(event)
    assert kind == "WorkflowExecutionUpdateAccepted"


async def test_ops_9_an_exception_of_the_code_is_reported_with_its_location(monkeypatch: pytest.MonkeyPatch) -> None:
    def explode() -> None:
        raise RuntimeError("no way\nto go on")

    at_the_end_of_a_turn(monkeypatch, explode)
    finding = await only_finding(TOOLS)
    assert finding.verdict == "differs"
    assert re.fullmatch(
        r"today's code raises RuntimeError at test_replay_check\.py:\d+ explode: no way to go on", finding.message
    )


async def test_ops_9_a_run_delayed_by_a_busy_machine_is_replayed_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = replay_check._replay

    async def first_held_up(*arguments: Any) -> Exception | None:
        monkeypatch.undo()
        await replay(*arguments)
        return RuntimeError("4: [TMPRL1101] Potential deadlock detected")

    monkeypatch.setattr(replay_check, "_replay", first_held_up)
    assert (await only_finding(TOOLS)).verdict == "replays"


async def test_ops_9_code_that_the_sandbox_cannot_load_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ImportError("no module named 'tomorrow'")

    monkeypatch.setattr(SandboxedWorkflowRunner, "prepare_workflow", refuse)
    assert (await only_finding(TOOLS)).message == (
        "the SDK says: Failed validating workflow AgenticAIWorkflow: no module named 'tomorrow'"
    )


# ---- files


async def test_ops_9_a_run_that_no_worker_has_seen_is_only_counted(folder: Path) -> None:
    history = json.loads(TOOLS.read_text())
    (folder / "new.json").write_text(json.dumps({"events": history["events"][:2]}))
    tally = Tally()
    tally.add(await only_finding(folder / "new.json"))
    assert (tally.line(), tally.exit_code) == ("1 session, 0 runs replayed, 0 differ, 1 not begun", 0)


async def test_ops_9_the_runs_of_a_session_are_counted_as_one_session() -> None:
    tally = Tally()
    chain = sorted(HISTORIES.glob("continued_as_new*.json"))
    for finding in await findings(*chain):
        tally.add(finding)
    assert tally.line() == f"1 session, {len(chain)} runs replayed, 0 differ"
    counts = {"sessions": 1, "runs": len(chain), "differ": 0, "not_begun": 0, "gone": 0, "unusable": 0}
    assert json.loads(tally.to_json()) == counts


async def test_ops_9_a_history_exported_by_the_web_ui_is_read(folder: Path) -> None:
    history = json.loads(TOOLS.read_text())
    for event in history["events"]:
        event["eventType"] = event["eventType"].removeprefix("EVENT_TYPE_").title().replace("_", "")
    (folder / "events.json").write_text(json.dumps(history))
    assert (await only_finding(folder / "events.json")).verdict == "replays"


def _part(history: dict[str, Any]) -> None:
    del history["events"][0]


def _hole(history: dict[str, Any]) -> None:
    del history["events"][8]


def _reversed(history: dict[str, Any]) -> None:
    history["events"].reverse()


def _empty(history: dict[str, Any]) -> None:
    history["events"].clear()


def _decoded(history: dict[str, Any]) -> None:
    payloads = history["events"][0]["workflowExecutionStartedEventAttributes"]["input"]["payloads"]
    payloads[:] = [json.loads(base64.b64decode(payload["data"])) for payload in payloads]


def _foreign(history: dict[str, Any]) -> None:
    history["events"][0]["workflowExecutionStartedEventAttributes"]["workflowType"]["name"] = "Billing"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_part, "is not a whole history, from its first event on"),
        (_hole, "is not a whole history, from its first event on"),
        (_reversed, "is not a whole history, from its first event on"),
        (_empty, "is not a whole history, from its first event on"),
        (_decoded, "has decoded payloads, which cannot be replayed"),
        (_foreign, "is the history of a workflow 'Billing', not of a session (AgenticAIWorkflow)"),
    ],
)
async def test_ops_9_the_history_of_another_workflow_is_reported(folder: Path, change: Any, message: str) -> None:
    history = json.loads(TOOLS.read_text())
    change(history)
    (folder / "given.json").write_text(json.dumps(history))
    finding = await only_finding(folder / "given.json")
    assert finding.verdict == "unusable"
    assert finding.line().startswith(f"{folder / 'given.json'}: {message}")


@pytest.mark.parametrize("content", [b"", b"\xff", b"{", b"{}", b"[]", b"7", b'{"events": [7]}', b'{"events": [{}]}'])
async def test_ops_9_a_file_that_is_not_a_history_is_reported(folder: Path, content: bytes) -> None:
    (folder / "given.json").write_bytes(content)
    finding = await only_finding(folder / "given.json")
    assert finding.verdict == "unusable"
    assert finding.line().startswith(f"{folder / 'given.json'}: is not ")


async def test_ops_9_one_bad_file_does_not_stop_the_replay_of_the_others(folder: Path) -> None:
    (folder / "empty").mkdir()
    results = await findings(folder / "nowhere.json", folder / "empty", TOOLS)
    assert {(finding.file, finding.verdict) for finding in results} == {
        (folder / "nowhere.json", "unusable"),
        (folder / "empty", "unusable"),
        (TOOLS, "replays"),
    }


# ---- live sessions


async def test_ops_9_a_session_deleted_before_it_could_be_read_is_reported(
    temporal: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def listed(*_: object, **__: object) -> Any:
        yield replay_check._Chain("chat-1")
        yield replay_check._Chain("chat-2", "01a1fddd-071b-714f-8b2b-6bf7abb75973")

    monkeypatch.setattr(replay_check, "_list_chains", listed)
    results = [finding async for finding in check_sessions(temporal)]
    assert {(finding.session, finding.verdict) for finding in results} == {("chat-1", "gone"), ("chat-2", "gone")}


async def test_ops_9_a_workflow_that_is_not_a_session_is_reported(temporal: Client) -> None:
    await temporal.start_workflow("Billing", id="bill-1", task_queue="nobody")
    (finding,) = [finding async for finding in check_sessions(temporal, ids=["bill-1"])]
    assert (finding.verdict, finding.session) == ("unusable", "bill-1")
    assert finding.message == "is the history of a workflow 'Billing', not of a session (AgenticAIWorkflow)"


async def test_ops_9_an_error_of_temporal_is_reported_in_its_own_words(temporal: Client) -> None:
    config = temporal.config()
    elsewhere = Client(temporal.service_client, namespace="nowhere", data_converter=config["data_converter"])
    with pytest.raises(TemporalAccessError, match="Namespace nowhere is not found"):
        _ = [finding async for finding in check_sessions(elsewhere)]


# ---- the command


async def run(code: Path, *arguments: str, **env: str) -> tuple[int, list[str]]:
    """Run `turnkeeper replay-check` with the code of that folder; return the exit code and all lines."""
    env = {**os.environ, "TERM": "dumb", "PYTHONPATH": str(code), **env}
    if code == ROOT:
        process: Any = await fork(
            "turnkeeper.cli", "replay-check", *arguments, env=env, cwd=Path.cwd(), stdout=PIPE, stderr=STDOUT
        )
    else:
        command = own_command("replay-check", *arguments)
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=STDOUT, env=env)
    output, _ = await asyncio.wait_for(process.communicate(), BOUND)
    return process.returncode or 0, output.decode().splitlines()


@pytest.fixture(scope="module")
def changed_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy what is shipped, with one activity renamed."""
    folder = tmp_path_factory.mktemp("changed")
    shutil.copytree(ROOT / "turnkeeper", folder / "turnkeeper")
    tools = folder / "turnkeeper" / "activities" / "tools.py"
    assert RENAMED[0] in tools.read_text()
    tools.write_text(tools.read_text().replace(*RENAMED))
    return folder


async def test_ops_9_the_command_replays_exported_histories_with_the_current_code(changed_code: Path) -> None:
    started = read_history(TOOLS).events[0].workflow_execution_started_event_attributes
    chosen = [str(TOOLS), str(HISTORIES / "one_turn.json")]

    assert await run(ROOT, *chosen) == (0, ["2 sessions, 2 runs replayed, 0 differ"])
    assert await run(changed_code, *chosen) == (
        1,
        [
            f"session {started.workflow_id}, run {started.original_execution_run_id} ({TOOLS}): {DIFFERS}",
            "2 sessions, 2 runs replayed, 1 differ",
        ],
    )


async def test_ops_9_the_command_prints_json_and_continues_after_a_bad_file(folder: Path) -> None:
    (folder / "bad.json").write_text("{}")
    (folder / "old.json").write_text(TOOLS.read_text().replace('"call_tool"', '"old_tool"'))
    code, lines = await run(ROOT, "--json", str(folder / "bad.json"), str(folder / "old.json"))
    *results, summary = map(json.loads, lines)
    bad, differs = sorted(results, key=lambda finding: finding["verdict"], reverse=True)
    assert code == 1
    assert (bad["verdict"], bad["file"]) == ("unusable", str(folder / "bad.json"))
    assert (differs["verdict"], differs["file"]) == ("differs", str(folder / "old.json"))
    assert "'old_tool' does not match activity type of activity command 'call_tool'" in differs["message"]
    assert (summary["sessions"], summary["runs"], summary["differ"], summary["unusable"]) == (1, 1, 1, 1)


async def test_ops_9_an_unusable_file_or_server_is_not_reported_as_a_difference(folder: Path) -> None:
    (folder / "bad.json").write_text("{}")
    code, (line, summary) = await run(ROOT, str(folder / "bad.json"))
    assert code == 2
    assert line.startswith(f"{folder / 'bad.json'}: is not the history of a workflow (")
    assert summary == "0 sessions, 0 runs replayed, 0 differ, 1 unusable"

    code, lines = await run(ROOT, TURNKEEPER_TEMPORAL_PORT="1")
    assert code == 2
    assert lines == [
        "Temporal cannot be reached at 127.0.0.1:1 (Connection refused). "
        f"Start it with `{command_line('up')}`, or set TEMPORAL_ADDRESS."
    ]

    code, lines = await run(ROOT, TURNKEEPER_API_PORT="none")
    assert code == 2
    assert "api_port" in lines[0]

    code, lines = await run(ROOT, str(TOOLS), "--all")
    assert code == 2
    assert "Use only one of" in " ".join(lines)


async def test_ops_9_the_page_documents_every_option() -> None:
    _, lines = await run(ROOT, "--help")
    options = set(re.findall(r"--[a-z]+", " ".join(lines))) - {"--help"}
    page = (ROOT / "docs" / "replay-check.md").read_text()
    assert options == {"--session", "--all", "--limit", "--json"}
    assert [option for option in options if option not in page] == []


async def until_listed(client: Client, count: int) -> None:
    """Wait until Temporal lists `count` runs: new ones are listed with a delay."""

    async def are_listed() -> bool:
        return (await client.count_workflows("WorkflowType = 'AgenticAIWorkflow'")).count == count

    await until(are_listed)


async def exported(client: Client, session: str, file: Path) -> Path:
    """Export the session's newest run as a person does."""
    temporal = str(Path(sys.executable).with_name("temporal"))
    address = client.service_client.config.target_host
    process = await asyncio.create_subprocess_exec(
        *(shutil.which("temporal") or temporal, "workflow", "show", "--address", address),
        *("--workflow-id", session, "--output", "json"),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await asyncio.wait_for(process.communicate(), BOUND)
    file.write_bytes(output)  # noqa: ASYNC240
    return file


@pytest.mark.usefixtures("server")
async def test_ops_9_the_command_replays_every_run_of_live_sessions(
    folder: Path, request: pytest.FixtureRequest
) -> None:
    here = {"TURNKEEPER_STATE_DIR": str(folder / "state")}
    client = await connect(Settings(state_dir=folder / "state"))
    async with environment(client) as env:
        tools = await STORIES["tool_calls"](env)
        ended = await STORIES["continued_as_new"](env)
        runs = len(await ended.histories())
    await client.start_workflow("AgenticAIWorkflow", id="not-begun", task_queue="nobody")
    await until_listed(client, 1 + runs + 1)
    file = await exported(client, tools.handle.id, folder / "tools.json")
    run_id = read_history(file).run_id
    of_tools = f"session {tools.handle.id}, run {run_id}: {DIFFERS}"

    # The code that made them: open sessions, all sessions, one of them, and some.
    assert await run(ROOT, **here) == (0, ["2 sessions, 1 run replayed, 0 differ, 1 not begun"])
    assert await run(ROOT, "--all", **here) == (0, [f"3 sessions, {1 + runs} runs replayed, 0 differ, 1 not begun"])
    assert await run(ROOT, "--session", ended.handle.id, **here) == (0, [f"1 session, {runs} runs replayed, 0 differ"])
    assert await run(ROOT, "--limit", "1", **here) == (0, ["1 session, 0 runs replayed, 0 differ, 1 not begun"])
    assert await run(ROOT, str(file)) == (0, ["1 session, 1 run replayed, 0 differ"])
    assert await run(ROOT, "--session", "chat-1", **here) == (
        2,
        ["session chat-1: session not found", "0 sessions, 0 runs replayed, 0 differ, 1 unusable"],
    )

    # Changed code; that the command uses the code at hand, the exported histories show.
    request.getfixturevalue("renamed_activity")
    lines = {finding.verdict: finding.line() async for finding in check_sessions(client)}
    assert lines.keys() == {"differs", "not begun"}
    assert lines["differs"] == of_tools
