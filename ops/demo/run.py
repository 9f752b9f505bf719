"""A performance from start to end: a stage in a temporary folder, the story, the verdict, and nothing left behind."""

import asyncio
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from turnkeeper.clients.python.errors import GatewayError
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.models.command_line import command_line
from turnkeeper.ops.demo.printed import Telling
from turnkeeper.ops.demo.record import Record
from turnkeeper.ops.demo.spectator import NotSeenError, Spectator
from turnkeeper.ops.demo.stage import Stage, StageError
from turnkeeper.ops.demo.story import ACTS, PROMISES_TEXT, Act, Story
from turnkeeper.ops.demo.verdict import PROMISES, violations
from turnkeeper.ops.local.supervisor import run_until_signalled

KEPT, BROKEN, NOT_PLAYED, STOPPED = 0, 1, 2, 130
"""Exit codes: the promises were kept; they were not; it could not be played; somebody stopped it."""

SESSION = "demo"

PATIENCE_SECONDS = 40.0
"""Longest wait for anything in the story."""


@dataclass
class Findings:
    """What came of a story: promises that were `broken`, and `accidents` of its stage, which prove nothing."""

    broken: list[str] = field(default_factory=list)
    accidents: list[str] = field(default_factory=list)

    @property
    def code(self) -> int:
        """The exit code: what an accident broke was not promised."""
        if self.accidents:
            return NOT_PLAYED
        return BROKEN if self.broken else KEPT


def run_demo(*, keep: bool, acts: Sequence[Act] = ACTS) -> int:
    """Play `acts` and return the exit code, with everything stopped and removed again.

    `keep`: afterwards everything stays as it is until a Ctrl-C.

    Raises:
        DevServerError: The server does not start.
        StageError: Worker or gateway do not start.
    """
    code = run_until_signalled(_evening(keep=keep, acts=acts))
    return STOPPED if code is None else code


async def perform(
    stage: Stage,
    telling: Telling,
    *,
    url: str,
    session_id: str = SESSION,
    acts: Sequence[Act] = ACTS,
    patience: float = PATIENCE_SECONDS,
) -> int:
    """Play `acts` in a new session through the gateway at `url`, say what they came to, and return the exit code.

    Raises:
        StageError: The session could not be started.
    """
    findings = Findings()
    (stage.workspace / "promises.md").write_text(PROMISES_TEXT)
    async with GatewayClient(url) as gateway:
        await _start(gateway, session_id)
        spectator = Spectator(gateway, session_id, patience=patience, on_text=telling.growing)
        story = Story(stage, gateway, spectator, telling, session_id=session_id)
        await _play(story, acts, findings)
        await _judge(story, findings)
    findings.accidents += stage.fallen()
    checked = f"{len(PROMISES)} promises, {len(story.asked)} prompts: nothing lost, nothing twice, everything in order."
    telling.verdict(findings.broken, findings.accidents, checked)
    return findings.code


async def _evening(*, keep: bool, acts: Sequence[Act]) -> int:
    telling = Telling()
    telling.title("Turnkeeper's demo: a session, and everything that can happen to it, in about 20 s.")
    telling.title("It is offline and has a stack of its own; nothing of yours is read or touched.")
    with tempfile.TemporaryDirectory(prefix="turnkeeper-demo-") as folder:
        try:
            telling.step("Everything starts")
            async with Stage(Path(folder)) as stage:
                telling.line(f"Temporal server, process {stage.server.pid}, at {stage.server.address}")
                await stage.open()
                telling.line(f"worker, process {stage.worker.pid}")
                telling.line(f"gateway, process {stage.gateway.pid}, at {stage.url}")
                code = await perform(stage, telling, url=stage.url, acts=acts)
                if keep:
                    await _stay_open(stage, telling)
                return code
        finally:
            telling.close()


async def _stay_open(stage: Stage, telling: Telling) -> None:
    """Show where all can be looked at, until somebody presses Ctrl-C: here that is the end, and not a failure."""
    temporal = stage.server.ui_url
    async with GatewayClient(stage.url) as gateway:
        with suppress(GatewayError):  # after an accident there is none
            temporal = (await gateway.describe(SESSION)).links.temporal
    telling.title(
        "",
        f"  Chat        {stage.url}/?session={SESSION}",
        f"  In here     {command_line('chat', '--url', stage.url, '--session', SESSION)}",
        f"  API docs    {stage.url}/docs",
        f"  Temporal    {temporal}",
        f"  Folder      {stage.folder}",
        "",
        "Ctrl-C stops and removes all of it.",
    )
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


async def _start(gateway: GatewayClient, session_id: str) -> None:
    try:
        await gateway.start(session_id, title="The demo")
    except GatewayError as error:
        raise StageError(f"No session could be started: {error}") from error


async def _play(story: Story, acts: Sequence[Act], findings: Findings) -> None:
    """Play on until something that has to happen does not."""
    try:
        async with story.spectator:
            for act in acts:
                await act(story)
    except (NotSeenError, GatewayError) as error:
        findings.broken.append(str(error))
    except StageError as error:
        findings.accidents.append(str(error))


async def _judge(story: Story, findings: Findings) -> None:
    """Find what is broken in what there is; what cannot be read proves nothing."""
    try:
        record = await story.record()
    except GatewayError as error:
        findings.broken.append(f"The transcript could not be read: {error}")
        return
    findings.broken += violations(record)
    sums = list(_sums(story, record))
    try:
        sums += await _noted(story)
    except StageError as error:
        findings.accidents.append(str(error))
    story.telling.table(sums)


def _sums(story: Story, record: Record) -> Iterator[tuple[str, str]]:
    steps = [
        step
        for turn in record.transcript
        if turn.reasoning_trajectory
        for step in turn.reasoning_trajectory.model_steps
    ]
    first_words = [after for asked in story.asked if (after := story.words_after(asked.id)) is not None]
    yield "prompts accepted", str(len(record.asked))
    yield "turns", str(len(record.transcript))
    yield "steps of the model", str(len(steps))
    yield "tool calls", str(sum(len(step.tool_calls) for step in steps))
    if first_words:
        yield "prompt to first words, median", f"{statistics.median(first_words):.2f} s"
    if story.seconds:
        yield "prompt to whole answer, median", f"{statistics.median(story.seconds):.2f} s"
    if story.recovery_seconds is not None:
        yield "a worker's kill to the answer's new beginning", f"{story.recovery_seconds:.2f} s"


async def _noted(story: Story) -> list[tuple[str, str]]:
    count = await story.stage.history_of(story.session_id)
    return [
        ("attempts repeated after a crash", str(count.retries)),
        ("events in Temporal's history", str(count.events)),
        ("all of it", f"{story.telling.seconds:.1f} s"),
    ]
