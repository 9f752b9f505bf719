"""The entries of the model view: each a whole group of messages (CTX-3).

An entry is a reference into the transcript with its rendered messages; only the reference is carried to the next run.
A *detached* entry carries its own messages, large texts by reference, since its turn or step is in the archive only.

**Shortening** is for messages that can't be evicted, after a vendor said that the context is too long (CTX-7). The head
stays, and so do the results of the newest step, or the model would ask for them again. If they alone are too long, the
longest of their texts are shortened: the model still reads the head and the tail of each. The running turn's prompt
keeps its text; its attachments may not drive out the conversation, so the largest of them are only named.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Literal

from pydantic import Field

from turnkeeper.models.texts import bound_text, count_chars, weighted_chars
from turnkeeper.models.transcript.attachments import estimated_chars, with_names
from turnkeeper.models.transcript.conversation import (
    INTERRUPTED_NOTE,
    ConversationMessage,
    ModelStep,
    Step,
    ToolCall,
    UserStep,
)
from turnkeeper.models.transcript.large_texts import Texts, refer_message
from turnkeeper.models.transcript.model_call import CallPart, ModelMessage, ProviderState
from turnkeeper.models.transcript.notes import joined_prompts
from turnkeeper.models.transcript.transcript import Transcript
from turnkeeper.models.wire import Compact

MIN_TEXT_CHARS = 200
"""No text becomes shorter than this, so that the outcome of a call stays."""

TOO_LONG_NOTE = " (not shown: the conversation is too long for the model)"
"""Follows the name of an attachment that is only named."""


def max_text_chars(lengths: Sequence[int], excess: int) -> int:
    """Return the size to cut texts of these `lengths` to, so that the longest lose `excess` characters together.

    At least `MIN_TEXT_CHARS`, even if that is not enough.

    >>> max_text_chars([1000, 400, 10], 600), max_text_chars([1000, 400, 10], 900), max_text_chars([250], 999)
    (400, 250, 200)
    """
    remaining = sorted(lengths, reverse=True)
    total = sum(remaining) - excess
    while remaining and remaining[-1] * len(remaining) <= total:
        total -= remaining.pop()
    return max(MIN_TEXT_CHARS, total // len(remaining)) if remaining else max(lengths, default=0)


def shorten_message(message: ModelMessage, max_chars: int) -> ModelMessage:
    r"""Return the message with at most `max_chars` weighted characters of text; a text by reference: of its excerpt.

    Attachments that count as more are only named.

    >>> shorten_message(ModelMessage(role="tool", content="a" * 60 + "z" * 60), 80).content
    'aaaaaaaaaaaaaaaaaaaaaaaaaa\n[... 82 of 120 characters left out ...]\nzzzzzzzzzzzz'
    """
    long = [one for one in message.attachments if estimated_chars(one) > max_chars]
    staying = [one for one in message.attachments if estimated_chars(one) <= max_chars]
    max_length = max_chars * len(message.content) // max(1, weighted_chars(message.content))
    text = bound_text(message.content, max_length, 4 * max_length)
    content = with_names(text, long, note=TOO_LONG_NOTE)
    return message.model_copy(update={"content": content, "attachments": staying, "blob": None, "blob_start": 0})


def name_largest_attachments(message: ModelMessage, excess: int) -> ModelMessage:
    """Return the message with its largest attachments only named, until it has `excess` characters fewer if possible.

    >>> from turnkeeper.models.transcript.attachments import CodeAttachment
    >>> sizes = {"a": 10, "b": 90, "c": 50}
    >>> code = [CodeAttachment(type="code", name=name, content="x" * size) for name, size in sizes.items()]
    >>> message = name_largest_attachments(ModelMessage(role="user", content="look", attachments=code), 100)
    >>> [one.name for one in message.attachments]
    ['a']
    """
    named = set[int]()
    for index in sorted(range(len(message.attachments)), key=lambda at: -estimated_chars(message.attachments[at])):
        if excess > 0:
            named.add(index)
            excess -= estimated_chars(message.attachments[index])
    left_out = [one for index, one in enumerate(message.attachments) if index in named]
    staying = [one for index, one in enumerate(message.attachments) if index not in named]
    content = with_names(message.content, left_out, note=TOO_LONG_NOTE)
    return message.model_copy(update={"content": content, "attachments": staying})


NoteKind = Literal["ending", "refused", "earlier_try"]
"""The omission that a note describes: a turn's answer, a whole turn that the vendor refused, or a retried one."""


class ViewRef(Compact):
    """The origin of an entry: a turn's user message, or its step at index `step`, counted from 0 with omitted ones.

    A detached entry has its own `messages`, and so has a `note`; others are rendered from the turn. `number` is that
    of the turn, from 1. A note of the kind `ending` has the number of the steps before it as its `step`.
    """

    turn: str
    step: int | None = None
    state: ProviderState | None = None
    messages: Annotated[tuple[ModelMessage, ...], Field(fail_fast=True)] = ()
    number: int = 0
    note: NoteKind | None = None
    added: int = 0
    """Number of steering prompts, each a step, that follow in the same message (CTX-17)."""
    retried: int = 0
    """Number of turns directly before this one that it stands for: tries at the same prompt, in no entry."""


@dataclass(frozen=True)
class ViewEntry:
    """A group of messages that is evicted as a whole (CTX-3)."""

    ref: ViewRef
    messages: tuple[ModelMessage, ...]
    digests: tuple[bytes, ...]
    chars: int
    carried_bytes: int

    @classmethod
    def with_messages(cls, ref: ViewRef, messages: tuple[ModelMessage, ...]) -> "ViewEntry":
        return cls(
            ref=ref,
            messages=messages,
            digests=tuple(map(message_digest, messages)),
            chars=sum(map(_chars, messages)),
            carried_bytes=len(ref.model_dump_json()),
        )

    @classmethod
    def from_turn(cls, ref: ViewRef, turn: ConversationMessage) -> "ViewEntry":
        """Render the messages of `ref`, which refers to `turn`; none for an empty step."""
        if ref.step is None or ref.added:
            return cls.with_messages(ref, (_prompts_message(turn, ref),))
        return cls.with_messages(ref, _messages_of(_step(turn, ref.step), state=ref.state))

    @classmethod
    def of_note(cls, text: str, ref: ViewRef | None = None) -> "ViewEntry":
        """Return an entry of one note; without a `ref` it belongs to no turn and is not carried."""
        messages = (ModelMessage(role="assistant", content=text),)
        return cls.with_messages(ref.model_copy(update={"messages": messages}) if ref else ViewRef(turn=""), messages)

    def is_prompt_of(self, turn_id: str) -> bool:
        return self.is_prompt and self.ref.turn == turn_id

    @property
    def is_prompt(self) -> bool:
        return self.begins_turn and self.ref.note is None

    @property
    def begins_turn(self) -> bool:
        return self.ref.step is None

    @property
    def ends_turn(self) -> bool:
        """Whether nothing is missing after it: it ends with text of the assistant, and not with calls."""
        return bool(self.messages) and self.messages[-1].role == "assistant" and not self.messages[-1].tool_calls

    @property
    def is_from_user(self) -> bool:
        return bool(self.messages) and self.messages[-1].role == "user"

    @property
    def steps_so_far(self) -> int:
        """Number of the turn's steps up to this entry."""
        if self.ref.step is None:
            return self.ref.added
        return self.ref.step + (0 if self.ref.note else 1 + self.ref.added)

    def with_prompt_added(self, turn: ConversationMessage) -> "ViewEntry":
        """Return the entry, a user's, with one more steering prompt: the newest step of `turn`."""
        return ViewEntry.from_turn(self.ref.model_copy(update={"added": self.ref.added + 1, "messages": ()}), turn)

    def without_state(self) -> "ViewEntry":
        if all(message.state is None for message in self.messages):
            return self
        messages = tuple(message.model_copy(update={"state": None}) for message in self.messages)
        carried = messages if self.ref.messages else ()
        return ViewEntry.with_messages(self.ref.model_copy(update={"state": None, "messages": carried}), messages)

    def shortened(self, max_chars: int) -> "ViewEntry":
        """Return the entry with its texts cut to `max_chars`; if any was longer, it carries its own messages."""
        messages = tuple(
            shorten_message(message, max_chars) if max(text_lengths(message)) > max_chars else message
            for message in self.messages
        )
        if messages == self.messages:
            return self
        return ViewEntry.with_messages(self.ref.model_copy(update={"messages": messages, "state": None}), messages)


def restored(ref: ViewRef, transcript: Transcript) -> ViewEntry:
    """Return the entry of a carried reference (SES-14)."""
    if ref.messages:
        return ViewEntry.with_messages(ref, ref.messages)
    return ViewEntry.from_turn(ref, transcript.get(ref.turn))


def detached(
    entries: Iterable[ViewEntry], turn: ConversationMessage, *, steps_before: int | None = None, inline_bytes: int
) -> list[ViewEntry]:
    """Return `entries` with those of `turn` carrying their own messages, texts over `inline_bytes` by reference.

    With `steps_before`, only entries of steps before that one change. The store already has the texts.
    """
    return [
        _detached(entry, turn, inline_bytes, Texts()) if _is_leaving(entry.ref, turn.id, steps_before) else entry
        for entry in entries
    ]


def texts_of(entries: Iterable[ViewEntry], turns: Iterable[ConversationMessage], *, inline_bytes: int) -> list[str]:
    """Return the texts to store before all entries of `turns` are detached."""
    texts = Texts()
    by_id = {turn.id: turn for turn in turns}
    for entry in entries:
        if entry.ref.turn in by_id and not entry.ref.messages:
            _detached(entry, by_id[entry.ref.turn], inline_bytes, texts)
    return list(texts.by_hash.values())


def message_digest(message: ModelMessage) -> bytes:
    return sha256(message.model_dump_json().encode()).digest()


def text_lengths(message: ModelMessage) -> list[int]:
    """Return the sizes of a message's text and of its attachments in weighted characters, as `_chars` does."""
    return [weighted_chars(message.content) + _stored_chars(message), *map(estimated_chars, message.attachments)]


def _step(turn: ConversationMessage, index: int) -> Step:
    return turn.steps[index - turn.steps_omitted]


def _chars(message: ModelMessage) -> int:
    """Return the weighted characters that the model will read: a text by reference counts as a whole.

    An attachment counts as many as `estimated_chars` says.
    """
    args = sum(call.blob.chars for call in message.tool_calls if call.blob)
    return count_chars(message) + args + _stored_chars(message) + sum(map(estimated_chars, message.attachments))


def _stored_chars(message: ModelMessage) -> int:
    """Return the weighted characters of a text by reference besides its excerpt, which shows their weight."""
    if message.blob is None:
        return 0
    rest = message.blob.chars + message.blob_start - len(message.content)
    return rest * weighted_chars(message.content) // max(1, len(message.content))


def _is_leaving(ref: ViewRef, turn_id: str, steps_before: int | None) -> bool:
    if ref.turn != turn_id or ref.messages:
        return False
    first = 0 if ref.step is None and ref.added else ref.step
    return steps_before is None or (first is not None and first < steps_before)


def _detached(entry: ViewEntry, turn: ConversationMessage, inline_bytes: int, texts: Texts) -> ViewEntry:
    """Return the entry with its messages in its reference; the model still reads the same."""
    messages = tuple(
        refer_message(message, content, inline_bytes=inline_bytes, texts=texts)
        for message, content in zip(entry.messages, _contents(entry, turn), strict=True)
    )
    # The state is in the messages too: once is enough.
    ref = entry.ref.model_copy(update={"messages": messages, "state": None})
    return ViewEntry.with_messages(ref, messages)


def _contents(entry: ViewEntry, turn: ConversationMessage) -> list[str]:
    """Return the possibly long text of each message of an entry: of a tool message, all but its outcome line."""
    if entry.is_from_user:
        return [entry.messages[0].content]
    step = _step(turn, entry.ref.step or 0)
    if isinstance(step, UserStep) or step.interrupted:
        return [(step.content if isinstance(step, UserStep) else step.text) or ""]
    return [step.text or "", *(call.result.content if call.result else "" for call in step.tool_calls)]


def _prompts_message(turn: ConversationMessage, ref: ViewRef) -> ModelMessage:
    """Return the user's message with the turn's prompt, if `ref` is that, and the steering prompts added to it."""
    first = 0 if ref.step is None else ref.step
    steps = [_step(turn, index) for index in range(first, first + ref.added + (ref.step is not None))]
    prompts = [step for step in steps if isinstance(step, UserStep)]
    is_prompt = ref.step is None
    attachments = [*(turn.attachments if is_prompt else []), *(one for step in prompts for one in step.attachments)]
    text = joined_prompts(turn.user_message if is_prompt else None, [step.content for step in prompts])
    return ModelMessage(role="user", content=text, attachments=attachments)


def _messages_of(step: Step, *, state: ProviderState | None) -> tuple[ModelMessage, ...]:
    if isinstance(step, UserStep):
        return (ModelMessage(role="user", content=step.content, attachments=step.attachments),)
    if step.interrupted:
        return (_interrupted_message(step),) if step.text else ()
    if not step.text and not step.tool_calls:
        return ()
    return (_assistant_message(step, state=state), *map(_tool_message, step.tool_calls))


def _interrupted_message(step: ModelStep) -> ModelMessage:
    """Return the text of an incomplete answer: vendors do not accept incomplete thinking or calls."""
    return ModelMessage(
        role="assistant",
        content=f"{INTERRUPTED_NOTE}{step.text}",
        blob=step.text_blob,
        blob_start=len(INTERRUPTED_NOTE) if step.text_blob else 0,
    )


def _assistant_message(step: ModelStep, *, state: ProviderState | None) -> ModelMessage:
    calls = [
        CallPart(kind="call", id=call.provider_call_id or call.id, name=call.name, args=call.args, blob=call.args_blob)
        for call in step.tool_calls
    ]
    return ModelMessage(role="assistant", content=step.text or "", tool_calls=calls, state=state, blob=step.text_blob)


def _tool_message(call: ToolCall) -> ModelMessage:
    if call.result is None:
        raise ValueError(f"tool call {call.id} has no result: an orphan makes vendors refuse every later request")
    result = call.result
    return ModelMessage(
        role="tool",
        content=f"{result.outcome}\n\n{result.content}" if result.content else result.outcome,
        call_id=call.provider_call_id or call.id,
        tool_name=call.name,
        status=result.status,
        blob=result.blob,
        blob_start=len(result.outcome) + 2 if result.blob else 0,
        attachments=result.attachments,
    )
