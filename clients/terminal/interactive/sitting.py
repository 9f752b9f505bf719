"""One person at one session: what is known of it, what was printed of it, and what goes on now.

Everything that arrives goes through here, in the order in which it arrives; everything that is printed comes from here.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from rich.cells import cell_len
from rich.console import RenderableType
from rich.text import Text

from turnkeeper.clients.python.conversation import Conversation
from turnkeeper.clients.python.events import ConnectionLost, Event, PartialEvent, QueueEvent, UpdateEvent
from turnkeeper.clients.terminal.interactive.decisions import keys_within
from turnkeeper.clients.terminal.interactive.live import LivePainter, Moment, OnItsWay, since_of
from turnkeeper.clients.terminal.interactive.look import Look
from turnkeeper.clients.terminal.interactive.narrator import Ended, Item, Narrator
from turnkeeper.clients.terminal.interactive.paint import Painter, args_of
from turnkeeper.clients.terminal.words import amount, counted, one_line, signature, state
from turnkeeper.models.answers import FullConversation, SessionDescription
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.trajectory import ToolCall, UserStep

LOWER_ROWS = 6
"""What the line to type in, the status line and a question take of the screen."""

LEAST_CALL = 20
"""The characters that a question shows of the call at least."""


class Shows(Protocol):
    """What is needed of a screen."""

    def print(self, text: str) -> None:
        """Print for good."""

    def show(self, *, live: str, question: str, status: str) -> None:
        """Show below what was printed."""


class Sitting:
    """What the terminal knows and shows of the session `session_id`."""

    def __init__(
        self, session_id: str, screen: Shows, look: Look, *, rows: Callable[[], int], now: Callable[[], datetime]
    ) -> None:
        """Know nothing yet; print to `screen`, which has so many `rows`."""
        self.session_id = session_id
        self.conversation = Conversation()
        self.narrator = Narrator()
        self.painter = Painter(look)
        self.on_its_way: list[OnItsWay] = []
        self.stopping: str | None = None
        """The turn that was told to stop."""
        self.about: SessionDescription | None = None
        self.has_to_reopen = False
        """More turns went by than the session can still tell one by one."""
        self._screen = screen
        self._look = look
        self._live = LivePainter(look)
        self._rows = rows
        self._now = now
        self._lost: str | None = None
        self._tick = 0
        self._remarked = False

    # ---- what arrives

    def open_at(self, page: FullConversation) -> None:
        """Tell the newest turns, and go on after them."""
        self.conversation.open_at(page)
        self.has_to_reopen = False
        skipped = list(self.narrator.skip_to(page.first_number)) if page.first_number else []
        self._tell([*skipped, *self.narrator.news(self.conversation)])

    def take(self, event: Event) -> list[Item]:
        """Take in an event; returns what was told because of it."""
        if isinstance(event, ConnectionLost):
            self._lose(event.reason)
            return []
        if self._lost is not None:
            self._lost = None
            self.remark("Connected again: nothing was lost.")
        match event:
            case UpdateEvent():
                return self._take_update(event)
            case QueueEvent():
                self.conversation.apply_queue(event.waiting)
                waiting = {prompt.id for prompt in event.waiting}
                self.on_its_way = [prompt for prompt in self.on_its_way if prompt.message_id not in waiting]
            case PartialEvent():
                self.conversation.apply_partial(event.partial)
        return []

    def _take_update(self, event: UpdateEvent) -> list[Item]:
        self.conversation.apply(event.update)
        self.has_to_reopen = self.has_to_reopen or (event.update.reset and not self._overlaps())
        if self.has_to_reopen:
            return []
        seen = {turn.id for turn in self.conversation.turns} | _steered(self.conversation.running_turn)
        self.on_its_way = [prompt for prompt in self.on_its_way if prompt.message_id not in seen]
        news = list(self.narrator.news(self.conversation))
        self._tell(news)
        if any(isinstance(item, Ended) for item in news):
            self.stopping = None
        return news

    def _overlaps(self) -> bool:
        turns = self.conversation.turns
        return not turns or self.narrator.has_told_nothing or any(self.narrator.knows(turn.id) for turn in turns)

    def _lose(self, reason: str) -> None:
        if self._lost is None:
            self.trouble(f"{reason.removesuffix('.')}. Reconnecting. Everything you sent is safe.")
        self._lost = reason

    # ---- what is printed

    def say(self, *parts: RenderableType) -> None:
        """Print for good."""
        if parts:
            self._screen.print(self._look.render(*parts))
            self._remarked = False

    def remark(self, text: str) -> None:
        """Print a remark, apart from the conversation."""
        self._remark(self.painter.aside(text))

    def trouble(self, text: str) -> None:
        """Print what went wrong."""
        self._remark(self.painter.trouble(text))

    def _remark(self, part: RenderableType) -> None:
        self.say(*([] if self._remarked else [Text("")]), part)
        self._remarked = True

    def _tell(self, items: Sequence[Item]) -> None:
        self.say(*self.painter.paint(items))

    # ---- what is shown below

    @property
    def is_busy(self) -> bool:
        """Something moves on the screen."""
        return self.conversation.is_processing or self._lost is not None or bool(self.on_its_way)

    @property
    def has_begun(self) -> bool:
        """Something was said in this session, or is on its way to it."""
        return bool(self.conversation.turns or self.conversation.waiting or self.on_its_way)

    @property
    def question(self) -> ToolCall | None:
        """The call that a person is asked about now."""
        return next(iter(self.conversation.awaiting_calls), None)

    def refresh(self, *, moved: bool = False) -> None:
        """Show what goes on now; `moved`: a moment has passed."""
        self._tick += moved
        turn = self.conversation.running_turn
        moment = Moment(
            conversation=self.conversation,
            on_its_way=self.on_its_way,
            lost=self._lost,
            stopping=self.stopping is not None,
            since=since_of(turn, now=self._now()),
            until=_seconds_until(self.conversation.waiting_until, now=self._now()),
            tick=self._tick,
        )
        live = self._live.paint(moment, rows=max(3, self._rows() - LOWER_ROWS))
        self._screen.show(live=live, question=self._question(), status=self._status())

    def _question(self) -> str:
        calls = self.conversation.awaiting_calls
        if not calls:
            return ""
        more = f" ({counted(len(calls) - 1, 'more call')} after it)" if len(calls) > 1 else ""
        sign, width = self._look.sign("asks"), self._look.width
        call = signature(calls[0].name, args_of(calls[0]), most=max(LEAST_CALL, width - 6 - len(more)))
        asks, keys = self._look.encodable(f"{sign} {call}{more}"), keys_within(width - 2)
        apart = self._look.encodable(" — ")
        # Where the keys have no room behind the call, they have a line of their own: they are never broken.
        fits = cell_len(f"{asks}{apart}{keys}") <= width
        between = apart if fits else "\n  "
        return f"\n{asks}{between}{keys}"

    def _status(self) -> str:
        conversation, about = self.conversation, self.about
        queued, sending = len(conversation.waiting), len(self.on_its_way)
        facts = [
            self.session_id,
            "reconnecting" if self._lost is not None else state(conversation.status),
            f"{queued} queued" if queued else "",
            f"{sending} sending" if sending else "",
            amount(about.usage) if about else "",
            (about.model or "") if about else "",
        ]
        line = f" {self._look.sign('dot')} ".join(filter(None, facts))
        return self._look.encodable(one_line(line, self._look.width))


def _seconds_until(moment: datetime | None, *, now: datetime) -> float:
    return max(0.0, (moment - now).total_seconds()) if moment else 0.0


def _steered(turn: ConversationMessage | None) -> set[str]:
    return {step.message_id for step in turn.steps if isinstance(step, UserStep)} if turn else set()
