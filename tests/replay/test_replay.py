"""Today's code replays every recorded history, and a change that would not is caught (SES-19)."""

import dataclasses
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions
from temporalio.workflow import NondeterminismError, SandboxImportNotificationPolicy

from tests.replay.record import HISTORIES
from tests.replay.stories import STORIES
from turnkeeper.activities.tools import ToolActivities
from turnkeeper.features.copies.workflow import CopySession
from turnkeeper.stores.temporal.payload_converter import DATA_CONVERTER
from turnkeeper.workflows.agentic_ai_workflow import AgenticAIWorkflow
from turnkeeper.workflows.delete_session import DeleteSession

RECORDED = sorted(HISTORIES.glob("*.json.gz"))


def history(path: Path) -> WorkflowHistory:
    """Read a history under the id of its session: the ids of its tasks begin with it."""
    recorded = json.loads(gzip.decompress(path.read_bytes()))
    started = recorded["events"][0]["workflowExecutionStartedEventAttributes"]
    return WorkflowHistory.from_json(started["workflowId"], recorded)


def replayer(runner: WorkflowRunner | None = None) -> Replayer:
    """Return what replays a history; without the sandbox, which takes longer than all else, unless `runner` has one."""
    return Replayer(
        workflows=[AgenticAIWorkflow, CopySession, DeleteSession],
        workflow_runner=runner or UnsandboxedWorkflowRunner(),
        data_converter=DATA_CONVERTER,
        build_id="tests",
    )


def test_ses_19_every_scenario_has_a_recorded_history() -> None:
    assert {path.name.split(".")[0] for path in RECORDED} == set(STORIES)
    assert len([path for path in RECORDED if path.name.startswith("continued_as_new")]) > 1


async def test_ses_19_every_recorded_history_replays() -> None:
    names = dict[str, str]()

    async def histories() -> AsyncIterator[WorkflowHistory]:
        for path in RECORDED:
            recorded = history(path)
            names[recorded.run_id] = path.name
            yield recorded

    results = await replayer().replay_workflows(histories(), raise_on_replay_failure=False)
    assert {names[run_id]: failure for run_id, failure in results.replay_failures.items()} == {}
    assert len(names) == len(RECORDED)


async def test_ses_19_a_renamed_activity_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    defined = ToolActivities.call_tool.__temporal_activity_definition  # type: ignore[attr-defined]
    renamed = dataclasses.replace(defined, name="run_tool")
    monkeypatch.setattr(ToolActivities.call_tool, "__temporal_activity_definition", renamed)
    with pytest.raises(NondeterminismError):
        await replayer().replay_workflow(history(HISTORIES / "tool_calls.json.gz"))


async def test_ses_19_a_changed_order_of_commands_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnkeeper.workflows.turn.model_calls.OfferedTools.load_if_due", _nothing)
    with pytest.raises(NondeterminismError):
        await replayer().replay_workflow(history(HISTORIES / "one_turn.json.gz"))


async def _nothing(tools: object) -> None:
    return None


@pytest.mark.parametrize("story", ["tool_calls.json.gz", "deleted.json.gz"])
async def test_ses_19_the_workflow_runs_under_the_strict_import_policy(story: str) -> None:
    """Here the sandbox loads the workflow's own module, which a worker passes through: forbidden calls in it raise."""
    strict = dataclasses.replace(
        # The objects of features are loaded with the package that a workflow lies in.
        SandboxRestrictions.default.with_passthrough_modules("turnkeeper.features.feature"),
        import_notification_policy=(
            SandboxImportNotificationPolicy.RAISE_ON_UNINTENTIONAL_PASSTHROUGH
            | SandboxImportNotificationPolicy.WARN_ON_DYNAMIC_IMPORT
        ),
    )
    await replayer(SandboxedWorkflowRunner(strict)).replay_workflow(history(HISTORIES / story))
