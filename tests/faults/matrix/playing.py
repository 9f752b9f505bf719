"""Playing a row: a session with one vendor, or several, and what came of its turns."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from temporalio.client import Client

from tests.harness import DrivenSession, Environment, environment
from tests.vendors.flavours.fleet import Fleet, Line, prompt
from tests.vendors.media import PDF, PNG, base64_of
from tests.waiting import until
from turnkeeper.models.context.summary import INSTRUCTION
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.transcript.attachments import ImageAttachment
from turnkeeper.models.transcript.conversation import ConversationMessage, ToolResult
from turnkeeper.models.transcript.model_call import ToolInvocation, ToolSpec

AT_ONCE = 8
"""Rows that are played at once in one process."""

IMAGE = {"type": "image", "name": "cat.png", "media_type": "image/png", "data": base64_of(PNG)}
PAPER = {"type": "file", "name": "a.pdf", "media_type": "application/pdf", "data": base64_of(PDF)}

TEXT = {"type": "object", "properties": {"at": {"type": "string"}}}
ODD = {"type": "object", "properties": {"at": {"type": "string", "pattern": "^.*$"}}}


def tool(name: str, schema: dict[str, Any] | None = None, description: str = "") -> ToolSpec:
    return ToolSpec(
        name=name,
        description=description or f"The tool {name}.",
        input_schema=TEXT if schema is None else schema,
        effect="read",
    )


PLAIN = (
    tool("look"),
    tool("pay"),
    tool("photo"),
    tool("odd", ODD),
    tool("long", description=f"A tool with a long description. {'It says much. ' * 150}"),
)
"""The tools of most rows: one has an image in its result, one an uncommon schema, one a long description."""


async def run_tool(invocation: ToolInvocation) -> ToolResult:
    attachments = [ImageAttachment.model_validate(IMAGE)] if invocation.name == "photo" else []
    return ToolResult(outcome=f"{invocation.name} done", content="It is there.", attachments=attachments)


class RowSession:
    """The session of one row. `turns` are those that have ended, in the order of the calls of `turn`."""

    def __init__(self, env: Environment, line: Line, session: DrivenSession) -> None:
        self.env = env
        self.line = line
        self.session = session
        self.turns: list[ConversationMessage] = []

    async def begin(self, tag: str, *steps: list[str], think: bool = True, **fields: Any) -> None:
        """Send a prompt whose model calls the tools of `steps`, and then answers."""
        await self.session.prompt(**{"id": tag, "text": prompt(tag, *steps, think=think), **fields})

    async def turn(self, tag: str, *steps: list[str], think: bool = True, **fields: Any) -> ConversationMessage:
        """Send a prompt, and return its turn once it has ended."""
        await self.begin(tag, *steps, think=think, **fields)
        return await self.ended(tag)

    async def ended(self, tag: str) -> ConversationMessage:
        """Return a turn once it has ended and the session is idle."""

        def turn_of(messages: Iterable[ConversationMessage]) -> ConversationMessage | None:
            return next((message for message in messages if message.id == tag), None)

        state = await self.session.until(
            lambda state: state.status == "idle" and not state.queue_length and turn_of(state.messages) is not None,
            turns=2,
        )
        turn = turn_of(state.messages)
        assert turn is not None
        self.turns.append(turn)
        return turn

    async def switch(self, flavour: str) -> None:
        await self.session.update("configure", {"model": self.line.model_of(flavour)})

    async def until_requests(self, count: int) -> None:
        await until(lambda: len(self.line.exchanges) >= count)

    async def until_overridden(self, count: int) -> None:
        """Wait until `count` requests have met the line's override."""
        await until(lambda: self.line.overridden >= count)


def is_answered(turn: ConversationMessage) -> bool:
    return turn.agent_message == f"Answer {turn.id}."


def omissions(turns: Iterable[ConversationMessage]) -> str:
    return "; ".join(step.left_out for turn in turns for step in turn.steps if step.kind == "model" and step.left_out)


Play = Callable[[RowSession], Awaitable[None]]
"""Plays a row; raises `AssertionError` with what is wrong."""


@dataclass(frozen=True)
class Row:
    """A session that meets one fault. `tools` are the tools of all sessions of the environment."""

    id: str
    flavour: str
    play: Play
    tools: Collection[ToolSpec] = PLAIN
    config: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    lessons: int = 1
    """After how many requests that were refused by one rule it must be learned."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a row. `refused` counts rejected requests, `unlearned` the ones rejected again."""

    row: str
    flavour: str
    problem: str = ""
    is_ended: bool = False
    refused: int = 0
    unlearned: int = 0


@asynccontextmanager
async def fleet_environment(client: Client, tools: Collection[ToolSpec]) -> AsyncIterator[tuple[Fleet, Environment]]:
    """Run a worker that asks the vendors of a fleet."""
    async with (
        Fleet(is_summary=lambda text: INSTRUCTION[:40] in text) as fleet,
        environment(client, providers=fleet) as env,
    ):
        env.tools.specs = list(tools)
        env.tools.run = run_tool
        yield fleet, env


async def played(client: Client, rows: Collection[Row]) -> list[Outcome]:
    """Play rows that have the same tools, several at once, and return their outcomes."""
    slots = asyncio.Semaphore(AT_ONCE)
    async with fleet_environment(client, next(iter(rows)).tools) as (fleet, env):

        async def play(number: int, row: Row) -> Outcome:
            async with slots:
                return await _outcome(fleet, env, row, key=f"r{number}")

        return list(await asyncio.gather(*(play(number, row) for number, row in enumerate(rows))))


async def _outcome(fleet: Fleet, env: Environment, row: Row, *, key: str) -> Outcome:
    line = fleet.line(key, model=row.model)
    start = SessionInput.model_validate(
        {"model": line.model_of(row.flavour), "tool_policy": {"*": "allow"}, **row.config}
    )
    run = RowSession(env, line, await env.start(start))
    problem, is_ended = "", False
    try:
        await row.play(run)
        is_ended = not await _answers_again(run)
    except (AssertionError, TimeoutError) as error:
        problem = f"{error or type(error).__name__}"[:1_000]
    await run.session.handle.terminate()
    refusals = [exchange.violation.rule for exchange in line.exchanges if exchange.violation]
    return Outcome(row.id, row.flavour, problem, is_ended, len(refusals), unlearned(line, lessons=row.lessons))


async def _answers_again(run: RowSession) -> bool:
    """Return whether one of two more turns is answered; most rows have none to do, since their last one was."""
    if run.turns and is_answered(run.turns[-1]):
        return True
    return any([is_answered(await run.turn(f"again{number}")) for number in range(2)])


def unlearned(line: Line, *, lessons: int = 1) -> int:
    """Count refusals whose rule was broken again after the vendor had accepted a request without it."""
    again, refusals, accepted = 0, Counter[tuple[str, str]](), set[tuple[str, str]]()
    for exchange in line.exchanges:
        if exchange.violation is None:
            accepted |= {pair for pair in refusals if pair[0] == exchange.flavour}
            continue
        pair = (exchange.flavour, exchange.violation.rule)
        again += pair in accepted and refusals[pair] >= lessons
        refusals[pair] += 1
    return again
