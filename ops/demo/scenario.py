"""The demo's steps: prompts, tools, an approval, a task, a queue, and two crashes in the middle of an answer (OPS-3).

Each step sends prompts and waits until the observer has seen their answers. Like the chat page, the observer only
follows the event stream; in the end, its conversation is compared with the transcript. The prompts and the files that
tools should write are recorded for the check.

**Processes**: the demo's own server, worker and gateway. They use free ports and one folder. They read none of the
user's settings or keys, and do not touch another stack.

    turnkeeper.toml     the settings of worker and gateway
    temporal.toml       empty, to replace the user's, which may name another server
    workspace/          the tools' workspace
    state/              the server's database, the archive, the logs
"""

import asyncio
import os
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from temporalio.client import Client

from turnkeeper.clients.python.conversation import (
    ConnectionLostEvent,
    Conversation,
    Event,
    PartialEvent,
    QueueEvent,
    UpdateEvent,
)
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.clients.python.request_sender import GatewayError
from turnkeeper.clients.terminal.command_options import Gateway
from turnkeeper.models.command_line import command_line
from turnkeeper.models.errors import TurnkeeperError
from turnkeeper.models.settings.settings import CONFIG_VARIABLE
from turnkeeper.models.transcript.conversation import ConversationMessage, ToolCall
from turnkeeper.ops.demo.report import (
    PROMISES,
    AcceptedPrompt,
    ApprovedWrite,
    FileState,
    Report,
    SessionLog,
    broken_promises,
    calls_of,
)
from turnkeeper.ops.local.dead_worker import fail_activities
from turnkeeper.ops.local.dev_server import DevServer
from turnkeeper.ops.local.processes import LOOPBACK, Program, gateway_environment, reserved_port
from turnkeeper.ops.local.supervisor import READY_SECONDS, own_command, run_until_signalled
from turnkeeper.ops.local.worker_process import WorkerProgram
from turnkeeper.stores.temporal.endpoint import WEB_UI_PATH
from turnkeeper.stores.temporal.payload_converter import DATA_CONVERTER

WORDS_PER_SECOND = 75
"""Slow enough to read along, and to be interrupted."""

STOP_SECONDS = 6.0
"""More than worker and gateway give to running requests."""

HIDDEN_PREFIXES = ("TURNKEEPER_", "TEMPORAL_", "ANTHROPIC_", "OPENAI_")
"""Variables that would change the stack or call a vendor."""


class DemoError(TurnkeeperError):
    """The demo cannot run; the message is a sentence that says why."""


class DemoEnvironment:
    """The demo's processes. Use `demo_environment` to get one."""

    def __init__(self, folder: Path, *, port: int) -> None:
        """`folder` has the files above; the gateway listens on `port`."""
        self.folder = folder = folder.resolve()
        self.workspace = folder / "workspace"
        self._address = Gateway(host=LOOPBACK, port=port)
        self.url = self._address.url
        env = {name: value for name, value in os.environ.items() if not name.upper().startswith(HIDDEN_PREFIXES)}
        env |= {CONFIG_VARIABLE: f"{folder}/turnkeeper.toml", "TEMPORAL_CONFIG_FILE": f"{folder}/temporal.toml"}
        logs = folder / "state" / "logs"
        self.server = DevServer(folder / "state")
        self.worker = WorkerProgram(
            own_command("worker"),
            fail=partial(fail_activities, self._connect),
            log=logs / "worker.log",
            env=env,
            folder=folder,
        )
        self.gateway = Program(own_command("api"), log=logs / "api.log", env=gateway_environment(env), folder=folder)

    async def start(self) -> None:
        """Start worker and gateway, and wait until they are ready for prompts. Raises `DemoError`."""
        await self.worker.start()
        await self.gateway.start()
        deadline = asyncio.get_running_loop().time() + READY_SECONDS
        while not await self._address.has_worker():
            for name, program in (("worker", self.worker), ("gateway", self.gateway)):
                if program.pid is None:
                    raise DemoError(f"The {name} stopped while starting: {program.last_output()}")
            if asyncio.get_running_loop().time() > deadline:
                raise DemoError(f"Worker and gateway are not ready after {READY_SECONDS:.0f} s.")
            await asyncio.sleep(0.05)

    def dead_processes(self) -> list[str]:
        """Return one sentence for each process that is not running."""
        pids = {"Temporal server": self.server.pid, "worker": self.worker.pid, "gateway": self.gateway.pid}
        return [f"The {name} stopped during the demo." for name, pid in pids.items() if pid is None]

    async def _connect(self) -> Client:
        return await Client.connect(self.server.address, data_converter=DATA_CONVERTER)


@asynccontextmanager
async def demo_environment(folder: Path) -> AsyncIterator[DemoEnvironment]:
    """Run the server in the empty `folder` inside the block, then stop all processes.

    Raises:
        DevServerError: The server does not start.
    """
    async with AsyncExitStack() as running:
        port = running.enter_context(reserved_port())  # stays reserved while the gateway is dead
        environment = DemoEnvironment(folder, port=port)
        environment.workspace.mkdir()
        (environment.folder / "temporal.toml").touch()
        (environment.folder / "turnkeeper.toml").write_text(
            f'state_dir = "{environment.folder}/state"\n'
            f'workspace_root = "{environment.workspace}"\n'
            f"api_port = {port}\n"
            'model = "offline:"\n'
            f"offline_words_per_second = {WORDS_PER_SECOND}\n"
            "shutdown_grace = 1\n"
        )
        await running.enter_async_context(environment.server)
        running.push_async_callback(environment.worker.stop, seconds=STOP_SECONDS)
        running.push_async_callback(environment.gateway.stop, seconds=STOP_SECONDS)
        yield environment


Result = TypeVar("Result")


class NotObservedError(TurnkeeperError):
    """An expected event did not arrive in time; the message is a sentence that names it."""


class Observer:
    """Watches one session through a gateway."""

    def __init__(self, events: AsyncIterator[Event], *, patience: float, on_text: Callable[[str], None]) -> None:
        """`patience`: the timeout of every wait, in seconds; `on_text` receives an answer's text as it grows."""
        self.conversation = Conversation()
        self.new_turn_ids: list[str] = []
        """The ids of new turns since the last reset."""
        self.partial_texts: dict[tuple[str, int], str] = {}
        """The newest partial text of each step, by turn and step."""
        self.attempts: dict[str, set[int]] = defaultdict(set)
        """By turn: the attempts with partial output."""
        self.losses = 0
        """How often the connection was lost."""
        self._events = events
        self._patience = patience
        self._on_text = on_text

    @property
    def text(self) -> str:
        """The current answer as far as it is written."""
        return "".join(part.text for part in self.conversation.partial_parts if part.kind == "respond")

    async def until_answered(self, message_id: str) -> ConversationMessage:
        """Return the turn of a prompt once it has ended. Raises as `until` does."""

        def ended_turn() -> ConversationMessage | None:
            turn = self.conversation.find(message_id)
            return turn if turn and turn.is_complete else None

        return await self.until(f"an answer to prompt {message_id!r}", ended_turn)

    async def until_writing(self, message_id: str, *, words: int) -> None:
        """Wait until a turn's answer has `words` words and is still incomplete. Raises as `until` does."""

        def is_writing() -> bool:
            turn = self.conversation.running_turn
            return turn is not None and turn.id == message_id and len(self.text.split()) >= words

        await self.until(f"the first words of the answer to prompt {message_id!r}", is_writing)

    async def until(self, description: str, find: Callable[[], Result | None]) -> Result:
        """Read events until `find` returns something true, and return that.

        Raises:
            NotObservedError: That took longer than `patience`, or the stream ended first.
            GatewayError: The stream failed.
        """
        try:
            async with asyncio.timeout(self._patience):
                while not (result := find()):
                    self._apply(await anext(self._events))
                return result
        except StopAsyncIteration as error:
            raise NotObservedError("The event stream ended before the session.") from error
        except TimeoutError as error:
            message = f"The client did not see {description} within {self._patience:g} s."
            raise NotObservedError(message) from error

    def _apply(self, event: Event) -> None:
        match event:
            case UpdateEvent(update=update):
                self.conversation.apply(update)
                if update.reset:
                    self.new_turn_ids = []
                self.new_turn_ids += [turn.id for turn in update.new_messages]
            case QueueEvent(waiting=waiting):
                self.conversation.apply_queue(waiting)
            case PartialEvent(partial=growth):
                self.conversation.apply_partial(growth)
                if self.conversation.partial_parts:
                    self.attempts[growth.message_id].add(growth.attempt)
                if self.text:
                    self.partial_texts[growth.message_id, growth.step] = self.text
                    self._on_text(self.text)
            case ConnectionLostEvent():
                self.losses += 1


PROMISES_TEXT = """\
# What a session promises
An accepted prompt is never lost: Temporal stores it before the gateway accepts it, and keeps it through every crash \
of a worker, a gateway or the server itself.
It is answered exactly once, no matter how many workers die on the way: finished steps are in the history, and only \
the running step is repeated.
Prompts are answered one at a time, in the order in which they were accepted, and each has exactly one fate that \
you can look up.
A dangerous tool runs only after a person has approved exactly the arguments that were shown, whether that takes a \
second or a day.
A client that watches sees the same as one that reads the transcript later: every turn in its final form, without a \
gap, even after lost connections.
"""
"""A file in the workspace. The offline model quotes its six lines in full, which takes a while."""

PROMISES_QUOTED = "promises.md says:\n\n" + "\n".join(f"> {line}" for line in PROMISES_TEXT.splitlines())
"""The exact answer to "read promises.md", also after an interruption."""

LOGBOOK = "The lamp is lit."

MIDDLE_WORDS = 12
"""An answer with this many words is unfinished: the answers here have a hundred words or more."""


@dataclass
class Scenario:
    """A session under test: prompts go through `gateway`, and `observer` sees the answers."""

    environment: DemoEnvironment
    gateway: GatewayClient
    observer: Observer
    report: Report
    session_id: str
    prompts: list[AcceptedPrompt] = field(default_factory=list)
    writes: list[ApprovedWrite] = field(default_factory=list)
    numbers: dict[str, str] = field(default_factory=dict)
    """Measurements for the table at the end."""

    async def send(self, message_id: str, text: str, *, answer: str | None = None) -> None:
        """Send a prompt; `answer` is its exact answer, if known. Raises `GatewayError`."""
        await self.gateway.prompt(self.session_id, text, message_id=message_id)
        self.prompts.append(AcceptedPrompt(id=message_id, text=text, answer=answer))
        self.report.event(f"> {text}", "cyan")

    async def kill_during_answer(self, message_id: str, name: str, program: Program) -> float:
        """Kill a process in the middle of an answer and restart it; return the report's seconds at the kill."""
        await self.observer.until_writing(message_id, words=MIDDLE_WORDS)
        pid = program.pid
        await program.kill()
        killed_at = self.report.seconds
        self.report.event(f"{name} {pid} killed (SIGKILL) after {len(self.observer.text.split())} words", "red")
        await program.start()
        self.report.event(f"{name} {program.pid} started")
        return killed_at

    def file_state(self, path: str) -> FileState:
        """Return the current state of a file in the workspace."""
        file = self.environment.workspace / path
        if not file.exists():
            return FileState()
        stat = file.stat()
        return FileState(content=file.read_text(), version=f"{stat.st_ino}.{stat.st_mtime_ns}")

    async def log(self) -> SessionLog:
        """Read the transcript, the fates and the files. Raises `GatewayError`."""
        page = await self.gateway.page(self.session_id)
        queue = await self.gateway.queue(self.session_id)
        return SessionLog(
            prompts=self.prompts,
            fates=queue.fates,
            waiting=[prompt.id for prompt in queue.waiting],
            transcript=page.messages,
            client_turns=self.observer.conversation.turns,
            new_turn_ids=self.observer.new_turn_ids,
            partial_texts=self.observer.partial_texts,
            writes=[write.model_copy(update={"at_the_end": self.file_state(write.path)}) for write in self.writes],
        )


Step = Callable[[Scenario], Awaitable[None]]


async def stream_an_answer(scenario: Scenario) -> None:
    """Show that the first words of an answer arrive long before the last ones."""
    report, observer = scenario.report, scenario.observer
    report.step("Stream an answer")
    sent_at = report.seconds
    await scenario.send("first", "read promises.md", answer=PROMISES_QUOTED)
    await observer.until_writing("first", words=1)
    seconds = f"{report.seconds - sent_at:.2f} s"
    scenario.numbers["prompt to first words"] = seconds
    report.answer(await observer.until_answered("first"), f"first words after {seconds}")


async def use_tools(scenario: Scenario) -> None:
    """Show two tool calls in one step of the model."""
    scenario.report.step("Call two tools")
    await scenario.send("tools", "list files and tell me the time")
    turn = await scenario.observer.until_answered("tools")
    scenario.report.answer(turn, "  ".join(_line_of(call) for call in calls_of(turn)))


async def approve_a_write(scenario: Scenario) -> None:
    """Show that a file is written only after this very call is approved, and only once."""
    report, observer = scenario.report, scenario.observer
    report.step("Approve a tool call")
    await scenario.send("approval", f'write "{LOGBOOK}" to logbook.txt')
    [call] = await observer.until("a call that asks for approval", lambda: observer.conversation.awaiting_calls)
    before = scenario.file_state("logbook.txt")
    report.event(_line_of(call))
    state = "does not exist yet" if before.content is None else "already exists"
    report.event(f"it waits for approval; logbook.txt {state}")
    digest = call.approval.args_digest if call.approval else ""
    await scenario.gateway.decide(scenario.session_id, call.id, args_digest=digest, decision="approve")
    turn = await observer.until_answered("approval")
    after = scenario.file_state("logbook.txt")
    write = ApprovedWrite(
        path="logbook.txt", content=LOGBOOK, call_id=call.id, before=before, after=after, at_the_end=after
    )
    scenario.writes.append(write)
    report.answer(turn, f"approved; logbook.txt now says: {after.content}")


async def delegate_a_task(scenario: Scenario) -> None:
    """Show that an agent gives a task to another one, which is a session of its own, and answers with its answer."""
    report = scenario.report
    report.step("Give a task to another agent")
    files = {path.name: path.stat().st_size for path in scenario.environment.workspace.iterdir()}
    longest = max(files, key=lambda name: files[name])
    answer = f"Another agent did it and answered:\n\n> The longest file is {longest}: it has {files[longest]:,} bytes."
    await scenario.send("delegate", "delegate: find the longest file in this workspace", answer=answer)
    turn = await scenario.observer.until_answered("delegate")
    report.event("  ".join(_line_of(call) for call in calls_of(turn)))
    tasks = (await scenario.gateway.page(scenario.session_id)).session.tasks
    if [task.status for task in tasks] != ["completed"]:
        raise NotObservedError(f"Expected one completed task, not {[task.status for task in tasks]}.")
    report.answer(turn, f"the task is a session of its own: {tasks[0].task_id}")


async def queue_prompts(scenario: Scenario) -> None:
    """Show that prompts sent during a turn are queued, and answered in order."""
    scenario.report.step("Queue two prompts")
    prompts = {"running": "list files", "second": "what time is it", "third": "what did I ask first?"}
    for message_id, text in prompts.items():
        await scenario.send(message_id, text)
    for message_id in prompts:
        scenario.report.answer(await scenario.observer.until_answered(message_id))


async def kill_the_worker(scenario: Scenario) -> None:
    """Kill the worker during an answer, and show that another worker completes it, once."""
    report, observer = scenario.report, scenario.observer
    report.step("Kill the worker in the middle of an answer")
    answer = f"The last file I read was promises.md. {PROMISES_QUOTED}"
    await scenario.send("crash", "what have you read?", answer=answer)
    killed_at = await scenario.kill_during_answer("crash", "worker", scenario.environment.worker)
    await observer.until("a second attempt at the answer", lambda: len(observer.attempts["crash"]) > 1)
    seconds = f"{report.seconds - killed_at:.2f} s"
    scenario.numbers["worker killed to answer restarted"] = seconds
    report.event(f"the answer starts again, {seconds} after the kill")
    report.answer(await observer.until_answered("crash"), "one answer, from the second attempt")


async def kill_the_gateway(scenario: Scenario) -> None:
    """Kill the gateway during an answer, and show that its client resumes without a gap."""
    report, observer = scenario.report, scenario.observer
    report.step("Kill the gateway in the middle of an answer")
    losses = observer.losses
    await scenario.send("cut", "read promises.md", answer=PROMISES_QUOTED)
    await scenario.kill_during_answer("cut", "gateway", scenario.environment.gateway)
    turn = await observer.until_answered("cut")
    if observer.losses == losses:
        raise NotObservedError("The client's connection was not cut: it used another gateway.")
    report.answer(turn, f"the client has {len(observer.conversation.turns)} turns, no gap, nothing twice")


STEPS: Sequence[Step] = (
    stream_an_answer,
    use_tools,
    approve_a_write,
    delegate_a_task,
    queue_prompts,
    kill_the_worker,
    kill_the_gateway,
)


def _line_of(call: ToolCall) -> str:
    """Return a call as one line of text.

    >>> from turnkeeper.models.transcript.conversation import ToolResult
    >>> _line_of(ToolCall(id="1.1.0", name="now", args={}, result=ToolResult(outcome="12:00", duration_ms=3)))
    'now() ok, 3 ms'
    """
    args = ", ".join(f"{name}={value!r}" for name, value in call.args.items()) if isinstance(call.args, dict) else "…"
    result = f" {call.result.status}, {call.result.duration_ms} ms" if call.result else ""
    return f"{call.name}({args}){result}"


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
