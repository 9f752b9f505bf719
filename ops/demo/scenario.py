"""What is played: prompts, a tool, an approval, a queue, and two crashes in the middle of an answer (OPS-3).

Every act sends prompts with ids of their own and waits until the watching client has seen their answers. What was
asked, and the files that were to be written, are kept for the verdict.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.trajectory import ToolCall
from turnkeeper.ops.demo.printed import Telling, last_words
from turnkeeper.ops.demo.record import ApprovedWrite, Asked, FileLook, Record
from turnkeeper.ops.demo.spectator import NotSeenError, Spectator
from turnkeeper.ops.demo.stage import Stage

PROMISES_TEXT = "\n".join(
    [
        "# What a session promises",
        "A prompt that was accepted is never lost: Temporal has it before anybody says yes to it, and keeps it through "
        "every crash of whoever was to answer it.",
        "It is answered once, however many workers die on the way: what was done is in the history, and only what was "
        "under way is done again.",
        "Prompts are answered in the order in which they came, one at a time, and each has exactly one fate that can "
        "be asked for.",
        "Nothing dangerous is done before somebody has said yes to the very arguments that were shown, after a second "
        "or after a day.",
        "Who watches sees the same as who comes later: every turn, without a gap and in its final form, over cut lines "
        "and new gateways.",
        "",
    ]
)
"""The file in the workspace. Its six lines, which the offline model quotes in full, take a while to write."""

PROMISES_QUOTED = "promises.md says:\n\n" + "\n".join(f"> {line}" for line in PROMISES_TEXT.splitlines())
"""The answer to who asks for that file: an answer that was cut off and resumed has to be this, and nothing besides."""

LOGBOOK = "The lamp is lit."

MIDDLE_WORDS = 12
"""An answer of which so many words are there is in its middle: those asked for here have a hundred and more."""


class Story:
    """A session from its first prompt to its last, and what is known of it."""

    def __init__(
        self, stage: Stage, gateway: GatewayClient, spectator: Spectator, telling: Telling, *, session_id: str
    ) -> None:
        """Play on `stage`; prompts go through `gateway`, their answers are seen by `spectator`."""
        self.stage = stage
        self.gateway = gateway
        self.spectator = spectator
        self.telling = telling
        self.session_id = session_id
        self.asked: list[Asked] = []
        self.writes: list[ApprovedWrite] = []
        self.seconds: list[float] = []
        """How long answers took that nothing was done to."""
        self.recovery_seconds: float | None = None
        """From a worker's kill to the first words of the next attempt at the answer it was writing."""
        self._asked_at: dict[str, float] = {}

    async def ask(self, message_id: str, text: str, *, answer: str | None = None) -> None:
        """Send a prompt, to which `answer` is the only right one, and say so. Raises `GatewayError`."""
        self._asked_at[message_id] = asyncio.get_running_loop().time()
        accepted = await self.gateway.prompt(self.session_id, text, message_id=message_id)
        self.asked.append(Asked(id=message_id, text=text, answer=answer))
        self.telling.asked(text, f"   (number {accepted.position} in the queue)" if accepted.position else "")

    def words_after(self, message_id: str) -> float | None:
        """Return the seconds from a prompt to the first text that was seen of its answer; None: none was seen."""
        seen = self.spectator.first_text_at.get(message_id)
        return None if seen is None else seen - self._asked_at[message_id]

    def answer_after(self, message_id: str) -> float:
        """Return the seconds from a prompt to the end of its turn as the watching client saw it."""
        return self.spectator.ended_at[message_id] - self._asked_at[message_id]

    def look_at(self, path: str) -> FileLook:
        """Look what stands in a file of the workspace."""
        file = self.stage.workspace / path
        if not file.exists():
            return FileLook()
        stat = file.stat()
        return FileLook(content=file.read_text(), version=f"{stat.st_ino}.{stat.st_mtime_ns}")

    async def record(self) -> Record:
        """Ask for the transcript and the fates, look at the files once more, and put all together."""
        pages = [page async for page in self.gateway.transcript(self.session_id)]
        queue = await self.gateway.queue(self.session_id)
        return Record(
            asked=self.asked,
            fates=queue.fates,
            waiting=[prompt.id for prompt in queue.waiting],
            transcript=[turn for page in reversed(pages) for turn in page.messages],
            watched=self.spectator.conversation.turns,
            announced=self.spectator.announced,
            glimpses=self.spectator.glimpses,
            writes=[write.model_copy(update={"at_the_end": self.look_at(write.path)}) for write in self.writes],
        )


Act = Callable[[Story], Awaitable[None]]


async def an_answer_is_read_while_it_is_written(story: Story) -> None:
    """Show that the first words come long before the last ones."""
    story.telling.step("A prompt, and its answer as it is written")
    await story.ask("first", "read promises.md", answer=PROMISES_QUOTED)
    turn = await story.spectator.until_answered("first")
    first_words = story.words_after("first")
    if first_words is None:
        raise NotSeenError("The first answer came, but nothing of it was seen while it was written.")
    words, pieces = len((turn.agent_message or "").split()), story.spectator.pieces["first"]
    _tell_undisturbed(story, turn, f"first words after {first_words:.2f} s, then {words} words in {pieces} pieces")


async def tools_are_used(story: Story) -> None:
    """Show two calls, both in one step of the model."""
    story.telling.step("Tools")
    await story.ask("tools", "list files and tell me the time")
    turn = await story.spectator.until_answered("tools")
    _tell_undisturbed(story, turn, "  ".join(_line_of(call) for call in _calls_of(turn)))


async def a_write_is_approved(story: Story) -> None:
    """Show that nothing is written until the very call that was shown is approved, and then once."""
    story.telling.step("A tool that asks first")
    await story.ask("approval", f'write "{LOGBOOK}" to logbook.txt')
    conversation = story.spectator.conversation
    await story.spectator.until("a call that asks for approval", lambda: len(conversation.awaiting_calls) == 1)
    [call] = conversation.awaiting_calls
    before = story.look_at("logbook.txt")
    story.telling.line(_line_of(call))
    story.telling.line(f"it waits for a yes; logbook.txt is {'there already' if before.content else 'not there yet'}")
    digest = call.approval.args_digest if call.approval else ""
    await story.gateway.decide(story.session_id, call.id, args_digest=digest, decision="approve")
    turn = await story.spectator.until_answered("approval")
    after = story.look_at("logbook.txt")
    story.writes.append(
        ApprovedWrite(
            path="logbook.txt", content=LOGBOOK, call_id=call.id, before=before, after=after, at_the_end=after
        )
    )
    _tell_undisturbed(story, turn, f"approved; logbook.txt now says: {after.content}")


async def prompts_wait_their_turn(story: Story) -> None:
    """Show that prompts which come while another one is answered wait, and are answered in their order."""
    story.telling.step("Two prompts in the queue")
    prompts = {"running": "list files", "second": "what time is it", "third": "what did I ask first?"}
    for message_id, text in prompts.items():
        await story.ask(message_id, text)
    for message_id in prompts:
        _tell_undisturbed(story, await story.spectator.until_answered(message_id))


async def the_worker_is_killed(story: Story) -> None:
    """Kill the worker that writes an answer, and show that another one gives it, once."""
    story.telling.step("The worker is killed in the middle of an answer")
    before = await story.stage.history_of(story.session_id)
    await story.ask("crash", "what have you read?", answer=f"The last file I read was promises.md. {PROMISES_QUOTED}")
    await story.spectator.until_writing("crash", words=MIDDLE_WORDS)
    pid, cut = story.stage.worker.pid, story.spectator.text
    await story.stage.worker.kill()
    killed_at = asyncio.get_running_loop().time()
    story.telling.line(f"worker {pid} killed (SIGKILL) after “{last_words(cut)}”", "red")
    await story.stage.worker.start()
    story.telling.line(f"worker {story.stage.worker.pid} started; Temporal knows already what the other one left")
    story.recovery_seconds = await story.spectator.until_written_again("crash") - killed_at
    story.telling.line(f"the answer begins again, {story.recovery_seconds:.1f} s after the kill")
    turn = await story.spectator.until_answered("crash")
    after = await story.stage.history_of(story.session_id)
    if after.retries == before.retries:
        raise NotSeenError("Temporal noted no second attempt: the worker was not killed in the middle of an answer.")
    whole_after = story.spectator.ended_at["crash"] - killed_at
    _tell(story, turn, f"one answer, {whole_after:.1f} s after the kill, by a second attempt")


async def the_gateway_is_killed(story: Story) -> None:
    """Kill the gateway that tells of an answer, and show that the watching client goes on where it was."""
    story.telling.step("The gateway is killed in the middle of an answer")
    losses = len(story.spectator.losses)
    await story.ask("cut", "read promises.md", answer=PROMISES_QUOTED)
    await story.spectator.until_writing("cut", words=MIDDLE_WORDS)
    pid, cursor = story.stage.gateway.pid, story.spectator.conversation.cursor
    await story.stage.gateway.kill()
    story.telling.line(f"gateway {pid} killed (SIGKILL) after “{last_words(story.spectator.text)}”", "red")
    await story.stage.gateway.start()
    await story.stage.ready()
    place = f"{cursor.since_revision}.{cursor.last_seen_message_id}"
    story.telling.line(f"gateway {story.stage.gateway.pid} answers; the client asks for what came after event {place}")
    turn = await story.spectator.until_answered("cut")
    if len(story.spectator.losses) == losses:
        raise NotSeenError("The watching client was not cut off: its gateway was not the one that was killed.")
    _tell(story, turn, f"{len(story.spectator.conversation.turns)} turns held, no gap, nothing twice")


ACTS: Sequence[Act] = (
    an_answer_is_read_while_it_is_written,
    tools_are_used,
    a_write_is_approved,
    prompts_wait_their_turn,
    the_worker_is_killed,
    the_gateway_is_killed,
)


def _tell_undisturbed(story: Story, turn: ConversationMessage, remark: str = "") -> None:
    story.seconds.append(story.answer_after(turn.id))
    _tell(story, turn, remark)


def _tell(story: Story, turn: ConversationMessage, remark: str) -> None:
    story.telling.answered(turn.agent_message or turn.error or "", remark)


def _calls_of(turn: ConversationMessage) -> list[ToolCall]:
    steps = turn.reasoning_trajectory.model_steps if turn.reasoning_trajectory else []
    return [call for step in steps for call in step.tool_calls]


def _line_of(call: ToolCall) -> str:
    """Write a call as a line.

    >>> from turnkeeper.models.transcript.trajectory import ToolResult
    >>> _line_of(ToolCall(id="1.1.0", name="now", args={}, result=ToolResult(outcome="12:00", duration_ms=3)))
    'now() ok, 3 ms'
    """
    args = ", ".join(f"{name}={value!r}" for name, value in call.args.items()) if isinstance(call.args, dict) else "…"
    result = f" {call.result.status}, {call.result.duration_ms} ms" if call.result else ""
    return f"{call.name}({args}){result}"
