"""The measurements of turns, long sessions and throughput (OPS-11). Each returns rows of the results."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median
from time import perf_counter

from benchmarks.environment import BenchEnvironment, BenchSession, OurSession, gateway_process, interleaved
from benchmarks.http_client import HttpClient, http_client
from turnkeeper.models.limits import Limits
from turnkeeper.models.transcript.conversation import ConversationMessage, ConversationState, ConversationUpdate
from turnkeeper.models.transcript.trajectory import ModelStep

EARLY, LATE, SAMPLES = 5, 200, 20
"""An early and a late turn of a session, and how many turns around each are measured."""

POLLS = 200
MONTHS = 2_000
"""The turns of a session that lives for months."""

SESSIONS = 32
TURNS_EACH = 4


@dataclass(frozen=True)
class Row:
    """One line of the results. `reached` is None if there is no goal."""

    what: str
    measured: str
    floor: str
    ratio: str
    goal: str
    reached: bool | None


def row(
    what: str, measured: str, floor: str, ratio: float, *, at_most: float | None = None, at_least: float = 0
) -> Row:
    """Return the line of a ratio and its goal."""
    if at_most is not None:
        return Row(what, measured, floor, f"{ratio:.2f}", f"≤ {at_most:g} times", ratio <= at_most)
    return Row(what, measured, floor, f"{ratio:.2f}", f"≥ {at_least:g} times", ratio >= at_least)


async def turns(environment: BenchEnvironment) -> list[Row]:
    """Measure latency and history of a turn with 4 model calls and 3 tools, at turn 5 and at turn 200."""
    ours, floor = await environment.session("four"), await environment.floor()
    early = await _around(EARLY, ours, floor)
    while ours.rounds < LATE - SAMPLES // 2:
        await ours.round()
        await floor.round()
    late = await _around(LATE, ours, floor)
    activities = await _around(EARLY, await environment.session("searches"), floor)
    longer = await environment.session("long")
    long_bytes = (await _around(EARLY, longer, floor)).our_bytes
    text = mean(map(_own_text, (await _state(longer)).messages[-5:]))
    bound = late.floor_bytes + text
    totals = await _totals(ours)
    return [
        row(f"signal to visible answer, quick reads, turn {EARLY}", *early.seconds, early.ratio, at_most=1.0),
        row(f"signal to visible answer, quick reads, turn {LATE}", *late.seconds, late.ratio, at_most=1.0),
        row("the same with tools that are activities, turn 5", *activities.seconds, activities.ratio, at_most=1.25),
        row(
            f"the same, turn {LATE} to turn {EARLY}, each over its floor",
            "",
            "",
            late.ratio / early.ratio,
            at_most=1.15,
        ),
        row(
            f"history bytes of a turn, turn {LATE} to turn {EARLY}",
            f"{late.our_bytes:,.0f}",
            f"{early.our_bytes:,.0f}",
            late.our_bytes / early.our_bytes,
            at_most=1.05,
        ),
        row(
            f"history bytes of a turn over (floor's {late.floor_bytes:,.0f} + own text {text:,.0f})",
            f"{long_bytes:,.0f}",
            f"{bound:,.0f}",
            long_bytes / bound,
            at_most=1.2,
        ),
        *totals,
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
        return _ms(self.ours), _ms(self.floor)


async def _around(turn: int, ours: BenchSession, floor: BenchSession) -> _Sample:
    while ours.rounds < turn - SAMPLES // 2 or ours.rounds < 2:
        await ours.round()
        await floor.round()
    return await _side_by_side(ours, floor)


async def _side_by_side(ours: BenchSession, floor: BenchSession) -> _Sample:
    """Measure both in turn; a sample in which a new run starts has no bytes."""
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


async def _state(session: OurSession) -> ConversationState:
    return await session.handle.query("get_conversation_state", result_type=ConversationState)


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


async def _totals(session: OurSession) -> list[Row]:
    """Return totals of a session: the bytes of all runs, its continue-as-new, and its largest carried state."""
    sizes, carried = [], []
    run_id: str | None = (await session.handle.describe()).raw_description.workflow_execution_info.first_run_id
    while run_id:
        handle = session.client.get_workflow_handle(session.handle.id, run_id=run_id)
        history = await handle.fetch_history()
        sizes.append((await handle.describe()).raw_description.workflow_execution_info.history_size_bytes)
        ending = history.events[-1].workflow_execution_continued_as_new_event_attributes
        run_id = ending.new_execution_run_id or None
        if run_id:
            carried.append(sum(payload.ByteSize() for payload in ending.input.payloads))
    turns_done, megabytes = session.rounds, sum(sizes) / 1e6
    return [
        Row(f"history of a {turns_done}-turn session", f"{megabytes:.2f} MB", "", "", "≤ 3 MB", megabytes <= 3),
        Row("continue-as-new in it", str(len(carried)), "", "", "≤ 4", len(carried) <= 4),
        Row(
            "largest state handed over",
            f"{max(carried, default=0) / 1e6:.2f} MB",
            "",
            "",
            "≤ 1 MB",
            max(carried, default=0) <= 1e6,
        ),
    ]


async def months(environment: BenchEnvironment) -> list[Row]:
    """Compare a session of 2,000 turns with one of 10: polls without news, a turn, and its bytes.

    The long one has continued as new dozens of times and has most of its turns in the archive.
    """
    limits = Limits(max_history_events=500)
    short = await environment.session("tool", limits=limits)
    long = await environment.session("tool", limits=limits)
    for session, turn_count in ((short, 10), (long, MONTHS)):
        while session.rounds < turn_count:
            await session.round()
    async with gateway_process(environment) as port:
        with http_client(port) as http:
            polls = await interleaved(
                POLLS,
                lambda: _poll(http, short),
                lambda: _poll(http, long),
                lambda: _bare(short),
                lambda: _bare(long),
            )
    http_short, http_long, bare_short, bare_long = map(median, polls)
    late = await _side_by_side(long, short)
    totals = await _totals(long)
    state = await _state(long)
    return [
        row(
            f"GET /conversation, nothing new, {MONTHS} turns to 10",
            _ms(http_long),
            _ms(http_short),
            http_long / http_short,
            at_most=1.2,
        ),
        row("the same to a bare query, 10 turns", _ms(http_short), _ms(bare_short), http_short / bare_short, at_most=1),
        row(
            f"the same to a bare query, {MONTHS} turns",
            _ms(http_long),
            _ms(bare_long),
            http_long / bare_long,
            at_most=1,
        ),
        row(
            f"signal to visible answer, one tool, turn {MONTHS} to turn 10",
            _ms(late.ours),
            _ms(late.floor),
            late.ratio,
            at_most=1.15,
        ),
        row(
            f"history bytes of a turn, turn {MONTHS} to turn 10",
            f"{late.our_bytes:,.0f}",
            f"{late.floor_bytes:,.0f}",
            late.our_bytes / late.floor_bytes,
            at_most=1.05,
        ),
        Row(f"turns in the archive after {long.rounds}", str(state.archived_count), "", "", "", None),
        *(line for line in totals if line.what == "largest state handed over"),
    ]


async def _poll(http: HttpClient, session: BenchSession) -> float:
    path = f"/workflow/{session.handle.id}/conversation?last_seen_message_id=m{session.rounds}"
    if not hasattr(session, "revision"):
        first = await http.get(path)
        session.revision = first["conversation_update"]["revision"]  # type: ignore[attr-defined]
    started_at = perf_counter()
    answer = await http.get(f"{path}&since_revision={session.revision}")  # type: ignore[attr-defined]
    seconds = perf_counter() - started_at
    update = answer["conversation_update"]
    if update["new_messages"] or update["updated_messages"]:
        raise AssertionError("something was new")
    return seconds


async def _bare(session: BenchSession) -> float:
    cursor = {"last_seen_message_id": f"m{session.rounds}", "since_revision": session.revision}  # type: ignore[attr-defined]
    started_at = perf_counter()
    await session.handle.query("get_conversation_updates", cursor, result_type=ConversationUpdate)
    return perf_counter() - started_at


async def throughput(environment: BenchEnvironment) -> list[Row]:
    """Measure turns a second of 32 concurrent sessions, and of 32 floor workflows."""
    reading = [await environment.session("four") for _ in range(SESSIONS)]
    searching = [await environment.session("searches") for _ in range(SESSIONS)]
    floor = [await environment.floor() for _ in range(SESSIONS)]

    samples = await interleaved(
        3, lambda: turns_a_second(reading), lambda: turns_a_second(searching), lambda: turns_a_second(floor)
    )
    reads, searches, floors = map(median, samples)
    return [
        row(
            f"turns a second, {SESSIONS} sessions, quick reads",
            f"{reads:.1f}",
            f"{floors:.1f}",
            reads / floors,
            at_least=1.0,
        ),
        row(
            "the same with tools that are activities",
            f"{searches:.1f}",
            f"{floors:.1f}",
            searches / floors,
            at_least=0.85,
        ),
    ]


async def turns_a_second(sessions: Sequence[BenchSession]) -> float:
    """Run `TURNS_EACH` turns of every session at the same time; return the turns per second of all sessions."""

    async def run_turns(session: BenchSession) -> None:
        for _ in range(TURNS_EACH):
            await session.round()

    started_at = perf_counter()
    await asyncio.gather(*(run_turns(session) for session in sessions))
    return len(sessions) * TURNS_EACH / (perf_counter() - started_at)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
