"""The demo from start to end: an environment in a temporary folder, the scenario, the check of every promise."""

import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from turnkeeper.clients.python.errors import GatewayError
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.models.command_line import command_line
from turnkeeper.ops.demo.environment import DemoEnvironment, DemoError, demo_environment
from turnkeeper.ops.demo.log import SessionLog, calls_of, model_steps_of
from turnkeeper.ops.demo.observer import NotObservedError, Observer
from turnkeeper.ops.demo.promises import PROMISES, broken_promises
from turnkeeper.ops.demo.report import Report
from turnkeeper.ops.demo.scenario import PROMISES_TEXT, STEPS, Scenario, Step
from turnkeeper.ops.local.supervisor import run_until_signalled

KEPT, BROKEN, NOT_PLAYED, STOPPED = 0, 1, 2, 130
"""Exit codes: the promises were kept; they were not; the demo could not be played; somebody stopped it."""

SESSION = "demo"

PATIENCE_SECONDS = 40.0
"""Longest wait for anything in the scenario."""


@dataclass
class Findings:
    """What came of a scenario: broken promises, and failures of its environment, which prove nothing."""

    broken: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """Broken promises count only without a failure of the environment."""
        if self.failures:
            return NOT_PLAYED
        return BROKEN if self.broken else KEPT


def run_demo(*, keep: bool, steps: Sequence[Step] = STEPS) -> int:
    """Play `steps` and return the exit code, with everything stopped and removed again.

    `keep`: afterwards everything stays as it is until a Ctrl-C.

    Raises:
        DevServerError: The server does not start.
        DemoError: Worker or gateway do not start.
    """
    code = run_until_signalled(_run(keep=keep, steps=steps))
    return STOPPED if code is None else code


async def run_scenario(
    environment: DemoEnvironment,
    report: Report,
    *,
    url: str,
    session_id: str = SESSION,
    steps: Sequence[Step] = STEPS,
    patience: float = PATIENCE_SECONDS,
) -> int:
    """Play `steps` in a new session through the gateway at `url`, check every promise, and return the exit code.

    Raises:
        DemoError: The session could not be started.
    """
    findings = Findings()
    (environment.workspace / "promises.md").write_text(PROMISES_TEXT)
    async with GatewayClient(url) as gateway:
        try:
            await gateway.start(session_id, title="The demo")
        except GatewayError as error:
            raise DemoError(f"No session could be started: {error}") from error
        observer = Observer(gateway, session_id, patience=patience, on_text=report.partial_answer)
        scenario = Scenario(environment, gateway, observer, report, session_id)
        try:
            async with observer.watch():
                for step in steps:
                    await step(scenario)
        except (NotObservedError, GatewayError) as error:
            findings.broken.append(str(error))
        except DemoError as error:
            findings.failures.append(str(error))
        await _check(scenario, findings)
    findings.failures += environment.dead_processes()
    counts = f"{len(PROMISES)} promises, {len(scenario.prompts)} prompts"
    report.conclusion(
        findings.broken, findings.failures, f"{counts}: nothing lost, nothing twice, everything in order."
    )
    return findings.exit_code


async def _run(*, keep: bool, steps: Sequence[Step]) -> int:
    report = Report()
    report.text(
        "Turnkeeper's demo: a session, and everything that can happen to it, in about 20 s.",
        "It is offline and has a stack of its own; nothing of yours is read or touched.",
    )
    with tempfile.TemporaryDirectory(prefix="turnkeeper-demo-") as folder:
        try:
            report.step("Everything starts")
            async with demo_environment(Path(folder)) as environment:
                server = environment.server
                report.event(f"Temporal server, process {server.pid}, at {server.address}")
                await environment.start()
                report.event(f"worker, process {environment.worker.pid}")
                report.event(f"gateway, process {environment.gateway.pid}, at {environment.url}")
                code = await run_scenario(environment, report, url=environment.url, steps=steps)
                if keep:
                    await _stay_open(environment, report)
                return code
        finally:
            report.close()


async def _stay_open(environment: DemoEnvironment, report: Report) -> None:
    """Print the links and wait for a Ctrl-C, which here is the end and not a failure."""
    temporal = environment.server.ui_url
    async with GatewayClient(environment.url) as gateway:
        with suppress(GatewayError):  # the gateway may be what failed
            temporal = (await gateway.describe(SESSION)).links.temporal
    report.text(
        "",
        f"  Chat        {environment.url}/?session={SESSION}",
        f"  In here     {command_line('chat', '--url', environment.url, '--session', SESSION)}",
        f"  API docs    {environment.url}/docs",
        f"  Temporal    {temporal}",
        f"  Folder      {environment.folder}",
        "",
        "Ctrl-C stops and removes all of it.",
    )
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


async def _check(scenario: Scenario, findings: Findings) -> None:
    """Add the promises that are broken, and report the numbers; an unreadable transcript proves nothing."""
    try:
        log = await scenario.log()
    except GatewayError as error:
        findings.broken.append(f"The transcript could not be read: {error}")
        return
    findings.broken += broken_promises(log)
    rows = _numbers(scenario, log)
    try:
        history = await scenario.environment.count_history(scenario.session_id)
        rows["attempts repeated after a crash"] = str(history.retries)
        rows["events in Temporal's history"] = str(history.events)
        rows["all of it"] = f"{scenario.report.seconds:.1f} s"
    except DemoError as error:
        findings.failures.append(str(error))
    scenario.report.table(rows.items())


def _numbers(scenario: Scenario, log: SessionLog) -> dict[str, str]:
    first_words = [after for prompt in log.prompts if (after := scenario.first_words_after(prompt.id)) is not None]
    rows = {
        "prompts accepted": str(len(log.prompts)),
        "turns": str(len(log.transcript)),
        "steps of the model": str(sum(len(model_steps_of(turn)) for turn in log.transcript)),
        "tool calls": str(sum(len(calls_of(turn)) for turn in log.transcript)),
    }
    if first_words:
        rows["prompt to first words, median"] = f"{statistics.median(first_words):.2f} s"
    if scenario.answer_seconds:
        rows["prompt to whole answer, median"] = f"{statistics.median(scenario.answer_seconds):.2f} s"
    if scenario.recovery_seconds is not None:
        rows["a worker's kill to the answer's new beginning"] = f"{scenario.recovery_seconds:.2f} s"
    return rows
