"""The demo's output: numbered steps, each line with the seconds since the start.

On a terminal, the growing answer is shown below the lines. Otherwise the output is plain lines.

**Promises** that a session's log must keep (SES-2, SES-6, SES-12, AGT-7). The log is plain data: the prompts, and
everything that clients saw. Each promise is a pure function that yields a sentence for every violation.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from textwrap import shorten

from rich.console import Console
from rich.live import Live
from rich.text import Text

from turnkeeper.models.session.prompts import Fate
from turnkeeper.models.transcript.conversation import ConversationMessage, ModelStep, ToolCall, UserStep
from turnkeeper.models.wire import Frozen

MAX_CHARS = 88
"""The longest part of an answer that is printed: one line."""

MARGIN = 13
"""The width of the time before each line."""


class Report:
    """Prints the demo's output, line by line."""

    def __init__(self, console: Console | None = None) -> None:
        """Start the clock; `console` is standard output by default."""
        self._console = console or Console(highlight=False)
        self._clock = asyncio.get_running_loop().time
        self._started_at = self._clock()
        self._live: Live | None = None
        self._steps = 0
        self._max_chars = min(MAX_CHARS, max(20, self._console.width - MARGIN - 1))

    @property
    def seconds(self) -> float:
        """The seconds since the start."""
        return self._clock() - self._started_at

    def text(self, *lines: str, style: str = "") -> None:
        """Print lines as they are."""
        for line in lines:
            self._print(Text(line, style=style))

    def step(self, title: str) -> None:
        """Print the heading of the next step."""
        self._steps += 1
        self.text("", f"{self._steps:>2}  {title}", style="bold")

    def event(self, text: str, style: str = "") -> None:
        """Print a line with the time."""
        self._print(Text.assemble((f"    {self.seconds:5.1f} s  ", "dim"), (text, style)))

    def answer(self, turn: ConversationMessage, remark: str = "") -> None:
        """Print the beginning of a turn's answer or error, and a remark."""
        answer = one_line(turn.agent_message or turn.error or "")
        self.event(shorten(answer, self._max_chars, placeholder="…"), "green")
        if remark:
            self.event(remark)

    def partial_answer(self, text: str) -> None:
        """Show the end of a growing answer on a terminal; the next line replaces it."""
        if not self._console.is_interactive:
            return
        if self._live is None:
            self._live = Live(console=self._console, transient=True, auto_refresh=False)
            self._live.start()
        end = one_line(text)[-self._max_chars :]
        self._live.update(Text(f"{'':{MARGIN}}{end}", style="dim green"), refresh=True)

    def conclusion(self, broken: Sequence[str], failures: Sequence[str], success: str) -> None:
        """Print `success`, or the broken promises; after `failures` of the environment they are only unknown."""
        word, style = ("UNKNOWN", "yellow") if failures else ("BROKEN", "bold red")
        self.text("", *(f"{word}  {sentence}" for sentence in broken), style=style)
        self.text(*(f"NOT PLAYED  {sentence}" for sentence in failures), style="bold red")
        if not (broken or failures):
            self.text(f"ok  {success}", style="bold green")

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print(self, line: Text) -> None:
        self.close()
        self._console.print(line, soft_wrap=True)


def one_line(text: str) -> str:
    r"""Return `text` on one line, without Markdown's marks of headings and quotes.

    >>> one_line("one\n\n> two  three")
    'one two three'
    """
    return " ".join(re.sub(r"^[>#\s]+", "", text, flags=re.MULTILINE).split())


class AcceptedPrompt(Frozen):
    """A prompt that was accepted. `answer`: its exact answer; None if it is not known."""

    id: str
    text: str
    answer: str | None = None


class FileState(Frozen):
    """A file at one time. `content` None: it did not exist. `version` changes with every write."""

    content: str | None = None
    version: str | None = None


class ApprovedWrite(Frozen):
    """A file that a tool call writes after its approval, at three times."""

    path: str
    content: str
    call_id: str
    before: FileState
    """When the call asked for approval."""
    after: FileState
    """When the turn had ended."""
    at_the_end: FileState
    """When the scenario had ended."""


class SessionLog(Frozen):
    """Everything that clients know of a session.

    `prompts` are in the order in which they were accepted. `fates` (the last 200) and `waiting` are the final queue's.
    `client_turns` are the turns of a client that only followed updates, `new_turn_ids` those that were new to it since
    its last reset, in order, and `partial_texts` its last partial output of each model step, by turn and step.
    """

    prompts: list[AcceptedPrompt] = []
    fates: list[Fate] = []
    waiting: list[str] = []
    transcript: list[ConversationMessage] = []
    client_turns: list[ConversationMessage] = []
    new_turn_ids: list[str] = []
    partial_texts: dict[tuple[str, int], str] = {}
    writes: list[ApprovedWrite] = []


def model_steps_of(turn: ConversationMessage) -> list[ModelStep]:
    """Return the turn's steps without steering prompts."""
    return [step for step in turn.steps if isinstance(step, ModelStep)]


def calls_of(turn: ConversationMessage) -> list[ToolCall]:
    return [call for step in model_steps_of(turn) for call in step.tool_calls]


Promise = Callable[[SessionLog], Iterator[str]]


def broken_promises(log: SessionLog) -> list[str]:
    """Return a sentence for every violation in `log`; empty if every promise is kept.

    >>> broken_promises(SessionLog(prompts=[AcceptedPrompt(id="p1", text="hello")]))
    ["Prompt 'p1' was accepted and is lost."]
    """
    return [sentence for promise in PROMISES for sentence in promise(log)]


def every_prompt_has_one_fate(log: SessionLog) -> Iterator[str]:
    """Check that no accepted prompt is lost or still queued (SES-6)."""
    fates = Counter(fate.id for fate in log.fates if fate.fate != "rejected")
    rejected = {fate.id for fate in log.fates if fate.fate == "rejected"}
    turns = {turn.id for turn in log.transcript}
    for prompt in log.prompts:
        count, is_waiting = fates[prompt.id], prompt.id in log.waiting
        if not count and not is_waiting and prompt.id not in turns | rejected:
            yield f"Prompt {prompt.id!r} was accepted and is lost."
        if count > 1:
            yield f"Prompt {prompt.id!r} has {count} fates."
        if is_waiting:
            yield f"Prompt {prompt.id!r} is still queued{' although it has a fate' if count else ''}."


def every_fate_is_true(log: SessionLog) -> Iterator[str]:
    """Check that started prompts are turns, steered ones are in a turn, and withdrawn ones in none (SES-7)."""
    turns = {turn.id: turn for turn in log.transcript}
    for fate in log.fates:
        if fate.fate == "started" and fate.id not in turns:
            yield f"Prompt {fate.id!r} was started, but the transcript has no such turn."
        elif fate.fate == "steered":
            turn = turns.get(fate.turn_id or "")
            steps = turn.steps if turn else []
            if fate.id not in [step.message_id for step in steps if isinstance(step, UserStep)]:
                yield f"Prompt {fate.id!r} was steered into turn {fate.turn_id!r}, but is not in it."
        elif fate.fate in ("withdrawn", "discarded") and fate.id in turns:
            yield f"Prompt {fate.id!r} was {fate.fate}, but is in the transcript."


def every_turn_has_one_prompt(log: SessionLog) -> Iterator[str]:
    """Check that a prompt is at most one turn, and that every turn has a prompt with its text (SES-6)."""
    texts = {prompt.id: prompt.text for prompt in log.prompts}
    for turn_id, count in Counter(turn.id for turn in log.transcript).items():
        if count > 1:
            yield f"Prompt {turn_id!r} became {count} turns."
        if turn_id not in texts:
            yield f"Turn {turn_id!r} has no prompt."
    for turn in log.transcript:
        if turn.id in texts and turn.user_message != texts[turn.id]:
            yield f"Turn {turn.id!r} has another text than its prompt."


def turns_keep_the_order_of_their_prompts(log: SessionLog) -> Iterator[str]:
    """Check that prompts start in the order in which they were accepted (SES-6)."""
    places = {prompt.id: place for place, prompt in enumerate(log.prompts)}
    started = [turn.id for turn in log.transcript if turn.id in places]
    for earlier, later in pairwise(started):
        if places[later] < places[earlier]:
            yield f"Prompt {later!r} was sent before {earlier!r}, but started after it."


def every_turn_is_answered(log: SessionLog) -> Iterator[str]:
    """Check that every turn has ended with its whole answer, once (SES-2)."""
    answers = {prompt.id: prompt.answer for prompt in log.prompts}
    for turn in log.transcript:
        if not turn.is_complete:
            yield f"Turn {turn.id!r} has not ended."
        elif not turn.agent_message:
            yield f"Turn {turn.id!r} ended without an answer: {turn.error or 'it is empty'}"
        elif answers.get(turn.id) not in (None, turn.agent_message):
            yield f"Turn {turn.id!r} does not have exactly the expected answer."


def every_call_has_one_result(log: SessionLog) -> Iterator[str]:
    """Check that every tool call occurs once, and has a result once its turn has ended (AGT-7)."""
    for call_id, count in Counter(call.id for turn in log.transcript for call in calls_of(turn)).items():
        if count > 1:
            yield f"Call {call_id!r} occurs {count} times."
    for turn in log.transcript:
        if turn.is_complete:
            yield from (f"Call {call.id!r} has no result." for call in calls_of(turn) if call.result is None)


def files_were_written_once(log: SessionLog) -> Iterator[str]:
    """Check that a file is written only after its approval, and only once (AGT-8)."""
    calls = {call.id: call for turn in log.transcript for call in calls_of(turn)}
    for write in log.writes:
        call = calls.get(write.call_id)
        if call is None or call.approval is None or not call.approval.is_given:
            yield f"The transcript has no approval of call {write.call_id!r}, which wrote {write.path}."
        if write.before.content is not None:
            yield f"{write.path} existed before the write was approved."
        if write.after.content != write.content:
            yield f"{write.path} should contain {write.content!r}, but contains {write.after.content!r}."
        if write.at_the_end != write.after:
            yield f"{write.path} was written again after its turn had ended."


def the_client_received_every_turn(log: SessionLog) -> Iterator[str]:
    """Check that a client that only follows updates has the transcript, turn by turn (SES-12)."""
    client_turns = {turn.id: turn for turn in log.client_turns}
    transcript = {turn.id: turn for turn in log.transcript}
    for turn_id, turn in transcript.items():
        client_turn = client_turns.get(turn_id)
        if client_turn is None:
            yield f"The client never received turn {turn_id!r}."
        elif client_turn != turn:
            different = (name for name in type(turn).model_fields if getattr(client_turn, name) != getattr(turn, name))
            yield f"Turn {turn_id!r} differs between client and transcript: {', '.join(different)}."
    for turn_id in client_turns:
        if turn_id not in transcript:
            yield f"The client received turn {turn_id!r}, which is not in the transcript."
    common = [turn.id for turn in log.client_turns if turn.id in transcript]
    if common != [turn.id for turn in log.transcript if turn.id in client_turns]:
        yield f"The client has the turns in another order, or twice: {', '.join(common)}."


def no_turn_was_new_twice(log: SessionLog) -> Iterator[str]:
    """Check that no turn is new to a client twice, even after reconnects (SES-12)."""
    for turn_id, count in Counter(log.new_turn_ids).items():
        if count > 1:
            yield f"Turn {turn_id!r} was sent as new {count} times."


def partial_text_starts_the_answer(log: SessionLog) -> Iterator[str]:
    """Check that partial output is the start of the final text (AGT-5)."""
    texts = {
        (turn.id, step.number): step.text
        for turn in log.transcript
        for step in model_steps_of(turn)
        if not step.text_blob
    }
    for (turn_id, step), partial in log.partial_texts.items():
        text = texts.get((turn_id, step))
        if text is not None and not text.startswith(partial):
            yield f"The partial output of turn {turn_id!r} is not the start of its answer."


PROMISES: tuple[Promise, ...] = (
    every_prompt_has_one_fate,
    every_fate_is_true,
    every_turn_has_one_prompt,
    turns_keep_the_order_of_their_prompts,
    every_turn_is_answered,
    every_call_has_one_result,
    files_were_written_once,
    the_client_received_every_turn,
    no_turn_was_new_twice,
    partial_text_starts_the_answer,
)
