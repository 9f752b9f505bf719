"""The last part of `benchmarks/RESULTS.md`, from the samples of a run."""

import math
from collections.abc import Sequence
from itertools import chain
from statistics import linear_regression, median, quantiles

from benchmarks.peers.plot import medians, smoothed
from benchmarks.peers.recording import Recording, SystemSamples
from benchmarks.peers.systems import IN_PROCESS, ON_TEMPORAL
from benchmarks.results import PEERS, Row, row, table

WINDOW = 5
"""How many turns of each conversation are one figure."""

RATE_GOALS = {ON_TEMPORAL["pydantic_ai"]: 2.0, ON_TEMPORAL["openai_agents"]: 3.0}
"""How many times their turns a second ours are to be. A library without a goal is shown only."""

MIN_TIMES_STORED = 100
"""How many times ours a turn of theirs is to store."""

INTRODUCTION = """
Written by `make bench-peers`: the same conversation with Turnkeeper, with pydantic-ai, the OpenAI Agents SDK and
Temporal's own agent harness on Temporal, and with LangGraph and DBOS on SQLite, in one run, a turn of each in turn. A
turn is a prompt of 1,000 characters, {tools} with 190 characters beside it and a result of 2,000, and an answer of
1,000. The model is fake and answers at once. Figures are medians of {conversations} conversations of {turns} turns, and
of {rates} samples of {sessions} new sessions at once, with their first ten turns. Take the ratios, not the
milliseconds.

![Turn time and stored bytes over the turns of a conversation](../docs/pictures/peers.svg)
"""

IN_MEMORY = "All databases are in memory, so nothing waits for a disk."
ON_DISK = (
    "All databases are files on a disk; those of LangGraph and DBOS have the settings that these libraries choose."
)

NOTES = """
What is the same, and what is not:

- {databases}
- All on Temporal share one server, the one of `make run`. Each has a worker in a process of its own, without gRPC
  compression. Turn time is from the prompt's signal (the harness has an update) until a client has the answer; the
  same code watches all of them. Turnkeeper runs the tool, a quick read, in the activity of the model call
  ([decision 56](../docs/decisions/0056-quick-reads-run-in-the-activity-of-the-model-call.md)); in the others it is an
  activity.
- LangGraph and DBOS each run in one process, and turn time is that of the call: there is no server on the way. Neither
  queues prompts, and no other process continues a turn whose process has died until the program makes the call again.
- DBOS has no conversations. The program passes the whole conversation to each turn's workflow, and between the turns it
  has to store it itself, which is not in the figures.
- The harness runs pydantic-ai, which it lets stream to its clients, and leaves the rest to its workflow, which never
  continues as new. Payloads that it stores outside of histories are not in its bytes.
- The workflows of pydantic-ai and OpenAI Agents keep the conversation and pass it to the library, as its documentation
  does. They continue as new when Temporal suggests it, and carry the whole conversation over. It must stay below 2 MB,
  Temporal's limit of a payload; in Turnkeeper, old turns are in the archive by then.
- Every model call gets the whole conversation, so Turnkeeper's sessions evict no messages here. Its activities have the
  conversation from the worker's memory; the other systems store it again with each step or turn.
- Stored bytes are those of the histories of all runs, and of all values in the database, Turnkeeper's archive included;
  indexes and Temporal's own tables are not. What is stored by a turn is the median turn's, in which no run continues as
  new; what is stored after a number of turns has all.
- *Actions* and *events* are those of a turn in Temporal's history, [counted as here](../docs/scaling.md); *slow
  actions* are those of a turn whose four model calls take 10 s each, with heartbeats and queries, while nobody watches.
  *Runs* are those of a conversation: each one but the first costs its start too.
"""


def section(recording: Recording) -> str:
    """Return the part as Markdown."""
    measured = recording.measured
    ours = measured[0]
    failures = [
        f"Not measured to the end: {system.name}: {system.failure}." for system in recording.systems if system.failure
    ]
    introduction = INTRODUCTION.format(
        tools="a tool call" if recording.tool_calls == 1 else f"{recording.tool_calls} tool calls, each",
        conversations=len(ours.milliseconds),
        turns=turn_count(ours),
        rates=len(ours.rates),
        sessions=recording.sessions,
    )
    versions = dict(chain.from_iterable(system.versions.items() for system in measured))
    machine = f"{recording.machine}, {', '.join(f'{name} {version}' for name, version in versions.items())}."
    lines = [
        PEERS + introduction,
        machine,
        "",
        *_figures([each for each in recording.systems if has_turns(each, WINDOW)], recording.sessions),
        "",
    ]
    lines += [
        *table(comparisons(recording), floor="theirs"),
        *chain.from_iterable(("", line) for line in failures),
        NOTES.format(databases=ON_DISK if recording.is_on_disk else IN_MEMORY),
    ]
    return "\n".join(lines)


def turn_count(system: SystemSamples) -> int:
    return len(system.milliseconds[0])


def has_turns(system: SystemSamples, turns: int) -> bool:
    """Return whether all conversations of a system were measured up to this turn."""
    return bool(system.milliseconds) and all(len(conversation) >= turns for conversation in system.milliseconds)


def windows(turns: int) -> list[slice]:
    """Return the first, middle and last turns of a conversation.

    >>> windows(100)
    [slice(0, 5, None), slice(45, 50, None), slice(95, 100, None)]
    """
    return [slice(0, WINDOW), slice(turns // 2 - WINDOW, turns // 2), slice(turns - WINDOW, turns)]


def turn_time(system: SystemSamples, window: slice) -> float:
    """Return the median milliseconds of the turns."""
    return median(chain.from_iterable(conversation[window] for conversation in system.milliseconds))


def turn_bytes(system: SystemSamples, window: slice) -> float:
    """Return the median of what a turn stores. Most turns start no new run, so it is without what runs carry over."""
    after = chain.from_iterable(conversation[window] for conversation in system.stored)
    before = chain.from_iterable([0, *conversation][window] for conversation in system.stored)
    return median(end - start for start, end in zip(before, after, strict=True))


def total_bytes(system: SystemSamples, turns: int) -> float:
    """Return what is stored after `turns` turns."""
    return median(conversation[turns - 1] for conversation in system.stored)


def _figures(systems: Sequence[SystemSamples], sessions: int) -> list[str]:
    """Return a table of times and one of bytes, each with a line for each system."""
    spans = windows(turn_count(systems[0]))
    names = [f"turns {span.start + 1} to {span.stop}" for span in spans]
    rate = f"turns a second, {sessions} sessions"
    times = ["turn time", *names, "p95 of all turns", rate, "actions", "events", "slow actions"]
    sizes = [
        "stored",
        *(f"by a turn, {name}" for name in names),
        *(f"after {span.stop} turns" for span in spans),
        "runs",
    ]
    return [
        *(_line(times), _ruler(times), *(_line(_times(system, spans)) for system in systems), ""),
        *(_line(sizes), _ruler(sizes), *(_line(_sizes(system, spans)) for system in systems)),
    ]


def _times(system: SystemSamples, spans: Sequence[slice]) -> list[str]:
    p95 = quantiles(chain.from_iterable(system.milliseconds), n=20)[-1]
    rate = f"{median(system.rates):.1f}" if system.rates else ""
    times = (f"{turn_time(system, span):.0f} ms" if has_turns(system, span.stop) else "" for span in spans)
    counts = (str(count or "") for count in (system.actions, system.events, system.slow_actions))
    return [system.name, *times, f"{p95:.0f} ms", rate, *counts]


def _sizes(system: SystemSamples, spans: Sequence[slice]) -> list[str]:
    by_turn = (size(turn_bytes(system, span)) if has_turns(system, span.stop) else "" for span in spans)
    totals = (size(total_bytes(system, span.stop)) if has_turns(system, span.stop) else "" for span in spans)
    return [system.name, *by_turn, *totals, str(system.runs or "")]


def _ruler(cells: Sequence[str]) -> str:
    return "|" + "---|" * len(cells)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def size(count: float) -> str:
    """Return a number of bytes as people read it.

    >>> size(9_870), size(48_200_000)
    ('9.9 KB', '48.2 MB')
    """
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count / 1e3:,.1f} KB"


def comparisons(recording: Recording) -> list[Row]:
    """Return the goals against each library that was measured to the end."""
    ours, *others = recording.measured
    first, middle, last = windows(turn_count(ours))
    rows = list[Row]()
    for other in others:
        if other.name in RATE_GOALS:
            rows += [
                _time(ours, other, first, at_most=0.8),
                _time(ours, other, middle, at_most=0.2),
                _rate(ours, other, recording.sessions),
                _stored(ours, other, middle),
            ]
        elif other.name == IN_PROCESS["langgraph"]:
            rows += [_stored(ours, other, middle), _growth(ours, other, first, last), _overtaking(ours, other)]
    return rows


def _time(ours: SystemSamples, other: SystemSamples, window: slice, *, at_most: float) -> Row:
    mine, theirs = turn_time(ours, window), turn_time(other, window)
    what = f"turn time, turns {window.start + 1} to {window.stop}, to {other.name}"
    return row(what, f"{mine:.0f} ms", f"{theirs:.0f} ms", mine / theirs, at_most=at_most)


def _growth(ours: SystemSamples, other: SystemSamples, first: slice, last: slice) -> Row:
    """Return the line of how much more a late turn stores than an early one."""
    mine, theirs = (turn_bytes(system, last) / turn_bytes(system, first) for system in (ours, other))
    what = f"stored by a turn, turns {last.start + 1} to {last.stop} to turns 1 to {first.stop}, to {other.name}'s"
    return Row(what, f"{mine:.2f} times", f"{theirs:.2f} times", goal="≤ 1.05 times", reached=mine <= 1.05)


def _overtaking(ours: SystemSamples, other: SystemSamples) -> Row:
    """Return the line of the turn from which ours take less time: where the straight lines through all turns cross."""
    turns = range(1, turn_count(ours) + 1)
    mine, theirs = (linear_regression(turns, smoothed(medians(each.milliseconds))) for each in (ours, other))
    gain = theirs.slope - mine.slope
    turn = (mine.intercept - theirs.intercept) / gain if gain > 0 else math.inf
    place = (
        "in no turn" if math.isinf(turn) else f"turn {max(1, turn):.0f}{' (extrapolated)' if turn > len(turns) else ''}"
    )
    return Row(f"turn time, ours is below that of {other.name} from", place, f"+{theirs.slope:.2f} ms a turn")


def _rate(ours: SystemSamples, other: SystemSamples, sessions: int) -> Row:
    mine, theirs = median(ours.rates), median(other.rates)
    what = f"turns a second, {sessions} sessions, to {other.name}"
    return row(what, f"{mine:.1f}", f"{theirs:.1f}", mine / theirs, at_least=RATE_GOALS[other.name])


def _stored(ours: SystemSamples, other: SystemSamples, window: slice) -> Row:
    mine, theirs = turn_bytes(ours, window), turn_bytes(other, window)
    what = f"stored by a turn, turns {window.start + 1} to {window.stop}, to {other.name}"
    goal, is_reached = f"≤ 1/{MIN_TIMES_STORED}", theirs >= mine * MIN_TIMES_STORED
    return Row(what, size(mine), size(theirs), f"1/{theirs / mine:.0f}", goal, is_reached)
