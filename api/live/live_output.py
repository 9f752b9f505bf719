"""What the model of a watched session is writing, for all who watch it (AGT-5).

Theory of operation. Partial output is followed once for a session, however many watch, and only while a turn runs: a
carrier may have to ask for it. What has arrived is the newest snapshot; each watcher is sent how it has grown since the
one it was sent last. Those who were sent the same one are sent the same growth, made and encoded once.

A snapshot is shown to a watcher from the moment it has seen all steps before it, and never once it has seen the step
itself: the answer in the transcript is the one that counts. A watcher that comes back doesn't say which steps it has
seen, so a snapshot is let go of as soon as anyone here learns of its step.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from fastapi.sse import ServerSentEvent

from turnkeeper.api.temporal.watch import Watch
from turnkeeper.models.transcript.conversation import ConversationUpdate
from turnkeeper.models.transcript.partial_output import PartialGrowth, PartialOutput, growth
from turnkeeper.stores.partials.carrier import PartialCarrier

PAUSE_SECONDS = 0.1
"""Least time between two growths of an answer: a carrier may bring more than many watchers can be sent."""

SECONDS_A_WATCHER = 0.0002
"""What it takes to send something to one watcher. As much time for each passes between two changes that are sent: a
crowd that is still being sent one change would learn of the last one only after all those in between."""


@dataclass(frozen=True)
class PartialEvent:
    """What the model has written since the last such event."""

    growth: PartialGrowth

    @cached_property
    def sse(self) -> ServerSentEvent:
        return ServerSentEvent(event="partial", raw_data=self.growth.model_dump_json())


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A snapshot that has arrived; one is told from another by identity, which costs nothing."""

    output: PartialOutput


@dataclass
class SeenSteps:
    """What is known of the model steps of the running turn."""

    message_id: str | None = None
    count: int | None = None
    """How many there are; `None` where that was not said: to one who came back."""
    are_calls_running: bool = False
    """The newest step's tool calls have not all come back yet: the model is not asked before."""

    def learn(self, update: ConversationUpdate) -> None:
        if update.current_message_id != self.message_id:
            self.message_id, self.count, self.are_calls_running = update.current_message_id, None, False
        for turn in [*update.updated_messages, *update.new_messages]:
            if turn.id == self.message_id:
                models = turn.reasoning_trajectory.model_steps if turn.reasoning_trajectory else []
                self.count = models[-1].number if models else 0
                self.are_calls_running = bool(models) and any(call.result is None for call in models[-1].tool_calls)

    def have_seen(self, output: PartialOutput) -> bool:
        return self.message_id == output.message_id and self.count is not None and output.step <= self.count

    def are_just_before(self, output: PartialOutput) -> bool:
        """Return whether `output` is what comes next, as far as is known."""
        if self.message_id is None or output.message_id != self.message_id:
            return False
        return self.count is None or output.step == self.count + 1


class LiveOutput:
    """What the model of one session is writing."""

    def __init__(self, carrier: PartialCarrier, workflow_id: str, watch: Watch) -> None:
        """Follow through `carrier` once a turn runs; who waits for `watch` is woken when something has arrived."""
        self.latest: Snapshot | None = None
        self.watchers = 0
        self._carrier = carrier
        self._workflow_id = workflow_id
        self._watch = watch
        self._revision = -1
        self._published_version = -1
        """The version of the session that watchers are being sent."""
        self._published_at = float("-inf")
        self._steps = SeenSteps()
        self._follower: asyncio.Task[None] | None = None
        self._growths: dict[Snapshot | None, PartialEvent | None] = {}
        """Those since each snapshot that somebody was sent, to the latest one."""

    def learn(self, update: ConversationUpdate, *, since: int | None) -> None:
        """Follow from now on or no longer, as the newest update has it: what is new since the revision `since`."""
        if update.revision < self._revision or update.has_more:
            return  # the running turn stands on the last page
        if since is not None and since > self._revision:
            self._steps, self.latest = SeenSteps(), None  # who has come knows more, and was not told it here
        self._revision = update.revision
        self._steps.learn(update)
        if self.latest and self._steps.have_seen(self.latest.output):
            self.latest = None
        is_writing = update.is_processing and update.status not in ("awaiting_approval", "waiting_retry")
        if not is_writing or self._steps.are_calls_running:
            self.stop_following()
        elif self._follower is None:
            self._follower = asyncio.create_task(self._follow())

    async def wait_for_watchers(self) -> None:
        """Wait until all watchers have had the time to be sent the change before; hardly at all where there are few."""
        loop = asyncio.get_running_loop()
        while self._published_version != self._watch.version:
            remaining = self._published_at + self.watchers * SECONDS_A_WATCHER - loop.time()
            if remaining <= 0:
                self._published_version, self._published_at = self._watch.version, loop.time()
            else:
                await asyncio.sleep(remaining)

    def growth_since(self, snapshot: Snapshot | None) -> PartialEvent | None:
        """Return what to send to a watcher that was sent `snapshot` last, if anything."""
        if self.latest is None or snapshot is self.latest:
            return None
        if snapshot not in self._growths:
            new = growth(snapshot.output if snapshot else None, self.latest.output)
            self._growths[snapshot] = PartialEvent(new) if new else None
        return self._growths[snapshot]

    def stop_following(self) -> None:
        """Follow no longer; what has arrived is in the transcript by now, or never will be."""
        self.latest = None
        if self._follower is not None:
            self._follower.cancel()
            self._follower = None

    async def _follow(self) -> None:
        async with self._carrier.following(self._workflow_id) as live:
            version = 0
            while True:
                await live.wait_beyond(version)
                version, latest = live.version, live.latest
                is_news = latest is not None and not self._steps.have_seen(latest)
                self.latest, self._growths = Snapshot(latest) if latest and is_news else None, {}
                self._watch.notify()
                await asyncio.sleep(PAUSE_SECONDS)


class LiveOutputRegistry:
    """What the models of all watched sessions are writing."""

    def __init__(self, carrier: PartialCarrier) -> None:
        self._carrier = carrier
        self._outputs: dict[Watch, LiveOutput] = {}

    @contextmanager
    def watching(self, workflow_id: str, watch: Watch) -> Iterator[LiveOutput]:
        """Give what the session's model writes, for the time of the block."""
        output = self._outputs.get(watch)
        if output is None:
            output = self._outputs[watch] = LiveOutput(self._carrier, workflow_id, watch)
        output.watchers += 1
        try:
            yield output
        finally:
            output.watchers -= 1
            if not output.watchers:
                output.stop_following()
                del self._outputs[watch]
