"""What is played: prompts, a tool, an approval, a queue, and two crashes in the middle of an answer (OPS-3).

Every step sends prompts with ids of their own and waits until the watching client has seen their answers. The prompts,
and the files that were to be written, are kept to be checked.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.trajectory import ToolCall
from turnkeeper.ops.demo.environment import DemoEnvironment
from turnkeeper.ops.demo.log import ApprovedWrite, FileState, SentPrompt, SessionLog, calls_of
from turnkeeper.ops.demo.observer import NotObservedError, Observer
from turnkeeper.ops.demo.report import Report, last_words

PROMISES_TEXT = """\
# What a session promises
A prompt that was accepted is never lost: Temporal has it before anybody says yes to it, and keeps it through every \
crash of whoever was to answer it.
It is answered once, however many workers die on the way: what was done is in the history, and only what was under way \
is done again.
Prompts are answered in the order in which they came, one at a time, and each has exactly one fate that can be \
asked for.
Nothing dangerous is done before somebody has said yes to the very arguments that were shown, after a second or after \
a day.
Who watches sees the same as who comes later: every turn, without a gap and in its final form, over cut lines and new \
gateways.
"""
"""The file in the workspace. Its six lines, which the offline model quotes in full, take a while to write."""

PROMISES_QUOTED = "promises.md says:\n\n" + "\n".join(f"> {line}" for line in PROMISES_TEXT.splitlines())
"""The answer to "read promises.md": one that was cut off and resumed has to be this, and nothing besides."""

LOGBOOK = "The lamp is lit."

MIDDLE_WORDS = 12
"""An answer with this many words is in its middle: those to the prompts here have a hundred and more."""


@dataclass
class Scenario:
    """A session from its first prompt to its last: prompts go through `gateway`, `observer` sees their answers."""

    environment: DemoEnvironment
    gateway: GatewayClient
    observer: Observer
    report: Report
    session_id: str
    prompts: list[SentPrompt] = field(default_factory=list)
    sent_at: dict[str, float] = field(default_factory=dict)
    writes: list[ApprovedWrite] = field(default_factory=list)
    answer_seconds: list[float] = field(default_factory=list)
    """How long undisturbed answers took."""
    recovery_seconds: float | None = None
    """From a worker's kill to the first words of the next attempt at the answer it was writing."""

    async def send(self, message_id: str, text: str, *, answer: str | None = None) -> None:
        """Send a prompt, to which `answer` is the only right one. Raises `GatewayError`."""
        self.sent_at[message_id] = asyncio.get_running_loop().time()
        receipt = await self.gateway.prompt(self.session_id, text, message_id=message_id)
        self.prompts.append(SentPrompt(id=message_id, text=text, answer=answer))
        place = f"   (number {receipt.position} in the queue)" if receipt.position else ""
        self.report.event(f"> {text}{place}", "cyan")

    async def until_answered(self, message_id: str) -> ConversationMessage:
        """Return the turn of an undisturbed prompt once it has ended. Raises `NotObservedError`."""
        turn = await self.observer.until_answered(message_id)
        self.answer_seconds.append(self.observer.ended_at[message_id] - self.sent_at[message_id])
        return turn

    def first_words_after(self, message_id: str) -> float | None:
        """Return the seconds from a prompt to the first text that was seen of its answer; None: none was seen."""
        seen = self.observer.first_text_at.get(message_id)
        return min(seen.values()) - self.sent_at[message_id] if seen else None

    def report_answer(self, turn: ConversationMessage, remark: str = "") -> None:
        """Print what came of a prompt."""
        self.report.answer(turn.agent_message or turn.error or "", remark)

    def file_state(self, path: str) -> FileState:
        """Look at a file of the workspace."""
        file = self.environment.workspace / path
        if not file.exists():
            return FileState()
        stat = file.stat()
        return FileState(content=file.read_text(), version=f"{stat.st_ino}.{stat.st_mtime_ns}")

    async def log(self) -> SessionLog:
        """Ask for the transcript and the fates, and look at the files once more. Raises `GatewayError`."""
        pages = [page async for page in self.gateway.transcript(self.session_id)]
        queue = await self.gateway.queue(self.session_id)
        return SessionLog(
            prompts=self.prompts,
            fates=queue.fates,
            waiting=[prompt.id for prompt in queue.waiting],
            transcript=[turn for page in reversed(pages) for turn in page.messages],
            client_turns=self.observer.conversation.turns,
            new_turn_ids=self.observer.new_turn_ids,
            partial_texts=list(self.observer.partial_texts.values()),
            writes=[write.model_copy(update={"at_the_end": self.file_state(write.path)}) for write in self.writes],
        )


Step = Callable[[Scenario], Awaitable[None]]


async def an_answer_is_read_while_it_is_written(scenario: Scenario) -> None:
    """Show that the first words come long before the last ones."""
    scenario.report.step("A prompt, and its answer as it is written")
    await scenario.send("first", "read promises.md", answer=PROMISES_QUOTED)
    turn = await scenario.until_answered("first")
    first_words = scenario.first_words_after("first")
    if first_words is None:
        raise NotObservedError("The first answer came, but nothing of it was seen while it was written.")
    words, pieces = len((turn.agent_message or "").split()), scenario.observer.text_counts["first"]
    scenario.report_answer(turn, f"first words after {first_words:.2f} s, then {words} words in {pieces} pieces")


async def tools_are_used(scenario: Scenario) -> None:
    """Show two calls, both in one step of the model."""
    scenario.report.step("Tools")
    await scenario.send("tools", "list files and tell me the time")
    turn = await scenario.until_answered("tools")
    scenario.report_answer(turn, "  ".join(_line_of(call) for call in calls_of(turn)))


async def a_write_is_approved(scenario: Scenario) -> None:
    """Show that nothing is written until the very call that was shown is approved, and then once."""
    scenario.report.step("A tool that asks first")
    await scenario.send("approval", f'write "{LOGBOOK}" to logbook.txt')
    conversation = scenario.observer.conversation
    await scenario.observer.until("a call that asks for approval", lambda: len(conversation.awaiting_calls) == 1)
    [call] = conversation.awaiting_calls
    before = scenario.file_state("logbook.txt")
    scenario.report.event(_line_of(call))
    where = "there already" if before.content else "not there yet"
    scenario.report.event(f"it waits for a yes; logbook.txt is {where}")
    digest = call.approval.args_digest if call.approval else ""
    await scenario.gateway.decide(scenario.session_id, call.id, args_digest=digest, decision="approve")
    turn = await scenario.until_answered("approval")
    after = scenario.file_state("logbook.txt")
    write = ApprovedWrite(
        path="logbook.txt", content=LOGBOOK, call_id=call.id, before=before, after=after, at_the_end=after
    )
    scenario.writes.append(write)
    scenario.report_answer(turn, f"approved; logbook.txt now says: {after.content}")


async def prompts_wait_their_turn(scenario: Scenario) -> None:
    """Show that prompts which come while another one is answered wait, and are answered in their order."""
    scenario.report.step("Two prompts in the queue")
    prompts = {"running": "list files", "second": "what time is it", "third": "what did I ask first?"}
    for message_id, text in prompts.items():
        await scenario.send(message_id, text)
    for message_id in prompts:
        scenario.report_answer(await scenario.until_answered(message_id))


async def the_worker_is_killed(scenario: Scenario) -> None:
    """Kill the worker that writes an answer, and show that another one gives it, once."""
    scenario.report.step("The worker is killed in the middle of an answer")
    observer, worker = scenario.observer, scenario.environment.worker
    before = await scenario.environment.count_history(scenario.session_id)
    await scenario.send(
        "crash", "what have you read?", answer=f"The last file I read was promises.md. {PROMISES_QUOTED}"
    )
    await observer.until_writing("crash", words=MIDDLE_WORDS)
    pid, text = worker.pid, observer.text
    await worker.kill()
    killed_at = asyncio.get_running_loop().time()
    scenario.report.event(f"worker {pid} killed (SIGKILL) after “{last_words(text)}”", "red")
    await worker.start()
    scenario.report.event(f"worker {worker.pid} started; Temporal knows already what the other one left")
    scenario.recovery_seconds = await observer.until_written_again("crash") - killed_at
    scenario.report.event(f"the answer begins again, {scenario.recovery_seconds:.1f} s after the kill")
    turn = await observer.until_answered("crash")
    after = await scenario.environment.count_history(scenario.session_id)
    if after.retries == before.retries:
        raise NotObservedError(
            "Temporal noted no second attempt: the worker was not killed in the middle of an answer."
        )
    seconds = observer.ended_at["crash"] - killed_at
    scenario.report_answer(turn, f"one answer, {seconds:.1f} s after the kill, by a second attempt")


async def the_gateway_is_killed(scenario: Scenario) -> None:
    """Kill the gateway that streams an answer, and show that the watching client goes on where it was."""
    scenario.report.step("The gateway is killed in the middle of an answer")
    observer, gateway = scenario.observer, scenario.environment.gateway
    losses = len(observer.losses)
    await scenario.send("cut", "read promises.md", answer=PROMISES_QUOTED)
    await observer.until_writing("cut", words=MIDDLE_WORDS)
    pid, cursor = gateway.pid, observer.conversation.cursor
    await gateway.kill()
    scenario.report.event(f"gateway {pid} killed (SIGKILL) after “{last_words(observer.text)}”", "red")
    await gateway.start()
    await scenario.environment.until_ready()
    place = f"{cursor.since_revision}.{cursor.last_seen_message_id}"
    scenario.report.event(f"gateway {gateway.pid} answers; the client asks for what came after event {place}")
    turn = await observer.until_answered("cut")
    if len(observer.losses) == losses:
        raise NotObservedError("The watching client was not cut off: its gateway was not the one that was killed.")
    scenario.report_answer(turn, f"{len(observer.conversation.turns)} turns held, no gap, nothing twice")


STEPS: Sequence[Step] = (
    an_answer_is_read_while_it_is_written,
    tools_are_used,
    a_write_is_approved,
    prompts_wait_their_turn,
    the_worker_is_killed,
    the_gateway_is_killed,
)


def _line_of(call: ToolCall) -> str:
    """Write a call as a line.

    >>> from turnkeeper.models.transcript.trajectory import ToolResult
    >>> _line_of(ToolCall(id="1.1.0", name="now", args={}, result=ToolResult(outcome="12:00", duration_ms=3)))
    'now() ok, 3 ms'
    """
    args = ", ".join(f"{name}={value!r}" for name, value in call.args.items()) if isinstance(call.args, dict) else "…"
    result = f" {call.result.status}, {call.result.duration_ms} ms" if call.result else ""
    return f"{call.name}({args}){result}"
