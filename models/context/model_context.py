"""The model's context in a session, and what happens to the rest (CTX-4, CTX-5, CTX-7).

    in the window        in the model view, verbatim
    evicted              waits here for the next summary if summaries are on; otherwise a note says that it is left out
    summarised           one message in the view replaces it

Messages move down this list only. A note replaces a turn that the vendor refused, and a retry the turn that it retries.
The window is the configured one; after a vendor said that the context is too long, a learned limit of tokens applies
too. The transcript never changes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Annotated

from pydantic import BeforeValidator

from turnkeeper.models.context.eviction import Evicted, EvictedState, Eviction, messages_to_summarise
from turnkeeper.models.context.model_view import ModelView, ViewState, head_tokens
from turnkeeper.models.context.summary import FILES_CHARS, SUMMARY_CHARS, next_summary
from turnkeeper.models.context.view_entries import ViewEntry, texts_of
from turnkeeper.models.context.window import ConversationHistoryConfig, no_room_warning
from turnkeeper.models.texts import CHARS_PER_TOKEN, bound_json, tokens_of
from turnkeeper.models.transcript.conversation import ContextSize, ConversationMessage, Usage
from turnkeeper.models.transcript.model_call import ModelMessage, RequestHead, SummaryOutcome
from turnkeeper.models.transcript.transcript import Transcript
from turnkeeper.models.wire import Compact, few_keys


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


class ContextState(EvictedState):
    """The carried part of a context (SES-14)."""

    view: ViewState = ViewState()
    cut: Annotated[dict[int, int], BeforeValidator(partial(few_keys, max_keys=MAX_CUT))] = {}
    """Evicted characters of turns that the model still sees in part, by turn number."""
    limit: LearnedLimit | None = None
    """The learned limit of tokens. `limit_warned` is about the window's cap, not about this."""
    reported: ReportedSize | None = None
    limit_warned: bool = False
    """Whether the warning that the view approaches its cap was given in this segment."""


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
        self.evicted = Evicted(state, transcript)
        self._warned_segment = state.view.segment if state.limit_warned else 0
        self._rest = state.model_copy(update={"view": ViewState(), "waiting": []})
        """The rest of the carried state; `state` adds the view, what was evicted, and `limit_warned`."""
        self._request_size: ReportedSize | None = None
        self._room_warned: ConversationHistoryConfig | None = None

    @property
    def state(self) -> ContextState:
        warned = self._warned_segment == self.view.segment
        update = {"view": self.view.state, "limit_warned": warned, **dict(self.evicted.state)}
        return self._rest.model_copy(update=update)

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
    def limit(self) -> LearnedLimit | None:
        return self._rest.limit

    @property
    def carried_bytes(self) -> int:
        """JSON bytes of the carried state, with the view."""
        return self.view.carried_bytes + self.evicted.carried_bytes

    # ---- turns

    def begin_turn(self, turn: ConversationMessage, *, retried: ConversationMessage | None) -> None:
        """Append the prompt of `turn`, the newest one, in place of the turn that it retries, if it retries one."""
        number = self._transcript.count
        if retried:
            self.evicted.drop(number - 1)
        self._count_cut(self.view.begin_turn(turn, number=number, retried=retried))

    def end_turn(self, turn: ConversationMessage) -> None:
        """Append a note if `turn`, the newest one, has no answer; replace it if the vendor refused it (CTX-7)."""
        number = self._transcript.count
        if turn.error_type == "refusal":
            self.evicted.drop(number)
        self._count_cut(self.view.end_turn(turn, number=number))

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
        self._add_cut(self.view.shorten_prompt(max_chars // 2, running_turn=self._running_turn))
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

    def _add_cut(self, cut: dict[int, int]) -> None:
        self._update(cut=dict(Counter(self.cut) + Counter(cut)))

    def _shrink(self, window: ConversationHistoryConfig, max_chars: int) -> None:
        reserve = min(SUMMARY_CHARS, max_chars // 4) if window.summarize_on_trim and self.view.summary is None else 0
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
        reserve = 1 if config.summarize_on_trim and self.view.summary is None else 0
        eviction = self.view.evict_over_cap(config, running_turn=self._running_turn, reserve=reserve)
        if eviction:
            self._note(eviction, config)
        limit = self.max_tokens(config, model=model)
        if limit is not None:
            max_tokens = max(0, limit - head_tokens(head))
            if self.view.estimated_tokens > max_tokens:
                max_chars = max_tokens * CHARS_PER_TOKEN * 2 // 3
                self._add_cut(self.view.shorten_prompt(max_chars // 2, running_turn=self._running_turn))
                self._shrink(config, max_chars)
        self.evict_over_bytes(config, max_bytes=max_bytes)

    def evict_over_bytes(self, window: ConversationHistoryConfig, *, max_bytes: int) -> None:
        """Evict the oldest messages, except head and summary, if the view has more than `max_bytes` (SES-15).

        Messages that wait for a summary may use the room that the view leaves, and a quarter of `max_bytes` more.
        """
        eviction = self.view.evict_over_bytes(
            max_bytes, running_turn=self._running_turn, first_n=window.preserve_first_n
        )
        if eviction:
            self._note(eviction, window)
        self.evicted.bound(max_bytes * 5 // 4 - self.view.carried_bytes)

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
        if self._warned_segment == segment or not _is_near(self.view.message_count, cap):
            return False
        self._warned_segment = segment
        return True

    def pop_room_warning(self, window: ConversationHistoryConfig) -> str | None:
        """Return a warning, once per window, if its settings leave no room: it moves with every message (CTX-2)."""
        if window == self._room_warned:
            return None
        self._room_warned = window
        return no_room_warning(window)

    def _note(self, eviction: Eviction, window: ConversationHistoryConfig) -> None:
        """Keep evicted entries for a summary, if summaries are on, and count what turns have lost."""
        self._count_cut(eviction.entries)
        self.evicted.add(eviction, keeps=window.summarize_on_trim)

    def _count_cut(self, evicted: Iterable[ViewEntry]) -> None:
        cut, seen = Counter(self.cut), {entry.ref.number for entry in self.view.entries}
        for entry in evicted:
            cut[entry.ref.number] += entry.chars
        self._update(cut={number: chars for number, chars in cut.items() if number in seen})

    # ---- summaries

    def messages_to_summarise(self) -> list[ModelMessage]:
        """Return the content of the next summary: the earlier summary, if any, and the messages evicted since."""
        earlier = self.view.summary_entry
        prompts = {entry.ref.number: entry.messages[0].content for entry in self.view.entries if entry.is_prompt}
        evicted = messages_to_summarise(self.evicted.entries, prompts)
        return [*earlier.messages, *evicted] if earlier else evicted

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
        self.evicted.remove(of)
        self.view.insert_summary(summary)
        self._on_change()

    # ---- when turns leave the session

    def texts_of(self, turns: Iterable[ConversationMessage], *, inline_bytes: int) -> list[str]:
        """Return the texts to store before all entries of `turns` are detached."""
        return texts_of([*self.view.entries, *self.evicted.entries], turns, inline_bytes=inline_bytes)

    def detach(self, turn: ConversationMessage, *, steps_before: int | None = None, inline_bytes: int) -> None:
        """Detach all entries of `turn`, see `model_view.detached`."""
        self.view.detach(turn, steps_before=steps_before, inline_bytes=inline_bytes)
        self.evicted.detach(turn, steps_before=steps_before, inline_bytes=inline_bytes)


def _is_near(message_count: int, cap: int) -> bool:
    """Return whether the messages are over 80 % of the cap; 0: there is none (CTX-6)."""
    return cap > 0 and message_count * 5 > cap * 4
