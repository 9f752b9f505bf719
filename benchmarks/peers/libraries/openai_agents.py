"""The OpenAI Agents SDK with Temporal's plugin: model calls and tool calls are activities.

One workflow is one conversation. It continues as new when Temporal suggests it, with the whole conversation.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.service import GrpcCompression
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from agents import Agent, Model, ModelResponse, RunConfig, Runner
    from temporalio.openai_agents import ModelActivityParameters, OpenAIAgentsPlugin
    from temporalio.openai_agents.testing import ResponseBuilders, TestModelProvider
    from temporalio.openai_agents.workflow import activity_as_tool

    from benchmarks.peers import work

PACKAGES = ("openai-agents", "temporalio-openai-agents", "temporalio")

TIMEOUT = timedelta(seconds=60)


@activity.defn
async def file_read(path: str) -> str:
    """Read a file."""
    return work.RESULT


class FakeModel(Model):
    """Answers after `work.MODEL_SECONDS`."""

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[Any],  # noqa: A002  # the SDK's name
        *args: Any,
        **options: Any,
    ) -> ModelResponse:
        await asyncio.sleep(work.MODEL_SECONDS)
        items = [{"role": "user"}] if isinstance(input, str) else input
        last_prompt = max(place for place, item in enumerate(items) if item.get("role") == "user")
        results = sum(item.get("type") == "function_call_output" for item in items[last_prompt:])
        if work.is_answer_due(results):
            return ResponseBuilders.output_message(work.ANSWER)
        response = ResponseBuilders.tool_call(json.dumps(work.ARGUMENTS), work.TOOL, call_id=f"call-{len(items)}")
        response.output.insert(0, ResponseBuilders.response_output_message(work.CALL_TEXT))
        return response

    def stream_response(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError("nobody asks for a stream")


@dataclass
class Carried:
    """What a run gets from the run before it."""

    items: list[Any]
    turns: int
    answer: str


@workflow.defn
class Conversation:
    """A conversation; each `prompt` is a turn."""

    def __init__(self) -> None:
        self._prompts: list[str] = []
        self._turns = 0
        self._answer = ""

    @workflow.run
    async def run(self, carried: Carried | None = None) -> None:
        agent = Agent(
            name="peer", model=work.MODEL, tools=[activity_as_tool(file_read, start_to_close_timeout=TIMEOUT)]
        )
        items = carried.items if carried else []
        if carried:
            self._turns, self._answer = carried.turns, carried.answer
        while self._prompts or not workflow.info().is_continue_as_new_suggested():
            await workflow.wait_condition(lambda: bool(self._prompts))
            prompt = {"role": "user", "content": self._prompts.pop(0)}
            result = await Runner.run(agent, [*items, prompt], run_config=RunConfig(tracing_disabled=True))
            items, self._answer = result.to_input_list(), result.final_output
            self._turns += 1
        workflow.continue_as_new(Carried(items, self._turns, self._answer))

    @workflow.signal
    def prompt(self, request: dict[str, str]) -> None:
        self._prompts.append(request["text"])

    @workflow.query
    def answer(self, turn: int) -> str | None:
        """Return the answer of `turn`, the newest one; None: there is none yet."""
        return self._answer if self._turns >= turn else None


@asynccontextmanager
async def running(place: str) -> AsyncIterator[None]:
    plugin = OpenAIAgentsPlugin(
        model_params=ModelActivityParameters(start_to_close_timeout=TIMEOUT),
        model_provider=TestModelProvider(FakeModel()),
    )
    client = await Client.connect(place, plugins=[plugin], grpc_compression=GrpcCompression.NONE)
    async with Worker(client, task_queue="openai_agents", workflows=[Conversation], activities=[file_read]):
        yield
