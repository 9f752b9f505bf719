"""Tests of one's own agents: real sessions on a Temporal server of this process, with a model that the test writes.

    async def test_the_forecast_is_looked_up(play: Play) -> None:
        turn = await play(agent, "Rain in Ulm?", model=[Call("forecast", city="Ulm"), Answer("Yes, rain.")])
        assert turn.calls("forecast") == [{"city": "Ulm"}]

`play` is a fixture of pytest (`pytest_plugin.py`). Own tools run in the test's process, so that it can replace what
they use. All else is as in production: approvals, limits, tasks that are handed over (AGN-6).
"""

import asyncio
import tempfile
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar
from uuid import uuid4

from pydantic import JsonValue
from temporalio.client import Client, WorkflowHandle

from turnkeeper.activities.providers.offline.provider import OfflineModel, deltas_of
from turnkeeper.activities.providers.protocol import CallInfo, Delta, ModelError
from turnkeeper.activities.toolbox.toolbox import Toolbox, own_tool_server
from turnkeeper.features.agents.agent import Agent
from turnkeeper.features.agents.agent_data import AgentData
from turnkeeper.features.agents.agent_file import data_of, with_handoffs
from turnkeeper.features.agents.tool_process import in_process_server
from turnkeeper.models.ids import SESSION_TYPE
from turnkeeper.models.session.agents import AgentChange
from turnkeeper.models.session.approvals import PendingApproval, PendingApprovals, ResolveApproval
from turnkeeper.models.session.messages import SessionInput, with_agent
from turnkeeper.models.session.prompts import PromptSignal
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import ConversationMessage, ConversationState, ModelStep, ToolCall
from turnkeeper.models.transcript.model_call import CallPart, ModelRequest, ModelResponse, RespondPart
from turnkeeper.ops.local.dev_server import DevServer
from turnkeeper.stores.partials.factory import HeartbeatCarrier
from turnkeeper.stores.stores import Stores
from turnkeeper.stores.temporal.connection import connect, prepare_embedded
from turnkeeper.worker import build_worker

Result = TypeVar("Result")

SERVER = "test"
"""The name of the server with an agent's own tools."""

LOOK_SECONDS = 0.02
START_SECONDS = 30.0


@dataclass(frozen=True)
class Answer:
    """The model answers with this text, which ends the turn."""

    text: str


class Call:
    """The model calls a tool. Several in one step are a list: `[Call("a"), Call("b")]`."""

    def __init__(self, tool: str, **args: JsonValue) -> None:
        self.tool = tool
        self.args = args


Step = Answer | Call | Sequence[Call]
Model = Sequence[Step] | Mapping[str, Sequence[Step]]
"""The steps of a model, in their order; by the agents' names where several play."""


@dataclass(frozen=True)
class PlayedTurn:
    """A turn that has ended, or waits for a person."""

    message: ConversationMessage
    """All of it, as clients get it."""
    waits_for: list[str]
    """The tools whose calls wait for a decision."""
    session: "PlayedSession"

    @property
    def answer(self) -> str | None:
        return self.message.agent_message

    @property
    def error(self) -> str | None:
        return self.message.error

    @property
    def status(self) -> Literal["processing", "awaiting_approval", "completed", "failed", "cancelled"]:
        return self.message.status

    @property
    def cost(self) -> float | None:
        """In US dollars; `None`: unknown, as it is of a scripted model."""
        return self.message.usage.cost if self.message.usage else None

    def calls(self, tool: str) -> list[dict[str, JsonValue]]:
        """Return the arguments of each call of a tool, in their order."""
        return [call.args for call in self._calls(tool) if isinstance(call.args, dict)]

    def results(self, tool: str) -> list[str]:
        """Return what each call of a tool gave the model to read, in their order: the outcome, or the content."""
        return [call.result.content or call.result.outcome for call in self._calls(tool) if call.result]

    def _calls(self, tool: str) -> Iterator[ToolCall]:
        trajectory = self.message.reasoning_trajectory
        for step in trajectory.steps if trajectory else ():
            if isinstance(step, ModelStep):
                yield from (call for call in step.tool_calls if call.name == tool)


class ScriptedModel:
    """Plays each agent's steps, one for each request of its session; for an agent without any, the demo model does."""

    def __init__(self, steps: Mapping[str, Sequence[Step]]) -> None:
        self._steps = steps
        self.requests: list[ModelRequest] = []
        """Everything that it was asked."""

    def resolve(self, model: str) -> tuple[Any, str]:
        return self, model.partition(":")[2]

    async def stream(
        self, name: str, request: ModelRequest, info: CallInfo
    ) -> AsyncGenerator[Delta | ModelResponse, None]:
        self.requests.append(request)
        steps = self._steps.get(name)
        if steps is None:
            async for event in OfflineModel().stream(name, request, info):
                yield event
            return
        if info.request > len(steps):
            raise ModelError("bad_request", f"the test has no step {info.request} for {name}")
        response = _response(steps[info.request - 1], number=info.request)
        async for delta in deltas_of(response.parts, pause=0):
            yield delta
        yield response


def _response(step: Step, *, number: int) -> ModelResponse:
    if isinstance(step, Answer):
        return ModelResponse(parts=[RespondPart(kind="respond", text=step.text)], model="scripted")
    calls = [step] if isinstance(step, Call) else step
    parts = [
        CallPart(kind="call", id=f"call_{number}_{index}", name=call.tool, args=call.args)
        for index, call in enumerate(calls)
    ]
    return ModelResponse(parts=list(parts), stop="tool_calls", model="scripted")


class PlayedSession:
    """A session of the agent, with its own worker while the block of `Play.session` is open."""

    def __init__(self, server: "TestServer", handle: WorkflowHandle[Any, Any], model: ScriptedModel) -> None:
        self._server = server
        self._handle = handle
        self.model = model
        self._count = 0

    async def send(self, prompt: str, *, approve: bool | None = None) -> PlayedTurn:
        """Send a prompt and return its turn once it has ended.

        `approve`: what a person decides on each call that waits; `None`: nobody does, and the waiting turn is returned.
        """
        return await self._server.run(self._send(prompt, approve=approve))

    async def decide(self, *, approve: bool, reason: str | None = None) -> PlayedTurn:
        """Decide on all calls that wait, and return the turn once it has ended or waits again."""
        return await self._server.run(self._decided(approve=approve, reason=reason))

    async def _send(self, prompt: str, *, approve: bool | None) -> PlayedTurn:
        self._count += 1
        await self._handle.signal("prompt", PromptSignal(id=f"prompt-{self._count}", text=prompt))
        turn = await self._turn()
        while turn.waits_for and approve is not None:
            turn = await self._decided(approve=approve, reason=None)
        return turn

    async def _decided(self, *, approve: bool, reason: str | None) -> PlayedTurn:
        for pending in await self._pending():
            request = ResolveApproval(
                call_id=pending.call_id,
                args_digest=pending.args_digest,
                decision="approve" if approve else "reject",
                reason=reason,
            )
            await self._handle.execute_update("resolve_approval", request)
        return await self._turn()

    async def _pending(self) -> list[PendingApproval]:
        pending: PendingApprovals = await self._handle.query("get_pending_approvals", result_type=PendingApprovals)
        return pending.approvals

    async def _turn(self) -> PlayedTurn:
        while True:
            state = await self._handle.query("get_conversation_state", result_type=ConversationState)
            if state.session.turn_count >= self._count:
                message = state.messages[-1]
                waits_for = [one.tool for one in await self._pending()] if state.status == "awaiting_approval" else []
                if message.is_complete or waits_for:
                    return PlayedTurn(message, waits_for, self)
            await asyncio.sleep(LOOK_SECONDS)


class TestServer:
    """A Temporal server for a run of tests, in a thread of its own: tests have loops of their own, or none."""

    __test__ = False  # it is no test, whatever its name

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._loop = asyncio.new_event_loop()
        self._client: Client | None = None

    @classmethod
    @contextmanager
    def running(cls) -> "Iterator[TestServer]":
        with tempfile.TemporaryDirectory() as folder:
            server = cls(Path(folder))
            thread = threading.Thread(target=server._loop.run_forever, daemon=True)
            thread.start()
            stop, ready = asyncio.Event(), threading.Event()
            done = asyncio.run_coroutine_threadsafe(server._serve(stop, ready), server._loop)
            try:
                while not ready.wait(LOOK_SECONDS):
                    if done.done():
                        done.result()
                yield server
            finally:
                server._loop.call_soon_threadsafe(stop.set)
                done.result(START_SECONDS)
                server._loop.call_soon_threadsafe(server._loop.stop)
                thread.join()

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run something in the server's loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def settings(self, **changes: Any) -> Settings:
        fixed = {"state_dir": self.folder, "workspace_root": self.folder / "workspace", "partials": "heartbeats"}
        return Settings(**{**fixed, "shutdown_grace": 0.1, "api_port": 0, **changes})

    async def _serve(self, stop: asyncio.Event, ready: threading.Event) -> None:
        async with DevServer.for_settings(self.settings()) as server:
            await server.wait_until_ready()
            self._client = await connect(self.settings(), patience=START_SECONDS)
            await prepare_embedded(self._client, patience=START_SECONDS)
            ready.set()
            await stop.wait()

    @asynccontextmanager
    async def session(
        self, agent: Agent, *, user: str | None, model: Model | None, variables: dict[str, str]
    ) -> AsyncIterator[PlayedSession]:
        """Run a worker with the agent's tools, and a session that is the agent. For the server's loop."""
        assert self._client
        settings = self.settings(task_queue=f"test-{uuid4()}")
        agents = with_handoffs([agent])
        base = SessionInput(user=user, variables=variables)
        configurations = {
            one.name: AgentData(**{**data_of(one, SERVER), "model": f"offline:{one.name}"}).configuration(
                f"{one.name}@1", base
            )
            for one in agents
        }
        own = configurations[agent.name]
        start = with_agent(base, AgentChange(agent=own, others=configurations if own.handoffs else {}))
        servers = [own_tool_server(settings), in_process_server(SERVER, agents, settings.workspace_root)]
        scripted = ScriptedModel(model if isinstance(model, Mapping) else {agent.name: model} if model else {})
        async with (
            Stores.of(settings) as stores,
            HeartbeatCarrier(self._client) as partials,
            Toolbox(servers) as toolbox,
            build_worker(self._client, settings, providers=scripted, tools=toolbox, stores=stores, partials=partials),
        ):
            handle = await self._client.start_workflow(
                SESSION_TYPE,
                start,
                id=f"test-{uuid4()}",
                task_queue=settings.task_queue,
                execution_timeout=timedelta(minutes=10),
            )
            try:
                yield PlayedSession(self, handle, scripted)
            finally:
                await handle.terminate()


class Play:
    """Plays turns with an agent; see above."""

    def __init__(self, server: TestServer) -> None:
        self._server = server

    async def __call__(
        self,
        agent: Agent,
        prompt: str,
        *,
        user: str | None = None,
        model: Model | None = None,
        approve: bool | None = None,
        variables: dict[str, str] | None = None,
    ) -> PlayedTurn:
        """Return the only turn of a new session, once it has ended or waits for a person.

        `model`: its steps, in their order, by agent where it hands over; without them the demo model, which does
        what "call TOOL with …" says. `approve`: what a person decides on each call that waits.
        """
        async with self.session(agent, user=user, model=model, variables=variables) as session:
            return await session.send(prompt, approve=approve)

    @asynccontextmanager
    async def session(
        self,
        agent: Agent,
        *,
        user: str | None = None,
        model: Model | None = None,
        variables: dict[str, str] | None = None,
    ) -> AsyncIterator[PlayedSession]:
        """Open a session for several turns; it ends with the block."""
        opening = self._server.session(agent, user=user, model=model, variables=variables or {})
        session = await self._server.run(opening.__aenter__())
        try:
            yield session
        finally:
            await self._server.run(opening.__aexit__(None, None, None))
