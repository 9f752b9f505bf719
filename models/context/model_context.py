"""What the model sees in a session, and what happens to the rest (CTX-4, CTX-5, CTX-7).

    in the window        in the model view, verbatim
    evicted              waits here for the next summary if summaries are on; otherwise a note says that it is left out
    summarised           one message in the view replaces it

Messages move down this list only. A note replaces a turn that the vendor refused, and a retry the turn that it retries.
The window is the configured one; after a vendor said that the context is too long, a learned limit of tokens applies
too. The transcript never changes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from pydantic import BeforeValidator

from turnkeeper.models.bounds import bound_json
from turnkeeper.models.context.left_out import messages_to_summarise
from turnkeeper.models.context.model_view import Eviction, ModelView, ViewState
from turnkeeper.models.context.request_size import head_tokens
from turnkeeper.models.context.summary import EVICTED_A_SUMMARY, FILES_CHARS, SUMMARY_CHARS, carries_text, next_summary
from turnkeeper.models.context.view_entries import ViewEntry, ViewRef, detached, restored, texts_of
from turnkeeper.models.context.window import ConversationHistoryConfig, no_room_warning
from turnkeeper.models.tokens import CHARS_PER_TOKEN, tokens_of
from turnkeeper.models.transcript.conversation import ContextSize, ConversationMessage
from turnkeeper.models.transcript.model_call import ModelMessage, RequestHead, SummaryOutcome
from turnkeeper.models.transcript.trajectory import Usage
from turnkeeper.models.transcript.transcript import Transcript
from turnkeeper.models.wire import Compact, Items, few_keys


class ReportedSize(Compact):
    """The vendor's count of a request: `tokens` with the head, for a view of `chars` characters in `segment`."""

    tokens: int
    chars: int
    segment: int


class LearnedLimit(Compact):
    """The maximum estimated `tokens` sent since an overflow, for this model and configuration (CTX-7)."""

    tokens: int
    model: str
    config: ConversationHistoryConfig


MIN_SUMMARY_BYTES = 600
"""Room for a summary, however low the learned limit is."""

MAX_CUT = 10_000
"""Maximum items of `ContextState.cut`; the view refers to fewer turns."""


class ContextState(Compact):
    """The carried part of a context (SES-14)."""

    view: ViewState = ViewState()
    waiting: Items[ViewRef] = []
    """Evicted entries that are in no summary yet, oldest first."""
    evicted_since: int = 0
    """Messages evicted since the last attempt at a summary."""
    summaries_failed: int = 0
    given_up: int = 0
    """Messages that no summary will contain, since too many were waiting."""
    cut: Annotated[dict[int, int], BeforeValidator(partial(few_keys, max_keys=MAX_CUT))] = {}
    """Evicted characters of turns that the model still sees in part, by turn number."""
    limit: LearnedLimit | None = None
    """The learned limit of tokens. `limit_warned` is about the window's cap, not about this."""
    reported: ReportedSize | None = None
    limit_warned: bool = False
    """Whether the warning that the view approaches its cap was given in this segment."""


@dataclass(frozen=True)
class EvictionCounts:
    """Numbers of messages that were evicted, and that will be in no summary, since the last call."""

    evicted: int
    given_up: int


class ModelContext:
    """The model view of one session, and the messages that have left it.

    The running turn, if there is one, is the newest of the transcript.
    """

    def __init__(
        self, state: ContextState, transcript: Transcript, *, on_change: Callable[[], None] = lambda: None
    ) -> None:
        """Continue from `state`; every turn that it refers to is in `transcript`.

        `learn_limit` and `insert_summary` call `on_change`, since they change what the model sees of the running turn.
        All other methods are called in a change of the session, or before a request, which raise the revision
        themselves.
        """
        self._transcript = transcript
        self._on_change = on_change
        self.view = ModelView(state.view, transcript)
        self._waiting = [restored(ref, transcript) for ref in state.waiting]
        self._warned_segment = state.view.segment if state.limit_warned else 0
        self._rest = state.model_copy(update={"view": ViewState(), "waiting": []})
        """The rest of the carried state; `state` adds the view, the waiting entries and `limit_warned`."""
        self._request_size: ReportedSize | None = None
        self._eviction_counts = EvictionCounts(0, 0)
        self._room_warned: ConversationHistoryConfig | None = None

    @property
    def state(self) -> ContextState:
        waiting = [entry.ref for entry in self._waiting]
        return self._rest.model_copy(
            update={"view": self.view.state, "waiting": waiting, "limit_warned": self._limit_warned}
        )

    def _update(self, **update: object) -> None:
        self._rest = self._rest.model_copy(update=update)

    @property
    def _running_turn(self) -> str:
        """The id of the running turn, whose prompt always stays; empty without one."""
        newest = self._transcript.newest
        return newest.id if newest and not newest.is_complete else ""

    @property
    def cut(self) -> dict[int, int]:
        """Evicted characters of turns that the model still sees in part, by turn number."""
        return self._rest.cut

    @property
    def given_up(self) -> int:
        """Number of messages that no summary will contain, since too many were waiting."""
        return self._rest.given_up

    @property
    def summaries_failed(self) -> int:
        return self._rest.summaries_failed

    @property
    def limit(self) -> LearnedLimit | None:
        return self._rest.limit

    @property
    def carried_bytes(self) -> int:
        """JSON bytes of the carried state, with the view."""
        return self.view.carried_bytes + _bytes_of(self._waiting)

    @property
    def waiting(self) -> Sequence[ViewEntry]:
        """Evicted entries for the next summary, oldest first."""
        return self._waiting

    # ---- turns

    def begin_turn(self, turn: ConversationMessage, *, retried: ConversationMessage | None) -> None:
        """Append the prompt of `turn`, the newest one, in place of the turn that it retries, if it retries one."""
        number = self._transcript.count
        if retried:
            self._drop_waiting(number - 1)
        self._count_cut(self.view.begin_turn(turn, number=number, retried=retried))

    def end_turn(self, turn: ConversationMessage) -> None:
        """Append a note if `turn`, the newest one, has no answer; replace it if the vendor refused it (CTX-7)."""
        number = self._transcript.count
        if turn.error_type == "refusal":
            self._drop_waiting(number)
        self._count_cut(self.view.end_turn(turn, number=number))

    def _drop_waiting(self, number: int) -> None:
        """Leave the evicted entries of a turn that is replaced out of the next summary."""
        self._waiting = [entry for entry in self._waiting if entry.ref.number != number]

    # ---- its size

    def note_request(self) -> None:
        self._request_size = ReportedSize(tokens=0, chars=self.view.chars, segment=self.view.segment)

    def note_usage(self, usage: Usage | None) -> None:
        """Record the vendor's count of the last request."""
        if self._request_size and usage and usage.input_tokens:
            self._update(reported=self._request_size.model_copy(update={"tokens": usage.input_tokens}))

    @property
    def reported_tokens(self) -> int | None:
        """Tokens of the request with its head: the vendor's count, plus an estimate of later messages.

        `None` if the vendor has reported none in this segment.
        """
        reported = self._rest.reported
        if reported is None or reported.segment != self.view.segment:
            return None
        return reported.tokens + tokens_of(self.view.chars - reported.chars)

    # ---- the window

    def max_tokens(self, config: ConversationHistoryConfig, *, model: str) -> int | None:
        """Return the maximum estimated tokens of a request, system prompt and tools included; `None`: no limit."""
        limit = self.limit
        return limit.tokens if limit and (limit.model, limit.config) == (model, config) else None

    def learn_limit(self, config: ConversationHistoryConfig, *, model: str, head: RequestHead) -> None:
        """Halve the size of the messages, after the model's vendor said that the request was too long (CTX-7).

        The result, with the unchanged `head`, is the limit from now on; a new segment begins. The oldest messages are
        evicted; if those that always stay are too long by themselves, the longest of their texts are shortened. Before,
        the prompt's attachments are named, the largest first, if the prompt has more than half of that size.
        """
        limit, max_chars = head_tokens(head) + self.view.estimated_tokens // 2, self.view.chars // 2
        learned = self.max_tokens(config, model=model)
        self._update(limit=LearnedLimit(tokens=min(limit, learned or limit), model=model, config=config))
        segment = self.view.segment
        self._shorten_prompt(max_chars)
        self._add_cut(self.view.shorten(max_chars, running_turn=self._running_turn, first_n=config.preserve_first_n))
        self._shrink(config, max_chars)
        if self.view.segment == segment:
            self.view.open_segment()
        self._on_change()

    def restore_limit(self, limit: LearnedLimit | None) -> None:
        """Set the limit back: what was learned since says nothing about the model."""
        self._update(limit=limit)

    def confirm_limit(self, config: ConversationHistoryConfig, *, model: str, tokens: int) -> None:
        """Raise the learned limit if the model has answered a longer request: what can't be evicted may exceed it."""
        limit = self.max_tokens(config, model=model)
        if self.limit and limit is not None and tokens > limit:
            self._update(limit=self.limit.model_copy(update={"tokens": tokens}))

    def _shorten_prompt(self, max_chars: int) -> None:
        """Leave the conversation half of `max_chars`: else a prompt with large attachments would evict all of it."""
        self._add_cut(self.view.shorten_prompt(max_chars // 2, running_turn=self._running_turn))

    def _add_cut(self, cut: dict[int, int]) -> None:
        self._update(cut=dict(Counter(self.cut) + Counter(cut)))

    def _shrink(self, window: ConversationHistoryConfig, max_chars: int) -> None:
        reserve = min(SUMMARY_CHARS, max_chars // 4) if self._awaits_summary(window) else 0
        eviction = self.view.shrink(
            max_chars - reserve, running_turn=self._running_turn, first_n=window.preserve_first_n
        )
        if eviction:
            self._note(eviction, window)

    def evict(self, config: ConversationHistoryConfig, *, model: str, head: RequestHead, max_bytes: int) -> None:
        """Evict a block if the view is over the cap of its window (CTX-4), or has more than `max_bytes` (SES-15).

        If messages and `head` exceed the learned limit of the `model`, messages are evicted down to two thirds of what
        it leaves (CTX-7).
        """
        reserve = 1 if self._awaits_summary(config) else 0
        eviction = self.view.evict_over_cap(config, running_turn=self._running_turn, reserve=reserve)
        if eviction:
            self._note(eviction, config)
        limit = self.max_tokens(config, model=model)
        if limit is not None:
            max_tokens = max(0, limit - head_tokens(head))
            if self.view.estimated_tokens > max_tokens:
                max_chars = max_tokens * CHARS_PER_TOKEN * 2 // 3
                self._shorten_prompt(max_chars)
                self._shrink(config, max_chars)
        self.evict_over_bytes(config, max_bytes=max_bytes)

    def _awaits_summary(self, window: ConversationHistoryConfig) -> bool:
        """Return whether an eviction must leave room for a first summary."""
        return window.summarize_on_trim and self.view.summary is None

    def evict_over_bytes(self, window: ConversationHistoryConfig, *, max_bytes: int) -> None:
        """Evict the oldest messages, except head and summary, if the view has more than `max_bytes` (SES-15).

        Messages that wait for a summary may use the room that the view leaves, and a quarter of `max_bytes` more.
        """
        eviction = self.view.evict_over_bytes(
            max_bytes, running_turn=self._running_turn, first_n=window.preserve_first_n
        )
        if eviction:
            self._note(eviction, window)
        self._bound_waiting(max_bytes * 5 // 4 - self.view.carried_bytes)

    def pop_eviction_counts(self) -> EvictionCounts:
        """Return the counts since the last call, and reset them."""
        counts, self._eviction_counts = self._eviction_counts, EvictionCounts(0, 0)
        return counts

    def size(self, config: ConversationHistoryConfig, *, model: str) -> ContextSize:
        """Return the size of the model view, and its cap."""
        cap = config.max_messages
        return ContextSize(
            message_count=self.view.message_count,
            estimated_tokens=self.view.estimated_tokens,
            max_messages=cap,
            is_near_limit=_is_near(self.view.message_count, cap),
        )

    def pop_limit_warning(self, window: ConversationHistoryConfig) -> bool:
        """Return whether to warn that the view has passed 80 % of the cap of `window`: once a segment (CTX-6)."""
        cap, segment = window.max_messages, self.view.segment
        if self._limit_warned or not _is_near(self.view.message_count, cap):
            return False
        self._warned_segment = segment
        return True

    @property
    def _limit_warned(self) -> bool:
        """Whether the warning that the view approaches its cap was given in this segment."""
        return self._warned_segment == self.view.segment

    def pop_room_warning(self, window: ConversationHistoryConfig) -> str | None:
        """Return a warning, once per window, if its settings leave no room: it moves with every message (CTX-2)."""
        if window == self._room_warned:
            return None
        self._room_warned = window
        return no_room_warning(window)

    def _note(self, eviction: Eviction, window: ConversationHistoryConfig) -> None:
        """Keep evicted entries for a summary, if summaries are on, and count what turns have lost."""
        self._count_cut(eviction.entries)
        self._count_evicted(evicted=eviction.evicted)
        if window.summarize_on_trim:
            self._update(evicted_since=self._rest.evicted_since + eviction.evicted)
            self._waiting = sorted([*self._waiting, *eviction.entries], key=_place_of)  # a prompt may follow its steps
        else:
            self._update(evicted_since=0)
            self._waiting = []

    def _count_evicted(self, *, evicted: int = 0, given_up: int = 0) -> None:
        counts = self._eviction_counts
        self._eviction_counts = EvictionCounts(counts.evicted + evicted, counts.given_up + given_up)

    def _bound_waiting(self, max_bytes: int) -> None:
        waiting_bytes = _bytes_of(self._waiting)
        while waiting_bytes > max_bytes:
            oldest = self._waiting.pop(0)
            waiting_bytes -= oldest.carried_bytes
            self._update(given_up=self.given_up + len(oldest.messages))
            self._count_evicted(given_up=len(oldest.messages))

    def _count_cut(self, evicted: Iterable[ViewEntry]) -> None:
        cut, seen = Counter(self.cut), {entry.ref.number for entry in self.view.entries}
        for entry in evicted:
            cut[entry.ref.number] += entry.chars
        self._update(cut={number: chars for number, chars in cut.items() if number in seen})

    # ---- summaries

    def is_summary_due(self, config: ConversationHistoryConfig) -> bool:
        """Return whether to summarise now: enough messages were evicted since the last summary, with text (CTX-5)."""
        enough = config.summarize_on_trim and self._rest.evicted_since >= EVICTED_A_SUMMARY
        return enough and carries_text(message for entry in self._waiting for message in entry.messages)

    def messages_to_summarise(self) -> list[ModelMessage]:
        """Return the content of the next summary: the earlier summary, if any, and the messages evicted since."""
        earlier = self.view.summary_entry
        prompts = {entry.ref.number: entry.messages[0].content for entry in self.view.entries if entry.is_prompt}
        evicted = messages_to_summarise(self._waiting, prompts)
        return [*earlier.messages, *evicted] if earlier else evicted

    def begin_summary(self) -> list[ViewEntry]:
        """Return the entries to summarise now, and restart the count of evictions."""
        self._update(evicted_since=0)
        return list(self._waiting)

    def note_failed_summary(self) -> None:
        """Count a failed summary; its messages wait for the next one."""
        self._update(summaries_failed=self.summaries_failed + 1)

    def insert_summary(self, outcome: SummaryOutcome, *, of: Sequence[ViewEntry], view_bytes: int) -> None:
        """Insert a summary of the evicted entries `of`, which replaces the earlier summary too (CTX-5).

        It may have a sixth of the view's `view_bytes` as JSON, or about a
        quarter of a learned limit that is lower.
        """
        max_bytes = view_bytes // 6
        if self.limit:
            max_bytes = min(max_bytes, max(self.limit.tokens, MIN_SUMMARY_BYTES))
        summary = next_summary(
            self.view.summary,
            outcome.model_copy(update={"text": bound_json(outcome.text, SUMMARY_CHARS, max_bytes * 2 // 3)}),
            turns=(entry.ref.number for entry in of),
            files_chars=min(FILES_CHARS, max_bytes // 3),
        )
        summarised = set(map(_place_of, of))
        self._waiting = [entry for entry in self._waiting if _place_of(entry) not in summarised]
        self.view.insert_summary(summary)
        self._on_change()

    # ---- when turns leave the session

    def texts_of(self, turns: Iterable[ConversationMessage], *, inline_bytes: int) -> list[str]:
        """Return the texts to store before all entries of `turns` are detached."""
        return texts_of([*self.view.entries, *self._waiting], turns, inline_bytes=inline_bytes)

    def detach(self, turn: ConversationMessage, *, steps_before: int | None = None, inline_bytes: int) -> None:
        """Detach all entries of `turn`, see `model_view.detached`."""
        self.view.detach(turn, steps_before=steps_before, inline_bytes=inline_bytes)
        self._waiting = detached(self._waiting, turn, steps_before=steps_before, inline_bytes=inline_bytes)


def _place_of(entry: ViewEntry) -> tuple[int, int]:
    return entry.ref.number, -1 if entry.ref.step is None else entry.ref.step


def _bytes_of(entries: Iterable[ViewEntry]) -> int:
    return sum(entry.carried_bytes for entry in entries)


def _is_near(message_count: int, cap: int) -> bool:
    """Return whether the messages are over 80 % of the cap; 0: there is none (CTX-6)."""
    return cap > 0 and message_count * 5 > cap * 4
