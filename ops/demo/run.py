"""Runs the demo: sets up an environment in a temporary folder, plays the scenario and checks every promise."""

import asyncio
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, closing, suppress
from pathlib import Path

from turnkeeper.clients.python.errors import GatewayError
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.models.command_line import command_line
from turnkeeper.ops.demo.report import PROMISES, Report, SessionLog, broken_promises, calls_of
from turnkeeper.ops.demo.scenario import (
    PROMISES_TEXT,
    STEPS,
    DemoEnvironment,
    DemoError,
    NotObservedError,
    Observer,
    Scenario,
    Step,
    demo_environment,
)
from turnkeeper.ops.local.supervisor import run_until_signalled
from turnkeeper.stores.temporal.endpoint import WEB_UI_PATH

PASSED, BROKEN, NOT_PLAYED, STOPPED = 0, 1, 2, 130
"""Exit codes: all promises hold; one is broken; the demo could not run; it was stopped."""

SESSION = "demo"

PATIENCE_SECONDS = 40.0
"""Timeout of every wait in the scenario."""


def run_demo(*, keep: bool, steps: Sequence[Step] = STEPS) -> int:
    """Play `steps`, stop and remove everything, and return the exit code.

    `keep`: wait for a Ctrl-C before everything is stopped.

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
    """Play `steps` in a new session through the gateway at `url`, check the promises, and return the exit code.

    Raises:
        DemoError: The session could not be started.
    """
    broken: list[str] = []
    (environment.workspace / "promises.md").write_text(PROMISES_TEXT)
    async with GatewayClient(url) as gateway:
        try:
            await gateway.start(session_id, title="The demo")
        except GatewayError as error:
            raise DemoError(f"No session could be started: {error}") from error
        async with aclosing(gateway.events(session_id)) as events:
            observer = Observer(events, patience=patience, on_text=report.partial_answer)
            scenario = Scenario(environment, gateway, observer, report, session_id)
            try:
                await observer.until("the session", lambda: observer.conversation.status)
                for step in steps:
                    await step(scenario)
            except (NotObservedError, GatewayError) as error:
                broken.append(str(error))
        try:
            log = await scenario.log()
        except GatewayError as error:
            broken.append(f"The transcript could not be read: {error}")
        else:
            broken += broken_promises(log)
            report.text("", *_table(log, scenario.numbers, seconds=report.seconds))
    failures = environment.dead_processes()
    counts = f"{len(PROMISES)} promises, {len(scenario.prompts)} prompts"
    report.conclusion(broken, failures, f"{counts}: nothing lost, nothing twice, everything in order.")
    if failures:
        return NOT_PLAYED
    return BROKEN if broken else PASSED


def _table(log: SessionLog, numbers: Mapping[str, str], *, seconds: float) -> Iterator[str]:
    rows = {
        "prompts accepted": len(log.prompts),
        "turns": len(log.transcript),
        "tool calls": sum(len(calls_of(turn)) for turn in log.transcript),
        **numbers,
        "total time": f"{seconds:.1f} s",
    }
    return (f"    {name:<46}{value:>9}" for name, value in rows.items())


async def _run(*, keep: bool, steps: Sequence[Step]) -> int:
    with tempfile.TemporaryDirectory(prefix="turnkeeper-demo-") as folder, closing(Report()) as report:
        report.text(
            "Turnkeeper's demo: a session with tools, an approval, a queue and two crashes, in about 20 s.",
            "It runs offline on its own stack and touches none of your files or sessions.",
        )
        report.step("Start the stack")
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


async def _stay_open(environment: DemoEnvironment, report: Report) -> None:
    """Print the links and wait for a Ctrl-C, which is the regular end here."""
    report.text(
        "",
        f"  Chat        {environment.url}/?session={SESSION}",
        f"  Terminal    {command_line('chat', '--url', environment.url, '--session', SESSION)}",
        f"  API docs    {environment.url}/docs",
        f"  Temporal    {environment.url}{WEB_UI_PATH}",
        f"  Folder      {environment.folder}",
        "",
        "Ctrl-C stops and removes everything.",
    )
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
