"""The difference of a `file_write` in its approval, over a worker's real files: AGT-8."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pytest
from temporalio.client import Client

from tests.harness import DrivenSession, Environment, asks, environment, replayer, says
from turnkeeper.activities.toolbox.built_in import built_in_tools
from turnkeeper.activities.toolbox.tool_server import ToolServer
from turnkeeper.activities.toolbox.toolbox import Toolbox
from turnkeeper.models.limits import LARGE_TEXT_BYTES
from turnkeeper.models.session.approvals import MAX_DIFF_BYTES, NO_DIFFERENCE
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.transcript.conversation import FileChange, ToolResult
from turnkeeper.models.transcript.model_call import ToolInvocation
from turnkeeper.workflows import activity_options

OLD, NEW = "one\ntwo\nthree\n", "one\n2\nthree\n"
WRITE = ("file_write", {"path": "plan.md", "content": NEW})


class FailingPreviews(Toolbox):
    """A toolbox that can't look at files while `is_failing`."""

    is_failing = False
    previews = 0

    async def preview(self, invocation: ToolInvocation, *, max_bytes: int) -> FileChange:
        self.previews += 1
        if self.is_failing:
            raise OSError("the disk is away")
        return await super().preview(invocation, max_bytes=max_bytes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
async def toolbox(folder: Path) -> AsyncIterator[FailingPreviews]:
    tools = built_in_tools(folder, now=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    async with FailingPreviews([ToolServer("turnkeeper", tools)]) as toolbox:
        yield toolbox


@pytest.fixture
async def env(temporal: Client, toolbox: FailingPreviews) -> AsyncIterator[Environment]:
    async with environment(temporal, toolbox=toolbox) as env:
        yield env


async def awaiting(
    env: Environment, *calls: tuple[str, dict[str, str]], start: SessionInput | None = None
) -> DrivenSession:
    env.vendor.script = [asks(*(calls or [WRITE])), says("Done.")]
    session = await env.start(start)
    await session.prompt("write")
    return session


async def results(session: DrivenSession) -> list[ToolResult]:
    (turn,) = await session.idle(turns=1)
    await replayer().replay_workflow(await session.handle.fetch_history())
    return [call.result for call in turn.steps[0].tool_calls]


async def test_agt_8_the_approval_of_a_file_write_includes_the_diff(env: Environment, folder: Path) -> None:
    (folder / "plan.md").write_text(OLD)
    session = await awaiting(env)
    (pending,) = await session.awaited_approvals()
    assert pending.change is not None
    assert pending.change.sha256 == sha256(OLD.encode()).hexdigest()
    assert (
        "\nChange:\n  The file exists, and all of its content is replaced:\n"
        "  @@ -1,3 +1,3 @@\n   one\n  -two\n  +2\n   three\nArguments:\n"
    ) in pending.text
    await session.decide(pending, "approve")
    assert [result.status for result in await results(session)] == ["ok"]
    assert (folder / "plan.md").read_text() == NEW


async def test_agt_8_the_model_sees_that_the_file_has_changed_since(env: Environment, folder: Path) -> None:
    (folder / "plan.md").write_text(OLD)
    session = await awaiting(env)
    (pending,) = await session.awaited_approvals()
    (folder / "plan.md").write_text("of somebody else\n")
    await session.decide(pending, "approve")
    assert [result.status for result in await results(session)] == ["error"]
    assert (folder / "plan.md").read_text() == "of somebody else\n"
    assert "has changed since this was approved" in env.vendor.requests[-1].messages[-1].content


async def test_agt_8_without_a_diff_approval_is_still_required(
    env: Environment, toolbox: FailingPreviews, folder: Path
) -> None:
    toolbox.is_failing = True
    session = await awaiting(env)
    (pending,) = await session.awaited_approvals()
    assert pending.change == FileChange(note=NO_DIFFERENCE)
    assert f"\nChange:\n  {NO_DIFFERENCE}\n" in pending.text
    assert toolbox.previews == activity_options.PREVIEW_RETRIES.maximum_attempts
    await session.decide(pending, "approve")
    assert [result.status for result in await results(session)] == ["ok"]


async def test_agt_8_an_allowed_write_has_no_preview_and_no_check(
    env: Environment, toolbox: FailingPreviews, folder: Path
) -> None:
    (folder / "plan.md").write_text(OLD)
    session = await awaiting(env)
    (pending,) = await session.awaited_approvals()
    (folder / "plan.md").write_text("changed\n")
    await session.decide(pending, "allow_for_session")
    assert [result.status for result in await results(session)] == ["ok"]
    env.vendor.script = [asks(WRITE), says("Again.")]
    await session.prompt("again")
    await session.idle(turns=2)
    assert toolbox.previews == 1


async def test_agt_8_two_approved_writes_of_one_file_take_effect_once(env: Environment, folder: Path) -> None:
    other = ("file_write", {"path": "./plan.md", "content": "other\n"})
    session = await awaiting(env, WRITE, other, ("file_write", {"path": "new/b.md", "content": "b\n"}))
    for pending in await session.awaited_approvals(3):
        await session.decide(pending, "approve")
    statuses = [result.status for result in await results(session)]
    assert sorted(statuses[:2]) == ["error", "ok"]
    assert statuses[2] == "ok"


async def test_agt_8_large_arguments_have_a_diff_within_its_limit(env: Environment, folder: Path) -> None:
    (folder / "plan.md").write_text("old line\n" * 2_000)
    session = await awaiting(env, ("file_write", {"path": "plan.md", "content": "new line\n" * LARGE_TEXT_BYTES}))
    (pending,) = await session.awaited_approvals()
    assert pending.args_blob is not None
    assert not pending.is_whole  # the workflow can't read the store; the gateway does
    assert pending.change is not None
    assert pending.change.omitted_lines > 1_000
    assert len(pending.change.diff) <= MAX_DIFF_BYTES
    await session.decide(pending, "approve")
    assert [result.status for result in await results(session)] == ["ok"]


async def test_agt_8_the_diff_is_carried_over_runs(env: Environment, folder: Path) -> None:
    (folder / "plan.md").write_text(OLD)
    start = SessionInput.model_validate({"limits": {"max_history_events": 50}})
    session = await awaiting(env, start=start)
    (pending,) = await session.awaited_approvals()
    for number in range(16):
        await session.prompt(id=f"q{number}", text="and then?")
    await session.until(lambda state: state.queue_length == 16)
    assert len(await session.histories()) >= 2
    assert await session.awaited_approvals() == [pending]
    (folder / "plan.md").write_text("changed\n")
    await session.decide(pending, "approve")
    turns = await session.idle(turns=17)
    assert turns[0].steps[0].tool_calls[0].result.status == "error"
