"""Temporal's agent harness with pydantic-ai: model calls and tool calls are activities, and it streams to its clients.

One workflow is one conversation, a prompt is an update, and its workflow never continues as new.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from temporalio import workflow
from temporalio.client import Client
from temporalio.contrib.workflow_streams import WorkflowStream
from temporalio.service import GrpcCompression
from temporalio.worker import Worker
from temporalio.workflow import ActivityConfig

with workflow.unsafe.imports_passed_through():
    from pydantic_ai import Agent
    from pydantic_ai.durable_exec.temporal import AgentPlugin, PydanticAIPlugin, TemporalAgent
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
    from temporal_agent_harness.ai_sdks.pydantic_ai_harness import (
        HarnessDeps,
        build_harness_toolset,
        harness_event_stream_handler,
    )
    from temporal_agent_harness.harness import agent
    from temporal_agent_harness.harness.agent_protocol import AgentConfig, TextMessage, TextReply, ToolApprovalPolicy
    from temporal_agent_harness.harness.agent_workflow import AgentWorkflowRunner
    from temporal_agent_harness.plugin import AgentHarnessPlugin

    from benchmarks.peers import work
    from benchmarks.peers.libraries.pydantic_ai import respond

PACKAGES = ("temporal-agent-harness",)


@agent.activity_tool_defn(
    inherently_safe=True, activity_config=ActivityConfig(start_to_close_timeout=timedelta(seconds=60))
)
async def file_read(path: str) -> str:
    """Read a file."""
    return work.RESULT


async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
    """Write the same response as a stream."""
    response = await respond(messages, info)
    yield response.text or ""
    if response.tool_calls:
        (call,) = response.tool_calls
        yield {0: DeltaToolCall(call.tool_name, call.args_as_json_str(), tool_call_id=call.tool_call_id)}


toolset, tool_config = build_harness_toolset([file_read], id="tools")
durable_agent = TemporalAgent(
    Agent(
        FunctionModel(respond, stream_function=stream, model_name=work.MODEL), deps_type=HarnessDeps, toolsets=[toolset]
    ),
    name="peer",
    event_stream_handler=harness_event_stream_handler,
    tool_activity_config=tool_config,
)


@agent.defn
class Conversation:
    """A conversation; each message is a turn."""

    @agent.init
    def __init__(self, config: AgentConfig) -> None:
        self._runner = AgentWorkflowRunner(
            config, stream=WorkflowStream(), approval_policy_default=ToolApprovalPolicy.dangerously_skip_all()
        )
        self._messages: list[ModelMessage] = []
        self._turns = 0
        self._answer = ""

    @agent.accepts
    async def ask(self, message: TextMessage) -> TextReply:
        """Answer a prompt."""
        result = await durable_agent.run(
            message.text, deps=HarnessDeps(runner=self._runner), message_history=self._messages
        )
        self._messages, self._answer = result.all_messages(), str(result.output)
        self._turns += 1
        return TextReply(text=self._answer)

    @workflow.query
    def answer(self, turn: int) -> str | None:
        """Return the answer of `turn`, the newest one; None: there is none yet."""
        return self._answer if self._turns >= turn else None


@asynccontextmanager
async def running(place: str) -> AsyncIterator[None]:
    plugins = [PydanticAIPlugin(), AgentHarnessPlugin(tools=[file_read])]
    client = await Client.connect(place, plugins=plugins, grpc_compression=GrpcCompression.NONE)
    async with Worker(
        client, task_queue="agent_harness", workflows=[Conversation], plugins=[AgentPlugin(durable_agent)]
    ):
        yield
