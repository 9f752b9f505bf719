"""pydantic-ai with its Temporal integration: model calls and tool calls are activities.

One workflow is one conversation. It continues as new when Temporal suggests it, with the whole conversation.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from temporalio import workflow
from temporalio.client import Client
from temporalio.service import GrpcCompression
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from pydantic_ai import Agent
    from pydantic_ai.durable_exec.temporal import PydanticAIPlugin, PydanticAIWorkflow, TemporalDurability
    from pydantic_ai.messages import (
        ModelMessage,
        ModelRequest,
        ModelResponse,
        TextPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    from benchmarks.peers import work

PACKAGES = ("pydantic-ai-slim", "temporalio")


async def file_read(path: str) -> str:
    """Read a file."""
    return work.RESULT


async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    await asyncio.sleep(work.MODEL_SECONDS)
    results = 0
    for part in (part for message in messages if isinstance(message, ModelRequest) for part in message.parts):
        results = 0 if isinstance(part, UserPromptPart) else results + isinstance(part, ToolReturnPart)
    if work.is_answer_due(results):
        return ModelResponse([TextPart(work.ANSWER)])
    return ModelResponse([TextPart(work.CALL_TEXT), ToolCallPart(work.TOOL, work.ARGUMENTS)])


agent = Agent(
    FunctionModel(respond, model_name=work.MODEL), name="peer", tools=[file_read], capabilities=[TemporalDurability()]
)


@dataclass
class Carried:
    """What a run gets from the run before it."""

    messages: list[ModelMessage]
    turns: int
    answer: str


@workflow.defn
class Conversation(PydanticAIWorkflow):
    """A conversation; each `prompt` is a turn."""

    __pydantic_ai_agents__ = [agent]

    def __init__(self) -> None:
        self._prompts: list[str] = []
        self._turns = 0
        self._answer = ""

    @workflow.run
    async def run(self, carried: Carried | None = None) -> None:
        messages = carried.messages if carried else []
        if carried:
            self._turns, self._answer = carried.turns, carried.answer
        while self._prompts or not workflow.info().is_continue_as_new_suggested():
            await workflow.wait_condition(lambda: bool(self._prompts))
            result = await agent.run(self._prompts.pop(0), message_history=messages)
            messages, self._answer = result.all_messages(), result.output
            self._turns += 1
        workflow.continue_as_new(Carried(messages, self._turns, self._answer))

    @workflow.signal
    def prompt(self, request: dict[str, str]) -> None:
        self._prompts.append(request["text"])

    @workflow.query
    def answer(self, turn: int) -> str | None:
        """Return the answer of `turn`, the newest one; None: there is none yet."""
        return self._answer if self._turns >= turn else None


@asynccontextmanager
async def running(place: str) -> AsyncIterator[None]:
    client = await Client.connect(place, plugins=[PydanticAIPlugin()], grpc_compression=GrpcCompression.NONE)
    async with Worker(client, task_queue="pydantic_ai", workflows=[Conversation]):
        yield
