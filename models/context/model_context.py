"""What the model has before it in a session, and what became of the rest (CTX-4, CTX-5, CTX-7).

    in the window        the model view: verbatim
    evicted              waits here for the next summary if summaries are wanted; else the model has forgotten it
    summarised           one message in the view stands for it

A message goes that way in this direction only. A note stands for a turn that the vendor refused. The window itself is
the configured one; once a vendor said that the context is too long, only as many of its messages are sent as fit a
limit of tokens. None of this touches the transcript.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

from pydantic import BeforeValidator

from turnkeeper.models.bounds import bound_json
from turnkeeper.models.context.model_view import (
    Eviction,
    ModelView,
    ViewEntry,
    ViewRef,
    ViewState,
    detached,
    restored,
    texts_of,
)
from turnkeeper.models.context.request_size import head_tokens
from turnkeeper.models.context.summary import EVICTED_A_SUMMARY, FILES_CHARS, SUMMARY_CHARS, carries_text, next_summary
from turnkeeper.models.context.window import ConversationHistoryConfig, halved_cap, halved_config, no_room_warning
from turnkeeper.models.tokens import CHARS_PER_TOKEN, tokens_of
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.model_call import ModelMessage, RequestHead, SummaryOutcome
from turnkeeper.models.transcript.trajectory import Usage
from turnkeeper.models.transcript.transcript import Transcript
from turnkeeper.models.wire import Compact, Items, few_keys


class Reported(Compact):
    """What a vendor counted of a request: `tokens`, head included, for a view of `chars` characters in `segment`."""

    tokens: int
    chars: int
    segment: int


class Halved(Compact):
    """What an overflow has halved a window to: `cap` messages, for this model and configuration.

    In runs of rules 1 and 2 only: it ends with the last of these.
    """

    cap: int
    model: str
    config: ConversationHistoryConfig


class LearnedLimit(Compact):
    """The most `tokens` that are sent, estimated, since an overflow; for this model and configuration (CTX-7)."""

    tokens: int
    model: str
    config: ConversationHistoryConfig


MIN_SUMMARY_BYTES = 600
"""What a summary may have however little a model takes."""

MAX_CUT = 10_000
"""Most turns that a carried state can count what was cut of: the view itself refers to fewer."""


class ContextState(Compact):
    """What the next run is handed of a context (SES-14)."""

    view: ViewState = ViewState()
    waiting: Items[ViewRef] = []
    """Evicted, and in no summary yet; oldest first."""
    evicted_since: int = 0
    """Messages evicted since a summary was last tried."""
    summaries_failed: int = 0
    given_up: int = 0
    """Messages that waited for a summary until no more could be carried."""
    cut: Annotated[dict[int, int], BeforeValidator(partial(few_keys, max_keys=MAX_CUT))] = {}
    """Characters evicted of turns that the model still sees in part, by the turn's number."""
    halved: Halved | None = None
    limit: LearnedLimit | None = None
    reported: Reported | None = None
    limit_warned: bool = False
    """It was said in the view's segment that the view approaches its cap."""


@dataclass(frozen=True)
class EvictionNews:
    """What has gone since it was last asked for: messages evicted, and messages that will be in no summary."""

    evicted: int
    given_up: int


class ModelContext:
    """The model view of one session, and what has left it.

    The turn that is running, if there is one, is the newest of the transcript.
    """

    def __init__(
        self, state: ContextState, transcript: Transcript, *, on_change: Callable[[], None] = lambda: None
    ) -> None:
        """Go on from `state`; every turn that it refers to is in `transcript`.

        `on_change` is called where what the model sees of the running turn has changed: by `learn_limit` and
        `put_summary`. All other changes are pieces of a change of the session, or come before a request: both raise
        the session's revision.
        """
        self._transcript = transcript
        self._on_change = on_change
        self.view = ModelView(state.view, transcript)
        self._waiting = [restored(ref, transcript) for ref in state.waiting]
        self._warned_segment = state.view.segment if state.limit_warned else 0
        self._rest = state.model_copy(update={"view": ViewState(), "waiting": []})
        """All that is carried beside the three above; replaced with every change."""
        self._asked: Reported | None = None
        self._untold = EvictionNews(0, 0)
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
        """The id of the running turn, whose prompt always stays; empty: none is running."""
        newest = self._transcript.newest
        return newest.id if newest and not newest.is_complete else ""

    @property
    def cut(self) -> dict[int, int]:
        """Characters evicted of turns that the model still sees in part, by the turn's number."""
        return self._rest.cut

    @property
    def given_up(self) -> int:
        """How many messages waited for a summary until no more could be carried."""
        return self._rest.given_up

    @property
    def summaries_failed(self) -> int:
        return self._rest.summaries_failed

    @property
    def limit(self) -> LearnedLimit | None:
        return self._rest.limit

    @property
    def carried_bytes(self) -> int:
        """JSON bytes of what is carried to the next run, with the view."""
        return self.view.carried_bytes + _bytes_of(self._waiting)

    @property
    def waiting(self) -> Sequence[ViewEntry]:
        """What was evicted and is to enter the next summary, oldest first."""
        return self._waiting

    # ---- its size

    def note_request(self) -> None:
        self._asked = Reported(tokens=0, chars=self.view.chars, segment=self.view.segment)

    def note_usage(self, usage: Usage | None) -> None:
        """Take a vendor's word for how large the view was that it was asked with."""
        if self._asked and usage and usage.input_tokens:
            self._update(reported=self._asked.model_copy(update={"tokens": usage.input_tokens}))

    @property
    def reported_tokens(self) -> int | None:
        """Tokens as the vendor counted them, and what came after as an estimate; `None` if it has not in this segment.

        Beyond the view it counts what is sent before it, too.
        """
        known = self._rest.reported
        if known is None or known.segment != self.view.segment:
            return None
        return known.tokens + tokens_of(self.view.chars - known.chars)

    # ---- the window

    def window(self, config: ConversationHistoryConfig, *, model: str) -> ConversationHistoryConfig:
        """Return the window that is kept: the configured one, unless a run of rules 1 or 2 has halved just that one."""
        halved = self._rest.halved
        if halved is None or (halved.model, halved.config) != (model, config):
            return config
        return halved_config(config, halved.cap)

    def max_tokens(self, config: ConversationHistoryConfig, *, model: str) -> int | None:
        """Return the most tokens that are sent, estimated, system prompt and tools included; `None`: no limit."""
        limit = self.limit
        return limit.tokens if limit and (limit.model, limit.config) == (model, config) else None

    def learn_limit(self, config: ConversationHistoryConfig, *, model: str, head: RequestHead) -> None:
        """Send half of what was sent, by its size, after the model's vendor said that it was too long (CTX-7).

        No more is sent from now on, in a new segment. Messages are halved; the `head` is sent as it is. The oldest
        messages are evicted; where those that always stay are too long by themselves, the longest of their texts are
        shortened.
        """
        limit, max_chars = head_tokens(head) + self.view.estimated_tokens // 2, self.view.chars // 2
        learned = self.max_tokens(config, model=model)
        self._update(limit=LearnedLimit(tokens=min(limit, learned or limit), model=model, config=config))
        cut = self.view.shorten(max_chars, running_turn=self._running_turn, head=config.preserve_first_n)
        self._update(cut=dict(Counter(self.cut) + Counter(cut)))
        segment = self.view.segment
        self._shrink(config, max_chars)
        if self.view.segment == segment:
            self.view.open_segment()
        self._on_change()

    def restore_limit(self, limit: LearnedLimit | None) -> None:
        """Send as much as before again: what was learned since says nothing of how much the model takes."""
        self._update(limit=limit)

    def confirm_limit(self, config: ConversationHistoryConfig, *, model: str, tokens: int) -> None:
        """Raise the learned limit where the model has answered to more: what can't be evicted may be over it."""
        limit = self.max_tokens(config, model=model)
        if self.limit and limit is not None and tokens > limit:
            self._update(limit=self.limit.model_copy(update={"tokens": tokens}))

    def _shrink(self, window: ConversationHistoryConfig, max_chars: int) -> None:
        reserve = min(SUMMARY_CHARS, max_chars // 4) if self._awaits_summary(window) else 0
        eviction = self.view.shrink(max_chars - reserve, running_turn=self._running_turn, head=window.preserve_first_n)
        if eviction:
            self._note(eviction, window)

    def leave_out_turn(self) -> None:
        """Send a note in the place of the newest turn from now on, since the vendor refused it (CTX-7)."""
        turn, number = self._transcript.newest, self._transcript.count
        if turn:
            self._waiting = [entry for entry in self._waiting if entry.ref.number != number]
            self._count_cut(self.view.leave_out(turn, number=number))

    def halve(self, config: ConversationHistoryConfig, *, model: str) -> None:
        """Show the model half of what it sees now, from now on, in a new segment: in runs of rules 1 and 2."""
        cap = halved_cap(self.window(config, model=model), self.view.message_count)
        self._update(halved=Halved(cap=cap, model=model, config=config))
        self.view.open_segment()

    def evict(self, config: ConversationHistoryConfig, *, model: str, head: RequestHead, most_bytes: int) -> None:
        """Evict a block if the view is over the cap of its window (CTX-4), or takes more than `most_bytes` (SES-15).

        Messages that are more than was learned that the `model` takes, with the `head`, are brought down to two thirds
        of that (CTX-7).
        """
        window = self.window(config, model=model)
        reserve = 1 if self._awaits_summary(window) else 0
        eviction = self.view.make_room(window, running_turn=self._running_turn, reserve=reserve)
        if eviction:
            self._note(eviction, window)
        limit = self.max_tokens(config, model=model)
        if limit is not None:
            max_tokens = max(0, limit - head_tokens(head))
            if self.view.estimated_tokens > max_tokens:
                self._shrink(window, max_tokens * CHARS_PER_TOKEN * 2 // 3)
        self.make_carriable(window, most_bytes=most_bytes)

    def _awaits_summary(self, window: ConversationHistoryConfig) -> bool:
        """Return whether an eviction has to leave room for a first summary."""
        return window.summarize_on_trim and self.view.summary is None

    def make_carriable(self, window: ConversationHistoryConfig, *, most_bytes: int) -> None:
        """Evict the oldest, but for head and summary, if the view takes more than `most_bytes` (SES-15).

        What waits for a summary has what room the view leaves, and a quarter more; beyond that it can't be carried.
        """
        eviction = self.view.make_carriable(most_bytes, running_turn=self._running_turn, head=window.preserve_first_n)
        if eviction:
            self._note(eviction, window)
        self._bound_waiting(most_bytes * 5 // 4 - self.view.carried_bytes)

    def take_news(self) -> EvictionNews:
        """Tell what has gone since this was last asked."""
        news, self._untold = self._untold, EvictionNews(0, 0)
        return news

    def take_limit_warning(self, window: ConversationHistoryConfig) -> bool:
        """Tell once a segment that the view has passed 80 % of the cap of `window` (CTX-6)."""
        cap, segment = window.max_messages, self.view.segment
        if not cap or self._limit_warned or self.view.message_count * 5 <= cap * 4:
            return False
        self._warned_segment = segment
        return True

    @property
    def _limit_warned(self) -> bool:
        """It was told in this segment that the view approaches its cap."""
        return self._warned_segment == self.view.segment

    def take_room_warning(self, window: ConversationHistoryConfig) -> str | None:
        """Say once of a window that its settings leave no room; it then moves with every message (CTX-2)."""
        if window == self._room_warned:
            return None
        self._room_warned = window
        return no_room_warning(window)

    def _note(self, eviction: Eviction, window: ConversationHistoryConfig) -> None:
        """Keep what was evicted for a summary, if summaries are wanted, and count what turns have lost."""
        self._count_cut(eviction.entries)
        self._untold = replace(self._untold, evicted=self._untold.evicted + eviction.evicted)
        if window.summarize_on_trim:
            self._update(evicted_since=self._rest.evicted_since + eviction.evicted)
            self._waiting += eviction.entries
        else:
            self._update(evicted_since=0)
            self._waiting = []

    def _bound_waiting(self, most_bytes: int) -> None:
        held = _bytes_of(self._waiting)
        while held > most_bytes:
            oldest = self._waiting.pop(0)
            held -= oldest.carried_bytes
            self._update(given_up=self.given_up + len(oldest.messages))
            self._untold = replace(self._untold, given_up=self._untold.given_up + len(oldest.messages))

    def _count_cut(self, evicted: Iterable[ViewEntry]) -> None:
        cut, seen = Counter(self.cut), {entry.ref.number for entry in self.view.entries if entry.ref.number}
        for entry in evicted:
            cut[entry.ref.number] += entry.chars
        self._update(cut={number: chars for number, chars in cut.items() if number in seen})

    # ---- summaries

    def is_summary_due(self, config: ConversationHistoryConfig) -> bool:
        """Return whether a summary is worth it: enough was evicted since the last one, with words in it (CTX-5)."""
        enough = config.summarize_on_trim and self._rest.evicted_since >= EVICTED_A_SUMMARY
        return enough and carries_text(message for entry in self._waiting for message in entry.messages)

    def messages_to_summarise(self) -> list[ModelMessage]:
        """Return what the next summary is to say: the earlier summary, if there is one, and what was evicted since."""
        earlier = self.view.summary_entry
        entries = [earlier, *self._waiting] if earlier else self._waiting
        return [message for entry in entries for message in entry.messages]

    def begin_summary(self) -> list[ViewEntry]:
        """Note that a summary of what waits now is tried, and return that: a new one is due after as many evictions."""
        self._update(evicted_since=0)
        return list(self._waiting)

    def note_failed_summary(self) -> None:
        """Note that nothing came of a summary: what was to be in it waits for the next."""
        self._update(summaries_failed=self.summaries_failed + 1)

    def put_summary(self, made: SummaryOutcome, *, of: Sequence[ViewEntry], head: int, view_bytes: int) -> None:
        """Let a summary stand for the evicted entries `of`, and for what the earlier one stood for (CTX-5).

        It stands after the first `head` messages, and takes a sixth of the view's `view_bytes` of JSON, or about a
        quarter of what is sent where the model takes little.
        """
        most_bytes = view_bytes // 6
        if self.limit:
            most_bytes = min(most_bytes, max(self.limit.tokens, MIN_SUMMARY_BYTES))
        summary = next_summary(
            self.view.summary,
            made.model_copy(update={"text": bound_json(made.text, SUMMARY_CHARS, most_bytes * 2 // 3)}),
            turns=(entry.ref.number for entry in of if entry.ref.number),
            files_chars=min(FILES_CHARS, most_bytes // 3),
        )
        said = set(map(_place_of, of))
        self._waiting = [entry for entry in self._waiting if _place_of(entry) not in said]
        self.view.put_summary(summary, head=head)
        self._on_change()

    # ---- when turns leave the session

    def texts_of(self, turns: Iterable[ConversationMessage], *, kept_bytes: int) -> list[str]:
        """Return the texts that detaching everything of `turns` will refer to."""
        return texts_of([*self.view.entries, *self._waiting], turns, kept_bytes=kept_bytes)

    def detach(self, turn: ConversationMessage, *, steps_before: int | None = None, kept_bytes: int) -> None:
        """Let what is held of `turn` carry its messages itself, as `model_view.detached` says."""
        self.view.detach(turn, steps_before=steps_before, kept_bytes=kept_bytes)
        self._waiting = detached(self._waiting, turn, steps_before=steps_before, kept_bytes=kept_bytes)


def _place_of(entry: ViewEntry) -> tuple[int, str, int | None]:
    return entry.ref.number, entry.ref.turn, entry.ref.step


def _bytes_of(entries: Iterable[ViewEntry]) -> int:
    return sum(entry.carried_bytes for entry in entries)
