"""The tag of partial output says what the recorded step will be, whatever the turn goes through: AGT-5."""

from collections.abc import Sequence

from temporalio.client import Client

from tests.harness import AnswerParts, asks, environment, says
from turnkeeper.activities.providers.protocol import Delta, ModelError
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.transcript.conversation import ModelStep, ToolResult
from turnkeeper.models.transcript.model_call import ToolInvocation
from turnkeeper.models.transcript.partial_output import PartialOutput
from turnkeeper.stores.partials.factory import InProcessCarrier

STEPS = 34
LIMITS = {"max_history_events": 50, "max_state_bytes": 40_000, "max_steps": 200}


class Remembering(InProcessCarrier):
    """Keeps every snapshot it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshots: list[PartialOutput] = []

    def publish(self, workflow_id: str, snapshot: PartialOutput, *, behind: Sequence[object] = ()) -> None:
        self.snapshots.append(snapshot)
        super().publish(workflow_id, snapshot, behind=behind)


def step(number: int) -> AnswerParts:
    text = f"This is answer {number}."
    return [Delta("respond", text), asks(("look", {"n": number}), text=text)]


async def test_agt_5_the_step_number_is_right_in_a_steered_archived_and_continued_turn(
    temporal: Client,
) -> None:
    async def look(invocation: ToolInvocation) -> ToolResult:
        return ToolResult(outcome="looked", content="x" * 900)

    carrier = Remembering()
    async with environment(temporal, partials=carrier) as env:
        env.tools.run = look
        env.vendor.script = [*(step(number) for number in range(1, STEPS + 1)), says("done")]
        env.tools.gate.close()
        session = await env.start(SessionInput.model_validate({"limits": LIMITS}))
        await session.prompt(id="p1", text="look, and look again")
        await env.tools.gate.until_arrived(1)
        for number in range(3):
            await session.prompt(id=f"s{number}", text="and there", mode="steer")
        env.tools.gate.open()
        (turn,) = await session.idle(turns=1)
        assert len(await session.histories()) >= 2
    assert turn.steps_omitted > 0
    first_snapshots = {snapshot.parts[0].text: snapshot for snapshot in carrier.snapshots}
    assert [snapshot.step for snapshot in first_snapshots.values()] == list(range(1, STEPS + 1))
    assert {(snapshot.message_id, snapshot.turn) for snapshot in first_snapshots.values()} == {("p1", 1)}
    recorded = [recorded for recorded in turn.steps if isinstance(recorded, ModelStep) and recorded.tool_calls]
    assert recorded
    assert [first_snapshots[recorded.text].step for recorded in recorded] == [recorded.number for recorded in recorded]


async def test_agt_5_every_attempt_of_a_request_has_a_later_tag_even_after_a_wait(
    temporal: Client,
) -> None:
    carrier = Remembering()
    async with environment(temporal, partials=carrier) as env:
        env.vendor.script = [
            [Delta("respond", "1"), ModelError("overloaded", "busy", retry_after=0.1)],
            [Delta("respond", "2"), ModelError("overloaded", "busy", retry_after=0.3)],
            [Delta("respond", "3"), ModelError("overloaded", "busy", retry_after=0.1)],
            [Delta("respond", "4"), says("4")],
        ]
        session = await env.start()
        await session.prompt("hi")
        await session.idle(turns=1)
    assert [snapshot.parts[0].text for snapshot in carrier.snapshots] == ["1", "2", "3", "4"]
    assert {snapshot.request for snapshot in carrier.snapshots} == {1}
    for earlier, later in zip(carrier.snapshots, carrier.snapshots[1:], strict=False):
        assert later.is_later_than(earlier)


async def test_agt_5_the_output_of_a_summary_request_is_not_shown(temporal: Client) -> None:
    carrier = Remembering()
    window = {"max_messages": 6, "preserve_last_n": 2, "evict_block": 4, "summarize_on_trim": True}
    async with environment(temporal, partials=carrier) as env:
        env.vendor.summarise = lambda request: [Delta("respond", "A summary."), says("They said hello, several times.")]
        session = await env.start(SessionInput.model_validate({"history": window}))
        for number in range(8):
            await session.prompt(f"hello {number}")
        await session.idle(turns=8)
        assert env.vendor.summary_requests
    assert carrier.snapshots == []
