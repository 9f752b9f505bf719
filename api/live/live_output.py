"""What the model of a watched session is writing, and the progress of its tool calls, for all watchers (AGT-5, AGT-7).

Partial output is followed once per session, however many watchers there are, and only while a turn runs: a carrier may
have to poll for it. The latest snapshot is what has arrived; each watcher gets the growth since the snapshot that it
was sent last. Watchers with the same last snapshot share that growth, computed and encoded once.

A watcher gets a snapshot only if it has seen all steps before it and not the step itself: the answer in the transcript
is authoritative. A watcher that reconnects doesn't say which steps it has seen, so a snapshot is dropped as soon as
anyone here learns of its step.
"""

import asyncio
from dataclasses import dataclass
from functools import cached_property

from fastapi.sse import format_sse_event

from turnkeeper.api.temporal.watch import Watch
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.transcript.conversation import ConversationUpdate
from turnkeeper.models.transcript.partial_output import CallProgress, PartialGrowth, PartialOutput, growth
from turnkeeper.stores.partials.carrier import PartialCarrier

SECONDS_A_WATCHER = 0.0001
"""Time to send something to one watcher. So much for each watcher passes between two changes: otherwise many watchers
would lag behind by all the changes in between."""


@dataclass(frozen=True)
class PartialEvent:
    """What the model has written since the last such event."""

    growth: PartialGrowth

    @cached_property
    def sse(self) -> bytes:
        return format_sse_event(event="partial", data_str=self.growth.model_dump_json())


@dataclass(frozen=True)
class ProgressEvent:
    """How far a running tool call is."""

    progress: CallProgress

    @cached_property
    def sse(self) -> bytes:
        return format_sse_event(event="progress", data_str=self.progress.model_dump_json())


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A snapshot. Snapshots are compared by identity, which is cheap."""

    output: PartialOutput


@dataclass
class SeenSteps:
    """The model steps of the running turn, as far as they are known."""

    message_id: str | None = None
    count: int | None = None
    """The number of steps; `None` if it is unknown, as for a watcher that has reconnected."""
    running_calls: frozenset[str] = frozenset()
    """The ids of the newest step's calls without a result."""

    def learn(self, update: ConversationUpdate) -> None:
        if update.current_message_id != self.message_id:
            self.message_id, self.count, self.running_calls = update.current_message_id, None, frozenset()
        for turn in [*update.updated_messages, *update.new_messages]:
            if turn.id == self.message_id:
                models = turn.reasoning_trajectory.model_steps if turn.reasoning_trajectory else []
                self.count = models[-1].number if models else 0
                calls = models[-1].tool_calls if models else []
                self.running_calls = frozenset(call.id for call in calls if call.result is None)

    def may_run(self, call_id: str) -> bool:
        """Return whether a call is running, as far as is known."""
        return self.message_id is not None and (self.count is None or call_id in self.running_calls)

    def have_seen(self, output: PartialOutput) -> bool:
        return self.message_id == output.message_id and self.count is not None and output.step <= self.count

    def comes_next(self, output: PartialOutput) -> bool:
        """Return whether `output` is known to be what comes next."""
        return self.count is not None and self.are_just_before(output)

    def are_just_before(self, output: PartialOutput) -> bool:
        """Return whether `output` is what comes next, as far as is known."""
        if self.message_id is None or output.message_id != self.message_id:
            return False
        return self.count is None or output.step == self.count + 1


class LiveOutput:
    """What the model of one session is writing."""

    def __init__(self, carrier: PartialCarrier, workflow_id: WorkflowId, watch: Watch) -> None:
        self.latest: Snapshot | None = None
        self.progress: dict[str, ProgressEvent] = {}
        """The newest progress of calls, by call id."""
        self.watchers = 0
        self._carrier = carrier
        self._workflow_id = workflow_id
        self._watch = watch
        self._revision = -1
        self._published_version = -1
        """The session's version that is being sent to watchers."""
        self._published_at = float("-inf")
        self._steps = SeenSteps()
        self._follower: asyncio.Task[None] | None = None
        self._newest: PartialOutput | None = None
        """The newest snapshot that has arrived, also while it is unknown whether watchers have seen its step."""
        self._growths: dict[Snapshot | None, PartialEvent | None] = {}
        """The growth to the latest snapshot from each one that a watcher was sent."""

    def learn(self, update: ConversationUpdate, *, since: int | None) -> None:
        """Start or stop following, depending on an update with what is new since the revision `since`."""
        if update.revision < self._revision or update.has_more:
            return  # the running turn is on the last page
        if since is not None and since > self._revision:
            self._steps, self.latest = SeenSteps(), None  # another gateway told this watcher more
        self._revision = update.revision
        self._steps.learn(update)
        if self.latest and self._steps.have_seen(self.latest.output):
            self.latest = None
        if not update.is_processing or update.status in ("awaiting_approval", "waiting_retry"):
            self.stop_following()
        elif self._follower is None:
            self._follower = asyncio.create_task(self._follow())
        elif self.latest is None and self._newest and self._steps.comes_next(self._newest):
            self.latest, self._growths = Snapshot(self._newest), {}
            self._watch.notify()

    async def wait_for_watchers(self) -> None:
        """Wait until there was time to send the previous change to all watchers; hardly at all if they are few."""
        loop = asyncio.get_running_loop()
        while self._published_version != self._watch.version:
            remaining = self._published_at + self.watchers * SECONDS_A_WATCHER - loop.time()
            if remaining <= 0:
                self._published_version, self._published_at = self._watch.version, loop.time()
            else:
                await asyncio.sleep(remaining)

    def growth_since(self, snapshot: Snapshot | None) -> PartialEvent | None:
        """Return the growth since `snapshot`, if there is any."""
        if self.latest is None or snapshot is self.latest:
            return None
        if snapshot not in self._growths:
            new = growth(snapshot.output if snapshot else None, self.latest.output)
            self._growths[snapshot] = PartialEvent(new) if new else None
        return self._growths[snapshot]

    def stop_following(self) -> None:
        """Stop following and drop what was shown: the answer is in the transcript by now, or never will be."""
        self.latest, self._newest, self.progress = None, None, {}
        if self._follower is not None:
            self._follower.cancel()
            self._follower = None

    async def _follow(self) -> None:
        clock, served_at = asyncio.get_running_loop().time, 0.0
        async with self._carrier.following(self._workflow_id) as live:
            version = 0
            while True:
                await live.wait_beyond(version)
                # Carriers pause between two snapshots; here is only a pause if many watchers have to be served.
                if (remaining := served_at - clock()) > 0:
                    await asyncio.sleep(remaining)
                version, latest = live.version, live.latest
                self._newest = latest
                is_news = latest is not None and not self._steps.have_seen(latest)
                self.latest, self._growths = Snapshot(latest) if latest and is_news else None, {}
                events = [ProgressEvent(progress) for progress in live.calls.values()]
                self.progress = {event.progress.call_id: event for event in events}
                self._watch.notify()
                served_at = clock() + 5 * self.watchers * SECONDS_A_WATCHER
