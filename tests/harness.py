"""A session that a test drives: the real server, the real worker, and a scripted vendor."""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowHandle, WorkflowHistory
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker

from tests.log_watch import LOG_WATCH
from tests.waiting import BOUND, until
from turnkeeper.activities.model_client import ProviderSource
from turnkeeper.activities.providers.protocol import CallInfo, Delta, ModelError
from turnkeeper.activities.providers.provider import Provider
from turnkeeper.activities.tools import ProgressListener, ToolSource
from turnkeeper.api.temporal.temporal_calls import retry_undone
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.features.tasks.session.sub_tasks import TASK_TOOLS
from turnkeeper.models.context.summary import INSTRUCTION
from turnkeeper.models.http_responses import ContextView
from turnkeeper.models.session.approvals import PendingApproval, PendingApprovals
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.session.prompts import QueueView
from turnkeeper.models.session.session import Session
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import (
    ConversationMessage,
    ConversationState,
    ConversationUpdate,
    FileChange,
    ToolResult,
)
from turnkeeper.models.transcript.model_call import (
    CallPart,
    ModelRequest,
    ModelResponse,
    RespondPart,
    ServerText,
    ToolInvocation,
    ToolList,
    ToolSpec,
)
from turnkeeper.stores.partials.carrier import PartialCarrier
from turnkeeper.stores.partials.factory import carrier_factory
from turnkeeper.stores.stores import Stores
from turnkeeper.stores.temporal.payload_converter import DATA_CONVERTER
from turnkeeper.worker import build_worker
from turnkeeper.workflows.agentic_ai_workflow import AgenticAIWorkflow

Answer = TypeVar("Answer")

PATIENT_SECONDS = 20.0

UNANSWERED = (
    RPCStatusCode.CANCELLED,
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.FAILED_PRECONDITION,
    RPCStatusCode.UNAVAILABLE,
)
"""Temporal's statuses when no worker has answered a query in time, or the session's task has timed out twice."""

SLACK = 10.0
"""Seconds that a busy machine may add to what the product takes by itself."""

TASK_SECONDS = 20.0
"""Until a workflow task that no worker completes is given to another. A busy machine may take seconds for one, and
Temporal refuses the queries of a session while its task has timed out twice. Tests that kill workers wait less long."""

FAILING_TASK_SECONDS = 2.0
"""The same for sessions whose tasks fail on purpose: a worker lets all attempts but the first time out."""


def fail_workflow_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail every workflow task that starts a turn, as a bug would, until `monkeypatch` is undone."""

    def begin_turn(*args: object, **kwargs: object) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(Session, "begin_turn", begin_turn)


DELAY = 0.05
LONG_PAUSE = 0.2
"""Seconds before the first query of a session, and between two: each is work for it, too. A turn takes about 25 ms."""

FEW_TURNS = 3
"""Turns that every query may bring; of more, only the last query does."""


def says(text: str) -> ModelResponse:
    return ModelResponse(parts=[RespondPart(kind="respond", text=text)], model="test")


def asks(*calls: tuple[str, dict[str, Any] | str], text: str = "") -> ModelResponse:
    parts: list[Any] = [RespondPart(kind="respond", text=text)] if text else []
    parts += [CallPart(kind="call", id=f"c{n}", name=name, args=args) for n, (name, args) in enumerate(calls)]
    return ModelResponse(parts=parts, stop="tool_calls", model="test")


def replayer() -> Replayer:
    """Return a replayer without the sandbox: the sessions ran in it, and a replay in it takes three times as long."""
    return Replayer(
        workflows=[AgenticAIWorkflow],
        workflow_runner=UnsandboxedWorkflowRunner(),
        data_converter=DATA_CONVERTER,
        build_id="tests",  # without one the SDK computes it of the code of every module, which takes a second
    )


async def until_copied(handle: WorkflowHandle[Any, Any]) -> None:
    """Wait until a copy is the session."""

    async def is_session() -> bool:
        return (await handle.describe()).workflow_type == "AgenticAIWorkflow"

    await until(is_session)


def product() -> Timeouts:
    """Return production's timeouts, for gateways without a worker.

    But no gateway compares its index with all sessions of the run: tests of the comparison begin it themselves.
    """
    return Timeouts(repair_start=3_600.0)


def patient(seconds: float = PATIENT_SECONDS, **times: float) -> Timeouts:
    """Return times for a busy machine: the gateway waits for every answer for `seconds`. `times` are other ones."""
    waits = dict.fromkeys(("call", "tick", "request", "restore", "deletion"), seconds)
    return replace(product(), **{**waits, **times})


class Gate:
    """Opens when the test says so, and counts the calls that wait at it."""

    def __init__(self, *, is_open: bool) -> None:
        self._open = asyncio.Event()
        if is_open:
            self._open.set()
        self._arrivals = asyncio.Condition()
        self.arrived = 0

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def pass_through(self) -> None:
        async with self._arrivals:
            self.arrived += 1
            self._arrivals.notify_all()
        await self._open.wait()

    async def until_arrived(self, count: int) -> None:
        async with asyncio.timeout(BOUND), self._arrivals:
            await self._arrivals.wait_for(lambda: self.arrived >= count)


AnswerParts = list[Delta | Gate | ModelResponse | ModelError]
"""An answer piece by piece; each gate holds it back until the gate is opened."""


@dataclass
class Vendor:
    """The outermost edge: a model that plays its script, then echoes. `requests` is everything it was asked.

    With `answer` it answers by that once the script is at its end; with `summarise`, requests for summaries by that.
    """

    script: list[ModelResponse | ModelError | AnswerParts] = field(default_factory=list)
    requests: list[ModelRequest] = field(default_factory=list)
    gate: Gate = field(default_factory=lambda: Gate(is_open=True))
    answer: Callable[[ModelRequest], ModelResponse | ModelError | AnswerParts] | None = None
    summarise: Callable[[ModelRequest], ModelResponse | ModelError | AnswerParts] | None = None

    @property
    def summary_requests(self) -> list[ModelRequest]:
        return [request for request in self.requests if request.head.system == INSTRUCTION]

    @property
    def turn_requests(self) -> list[ModelRequest]:
        return [request for request in self.requests if request.head.system != INSTRUCTION]

    async def stream(
        self, name: str, request: ModelRequest, info: CallInfo
    ) -> AsyncGenerator[Delta | ModelResponse, None]:
        self.requests.append(request)
        LOG_WATCH.forbid(message.content for message in request.messages if message.role != "tool")
        await self.gate.pass_through()
        answer = self._answer(request)
        for event in answer if isinstance(answer, list) else [answer]:
            if isinstance(event, ModelResponse):
                LOG_WATCH.forbid((event.text, event.thinking))
            if isinstance(event, Gate):
                await event.pass_through()
            elif isinstance(event, ModelError):
                raise event
            else:
                yield event

    def _answer(self, request: ModelRequest) -> "ModelResponse | ModelError | AnswerParts":
        if self.summarise and request.head.system == INSTRUCTION:
            return self.summarise(request)
        if self.script:
            return self.script.pop(0)
        return self.answer(request) if self.answer else says(f"echo: {last_user_message(request)}")

    def resolve(self, model: str) -> tuple[Provider, str]:
        return self, model


def last_user_message(request: ModelRequest) -> str:
    return next(message.content for message in reversed(request.messages) if message.role == "user")


def tools_of(request: ModelRequest) -> list[str]:
    """Return the names of the worker's tools that the model is offered, without the session's own."""
    return [tool.name for tool in request.head.tools if tool.name not in TASK_TOOLS]


@dataclass
class Tools:
    """Tools that the test controls. `calls` is every invocation that reached one."""

    specs: list[ToolSpec] = field(
        default_factory=lambda: [
            ToolSpec(name="look", effect="read", built_in=True),
            ToolSpec(name="pay", effect="at_most_once", built_in=True),
        ]
    )
    unread: list[str] = field(default_factory=list)
    instructions: list[ServerText] = field(default_factory=list)
    absent: list[ServerText] = field(default_factory=list)
    listings: int = 0
    calls: list[ToolInvocation] = field(default_factory=list)
    gate: Gate = field(default_factory=lambda: Gate(is_open=True))
    run: Callable[[ToolInvocation], Awaitable[ToolResult]] | None = None
    foreign: ToolSource | None = None
    """A toolbox that runs the calls instead."""

    async def list_tools(self) -> ToolList:
        self.listings += 1
        return ToolList(tools=self.specs, unread=self.unread, instructions=self.instructions, absent=self.absent)

    async def call(self, invocation: ToolInvocation, *, on_progress: ProgressListener | None = None) -> ToolResult:
        self.calls.append(invocation)
        if self.foreign:
            return await self.foreign.call(invocation, on_progress=on_progress)
        await self.gate.pass_through()
        if self.run:
            return await self.run(invocation)
        return ToolResult(outcome=f"{invocation.name} done", content=str(invocation.args), duration_ms=1)

    async def preview(self, invocation: ToolInvocation, *, max_bytes: int) -> FileChange:
        return FileChange(note="The file is new.", sha256="")


UNASKED = SessionInput(tool_policy={"*": "allow"})
"""A session whose tools run without approval."""


class DrivenSession:
    """A session, and what a test can do with it."""

    def __init__(self, client: Client, handle: WorkflowHandle[Any, Any], *, patient: bool = False) -> None:
        """`patient`: ask again while no worker answers, for tests that kill theirs."""
        self.client = client
        self.patient = patient
        self.handle = handle

    async def prompt(self, *args: Any, **fields: Any) -> None:
        await self.handle.signal("prompt", args=[fields] if fields else list(args))

    async def update(self, name: str, argument: Any = None, **kwargs: Any) -> Any:
        return await retry_undone(lambda: self.handle.execute_update(name, argument, **kwargs))

    async def state(self, argument: Any = None) -> ConversationState:
        return await self._ask("get_conversation_state", argument, ConversationState)

    async def updates(self, argument: Any = None) -> ConversationUpdate:
        return await self._ask("get_conversation_updates", argument, ConversationUpdate)

    async def context(self, argument: Any = None) -> ContextView:
        return await self._ask("get_context_view", argument, ContextView)

    async def queue(self, argument: Any = None) -> QueueView:
        return await self._ask("get_queue", argument, QueueView)

    async def approvals(self) -> list[PendingApproval]:
        """Return the calls that wait for a decision."""
        return (await self._ask("get_pending_approvals", None, PendingApprovals)).approvals

    async def allowances(self) -> list[str]:
        """Return the tools that were allowed for the session."""
        return (await self._ask("get_pending_approvals", None, PendingApprovals)).allowances

    async def awaited_approvals(self, count: int = 1) -> list[PendingApproval]:
        """Return the calls that wait for a decision once there are `count` of them."""
        await self.until(lambda state: state.status == "awaiting_approval")
        approvals = await self.approvals()
        assert len(approvals) == count
        return approvals

    async def decide(self, pending: PendingApproval, decision: str, **more: Any) -> Any:
        """Decide on a call, with the digest of its arguments."""
        request = {"call_id": pending.call_id, "args_digest": pending.args_digest, "decision": decision, **more}
        return await self.update("resolve_approval", request)

    async def _ask(self, query: str, argument: Any, result_type: type[Answer]) -> Answer:
        """Query until there is an answer: the machine may be busy, or the test has killed the worker."""
        bound = timedelta(seconds=3) if self.patient else None

        async def answer() -> Answer | None:
            try:
                return await self.handle.query(query, argument, result_type=result_type, rpc_timeout=bound)
            except RPCError as error:
                if not self.patient and error.status not in UNANSWERED:
                    raise
                return None

        return await until(answer, within=2 * BOUND)

    async def until(
        self,
        is_so: Callable[[ConversationState], bool],
        *,
        turns: int | None = None,
        bound: float = BOUND,
        max_pause: float = LONG_PAUSE,
    ) -> ConversationState:
        """Query the session until a state is so, and return that.

        With `turns`, the state holds that many of the newest turns only: it costs less. `max_pause`, in seconds, is
        shorter for states that soon pass.
        """
        state: ConversationState | None = None

        async def check() -> ConversationState | None:
            nonlocal state
            state = await self.state(None if turns is None else {"limit": turns})
            return state if is_so(state) else None

        try:
            return await until(check, within=bound, delay=DELAY, max_pause=max_pause)
        except TimeoutError as error:
            last = state.model_dump_json(indent=1)[:4000] if state else None
            raise AssertionError(f"never so; the last state was {last}") from error

    async def idle(self, *, turns: int, bound: float = BOUND) -> list[ConversationMessage]:
        """Return the turns once `turns` turns are complete and no prompt waits."""
        state = await self.until(
            lambda s: s.session.turn_count >= turns and s.status == "idle" and not s.queue_length,
            turns=None if turns <= FEW_TURNS else 0,
            bound=bound,
        )
        return (state if turns <= FEW_TURNS else await self.state()).messages

    async def histories(self) -> list[WorkflowHistory]:
        """Return the history of every run of the session, oldest first."""
        run_id = (await self.handle.describe()).raw_description.workflow_execution_info.first_run_id
        result: list[WorkflowHistory] = []
        while run_id:
            run = self.client.get_workflow_handle(self.handle.id, run_id=run_id)
            result.append(await run.fetch_history())
            run_id = result[-1].events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id
        return result

    async def fate(self, message_id: str) -> str | None:
        fates = (await self.queue({"message_id": message_id})).fates
        return fates[0].fate if fates else None


@dataclass
class Environment:
    """A worker with its vendor and tools, and the sessions started on it."""

    client: Client
    worker: Worker
    vendor: Vendor
    tools: Tools
    task_queue: str
    settings: Settings
    stores: Stores
    partials: PartialCarrier
    limits: dict[str, int]
    sessions: list[DrivenSession] = field(default_factory=list)

    async def start(
        self, start: Any = None, *, id: str | None = None, task_seconds: float | None = None
    ) -> DrivenSession:
        handle = await self.client.start_workflow(
            "AgenticAIWorkflow",
            self._scaled(start or SessionInput()),
            id=id or f"s-{uuid4()}",
            task_queue=self.task_queue,
            task_timeout=timedelta(seconds=task_seconds) if task_seconds else None,
        )
        return self.adopt(handle)

    def adopt(self, handle: WorkflowHandle[Any, Any]) -> DrivenSession:
        """Drive a session that was started elsewhere."""
        session = DrivenSession(self.client, handle)
        self.sessions.append(session)
        return session

    def _scaled(self, start: Any) -> Any:
        """Lower the limits of a session to those of this environment."""
        if not isinstance(start, SessionInput) or not self.limits:
            return start
        lower = {name: min(limit, getattr(start.limits, name)) for name, limit in self.limits.items()}
        return start.model_copy(update={"limits": start.limits.model_copy(update=lower)})


def broken(env: Environment) -> Path:
    """Make the archive's file unusable: put a folder in its place and keep the file beside it."""
    file = env.settings.state_dir / "archive.db"
    if file.exists():
        file.rename(file.with_suffix(".away"))
    file.mkdir()
    return file


def heal(file: Path) -> None:
    """Put the archive's file back, if there was one."""
    file.rmdir()
    away = file.with_suffix(".away")
    if away.exists():
        away.rename(file)


@asynccontextmanager
async def environment(
    client: Client,
    *,
    task_queue: str | None = None,
    limits: dict[str, int] | None = None,
    providers: ProviderSource | None = None,
    toolbox: ToolSource | None = None,
    partials: PartialCarrier | None = None,
    **settings: Any,
) -> AsyncIterator[Environment]:
    """Run a worker on a task queue of its own; sessions get at most these `limits`.

    `providers` take the place of the environment's own vendor, and `toolbox` that of its own tools. Partial output
    goes by the carrier that the settings name, or by `partials`.
    """
    with tempfile.TemporaryDirectory() as folder:
        defaults = {"task_queue": task_queue or f"q-{uuid4()}", "shutdown_grace": 0.5, "state_dir": Path(folder)}
        chosen = Settings(**{**defaults, **settings})
        carrier = nullcontext(partials) if partials else carrier_factory(chosen)(client)
        async with carrier as opened, _environment(client, chosen, limits or {}, providers, toolbox, opened) as env:
            yield env


@asynccontextmanager
async def _environment(
    client: Client,
    settings: Settings,
    limits: dict[str, int],
    providers: ProviderSource | None,
    toolbox: ToolSource | None,
    partials: PartialCarrier,
) -> AsyncIterator[Environment]:
    vendor, tools = Vendor(), Tools()
    async with (
        Stores.of(settings) as stores,
        build_worker(
            client,
            settings,
            providers=providers or vendor,
            tools=toolbox or tools,
            stores=stores,
            partials=partials,
        ) as worker,
    ):
        await partials.listen()
        env = Environment(client, worker, vendor, tools, settings.task_queue, settings, stores, partials, limits)
        try:
            yield env
        finally:
            vendor.gate.open()
            tools.gate.open()
