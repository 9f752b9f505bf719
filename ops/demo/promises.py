"""The log of a session, and which promises it breaks, in sentences (SES-2, SES-6, SES-12, AGT-7).

The log is plain data: what was sent, and everything that was seen. Each promise is a pure function that yields what it
finds broken. It knows neither the scenario nor a server.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise

from turnkeeper.models.session.queue.prompts import Fate
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.trajectory import ModelStep, ToolCall, UserStep
from turnkeeper.models.wire import Frozen


class SentPrompt(Frozen):
    """A prompt that was accepted. `answer`: the only right one, word for word; None: it is not known beforehand."""

    id: str
    text: str
    answer: str | None = None


class FileState(Frozen):
    """A file at some time. `content` None: it did not exist. `version` changes with every write, also of the same."""

    content: str | None = None
    version: str | None = None


class ApprovedWrite(Frozen):
    """A file that a tool call was to write once a person had approved it, at three times."""

    path: str
    content: str
    call_id: str
    before: FileState
    """When the approval was asked for."""
    after: FileState
    """When the turn had ended."""
    at_the_end: FileState
    """When everything was over."""


class SessionLog(Frozen):
    """All that is known of a session from outside.

    `prompts` are in the order in which they were accepted. `fates` and `waiting` are the queue's at the end, which has
    the last 200 fates. `transcript` is the full one, `client_turns` what a client held that only followed updates,
    `new_turn_ids` what was new to it, in order, since its last reset, and `partial_texts` the newest text that it
    showed of each model step before the step itself came, by turn and step.
    """

    prompts: list[SentPrompt] = []
    fates: list[Fate] = []
    waiting: list[str] = []
    transcript: list[ConversationMessage] = []
    client_turns: list[ConversationMessage] = []
    new_turn_ids: list[str] = []
    partial_texts: dict[tuple[str, int], str] = {}
    writes: list[ApprovedWrite] = []


def model_steps_of(turn: ConversationMessage) -> list[ModelStep]:
    """Return the turn's steps without what was steered in."""
    return [step for step in turn.steps if isinstance(step, ModelStep)]


def calls_of(turn: ConversationMessage) -> list[ToolCall]:
    """Return the turn's tool calls in their order."""
    return [call for step in model_steps_of(turn) for call in step.tool_calls]


Promise = Callable[[SessionLog], Iterator[str]]


def broken_promises(log: SessionLog) -> list[str]:
    """Return what `log` breaks, a sentence each; empty: every promise is kept.

    >>> broken_promises(SessionLog(prompts=[SentPrompt(id="p1", text="hello")]))
    ["Prompt 'p1' was accepted, and nothing became of it."]
    """
    return [sentence for promise in PROMISES for sentence in promise(log)]


def every_prompt_has_one_fate(log: SessionLog) -> Iterator[str]:
    """Check that nothing accepted is lost, and that nothing waits when all is over (SES-6)."""
    fates = Counter(fate.id for fate in log.fates if fate.fate != "rejected")
    rejected = {fate.id for fate in log.fates if fate.fate == "rejected"}
    turns = {turn.id for turn in log.transcript}
    for prompt in log.prompts:
        count, is_waiting = fates[prompt.id], prompt.id in log.waiting
        if not count and not is_waiting and prompt.id not in turns | rejected:
            yield f"Prompt {prompt.id!r} was accepted, and nothing became of it."
        if count > 1:
            yield f"Prompt {prompt.id!r} has {count} fates."
        if is_waiting:
            yield f"Prompt {prompt.id!r} still waits{' although it has a fate' if count else ''}."


def a_fate_is_what_happened(log: SessionLog) -> Iterator[str]:
    """Check that what started is a turn, what was steered is in one, and what was taken back is in none (SES-7)."""
    turns = {turn.id: turn for turn in log.transcript}
    for fate in log.fates:
        if fate.fate == "started" and fate.id not in turns:
            yield f"Prompt {fate.id!r} was started, and the transcript has no such turn."
        elif fate.fate == "steered":
            turn = turns.get(fate.turn_id or "")
            steps = turn.steps if turn else []
            if fate.id not in [step.message_id for step in steps if isinstance(step, UserStep)]:
                yield f"Prompt {fate.id!r} was steered into turn {fate.turn_id!r}, and is not in it."
        elif fate.fate in ("withdrawn", "discarded") and fate.id in turns:
            yield f"Prompt {fate.id!r} was {fate.fate}, and is a turn all the same."


def every_turn_was_asked_for_once(log: SessionLog) -> Iterator[str]:
    """Check that a prompt is one turn at most, and no turn comes from nowhere or is about something else (SES-6)."""
    texts = {prompt.id: prompt.text for prompt in log.prompts}
    for turn_id, count in Counter(turn.id for turn in log.transcript).items():
        if count > 1:
            yield f"Prompt {turn_id!r} became {count} turns."
        if turn_id not in texts:
            yield f"Turn {turn_id!r} was never asked for."
    for turn in log.transcript:
        if turn.id in texts and turn.user_message != texts[turn.id]:
            yield f"Turn {turn.id!r} is about another text than the prompt had."


def turns_keep_the_order_of_their_prompts(log: SessionLog) -> Iterator[str]:
    """Check that the first in is the first out (SES-6)."""
    places = {prompt.id: place for place, prompt in enumerate(log.prompts)}
    started = [turn.id for turn in log.transcript if turn.id in places]
    for earlier, later in pairwise(started):
        if places[later] < places[earlier]:
            yield f"Prompt {later!r} was sent before {earlier!r}, and started after it."


def every_turn_is_answered(log: SessionLog) -> Iterator[str]:
    """Check that every turn has ended with an answer, and with the whole of it once (SES-2)."""
    answers = {prompt.id: prompt.answer for prompt in log.prompts}
    for turn in log.transcript:
        if not turn.is_complete:
            yield f"Turn {turn.id!r} has not ended."
        elif not turn.agent_message:
            yield f"Turn {turn.id!r} ended without an answer: {turn.error or 'an empty one'}"
        elif answers.get(turn.id) not in (None, turn.agent_message):
            yield f"Turn {turn.id!r} has not the answer that its prompt asks for, whole and once."


def every_call_has_one_result(log: SessionLog) -> Iterator[str]:
    """Check that a tool call is there once, and that an ended turn leaves none open (AGT-7)."""
    for call_id, count in Counter(call.id for turn in log.transcript for call in calls_of(turn)).items():
        if count > 1:
            yield f"Call {call_id!r} is there {count} times."
    for turn in log.transcript:
        if turn.is_complete:
            yield from (f"Call {call.id!r} has no result." for call in calls_of(turn) if call.result is None)


def files_were_written_once(log: SessionLog) -> Iterator[str]:
    """Check that a file is not written before somebody approves it, then once, and never again (AGT-8)."""
    calls = {call.id: call for turn in log.transcript for call in calls_of(turn)}
    for write in log.writes:
        call = calls.get(write.call_id)
        if call is None or call.approval is None or not call.approval.is_given:
            yield f"The transcript knows nothing of an approval of call {write.call_id!r}, which wrote {write.path}."
        if write.before.content is not None:
            yield f"{write.path} was there before the write was approved."
        if write.after.content != write.content:
            yield f"{write.path} should hold {write.content!r}, and holds {write.after.content!r}."
        if write.at_the_end != write.after:
            yield f"{write.path} was written again after its turn had ended."


def the_watching_client_saw_it_all(log: SessionLog) -> Iterator[str]:
    """Check that a client that only follows updates has the transcript, turn by turn (SES-12)."""
    client_turns = {turn.id: turn for turn in log.client_turns}
    transcript = {turn.id: turn for turn in log.transcript}
    for turn_id, turn in transcript.items():
        client_turn = client_turns.get(turn_id)
        if client_turn is None:
            yield f"The watching client was never shown turn {turn_id!r}."
        elif client_turn != turn:
            different = (name for name in type(turn).model_fields if getattr(client_turn, name) != getattr(turn, name))
            yield f"The watching client holds turn {turn_id!r} otherwise than the transcript: {', '.join(different)}."
    for turn_id in client_turns:
        if turn_id not in transcript:
            yield f"The watching client was shown turn {turn_id!r}, which the transcript does not have."
    common = [turn.id for turn in log.client_turns if turn.id in transcript]
    if common != [turn.id for turn in log.transcript if turn.id in client_turns]:
        yield f"The watching client holds the turns in another order, or twice: {', '.join(common)}."


def nothing_was_new_twice(log: SessionLog) -> Iterator[str]:
    """Check that what was new to a client is not new again, however often it comes back (SES-12)."""
    for turn_id, count in Counter(log.new_turn_ids).items():
        if count > 1:
            yield f"Turn {turn_id!r} was told to the watching client as new {count} times."


def partial_text_was_the_beginning(log: SessionLog) -> Iterator[str]:
    """Check that partial text is the beginning of the text that comes (AGT-5)."""
    texts = {
        (turn.id, step.number): step.text
        for turn in log.transcript
        for step in model_steps_of(turn)
        if not step.text_blob
    }
    for (turn_id, step), partial in log.partial_texts.items():
        text = texts.get((turn_id, step))
        if text is not None and not text.startswith(partial):
            yield f"What was shown of turn {turn_id!r} while it was written is not how its answer begins."


PROMISES: tuple[Promise, ...] = (
    every_prompt_has_one_fate,
    a_fate_is_what_happened,
    every_turn_was_asked_for_once,
    turns_keep_the_order_of_their_prompts,
    every_turn_is_answered,
    every_call_has_one_result,
    files_were_written_once,
    the_watching_client_saw_it_all,
    nothing_was_new_twice,
    partial_text_was_the_beginning,
)
