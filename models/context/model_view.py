"""The model view: the messages sent to the model, made from the transcript (CTX-4, CTX-17).

The view is a list of entries (`view_entries.py`), each a whole group of messages: a user message, or a model step with
the results of its calls. Between two evictions the view only grows at its end, so the prefix that a vendor caches stays
the same, byte for byte. An eviction drops a block of entries and opens a new *segment*: opaque provider state of
earlier steps is bound to the old prefix and no longer sent.

What the model reads is true:

- No two user messages are neighbours. Prompts that come together are one message. A turn that ended without an answer
  has a note in its place (`models/transcript/notes.py`).
- What stands behind a user message belongs to its turn, or is a note or the summary. A turn of which anything stays
  keeps its prompt. Where messages are missing, a note says so, or the summary does (`eviction.py`).
- So texts of the assistant can be neighbours: an answer, and notes behind it. Encoders join them where a vendor wants
  roles to alternate.

The summary is never evicted; the next one replaces it (CTX-5). When a turn or a step leaves the session for the
archive, its entries are *detached*: from then on they carry their own messages.

Every message is rendered, measured and hashed once, when it is appended; a request's digest hashes those hashes.
"""

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from turnkeeper.models.context.eviction import (
    Eviction,
    arranged,
    head_indexes,
    notes_between,
    oldest_to_evict,
    permanent_entries,
    summary_entry,
    tail_indexes,
)
from turnkeeper.models.context.summary import Summary
from turnkeeper.models.context.view_entries import (
    ViewEntry,
    ViewRef,
    detached,
    max_text_chars,
    message_digest,
    name_largest_attachments,
    restored,
    text_lengths,
)
from turnkeeper.models.context.window import ConversationHistoryConfig, eviction_config
from turnkeeper.models.texts import count_chars, estimate_tokens, tokens_of
from turnkeeper.models.transcript.attachments import estimated_chars
from turnkeeper.models.transcript.conversation import ConversationMessage, UserStep
from turnkeeper.models.transcript.model_call import ModelMessage, ModelRequest, ProviderState, RequestHead
from turnkeeper.models.transcript.notes import REFUSED_PROMPT, closing_text, earlier_try_note, ending_note
from turnkeeper.models.transcript.transcript import Transcript
from turnkeeper.models.wire import MAX_CARRIED_ITEMS, Compact, Items

if TYPE_CHECKING:
    from hashlib import _Hash

MAX_NOTES = 2
"""Maximum of notes about what is left out: between turns, and in the turn where the eviction ended."""

MIN_ROOM_FOR_ENDING = 10
"""The last turn of the head keeps its answer if the window has this much room beside head and tail."""


class ViewState(Compact):
    """The carried part of a view: the origins of its entries, the summary, and its segment's number, from 1."""

    entries: Annotated[Items[ViewRef], Field(max_length=MAX_CARRIED_ITEMS)] = []
    summary: Summary | None = None
    segment: int = 1


class ModelView:
    """The model's view of one session."""

    def __init__(self, state: ViewState, transcript: Transcript) -> None:
        """Render the entries of `state`; all but detached ones refer to turns in `transcript` (SES-14)."""
        self._rest = state.model_copy(update={"entries": []})
        """What is carried without an attribute of its own; replaced with every change."""
        self.summary = state.summary
        """The summary of evicted messages, if there is one."""
        self.segment = state.segment
        self._hashed_head: tuple[RequestHead, _Hash] | None = None
        self._is_sent = False
        """Whether the last entry was in a request: then it no longer changes."""
        self._replace([restored(ref, transcript) for ref in state.entries])

    @property
    def state(self) -> ViewState:
        entries = [entry.ref for entry in self._entries]
        return self._rest.model_copy(update={"entries": entries, "summary": self.summary, "segment": self.segment})

    @property
    def entries(self) -> Sequence[ViewEntry]:
        """The entries of turns, without the summary and the notes about what is left out."""
        return self._entries

    @property
    def summary_entry(self) -> ViewEntry | None:
        return summary_entry(self.summary) if self.summary else None

    @property
    def carried_bytes(self) -> int:
        summary_bytes = len(self.summary.model_dump_json()) if self.summary else 0
        return summary_bytes + sum(entry.carried_bytes for entry in self._entries)

    @property
    def messages(self) -> list[ModelMessage]:
        return [message for entry in self._visible for message in entry.messages]

    @property
    def message_count(self) -> int:
        return sum(len(entry.messages) for entry in self._visible)

    @property
    def chars(self) -> int:
        """Characters of all messages, with calls as JSON."""
        return sum(entry.chars for entry in self._visible)

    @property
    def estimated_tokens(self) -> int:
        """Characters / 4, rounded up over the sum (CTX-6)."""
        return tokens_of(self.chars)

    # ---- turns

    def begin_turn(
        self, turn: ConversationMessage, *, number: int, retried: ConversationMessage | None = None
    ) -> list[ViewEntry]:
        """Append the user message of `turn`, the session's turn `number`, in place of the turn that it retries.

        That is the turn before it, which has no answer. Its entries leave, and are returned; a new segment begins. If
        it has called tools, a note says so, or the retry would call them again unaware.
        """
        tries, leaving = 0, [entry for entry in self._entries if retried and entry.ref.number == number - 1]
        if retried and leaving:
            tries = leaving[0].ref.retried if leaving[0].begins_turn else 0
            self._replace([entry for entry in self._entries if entry.ref.number != number - 1])
            if note := earlier_try_note(retried):
                ref = ViewRef(turn=retried.id, number=number - 1, note="earlier_try", retried=tries)
                self._append(ViewEntry.of_note(note, ref))
            tries = 0 if note else tries + 1
            self.open_segment()
        self._append(ViewEntry.from_turn(ViewRef(turn=turn.id, number=number, retried=tries), turn))
        return leaving

    def replace_request(self, turn: ConversationMessage) -> None:
        """Replace the user message of `turn` after its text has changed; no request was made with it yet."""
        self._replace(
            [
                ViewEntry.from_turn(entry.ref.model_copy(update={"messages": ()}), turn)
                if entry.is_prompt_of(turn.id)
                else entry
                for entry in self._entries
            ]
        )

    def append_step(self, turn: ConversationMessage, *, number: int, state: ProviderState | None = None) -> None:
        """Append the newest step of `turn`, unless it is empty.

        A steering prompt directly behind another prompt joins its message, unless that was sent.
        """
        self._append_step(turn, turn.steps_omitted + len(turn.steps) - 1, number=number, state=state)

    def _append_step(
        self, turn: ConversationMessage, index: int, *, number: int, state: ProviderState | None = None
    ) -> None:
        newest = self._entries[-1] if self._entries else None
        step = turn.steps[index - turn.steps_omitted]
        is_behind_prompt = newest is not None and newest.is_from_user and newest.ref.number == number
        if newest and is_behind_prompt and isinstance(step, UserStep) and not self._is_sent:
            self._entries[-1] = self._visible[-1] = newest.with_prompt_added(turn)
            return
        entry = ViewEntry.from_turn(ViewRef(turn=turn.id, number=number, step=index, state=state), turn)
        if entry.messages:
            self._append(entry)

    def end_turn(self, turn: ConversationMessage, *, number: int) -> list[ViewEntry]:
        """Append what ends `turn`, the newest one, besides its steps: a note, if it has no answer (CTX-17).

        All entries of a turn that the vendor refused are replaced in a new segment (CTX-7); they are returned.
        """
        if turn.error_type == "refusal":
            leaving = [entry for entry in self._entries if entry.ref.number == number]
            self._replace([entry for entry in self._entries if entry.ref.number != number])
            self._append(_refused(turn, number, retried=leaving[0].ref.retried if leaving else 0))
            self.open_segment()
            return leaving
        if text := closing_text(turn):
            steps = self._entries[-1].steps_so_far if self._entries else 0  # empty steps behind it have no entry
            self._append(ViewEntry.of_note(text, ViewRef(turn=turn.id, number=number, step=steps, note="ending")))
        return []

    def append_turn(
        self, turn: ConversationMessage, *, number: int, retried: ConversationMessage | None = None
    ) -> None:
        """Append an ended turn, the session's turn `number`: its prompt and its steps, and what ends it."""
        self.begin_turn(turn, number=number, retried=retried)
        for index in range(turn.steps_omitted, turn.steps_omitted + len(turn.steps)):
            self._append_step(turn, index, number=number)
        self.end_turn(turn, number=number)

    # ---- evictions

    def evict_over_cap(
        self, config: ConversationHistoryConfig, *, running_turn: str, reserve: int = 0
    ) -> Eviction | None:
        """Evict a block, and `reserve` messages more, if the view is over its cap (CTX-4).

        Head and tail, the running turn's user message and the last entry always stay, and so does the summary.
        """
        if config.max_messages == 0 or self.message_count <= config.max_messages:
            return None
        preserved = config.preserve_first_n + config.preserve_last_n
        has_room = config.max_messages - preserved >= MIN_ROOM_FOR_ENDING
        head = head_indexes(self._entries, config.preserve_first_n, keeps_answer=has_room)
        permanent = permanent_entries(
            self._entries, running_turn, {*head, *tail_indexes(self._entries, config.preserve_last_n)}
        )
        count = sum(len(entry.messages) for entry in self._entries)
        room = eviction_config(config).max_messages - MAX_NOTES - (1 if self.summary else reserve)
        return self._evict(count - room, permanent, size=lambda entry: len(entry.messages))

    def evict_over_bytes(self, max_bytes: int, *, running_turn: str, first_n: int) -> Eviction | None:
        """Evict the oldest entries, down to half, if the carried view has more than `max_bytes` (SES-15).

        The first `first_n` messages stay up to a quarter of it; the summary and the running turn's user message always
        stay.
        """
        if self.carried_bytes <= max_bytes:
            return None
        head = head_indexes(self._entries, first_n)
        sizes = accumulate(self._entries[index].carried_bytes for index in head)
        fitting = head[: max(sum(size <= max_bytes // 4 for size in sizes), min(1, first_n))]
        permanent = permanent_entries(self._entries, running_turn, set(fitting), keeps_last=False)
        return self._evict(self.carried_bytes - max_bytes // 2, permanent, size=lambda entry: entry.carried_bytes)

    def shrink(self, max_chars: int, *, running_turn: str, first_n: int) -> Eviction | None:
        """Evict the oldest entries until the others have at most `max_chars` characters, if possible (CTX-7).

        The first `first_n` messages, the summary, the running turn's user message and the last entry always stay.
        """
        segment, evicted = self.segment, list[ViewEntry]()
        while self.chars > max_chars:  # again if the notes about an eviction are too long
            permanent = permanent_entries(self._entries, running_turn, set(head_indexes(self._entries, first_n)))
            eviction = self._evict(self.chars - max_chars, permanent, size=lambda entry: entry.chars)
            if eviction is None:
                break
            evicted += eviction.entries
            self.segment = segment + 1
        return Eviction(evicted, sum(len(entry.messages) for entry in evicted)) if evicted else None

    def shorten(self, max_chars: int, *, running_turn: str, first_n: int) -> dict[int, int]:
        """Shorten what `shrink` never evicts to three quarters of `max_chars`, if it has more characters than that.

        The longest texts are shortened first; the running turn's user message and the summary stay whole. Returns the
        number of removed characters by turn number. Call it only before a new segment: it changes the prefix.
        """
        permanent = sorted(permanent_entries(self._entries, running_turn, set(head_indexes(self._entries, first_n))))
        chars = sum(self._entries[index].chars for index in permanent)
        chars += self.summary_entry.chars if self.summary_entry else 0
        if chars <= max_chars:
            return {}
        shortenable = [index for index in permanent if not self._entries[index].is_prompt_of(running_turn)]
        messages = [message for index in shortenable for message in self._entries[index].messages]
        lengths = [length for message in messages for length in text_lengths(message)]
        text_chars, cut = max_text_chars(lengths, chars - max_chars * 3 // 4), dict[int, int]()
        entries = list(self._entries)
        for index in shortenable:
            number, before = entries[index].ref.number, entries[index].chars
            entries[index] = entries[index].shortened(text_chars)
            cut[number] = cut.get(number, 0) + before - entries[index].chars
        self._replace(entries)
        return cut

    def shorten_prompt(self, max_chars: int, *, running_turn: str) -> dict[int, int]:
        """Name the largest attachments of the running turn's prompt until it has `max_chars` characters, if possible.

        Returns the number of removed characters by turn number; a new segment begins if there are any.
        """
        prompts = [index for index, entry in enumerate(self._entries) if entry.is_prompt_of(running_turn)]
        entry = self._entries[prompts[-1]] if prompts else None
        if entry is None or entry.chars <= max_chars:
            return {}
        messages = tuple(name_largest_attachments(message, entry.chars - max_chars) for message in entry.messages)
        if messages == entry.messages:
            return {}
        shortened = ViewEntry.with_messages(entry.ref.model_copy(update={"messages": messages}), messages)
        self._replace([shortened if one is entry else one for one in self._entries])
        self.open_segment()
        return {entry.ref.number: entry.chars - shortened.chars}

    def insert_summary(self, summary: Summary) -> None:
        """Insert `summary` in the place of the earlier one, where turns are left out.

        Call it only between an eviction and the next request: it changes the prefix of the new segment.
        """
        self.summary = summary
        self._replace(self._entries)

    def detach(self, turn: ConversationMessage, *, steps_before: int | None = None, inline_bytes: int) -> None:
        """Detach the entries of `turn`, see `detached`."""
        self._replace(detached(self._entries, turn, steps_before=steps_before, inline_bytes=inline_bytes))

    def open_segment(self) -> None:
        """Begin a segment: from now on, no opaque provider state of earlier steps is sent (CTX-4, AGT-9)."""
        self.segment += 1
        self._replace([entry.without_state() for entry in self._entries])

    def request(self, head: RequestHead) -> ModelRequest:
        """Return a request of the present messages; later changes of the view do not affect it."""
        self._is_sent = True
        return ModelRequest(head=head, messages=self.messages)

    def digest(self, head: RequestHead) -> str:
        """Return the digest of the exact context; equal to `digest_of(self.request(head))`."""
        if self._hashed_head is None or self._hashed_head[0] is not head:
            self._hashed_head = (head, _head_hash(head))
        return _digest(self._hashed_head[1].copy(), (digest for entry in self._visible for digest in entry.digests))

    # ---- inside

    def _append(self, entry: ViewEntry) -> None:
        if not self._entries:
            self._replace([entry])
            return
        self._is_sent = False
        self._visible += [*notes_between(self._entries[-1], entry, summary=self.summary), entry]
        self._entries.append(entry)

    def _replace(self, entries: list[ViewEntry]) -> None:
        self._entries = entries
        self._visible = arranged(entries, self.summary)
        """The model's messages: the entries, the notes between them, and the summary."""

    def _evict(self, excess: int, permanent: set[int], *, size: Callable[[ViewEntry], int]) -> Eviction | None:
        """Evict the oldest entries, see `oldest_to_evict`, in a new segment."""
        leaving = oldest_to_evict(self._entries, excess, permanent, size=size)
        if not leaving:
            return None
        evicted = [entry.without_state() for index, entry in enumerate(self._entries) if index in leaving]
        self._replace([entry for index, entry in enumerate(self._entries) if index not in leaving])
        self.open_segment()
        return Eviction(entries=evicted, evicted=sum(len(entry.messages) for entry in evicted))


def digest_of(request: ModelRequest) -> str:
    """Return the digest of a request's exact context; equal in every process (AGT-2)."""
    return _digest(_head_hash(request.head), (message_digest(message) for message in request.messages))


def _head_hash(head: RequestHead) -> "_Hash":
    return sha256(head.model_dump_json().encode())


def _digest(total: "_Hash", message_digests: Iterable[bytes]) -> str:
    for digest in message_digests:
        total.update(digest)
    return total.hexdigest()[:16]


def _refused(turn: ConversationMessage, number: int, *, retried: int) -> ViewEntry:
    """Return the entry in place of a turn that the vendor refused: its prompt would be refused again (CTX-7)."""
    messages = (
        ModelMessage(role="user", content=REFUSED_PROMPT),
        ModelMessage(role="assistant", content=ending_note(turn) or ""),
    )
    ref = ViewRef(turn=turn.id, number=number, messages=messages, note="refused", retried=retried)
    return ViewEntry.with_messages(ref, messages)


def system_tokens(head: RequestHead) -> int:
    return estimate_tokens([{"content": head.system}])


def tools_tokens(head: RequestHead) -> int:
    return estimate_tokens({"content": tool.model_dump()} for tool in head.tools)


def head_tokens(head: RequestHead) -> int:
    """Estimate the tokens of the head.

    >>> head_tokens(RequestHead(system="Be brief."))
    3
    """
    return system_tokens(head) + tools_tokens(head)


def request_tokens(request: ModelRequest) -> int:
    """Estimate the input tokens of a request with its large texts and attachments restored.

    >>> from turnkeeper.models.transcript.model_call import ModelMessage
    >>> messages = [ModelMessage(role="user", content="Hi"), ModelMessage(role="assistant", content="Hello!")]
    >>> request_tokens(ModelRequest(head=RequestHead(system="Be brief."), messages=messages))
    5
    """
    chars = sum(map(count_chars, request.messages))
    chars += sum(estimated_chars(one) for message in request.messages for one in message.attachments)
    return head_tokens(request.head) + tokens_of(chars)
