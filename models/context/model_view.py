"""The model view: the messages sent to the model, made from the transcript (CTX-4).

Theory of operation. The view is a list of entries, each a whole group of messages: a user message, or a model step with
the results of its calls. An entry is a reference into the transcript with its rendered messages; only the reference is
carried to the next run. Between two evictions the view only grows at its end, so the prefix that a vendor caches stays
the same, byte for byte. An eviction drops a block of entries and opens a new *segment*: opaque provider state of
earlier steps is bound to the old prefix and no longer sent.

When a turn or a step leaves the session for the archive, its entries are *detached*: from then on they carry their own
messages, large texts by reference. A summary of evicted messages is an entry too. It is never evicted; the next summary
replaces it (CTX-5).

Every message is rendered, measured and hashed once, when it is appended; a request's digest hashes those hashes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from turnkeeper.models.context.shortening import max_text_chars, name_largest_attachments, shorten_message
from turnkeeper.models.context.summary import Summary, summary_message
from turnkeeper.models.context.window import ConversationHistoryConfig, eviction_config, kept_indexes
from turnkeeper.models.tokens import count_chars, tokens_of
from turnkeeper.models.transcript.attachments import estimated_chars
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.large_texts import Texts, refer_message
from turnkeeper.models.transcript.model_call import CallPart, ModelMessage, ModelRequest, ProviderState, RequestHead
from turnkeeper.models.transcript.trajectory import INTERRUPTED_NOTE, ModelStep, Step, ToolCall, UserStep
from turnkeeper.models.transcript.transcript import Transcript
from turnkeeper.models.wire import MAX_CARRIED_ITEMS, Compact, Items

if TYPE_CHECKING:
    from hashlib import _Hash


class ViewRef(Compact):
    """The origin of an entry: a turn's user message, or its step at index `step`, counted from 0 with omitted ones.

    A detached entry has its own `messages`; others are rendered from the turn. `number` is that of the turn, from 1; 0
    in entries of an early release. A `summary` belongs to no turn. A `refused` entry is a note that replaces its turn.
    """

    turn: str
    step: int | None = None
    state: ProviderState | None = None
    messages: Annotated[tuple[ModelMessage, ...], Field(fail_fast=True)] = ()
    number: int = 0
    summary: Summary | None = None
    refused: bool = False


class ViewState(Compact):
    """The carried part of a view: the origins of its entries, and the number of its segment, from 1."""

    entries: Annotated[Items[ViewRef], Field(max_length=MAX_CARRIED_ITEMS)] = []
    segment: int = 1


REFUSED_NOTE = "[A message of the user stood here. The model's provider refused it, and it was left out.]"
"""Replaces a turn that the vendor refused (CTX-7)."""


@dataclass(frozen=True)
class ViewEntry:
    """A group of messages that is evicted as a whole (CTX-3)."""

    ref: ViewRef
    messages: tuple[ModelMessage, ...]
    digests: tuple[bytes, ...]
    chars: int
    carried_bytes: int

    def is_prompt_of(self, turn_id: str) -> bool:
        return (self.ref.turn, self.ref.step) == (turn_id, None)


@dataclass(frozen=True)
class Eviction:
    """The entries that were evicted, oldest first, and the number of their messages."""

    entries: list[ViewEntry]
    evicted: int


class ModelView:
    """What the model sees of one session."""

    def __init__(self, state: ViewState, transcript: Transcript) -> None:
        """Render the entries of `state`; all but detached ones refer to turns in `transcript` (SES-14)."""
        self._entries = [restored(ref, transcript) for ref in state.entries]
        self.segment = state.segment
        self._hashed_head: tuple[RequestHead, _Hash] | None = None

    @property
    def state(self) -> ViewState:
        return ViewState(entries=[entry.ref for entry in self._entries], segment=self.segment)

    @property
    def entries(self) -> Sequence[ViewEntry]:
        return self._entries

    @property
    def summary(self) -> Summary | None:
        entry = self.summary_entry
        return entry.ref.summary if entry else None

    @property
    def summary_entry(self) -> ViewEntry | None:
        """The entry with the summary of evicted messages, if there is one."""
        return next((entry for entry in self._entries if entry.ref.summary), None)

    @property
    def carried_bytes(self) -> int:
        return sum(entry.carried_bytes for entry in self._entries)

    @property
    def messages(self) -> list[ModelMessage]:
        return [message for entry in self._entries for message in entry.messages]

    @property
    def message_count(self) -> int:
        return sum(len(entry.messages) for entry in self._entries)

    @property
    def chars(self) -> int:
        """Characters of all messages, with calls as JSON."""
        return sum(entry.chars for entry in self._entries)

    @property
    def estimated_tokens(self) -> int:
        """Characters / 4, rounded up over the sum (CTX-6)."""
        return tokens_of(self.chars)

    def append_request(self, turn: ConversationMessage, *, number: int) -> None:
        """Append the user message of `turn`, the session's turn `number`."""
        self._entries.append(_entry_of(ViewRef(turn=turn.id, number=number), turn))

    def replace_request(self, turn: ConversationMessage) -> None:
        """Replace the user message of `turn` after its text has changed; no request was made with it yet."""
        self._entries = [
            _entry_of(entry.ref.model_copy(update={"messages": ()}), turn)
            if entry.ref.turn == turn.id and entry.ref.step is None
            else entry
            for entry in self._entries
        ]

    def append_step(self, turn: ConversationMessage, *, number: int, state: ProviderState | None = None) -> None:
        """Append the newest step of `turn`, unless it is empty."""
        step = turn.steps_omitted + len(turn.steps) - 1
        entry = _entry_of(ViewRef(turn=turn.id, number=number, step=step, state=state), turn)
        if entry.messages:
            self._entries.append(entry)

    def append_turn(self, turn: ConversationMessage, *, number: int) -> None:
        """Append an ended turn, the session's turn `number`: its prompt and its steps, or a note of its refusal."""
        if turn.error_type == "refusal":
            self._append_refused_note(turn, number=number)
            return
        self.append_request(turn, number=number)
        for step in range(turn.steps_omitted, turn.steps_omitted + len(turn.steps)):
            entry = _entry_of(ViewRef(turn=turn.id, number=number, step=step), turn)
            if entry.messages:
                self._entries.append(entry)

    def evict_over_cap(
        self, config: ConversationHistoryConfig, *, running_turn: str, reserve: int = 0
    ) -> Eviction | None:
        """Evict a block, and `reserve` messages more, if the view is over its cap (CTX-4).

        The running turn's user message, the last entry and the summary always stay.
        """
        if config.max_messages == 0 or self.message_count <= config.max_messages:
            return None
        lowered = eviction_config(config)
        lowered = lowered.model_copy(update={"max_messages": max(1, lowered.max_messages - reserve)})
        indexes, _ = kept_indexes(self.messages, lowered, pinned=self._pinned(running_turn))
        staying = self._entries_at(frozenset(indexes))
        return self._keep(staying) if len(staying) < len(self._entries) else None

    def evict_over_bytes(self, max_bytes: int, *, running_turn: str, first_n: int) -> Eviction | None:
        """Evict the oldest entries, down to half, if the carried view has more than `max_bytes` (SES-15).

        The first `first_n` messages stay up to a quarter of it; the summary and the running turn's user message always
        stay.
        """
        excess = self.carried_bytes - max_bytes // 2
        if self.carried_bytes <= max_bytes:
            return None
        staying = self._head(first_n, max_bytes // 4)
        for entry in self._entries[len(staying) :]:
            if excess <= 0 or entry.ref.summary or entry.is_prompt_of(running_turn):
                staying.append(entry)
            else:
                excess -= entry.carried_bytes
        return self._keep(staying) if len(staying) < len(self._entries) else None

    def shrink(self, max_chars: int, *, running_turn: str, first_n: int) -> Eviction | None:
        """Evict the oldest entries until the others have at most `max_chars` characters, if possible (CTX-7).

        The first `first_n` messages, the summary, the running turn's user message and the last entry always stay.
        """
        excess, permanent = self.chars - max_chars, set(map(id, self._permanent(running_turn, first_n)))
        staying = []
        for entry in self._entries:
            if excess <= 0 or id(entry) in permanent:
                staying.append(entry)
            else:
                excess -= entry.chars
        return self._keep(staying) if len(staying) < len(self._entries) else None

    def shorten(self, max_chars: int, *, running_turn: str, first_n: int) -> dict[int, int]:
        """Shorten what `shrink` never evicts to three quarters of `max_chars`, if it has more characters than that.

        The longest texts are shortened first; the running turn's user message and the summary stay whole. Returns the
        number of removed characters by turn number. Call it only before a new segment: it changes the prefix.
        """
        permanent = self._permanent(running_turn, first_n)
        chars = sum(entry.chars for entry in permanent)
        if chars <= max_chars:
            return {}
        shortenable = {id(entry) for entry in permanent if not _stays_whole(entry, running_turn)}
        entries = [entry for entry in self._entries if id(entry) in shortenable]
        lengths = [length for entry in entries for message in entry.messages for length in _lengths(message)]
        text_chars, cut = max_text_chars(lengths, chars - max_chars * 3 // 4), dict[int, int]()
        for index, entry in enumerate(self._entries):
            if id(entry) in shortenable:
                self._entries[index] = _shorten_entry(entry, text_chars)
                cut[entry.ref.number] = cut.get(entry.ref.number, 0) + entry.chars - self._entries[index].chars
        return cut

    def shorten_prompt(self, max_chars: int, *, running_turn: str) -> dict[int, int]:
        """Name the largest attachments of the running turn's prompt until it has `max_chars` characters, if possible.

        Returns the number of removed characters by turn number; a new segment begins if there are any.
        """
        prompts = [index for index, entry in enumerate(self._entries) if entry.is_prompt_of(running_turn)]
        if not prompts:
            return {}
        index = prompts[-1]
        entry = self._entries[index]
        if entry.chars <= max_chars:
            return {}
        messages = tuple(name_largest_attachments(message, entry.chars - max_chars) for message in entry.messages)
        if messages == entry.messages:
            return {}
        self._entries[index] = _entry(entry.ref.model_copy(update={"messages": messages}), messages)
        self.open_segment()
        return {entry.ref.number: entry.chars - self._entries[index].chars}

    def _permanent(self, running_turn: str, first_n: int) -> list[ViewEntry]:
        """Return the entries that `shrink` never evicts."""
        count, last = self._entries_within(first_n), len(self._entries) - 1
        return [
            entry
            for index, entry in enumerate(self._entries)
            if index < count or index == last or _stays_whole(entry, running_turn)
        ]

    def replace_with_note(self, turn: ConversationMessage, *, number: int) -> list[ViewEntry]:
        """Replace all entries of `turn`, the newest one, by a note in a new segment; return these entries."""
        leaving = [entry for entry in self._entries if entry.ref.number == number]
        self._entries = [entry for entry in self._entries if entry.ref.number != number]
        self._append_refused_note(turn, number=number)
        self.open_segment()
        return leaving

    def _append_refused_note(self, turn: ConversationMessage, *, number: int) -> None:
        note = (ModelMessage(role="user", content=REFUSED_NOTE),)
        self._entries.append(_entry(ViewRef(turn=turn.id, number=number, messages=note, refused=True), note))

    def insert_summary(self, summary: Summary, *, first_n: int) -> None:
        """Insert `summary` in the place of the earlier one, or after the first `first_n` messages.

        Call it only between an eviction and the next request: it changes the prefix of the new segment.
        """
        entry = _entry_of_summary(ViewRef(turn="", summary=summary))
        earlier = self.summary_entry
        if earlier:
            self._entries[self._entries.index(earlier)] = entry
        else:
            self._entries.insert(self._entries_within(first_n), entry)

    def detach(self, turn: ConversationMessage, *, steps_before: int | None = None, inline_bytes: int) -> None:
        """Detach the entries of `turn`, see `detached`."""
        self._entries = detached(self._entries, turn, steps_before=steps_before, inline_bytes=inline_bytes)

    def open_segment(self) -> None:
        """Begin a segment: from now on, no opaque provider state of earlier steps is sent (CTX-4, AGT-9)."""
        self.segment += 1
        self._entries = [_without_state(entry) for entry in self._entries]

    def request(self, head: RequestHead) -> ModelRequest:
        """Return a request of the present messages; later changes of the view do not affect it."""
        return ModelRequest(head=head, messages=self.messages)

    def digest(self, head: RequestHead) -> str:
        """Return the digest of the exact context; equal to `digest_of(self.request(head))`."""
        if self._hashed_head is None or self._hashed_head[0] is not head:
            self._hashed_head = (head, _head_hash(head))
        return _digest(self._hashed_head[1].copy(), (digest for entry in self._entries for digest in entry.digests))

    def _keep(self, staying: list[ViewEntry]) -> Eviction:
        before, staying_ids = self.message_count, set(map(id, staying))
        leaving = [_without_state(entry) for entry in self._entries if id(entry) not in staying_ids]
        self._entries = staying
        self.open_segment()
        return Eviction(entries=leaving, evicted=before - self.message_count)

    def _pinned(self, running_turn: str) -> frozenset[int]:
        """Return one message index of each entry that always stays."""
        pinned, index, opening = {self.message_count - 1}, 0, -1
        for entry in self._entries:
            if entry.ref.summary:
                pinned.add(index)
            elif entry.is_prompt_of(running_turn):
                opening = index  # the last one counts: the id may have been used long ago
            index += len(entry.messages)
        return frozenset(pinned | {opening})

    def _head(self, first_n: int, max_bytes: int) -> list[ViewEntry]:
        head = self._entries[: self._entries_within(first_n)]
        sizes = accumulate(entry.carried_bytes for entry in head)
        return head[: max(sum(size <= max_bytes for size in sizes), min(1, first_n))]

    def _entries_within(self, messages: int) -> int:
        """Return the number of entries that begin within the first `messages` messages."""
        count, index = 0, 0
        for entry in self._entries:
            if index >= messages:
                break
            count, index = count + 1, index + len(entry.messages)
        return count

    def _entries_at(self, indexes: frozenset[int]) -> list[ViewEntry]:
        staying, index = [], 0
        for entry in self._entries:
            if index in indexes:
                staying.append(entry)
            index += len(entry.messages)
        return staying


def restored(ref: ViewRef, transcript: Transcript) -> ViewEntry:
    """Return the entry of a carried reference (SES-14)."""
    if ref.summary:
        return _entry_of_summary(ref)
    if not ref.number and ref.turn in transcript:
        ref = ref.model_copy(update={"number": transcript.number_of(ref.turn)})
    return _entry(ref, ref.messages) if ref.messages else _entry_of(ref, transcript.get(ref.turn))


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


def digest_of(request: ModelRequest) -> str:
    """Return the digest of a request's exact context; equal in every process (AGT-2)."""
    return _digest(_head_hash(request.head), (_message_digest(message) for message in request.messages))


def _head_hash(head: RequestHead) -> "_Hash":
    return sha256(head.model_dump_json().encode())


def _digest(total: "_Hash", message_digests: Iterable[bytes]) -> str:
    for digest in message_digests:
        total.update(digest)
    return total.hexdigest()[:16]


def _message_digest(message: ModelMessage) -> bytes:
    return sha256(message.model_dump_json().encode()).digest()


def _entry_of(ref: ViewRef, turn: ConversationMessage) -> ViewEntry:
    if ref.step is None:
        prompt = ModelMessage(role="user", content=turn.user_message, attachments=turn.attachments)
        messages: tuple[ModelMessage, ...] = (prompt,)
    else:
        messages = _messages_of(_step(turn, ref.step), state=ref.state)
    return _entry(ref, messages)


def _entry_of_summary(ref: ViewRef) -> ViewEntry:
    return _entry(ref, (summary_message(ref.summary),) if ref.summary else ())


def _step(turn: ConversationMessage, index: int) -> Step:
    return turn.steps[index - turn.steps_omitted]


def _entry(ref: ViewRef, messages: tuple[ModelMessage, ...]) -> ViewEntry:
    return ViewEntry(
        ref=ref,
        messages=messages,
        digests=tuple(map(_message_digest, messages)),
        chars=sum(map(_chars, messages)),
        # Without the number: earlier runs decided by a size without it, and must decide the same on replay (SES-19).
        carried_bytes=len(ref.model_dump_json(exclude={"number"})),
    )


def _chars(message: ModelMessage) -> int:
    """Return the characters that the model will read: a text by reference counts as a whole.

    An attachment counts as many as `estimated_chars` says.
    """
    blobs = [call.blob.chars for call in message.tool_calls if call.blob]
    if message.blob:
        blobs.append(message.blob.chars + message.blob_start - len(message.content))
    return count_chars(message) + sum(blobs) + sum(map(estimated_chars, message.attachments))


def _stays_whole(entry: ViewEntry, running_turn: str) -> bool:
    return entry.ref.summary is not None or entry.is_prompt_of(running_turn)


def _text_length(message: ModelMessage) -> int:
    """Return the length of a message's text; a text by reference counts as a whole."""
    return message.blob.chars + message.blob_start if message.blob else len(message.content)


def _lengths(message: ModelMessage) -> list[int]:
    """Return the lengths of a message's text and of its attachments."""
    return [_text_length(message), *map(estimated_chars, message.attachments)]


def _shorten_entry(entry: ViewEntry, max_chars: int) -> ViewEntry:
    """Return the entry with its texts cut to `max_chars`; if any was longer, it carries its own messages."""
    messages = tuple(
        shorten_message(message, max_chars) if max(_lengths(message)) > max_chars else message
        for message in entry.messages
    )
    if messages == entry.messages:
        return entry
    return _entry(entry.ref.model_copy(update={"messages": messages, "state": None}), messages)


def _is_leaving(ref: ViewRef, turn_id: str, steps_before: int | None) -> bool:
    if ref.turn != turn_id or ref.messages:
        return False
    return steps_before is None or (ref.step is not None and ref.step < steps_before)


def _detached(entry: ViewEntry, turn: ConversationMessage, inline_bytes: int, texts: Texts) -> ViewEntry:
    """Return the entry with its messages in its reference; the model still reads the same."""
    contents = _contents(entry.ref, turn)
    messages = tuple(
        refer_message(message, content, inline_bytes=inline_bytes, texts=texts)
        for message, content in zip(entry.messages, contents, strict=True)
    )
    # The state is in the messages too: once is enough.
    ref = entry.ref.model_copy(update={"messages": messages, "state": None})
    return _entry(ref, messages)


def _contents(ref: ViewRef, turn: ConversationMessage) -> list[str]:
    """Return the possibly long text of each message of an entry: of a tool message, all but its outcome line."""
    if ref.step is None:
        return [turn.user_message]
    step = _step(turn, ref.step)
    if isinstance(step, UserStep):
        return [step.content]
    if step.interrupted:
        return [step.text or ""]
    return [step.text or "", *(call.result.content if call.result else "" for call in step.tool_calls)]


def _without_state(entry: ViewEntry) -> ViewEntry:
    if all(message.state is None for message in entry.messages):
        return entry
    messages = tuple(message.model_copy(update={"state": None}) for message in entry.messages)
    carried = messages if entry.ref.messages else ()
    return _entry(entry.ref.model_copy(update={"state": None, "messages": carried}), messages)


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
