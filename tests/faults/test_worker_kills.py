"""The worker dies at every step of a turn, or is told to stop in the middle of it: OPS-10, AGT-7, AGT-2, SES-6.

Each fault is a session of its own, on a task queue of its own. A prompt starts a turn on a doomed worker
(`doomed_worker.py`); at its point it pauses until another prompt has been sent, and kills itself. A third prompt, and
the second one once more, are sent while there is no worker; then another one takes over.

A killed worker's activity is noticed after 6 s without a heartbeat, a killed workflow task after `task_timeout`. So
that nobody waits for each of them in turn, a few sessions are led through their faults at the same time, ahead of the
tests that look at what came of them.
"""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory

from tests.faults.doomed_worker import Course, Pause, Plan, build_toolbox, name_of
from tests.harness import BOUND, DrivenSession, replayer
from tests.processes.forked import PIPE, ForkedProcess, fork
from turnkeeper.activities.model_client import ProviderSource
from turnkeeper.activities.providers.protocol import CallInfo, Delta
from turnkeeper.activities.providers.provider import Provider, ProviderRegistry
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.session.prompts import QueueView
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import ConversationMessage, ModelStep, ToolCall
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse
from turnkeeper.stores.partials.factory import carrier_factory
from turnkeeper.stores.stores import Stores
from turnkeeper.worker import build_worker

ROOT = Path(__file__).parents[2]

AT_THE_SAME_TIME = 8
"""Sessions led through their faults at once: most of their time they wait."""

START_BOUND = 90.0
"""Seconds until a worker is where it is to be: starting takes a second of a processor's time, and here many start."""


# ---- the stories


def answer(text: str, *calls: tuple[str, dict[str, str]]) -> dict[str, Any]:
    return {"text": text, "calls": [{"name": name, "args": args} for name, args in calls]}


READ, PUT, PAY = ("file_read", {"path": "notes.txt"}), ("put", {}), ("pay", {})
DONE = "It is read, put and paid."
ANSWERS = [DONE, "This was the second.", "This was the third."]
LAST_ANSWERS = [answer(text) for text in ANSWERS]


@dataclass(frozen=True, eq=False)
class Story:
    """The model's answers to the prompts p1, p2 and p3, and the activities they need, a set for each step."""

    name: str
    script: list[dict[str, Any]]
    steps: list[set[str]]


ONE_BY_ONE = Story(
    "one_by_one",
    [answer("I read and put at once.", READ, PUT), answer("Now I am going to pay.", PAY), *LAST_ANSWERS],
    [{"list_tools"}, {"model call 1"}, {"file_read", "put"}, {"model call 2"}, {"pay"}]
    + [{f"model call {number}"} for number in (3, 4, 5)],
)
ALL_AT_ONCE = Story(
    "all_at_once",
    [answer("I do all of it at once.", READ, PUT, PAY), *LAST_ANSWERS],
    [{"list_tools"}, {"model call 1"}, {"file_read", "put", "pay"}]
    + [{f"model call {number}"} for number in (2, 3, 4)],
)

PAID = ("ok", 1)
NOT_PAID_NOR_KNOWN = ("outcome_unknown", 0)
PAID_BUT_NOT_KNOWN = ("outcome_unknown", 1)


# ---- the workers


@dataclass
class Doomed:
    """A worker in its own process."""

    process: ForkedProcess

    async def until_paused_at(self, point: str) -> None:
        async with asyncio.timeout(START_BOUND):
            while line := await self.process.stdout.readline():
                if line.decode().strip() == point:
                    return
        raise AssertionError(f"the worker ended with {await self.process.wait()} before {point!r}")

    def go_on(self) -> None:
        self.process.stdin.write(b"\n")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    async def exit_code(self) -> int:
        async with asyncio.timeout(BOUND):
            return await self.process.wait()


@asynccontextmanager
async def doomed_worker(plan: Plan) -> AsyncIterator[Doomed]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("TURNKEEPER_", "TEMPORAL_"))}
    process = await fork(
        "tests.faults.doomed_worker",
        plan.model_dump_json(),
        env={**ours, "PYTHONPATH": str(ROOT)},
        cwd=plan.settings["state_dir"],
        stdin=PIPE,
        stdout=PIPE,
    )
    try:
        yield Doomed(process)
    finally:
        process.kill()
        await process.wait()


@dataclass
class Recorder:
    """Providers that record their requests."""

    models: ProviderSource
    requests: list[ModelRequest] = field(default_factory=list)

    def resolve(self, model: str) -> tuple[Provider, str]:
        provider, name = self.models.resolve(model)
        return RecordedModel(provider, self.requests), name


@dataclass
class RecordedModel:
    provider: Provider
    requests: list[ModelRequest]

    def stream(self, name: str, request: ModelRequest, info: CallInfo) -> AsyncIterator[Delta | ModelResponse]:
        self.requests.append(request)
        return self.provider.stream(name, request, info)


# ---- a session and what comes of it


@dataclass
class Scenario:
    """A session, its story, and the settings of its workers."""

    session: DrivenSession
    settings: dict[str, Any]
    story: Story

    def doomed(self, course: Course) -> AbstractAsyncContextManager[Doomed]:
        address = self.session.client.service_client.config.target_host
        return doomed_worker(Plan(address=address, settings=self.settings, course=course))

    @asynccontextmanager
    async def immortal(self) -> AsyncIterator[Recorder]:
        settings = Settings(**{**self.settings, "shutdown_grace": 0.5})
        recorder = Recorder(ProviderRegistry.from_settings(settings))
        async with (
            Stores.of(settings) as stores,
            carrier_factory(settings)(self.session.client) as partials,
            build_toolbox(settings, Course()) as tools,
            build_worker(
                self.session.client,
                settings,
                providers=recorder,
                tools=tools,
                stores=stores,
                partials=partials,
            ),
        ):
            yield recorder

    async def outcome(self, recorder: Recorder) -> "Outcome":
        """Wait until all prompts are processed, end the session, and return what it leaves behind."""
        turns = await self.session.idle(turns=3)
        queue = await self.session.queue()
        await self.session.handle.signal("end_chat")
        async with asyncio.timeout(BOUND):
            await self.session.handle.result()
        ledger = Path(self.settings["state_dir"]) / "ledger"
        return Outcome(
            session_id=self.session.handle.id,
            story=self.story,
            turns=turns,
            queue=queue,
            history=await self.session.handle.fetch_history(),
            requests=recorder.requests,
            ledger=ledger.read_text().splitlines() if ledger.exists() else [],
        )


@asynccontextmanager
async def scenario(temporal: Client, folder: Path, story: Story) -> AsyncIterator[Scenario]:
    """Start a session that has its first prompt, and no worker yet."""
    (folder / "scripts").mkdir()
    (folder / "scripts" / f"{story.name}.json").write_text(json.dumps({"responses": story.script}))
    (folder / "workspace").mkdir()
    (folder / "workspace" / "notes.txt").write_text("It is all written here.\n")
    settings = {
        "state_dir": str(folder),
        "workspace_root": str(folder / "workspace"),
        "task_queue": f"q-{uuid4()}",
    }
    handle = await temporal.start_workflow(
        "AgenticAIWorkflow",
        SessionInput(model=f"offline:script/{story.name}", tool_policy={"shop__*": "allow"}),
        id=f"s-{uuid4()}",
        task_queue=settings["task_queue"],
        task_timeout=timedelta(seconds=Settings(**settings).task_timeout),
    )
    session = DrivenSession(temporal, handle)
    await session.prompt(id="p1", text="Read, put and pay.")
    yield Scenario(session, settings, story)


@dataclass
class Outcome:
    """Everything that a session leaves behind."""

    session_id: str
    story: Story
    turns: list[ConversationMessage]
    queue: QueueView
    history: WorkflowHistory
    requests: list[ModelRequest]
    ledger: list[str]

    @property
    def calls(self) -> Mapping[str, ToolCall]:
        steps = [step for step in self.turns[0].steps if isinstance(step, ModelStep)]
        return {call.name: call for step in steps for call in step.tool_calls}

    @property
    def payment(self) -> tuple[str, int]:
        """The status of the payment in the session, and how often it was made."""
        return self.calls["pay"].result.status, len(self.entries("pay"))

    def entries(self, tool: str) -> list[str]:
        return [entry for entry in self.ledger if entry.startswith(tool)]

    @property
    def scheduled(self) -> list[str]:
        """The activities of the turns, in the order they were asked for; the end's copy to the archive is none."""
        return [name for name in self._names.values() if name != "move_to_archive"]

    @property
    def attempts(self) -> dict[str, int]:
        """Return the number of runs of each activity."""
        started = [event.activity_task_started_event_attributes for event in self._events("ACTIVITY_TASK_STARTED")]
        return {self._names[attributes.scheduled_event_id]: attributes.attempt for attributes in started}

    @property
    def _names(self) -> dict[int, str]:
        return {
            event.event_id: _name_of_scheduled(event.activity_task_scheduled_event_attributes)
            for event in self._events("ACTIVITY_TASK_SCHEDULED")
        }

    def _events(self, name: str) -> list[Any]:
        return [event for event in self.history.events if event.event_type == EventType.Value(f"EVENT_TYPE_{name}")]


def _name_of_scheduled(attributes: Any) -> str:
    inputs = [json.loads(payload.data) for payload in attributes.input.payloads]
    return name_of(attributes.activity_type.name, inputs[0] if inputs else None)


def check_prompts(outcome: Outcome) -> None:
    """Every prompt has one fate, one turn and one answer, in their order."""
    prompts = ["p1", "p2", "p3"]
    assert [(fate.id, fate.fate, fate.turn_id) for fate in outcome.queue.fates] == [
        (prompt, "started", prompt) for prompt in prompts
    ]
    assert outcome.queue.waiting == []
    turns = outcome.turns
    assert [(turn.id, turn.status, turn.agent_message) for turn in turns] == [
        (prompt, "completed", text) for prompt, text in zip(prompts, ANSWERS, strict=True)
    ]
    assert all(before.agent_timestamp <= after.timestamp for before, after in pairwise(turns))
    texts = [step.text for turn in turns for step in turn.steps if isinstance(step, ModelStep)]
    assert texts == [response["text"] for response in outcome.story.script]


def check_calls(outcome: Outcome) -> None:
    """Every call has its result: once more what may be repeated, unknown what may not."""
    calls = outcome.calls
    assert sorted(calls) == ["file_read", "pay", "put"]
    assert all(call.result for call in calls.values())
    assert (calls["file_read"].result.status, calls["put"].result.status) == ("ok", "ok")
    assert calls["file_read"].result.content == "It is all written here."
    assert set(outcome.entries("put")) == {f"put {outcome.session_id}/{calls['put'].id}"}
    assert outcome.payment in (PAID, NOT_PAID_NOR_KNOWN, PAID_BUT_NOT_KNOWN)


def check_activities(outcome: Outcome, interrupted: str | None) -> None:
    """Nothing was asked for twice, and nothing was run twice but what was interrupted, and may be."""
    steps, scheduled = outcome.story.steps, outcome.scheduled
    assert Counter(scheduled) == Counter(name for step in steps for name in step)
    in_order = [next(index for index, step in enumerate(steps) if name in step) for name in scheduled]
    assert in_order == sorted(in_order)
    repeated = {name for name, attempts in outcome.attempts.items() if attempts > 1}
    # Turns are moved to the archive beside everything else, and moving them twice is moving them once.
    may_be_repeated = next((step for step in steps if interrupted in step), set()) | {"move_to_archive"}
    assert repeated <= may_be_repeated - {"pay"}
    assert interrupted in {*repeated, None, "pay"}


def check_views(outcome: Outcome) -> None:
    """Check that the model sees each call's result right after the call, with the status that the session knows."""
    for request in outcome.requests:
        messages = iter(request.messages)
        for message in messages:
            assert message.role != "tool"
            answers = [next(messages) for _ in message.tool_calls]
            assert [answer.call_id for answer in answers] == [call.id for call in message.tool_calls]
            assert all(answer.role == "tool" for answer in answers)
    statuses = {
        message.tool_name: message.status for message in outcome.requests[-1].messages if message.role == "tool"
    }
    assert statuses == {name: call.result.status for name, call in outcome.calls.items()}


# ---- the faults


@dataclass(frozen=True, eq=False)
class Fault:
    """A worker's fault at a point, and the outcome of its turn.

    `interrupts`: the activity that runs then and can't report. `payment`: what the session knows of it, and how often
    it was made; None: either, as the race with it ends.
    """

    point: str
    interrupts: str | None = None
    payment: tuple[str, int] | None = PAID
    story: Story = ONE_BY_ONE

    def __str__(self) -> str:
        return self.point if self.story is ONE_BY_ONE else f"{self.point}, {self.story.name}"

    async def strike(self, scenario: Scenario) -> Outcome:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Kill(Fault):
    """SIGKILL. A workflow task can't be paused in: then it is done at a point before, `pauses_at`."""

    pauses_at: str | None = None

    async def strike(self, scenario: Scenario) -> Outcome:
        """Kill the worker in the middle of the turn, and start another one."""
        at = self.pauses_at or self.point
        async with scenario.doomed(Course(pauses_at=at, pause=self._pause, dies_at=self.point)) as doomed:
            await doomed.until_paused_at(at)
            await scenario.session.prompt(id="p2", text="And then?")
            doomed.go_on()
            assert await doomed.exit_code() == -signal.SIGKILL
        await scenario.session.prompt(id="p3", text="Is anybody there?")
        await scenario.session.prompt(id="p2", text="And then?")
        async with scenario.immortal() as recorder:
            return await scenario.outcome(recorder)

    @property
    def _pause(self) -> Pause:
        # Where the prompt kills, what is paused must not get away in the meantime.
        return "forever" if self.point == "prompt p2 arrives" else "until told"


@dataclass(frozen=True, eq=False)
class Stop(Fault):
    """SIGTERM, while another worker serves already, as in a rolling restart."""

    pause: Pause = "until stopping"
    shutdown_grace: float = 20

    async def strike(self, scenario: Scenario) -> Outcome:
        """Replace the worker in the middle of the turn."""
        scenario.settings["shutdown_grace"] = self.shutdown_grace
        async with scenario.doomed(Course(pauses_at=self.point, pause=self.pause)) as doomed:
            await doomed.until_paused_at(self.point)
            await scenario.session.prompt(id="p2", text="And then?")
            async with scenario.immortal() as recorder:
                doomed.stop()
                await scenario.session.prompt(id="p3", text="Is anybody there?")
                assert await doomed.exit_code() == 0
                return await scenario.outcome(recorder)


# To Temporal, an activity that a kill keeps from reporting is the same wherever in it the kill comes. So the points are
# those between which something outside changes: the tool's effect, the text that was shown, the turn that has ended.
KILLS = [
    Kill("list_tools has run", "list_tools"),
    Kill("model call 1 begins", "model call 1"),
    Kill("model call 2 has written 3", "model call 2"),
    Kill("model call 3 has run", "model call 3"),
    Kill("file_read begins", "file_read"),
    Kill("put is about to act", "put"),
    Kill("put has acted", "put"),
    Kill("pay is about to act", "pay", NOT_PAID_NOR_KNOWN),
    Kill("pay has acted", "pay", PAID_BUT_NOT_KNOWN),
    Kill("prompt p2 arrives", "model call 1", pauses_at="model call 1 begins"),
    Kill("model call 1 is scheduled", pauses_at="list_tools has run"),
    Kill("pay is scheduled", pauses_at="model call 2 begins"),
    # The workflow task that ends the first turn and begins the next.
    Kill("model call 4 is scheduled", pauses_at="model call 3 begins"),
    Kill("put has acted", "put", None, ALL_AT_ONCE),
    Kill("pay has acted", "pay", PAID_BUT_NOT_KNOWN, ALL_AT_ONCE),
]

STOPS_IN_TIME = [Stop(point) for point in ("list_tools begins", "model call 1 has written 3", "pay begins")]

STOPS_TOO_SOON = [
    Stop(point, interrupts, payment, pause="forever", shutdown_grace=0.5)
    for point, interrupts, payment in (
        ("model call 2 has written 3", "model call 2", PAID),
        ("put has acted", "put", PAID),
        ("pay has acted", "pay", PAID_BUT_NOT_KNOWN),
    )
]


# ---- the tests

Outcomes = Mapping[Fault, "asyncio.Task[Outcome]"]


@pytest.fixture(scope="module")
async def outcomes(
    temporal: Client, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[Outcomes]:
    """Lead a session through every fault that a test was selected for, a few at a time, in the tests' order."""
    gate = asyncio.Semaphore(AT_THE_SAME_TIME)

    async def lead_through(fault: Fault) -> Outcome:
        async with gate, scenario(temporal, tmp_path_factory.mktemp("fault"), fault.story) as env:
            return await fault.strike(env)

    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    faults = [params["fault"] for params in parameters if isinstance(params.get("fault"), Fault)]
    running = {fault: asyncio.create_task(lead_through(fault)) for fault in faults}
    try:
        yield running
    finally:
        for task in running.values():
            task.cancel()
        await asyncio.gather(*running.values(), return_exceptions=True)


async def check(fault: Fault, outcomes: Outcomes) -> None:
    """Check what the session leaves behind against what is promised."""
    outcome = await outcomes[fault]
    check_prompts(outcome)
    check_calls(outcome)
    check_activities(outcome, fault.interrupts)
    check_views(outcome)
    if fault.payment is not None:
        assert outcome.payment == fault.payment
    await replayer().replay_workflow(outcome.history)


@pytest.mark.parametrize("fault", KILLS, ids=str)
async def test_ops_10_agt_7_a_worker_killed_at_any_step_loses_no_answer_and_pays_only_once(
    fault: Fault, outcomes: Outcomes
) -> None:
    await check(fault, outcomes)


@pytest.mark.parametrize("fault", STOPS_IN_TIME, ids=str)
async def test_ops_10_a_stopped_worker_finishes_and_another_continues_without_repeats(
    fault: Fault, outcomes: Outcomes
) -> None:
    await check(fault, outcomes)


@pytest.mark.parametrize("fault", STOPS_TOO_SOON, ids=str)
async def test_ops_10_agt_7_unfinished_work_of_a_stopping_worker_is_retried_but_no_payment(
    fault: Fault, outcomes: Outcomes
) -> None:
    await check(fault, outcomes)
