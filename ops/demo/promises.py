"""Which promises a record breaks, in words: an empty verdict is the proof (SES-2, SES-6, SES-12, AGT-7, AGT-8).

Pure, and of nobody's opinion: it knows neither the demo's story nor a server, only what a session promises to whoever
sends it prompts. Each promise is one function that yields what it finds broken.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.trajectory import ToolCall, UserStep
from turnkeeper.ops.demo.record import Record

Promise = Callable[[Record], Iterator[str]]


def violations(record: Record) -> list[str]:
    """Return what of the promises `record` breaks, a sentence each; empty: they are all kept.

    >>> from turnkeeper.ops.demo.record import Asked
    >>> violations(Record(asked=[Asked(id="p1", text="hello")]))
    ["Prompt 'p1' was accepted, and nothing became of it."]
    """
    return [broken for promise in PROMISES for broken in promise(record)]


def every_prompt_has_one_fate(record: Record) -> Iterator[str]:
    """Hold that nothing accepted is lost, nothing refused is done, and nothing waits when all is over (SES-6)."""
    fates = Counter(fate.id for fate in record.fates if fate.fate != "rejected")
    rejected = {fate.id for fate in record.fates if fate.fate == "rejected"}
    turns = {turn.id for turn in record.transcript}
    for asked in record.asked:
        count, is_waiting = fates[asked.id], asked.id in record.waiting
        became_something = count or is_waiting or asked.id in turns
        if asked.accepted and not became_something and asked.id not in rejected:
            yield f"Prompt {asked.id!r} was accepted, and nothing became of it."
        if asked.accepted is False and became_something:
            yield f"Prompt {asked.id!r} was refused, and something became of it all the same."
        if count > 1:
            yield f"Prompt {asked.id!r} has {count} fates."
        if is_waiting:
            yield f"Prompt {asked.id!r} still waits{' although it has a fate' if count else ''}."


def a_fate_is_what_happened(record: Record) -> Iterator[str]:
    """Hold that what started is a turn, what was steered is in one, and what was taken back is in none (SES-7)."""
    turns = {turn.id: turn for turn in record.transcript}
    for fate in record.fates:
        if fate.fate == "started" and fate.id not in turns:
            yield f"Prompt {fate.id!r} was started, and the transcript has no such turn."
        elif fate.fate == "steered" and fate.id not in _steered_into(turns.get(fate.turn_id or "")):
            yield f"Prompt {fate.id!r} was steered into turn {fate.turn_id!r}, and is not in it."
        elif fate.fate in ("withdrawn", "discarded") and fate.id in turns:
            yield f"Prompt {fate.id!r} was {fate.fate}, and is a turn all the same."


def every_turn_was_asked_for_once(record: Record) -> Iterator[str]:
    """Hold that a prompt is one turn at most, and no turn comes from nowhere or is about something else (SES-6)."""
    asked = {prompt.id: prompt for prompt in record.asked}
    for turn_id, count in Counter(turn.id for turn in record.transcript).items():
        if count > 1:
            yield f"Prompt {turn_id!r} became {count} turns."
        if turn_id not in asked:
            yield f"Turn {turn_id!r} was never asked for."
    for turn in record.transcript:
        if turn.id in asked and turn.user_message != asked[turn.id].text:
            yield f"Turn {turn.id!r} is about another text than the prompt had."


def turns_keep_the_order_of_their_prompts(record: Record) -> Iterator[str]:
    """Hold that the first in was the first out; those that interrupted may have gone before others (SES-6)."""
    in_line = {prompt.id: place for place, prompt in enumerate(record.asked) if prompt.mode == "enqueue"}
    started = [turn.id for turn in record.transcript if turn.id in in_line]
    for earlier, later in pairwise(started):
        if in_line[later] < in_line[earlier]:
            yield f"Prompt {later!r} was sent before {earlier!r}, and started after it."


def every_turn_is_answered(record: Record) -> Iterator[str]:
    """Hold that every turn has ended, with an answer where one was wanted, and the whole of it once (SES-2)."""
    wants_answer = {prompt.id for prompt in record.asked if prompt.wants_answer}
    known = {prompt.id: prompt.answer for prompt in record.asked if prompt.answer is not None}
    for turn in record.transcript:
        if not turn.is_complete:
            yield f"Turn {turn.id!r} has not ended."
        elif turn.id in wants_answer and not turn.agent_message:
            yield f"Turn {turn.id!r} ended without an answer: {turn.error or 'an empty one'}"
        elif turn.id in known and turn.agent_message != known[turn.id]:
            yield f"Turn {turn.id!r} has not the answer that its prompt asks for, whole and once."


def every_call_has_one_result(record: Record) -> Iterator[str]:
    """Hold that a tool call is there once, and that an ended turn leaves none open (AGT-7)."""
    calls = [call for turn in record.transcript for call in _calls_of(turn)]
    for call_id, count in Counter(call.id for call in calls).items():
        if count > 1:
            yield f"Call {call_id!r} is there {count} times."
    for turn in record.transcript:
        if turn.is_complete:
            yield from (f"Call {call.id!r} has no result." for call in _calls_of(turn) if call.result is None)


def files_were_written_once(record: Record) -> Iterator[str]:
    """Hold that a file was not written before somebody approved it, then once, and never again (AGT-8)."""
    calls = {call.id: call for turn in record.transcript for call in _calls_of(turn)}
    for write in record.writes:
        call = calls.get(write.call_id)
        if call is None or call.approval is None or not call.approval.is_given:
            yield f"The transcript knows nothing of an approval of call {write.call_id!r}, which wrote {write.path}."
        if write.before.content is not None:
            yield f"{write.path} was there before the write was approved."
        if write.after.content != write.content:
            yield f"{write.path} should hold {write.content!r}, and holds {write.after.content!r}."
        if write.at_the_end != write.after:
            yield f"{write.path} was written again after its turn had ended."


def the_watching_client_saw_it_all(record: Record) -> Iterator[str]:
    """Hold that who only follows updates has the transcript, turn by turn (SES-12)."""
    shown, there = _by_id(record.watched), _by_id(record.transcript)
    for turn_id in there:
        if turn_id not in shown:
            yield f"The watching client was never shown turn {turn_id!r}."
        elif shown[turn_id] != there[turn_id]:
            different = ", ".join(_differences(shown[turn_id], there[turn_id]))
            yield f"The watching client holds turn {turn_id!r} otherwise than the transcript: {different}."
    for turn_id in shown:
        if turn_id not in there:
            yield f"The watching client was shown turn {turn_id!r}, which the transcript does not have."
    common = [turn.id for turn in record.watched if turn.id in there]
    if common != [turn.id for turn in record.transcript if turn.id in shown]:
        yield f"The watching client holds the turns in another order, or twice: {', '.join(common)}."


def nothing_was_new_twice(record: Record) -> Iterator[str]:
    """Hold that what was told as new is not told as new again, however often the client came back (SES-12)."""
    for turn_id, count in Counter(record.announced).items():
        if count > 1:
            yield f"Turn {turn_id!r} was told to the watching client as new {count} times."


def what_was_shown_early_was_the_beginning(record: Record) -> Iterator[str]:
    """Hold that partial text is the beginning of the text that came (AGT-5)."""
    texts = {
        (turn.id, step.number): step.text
        for turn in record.transcript
        if turn.reasoning_trajectory
        for step in turn.reasoning_trajectory.model_steps
        if not step.text_blob
    }
    for glimpse in record.glimpses:
        text = texts.get((glimpse.message_id, glimpse.step))
        if text is not None and not text.startswith(glimpse.text):
            yield f"What was shown of turn {glimpse.message_id!r} while it was written is not how its answer begins."


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
    what_was_shown_early_was_the_beginning,
)


def _steered_into(turn: ConversationMessage | None) -> set[str]:
    return {step.message_id for step in turn.steps if isinstance(step, UserStep)} if turn else set()


def _calls_of(turn: ConversationMessage) -> list[ToolCall]:
    steps = turn.reasoning_trajectory.model_steps if turn.reasoning_trajectory else []
    return [call for step in steps for call in step.tool_calls]


def _by_id(turns: Iterable[ConversationMessage]) -> dict[str, ConversationMessage]:
    return {turn.id: turn for turn in turns}


def _differences(one: ConversationMessage, other: ConversationMessage) -> Iterator[str]:
    return (name for name in type(one).model_fields if getattr(one, name) != getattr(other, name))
