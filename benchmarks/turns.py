"""A turn of four model calls and three tools whose model answers at once: latency and history, early and late."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from benchmarks.environment import BenchSession, OurSession, bench_environment, interleaved
from benchmarks.results import Row, ms, row, within
from turnkeeper.models.transcript.conversation import ConversationMessage, ConversationUpdate, ModelStep

EARLY, LATE, SAMPLES = 5, 200, 20
"""An early and a late turn of a session, and how many turns around each are measured."""


async def turns() -> list[Row]:
    """Measure latency and history of a turn, at turn 5 and at turn 200."""
    async with bench_environment() as environment:
        ours, searches = await environment.session("prose"), await environment.session("searches")
        four, seven = await environment.floor(4), await environment.floor(7)
        early = await _around(EARLY, ours, four)
        activities = await _around(EARLY, searches, seven)
        while ours.rounds < LATE - SAMPLES // 2:
            await ours.round()
        late = await _around(LATE, ours, four)
        text = mean(map(_own_text, await _last_turns(ours)))
        sizes, carried = await _history(ours)
    return [
        row(f"signal to visible answer, quick reads, turn {EARLY}", *early.seconds, early.ratio, at_most=1.25),
        row(f"signal to visible answer, quick reads, turn {LATE}", *late.seconds, late.ratio, at_most=1.25),
        row(
            f"signal to visible answer over its floor, turn {LATE} to turn {EARLY}",
            f"{late.ratio:.2f}",
            f"{early.ratio:.2f}",
            late.ratio / early.ratio,
            at_most=1.15,
        ),
        row(
            f"signal to visible answer, tools that are activities, turn {EARLY}",
            *activities.seconds,
            activities.ratio,
            at_most=1.25,
        ),
        row(
            f"history bytes of a turn, turn {LATE} to turn {EARLY}",
            f"{late.our_bytes:,.0f}",
            f"{early.our_bytes:,.0f}",
            late.our_bytes / early.our_bytes,
            at_most=1.05,
        ),
        row(
            f"history bytes of a turn, turn {LATE}, to the floor's and its own text once",
            f"{late.our_bytes:,.0f}",
            f"{late.floor_bytes:,.0f} + {text:,.0f}",
            late.our_bytes / (late.floor_bytes + text),
            at_most=1.2,
        ),
        within(f"history of a {ours.rounds}-turn session", sum(sizes) / 1e6, 3, unit="MB", digits=2),
        within("largest carried state in it, as stored", max(carried, default=0) / 1e6, 0.3, unit="MB", digits=3),
        within("continue-as-new in it", len(carried), 7),
    ]


@dataclass(frozen=True)
class _Sample:
    ours: float
    floor: float
    our_bytes: float
    floor_bytes: float
    ratio: float
    """The median over pairs of consecutive samples, which a busy machine does not change."""

    @property
    def seconds(self) -> tuple[str, str]:
        return ms(self.ours), ms(self.floor)


async def _around(turn: int, ours: BenchSession, floor: BenchSession) -> _Sample:
    """Measure both in turn, `SAMPLES` turns around `turn`; one in which a new run starts has no bytes."""
    while ours.rounds < turn - SAMPLES // 2 or ours.rounds < 2:
        await ours.round()
        await floor.round()
    new_bytes: dict[int, list[int]] = {id(ours): [], id(floor): []}

    async def measured(session: BenchSession) -> float:
        run, before = await session.run_id(), await session.history_bytes()
        seconds = await session.round()
        if await session.run_id() == run:
            new_bytes[id(session)].append(await session.history_bytes() - before)
        return seconds

    samples = await interleaved(SAMPLES, lambda: measured(ours), lambda: measured(floor))
    ratio = median(our_seconds / floor_seconds for our_seconds, floor_seconds in zip(*samples, strict=True))
    our_bytes, floor_bytes = median(new_bytes[id(ours)]), median(new_bytes[id(floor)])
    return _Sample(median(samples[0]), median(samples[1]), our_bytes, floor_bytes, ratio)


async def _last_turns(session: OurSession) -> Sequence[ConversationMessage]:
    cursor = {"last_seen_message_id": f"m{session.rounds - 5}"}
    update = await session.handle.query("get_conversation_updates", cursor, result_type=ConversationUpdate)
    return update.new_messages


def _own_text(turn: ConversationMessage) -> int:
    """Return the bytes of a turn's texts, each counted once."""
    texts = [turn.user_message]
    for step in turn.steps:
        if isinstance(step, ModelStep):
            texts += [step.thinking or "", step.text or ""]
            for call in step.tool_calls:
                texts += [call.name, str(call.args)]
                texts += [call.result.outcome, call.result.content] if call.result else []
    return sum(len(text.encode()) for text in texts)


async def _history(session: OurSession) -> tuple[list[int], list[int]]:
    """Return the bytes of each run of a session, and those of each state that one run hands to the next."""
    sizes, carried = list[int](), list[int]()
    run_id: str | None = (await session.handle.describe()).raw_description.workflow_execution_info.first_run_id
    while run_id:
        handle = session.client.get_workflow_handle(session.handle.id, run_id=run_id)
        history = await handle.fetch_history()
        sizes.append((await handle.describe()).raw_description.workflow_execution_info.history_size_bytes)
        ending = history.events[-1].workflow_execution_continued_as_new_event_attributes
        run_id = ending.new_execution_run_id or None
        if run_id:
            carried.append(sum(payload.ByteSize() for payload in ending.input.payloads))
    return sizes, carried
