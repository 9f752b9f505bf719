"""Our own worker, and the place where it is to die.

A turn passes named points, each of them once:

    prompt p2 arrives               in the workflow task that takes a prompt up
    pay is scheduled                in the workflow task that asks for an activity, before Temporal hears of it
    a task is started               in the workflow task that starts a child workflow, before Temporal hears of it
    grant_allowance is sent         in the workflow task that signals another session, before Temporal hears of it
    grant_allowance arrives         in the workflow task that handles such a signal
    pay begins, pay has run         around an activity, its result not yet reported
    pay is about to act, has acted  inside a tool, around its effect
    file_read is called             before any tool is called, by an activity of its own or by a model call
    model call 2 has written 3      after three pieces of a streamed answer

An activity is called by what it is about: `list_tools`, `model call 2` (the session's second model request), or the
name of the tool. At the point `pauses_at` the worker says on stdout where it is, and waits; so a test can do something
in the middle of the turn. At the point `dies_at` it kills itself, in the very statement. A worker without a course
passes all points.

Run as a script, with a `Plan` as JSON, it is the worker of `worker.run_worker`: only the model's script, the tools and
the points are the test's.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ToolAnnotations
from temporalio import activity, client, workflow
from temporalio import worker as sdk

from turnkeeper import worker
from turnkeeper.activities.model_client import ProviderSource
from turnkeeper.activities.providers.protocol import CallInfo, Delta
from turnkeeper.activities.providers.provider import Provider
from turnkeeper.activities.toolbox.tool_server import ToolServer
from turnkeeper.activities.toolbox.toolbox import IDEMPOTENCY_KEY, Toolbox, own_tool_server
from turnkeeper.activities.tools import ProgressListener
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import ToolResult
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse, ToolInvocation
from turnkeeper.models.wire import Frozen
from turnkeeper.ops.local.process import run_to_end
from turnkeeper.stores.temporal.payload_converter import DATA_CONVERTER

Pause = Literal["until told", "until stopping", "forever"]
"""`until told`: by a line on stdin. `until stopping`: until the worker has begun to shut down."""


class Course(Frozen):
    """A worker's action and the point where it happens; without a point there is none."""

    pauses_at: str | None = None
    pause: Pause = "until told"
    dies_at: str | None = None

    def passes(self, point: str) -> None:
        """Die, if this is the point."""
        if point == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    async def reaches(self, point: str) -> None:
        """Pause, if this is where; then as `passes`."""
        if point == self.pauses_at:
            print(point, flush=True)  # noqa: T201 - this is how the test learns of it
            await self._pause()
        self.passes(point)

    async def _pause(self) -> None:
        match self.pause:
            case "until told":
                await _line_from_stdin()
            case "until stopping":
                await activity.wait_for_worker_shutdown()
            case "forever":
                await asyncio.Event().wait()


class Plan(Frozen):
    """A doomed worker's one argument."""

    address: str
    settings: dict[str, Any]
    course: Course


async def _line_from_stdin() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.readline()


def name_of(activity_type: str, argument: Any) -> str:
    """Return a description of an activity's work; `argument` is its input, decoded or not."""
    fields = argument if isinstance(argument, dict) else vars(argument) if argument is not None else {}
    match activity_type:
        case "call_model":
            return f"model call {fields['request']}"
        case "call_tool":
            return str(fields["name"])
    return activity_type


# ---- points in the model and in the tools


@dataclass(frozen=True)
class CoursedModels:
    """Providers whose answers pass points."""

    models: ProviderSource
    course: Course

    def resolve(self, model: str) -> tuple[Provider, str]:
        provider, name = self.models.resolve(model)
        return CoursedModel(provider, self.course), name

    def refused_parts(self) -> dict[str, list[str]]:
        return {}


@dataclass(frozen=True)
class CoursedModel:
    provider: Provider
    course: Course

    async def stream(self, name: str, request: ModelRequest, info: CallInfo) -> AsyncIterator[Delta | ModelResponse]:
        count = 0
        async for event in self.provider.stream(name, request, info):
            yield event
            count += 1
            await self.course.reaches(f"model call {info.request} has written {count}")


@dataclass(frozen=True)
class Shop:
    """An MCP server's tools whose effect is a line in a ledger: the tool and the call it was run for."""

    ledger: Path
    course: Course

    async def put(self, ctx: Context) -> str:
        """Put the goods into the basket; a second run changes nothing."""
        return await self._act("put", ctx)

    async def pay(self, ctx: Context) -> str:
        """Pay for the goods; a second run would pay twice, and not notice."""
        return await self._act("pay", ctx)

    async def _act(self, tool: str, ctx: Context) -> str:
        await self.course.reaches(f"{tool} is about to act")
        self._write(f"{tool} {dict(ctx.request_context.meta or {})[IDEMPOTENCY_KEY]}\n")
        await self.course.reaches(f"{tool} has acted")
        return f"{tool}: done"

    def _write(self, line: str) -> None:
        with self.ledger.open("a") as ledger:
            ledger.write(line)

    def server(self) -> MCPServer:
        server = MCPServer("shop", log_level="WARNING")
        server.add_tool(self.put, annotations=ToolAnnotations(read_only_hint=False, idempotent_hint=True))
        server.add_tool(self.pay)
        return server


class CoursedToolbox(Toolbox):
    """A toolbox whose calls pass points."""

    def __init__(self, servers: Sequence[ToolServer], course: Course) -> None:
        super().__init__(servers)
        self._course = course

    async def call(self, invocation: ToolInvocation, *, on_progress: ProgressListener | None = None) -> ToolResult:
        await self._course.reaches(f"{invocation.name} is called")
        return await super().call(invocation, on_progress=on_progress)


def build_toolbox(settings: Settings, course: Course) -> Toolbox:
    """Return the built-in tools and the shop's, its ledger in `state_dir`."""
    shop = Shop(settings.state_dir / "ledger", course).server()
    return CoursedToolbox([own_tool_server(settings), ToolServer("shop", shop, trusted=True)], course)


# ---- points in the worker


class Interceptor(client.Interceptor, sdk.Interceptor):
    """Adds points around activities and in workflow tasks to every worker of a client."""

    def __init__(self, course: Course) -> None:
        self._course = course

    def intercept_activity(self, next: sdk.ActivityInboundInterceptor) -> sdk.ActivityInboundInterceptor:
        return _Activities(next, self._course)

    def workflow_interceptor_class(
        self, _input: sdk.WorkflowInterceptorClassInput
    ) -> type[sdk.WorkflowInboundInterceptor]:
        course = self._course

        class Requests(sdk.WorkflowOutboundInterceptor):
            def start_activity(self, input: sdk.StartActivityInput) -> workflow.ActivityHandle[Any]:
                if not workflow.unsafe.is_replaying():
                    course.passes(f"{name_of(input.activity, next(iter(input.args), None))} is scheduled")
                return super().start_activity(input)

            async def start_child_workflow(
                self, input: sdk.StartChildWorkflowInput
            ) -> workflow.ChildWorkflowHandle[Any, Any]:
                if not workflow.unsafe.is_replaying():
                    course.passes("a task is started")
                return await super().start_child_workflow(input)

            async def signal_external_workflow(self, input: sdk.SignalExternalWorkflowInput) -> None:
                if not workflow.unsafe.is_replaying():
                    course.passes(f"{input.args[0].kind} is sent")
                await super().signal_external_workflow(input)

        class Arrivals(sdk.WorkflowInboundInterceptor):
            def init(self, outbound: sdk.WorkflowOutboundInterceptor) -> None:
                super().init(Requests(outbound))

            async def handle_signal(self, input: sdk.HandleSignalInput) -> None:
                if not workflow.unsafe.is_replaying():
                    course.passes(f"{_message_in(input)} arrives")
                await super().handle_signal(input)

        return Arrivals


def _message_in(input: sdk.HandleSignalInput) -> str:
    """Return a description of a signal."""
    match input.signal:
        case "prompt":
            return f"prompt {input.args[0]['id']}"
        case "feature_message":
            return str(input.args[0]["kind"])
    return input.signal


class _Activities(sdk.ActivityInboundInterceptor):
    def __init__(self, next: sdk.ActivityInboundInterceptor, course: Course) -> None:
        super().__init__(next)
        self._course = course

    async def execute_activity(self, input: sdk.ExecuteActivityInput) -> Any:
        name = name_of(activity.info().activity_type, next(iter(input.args), None))
        await self._course.reaches(f"{name} begins")
        result = await super().execute_activity(input)
        await self._course.reaches(f"{name} has run")
        return result


async def main(plan: Plan) -> None:
    """Serve until the plan, or SIGTERM, ends it."""
    worker.set_up_logging(Settings(**plan.settings, log_level="error"))
    models = worker.ProviderRegistry.from_settings
    worker.ProviderRegistry.from_settings = lambda settings: CoursedModels(models(settings), plan.course)
    worker.build_toolbox = lambda settings: build_toolbox(settings, plan.course)
    temporal = await client.Client.connect(
        plan.address, data_converter=DATA_CONVERTER, interceptors=[Interceptor(plan.course)]
    )
    await worker.run_worker(Settings(**plan.settings), temporal)


if __name__ == "__main__":
    run_to_end(lambda: asyncio.run(main(Plan.model_validate_json(sys.argv[1]))))
